"""How many fixed temperatures a set of domains needs, and how many it needs at each price.

A temperature serves a domain at tolerance ε when it lies in the domain's δ-interval (`icrl.rkhs`), that is, when its TD
loss is within the factor 1 + ε of the domain's best. The fewest temperatures that serve every domain are the fewest
points that meet every interval, which sorting the intervals by their end finds exactly (`icrl.rkhs.group_domains`).
Intervals nest as ε grows, so the count falls with ε and its inverse, the smallest ε that a number of temperatures can
promise, follows by bisection.

A domain that diverged at every temperature is served by none, and counts as a model of its own at every ε.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from icrl.rkhs import group_domains, temperature_intervals

MAX_TOLERANCE = 1e6
"""Every domain is within this fraction of its best at every temperature, but for those that diverge."""

PRECISION = 1e-3
"""Relative precision of the smallest tolerance."""


def cover(summary: pd.DataFrame, *, tolerance: float) -> pd.DataFrame:
    """The fewest fixed temperatures that keep every domain within `tolerance` of its best, with the assignment.

    Args:
        summary: from `icrl.rkhs.profile_summary`.
        tolerance: ε.

    Returns:
        One row a kernel and domain: `group` (from 1, by rising temperature), `group_temperature` (δ assigned to the
        domain), `best_temperature`, `low`, `high` (the domain's δ-interval) and `tolerance`.
    """
    intervals = temperature_intervals(summary, tolerance=tolerance)
    groups = group_domains(intervals)
    columns = ["kernel", "domain", "best_temperature", "low", "high"]
    return groups.merge(intervals[columns], on=["kernel", "domain"]).assign(tolerance=tolerance)


def cover_sizes(summary: pd.DataFrame, tolerances: Sequence[float]) -> pd.DataFrame:
    """How many temperatures the domains need at each tolerance.

    Args:
        summary: from `icrl.rkhs.profile_summary`.
        tolerances: the values of ε.

    Returns:
        One row a kernel and tolerance: `num_models` and `temperatures` (a list, ascending; NaN for a domain that
        diverged everywhere).
    """
    rows = []
    for tolerance in tolerances:
        for kernel, groups in cover(summary, tolerance=tolerance).groupby("kernel"):
            chosen = groups.drop_duplicates("group").sort_values("group")["group_temperature"]
            rows.append((kernel, tolerance, len(chosen), chosen.tolist()))
    table = pd.DataFrame(rows, columns=["kernel", "tolerance", "num_models", "temperatures"])
    return table.sort_values(["kernel", "tolerance"], ignore_index=True)


def tolerance_by_size(summary: pd.DataFrame) -> pd.DataFrame:
    """The smallest ε that each number of fixed temperatures can promise to every domain.

    Args:
        summary: from `icrl.rkhs.profile_summary`.

    Returns:
        One row a kernel and `num_models`, from as many as ε = 0 needs down to 1: `tolerance`, to a relative precision
        of `PRECISION`, and infinite where even `MAX_TOLERANCE` needs more.
    """
    rows = []
    for kernel, of_kernel in summary.groupby("kernel"):
        for number in range(1, _num_models(of_kernel, PRECISION) + 1):
            rows.append((kernel, number, _smallest_tolerance(of_kernel, number)))
    return pd.DataFrame(rows, columns=["kernel", "num_models", "tolerance"])


def _num_models(summary: pd.DataFrame, tolerance: float) -> int:
    return int(group_domains(temperature_intervals(summary, tolerance=tolerance))["group"].max())


def _smallest_tolerance(summary: pd.DataFrame, number: int) -> float:
    low, high = PRECISION, MAX_TOLERANCE
    if _num_models(summary, high) > number:
        return np.inf
    if _num_models(summary, low) <= number:
        return low
    while high > low * (1 + PRECISION):
        middle = float(np.sqrt(low * high))
        if _num_models(summary, middle) <= number:
            high = middle
        else:
            low = middle
    return high
