"""A finished run's folder -> one self-contained HTML page, the picture of the matrix, and every table."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from rich import box
from rich.table import Table

from distributed import tensorboard
from distributed.report_page import Provenance, figure_png, render_page
from icrl import plots, tables
from icrl.config import ExperimentConfig
from icrl.datasets import read_manifest
from icrl.errors import InputError
from icrl.findings import Summaries, group_table, listing
from icrl.one_model import OneModelSummaries, summarise_one_model
from icrl.rkhs import group_domains, profile_summary, temperature_intervals
from icrl.storage import Folder
from icrl.transfer import depth_summary, own_summary, transfer_matrix

STAGES = ("collect", "tune", "train", "transfer")
PAGE = "report/report.html"
PICTURE = "report/matrix.png"
TABLES = "report/tables"


@dataclass(frozen=True)
class RunTables:
    """The tables that the stages left in a run folder; columns as in `icrl.tables`."""

    profiles: pd.DataFrame
    training: pd.DataFrame
    weights: pd.DataFrame
    cells: pd.DataFrame
    depths: pd.DataFrame
    adaptive: pd.DataFrame
    bank: pd.DataFrame


def write_report(folder: Folder, config: ExperimentConfig) -> list[str]:
    """Write the report of a finished run, and the event files of its transfer matrix.

    Args:
        folder: the run folder.
        config: the experiment.

    Returns:
        Names of the written files within the run folder; the page first, then the picture of the matrix.

    Raises:
        InputError: a stage has not left its result; the message names the command to run.
    """
    run_tables = read_run_tables(folder)
    provenance = _read_provenance(folder)
    summaries = summarise(run_tables, config)
    picture = plots.plot_transfer_matrix(summaries.matrix, summaries.groups, config.domains, config.model.kernels)
    one_model = summarise_one_model(
        run_tables.adaptive,
        run_tables.bank,
        summaries.profiles,
        summaries.matrix,
        np.random.default_rng(config.seed),
        num_resamples=config.transfer.num_resamples,
    )
    page = render_page(summaries, one_model, run_tables.training, run_tables.weights, provenance, config)
    folder.write(PAGE, page.encode())
    folder.write(PICTURE, figure_png(picture))
    tensorboard.log_transfer(folder, summaries.matrix, {"transfer matrix": picture})
    return [PAGE, PICTURE, *_write_tables(folder, run_tables, summaries, one_model, config.model.kernels)]


def read_run_tables(folder: Folder) -> RunTables:
    """The tables of a run's finished stages.

    Raises:
        InputError: a table is missing, damaged or of another version.
    """
    return RunTables(
        profiles=_read_table(folder, "tune/profiles.parquet", tables.PROFILES),
        training=_read_table(folder, "train/metrics.parquet", tables.TRAINING),
        weights=_read_table(folder, "train/weights.parquet", tables.WEIGHTS),
        cells=_read_table(folder, "transfer/cells.parquet", tables.CELLS),
        depths=_read_table(folder, "transfer/depth.parquet", tables.DEPTHS),
        adaptive=_read_table(folder, "transfer/adaptive.parquet", tables.ADAPTIVE),
        bank=_read_table(folder, "transfer/bank.parquet", tables.BANK),
    )


def summarise(run_tables: RunTables, config: ExperimentConfig) -> Summaries:
    """All summary tables of a run; the configuration's seed decides the bootstrap."""
    rng, num_resamples = np.random.default_rng(config.seed), config.transfer.num_resamples
    profiles = profile_summary(run_tables.profiles, rng, num_resamples=num_resamples)
    intervals = temperature_intervals(profiles, tolerance=config.transfer.group_tolerance)
    return Summaries(
        profiles=profiles,
        intervals=intervals,
        groups=group_domains(intervals),
        matrix=transfer_matrix(run_tables.cells, rng, num_resamples=num_resamples),
        own=own_summary(run_tables.cells, rng, num_resamples=num_resamples),
        depth=depth_summary(run_tables.depths, rng, num_resamples=num_resamples),
    )


def summary_table(folder: Folder, config: ExperimentConfig) -> Table:
    """The groups of a reported run and how well weights transfer within and between them, for the terminal.

    Args:
        folder: the run folder; `write_report` has written its tables.
        config: the experiment.
    """
    groups = folder.read_table(f"{TABLES}/group_gaps.parquet").to_pandas()
    title = "Groups that one temperature serves, and mean transfer gaps to them from inside and outside"
    table = Table(title=title, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("kernel")
    table.add_column("δ", justify="right")
    table.add_column("domains", overflow="fold")
    for heading in ("TD ratio", "inside", "outside", "diverged"):
        table.add_column(heading, justify="right")
    for row in groups.to_dict("records"):
        table.add_row(
            row["kernel"],
            _number(row["temperature"], ".2g"),
            listing([plots.short_name(domain) for domain in row["domains"]]),
            _number(row["td_ratio"], ".3g"),
            _number(row["gap_inside"], ".2f"),
            _number(row["gap_outside"], ".2f"),
            _number(row["divergence_rate"], ".1%"),
        )
    return table


def _read_provenance(folder: Folder) -> Provenance:
    records = {stage: _read_json(folder, f"stages/{stage}.json", stage) for stage in STAGES}
    run = _read_json(folder, "run.json", "collect")
    shards = read_manifest(folder / "dataset").shards
    dataset = pd.DataFrame(
        {
            "domain": [shard.domain for shard in shards],
            "tier": [shard.tier for shard in shards],
            "tasks": [len(shard.task_seeds) for shard in shards],
            "unstable": [len(shard.unstable) for shard in shards],
            "episodes": [sum(shard.episodes) for shard in shards],
            "successes": [sum(shard.successes) for shard in shards],
            "transitions": [shard.transitions for shard in shards],
        }
    )
    return Provenance(
        location=str(folder),
        commit=run["commit"],
        versions=run["versions"],
        records=records,
        dataset=dataset.groupby(["domain", "tier"], sort=False).sum().reset_index(),
    )


def _write_tables(
    folder: Folder,
    run_tables: RunTables,
    summaries: Summaries,
    one_model: OneModelSummaries,
    kernels: Sequence[str],
) -> list[str]:
    contents = {
        "profiles": run_tables.profiles,
        "training": run_tables.training,
        "weights": run_tables.weights,
        "cells": run_tables.cells,
        "depths": run_tables.depths,
        "profile_summary": summaries.profiles,
        "temperature_intervals": summaries.intervals,
        "groups": summaries.groups,
        "group_gaps": group_table(summaries, kernels),
        "transfer_matrix": summaries.matrix,
        "own_weights": summaries.own,
        "depth_summary": summaries.depth,
        "adaptive": run_tables.adaptive,
        "bank": run_tables.bank,
        "adaptive_against_fixed": one_model.adaptive,
        "adaptive_over_domains": one_model.over_domains,
        "cover_assignment": one_model.assignment,
        "cover_sizes": one_model.sizes,
        "cover_prices": one_model.prices,
        "predicted_gaps": one_model.predicted,
        "prediction_correlations": one_model.correlations,
    }
    names = []
    for name, frame in contents.items():
        folder.write_table(f"{TABLES}/{name}.parquet", pa.Table.from_pandas(frame, preserve_index=False))
        folder.write(f"{TABLES}/{name}.csv", frame.to_csv(index=False).encode())
        names += [f"{TABLES}/{name}.parquet", f"{TABLES}/{name}.csv"]
    return names


def _read_table(folder: Folder, name: str, columns: Mapping[str, str]) -> pd.DataFrame:
    _require(folder, name, stage=name.split("/")[0])
    frame: pd.DataFrame = folder.read_table(name).to_pandas()
    tables.require_columns(frame, columns, str(folder / name))
    return frame


def _read_json(folder: Folder, name: str, stage: str) -> Any:
    _require(folder, name, stage)
    return folder.read_json(name)


def _require(folder: Folder, name: str, stage: str) -> None:
    if not folder.exists(name):
        raise InputError(f"run folder {folder} has no {name}; run `icrl {stage} --run-dir {folder}` first")


def _number(number: float, form: str) -> str:
    return format(number, form) if np.isfinite(number) else "–"
