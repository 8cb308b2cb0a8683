"""What a run found, in a table of groups and in sentences; every word of them follows from the run's tables."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from icrl.config import ALL_TIERS

BASELINE = "linear"
MAX_LISTED = 12
"""A sentence lists up to this many names."""


@dataclass(frozen=True)
class Summaries:
    """Summary tables of a run.

    Attributes:
        profiles: from `icrl.rkhs.profile_summary`.
        intervals: from `icrl.rkhs.temperature_intervals`.
        groups: from `icrl.rkhs.group_domains`.
        matrix: from `icrl.transfer.transfer_matrix`.
        own: from `icrl.transfer.own_summary`.
        depth: from `icrl.transfer.depth_summary`.
    """

    profiles: pd.DataFrame
    intervals: pd.DataFrame
    groups: pd.DataFrame
    matrix: pd.DataFrame
    own: pd.DataFrame
    depth: pd.DataFrame


def group_table(summaries: Summaries, kernels: Sequence[str]) -> pd.DataFrame:
    """One row a kernel and RKHS group, over all noise tiers.

    Args:
        summaries: the run's summary tables.
        kernels: the order of kernels. All domains of a kernel without temperature stand in one row, as group 0.

    Returns:
        Columns `kernel`, `group`, `temperature` (shared δ), `domains` (list), `td_ratio` (own weights, mean over the
        domains), `gap_inside` and `gap_outside` (geometric means of the gaps to these domains from the others of the
        group and from the domains outside it; NaN where there are none) and `divergence_rate` (share of contexts).
    """
    rows = []
    for kernel in kernels:
        matrix = _pooled(summaries.matrix, kernel)
        own = _pooled(summaries.own, kernel).set_index("domain")
        groups = summaries.groups[summaries.groups["kernel"] == kernel]
        if groups.empty:
            groups = pd.DataFrame({"domain": own.index, "group": 0, "group_temperature": np.nan})
        for number, members in groups.groupby("group"):
            domains = list(members["domain"])
            received = matrix[matrix["target"].isin(domains)]
            foreign = received[received["source"] != received["target"]]
            inside = foreign["source"].isin(domains)
            rows.append(
                {
                    "kernel": kernel,
                    "group": number,
                    "temperature": members["group_temperature"].iloc[0],
                    "domains": domains,
                    "td_ratio": own.loc[domains, "td_ratio"].mean(),
                    "gap_inside": _geometric_mean(foreign.loc[inside, "gap"]),
                    "gap_outside": _geometric_mean(foreign.loc[~inside, "gap"]),
                    "divergence_rate": received["num_diverged"].sum() / received["num_contexts"].sum(),
                }
            )
    return pd.DataFrame(rows)


def describe(summaries: Summaries, kernels: Sequence[str]) -> list[str]:
    """The run's findings as sentences: groups, best kernel, gaps, and what limits them.

    Args:
        summaries: the run's summary tables.
        kernels: the order of kernels.
    """
    table = group_table(summaries, kernels)
    sentences = [_describe_groups(kernel, rows) for kernel, rows in table.groupby("kernel", sort=False)]
    sentences += _describe_losses(summaries.own, kernels)
    sentences += [_describe_gaps(kernel, _pooled(summaries.matrix, kernel)) for kernel in kernels]
    sentences += [_describe_weak(kernel, _pooled(summaries.own, kernel)) for kernel in kernels]
    sentences.append(_describe_divergence(summaries))
    sentences += _describe_edges(summaries.intervals)
    return [sentence for sentence in sentences if sentence]


def _describe_groups(kernel: Any, rows: pd.DataFrame) -> str:
    if (rows["group"] == 0).all():
        return ""
    num_domains = sum(len(domains) for domains in rows["domains"])
    if num_domains == 1:
        return ""
    parts = [
        f"{listing(domains)} ({f'δ ≈ {temperature:.2g}' if np.isfinite(temperature) else 'diverged everywhere'})"
        for domains, temperature in zip(rows["domains"], rows["temperature"], strict=True)
    ]
    if len(rows) == 1:
        return f"With the {kernel} kernel one temperature serves all {num_domains} domains: {parts[0]}."
    return (
        f"With the {kernel} kernel the {num_domains} domains need {len(rows)} temperatures, one for each group: "
        f"{'; '.join(parts)}."
    )


def _describe_losses(own: pd.DataFrame, kernels: Sequence[str]) -> list[str]:
    losses = own[own["tier"] == ALL_TIERS].pivot(index="domain", columns="kernel", values="td_loss")
    if len(kernels) == 1:
        return []
    wins = losses.dropna(how="all").idxmin(axis=1).value_counts()
    sentences = [
        f"The lowest TD loss with a domain's own weights comes from {wins.index[0]} on {wins.iloc[0]} of "
        f"{len(losses)} domains."
    ]
    if BASELINE in kernels:
        ratios = {kernel: (losses[BASELINE] / losses[kernel]).dropna() for kernel in kernels if kernel != BASELINE}
        parts = [f"{_span(ratio)} times that of {kernel}" for kernel, ratio in ratios.items() if len(ratio)]
        sentences += [f"The TD loss of the {BASELINE} kernel is {listing(parts)}."] if parts else []
    return sentences


def _describe_gaps(kernel: str, matrix: pd.DataFrame) -> str:
    foreign = matrix[matrix["source"] != matrix["target"]].dropna(subset="gap").sort_values("gap")
    if foreign.empty:
        return ""
    return (
        f"Transfer gaps with {kernel} have the median {foreign['gap'].median():.2f}; they range from "
        f"{_entry(foreign.iloc[0])} to {_entry(foreign.iloc[-1])}."
    )


def _describe_weak(kernel: str, own: pd.DataFrame) -> str:
    weak = own.loc[own["td_ratio"] >= 1, "domain"]
    if weak.empty:
        return ""
    return (
        f"With {kernel} a constant value function does as well as the own weights of {listing(list(weak))} (TD ratio "
        "1 or more), so gaps to them and their temperatures say little."
    )


def _describe_divergence(summaries: Summaries) -> str:
    pooled = summaries.matrix[summaries.matrix["tier"] == ALL_TIERS]
    contexts, diverged = pooled["num_contexts"].sum(), pooled["num_diverged"].sum()
    failing = int((summaries.profiles["divergence_rate"] > 0).sum())
    transfer = f"{diverged or 'None'} of the {contexts:,} evaluations behind the transfer matrix diverged"
    search = f"{failing or 'none'} of the {len(summaries.profiles):,} searched temperatures had a context that did"
    return f"{transfer}; {search}."


def _describe_edges(intervals: pd.DataFrame) -> list[str]:
    at_edge = intervals[intervals["at_edge"].astype(bool)]
    return [
        f"The δ-interval of {listing(list(rows['domain']))} with {kernel} reaches an end of the searched range, so it "
        "may be wider than shown."
        for kernel, rows in at_edge.groupby("kernel")
    ]


def _pooled(table: pd.DataFrame, kernel: str) -> pd.DataFrame:
    return table[(table["kernel"] == kernel) & (table["tier"] == ALL_TIERS)]


def _geometric_mean(gaps: pd.Series) -> float:
    defined = gaps.dropna()
    return float(np.exp(np.log(defined).mean())) if len(defined) else float("nan")


def _span(numbers: "pd.Series[float]") -> str:
    low, high = f"{numbers.min():.2g}", f"{numbers.max():.2g}"
    return low if low == high else f"{low} to {high}"


def _entry(entry: "pd.Series[Any]") -> str:
    return f"{entry['gap']:.2f} ({entry['source']} on {entry['target']})"


def listing(names: list[str]) -> str:
    """Names as a reader wants them in a sentence: the first dozen, and how many more there are."""
    shown = names if len(names) <= MAX_LISTED else [*names[: MAX_LISTED - 1], f"{len(names) - MAX_LISTED + 1} more"]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"
