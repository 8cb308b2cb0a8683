"""From the long table of transfer cells to the matrix of transfer gaps and the summary of every kernel.

The transfer gap from a source A to a target B is the TD loss of A's frozen weights on B over the TD loss of B's own
weights on B: 1 means that A's weights serve B as well as its own do. Both means run over the same contexts and tasks.
A context that diverged under either weights enters neither, and the divergence rate beside the gap counts it.
"""

from typing import Any

import numpy as np
import pandas as pd

from icrl.config import ALL_TIERS
from icrl.errors import InputError
from icrl.metrics import mean_interval, ratio_interval
from icrl.tables import CELLS, DEPTHS, METRICS, require_columns

CONTEXT_KEY = ["kernel", "target", "tier", "task_seed", "context"]


def transfer_matrix(cells: pd.DataFrame, rng: np.random.Generator, *, num_resamples: int) -> pd.DataFrame:
    """Transfer gaps of every kernel, source and target, at each noise tier and over all of them.

    The entry over all tiers is the ratio of the means over the tasks of every tier, not a mean of the tiers' ratios:
    rewards have the same scale at every tier, and a tier with little to predict should weigh little.

    Args:
        cells: rows of `icrl.tables.CELLS`.
        rng: decides the bootstrap.
        num_resamples: bootstrap resamples.

    Returns:
        One row a kernel, tier, source and target: `gap`, `gap_low`, `gap_high` (95 % paired bootstrap interval over
        tasks), `td_loss` and `own_td_loss` (the two means, over the contexts that diverged under neither weights),
        `num_tasks`, `num_contexts`, `num_diverged` (contexts that diverged under the source's weights) and
        `divergence_rate` (their share).

    Raises:
        InputError: a target's own weights were not evaluated on it.
    """
    require_columns(cells, CELLS, "the table of transfer cells")
    paired = _pair_with_own(cells)
    tasks = (
        paired.groupby(["kernel", "target", "tier", "task_seed", "source"])
        .agg(
            td_loss=("td_loss", "mean"),
            own_td_loss=("own_td_loss", "mean"),
            num_contexts=("diverged", "size"),
            num_diverged=("diverged", "sum"),
        )
        .reset_index()
    )
    entries = [
        _matrix_column(str(kernel), tier, str(target), of_target, rng, num_resamples)
        for tier, of_tier in _each_tier(tasks)
        for (kernel, target), of_target in of_tier.groupby(["kernel", "target"])
    ]
    order = ["kernel", "tier", "source", "target"]
    return pd.concat(entries).sort_values(order, ignore_index=True)


def own_summary(cells: pd.DataFrame, rng: np.random.Generator, *, num_resamples: int) -> pd.DataFrame:
    """How well each domain's own weights do: every metric of every kernel, domain and tier.

    Args:
        cells: rows of `icrl.tables.CELLS`.
        rng: decides the bootstrap.
        num_resamples: bootstrap resamples.

    Returns:
        One row a kernel, domain and tier (each, and all of them): for every metric its mean over tasks and the bounds
        of its 95 % interval (`td_loss`, `td_loss_low`, `td_loss_high`, …), `num_tasks`, `num_contexts` and
        `divergence_rate` (share of contexts).
    """
    require_columns(cells, CELLS, "the table of transfer cells")
    own = cells[cells["source"] == cells["target"]]
    tasks = (
        own.groupby(["kernel", "target", "tier", "task_seed"])
        .agg(
            td_loss=("td_loss", "mean"),
            td_ratio=("td_ratio", "mean"),
            value_error=("value_error", "mean"),
            num_contexts=("diverged", "size"),
            num_diverged=("diverged", "sum"),
        )
        .reset_index()
    )
    rows = []
    for tier, of_tier in _each_tier(tasks):
        for (kernel, domain), group in of_tier.groupby(["kernel", "target"]):
            row: dict[str, Any] = {"kernel": kernel, "domain": domain, "tier": tier}
            interval = mean_interval(group[list(METRICS)].to_numpy(float).T, rng, num_resamples=num_resamples)
            for index, name in enumerate(METRICS):
                row[name] = interval.estimate[index]
                row[f"{name}_low"] = interval.low[index]
                row[f"{name}_high"] = interval.high[index]
            row["num_tasks"] = len(group)
            row["num_contexts"] = group["num_contexts"].sum()
            row["divergence_rate"] = group["num_diverged"].sum() / row["num_contexts"]
            rows.append(row)
    return pd.DataFrame(rows).sort_values(["kernel", "domain", "tier"], ignore_index=True)


def depth_summary(depths: pd.DataFrame, rng: np.random.Generator, *, num_resamples: int) -> pd.DataFrame:
    """TD loss of each domain's own weights after every number of layers, over the tasks of all tiers.

    Args:
        depths: rows of `icrl.tables.DEPTHS`.
        rng: decides the bootstrap.
        num_resamples: bootstrap resamples.

    Returns:
        One row a kernel, domain and depth: `td_loss`, `td_loss_low`, `td_loss_high` (mean over tasks and 95 %
        interval), `num_tasks` and `divergence_rate` (share of tasks in which any context diverged).
    """
    require_columns(depths, DEPTHS, "the table of TD loss against depth")
    tables = []
    for (kernel, domain), of_domain in depths.groupby(["kernel", "domain"]):
        loss_LK = of_domain.set_index(["depth", "tier", "task_seed"])["td_loss"].unstack(["tier", "task_seed"])
        interval = mean_interval(loss_LK.to_numpy(), rng, num_resamples=num_resamples)
        table = {
            "kernel": kernel,
            "domain": domain,
            "depth": loss_LK.index,
            "td_loss": interval.estimate,
            "td_loss_low": interval.low,
            "td_loss_high": interval.high,
            "num_tasks": loss_LK.shape[1],
            "divergence_rate": of_domain.groupby("depth")["diverged"].mean().to_numpy(),
        }
        tables.append(pd.DataFrame(table))
    return pd.concat(tables, ignore_index=True)


def _pair_with_own(cells: pd.DataFrame) -> pd.DataFrame:
    """Every context's row with the TD loss of its domain's own weights beside it, both NaN where either diverged."""
    own = cells.loc[cells["source"] == cells["target"], [*CONTEXT_KEY, "td_loss"]]
    paired = cells.merge(own, on=CONTEXT_KEY, how="left", suffixes=("", "_own"), indicator=True, validate="m:1")
    lacking = paired.loc[paired["_merge"] == "left_only", ["kernel", "target"]]
    if not lacking.empty:
        kernel, target = lacking.iloc[0]
        raise InputError(
            f"the transfer cells hold no {kernel} weights fitted on {target} to compare with; "
            "run the stages train and transfer again"
        )
    return paired.assign(
        own_td_loss=paired["td_loss_own"].where(paired["td_loss"].notna()),
        td_loss=paired["td_loss"].where(paired["td_loss_own"].notna()),
    )


def _each_tier(tasks: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    return [(str(tier), of_tier) for tier, of_tier in tasks.groupby("tier")] + [(ALL_TIERS, tasks)]


def _matrix_column(
    kernel: str, tier: str, target: str, tasks: pd.DataFrame, rng: np.random.Generator, num_resamples: int
) -> pd.DataFrame:
    """All sources on one target; they share the bootstrap's resamples because they share the target's tasks."""
    by_source = tasks.set_index(["source", "tier", "task_seed"])
    loss = by_source["td_loss"].unstack("source").T
    own_loss = by_source["own_td_loss"].unstack("source").T
    interval = ratio_interval(loss.to_numpy(), own_loss.to_numpy(), rng, num_resamples=num_resamples)
    contexts = tasks.groupby("source")[["num_contexts", "num_diverged"]].sum()
    return pd.DataFrame(
        {
            "kernel": kernel,
            "tier": tier,
            "source": loss.index,
            "target": target,
            "gap": interval.estimate,
            "gap_low": interval.low,
            "gap_high": interval.high,
            "td_loss": loss.mean(axis=1).to_numpy(),
            "own_td_loss": own_loss.mean(axis=1).to_numpy(),
            "num_tasks": loss.shape[1],
            "num_contexts": contexts["num_contexts"].to_numpy(),
            "num_diverged": contexts["num_diverged"].to_numpy(),
            "divergence_rate": (contexts["num_diverged"] / contexts["num_contexts"]).to_numpy(),
        }
    )
