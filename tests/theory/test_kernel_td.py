"""The oracle itself: against figures worked out by hand, and recursions against their fixed points."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from icrl import kernel_td
from icrl.config import KernelName
from icrl.kernel_td import FixedPoint, Samples
from icrl.verification.problems import random_problem

DISCOUNT = 0.9
TEMPERATURE = 0.3
RATE_FRACTION = 0.5


def loop(num_states: int = 6, seed: int = 0, terminal: bool = False) -> Samples:
    """States on the unit sphere, each visited once, the last leading back to the first or to the end."""
    generator = torch.Generator().manual_seed(seed)
    state = torch.nn.functional.normalize(torch.randn(num_states, 4, generator=generator, dtype=torch.float64), dim=-1)
    live = torch.ones(num_states, dtype=torch.float64)
    live[-1] = 0 if terminal else 1
    return Samples(
        state=state,
        reward=torch.randn(num_states, generator=generator, dtype=torch.float64),
        successor=state.roll(-1, dims=0),
        live=live,
        query=torch.randn(3, 4, generator=generator, dtype=torch.float64) / 2,
    )


def test_kernels_by_hand() -> None:
    x, y = torch.tensor([[1.0, 0.0]]), torch.tensor([[1.0, 1.0], [-1.0, 2.0]])
    assert kernel_td.kappa("linear", x, y, 2.0).tolist() == [[1.0, -1.0]]
    assert kernel_td.kappa("relu", x, y, 2.0).tolist() == [[1.0, 0.0]]
    assert kernel_td.kappa("exp", x, y, 2.0)[0].tolist() == pytest.approx([math.exp(0.5), math.exp(-0.5)])
    assert kernel_td.kappa("softmax", x, y, 2.0)[0].tolist() == pytest.approx(
        [1 / (1 + math.exp(-1)), 1 / (1 + math.e)]
    )
    assert kernel_td.kappa("rbf", x, y, 2.0)[0].tolist() == pytest.approx([math.exp(-1 / 4), math.exp(-8 / 4)])


def test_traces_by_hand() -> None:
    """Four transitions: 0 → 1, then an episode that ends, then one that starts anew."""
    state = torch.tensor([[0.0], [1.0], [5.0], [6.0]], dtype=torch.float64)
    successor = torch.tensor([[1.0], [5.0], [6.0], [7.0]], dtype=torch.float64)
    live = torch.tensor([1.0, 0.0, 1.0, 1.0], dtype=torch.float64)
    samples = Samples(state, torch.zeros(4, dtype=torch.float64), successor, live, state)
    expected = [[1, 0.5, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0.5], [0, 0, 0, 1]]
    assert kernel_td.traces(samples, 0.5).tolist() == expected


def test_first_layers_by_hand() -> None:
    """s = 1, r = 2, s' = 3, query 2; linear kernel, γ = ½, α = 1, as in the constructions' test."""

    def one(value: float) -> Tensor:
        return torch.tensor([[value]], dtype=torch.float64)

    samples = Samples(one(1), one(2)[0], one(3), torch.ones(1, dtype=torch.float64), one(2))
    steps = torch.ones(2, dtype=torch.float64)
    options = {"kernel": "linear", "temperature": 1.0}
    assert kernel_td.td(samples, steps, discount=0.5, **options)[:, 0].tolist() == [4.0, 10.0]
    # κ(x, 1) − ½ κ(x, 3) = −x/2: v_1(x) = −x, δ = 2 − 1.5 + 1 = 1.5, v_2(2) = −2 − 1.5.
    assert kernel_td.residual_gradient(samples, steps, discount=0.5, **options)[:, 0].tolist() == [-2.0, -3.5]
    # r̄_1 = ½ · 2 = 1; δ = 2 − 1 + 6 − 2 = 5; v_2(2) = 4 + 2 · 5; r̄_2 = 1 + ½ · 5.
    value, rate = kernel_td.average_reward(samples, steps, rate_fraction=0.5, **options)
    assert value[:, 0].tolist() == [4.0, 14.0]
    assert rate.tolist() == [1.0, 3.5]


RECURSIONS: dict[
    str, tuple[Callable[[Samples, Tensor, KernelName], Tensor], Callable[[Samples, KernelName], FixedPoint]]
]
RECURSIONS = {
    "TD(0)": (
        lambda s, a, k: kernel_td.td(s, a, kernel=k, temperature=TEMPERATURE, discount=DISCOUNT),
        lambda s, k: kernel_td.fixed_point(s, kernel=k, temperature=TEMPERATURE, discount=DISCOUNT),
    ),
    "TD(λ)": (
        lambda s, a, k: kernel_td.td(s, a, kernel=k, temperature=TEMPERATURE, discount=DISCOUNT, trace_decay=0.4),
        lambda s, k: kernel_td.fixed_point(s, kernel=k, temperature=TEMPERATURE, discount=DISCOUNT),
    ),
    "residual gradient": (
        lambda s, a, k: kernel_td.residual_gradient(s, a, kernel=k, temperature=TEMPERATURE, discount=DISCOUNT),
        lambda s, k: kernel_td.residual_gradient_fixed_point(s, kernel=k, temperature=TEMPERATURE, discount=DISCOUNT),
    ),
    "average reward": (
        lambda s, a, k: kernel_td.average_reward(s, a, kernel=k, temperature=TEMPERATURE, rate_fraction=RATE_FRACTION)[
            0
        ],
        lambda s, k: kernel_td.average_reward_fixed_point(
            s, kernel=k, temperature=TEMPERATURE, rate_fraction=RATE_FRACTION
        ),
    ),
}


@pytest.mark.parametrize("terminal", [False, True])
@pytest.mark.parametrize("name", RECURSIONS)
def test_recursion_ends_at_its_fixed_point(name: str, terminal: bool) -> None:
    recursion, fixed_point = RECURSIONS[name]
    samples = loop(terminal=terminal)
    expected = fixed_point(samples, "rbf")
    value = recursion(samples, torch.full((4000,), 0.3, dtype=torch.float64), "rbf")
    assert torch.allclose(value[-1], expected.value, rtol=1e-6, atol=1e-8)
    assert expected.condition >= 1


@pytest.mark.parametrize("kernel", ["linear", "exp", "softmax", "rbf"])
def test_error_shrinks_at_the_stated_rate(kernel: KernelName) -> None:
    samples, step_size = loop(), 0.02 if kernel == "exp" else 0.1
    limit = kernel_td.fixed_point(samples, kernel=kernel, temperature=TEMPERATURE, discount=DISCOUNT)
    value = kernel_td.td(
        samples,
        torch.full((1200,), step_size, dtype=torch.float64),
        kernel=kernel,
        temperature=TEMPERATURE,
        discount=DISCOUNT,
    )
    error = (value - limit.value).norm(dim=1)
    # Complex eigenvalues make the error swing about its trend, so the rate is taken over as many layers as there are
    # before rounding takes over.
    last = int((error > 1e-10).nonzero().max())
    first = last // 4
    rate = float((error[last] / error[first]) ** (1 / (last - first)))
    assert rate == pytest.approx(limit.rate(step_size), abs=0.05 * (1 - limit.rate(step_size)))


def test_finite_rank_kernel_ends_at_least_squares_td() -> None:
    """Six states, four numbers each: the linear kernel's fixed point is LSTD's θ."""
    samples = loop()
    difference = samples.state - DISCOUNT * samples.successor
    theta = torch.linalg.solve(samples.state.T @ difference, samples.state.T @ samples.reward)
    limit = kernel_td.fixed_point(samples, kernel="linear", temperature=1.0, discount=DISCOUNT)
    assert torch.allclose(limit.value, samples.query @ theta)


def test_ridge_shrinks_the_value() -> None:
    samples = loop()
    sizes = [
        float(
            kernel_td.fixed_point(
                samples, kernel="rbf", temperature=TEMPERATURE, discount=DISCOUNT, ridge=ridge
            ).value.norm()
        )
        for ridge in (0.0, 10.0, 1000.0)
    ]
    assert sizes[0] > sizes[1] > sizes[2]
    assert sizes[2] < 0.01 * sizes[0]


def test_padding_is_cut_out() -> None:
    problem = random_problem(torch.Generator().manual_seed(0), max_length=10)
    context = problem.context
    context.mask[0, 1] = False
    (samples,) = kernel_td.separate(context, problem.query)
    assert len(samples.reward) == context.length - 1
    assert torch.equal(samples.state[1:], context.observation[0, 2:])
