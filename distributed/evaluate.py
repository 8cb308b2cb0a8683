"""Transfer: every source's frozen weights on every target's held-out tasks, fanned out in blocks.

A block is one target at one noise tier. It runs all kernels and sources on the same contexts, which shares the Gram
work between sources, and writes its rows itself, so that the driver holds none and an interrupted run keeps them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import ray

from distributed.actor_pool import ActorPool
from distributed.progress import Progress
from distributed.session import num_workers_for
from icrl.adaptive import log_excess
from icrl.adaptive_rows import adaptive_rows, target_gates
from icrl.batches import task_contexts
from icrl.config import ExperimentConfig, KernelName
from icrl.contexts import HeldOut, split_tasks
from icrl.evaluation import measure
from icrl.kernels import has_temperature
from icrl.storage import Folder
from icrl.tables import ADAPTIVE, BANK, CELLS, DEPTHS
from icrl.types import Transitions
from icrl.weights import FittedWeights

LogExcess = Mapping[KernelName, pd.DataFrame]
"""`icrl.adaptive.log_excess` of every kernel with a temperature."""


class TransferTables(NamedTuple):
    """What an evaluation, or a block of it, consists of; columns as in `icrl.tables`."""

    cells: pd.DataFrame
    depth: pd.DataFrame
    adaptive: pd.DataFrame
    bank: pd.DataFrame


@dataclass(frozen=True)
class Block:
    """One target domain at one noise tier."""

    target: str
    tier: str

    @property
    def files(self) -> tuple[str, ...]:
        """Where the block's rows of every table lie in the evaluation's folder."""
        return tuple(f"{table}/{self.target}/{self.tier}.parquet" for table in TransferTables._fields)

    @property
    def names(self) -> dict[str, str]:
        """The columns that say which block a row belongs to; the depth table calls the target its domain."""
        return {"target": self.target, "domain": self.target, "tier": self.tier}

    def is_done(self, folder: Folder) -> bool:
        """Whether the block's rows lie in the evaluation's folder."""
        return all(folder.exists(name) for name in self.files)

    def __str__(self) -> str:
        return f"transfer to {self.target} at {self.tier} noise"


def heldout_tasks(config: ExperimentConfig, tier: str) -> list[int]:
    """Indices of the tasks that neither the search nor the fit has seen: all of them on other tiers than the source."""
    if tier != config.source_tier:
        return list(range(config.collect.tasks_per_tier))
    return list(split_tasks(config.collect.tasks_per_tier)[2])


def block_rows(
    config: ExperimentConfig, dataset: Folder, weights: FittedWeights, excess: LogExcess, block: Block
) -> TransferTables:
    """All rows of a block, reading one task at a time."""
    parts: list[list[pd.DataFrame]] = [[] for _ in TransferTables._fields]
    gates = target_gates(excess, config.domains, block.target)
    tasks = heldout_tasks(config, block.tier)
    for seed, context, heldout in task_contexts(config, dataset, block.target, block.tier, tasks, "transfer"):
        adaptive, bank = adaptive_rows(config, gates, context, heldout)
        of_task = (
            _cell_rows(config, weights, context, heldout),
            _depth_rows(config, weights, block.target, context, heldout),
            [adaptive],
            [bank],
        )
        for part, rows in zip(parts, of_task, strict=True):
            part += [table.assign(task_seed=seed) for table in rows]
    schemas = (CELLS, DEPTHS, ADAPTIVE, BANK)
    joined = (pd.concat(part, ignore_index=True).assign(**block.names) for part in parts)
    return TransferTables(*(table[list(schema)] for table, schema in zip(joined, schemas, strict=True)))


def _cell_rows(
    config: ExperimentConfig, weights: FittedWeights, context: Transitions, heldout: HeldOut
) -> Iterator[pd.DataFrame]:
    for k, kernel in enumerate(weights.kernels):
        measured = measure(
            context,
            heldout,
            kernel=kernel,
            temperature=weights.temperature[k][:, None],
            step_fraction=weights.step_fraction[k][:, None],
            discount=config.discount,
        )
        yield pd.DataFrame(
            {
                "kernel": kernel,
                "source": np.repeat(weights.sources, context.batch_size),
                "temperature": np.repeat(weights.temperature[k].double().numpy(), context.batch_size),
                "context": np.tile(np.arange(context.batch_size), len(weights.sources)),
                "td_loss": measured.td_loss.flatten().double().numpy(),
                "td_ratio": measured.td_ratio.flatten().double().numpy(),
                "value_error": measured.value_error.flatten().double().numpy(),
                "diverged": measured.diverged.flatten().numpy(),
            }
        )


def _depth_rows(
    config: ExperimentConfig, weights: FittedWeights, target: str, context: Transitions, heldout: HeldOut
) -> Iterator[pd.DataFrame]:
    own = weights.sources.index(target)
    for k, kernel in enumerate(weights.kernels):
        measured = measure(
            context,
            heldout,
            kernel=kernel,
            temperature=weights.temperature[k, own].reshape(1, 1),
            step_fraction=weights.step_fraction[k, own][None, None],
            discount=config.discount,
            every_depth=True,
        )
        yield pd.DataFrame(
            {
                "kernel": kernel,
                "depth": np.arange(1, config.model.depth + 1),
                "td_loss": measured.td_loss[0].nanmean(0).double().numpy(),
                "td_ratio": measured.td_ratio[0].nanmean(0).double().numpy(),
                "diverged": bool(measured.diverged.any()),
            }
        )


class Evaluator:
    """Computes and writes one block at a time.

    Args:
        config: the experiment.
        dataset: folder of the collected dataset.
        weights: the fitted weights.
        excess: what each kernel's profiles teach the adaptive model.
        folder: the evaluation's folder.
    """

    def __init__(
        self, config: ExperimentConfig, dataset: Folder, weights: FittedWeights, excess: LogExcess, folder: Folder
    ) -> None:
        self._config = config
        self._dataset = dataset
        self._weights = weights
        self._excess = excess
        self._folder = folder

    def ping(self) -> None:
        """Answer, as a sign of life."""

    def run(self, block: Block) -> None:
        """Write the block's rows."""
        tables = block_rows(self._config, self._dataset, self._weights, self._excess, block)
        for name, rows in zip(block.files, tables, strict=True):
            self._folder.write_table(name, pa.Table.from_pandas(rows, preserve_index=False))


def evaluate_transfer(
    config: ExperimentConfig, dataset: Folder, weights: FittedWeights, profiles: pd.DataFrame, folder: Folder
) -> TransferTables:
    """Apply all weights to all held-out tasks, or to those that remain.

    Args:
        config: the experiment.
        dataset: folder of the collected dataset.
        weights: the fitted weights.
        profiles: rows of `icrl.tables.PROFILES`, from which the adaptive model takes its temperatures and priors.
        folder: folder of this evaluation; blocks that lie there are kept.

    Raises:
        InputError: a shard of the dataset is damaged.
        JobFailedError: a block failed as often as ``config.cluster.max_attempts`` allows.
    """
    blocks = transfer_blocks(config)
    remaining = [block for block in blocks if not block.is_done(folder)]
    progress = Progress("transfer", len(blocks), "blocks", done=len(blocks) - len(remaining))
    excess = {
        kernel: log_excess(profiles, kernel, config.tune.grid)
        for kernel in config.model.kernels
        if has_temperature(kernel)
    }
    actor_class = ray.remote(num_cpus=1, num_gpus=0)(Evaluator)
    pool = ActorPool(
        lambda: actor_class.remote(config, dataset, weights, excess, folder),
        remaining,
        group_of=lambda block: block.target,
        num_actors=num_workers_for(len(remaining), config),
        timeout_s=config.cluster.timeout_s,
        max_attempts=config.cluster.max_attempts,
    )
    for block, _ in pool.run():
        progress.advance(str(block))
    files = zip(*(block.files for block in blocks), strict=True)
    return TransferTables(
        *(pa.concat_tables([folder.read_table(name) for name in names]).to_pandas() for names in files)
    )


def transfer_blocks(config: ExperimentConfig) -> list[Block]:
    """All blocks of an evaluation, in the order of its tables."""
    return [Block(target, tier) for target in config.domains for tier in config.collect.noise_tiers]
