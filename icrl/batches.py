"""Contexts of tasks in a dataset, drawn so that the worker count decides only who draws what, never what is drawn."""

from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np
import torch

from icrl.config import ExperimentConfig
from icrl.contexts import HeldOut, context_generator, draw_contexts, split_tasks
from icrl.datasets import read_tasks, stable_tasks
from icrl.errors import InputError
from icrl.storage import Folder
from icrl.training import TrainingBatch
from icrl.types import Episode, Transitions, concatenate

CACHED_TASKS = 512
"""Tasks a worker keeps in memory, about 40 MB at 500 steps; the others are read again whenever they are drawn."""


def task_contexts(
    config: ExperimentConfig, dataset: Folder, domain: str, tier: str, indices: Sequence[int], purpose: str
) -> Iterator[tuple[int, Transitions, HeldOut]]:
    """Task seed, contexts and held-out transitions of every task, reading one task at a time.

    Args:
        config: the experiment; `contexts_per_task` contexts are drawn from each task.
        dataset: folder of the collected dataset.
        domain: name of the domain.
        tier: name of the noise tier.
        indices: indices of the tasks; unstable ones are passed over.
        purpose: what the contexts are for; other purposes get other draws.

    Raises:
        InputError: a shard is damaged, or none of the tasks had a stable simulation.
    """
    nothing_drawn = True
    for index, episodes in read_tasks(dataset, domain, tier, indices):
        nothing_drawn = False
        generator = context_generator(config.seed, domain, tier, index, purpose)
        yield episodes[0].task_seed, *_draw(config, episodes, config.contexts.contexts_per_task, generator)
    if nothing_drawn:
        raise _no_stable_task(domain, tier, indices)


class BatchSource:
    """Draws batches from the source tier's fit and validation tasks.

    Args:
        config: the experiment.
        dataset: folder of the collected dataset.
        rank: this worker's number.
        world_size: number of workers; together they draw each context of a step exactly once.
    """

    def __init__(self, config: ExperimentConfig, dataset: Folder, rank: int, world_size: int) -> None:
        self._config = config
        self._dataset = dataset
        self._rank = rank
        self._world_size = world_size
        fit, validation, _ = split_tasks(config.collect.tasks_per_tier)
        self._fit = {domain: self._stable(domain, fit) for domain in config.domains}
        self._validation = {domain: self._stable(domain, validation) for domain in config.domains}
        self._episodes = lru_cache(maxsize=CACHED_TASKS)(self._read_episodes)

    def training(self, step: int) -> TrainingBatch:
        """This worker's share of the contexts of an optimiser step: `contexts_per_step` a source in all."""
        drawn = []
        slots = range(self._rank, self._config.train.contexts_per_step, self._world_size)
        for source, domain in enumerate(self._config.domains):
            for slot in slots:
                # The step and slot, not the worker, name the generator.
                generator = context_generator(
                    self._config.seed, domain, self._config.source_tier, step, f"train-{slot}"
                )
                task = int(generator.choice(self._fit[domain]))
                drawn.append((source, *_draw(self._config, self._episodes(domain, task), 1, generator)))
        return _batch(drawn)

    def validation(self) -> Iterator[TrainingBatch]:
        """This worker's share of the validation contexts, the same at every step, one task at a time."""
        tasks = [
            (source, domain, task)
            for source, domain in enumerate(self._config.domains)
            for task in self._validation[domain]
        ]
        for source, domain, task in tasks[self._rank :: self._world_size]:
            generator = context_generator(self._config.seed, domain, self._config.source_tier, task, "validate")
            num_contexts = self._config.contexts.contexts_per_task
            yield _batch([(source, *_draw(self._config, self._episodes(domain, task), num_contexts, generator))])

    def _stable(self, domain: str, tasks: range) -> list[int]:
        """Those of the tasks whose simulation stayed stable, so that they are in the dataset."""
        tier = self._config.source_tier
        stable = stable_tasks(self._dataset, domain, tier).intersection(tasks)
        if not stable:
            raise _no_stable_task(domain, tier, tasks)
        return sorted(stable)

    def _read_episodes(self, domain: str, task: int) -> list[Episode]:
        ((_, episodes),) = read_tasks(self._dataset, domain, self._config.source_tier, [task])
        return episodes


def _draw(
    config: ExperimentConfig, episodes: list[Episode], num_contexts: int, generator: np.random.Generator
) -> tuple[Transitions, HeldOut]:
    return draw_contexts(
        episodes,
        num_contexts=num_contexts,
        context_length=config.contexts.context_length,
        num_heldout=config.contexts.num_heldout,
        discount=config.discount,
        generator=generator,
    )


def _no_stable_task(domain: str, tier: str, indices: Sequence[int]) -> InputError:
    return InputError(
        f"none of the tasks {min(indices)} to {max(indices)} of {domain} at tier {tier} had a stable simulation; "
        "run with another --seed or more --collect.tasks-per-tier"
    )


def _batch(drawn: list[tuple[int, Transitions, HeldOut]]) -> TrainingBatch:
    sources = [source for source, context, _ in drawn for _ in range(context.batch_size)]
    return TrainingBatch(
        context=concatenate([context for _, context, _ in drawn]),
        heldout=concatenate([heldout.transitions for _, _, heldout in drawn]),
        source=torch.tensor(sources),
    )
