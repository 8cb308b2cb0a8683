"""What each stage reads from a run folder and writes into it. The folder's layout stands here and nowhere else.

config.yaml, run.json      the resolved configuration; versions, commit and seed
dataset/                   Parquet shards and their manifest
tune/, train/, transfer/   each stage's tables, and a folder `work-…` with the pieces of an unfinished stage
stages/                    a record of each finished stage
report/                    report.html, figures, every table as Parquet and CSV
tensorboard/               event files of tune, train and transfer
"""

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import torch

from distributed import tensorboard
from distributed.collect import collect
from distributed.ddp import FitState
from distributed.evaluate import evaluate_transfer
from distributed.fit import fit_models, training_table
from distributed.report import write_report
from distributed.tune import search_temperatures
from icrl.config import ExperimentConfig
from icrl.errors import InputError
from icrl.rkhs import profile_summary, temperature_intervals
from icrl.storage import Folder
from icrl.weights import FittedWeights

Summary = dict[str, Any]
"""Figures that a stage's record keeps, as plain JSON values."""


def run_collect(config: ExperimentConfig, run: Folder, work: str) -> Summary:
    """Collect the dataset; finished shards that are whole are kept."""
    summary = collect(config, run / "dataset")
    return {"shards": len(summary.shards), "transitions": sum(shard.transitions for shard in summary.shards)}


def run_tune(config: ExperimentConfig, run: Folder, work: str) -> Summary:
    """Search temperatures; writes `tune/profiles.parquet`."""
    profiles = search_temperatures(config, run / "dataset", run / "tune" / work)
    write_frame(run, "tune/profiles.parquet", profiles)
    settings: dict[str, float | str] = {
        "depth": config.model.depth,
        "step_fraction": config.tune.step_fraction,
        "context_length": config.contexts.context_length,
        "discount": config.discount,
    }
    tensorboard.log_profiles(run, profiles, settings)
    return {"rows": len(profiles), "diverged": int(profiles.diverged.sum())}


def run_train(config: ExperimentConfig, run: Folder, work: str) -> Summary:
    """Fit all models; writes `train/weights.safetensors`, `train/weights.parquet` and `train/metrics.parquet`."""
    start = best_temperatures(config, run.read_table("tune/profiles.parquet").to_pandas())
    state = fit_models(config, run, run / "train" / work, start)
    check_validated(config, state)
    weights = FittedWeights(config.model.kernels, config.domains, state.best_temperature, state.best_step_fraction)
    weights.save(run, "train/weights.safetensors")
    write_frame(run, "train/weights.parquet", weights.table())
    metrics = training_table(config, state)
    write_frame(run, "train/metrics.parquet", metrics)
    return {"steps": config.train.num_steps, "diverged": int(state.diverged.sum())}


def check_validated(config: ExperimentConfig, state: FitState) -> None:
    """Refuse a fit with a model whose weights never passed a validation.

    Raises:
        InputError: some validation contexts of the model diverged at every validation.
    """
    failed = (~state.best_loss.isfinite()).nonzero().tolist()
    if failed:
        names = ", ".join(f"{config.model.kernels[k]} on {config.domains[s]}" for k, s in failed)
        raise InputError(f"validation contexts diverged at every validation: {names}; lower --train.learning-rate")


def run_transfer(config: ExperimentConfig, run: Folder, work: str) -> Summary:
    """Apply all weights and the adaptive model to all held-out tasks.

    Writes `transfer/cells.parquet`, `transfer/depth.parquet`, `transfer/adaptive.parquet`, `transfer/bank.parquet`.
    """
    weights = FittedWeights.load(run, "train/weights.safetensors")
    profiles = run.read_table("tune/profiles.parquet").to_pandas()
    result = evaluate_transfer(config, run / "dataset", weights, profiles, run / "transfer" / work)
    for name, table in result._asdict().items():
        write_frame(run, f"transfer/{name}.parquet", table)
    return {"rows": len(result.cells), "diverged": int(result.cells.diverged.sum())}


def run_report(config: ExperimentConfig, run: Folder, work: str) -> Summary:
    """Write the report from the tables of the other stages."""
    return {"files": write_report(run, config)}


def write_frame(run: Folder, name: str, frame: pd.DataFrame) -> None:
    """Write a table as Parquet."""
    run.write_table(name, pa.Table.from_pandas(frame, preserve_index=False))


def best_temperatures(config: ExperimentConfig, profiles: pd.DataFrame) -> torch.Tensor:
    """Temperature at which training starts: the best of each profile, ``[K, S]`` float32.

    Raises:
        InputError: some contexts diverged at every temperature of a domain.
    """
    rng = np.random.default_rng(config.seed)
    summary = profile_summary(profiles, rng, num_resamples=config.transfer.num_resamples)
    intervals = temperature_intervals(summary, tolerance=config.transfer.group_tolerance)
    table = intervals.pivot(index="kernel", columns="domain", values="best_td_loss")
    for kernel, losses in table.iterrows():
        if losses.isna().any():
            raise InputError(
                f"kernel {kernel} diverged at every temperature on {', '.join(losses.index[losses.isna()])}; "
                "lower tune.step_fraction or widen the temperature range"
            )
    best = intervals.pivot(index="kernel", columns="domain", values="best_temperature")
    ordered = best.reindex(index=list(config.model.kernels), columns=list(config.domains))
    return torch.tensor(ordered.to_numpy(), dtype=torch.float32)
