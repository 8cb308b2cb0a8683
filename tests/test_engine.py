"""The fast path against the plain recursion, its gradients, its bounds on memory, and bad input."""

import re
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from icrl import engine, kernel_td, streaming
from icrl.config import KernelName
from icrl.engine import Evaluation, evaluate, evaluate_at_step_sizes
from icrl.errors import InputError
from icrl.grams import clean, compute_grams
from icrl.recursion import td_weights
from icrl.stability import divergence_limit, operator_norm, probed_bound
from icrl.streaming import evaluate_streamed, safe_step_size
from icrl.types import Transitions
from icrl.verification.inputs import DEFINED, REFUSED

KERNELS: list[KernelName] = ["linear", "relu", "exp", "softmax", "rbf"]
DISCOUNT = 0.9


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random_context(batch_size: int = 3, length: int = 12, state_size: int = 4, seed: int = 0) -> Transitions:
    """Contexts with terminal transitions and, in the second of them, padding of NaN."""
    generator = rng(seed)
    state = 0.5 * torch.randn(batch_size, length, state_size, generator=generator, dtype=torch.float64)
    successor = state + 0.1 * torch.randn(state.shape, generator=generator, dtype=torch.float64)
    mask = torch.ones(batch_size, length, dtype=torch.bool)
    mask[1, length - 4 :] = False
    return Transitions(
        observation=state.where(mask[..., None], torch.nan),
        reward=torch.randn(batch_size, length, generator=generator, dtype=torch.float64).where(mask, torch.nan),
        next_observation=successor.where(mask[..., None], torch.nan),
        terminated=torch.rand(batch_size, length, generator=generator) < 0.2,
        mask=mask,
    )


def random_query(num_queries: int = 5, batch_size: int = 3, state_size: int = 4) -> Tensor:
    return 0.5 * torch.randn(batch_size, num_queries, state_size, generator=rng(1), dtype=torch.float64)


def fractions(*shape: int) -> Tensor:
    return 0.2 + 1.5 * torch.rand(*shape, generator=rng(2), dtype=torch.float64)


TEMPERATURES = torch.tensor([[0.5, 0.4, 0.3], [1.0, 2.0, 0.7]], dtype=torch.float64)


@pytest.mark.parametrize("kernel", KERNELS)
def test_values_are_those_of_the_recursion(kernel: KernelName) -> None:
    context, query, fraction = random_context(), random_query(), fractions(2, 3, 20)
    grams = compute_grams(clean(context), query, kernel=kernel, temperature_TB=TEMPERATURES, discount=DISCOUNT)
    norm = torch.linalg.matrix_norm(grams.operator, 2) * grams.scale
    step_size = 0.3 * fraction / norm.reshape(2, 3, 1)
    result = evaluate_at_step_sizes(
        context,
        query,
        kernel=kernel,
        temperature=TEMPERATURES,
        step_size=step_size,
        discount=DISCOUNT,
        every_depth=True,
    )
    assert result.value.shape == (2, 3, 20, 5)
    for t in range(2):
        for b, samples in enumerate(kernel_td.separate(context, query)):
            expected = kernel_td.td(
                samples,
                step_size[t, b],
                kernel=kernel,
                temperature=float(TEMPERATURES[t, b]),
                discount=DISCOUNT,
            )
            assert torch.allclose(result.value[t, b], expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kernel", KERNELS)
def test_steps_are_fractions_of_the_bound(kernel: KernelName) -> None:
    context, query, fraction = random_context(), random_query(), fractions(2, 3, 6)
    grams = compute_grams(clean(context), query, kernel=kernel, temperature_TB=TEMPERATURES, discount=DISCOUNT)
    limit = divergence_limit(grams.reward, DISCOUNT)
    bound = probed_bound(
        kernel, grams.operator, grams.state_gram, grams.reward, radius=grams.radius, limit=limit, depth=6
    )
    arguments = {"kernel": kernel, "temperature": TEMPERATURES, "discount": DISCOUNT}
    explicit = evaluate_at_step_sizes(
        context, query, step_size=fraction * (bound / grams.scale).reshape(2, 3, 1), **arguments
    )
    assert torch.allclose(evaluate(context, query, step_fraction=fraction, **arguments).value, explicit.value)
    assert (bound <= 1.01 / torch.linalg.matrix_norm(grams.operator, 2)).all()


@pytest.mark.parametrize("kernel", KERNELS)
def test_gradients(kernel: KernelName, monkeypatch: pytest.MonkeyPatch) -> None:
    # The gradient of the norm is exact once its power iteration has converged.
    monkeypatch.setattr(operator_norm, "__defaults__", (400,))
    context, query = random_context(length=8), random_query(num_queries=3)

    def values(temperature: Tensor, step_fraction: Tensor) -> Tensor:
        return evaluate(
            context,
            query,
            kernel=kernel,
            temperature=temperature,
            step_fraction=step_fraction,
            discount=DISCOUNT,
            every_depth=True,
        ).value

    inputs = TEMPERATURES.clone().requires_grad_(), fractions(2, 3, 4).requires_grad_()
    assert torch.autograd.gradcheck(values, inputs, rtol=1e-4)


def test_gradient_of_the_recursion() -> None:
    operator = torch.randn(2, 5, 5, generator=rng(), dtype=torch.float64).requires_grad_()
    reward = torch.randn(2, 5, generator=rng(1), dtype=torch.float64).requires_grad_()
    step_size = fractions(2, 4).requires_grad_()
    assert torch.autograd.gradcheck(td_weights, (operator, reward, step_size))


@pytest.mark.parametrize("kernel", KERNELS)
def test_parts_of_the_batch_make_no_difference(kernel: KernelName, monkeypatch: pytest.MonkeyPatch) -> None:
    context, query = random_context(), random_query()

    def values() -> Evaluation:
        return evaluate(
            context,
            query,
            kernel=kernel,
            temperature=TEMPERATURES,
            step_fraction=fractions(2, 3, 6),
            discount=DISCOUNT,
        )

    whole = values()
    monkeypatch.setattr(engine, "CPU_WORKING_SET_BYTES", 1)
    parts = values()
    assert torch.allclose(parts.value, whole.value)
    assert torch.equal(parts.diverged, whole.diverged)


@pytest.mark.parametrize("kernel", KERNELS)
def test_streamed_values_are_those_of_the_whole_matrix(kernel: KernelName, monkeypatch: pytest.MonkeyPatch) -> None:
    context, query = random_context(), random_query()
    temperature, step = TEMPERATURES[0], safe_step_size(context, kernel=kernel, discount=DISCOUNT)
    step_size = step[:, None] * fractions(3, 6)
    grams = compute_grams(clean(context), query, kernel=kernel, temperature_TB=temperature[None], discount=DISCOUNT)
    # Three rows at a time.
    monkeypatch.setattr(streaming, "BLOCK_BYTES", 3 * 3 * 12 * 8)
    streamed = evaluate_streamed(
        context, query, kernel=kernel, temperature=temperature, step_size=step_size, discount=DISCOUNT
    )
    whole = evaluate_at_step_sizes(
        context,
        query,
        kernel=kernel,
        temperature=temperature[None],
        step_size=step_size / grams.scale[:, None],
        discount=DISCOUNT,
    )
    assert torch.allclose(streamed.value, whole.value, rtol=1e-10, atol=1e-12)
    assert (step <= 1 / torch.linalg.matrix_norm(grams.operator, 2)).all()


@pytest.mark.parametrize("kernel", KERNELS)
def test_too_large_steps_are_reported(kernel: KernelName) -> None:
    context, query = random_context(), random_query()
    for fraction, expected in ((1.0, False), (50.0, True)):
        result = evaluate(
            context,
            query,
            kernel=kernel,
            temperature=TEMPERATURES,
            step_fraction=torch.full((40,), fraction, dtype=torch.float64),
            discount=DISCOUNT,
        )
        assert (result.diverged == expected).all()


def test_a_passing_excursion_counts_as_divergence() -> None:
    """The value leaves the limit in the first layer and is back within it after the second."""
    one = torch.ones(1, 1, 1, dtype=torch.float64)
    context = Transitions(one, one[0], one, torch.ones(1, 1, dtype=torch.bool), torch.ones(1, 1, dtype=torch.bool))
    result = evaluate_at_step_sizes(
        context,
        one,
        kernel="linear",
        temperature=torch.ones(1, 1, dtype=torch.float64),
        step_size=torch.tensor([150.0, 1.0], dtype=torch.float64),
        discount=DISCOUNT,
    )
    assert float(result.value) == pytest.approx(1.0)
    assert result.diverged.all()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("NaN observation", "observations contain NaN"),
        ("infinite observation", "observations contain NaN or infinite"),
        ("NaN successor", "successors contain"),
        ("NaN reward", "rewards contain"),
        ("infinite reward", "rewards contain"),
        ("NaN query", "queries contain"),
        ("empty context", "no transition"),
        ("context of padding alone", "no transition"),
        ("wrong state dimension", "shape (2, 4, 2), but the contexts need [2, Q, 3]"),
        ("wrong number of query sets", "shape (1, 4, 3), but the contexts need [2, Q, 3]"),
        ("temperature 0", "temperature of the rbf kernel is not positive"),
        ("negative temperature", "temperature of the rbf kernel is not positive"),
        ("NaN temperature", "temperature of the softmax kernel is not positive"),
        ("discount 1", "discount is 1, but must lie in [0, 1)"),
        ("negative discount", "discount is -0.1"),
        ("NaN discount", "discount is nan"),
    ],
)
def test_bad_input_is_refused(name: str, message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        REFUSED[name]()


@pytest.mark.parametrize("holds", DEFINED.values(), ids=DEFINED.keys())
def test_borderline_input_has_its_documented_result(holds: Callable[[], bool]) -> None:
    assert holds()


def test_successors_of_another_size_are_refused() -> None:
    context = random_context()
    with pytest.raises(InputError, match="give every state one successor of the same size"):
        evaluate(
            replace(context, next_observation=context.next_observation[..., :3]),
            random_query(),
            kernel="rbf",
            temperature=TEMPERATURES,
            step_fraction=fractions(6),
            discount=DISCOUNT,
        )
