"""Data-parallel fits, started without Ray: one process is the oracle of two."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed, nn
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel

from distributed.ddp import Fit
from icrl.batches import BatchSource
from icrl.config import ExperimentConfig
from icrl.storage import Folder
from icrl.training import TrainingBatch
from icrl.types import Transitions

pytestmark = pytest.mark.ray

TOLERANCE = 1e-6


class TypedSource(BatchSource):
    """Batches in another floating-point type."""

    def __init__(self, dtype: torch.dtype, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.dtype = dtype

    def training(self, step: int) -> TrainingBatch:
        return self.typed_batch(super().training(step))

    def validation(self) -> Iterator[TrainingBatch]:
        return map(self.typed_batch, super().validation())

    def typed_batch(self, batch: TrainingBatch) -> TrainingBatch:
        context, heldout = (self.typed(transitions) for transitions in (batch.context, batch.heldout))
        return TrainingBatch(context, heldout, batch.source)

    def typed(self, transitions: Transitions) -> Transitions:
        names = ("observation", "reward", "next_observation")
        return replace(transitions, **{name: getattr(transitions, name).to(self.dtype) for name in names})


@dataclass(frozen=True)
class Case:
    """What every process of a fit is told."""

    config: ExperimentConfig
    run: Folder
    checkpoint: Path
    output: Path

    def fit(self, rank: int = 0, world_size: int = 1, dtype: torch.dtype = torch.float32) -> Fit:
        def wrap(bank: nn.Module) -> nn.Module:
            return DistributedDataParallel(bank.to(dtype)) if world_size > 1 else bank.to(dtype)

        return Fit(
            self.config,
            TypedSource(dtype, self.config, self.run / "dataset", rank, world_size),
            torch.tensor([[0.4, 0.7], [torch.nan, torch.nan]]),
            world_size=world_size,
            device=torch.device("cpu"),
            wrap=wrap,
        )


def gradients(fit: Fit) -> dict[str, torch.Tensor]:
    return {name: parameter.grad.clone() for name, parameter in fit.bank.named_parameters()}


def curves(fit: Fit) -> dict[str, torch.Tensor]:
    while not fit.is_done:
        fit.step()
    state = fit.checkpoint()["state"]
    return {name: state[name] for name in ("train_loss", "validation_loss", "temperature")}


def two_workers(rank: int, case: Case) -> None:
    distributed.init_process_group("gloo", init_method=f"file://{case.output}.store", rank=rank, world_size=2)
    # In double precision, where the order of a sum is no excuse.
    fit = case.fit(rank, 2, torch.float64)
    sums = fit.add_gradients(0)
    distributed.all_reduce(sums)
    resumed = case.fit(rank, 2, torch.float64)
    resumed.restore(torch.load(case.checkpoint))
    result = {"sums": sums, "gradients": gradients(fit), "curves": curves(resumed), "checkpoint": resumed.checkpoint()}
    if rank == 0:
        torch.save(result, case.output)
    distributed.destroy_process_group()


@pytest.fixture(scope="module")
def case(finished_run: Folder, tiny_config: ExperimentConfig, tmp_path_factory: pytest.TempPathFactory) -> Case:
    folder = tmp_path_factory.mktemp("ddp")
    case = Case(tiny_config, finished_run, folder / "half.pt", folder / "result.pt")
    half = case.fit()
    for _ in range(2):
        half.step()
    torch.save(half.checkpoint(), case.checkpoint)
    return case


@pytest.fixture(scope="module")
def two(case: Case) -> dict[str, Any]:
    spawn(two_workers, args=(case,), nprocs=2)
    result: dict[str, Any] = torch.load(case.output)
    return result


def test_two_workers_have_the_loss_and_gradients_of_one_on_the_whole_batch(case: Case, two: dict[str, Any]) -> None:
    alone = case.fit(dtype=torch.float64)
    torch.testing.assert_close(two["sums"], alone.add_gradients(0), rtol=TOLERANCE, atol=0)
    expected = gradients(alone)
    assert expected.keys() == two["gradients"].keys()
    for name, gradient in expected.items():
        assert gradient.abs().max() > 0
        scale = float(gradient.abs().max())
        torch.testing.assert_close(two["gradients"][name], gradient, rtol=TOLERANCE, atol=TOLERANCE * scale)


def test_a_resumed_fit_continues_the_curves_exactly(case: Case) -> None:
    resumed = case.fit()
    resumed.restore(torch.load(case.checkpoint))
    assert resumed.num_done == 2
    for name, curve in curves(case.fit()).items():
        assert torch.equal(curves(resumed)[name].nan_to_num(), curve.nan_to_num()), name


def test_the_number_of_workers_may_change_at_a_resume(case: Case, two: dict[str, Any]) -> None:
    alone = case.fit(dtype=torch.float64)
    alone.restore(torch.load(case.checkpoint))
    for name, curve in curves(alone).items():
        torch.testing.assert_close(two["curves"][name], curve, rtol=TOLERANCE, atol=0, equal_nan=True)


def test_more_workers_than_contexts_are_refused() -> None:
    with pytest.raises(ValueError, match="num_workers 9 must not exceed contexts_per_step 8"):
        ExperimentConfig.model_validate({"train": {"num_workers": 9}})
