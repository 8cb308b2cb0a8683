"""The report's page: figures and tables of a run in one HTML document that needs no network."""

import base64
import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jinja2
import matplotlib as mpl
import numpy as np
import pandas as pd
import yaml
from matplotlib.figure import Figure

from icrl import plots
from icrl.config import ALL_TIERS, ExperimentConfig
from icrl.findings import Summaries, describe, group_table
from icrl.one_model import OneModelSummaries, describe_one_model, shown_adaptive

PICTURE_DPI = 110


@dataclass(frozen=True)
class Provenance:
    """Where a run's results come from.

    Attributes:
        location: the run folder.
        commit: commit of the code, None outside a checkout.
        versions: versions of the packages.
        records: record of each finished stage, by name.
        dataset: number of tasks, episodes, successes and transitions of every domain and tier.
    """

    location: str
    commit: str | None
    versions: dict[str, str]
    records: dict[str, Any]
    dataset: pd.DataFrame


@dataclass(frozen=True)
class PageTable:
    """A table as the page shows it: a heading for every column, and cells of a text and the value to sort it by."""

    headings: list[str]
    rows: list[list[tuple[str, Any]]]


Column = Callable[[dict[Any, Any]], tuple[str, Any]]
"""From a row of a data frame to a cell: its text and the value to sort it by."""


def render_page(
    summaries: Summaries,
    one_model: OneModelSummaries,
    training: pd.DataFrame,
    weights: pd.DataFrame,
    provenance: Provenance,
    config: ExperimentConfig,
) -> str:
    """The page as HTML.

    Args:
        summaries: the run's summary tables.
        one_model: those of the adaptive model and of covers.
        training: rows of `icrl.tables.TRAINING`.
        weights: rows of `icrl.tables.WEIGHTS`.
        provenance: where the results come from.
        config: the experiment.
    """
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("distributed"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("report.html.j2").render(
        findings=[*describe(summaries, config.model.kernels), *describe_one_model(one_model)],
        figures=_figures(summaries, one_model, training, config),
        tables=_tables(summaries, weights, provenance, config) | _one_model_tables(one_model),
        provenance=provenance,
        config=config,
        config_text=yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True),
    )


def figure_png(figure: Figure) -> bytes:
    """A figure as a PNG file."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=PICTURE_DPI)
    return buffer.getvalue()


def _figure_uri(figure: Figure) -> str:
    """A figure as an SVG data URI; equal figures give equal bytes."""
    buffer = io.BytesIO()
    with mpl.rc_context({"svg.hashsalt": "icrl"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return f"data:image/svg+xml;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def _figures(
    summaries: Summaries, one_model: OneModelSummaries, training: pd.DataFrame, config: ExperimentConfig
) -> dict[str, Any]:
    domains, kernels = config.domains, config.model.kernels
    grouped = [kernel for kernel in kernels if kernel in set(summaries.groups["kernel"])]
    s = summaries
    return {
        "matrix": {k: _figure_uri(plots.plot_transfer_matrix(s.matrix, s.groups, domains, [k])) for k in kernels},
        "profiles": {
            k: _figure_uri(plots.plot_profiles(s.profiles, s.intervals, s.groups, domains, k)) for k in grouped
        },
        "adaptive": _figure_uri(plots.plot_adaptive(shown_adaptive(one_model), grouped)) if grouped else "",
        "cover": _figure_uri(plots.plot_cover(one_model.prices, grouped)) if grouped else "",
        "kernels": _figure_uri(plots.plot_kernel_comparison(s.own, domains, kernels)),
        "depth": _figure_uri(plots.plot_depth(s.depth, domains, kernels)),
        "training": _figure_uri(plots.plot_training(training, domains, kernels)),
    }


def _tables(
    summaries: Summaries, weights: pd.DataFrame, provenance: Provenance, config: ExperimentConfig
) -> dict[str, PageTable]:
    fitted = weights.rename(columns={"source": "domain", "temperature": "fitted_temperature"})
    intervals = summaries.intervals.merge(summaries.groups, on=["kernel", "domain"]).merge(
        fitted, on=["kernel", "domain"]
    )
    pooled = summaries.matrix[summaries.matrix["tier"] == ALL_TIERS]
    stages = pd.DataFrame(
        [
            {"stage": name, "seconds": record["seconds"], "finished": record.get("finished", "")}
            for name, record in provenance.records.items()
        ]
    )
    versions = pd.DataFrame(provenance.versions.items(), columns=["package", "version"])
    return {
        "groups": _table(
            group_table(summaries, config.model.kernels),
            {
                "kernel": _text("kernel"),
                "δ": _number("temperature", ".2g"),
                "domains": lambda row: (", ".join(row["domains"]),) * 2,
                "TD ratio": _number("td_ratio"),
                "gap inside": _number("gap_inside", ".2f"),
                "gap from outside": _number("gap_outside", ".2f"),
                "diverged": _number("divergence_rate", ".1%"),
            },
        ),
        "intervals": _table(
            intervals,
            {
                "kernel": _text("kernel"),
                "domain": _text("domain"),
                "group": _text("group"),
                "best δ": _number("best_temperature"),
                "δ-interval": lambda row: (_range(row["low"], row["high"]) + "*" * row["at_edge"], row["low"]),
                "fitted δ": _number("fitted_temperature"),
                "TD loss at best δ": _number("best_td_loss"),
            },
        ),
        "own": _table(
            summaries.own,
            {
                "kernel": _text("kernel"),
                "domain": _text("domain"),
                "tier": _text("tier"),
                "TD loss": _interval("td_loss"),
                "TD ratio": _interval("td_ratio"),
                "explained variance": _interval("value_error"),
                "tasks": _text("num_tasks"),
                "diverged": _number("divergence_rate", ".1%"),
            },
        ),
        "matrix": _table(
            pooled,
            {
                "kernel": _text("kernel"),
                "source": _text("source"),
                "target": _text("target"),
                "gap": _interval("gap"),
                "TD loss": _number("td_loss"),
                "own TD loss": _number("own_td_loss"),
                "diverged": _number("divergence_rate", ".1%"),
            },
        ),
        "dataset": _table(provenance.dataset, {str(name): _text(str(name)) for name in provenance.dataset}),
        "stages": _table(
            stages, {"stage": _text("stage"), "seconds": _number("seconds", ".1f"), "finished": _text("finished")}
        ),
        "versions": _table(versions, {"package": _text("package"), "version": _text("version")}),
    }


def _one_model_tables(one_model: OneModelSummaries) -> dict[str, PageTable]:
    assignment = one_model.assignment.sort_values(["kernel", "tolerance", "group", "domain"])
    return {
        "adaptive_rules": _table(
            one_model.over_domains,
            {
                "kernel": _text("kernel"),
                "rule": _text("rule"),
                "median": _number("median"),
                "90 % of domains below": _number("quantile_90"),
                "worst": _number("worst"),
                "worst domain": _text("worst_domain"),
            },
        ),
        "adaptive": _table(
            one_model.adaptive,
            {
                "kernel": _text("kernel"),
                "rule": _text("rule"),
                "prior from": _text("source"),
                "domain": _text("domain"),
                "adaptive / best fixed": _interval("ratio"),
                "best fixed δ": _number("fixed_temperature"),
                "diverged": _number("divergence_rate", ".1%"),
            },
        ),
        "cover_sizes": _table(
            one_model.sizes,
            {
                "kernel": _text("kernel"),
                "ε": _number("tolerance", ".0%"),
                "fixed temperatures": _text("num_models"),
                "δ": lambda row: (", ".join(_format(number, ".2g") for number in row["temperatures"]),) * 2,
            },
        ),
        "assignment": _table(
            assignment,
            {
                "kernel": _text("kernel"),
                "ε": _number("tolerance", ".0%"),
                "δ": _number("group_temperature"),
                "domain": _text("domain"),
                "best δ": _number("best_temperature"),
                "δ-interval": lambda row: (_range(row["low"], row["high"]), row["low"]),
            },
        ),
        "correlations": _table(
            one_model.correlations,
            {
                "kernel": _text("kernel"),
                "measure": _text("measure"),
                "rank correlation": _interval("correlation"),
                "pairs": _text("num_pairs"),
            },
        ),
    }


def _table(frame: pd.DataFrame, columns: dict[str, Column]) -> PageTable:
    rows = [[column(row) for column in columns.values()] for row in frame.to_dict("records")]
    return PageTable(list(columns), rows)


def _text(name: str) -> Column:
    return lambda row: (str(row[name]), row[name])


def _number(name: str, form: str = ".3g") -> Column:
    return lambda row: (_format(row[name], form), row[name])


def _interval(name: str) -> Column:
    def column(row: dict[Any, Any]) -> tuple[str, Any]:
        bounds = _range(row[f"{name}_low"], row[f"{name}_high"])
        return f"{_format(row[name], '.3g')} ({bounds})", row[name]

    return column


def _range(low: float, high: float) -> str:
    return f"{_format(low, '.3g')}–{_format(high, '.3g')}"


def _format(number: float, form: str) -> str:
    return format(number, form) if np.isfinite(number) else "–"
