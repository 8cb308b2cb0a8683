"""The structured models: stability by parametrisation, independence of the sources, and diverged contexts."""

import numpy as np
import pytest
import torch

from icrl.config import ExperimentConfig
from icrl.engine import Evaluation, evaluate
from icrl.training import MAX_STEP_FRACTION, ModelBank, StructuredTransformers, TrainingBatch
from icrl.types import Transitions


def random_batch(num_contexts: int, source: list[int], seed: int = 0, length: int = 12) -> TrainingBatch:
    generator = torch.Generator().manual_seed(seed)

    def transitions() -> Transitions:
        shape = (num_contexts, length)
        return Transitions(
            observation=torch.rand(*shape, 5, generator=generator, dtype=torch.float64),
            reward=torch.rand(*shape, generator=generator, dtype=torch.float64),
            next_observation=torch.rand(*shape, 5, generator=generator, dtype=torch.float64),
            terminated=torch.rand(*shape, generator=generator) < 0.1,
            mask=torch.ones(*shape, dtype=torch.bool),
        )

    return TrainingBatch(transitions(), transitions(), torch.tensor(source))


def models(kernel: str = "rbf", sources: int = 2, fraction: float = 0.5) -> StructuredTransformers:
    return StructuredTransformers(kernel, torch.linspace(0.3, 1.0, sources).double(), 4, fraction)


def test_weights_start_where_they_are_told() -> None:
    model = models(sources=3, fraction=0.7)
    torch.testing.assert_close(model.temperature.detach(), torch.tensor([0.3, 0.65, 1.0]).double())
    torch.testing.assert_close(model.step_fraction.detach(), torch.full((3, 4), 0.7).double())


def test_no_optimiser_step_leaves_the_stable_range() -> None:
    model = models()
    with torch.no_grad():
        model.step_logit += torch.tensor([50.0, -50.0])[:, None]
    assert (model.step_fraction >= 0).all()
    assert (model.step_fraction <= MAX_STEP_FRACTION).all()


@pytest.mark.parametrize("parameter", ["log_temperature", "step_logit"])
def test_gradient_against_finite_differences(parameter: str) -> None:
    model, batch = models(), random_batch(3, [0, 1, 1])
    target = getattr(model, parameter)
    model(batch, 0.9).loss.sum().backward()
    index = (1,) * target.ndim
    loss = []
    for shift in (1e-6, -1e-6):
        with torch.no_grad():
            target[index] += shift
            loss.append(float(model(batch, 0.9).loss.sum()))
            target[index] -= shift
    # The stability bound's own gradient is that of a norm found by a few power iterations.
    np.testing.assert_allclose(float(target.grad[index]), (loss[0] - loss[1]) / 2e-6, rtol=1e-3)


def test_a_source_learns_from_its_own_contexts_only() -> None:
    model = models()
    model(random_batch(3, [1, 1, 1]), 0.9).loss.sum().backward()
    assert (model.log_temperature.grad[0] == 0) & (model.step_logit.grad[0] == 0).all()
    assert model.log_temperature.grad[1] != 0


def test_a_diverged_context_is_left_out_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    batch, model = random_batch(3, [0, 0, 1]), models()

    def second_context_overflows(context: Transitions, *arguments: object, **options: object) -> Evaluation:
        result = evaluate(context, *arguments, **options)
        if context.batch_size < 3:
            return result
        overflow = torch.tensor([[False, True, False]])
        return Evaluation(torch.where(overflow[..., None], result.value * torch.inf, result.value), overflow)

    expected = model(batch, 0.9).loss
    monkeypatch.setattr("icrl.training.evaluate", second_context_overflows)
    outcome = model(batch, 0.9)
    assert outcome.diverged.tolist() == [False, True, False]
    torch.testing.assert_close(outcome.loss, expected * torch.tensor([1.0, 0.0, 1.0]).double())
    outcome.loss.sum().backward()
    assert model.log_temperature.grad.isfinite().all()

    total, kept, diverged = outcome.sums(batch.source, 2)
    torch.testing.assert_close(total, expected[[0, 2]].detach())
    assert kept.tolist() == [1, 1]
    assert diverged.tolist() == [1, 0]


def test_a_bank_runs_every_kernel_and_gives_ddp_no_idle_parameter(tiny_config: ExperimentConfig) -> None:
    bank = ModelBank(tiny_config, torch.full((2, 2), 0.5).double())
    bank(random_batch(4, [0, 1, 0, 1])).loss.sum().backward()
    assert all(parameter.grad is not None for parameter in bank.parameters())
    temperature, step_fraction = bank.weights()
    assert temperature[1].isnan().all()
    assert step_fraction.shape == (2, 2, tiny_config.model.depth)
