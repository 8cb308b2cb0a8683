"""The step bound: its norm, its proof by corners, and what it does on contexts made to diverge."""

import itertools

import pytest
import torch
from torch import Tensor

from icrl import stability
from icrl.config import KernelName
from icrl.grams import Grams, clean, compute_grams
from icrl.recursion import td_weights
from icrl.stability import divergence_limit, operator_norm, probed_bound
from icrl.verification.problems import KERNELS
from icrl.verification.stability import DISCOUNT, NUM_CONTEXTS, TEMPERATURE, check_stability, hard_contexts

DEPTH = 60


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def norms(matrix: Tensor) -> Tensor:
    return torch.linalg.matrix_norm(matrix, 2)


def test_operator_norm_and_its_gradient() -> None:
    matrix = torch.randn(3, 8, 8, generator=rng(), dtype=torch.float64).requires_grad_()
    estimate = operator_norm(matrix, num_iterations=300)
    assert torch.allclose(estimate, norms(matrix))
    (gradient,) = torch.autograd.grad(estimate.sum(), matrix)
    (exact,) = torch.autograd.grad(norms(matrix).sum(), matrix)
    assert torch.allclose(gradient, exact, atol=1e-6)


def test_operator_norm_never_exceeds_the_norm() -> None:
    matrix = torch.randn(50, 8, 8, generator=rng(), dtype=torch.float64)
    assert (operator_norm(matrix, num_iterations=2) <= norms(matrix) * (1 + 1e-12)).all()


def hard_grams(kernel: KernelName) -> Grams:
    hard = hard_contexts(rng())
    temperature = torch.full((1, NUM_CONTEXTS), TEMPERATURE, dtype=torch.float64)
    return compute_grams(clean(hard.context), hard.state, kernel=kernel, temperature_TB=temperature, discount=DISCOUNT)


def bound_of(kernel: KernelName, grams: Grams, depth: int) -> Tensor:
    limit = divergence_limit(grams.reward, DISCOUNT)
    return probed_bound(
        kernel, grams.operator, grams.state_gram, grams.reward, radius=grams.radius, limit=limit, depth=depth
    )


@pytest.mark.parametrize("kernel", KERNELS)
def test_largest_value_over_all_schedules_is_at_the_constant_schedule(kernel: KernelName) -> None:
    """The proof's claim: corners of the cube of schedules reach what fraction 2 for some number of layers reaches."""
    grams, depth = hard_grams(kernel), 7
    step = 2 * bound_of(kernel, grams, depth)
    corners = torch.tensor(list(itertools.product([0.0, 1.0], repeat=depth)), dtype=torch.float64)
    constant = td_weights(grams.operator, grams.reward, step[:, None].expand(-1, depth))
    reached = (constant @ grams.state_gram.mT).abs().amax(dim=(1, 2))
    interior = torch.rand(60, depth, generator=rng(1), dtype=torch.float64)
    for schedule in (*corners, *interior):
        last = td_weights(grams.operator, grams.reward, step[:, None] * schedule)[:, -1:]
        assert ((last @ grams.state_gram.mT).abs().amax(dim=(1, 2)) <= reached * (1 + 1e-10)).all()


@pytest.mark.parametrize("kernel", KERNELS)
def test_bound_is_a_halving_of_the_inverse_norm(kernel: KernelName) -> None:
    grams = hard_grams(kernel)
    shrink = bound_of(kernel, grams, DEPTH) * operator_norm(grams.operator)
    halvings = -shrink.log2()
    assert torch.allclose(halvings, halvings.round(), atol=1e-9)
    assert halvings.min() >= 0
    assert halvings.max() >= 1, "these contexts are made to need halving"


def test_bound_of_an_operator_of_norm_zero_is_zero() -> None:
    zero = torch.zeros(1, 3, 3, dtype=torch.float64)
    bound = probed_bound(
        "linear",
        zero,
        torch.zeros(1, 6, 3, dtype=torch.float64),
        torch.ones(1, 3, dtype=torch.float64),
        radius=torch.ones(1, dtype=torch.float64),
        limit=torch.ones(1, dtype=torch.float64),
        depth=5,
    )
    assert bound.tolist() == [0.0]


def test_checks_pass_and_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    assert all(check.passed for check in check_stability(rng()))
    monkeypatch.setattr(stability, "MAX_HALVINGS", 0)
    assert not all(check.passed for check in check_stability(rng()))
