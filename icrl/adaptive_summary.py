"""What the adaptive model gains and costs: against each domain's best fixed temperature, and from source to target.

The best fixed temperature is chosen in hindsight, on the very tasks that are reported, for each domain on its own: no
fixed model could do better without training its step sizes, and no real one knows this temperature.
"""

import numpy as np
import pandas as pd

from icrl.adaptive_rows import OTHERS
from icrl.metrics import ratio_interval
from icrl.tables import ADAPTIVE, BANK, require_columns

TASK = ["kernel", "target", "tier", "task_seed"]
CONTEXT = [*TASK, "context"]
_SUMMARY = [
    "kernel",
    "rule",
    "source",
    "domain",
    "td_loss",
    "fixed_temperature",
    "fixed_td_loss",
    "ratio",
    "ratio_low",
    "ratio_high",
    "num_tasks",
    "divergence_rate",
]


def best_fixed(bank: pd.DataFrame) -> pd.DataFrame:
    """TD loss of every context at the fixed temperature that is best for its domain over all tiers and tasks.

    Args:
        bank: rows of `icrl.tables.BANK`. A temperature at which any context of a domain diverged is not eligible.

    Returns:
        One row a context: `fixed_temperature` and `fixed_td_loss`. Contexts of a domain without an eligible
        temperature are missing.
    """
    require_columns(bank, BANK, "the table of the bank's temperatures")
    by_task = bank.groupby([*TASK, "temperature"]).agg(td_loss=("td_loss", "mean"), diverged=("diverged", "any"))
    by_domain = by_task.groupby(["kernel", "target", "temperature"]).agg(
        td_loss=("td_loss", "mean"), diverged=("diverged", "any")
    )
    eligible = by_domain.loc[~by_domain["diverged"], "td_loss"]
    best = eligible.loc[eligible.groupby(["kernel", "target"]).idxmin()].reset_index()[
        ["kernel", "target", "temperature"]
    ]
    rows = bank.merge(best, on=["kernel", "target", "temperature"])[[*CONTEXT, "temperature", "td_loss"]]
    return rows.rename(columns={"temperature": "fixed_temperature", "td_loss": "fixed_td_loss"})


def adaptive_summary(
    adaptive: pd.DataFrame, bank: pd.DataFrame, rng: np.random.Generator, *, num_resamples: int
) -> pd.DataFrame:
    """The adaptive model over the best fixed temperature, for every kernel, rule, source of the prior and domain.

    Args:
        adaptive: rows of `icrl.tables.ADAPTIVE`.
        bank: rows of `icrl.tables.BANK`.
        rng: decides the bootstrap.
        num_resamples: bootstrap resamples.

    Returns:
        Over all tiers: `td_loss`, `fixed_temperature`, `fixed_td_loss`, `ratio` of the two means with its paired 95 %
        interval over tasks (`ratio_low`, `ratio_high`; the best fixed temperature is held), `num_tasks` and
        `divergence_rate` (share of contexts). A context that diverged enters neither mean.
    """
    require_columns(adaptive, ADAPTIVE, "the table of the adaptive model")
    paired = adaptive.merge(best_fixed(bank), on=CONTEXT, validate="m:1")
    paired["fixed_td_loss"] = paired["fixed_td_loss"].where(paired["td_loss"].notna())
    tasks = (
        paired.groupby(["kernel", "rule", "target", "source", "tier", "task_seed"])
        .agg(
            td_loss=("td_loss", "mean"),
            fixed_td_loss=("fixed_td_loss", "mean"),
            fixed_temperature=("fixed_temperature", "first"),
            diverged=("diverged", "mean"),
        )
        .reset_index()
    )
    tables = []
    for (kernel, rule, domain), rows in tasks.groupby(["kernel", "rule", "target"]):
        by_source = rows.set_index(["source", "tier", "task_seed"])
        loss_SK, fixed_SK = (by_source[name].unstack("source").T for name in ("td_loss", "fixed_td_loss"))
        interval = ratio_interval(loss_SK.to_numpy(), fixed_SK.to_numpy(), rng, num_resamples=num_resamples)
        table = {
            "kernel": kernel,
            "rule": rule,
            "source": loss_SK.index,
            "domain": domain,
            "td_loss": loss_SK.mean(axis=1).to_numpy(),
            "fixed_temperature": rows["fixed_temperature"].iloc[0],
            "fixed_td_loss": fixed_SK.mean(axis=1).to_numpy(),
            "ratio": interval.estimate,
            "ratio_low": interval.low,
            "ratio_high": interval.high,
            "num_tasks": loss_SK.shape[1],
            "divergence_rate": rows.groupby("source")["diverged"].mean().to_numpy(),
        }
        tables.append(pd.DataFrame(table))
    if not tables:
        return pd.DataFrame(columns=_SUMMARY)
    return pd.concat(tables).sort_values(["kernel", "rule", "source", "domain"], ignore_index=True)[_SUMMARY]


def over_domains(summary: pd.DataFrame) -> pd.DataFrame:
    """Median and worst ratio over domains, for every kernel and rule, with the prior that all other domains taught.

    Args:
        summary: from `adaptive_summary`.

    Returns:
        One row a kernel and rule: `median`, `quantile_90`, `worst`, `worst_domain`, `num_domains`.
    """
    rows = []
    for (kernel, rule), group in summary[summary["source"] == OTHERS].groupby(["kernel", "rule"]):
        ratio = group.set_index("domain")["ratio"].dropna()
        if len(ratio):
            rows.append(
                (kernel, rule, ratio.median(), ratio.quantile(0.9), ratio.max(), str(ratio.idxmax()), len(ratio))
            )
    columns = ["kernel", "rule", "median", "quantile_90", "worst", "worst_domain", "num_domains"]
    return pd.DataFrame(rows, columns=columns)
