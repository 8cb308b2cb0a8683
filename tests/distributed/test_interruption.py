"""A run killed in every stage: the same command goes on, and nothing finished is done again."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
import yaml

from icrl.config import ExperimentConfig
from icrl.storage import Folder

pytestmark = [pytest.mark.ray, pytest.mark.faults, pytest.mark.timeout(600)]

PATIENCE_S = 150.0


def start(config: Path, run: Path, log: Path) -> subprocess.Popen[bytes]:
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    with log.open("wb") as stream:
        return subprocess.Popen(
            [sys.executable, "-m", "distributed.cli", "run", "--config", str(config), "--run-dir", str(run)],
            stdout=stream,
            stderr=subprocess.STDOUT,
            env=environment,
        )


def kill_once(process: subprocess.Popen[bytes], reached: Callable[[], bool], log: Path) -> None:
    """SIGKILL the driver as soon as it has got somewhere."""
    deadline = time.monotonic() + PATIENCE_S
    while not reached():
        assert process.poll() is None, f"the run ended before it could be killed:\n{log.read_text()}"
        assert time.monotonic() < deadline, f"the run did not get there:\n{log.read_text()}"
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()


def files(run: Path, pattern: str) -> dict[str, int]:
    """Finished files and when each was written."""
    return {str(path.relative_to(run)): path.stat().st_mtime_ns for path in run.glob(pattern)}


def test_a_run_killed_in_each_stage_ends_as_if_it_had_not_been(
    finished_run: Folder, tiny_config: ExperimentConfig, tmp_path: Path
) -> None:
    config, run, log = tmp_path / "tiny.yaml", tmp_path / "run", tmp_path / "log"
    config.write_text(yaml.safe_dump(tiny_config.model_dump(mode="json"), sort_keys=False))

    shards = "dataset/shards/*/*/*.parquet"
    kill_once(start(config, run, log), lambda: len(files(run, shards)) >= 2, log)
    kept_shards = files(run, shards)
    assert not (run / "stages" / "collect.json").exists()

    trials = "tune/work-*/trials/*/*/*.parquet"
    kill_once(start(config, run, log), lambda: len(files(run, trials)) >= 2, log)
    kept_trials = files(run, trials)
    assert kept_shards.items() <= files(run, shards).items()
    assert not (run / "stages" / "tune.json").exists()

    checkpoints = "train/work-*/ray/checkpoint_*/state.pt"
    snapshot = "train/work-*/ray/checkpoint_manager_snapshot.json"
    kill_once(start(config, run, log), lambda: bool(files(run, checkpoints)) and bool(files(run, snapshot)), log)
    assert kept_trials.items() <= files(run, trials).items()

    assert start(config, run, log).wait(timeout=PATIENCE_S) == 0, log.read_text()
    assert kept_shards.items() <= files(run, shards).items()
    assert "[train]" in log.read_text()
    resumed = Folder.open(run)
    for name in ("tune/profiles.parquet", "train/metrics.parquet", "transfer/cells.parquet"):
        expected: pd.DataFrame = finished_run.read_table(name).to_pandas()
        pd.testing.assert_frame_equal(resumed.read_table(name).to_pandas(), expected, rtol=1e-4)
