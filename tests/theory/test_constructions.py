"""The constructions as weights against the plain recursion, and one layer worked out by hand."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from icrl.config import KernelName
from icrl.constructions import td_layers
from icrl.dispatch import read_td_form, run
from icrl.errors import InputError
from icrl.tokens import Layout, LayoutName, trajectory_prompt, transition_prompt
from icrl.transformer import LayerWeights, forward
from icrl.types import Transitions
from icrl.verification.constructions import (
    EXACT,
    average_reward_difference,
    residual_gradient_difference,
    td_difference,
)
from icrl.verification.problems import KERNELS, Problem, random_problem

Difference = Callable[[Problem, KernelName, int, torch.Generator], float]
VARIANTS: dict[str, Difference] = {
    "TD(0), trajectory": lambda p, k, depth, g: td_difference(p, k, "trajectory", depth, g),
    "TD(0), transition": lambda p, k, depth, g: td_difference(p.with_episodes(g), k, "transition", depth, g),
    "TD(λ), trajectory": lambda p, k, depth, g: td_difference(p, k, "trajectory", depth, g, 0.7),
    "TD(λ), transition": lambda p, k, depth, g: td_difference(p.with_episodes(g), k, "transition", depth, g, 0.7),
    "residual gradient": lambda p, k, depth, g: residual_gradient_difference(p.with_episodes(g), k, depth, g),
    "average reward": lambda p, k, depth, g: average_reward_difference(p.with_episodes(g), k, depth, g),
}


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def number(value: float) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.float64)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("kernel", KERNELS)
def test_construction_is_the_recursion(kernel: KernelName, variant: str) -> None:
    rng = generator()
    for depth in (1, 12):
        assert VARIANTS[variant](random_problem(rng, max_length=25), kernel, depth, rng) <= EXACT


def test_two_layers_by_hand() -> None:
    """One number a state, linear kernel, γ = ½, α = 1: s = 1 with reward 2 and successor 3; the query is 2.

    v_1 = κ(·, 1) · 2, so v_1(1) = 2, v_1(3) = 6, v_1(2) = 4. Then δ = 2 + ½ · 6 − 2 = 3, and v_2(2) = 4 + 2 · 3 = 10.
    """

    def column(value: float) -> torch.Tensor:
        return torch.full((1, 1, 1), value, dtype=torch.float64)

    no = torch.zeros(1, 1, dtype=torch.bool)
    context = Transitions(column(1), column(2)[0], column(3), no, ~no)
    layers = td_layers(Layout("transition", 1), torch.ones(2, dtype=torch.float64), discount=0.5)
    value, tokens = forward(transition_prompt(context, column(2)), layers, kernel="linear", temperature=number(1.0))
    assert value[0, :, 0].tolist() == [4.0, 10.0]
    # (s, s', r, v, v') of the transition: v_2(1) = 2 + 3 and v_2(3) = 6 + 9.
    assert tokens[0, :, 0].tolist() == [1.0, 3.0, 2.0, 5.0, 15.0]


@pytest.mark.parametrize("layout", ["transition", "trajectory"])
def test_wrong_weights_are_not_the_recursion(layout: LayoutName, monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison can fail: without bootstrapping the difference is large."""

    def without_bootstrapping(*args: object, **options: object) -> list[LayerWeights]:
        return td_layers(*args, **{**options, "discount": 0.0})  # type: ignore[arg-type]

    monkeypatch.setattr("icrl.verification.constructions.td_layers", without_bootstrapping)
    rng = generator()
    assert td_difference(random_problem(rng), "rbf", layout, 10, rng) > 1e-3


@pytest.mark.parametrize("layout", ["transition", "trajectory"])
@pytest.mark.parametrize("kernel", KERNELS)
def test_fast_path_is_chosen_and_right(kernel: KernelName, layout: LayoutName) -> None:
    rng = generator()
    problem = random_problem(rng, max_length=15)
    state_size = problem.query.shape[-1]
    metric = torch.randn(3, state_size, generator=rng, dtype=torch.float64)
    mapped = replace(
        problem,
        context=replace(
            problem.context,
            observation=problem.context.observation @ metric.T,
            next_observation=problem.context.next_observation @ metric.T,
        ),
        query=problem.query @ metric.T,
    )
    step_sizes = mapped.step_sizes(kernel, 8, rng)
    layers = td_layers(Layout(layout, state_size), step_sizes, discount=problem.discount, metric=metric)
    temperature = number(problem.temperature)
    result = run(problem.context, problem.query, layers, layout=layout, kernel=kernel, temperature=temperature)
    make_prompt = trajectory_prompt if layout == "trajectory" else transition_prompt
    expected, _ = forward(make_prompt(problem.context, problem.query), layers, kernel=kernel, temperature=temperature)
    assert result.path == "fast"
    assert torch.allclose(result.value, expected, rtol=1e-10, atol=1e-12)


def spoiled(layers: list[LayerWeights], name: str) -> list[LayerWeights]:
    weights = {part: getattr(layers[0], part).clone() for part in ("value", "query", "key")}
    weights[name].view(-1)[1] += 0.1
    return [LayerWeights(**weights), *layers[1:]]


@pytest.mark.parametrize("part", ["value", "query", "key"])
@pytest.mark.parametrize("layout", ["transition", "trajectory"])
def test_other_weights_take_the_explicit_path(layout: LayoutName, part: str) -> None:
    rng = generator(1)
    problem = random_problem(rng, max_length=15)
    tokens = Layout(layout, problem.query.shape[-1])
    layers = td_layers(tokens, problem.step_sizes("rbf", 4, rng), discount=0.9)
    assert read_td_form(layers, tokens) is not None
    changed = spoiled(layers, part)
    arguments = {"layout": layout, "kernel": "rbf", "temperature": number(problem.temperature)}
    result = run(problem.context, problem.query, changed, **arguments)
    assert (result.path, result.reason) == ("explicit", "the weights are not the construction's")
    assert not torch.allclose(result.value, run(problem.context, problem.query, layers, **arguments).value)


def test_single_mask_takes_the_explicit_path() -> None:
    rng = generator()
    problem = random_problem(rng, max_length=15)
    layers = td_layers(Layout("trajectory", problem.query.shape[-1]), problem.step_sizes("exp", 4, rng), discount=0.9)
    result = run(
        problem.context,
        problem.query,
        layers,
        layout="trajectory",
        kernel="exp",
        temperature=number(problem.temperature),
        per_head_masks=False,
    )
    assert result.path == "explicit"


@pytest.mark.parametrize("flaw", ["gap", "padding", "terminal"])
def test_trajectory_layout_refuses_what_is_no_trajectory(flaw: str) -> None:
    problem = random_problem(generator(), max_length=15)
    context, size = problem.context, problem.context.length
    second = torch.arange(size)[None] == 1
    broken = {
        "gap": replace(context, next_observation=context.next_observation + second[..., None]),
        "padding": replace(context, mask=~second),
        "terminal": replace(context, terminated=second),
    }[flaw]
    with pytest.raises(InputError, match="not one contiguous trajectory"):
        trajectory_prompt(broken, problem.query)


def test_traces_refuse_padding_before_a_transition() -> None:
    problem = random_problem(generator(), max_length=15)
    mask = problem.context.mask.clone()
    mask[0, 0] = False
    with pytest.raises(InputError, match="padding before a transition"):
        transition_prompt(replace(problem.context, mask=mask), problem.query, trace_decay=0.5)
