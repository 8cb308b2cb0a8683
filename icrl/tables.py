"""Columns of the tables that stages hand to one another: the one place where their names and meanings stand.

A row whose `diverged` is true has NaN in every metric: it counts towards the divergence rate and enters no mean.
"""

from collections.abc import Mapping

import pandas as pd

from icrl.errors import InputError

METRICS = ("td_loss", "td_ratio", "value_error")
"""Metric columns, as defined in `icrl.metrics`."""

PROFILES: Mapping[str, str] = {
    "kernel": "name of the kernel",
    "domain": "name of the domain",
    "temperature": "temperature δ; NaN for a kernel that has none",
    "task_seed": "the integer that names the task",
    "context": "number of the context within the task, from 0",
    "td_loss": "mean squared TD error on held-out transitions",
    "td_ratio": "TD loss / TD loss of the best constant value function",
    "diverged": "whether the context's values left the bound",
}
"""Temperature search: one row a context and temperature."""

TRAINING: Mapping[str, str] = {
    "kernel": "name of the kernel",
    "domain": "source domain of the fit",
    "step": "optimiser step, from 0",
    "train_loss": "TD loss on the step's contexts, averaged over workers",
    "validation_loss": "TD loss on the validation contexts; NaN at steps without validation",
    "temperature": "temperature δ after the step; NaN for a kernel that has none",
}
"""Fit: one row an optimiser step."""

WEIGHTS: Mapping[str, str] = {
    "kernel": "name of the kernel",
    "source": "domain that the weights were fitted on",
    "temperature": "fitted temperature δ; NaN for a kernel that has none",
    "step_fraction": "list of the layers' step sizes as fractions of the stability bound",
}
"""Fitted weights: one row a kernel and source domain."""

CELLS: Mapping[str, str] = {
    "kernel": "name of the kernel",
    "source": "domain that the weights were fitted on",
    "target": "domain that they were applied to",
    "tier": "noise tier of the task",
    "task_seed": "the integer that names the task",
    "context": "number of the context within the task, from 0",
    "temperature": "temperature δ of the weights; NaN for a kernel that has none",
    "td_loss": "mean squared TD error on held-out transitions",
    "td_ratio": "TD loss / TD loss of the best constant value function",
    "value_error": "centred explained variance against Monte-Carlo returns; 1 is perfect",
    "diverged": "whether the context's values left the bound",
}
"""Transfer: one row a context under every source's weights."""

DEPTHS: Mapping[str, str] = {
    "kernel": "name of the kernel",
    "domain": "domain whose own weights are applied",
    "tier": "noise tier of the task",
    "task_seed": "the integer that names the task",
    "depth": "number of layers, that is of TD iterations",
    "td_loss": "mean of the task's contexts that did not diverge",
    "td_ratio": "mean of the task's contexts that did not diverge",
    "diverged": "whether any context of the task diverged at this depth",
}
"""Own weights cut off after each depth: one row a task and depth."""

BANK: Mapping[str, str] = {
    "kernel": "name of the kernel",
    "target": "domain that the context comes from",
    "tier": "noise tier of the task",
    "task_seed": "the integer that names the task",
    "context": "number of the context within the task, from 0",
    "temperature": "temperature δ of the bank",
    "td_loss": "mean squared TD error on held-out transitions with this temperature fixed",
    "fold_loss": "mean squared TD error inside the context, each fold under values from the rest",
    "alignment": "kernel-target alignment of the context's states with its rewards",
    "norm": "RKHS norm of the regularised fixed point, in units of the rewards' root mean square",
    "diverged": "whether values left the bound, in the whole context or without a fold",
}
"""Adaptive model: one row a context and temperature of the bank, at untrained step sizes."""

ADAPTIVE: Mapping[str, str] = {
    "kernel": "name of the kernel",
    "rule": "how the temperatures are combined",
    "source": "domain whose profile is the prior, or `others` for all domains but the target",
    "target": "domain that the context comes from",
    "tier": "noise tier of the task",
    "task_seed": "the integer that names the task",
    "context": "number of the context within the task, from 0",
    "temperature": "geometric mean of the bank's temperatures under the context's weights",
    "td_loss": "mean squared TD error on held-out transitions",
    "td_ratio": "TD loss / TD loss of the best constant value function",
    "value_error": "centred explained variance against Monte-Carlo returns; 1 is perfect",
    "diverged": "whether every temperature diverged",
}
"""Adaptive model: one row a context, rule and source of the prior."""


def require_columns(table: pd.DataFrame, columns: Mapping[str, str], origin: str) -> None:
    """Refuse a table that lacks a column.

    Args:
        table: the table.
        columns: one of the schemas above.
        origin: where the table comes from, for the message.

    Raises:
        InputError: a column is missing.
    """
    missing = [name for name in columns if name not in table]
    if missing:
        raise InputError(
            f"{origin} lacks the column(s) {', '.join(missing)}; it was written by another version: run its stage again"
        )
