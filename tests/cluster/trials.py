"""What Tune costs a trial, by the number of temperatures in one, and with a fresh actor for every trial.

trials.py RUN [TEMPERATURES_PER_TRIAL…]     RUN: a finished run, whose dataset and settings are used

The search's start, until the first trial is finished, is told apart: it does not grow with the number of trials.
"""

import sys
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path
from unittest.mock import patch

import ray
from ray import tune

from distributed.session import cluster_total
from distributed.tune import plan_trials, profile_rows, search_temperatures
from icrl.config import ExperimentConfig
from icrl.storage import Folder


def evaluation_seconds(config: ExperimentConfig, run: Folder) -> float:
    """Time of all trials, one after the other in this process."""
    start = time.monotonic()
    for trial in plan_trials(config):
        profile_rows(config, run / "dataset", trial)
    return time.monotonic() - start


def measure(config: ExperimentConfig, run: Folder, *, reuse: bool = True) -> None:
    """Search once and print where the workers' time went."""
    evaluation, trials = evaluation_seconds(config, run), len(plan_trials(config))
    with tempfile.TemporaryDirectory() as folder:
        start = time.time()
        with nullcontext() if reuse else patch.object(tune, "TuneConfig", _fresh):
            search_temperatures(config, run / "dataset", Folder.open(folder))
        end = time.time()
        first = min(file.stat().st_mtime for file in Path(folder).rglob("*.parquet"))
    workers = cluster_total("CPU")
    busy = (end - first) * workers
    overhead = busy - evaluation * (trials - workers) / trials
    print(
        f"{config.tune.batch_size} temperatures a trial, {'reused' if reuse else 'fresh'} actors: {trials} trials in "
        f"{end - start:.1f} s, of which {first - start:.1f} s until the first; then {overhead / trials:.2f} s of "
        f"overhead a trial, {overhead / busy:.0%} of the workers' time",
        flush=True,
    )


def _fresh(**settings: object) -> object:
    return REAL_TUNE_CONFIG(**{**settings, "reuse_actors": False})


REAL_TUNE_CONFIG = tune.TuneConfig


def main(location: str, *batch_sizes: int) -> None:
    run = Folder.open(location)
    stored = ExperimentConfig.model_validate(run.read_json("run.json")["config"])
    ray.init(address="local", include_dashboard=False, log_to_driver=False)

    def batched(config: ExperimentConfig, size: int) -> ExperimentConfig:
        return config.model_copy(update={"tune": config.tune.model_copy(update={"temperatures_per_trial": size})})

    for size in batch_sizes:
        measure(batched(stored, size), run)
    one_domain = stored.model_copy(update={"domains": stored.domains[:1]})
    for reuse in (True, False):
        measure(batched(one_domain, batch_sizes[-1]), run, reuse=reuse)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:] or ("1", "5", "25")))
