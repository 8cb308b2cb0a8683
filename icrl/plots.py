"""Figures of a run's results. Every function takes tables and returns a figure of its own; no global state changes.

Kernels have colours of the Okabe-Ito palette, gaps those of a diverging map: colour-blind readers can tell them apart.
"""

from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullLocator

from icrl.config import ALL_TIERS

KERNEL_COLOURS = {"softmax": "#0072B2", "rbf": "#D55E00", "linear": "#666666", "exp": "#CC79A7", "relu": "#009E73"}
DOMAIN_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#332288", "#882255")
MAX_NAMED = len(DOMAIN_COLOURS)
"""Up to this many domains each has a colour of its own, and the cells of a matrix hold numbers."""
INK = "#222222"

STYLE: dict[Any, Any] = {
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.edgecolor": "#999999",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E8E8E8",
    "text.color": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "figure.constrained_layout.use": True,
}


@mpl.rc_context(STYLE)
def plot_transfer_matrix(
    matrix: pd.DataFrame, groups: pd.DataFrame, domains: Sequence[str], kernels: Sequence[str], tier: str = ALL_TIERS
) -> Figure:
    """Transfer gaps as a heatmap, one panel a kernel, the domains ordered by RKHS group and each group outlined.

    Args:
        matrix: from `icrl.transfer.transfer_matrix`.
        groups: from `icrl.rkhs.group_domains`.
        domains: the order of domains within a group.
        kernels: the panels.
        tier: noise tier of the entries.
    """
    of_tier = matrix[matrix["tier"] == tier]
    # All kernels decide the range of colours, so that figures of single kernels compare.
    limit = _gap_limit(of_tier["gap"])
    size = 1.0 * len(domains) if len(domains) <= MAX_NAMED else 0.19 * len(domains)
    figure = Figure(figsize=((size + 1.5) * len(kernels) + 1.2, size + 2.2))
    figure.suptitle(
        "Transfer gap: TD loss of the row's weights on the column's domain / TD loss of the column's own weights\n"
        "1 = as good as its own.  Frames: domains that one temperature δ serves"
        if len(kernels) > 1
        else "",
        fontsize=11,
    )
    panels = figure.subplots(1, len(kernels), squeeze=False)[0]
    for axes, kernel in zip(panels, kernels, strict=True):
        group = groups[groups["kernel"] == kernel].set_index("domain")
        order = sorted(domains, key=lambda domain: group["group"].get(domain, 0))
        _draw_matrix(axes, of_tier[of_tier["kernel"] == kernel], order, limit)
        if not group.empty:
            _outline_groups(axes, group.loc[order])
        axes.set_title(kernel, pad=22)
    colours = ScalarMappable(LogNorm(1 / limit, limit), "PuOr_r")
    bar = figure.colorbar(colours, ax=list(panels), label="transfer gap", shrink=0.8, extend="both")
    bar.ax.yaxis.set_major_locator(FixedLocator([0.25, 0.5, 0.67, 0.8, 1, 1.25, 1.5, 2, 4]))
    bar.ax.yaxis.set_minor_locator(NullLocator())
    bar.ax.yaxis.set_major_formatter(FuncFormatter(_plain))
    return figure


@mpl.rc_context(STYLE)
def plot_profiles(
    summary: pd.DataFrame, intervals: pd.DataFrame, groups: pd.DataFrame, domains: Sequence[str], kernel: str
) -> Figure:
    """TD loss against temperature with its interval; below it each domain's δ-interval and the groups' temperatures.

    Args:
        summary: from `icrl.rkhs.profile_summary`.
        intervals: from `icrl.rkhs.temperature_intervals`.
        groups: from `icrl.rkhs.group_domains`.
        domains: the order of domains within a group.
        kernel: the kernel to show.
    """
    group = groups[groups["kernel"] == kernel].set_index("domain")
    interval = intervals[intervals["kernel"] == kernel].set_index("domain")
    order = sorted(domains, key=lambda domain: group["group"][domain])
    height = 0.3 * len(order) + 0.4
    figure = Figure(figsize=(8.2, 3.8 + height))
    curves, bars = figure.subplots(2, 1, sharex=True, height_ratios=[3.4, height])
    for row, domain in enumerate(order):
        # Bands of many domains would hide one another.
        with_band = len(order) <= MAX_NAMED
        colour = _domain_colour(domain, domains, group)
        _draw_profile(curves, summary[(summary["kernel"] == kernel) & (summary["domain"] == domain)], colour, with_band)
        best = interval.loc[domain]
        curves.plot(best["best_temperature"], best["best_td_loss"], "o", color=colour, markeredgecolor="white")
        bars.plot([best["low"], best["high"]], [row, row], color=colour, linewidth=7, solid_capstyle="butt", alpha=0.45)
        bars.plot(best["best_temperature"], row, "o", color=colour, markeredgecolor="white")
    for index, temperature in enumerate(sorted(group["group_temperature"].dropna().unique())):
        bars.axvline(temperature, color=INK, linestyle="--", linewidth=1)
        bars.annotate(
            f"δ {temperature:.2g}",
            (temperature, 1),
            # Neighbours stand at different heights, so that close temperatures stay legible.
            (3, -2 - 13 * (index % 2)),
            xycoords=("data", "axes fraction"),
            textcoords="offset points",
            va="top",
            fontsize=9,
        )
    curves.set(xscale="log", yscale="log", ylabel="TD loss", title=f"{kernel}: temperature profiles")
    curves.xaxis.set_major_formatter(FuncFormatter(_plain))
    _label_log_axis(curves.yaxis)
    bars.set(xlabel="temperature δ", ylim=(len(order) - 0.4, -1.9))
    bars.set_yticks(range(len(order)), [short_name(domain) for domain in order])
    return figure


@mpl.rc_context(STYLE)
def plot_depth(summary: pd.DataFrame, domains: Sequence[str], kernels: Sequence[str]) -> Figure:
    """TD loss of each domain's own weights against depth with its interval, one panel a domain and one line a kernel.

    Args:
        summary: from `icrl.transfer.depth_summary`.
        domains: the panels.
        kernels: the lines.
    """
    figure, panels = _domain_panels(domains, "depth (layers)", "TD loss")
    for axes, domain in zip(panels, domains, strict=True):
        for kernel in kernels:
            line = summary[(summary["kernel"] == kernel) & (summary["domain"] == domain)].sort_values("depth")
            colour = KERNEL_COLOURS[kernel]
            axes.fill_between(line["depth"], line["td_loss_low"], line["td_loss_high"], color=colour, alpha=0.18, lw=0)
            axes.plot(line["depth"], line["td_loss"], color=colour, label=kernel)
            failed = line[line["divergence_rate"] > 0]
            axes.plot(failed["depth"], failed["td_loss"], "x", color=colour, markersize=4)
        axes.set(yscale="log")
    _label_log_axis(panels[0].yaxis)
    _add_legend(figure, panels[0])
    return figure


@mpl.rc_context(STYLE)
def plot_training(training: pd.DataFrame, domains: Sequence[str], kernels: Sequence[str]) -> Figure:
    """Loss against the optimiser's step: batches as a faint line, validation as a strong one; one panel a domain.

    Args:
        training: rows of `icrl.tables.TRAINING`.
        domains: the panels.
        kernels: the lines.
    """
    figure, panels = _domain_panels(domains, "optimiser step", "TD loss")
    for axes, domain in zip(panels, domains, strict=True):
        for kernel in kernels:
            fit = training[(training["kernel"] == kernel) & (training["domain"] == domain)].sort_values("step")
            validated = fit.dropna(subset="validation_loss")
            axes.plot(fit["step"], fit["train_loss"], color=KERNEL_COLOURS[kernel], alpha=0.3, lw=0.8)
            axes.plot(validated["step"], validated["validation_loss"], ".-", color=KERNEL_COLOURS[kernel], label=kernel)
        axes.set(yscale="log")
    _label_log_axis(panels[0].yaxis)
    _add_legend(figure, panels[0])
    return figure


@mpl.rc_context(STYLE)
def plot_kernel_comparison(own: pd.DataFrame, domains: Sequence[str], kernels: Sequence[str]) -> Figure:
    """Linear against non-linear: every metric of each domain's own weights with its interval, one colour a kernel.

    Args:
        own: from `icrl.transfer.own_summary`; the entries over all tiers are shown.
        domains: the rows, from the top.
        kernels: the marks within a row.
    """
    pooled = own[own["tier"] == ALL_TIERS]
    figure = Figure(figsize=(11, (0.2 + 0.17 * len(kernels)) * len(domains) + 1.5))
    panels = figure.subplots(1, 3, sharey=True)
    titles = {
        "td_loss": "TD loss (lower is better)",
        "td_ratio": "TD ratio (1: the best constant)",
        "value_error": "explained variance (1: perfect)",
    }
    for axes, (metric, title) in zip(panels, titles.items(), strict=True):
        for index, kernel in enumerate(kernels):
            table = pooled[pooled["kernel"] == kernel].set_index("domain").loc[list(domains)]
            centre, low, high = (table[name].to_numpy(float) for name in (metric, f"{metric}_low", f"{metric}_high"))
            rows = np.arange(len(domains)) + 0.6 * ((index + 0.5) / len(kernels) - 0.5)
            axes.hlines(rows, low, high, color=KERNEL_COLOURS[kernel], linewidth=2.5, alpha=0.5)
            axes.plot(centre, rows, "o", color=KERNEL_COLOURS[kernel], markersize=5, label=kernel)
        if metric != "value_error":
            axes.set_xscale("log")
            _label_log_axis(axes.xaxis)
        axes.set_title(title, fontsize=10)
        axes.grid(visible=False, axis="y")
        for row in range(0, len(domains), 2):
            axes.axhspan(row - 0.5, row + 0.5, color="#F6F6F6", zorder=0)
        if metric != "td_loss":
            axes.axvline(1, color=INK, linewidth=1, linestyle="--")
    panels[0].set_yticks(range(len(domains)), [short_name(domain) for domain in domains])
    panels[0].set_ylim(len(domains) - 0.5, -0.5)
    _add_legend(figure, panels[0])
    return figure


@mpl.rc_context(STYLE)
def plot_adaptive(adaptive: pd.DataFrame, kernels: Sequence[str]) -> Figure:
    """TD loss of the adaptive model over each domain's best fixed temperature with its interval, a panel a kernel.

    Args:
        adaptive: rows of `icrl.adaptive_summary.adaptive_summary`, one a kernel and domain.
        kernels: the panels; in each, domains are sorted by their ratio.
    """
    num_domains = int(adaptive.groupby("kernel")["domain"].nunique().max())
    figure = Figure(figsize=(5.5 * len(kernels), 0.17 * num_domains + 1.6))
    for axes, kernel in zip(figure.subplots(1, len(kernels), squeeze=False)[0], kernels, strict=True):
        rows = adaptive[adaptive["kernel"] == kernel].sort_values("ratio", ascending=False)
        height, colour = np.arange(len(rows)), KERNEL_COLOURS[kernel]
        axes.hlines(height, rows["ratio_low"], rows["ratio_high"], color=colour, linewidth=2.5, alpha=0.4)
        axes.plot(rows["ratio"], height, "o", color=colour, markersize=4)
        axes.axvline(1, color=INK, linewidth=1, linestyle="--")
        axes.set(xscale="log", title=kernel, ylim=(len(rows) - 0.5, -0.5))
        axes.set_xlabel("adaptive / best fixed (left of 1 is better)", fontsize=9)
        axes.xaxis.set_major_locator(LogLocator(subs=(0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.2, 1.5, 2, 3)))
        axes.xaxis.set_major_formatter(FuncFormatter(_plain))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_yticks(height, [short_name(domain) for domain in rows["domain"]], fontsize=8)
        axes.grid(visible=False, axis="y")
    return figure


@mpl.rc_context(STYLE)
def plot_cover(prices: pd.DataFrame, kernels: Sequence[str]) -> Figure:
    """What each number of fixed temperatures can promise to every domain.

    Args:
        prices: from `icrl.cover.tolerance_by_size`.
        kernels: the lines.
    """
    figure = Figure(figsize=(6.5, 3.6))
    axes = figure.subplots()
    for kernel in kernels:
        line = prices[(prices["kernel"] == kernel) & np.isfinite(prices["tolerance"])]
        axes.plot(line["num_models"], 1 + line["tolerance"], "o-", color=KERNEL_COLOURS[kernel], label=kernel)
    axes.set(yscale="log", xlabel="fixed temperatures", ylabel="TD loss / domain's best, at worst")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 1.1, 1.2, 1.5, 2, 3, 5)))
    axes.yaxis.set_major_formatter(FuncFormatter(_plain))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend()
    return figure


def short_name(domain: str) -> str:
    """A domain's name without MetaWorld's version suffix."""
    return domain.removesuffix("-v3")


def _plain(number: float, _position: int) -> str:
    return f"{number:g}"


def _label_log_axis(axis: Axis) -> None:
    """Plain numbers: 1, 2 and 5 of every decade, or powers of ten alone where there are many decades."""
    low, high = axis.get_view_interval()
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 1000 * low else (1,)))
    axis.set_major_formatter(FuncFormatter(_plain))
    axis.set_minor_locator(NullLocator())


def _gap_limit(gaps: pd.Series) -> float:
    """The gap of the strongest colour: it follows the data, but between 1.5 and 4, so that noise stays pale."""
    spread = np.exp(np.log(gaps[gaps > 0]).abs().quantile(0.95))
    return float(np.clip(spread, 1.5, 4)) if np.isfinite(spread) else 1.5


def _draw_matrix(axes: Axes, entries: pd.DataFrame, order: list[str], limit: float) -> None:
    gaps = entries.set_index(["source", "target"])["gap"].unstack("target").reindex(index=order, columns=order)
    axes.set_facecolor("#DDDDDD")
    axes.imshow(gaps.to_numpy(float), cmap="PuOr_r", norm=LogNorm(1 / limit, limit))
    names = [short_name(domain) for domain in order]
    if len(order) <= MAX_NAMED:
        axes.set_xticks(range(len(order)), names, rotation=35, ha="right")
        axes.set_yticks(range(len(order)), names)
        for entry in entries.to_dict("records"):
            _write_cell(axes, order.index(entry["target"]), order.index(entry["source"]), entry, limit)
    else:
        axes.set_xticks(range(len(order)), names, rotation=90, fontsize=7)
        axes.set_yticks(range(len(order)), names, fontsize=7)
    axes.set(xlabel="applied to (target)", ylabel="weights from (source)")
    axes.grid(visible=False)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def _write_cell(axes: Axes, column: int, row: int, entry: dict[Any, Any], limit: float) -> None:
    gap, low, high, diverged = (entry[name] for name in ("gap", "gap_low", "gap_high", "divergence_rate"))
    colour = "white" if abs(np.log(gap) / np.log(limit)) > 0.75 else INK
    details = [f"{low:.2f}–{high:.2f}"] if row != column and np.isfinite(low) else []
    if diverged > 0:
        details.append(f"{diverged:.1%} diverged")
    number = f"{gap:.2f}" if np.isfinite(gap) else "–"
    axes.text(column, row - 0.08, number, ha="center", va="center", color=colour, fontsize=12, fontweight="bold")
    axes.text(column, row + 0.12, "\n".join(details), ha="center", va="top", color=colour, fontsize=7.5)


def _outline_groups(axes: Axes, group: pd.DataFrame) -> None:
    """Frame each group's block on the diagonal and write its shared temperature above the matrix."""
    start = 0
    for _, members in group.groupby("group", sort=True):
        size = len(members)
        frame = Rectangle((start - 0.5, start - 0.5), size, size, fill=False, linewidth=2.5, edgecolor=INK)
        frame.set_clip_on(False)
        axes.add_patch(frame)
        temperature = members["group_temperature"].iloc[0]
        axes.annotate(
            f"δ {temperature:.2g}" if np.isfinite(temperature) else "no δ",
            (start + size / 2 - 0.5, 1),
            (0, 5),
            xycoords=("data", "axes fraction"),
            textcoords="offset points",
            ha="center",
            fontsize=9 if len(group) <= MAX_NAMED else 7,
        )
        start += size


def _draw_profile(axes: Axes, profile: pd.DataFrame, colour: str, with_band: bool) -> None:
    ordered = profile.sort_values("temperature")
    low, high = ordered["td_loss_low"], ordered["td_loss_high"]
    if with_band:
        axes.fill_between(ordered["temperature"], low, high, color=colour, alpha=0.15, lw=0)
    axes.plot(ordered["temperature"], ordered["td_loss"], color=colour)
    failed = ordered[ordered["divergence_rate"] > 0]
    axes.plot(failed["temperature"], failed["td_loss"], "x", color=colour)


def _domain_colour(domain: str, domains: Sequence[str], group: pd.DataFrame) -> str:
    index = list(domains).index(domain) if len(domains) <= MAX_NAMED else int(group["group"][domain])
    return DOMAIN_COLOURS[index % len(DOMAIN_COLOURS)]


def _domain_panels(domains: Sequence[str], xlabel: str, ylabel: str) -> tuple[Figure, list[Axes]]:
    columns = min(len(domains), 3 if len(domains) <= MAX_NAMED + 1 else 5)
    rows = -(-len(domains) // columns)
    figure = Figure(figsize=(11, 2.5 * rows + 0.6))
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).ravel()
    for axes in grid[len(domains) :]:
        axes.set_visible(False)
    for axes in grid[max(0, len(domains) - columns) : len(domains)]:
        axes.tick_params(labelbottom=True)
    panels = list(grid[: len(domains)])
    for axes, domain in zip(panels, domains, strict=True):
        axes.set_title(short_name(domain), fontsize=10)
    figure.supxlabel(xlabel, fontsize=10)
    figure.supylabel(ylabel, fontsize=10)
    return figure, panels


def _add_legend(figure: Figure, axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper right", ncols=len(labels))
