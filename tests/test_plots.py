"""Figures say what the tables hold: numbers in cells, order, frames, marks and curves."""

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from icrl import plots

DOMAINS = ("a-v3", "b-v3", "c-v3")
GROUPS = pd.DataFrame(
    {
        "kernel": "rbf",
        "domain": ["b-v3", "a-v3", "c-v3"],
        "group": [1, 2, 2],
        "group_temperature": [0.1, 2.0, 2.0],
    }
)


def matrix() -> pd.DataFrame:
    rows = [
        {
            "kernel": kernel,
            "tier": tier,
            "source": source,
            "target": target,
            "gap": 1.0 if source == target else 1 + row + column / 10,
            "gap_low": 0.9,
            "gap_high": 9.0,
            "divergence_rate": 0.125 if (source, target) == ("a-v3", "b-v3") else 0.0,
        }
        for kernel in ("rbf", "linear")
        for tier in ("all", "high")
        for row, source in enumerate(DOMAINS)
        for column, target in enumerate(DOMAINS)
    ]
    return pd.DataFrame(rows)


def texts(axes: Axes) -> list[str]:
    return [text.get_text() for text in axes.texts]


def test_matrix_is_ordered_by_group_and_shows_gap_interval_and_divergence() -> None:
    figure = plots.plot_transfer_matrix(matrix(), GROUPS, DOMAINS, ["rbf", "linear"])
    rbf, linear = figure.axes[:2]
    assert [label.get_text() for label in rbf.get_yticklabels()] == ["b", "a", "c"]
    assert [label.get_text() for label in linear.get_yticklabels()] == ["a", "b", "c"]
    # Row a, column b: source 0, target 1; shown at column 0, row 1.
    (cell,) = [text for text in rbf.texts if text.get_text() == "1.10"]
    assert cell.get_position()[0] == 0
    assert round(cell.get_position()[1]) == 1
    assert "0.90–9.00\n12.5% diverged" in texts(rbf)
    shown = np.asarray(rbf.images[0].get_array(), dtype=float)
    assert shown == pytest.approx(np.array([[1, 2.0, 2.2], [1.1, 1, 1.2], [3.1, 3.0, 1]]))


def test_matrix_frames_every_group_and_names_its_temperature() -> None:
    axes = plots.plot_transfer_matrix(matrix(), GROUPS, DOMAINS, ["rbf"]).axes[0]
    frames = [patch for patch in axes.patches if isinstance(patch, Rectangle)]
    assert [(*frame.get_xy(), frame.get_width(), frame.get_height()) for frame in frames] == [
        (-0.5, -0.5, 1, 1),
        (0.5, 0.5, 2, 2),
    ]
    assert texts(axes)[-2:] == ["δ 0.1", "δ 2"]


def test_a_cell_without_a_gap_shows_a_dash() -> None:
    table = matrix()
    table.loc[table["source"] == "c-v3", ["gap", "gap_low", "gap_high"]] = np.nan
    axes = plots.plot_transfer_matrix(table, GROUPS, DOMAINS, ["rbf"]).axes[0]
    assert texts(axes).count("–") == 3
    assert not any("nan" in text for text in texts(axes))


def test_a_large_matrix_has_names_but_no_numbers() -> None:
    domains = [f"domain-{index:02d}-v3" for index in range(12)]
    rows = [
        {"kernel": "linear", "tier": "all", "source": source, "target": target, "gap": 1.0}
        for source in domains
        for target in domains
    ]
    axes = plots.plot_transfer_matrix(pd.DataFrame(rows), GROUPS[:0], domains, ["linear"]).axes[0]
    assert len(axes.get_yticklabels()) == 12
    assert texts(axes) == []


def test_one_range_of_colours_for_all_kernels() -> None:
    table = matrix()
    table.loc[table["kernel"] == "linear", "gap"] = 1.0
    alone = [plots.plot_transfer_matrix(table, GROUPS, DOMAINS, [kernel]) for kernel in ("rbf", "linear")]
    limits = [figure.axes[0].images[0].get_clim() for figure in alone]
    assert limits[0] == limits[1]


def profile_tables() -> tuple[pd.DataFrame, pd.DataFrame]:
    temperatures = np.geomspace(0.01, 10, 4)
    rows = [
        {
            "kernel": "rbf",
            "domain": domain,
            "temperature": temperature,
            "td_loss": index + 1 + step,
            "td_loss_low": index + 0.5 + step,
            "td_loss_high": index + 1.5 + step,
            "divergence_rate": 0.5 if (domain, step) == ("c-v3", 2) else 0.0,
        }
        for index, domain in enumerate(DOMAINS)
        for step, temperature in enumerate(temperatures)
    ]
    intervals = pd.DataFrame(
        {
            "kernel": "rbf",
            "domain": DOMAINS,
            "best_temperature": [1.0, 0.05, 2.0],
            "best_td_loss": [1.0, 2.0, 3.0],
            "low": [0.5, 0.01, 1.5],
            "high": [2.5, 0.2, 3.0],
        }
    )
    return pd.DataFrame(rows), intervals


def test_profiles_mark_best_temperatures_intervals_groups_and_divergence() -> None:
    summary, intervals = profile_tables()
    curves, bars = plots.plot_profiles(summary, intervals, GROUPS, DOMAINS, "rbf").axes
    assert [label.get_text() for label in bars.get_yticklabels()] == ["b", "a", "c"]
    segments = {tuple(line.get_xdata()) for line in bars.lines}
    assert {(0.5, 2.5), (0.01, 0.2), (1.5, 3.0)} <= segments
    assert {(0.1, 0.1), (2.0, 2.0)} <= segments, "a dashed line at each group's temperature"
    crosses = [line for line in curves.lines if line.get_marker() == "x" and len(line.get_xdata())]
    assert [list(line.get_ydata()) for line in crosses] == [[5.0]]
    assert texts(bars) == ["δ 0.1", "δ 2"]


def test_depth_has_a_panel_a_domain_and_a_line_a_kernel() -> None:
    rows = [
        {
            "kernel": kernel,
            "domain": domain,
            "depth": depth,
            "td_loss": 10.0 / depth + index,
            "td_loss_low": 9.0 / depth,
            "td_loss_high": 11.0 / depth + index,
            "divergence_rate": 0.0,
        }
        for index, kernel in enumerate(("rbf", "linear"))
        for domain in DOMAINS
        for depth in (1, 2, 5)
    ]
    figure = plots.plot_depth(pd.DataFrame(rows), DOMAINS, ["rbf", "linear"])
    panels = [axes for axes in figure.axes if axes.get_visible()]
    assert [axes.get_title(loc="left") for axes in panels] == ["a", "b", "c"]
    lines = {line.get_label(): list(line.get_ydata()) for line in panels[1].lines}
    assert lines["rbf"] == [10.0, 5.0, 2.0]
    assert lines["linear"] == [11.0, 6.0, 3.0]


def test_training_shows_validation_only_where_it_took_place() -> None:
    rows = [
        {
            "kernel": "rbf",
            "domain": domain,
            "step": step,
            "train_loss": 5.0 - step,
            "validation_loss": 4.0 - step if step % 2 else np.nan,
        }
        for domain in DOMAINS
        for step in range(4)
    ]
    axes = plots.plot_training(pd.DataFrame(rows), DOMAINS, ["rbf"]).axes[0]
    train, validation = axes.lines
    assert list(train.get_ydata()) == [5.0, 4.0, 3.0, 2.0]
    assert list(validation.get_xdata()) == [1, 3]


def test_kernels_are_compared_over_all_tiers_with_intervals() -> None:
    rows = [
        {"kernel": kernel, "domain": domain, "tier": tier}
        | {
            f"{metric}{bound}": (offset + index + 1) * (10 if tier == "high" else 1)
            for metric in ("td_loss", "td_ratio", "value_error")
            for bound, offset in (("", 0.0), ("_low", -0.5), ("_high", 0.5))
        }
        for kernel in ("rbf", "linear")
        for index, domain in enumerate(DOMAINS)
        for tier in ("all", "high")
    ]
    figure = plots.plot_kernel_comparison(pd.DataFrame(rows), DOMAINS, ["rbf", "linear"])
    axes = figure.axes[0]
    assert [list(line.get_xdata()) for line in axes.lines] == [[1.0, 2.0, 3.0]] * 2
    ends = [path.vertices[:, 0].tolist() for path in axes.collections[0].get_paths()]
    assert ends == [[0.5, 1.5], [1.5, 2.5], [2.5, 3.5]]


def test_no_figure_stays_behind_and_no_setting_changes() -> None:
    from matplotlib import pyplot

    before = dict(mpl.rcParams)
    figure = plots.plot_transfer_matrix(matrix(), GROUPS, DOMAINS, ["rbf"])
    assert isinstance(figure, Figure)
    assert pyplot.get_fignums() == []
    assert dict(mpl.rcParams) == before
