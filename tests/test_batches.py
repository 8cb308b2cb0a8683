"""Batches: whatever the worker count, the same contexts are drawn, and only from the tasks meant for it."""

import pytest
import torch

from icrl.batches import BatchSource
from icrl.config import ExperimentConfig
from icrl.contexts import split_tasks, transitions_of
from icrl.datasets import read_tasks
from icrl.errors import InputError
from icrl.storage import Folder
from icrl.training import TrainingBatch

pytestmark = pytest.mark.ray


def source(config: ExperimentConfig, run: Folder, rank: int = 0, world_size: int = 1) -> BatchSource:
    return BatchSource(config, run / "dataset", rank, world_size)


def fingerprints(batch: TrainingBatch) -> set[tuple[int, float]]:
    """What identifies each context: its source and a sum over its numbers."""
    sums = batch.context.observation.double().sum(dim=(1, 2)) + batch.heldout.reward.double().sum(dim=1)
    return set(zip(batch.source.tolist(), sums.tolist(), strict=True))


def test_two_workers_share_out_what_one_draws(finished_run: Folder, tiny_config: ExperimentConfig) -> None:
    whole = fingerprints(source(tiny_config, finished_run).training(step=3))
    shares = [fingerprints(source(tiny_config, finished_run, rank, 2).training(step=3)) for rank in range(2)]
    assert shares[0] | shares[1] == whole
    assert not shares[0] & shares[1]
    assert len(whole) == len(tiny_config.domains) * tiny_config.train.contexts_per_step


def test_steps_differ_and_repeat(finished_run: Folder, tiny_config: ExperimentConfig) -> None:
    batches = source(tiny_config, finished_run)
    assert fingerprints(batches.training(0)) == fingerprints(source(tiny_config, finished_run).training(0))
    assert not fingerprints(batches.training(0)) & fingerprints(batches.training(1))


@pytest.mark.parametrize("purpose", ["fit", "validation"])
def test_contexts_come_from_the_tasks_meant_for_them(
    finished_run: Folder, tiny_config: ExperimentConfig, purpose: str
) -> None:
    fit, validation, _ = split_tasks(tiny_config.collect.tasks_per_tier)
    batches = source(tiny_config, finished_run)
    drawn = [batches.training(0)] if purpose == "fit" else list(batches.validation())
    for index, domain in enumerate(tiny_config.domains):
        tasks = read_tasks(
            finished_run / "dataset", domain, tiny_config.source_tier, fit if purpose == "fit" else validation
        )
        allowed = {tuple(row) for _, episodes in tasks for row in transitions_of(episodes, 0.9).observation.tolist()}
        for batch in drawn:
            rows = batch.context.observation[batch.source == index].flatten(0, 1).tolist()
            assert {tuple(row) for row in rows} <= allowed


def test_held_out_transitions_are_not_in_the_context(finished_run: Folder, tiny_config: ExperimentConfig) -> None:
    batch = source(tiny_config, finished_run).training(0)
    for context, heldout in zip(batch.context.observation, batch.heldout.observation, strict=True):
        assert not (context[:, None] == heldout[None]).all(-1).any()


def test_a_domain_whose_fit_tasks_were_all_unstable_is_named(
    finished_run: Folder, tiny_config: ExperimentConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("icrl.batches.stable_tasks", lambda folder, domain, tier: {3})
    with pytest.raises(InputError, match=r"of reach-v3 at tier high had a stable simulation; run with another --seed"):
        source(tiny_config, finished_run)


def test_a_worker_without_a_validation_task_draws_nothing(finished_run: Folder, tiny_config: ExperimentConfig) -> None:
    shares = [list(source(tiny_config, finished_run, rank, 5).validation()) for rank in range(5)]
    assert [len(share) for share in shares] == [1, 1, 0, 0, 0]
    assert torch.cat([batch.source for share in shares for batch in share]).unique().tolist() == [0, 1]
