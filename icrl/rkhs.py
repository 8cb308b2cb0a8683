"""Which domains share an RKHS: from temperature profiles to groups that one temperature serves.

A temperature δ fixes the kernel and with it the RKHS. A domain's δ-interval holds the temperatures around its best one
whose TD loss is within a tolerance of the best. Domains whose δ-intervals share a point can be served by one set of
weights, so they count as sharing an RKHS (He et al., arXiv 2605.09727) under that kernel. The groups are the fewest
into which the domains split in this way.

Kernels without a temperature (linear, relu) have no profile and no groups.
"""

import numpy as np
import pandas as pd

from icrl.metrics import FloatArray, mean_interval
from icrl.tables import PROFILES, require_columns

_PROFILE_SUMMARY = [
    "kernel",
    "domain",
    "temperature",
    "td_loss",
    "td_loss_low",
    "td_loss_high",
    "td_ratio",
    "num_tasks",
    "divergence_rate",
]
_INTERVALS = ["kernel", "domain", "best_temperature", "best_td_loss", "low", "high", "at_edge"]
_GROUPS = ["kernel", "domain", "group", "group_temperature"]


def profile_summary(profiles: pd.DataFrame, rng: np.random.Generator, *, num_resamples: int) -> pd.DataFrame:
    """Mean TD loss of every kernel, domain and temperature.

    Args:
        profiles: rows of `icrl.tables.PROFILES`.
        rng: decides the bootstrap.
        num_resamples: bootstrap resamples.

    Returns:
        One row a kernel, domain and temperature, sorted, with columns `td_loss`, `td_loss_low`, `td_loss_high` (mean
        over tasks and 95 % interval), `td_ratio`, `num_tasks` and `divergence_rate` (share of contexts).
    """
    require_columns(profiles, PROFILES, "the table of temperature profiles")
    tables = []
    for (kernel, domain), of_domain in profiles.dropna(subset="temperature").groupby(["kernel", "domain"]):
        by_task = of_domain.groupby(["temperature", "task_seed"])
        loss_TK = by_task["td_loss"].mean().unstack("task_seed")
        ratio_TK = by_task["td_ratio"].mean().unstack("task_seed")
        interval = mean_interval(loss_TK.to_numpy(), rng, num_resamples=num_resamples)
        table = {
            "kernel": kernel,
            "domain": domain,
            "temperature": loss_TK.index,
            "td_loss": interval.estimate,
            "td_loss_low": interval.low,
            "td_loss_high": interval.high,
            "td_ratio": ratio_TK.mean(axis=1).to_numpy(),
            "num_tasks": loss_TK.shape[1],
            "divergence_rate": of_domain.groupby("temperature")["diverged"].mean().to_numpy(),
        }
        tables.append(pd.DataFrame(table))
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame(columns=_PROFILE_SUMMARY)


def temperature_intervals(summary: pd.DataFrame, *, tolerance: float) -> pd.DataFrame:
    """Best temperature and δ-interval of every kernel and domain.

    A temperature at which any context diverged is neither the best nor part of an interval. Where an interval ends
    between two temperatures of the grid, its end is interpolated linearly in log δ and log TD loss.

    Args:
        summary: from `profile_summary`.
        tolerance: a temperature serves the domain while its TD loss is at most (1 + tolerance) times the best.

    Returns:
        One row a kernel and domain: `best_temperature`, `best_td_loss`, `low`, `high` (the δ-interval) and `at_edge`
        (the interval reaches an end of the searched range, so the search may have cut it off). A domain whose contexts
        diverged at every temperature has NaN in all four numbers.
    """
    rows = []
    for (kernel, domain), profile in summary.groupby(["kernel", "domain"]):
        ordered = profile.sort_values("temperature")
        loss = ordered["td_loss"].where(ordered["divergence_rate"] == 0).to_numpy(dtype=float)
        interval = _interval(ordered["temperature"].to_numpy(dtype=float), loss, tolerance)
        rows.append({"kernel": kernel, "domain": domain} | interval)
    return pd.DataFrame(rows, columns=_INTERVALS)


def group_domains(intervals: pd.DataFrame) -> pd.DataFrame:
    """The fewest groups of domains whose δ-intervals share a point, for each kernel.

    Greedy interval stabbing: the interval that ends first must be served by a temperature no higher than its end, and
    that end serves every other interval it lies in. This is optimal, though other partitions of the same size may
    exist where a domain's interval meets two groups.

    Args:
        intervals: from `temperature_intervals`.

    Returns:
        One row a kernel and domain: `group` (from 1, by rising temperature) and `group_temperature` (the geometric
        middle of what the group's intervals have in common). A domain without an interval is a group of its own, with
        temperature NaN.
    """
    rows = []
    for kernel, of_kernel in intervals.groupby("kernel"):
        groups = _stab(of_kernel.dropna(subset="high").sort_values(["high", "domain"]))
        groups += [single for _, single in of_kernel[of_kernel["high"].isna()].groupby("domain")]
        for number, group in enumerate(groups, start=1):
            temperature = np.sqrt(group["low"].max() * group["high"].min())
            rows += [
                {"kernel": kernel, "domain": domain, "group": number, "group_temperature": temperature}
                for domain in group["domain"]
            ]
    return pd.DataFrame(rows, columns=_GROUPS)


def _interval(temperature: FloatArray, loss: FloatArray, tolerance: float) -> dict[str, float | bool]:
    if np.isnan(loss).all():
        undefined = dict.fromkeys(("best_temperature", "best_td_loss", "low", "high"), np.nan)
        return undefined | {"at_edge": False}
    best = int(np.nanargmin(loss))
    limit = (1 + tolerance) * loss[best]
    served = loss <= limit
    first = last = best
    while first > 0 and served[first - 1]:
        first -= 1
    while last < len(loss) - 1 and served[last + 1]:
        last += 1
    return {
        "best_temperature": temperature[best],
        "best_td_loss": loss[best],
        "low": _crossing(temperature, loss, first, first - 1, limit),
        "high": _crossing(temperature, loss, last, last + 1, limit),
        "at_edge": first == 0 or last == len(loss) - 1,
    }


def _crossing(temperature: FloatArray, loss: FloatArray, inside: int, outside: int, limit: float) -> float:
    """Where the loss crosses the limit between two neighbours of the grid; `inside` itself where nothing crosses."""
    if not 0 <= outside < len(loss) or np.isnan(loss[outside]) or loss[inside] == limit:
        return float(temperature[inside])
    share = np.log(limit / loss[inside]) / np.log(loss[outside] / loss[inside])
    return float(temperature[inside] * (temperature[outside] / temperature[inside]) ** share)


def _stab(by_end: pd.DataFrame) -> list[pd.DataFrame]:
    groups = []
    while not by_end.empty:
        served = by_end["low"] <= by_end["high"].iloc[0]
        groups.append(by_end[served])
        by_end = by_end[~served]
    return groups
