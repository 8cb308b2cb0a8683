"""Temperatures chosen inside the context: folds, gate, and what the choice gains and costs where the truth is known."""

from dataclasses import fields

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor

from icrl.adaptive import (
    RULES,
    SHARPNESS,
    Bank,
    Gate,
    Rule,
    evaluate_adaptive,
    evaluate_bank,
    fit_gate,
    gate_weights,
    log_excess,
    mirror_descent,
    value_range,
)
from icrl.config import KernelName
from icrl.engine import evaluate
from icrl.errors import InputError
from icrl.metrics import td_errors
from icrl.mrps import random_kernel_processes
from icrl.types import Transitions

DISCOUNT, DEPTH = 0.9, 30
STEPS = torch.ones(DEPTH, dtype=torch.float64)
GRID = torch.logspace(-2, 1, 7, dtype=torch.float64)


def uniform_gate(temperature: Tensor = GRID, strength: float = 0.3) -> Gate:
    return Gate(temperature, torch.zeros_like(temperature), torch.tensor(strength))


def random_context(num_contexts: int = 2, length: int = 20, seed: int = 0) -> tuple[Transitions, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    draw = torch.randn(num_contexts, length, 9, generator=generator, dtype=torch.float64)
    mask = torch.ones(num_contexts, length, dtype=torch.bool)
    mask[0, -3:] = False
    context = Transitions(draw[..., :4], draw[..., 8], draw[..., 4:8], draw[..., 0] > 1, mask)
    return context, torch.randn(num_contexts, 5, 4, generator=generator, dtype=torch.float64)


def bank_of(context: Transitions, query: Tensor, kernel: KernelName = "rbf", num_folds: int = 4) -> Bank:
    return evaluate_bank(
        context,
        query,
        kernel=kernel,
        temperature=GRID,
        step_fraction=STEPS,
        discount=DISCOUNT,
        num_folds=num_folds,
    )


@pytest.mark.parametrize("kernel", ["softmax", "rbf"])
def test_fold_errors_are_those_of_values_that_never_saw_the_fold(kernel: KernelName) -> None:
    context, query = random_context()
    bank = bank_of(context, query, kernel)
    low, high = value_range(context, DISCOUNT)
    for start in range(0, 20, 5):
        rest = torch.tensor([index for index in range(20) if not start <= index < start + 5])
        kept = Transitions(*(getattr(context, field.name)[:, rest] for field in fields(Transitions)))
        fold = slice(start, start + 5)
        queries = torch.cat([context.observation[:, fold], context.next_observation[:, fold]], dim=1)
        steps = STEPS[None, None]
        values = evaluate(
            kept, queries, kernel=kernel, temperature=GRID[:, None], step_fraction=steps, discount=DISCOUNT
        ).value.clamp(low, high)
        expected = td_errors(
            context.reward[:, fold], values[..., :5], values[..., 5:], context.terminated[:, fold], DISCOUNT
        )
        present = context.mask[:, fold].expand(len(GRID), -1, -1)
        torch.testing.assert_close(bank.fold_error[..., fold][present], expected[present])
    assert (bank.fold_error[:, 0, -3:] == 0).all()


def test_a_reward_in_a_fold_moves_only_its_own_error_there() -> None:
    context, query = random_context()
    # The largest and the smallest reward stay, and with them the range of values.
    index = int(context.reward[1, :5].abs().argmin())
    before = bank_of(context, query).fold_error[:, 1, :5]
    context.reward[1, index] += 0.01
    after = bank_of(context, query).fold_error[:, 1, :5]
    expected = torch.zeros_like(before)
    expected[:, index] = 0.01
    torch.testing.assert_close(after - before, expected)


@pytest.mark.parametrize("strength", [0.01, 0.1, 1.0])
def test_mirror_descent_finds_the_minimum(strength: float) -> None:
    rng = np.random.default_rng(3)
    errors = rng.normal(size=(6, 8, 30)) * np.linspace(1, 2, 8)[:, None] + rng.normal(size=(6, 1, 30))
    product = np.einsum("btn,bun->btu", errors, errors) / 30
    product /= np.diagonal(product, axis1=1, axis2=2).min(1)[:, None, None]
    prior = rng.dirichlet(np.ones(8), size=6)
    found = mirror_descent(torch.tensor(product), torch.tensor(prior).log(), torch.tensor(strength)).numpy()
    np.testing.assert_allclose(found.sum(1), 1)
    for matrix, pi, weight in zip(product, prior, found, strict=True):

        def objective(w: np.ndarray, matrix: np.ndarray = matrix, pi: np.ndarray = pi) -> float:
            return float(w @ matrix @ w + strength * np.sum(w * np.log(np.maximum(w, 1e-300) / pi)))

        best = minimize(
            objective,
            pi,
            bounds=[(1e-12, 1)] * 8,
            constraints={"type": "eq", "fun": lambda w: w.sum() - 1},
            method="SLSQP",
            options={"ftol": 1e-12, "maxiter": 500},
        )
        assert objective(weight) <= best.fun * 1.01


def test_a_strong_prior_is_kept_and_an_excluded_temperature_gets_nothing() -> None:
    product = torch.eye(3, dtype=torch.float64)[None] * torch.tensor([1.0, 2, 3], dtype=torch.float64)
    prior = torch.tensor([[0.2, 0.3, 0.5]], dtype=torch.float64)
    torch.testing.assert_close(mirror_descent(product, prior.log(), torch.tensor(1e6)), prior, atol=1e-5, rtol=0)
    without = mirror_descent(
        product, prior.log().masked_fill(torch.tensor([True, False, False]), -torch.inf), torch.tensor(0.1)
    )
    assert without[0, 0] == 0
    assert without.sum() == pytest.approx(1)


def test_weights_of_two_hand_made_errors() -> None:
    # Opposite errors cancel in equal parts; the plainer rules cannot see that.
    error = torch.tensor([[[1.0, -1, 1, -1]], [[-1.0, 1, -1, 1]]], dtype=torch.float64)
    bank = Bank(
        value=torch.tensor([[[2.0]], [[4.0]]], dtype=torch.float64),
        value_range=torch.tensor([[[0.0]], [[3.0]]], dtype=torch.float64),
        fold_error=error * torch.tensor([1.0, 1.01], dtype=torch.float64)[:, None, None],
        mask=torch.ones(1, 4, dtype=torch.bool),
        diverged=torch.zeros(2, 1, dtype=torch.bool),
    )
    gate = uniform_gate(GRID[:2], strength=0.0)
    # The second value, 4, is clipped to 3.
    assert bank.combine(gate_weights(bank, gate)).item() == pytest.approx(2 * 0.5025 + 3 * 0.4975, abs=2e-3)
    assert gate_weights(bank, gate, "stacked")[:, 0].tolist() == pytest.approx([0.5025, 0.4975], abs=1e-3)
    assert gate_weights(bank, gate, "hard")[:, 0].tolist() == [1, 0]
    assert gate_weights(bank, gate, "soft")[:, 0].tolist() == pytest.approx([0.5985, 0.4015], abs=1e-3)


@pytest.mark.parametrize("rule", RULES)
def test_a_context_without_reward_keeps_the_prior(rule: Rule) -> None:
    context, query = random_context()
    silent = Transitions(
        context.observation, 0 * context.reward, context.next_observation, context.terminated, context.mask
    )
    prior = torch.softmax(torch.arange(7.0, dtype=torch.float64), dim=0)
    weight = gate_weights(bank_of(silent, query), Gate(GRID, prior.log(), torch.tensor(1.0)), rule)
    torch.testing.assert_close(weight, prior[:, None].expand(-1, 2))


@pytest.mark.parametrize("rule", RULES)
def test_a_diverged_temperature_has_no_part_in_the_value(rule: Rule) -> None:
    context, query = random_context()
    bank = bank_of(context, query)
    best = int(bank.fold_loss[:, 1].argmin())
    bank.diverged[best, 1] = True
    bank.fold_error[best, 1] = torch.nan
    weight = gate_weights(bank, uniform_gate(), rule)
    assert weight[best, 1] == 0
    assert weight.isfinite().all()
    torch.testing.assert_close(weight.sum(0), torch.ones(2, dtype=torch.float64))


@pytest.mark.parametrize("kernel", ["softmax", "rbf"])
def test_values_are_the_weighted_values_and_do_not_depend_on_the_batch(kernel: KernelName) -> None:
    context, query = random_context(num_contexts=3)
    settings = {"kernel": kernel, "gate": uniform_gate(), "step_fraction": STEPS, "discount": DISCOUNT}
    together = evaluate_adaptive(context, query, **settings)  # type: ignore[arg-type]
    bank = evaluate_bank(context, query, kernel=kernel, temperature=GRID, step_fraction=STEPS, discount=DISCOUNT)
    low, high = value_range(context, DISCOUNT)
    torch.testing.assert_close(together.value, torch.einsum("tb,tbq->bq", together.weight, bank.value.clamp(low, high)))
    assert not together.diverged.any()
    alone = evaluate_adaptive(context[1:2], query[1:2], **settings)  # type: ignore[arg-type]
    torch.testing.assert_close(alone.value, together.value[1:2])
    assert ((together.value >= low) & (together.value <= high)).all()


def test_too_short_a_context_is_refused() -> None:
    context, query = random_context()
    with pytest.raises(InputError, match="folds"):
        bank_of(context, query, num_folds=1)
    context.mask[1, 5:] = False
    with pytest.raises(InputError, match="folds"):
        bank_of(context, query, num_folds=4)


def processes(temperature: float, seed: int) -> tuple[Transitions, Tensor, Tensor]:
    """Contexts of 16 random processes whose value lies in the rbf kernel's RKHS at this δ; queries and their values."""
    generator = torch.Generator().manual_seed(seed)
    family = random_kernel_processes(16, kernel="rbf", temperature=temperature, discount=DISCOUNT, generator=generator)
    draw = family.sample(80, 40, generator)
    return draw.context, draw.query, draw.query_value


def value_errors(temperature: float, gate: Gate, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Mean squared value errors of every fixed δ ``[T]`` and of the adaptive model, and the median of the chosen δ."""
    context, query, truth = processes(temperature, seed)
    bank = evaluate_bank(
        context, query, kernel="rbf", temperature=gate.temperature, step_fraction=STEPS, discount=DISCOUNT
    )
    weight = gate_weights(bank, gate)
    adaptive = bank.combine(weight)
    chosen = (weight * gate.temperature.log()[:, None]).sum(0).median().exp()
    return (bank.value - truth).square().mean((1, 2)), (adaptive - truth).square().mean(), chosen


def test_the_chosen_temperature_follows_the_true_one() -> None:
    truths = (0.03, 0.1, 0.3, 1.0, 3.0)
    chosen = [float(value_errors(truth, uniform_gate(), seed=1)[2]) for truth in truths]
    assert chosen == sorted(chosen)
    for truth, delta in zip(truths, chosen, strict=True):
        assert truth / 2.5 < delta < truth * 2.5


def test_over_processes_of_many_bandwidths_the_choice_beats_every_fixed_temperature() -> None:
    results = [value_errors(truth, uniform_gate(), seed=2) for truth in (0.03, 0.3, 3.0)]
    # Each bandwidth counts the same: errors are in units of what its own best temperature reaches.
    fixed = torch.stack([errors / errors.min() for errors, _, _ in results]).mean(0)
    adaptive = torch.stack([error / errors.min() for errors, error, _ in results]).mean()
    assert adaptive < 0.7 * fixed.min()


def test_the_prior_is_the_sources_mean_log_loss_and_nobody_elses() -> None:
    losses = {
        "a": [1.0, 2, 4],
        "b": [9.0, 3, 3],
        "target": [1.0, 50, 50],
        "silent": [0.0, 0, 0],
        "lost": [1, 2, np.nan],
    }
    profiles = pd.DataFrame(
        [
            {"kernel": "rbf", "domain": domain, "temperature": temperature, "task_seed": 0, "td_loss": loss}
            for domain, row in losses.items()
            for temperature, loss in zip([0.1, 0.2, 0.3], row, strict=True)
        ]
    )
    excess = log_excess(profiles, "rbf", [0.1, 0.2, 0.3])
    gate = fit_gate(excess, ["a", "b", "silent", "lost"])
    assert gate.temperature.tolist() == pytest.approx([0.1, 0.2, 0.3])
    # Mean ratios to the best, geometric: √3, √2 and 2.
    expected = np.array([3, 2, 4]) ** (-SHARPNESS / 2)
    np.testing.assert_allclose(gate.log_prior.exp(), expected / expected.sum(), rtol=1e-5)
    assert float(gate.strength) == pytest.approx(2 / 12)
    nobody = fit_gate(excess, ["silent"])
    np.testing.assert_allclose(nobody.log_prior.exp(), 1 / 3, rtol=1e-6)


def test_domains_with_temperatures_of_their_own_are_compared_on_one_grid() -> None:
    # Log losses are straight lines in log δ here, so that interpolation is exact.
    searched = {"a": [0.1, 1.0, 10.0], "b": [0.2, 2.0, 5.0, 7.0]}
    profiles = pd.DataFrame(
        [
            {"kernel": "rbf", "domain": domain, "temperature": delta, "task_seed": 0, "td_loss": 3 * delta**0.5}
            for domain, deltas in searched.items()
            for delta in deltas
        ]
    )
    excess = log_excess(profiles, "rbf", [0.1, 0.4, 4.0, 10.0])
    np.testing.assert_allclose(excess.loc["a"], np.log([1, 2, 40**0.5, 10]))
    np.testing.assert_allclose(excess.loc["b"], np.log([1, 2**0.5, 20**0.5, 35**0.5]), err_msg="held at the ends")


def test_on_one_shared_bandwidth_nothing_is_lost_under_its_prior() -> None:
    truth = 0.3
    fixed = torch.stack([value_errors(truth, uniform_gate(), seed)[0] for seed in (3, 4)]).mean(0)
    columns = {"kernel": "rbf", "domain": "source", "task_seed": 0, "temperature": GRID.numpy()}
    profiles = pd.DataFrame(columns | {"td_loss": fixed.numpy()})
    gate = fit_gate(log_excess(profiles, "rbf", GRID.tolist()), ["source"])
    gate = Gate(gate.temperature.double(), gate.log_prior.double(), gate.strength)
    results = [value_errors(truth, gate, seed) for seed in (5, 6)]
    errors, adaptive = torch.stack([r[0] for r in results]).mean(0), torch.stack([r[1] for r in results]).mean()
    assert adaptive <= 1.02 * errors.min()
