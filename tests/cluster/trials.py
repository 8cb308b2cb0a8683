"""What Tune costs a trial, by the number of temperatures in one: the share of the workers' time that is not evaluation.

trials.py RUN [TEMPERATURES_PER_TRIAL…]     RUN: a finished run, whose dataset and settings are used
"""

import sys
import tempfile
import time

import ray

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


def main(location: str, *batch_sizes: int) -> None:
    run = Folder.open(location)
    stored = ExperimentConfig.model_validate(run.read_json("run.json")["config"])
    ray.init(address="local", include_dashboard=False, log_to_driver=False)
    for size in batch_sizes:
        config = stored.model_copy(update={"tune": stored.tune.model_copy(update={"temperatures_per_trial": size})})
        evaluation = evaluation_seconds(config, run)
        with tempfile.TemporaryDirectory() as folder:
            start = time.monotonic()
            search_temperatures(config, run / "dataset", Folder.open(folder))
            worker_seconds = (time.monotonic() - start) * cluster_total("CPU")
        trials = len(plan_trials(config))
        overhead = worker_seconds - evaluation
        print(
            f"{size} temperatures a trial: {trials} trials, {evaluation:.1f} s of evaluation, "
            f"{worker_seconds:.1f} s of workers, overhead {overhead / trials:.2f} s a trial, "
            f"{overhead / worker_seconds:.0%} of the search"
        )


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:] or ("1", "5", "13")))
