"""Storage that loses writes and processes that die while writing, in every stage: the results are those without."""

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import faulty
import pandas as pd
import pyarrow.fs as pafs
import pytest
import yaml
from faulty import Faults, FaultyHandler
from fsspec.implementations.local import LocalFileSystem
from ray import cloudpickle

from distributed import cli
from distributed.evaluate import evaluate_transfer
from distributed.fit import fit_models, training_table
from distributed.pipeline import STAGE_NAMES, run_stages
from distributed.stages import best_temperatures
from icrl.config import ClusterConfig, ExperimentConfig
from icrl.datasets import read_manifest
from icrl.errors import RunStoppedError
from icrl.storage import Folder
from icrl.weights import FittedWeights

# Workers cannot import these modules.
cloudpickle.register_pickle_by_value(sys.modules[__name__])
cloudpickle.register_pickle_by_value(faulty)

TABLES = ("tune/profiles", "train/metrics", "train/weights", "transfer/cells", "transfer/depth")


class FullDisk(pafs.FSSpecHandler):
    def __init__(self) -> None:
        super().__init__(LocalFileSystem(auto_mkdir=True))

    def __reduce__(self) -> Any:
        return FullDisk, ()

    def open_output_stream(self, path: str, metadata: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device", path)


def digests(run: Folder) -> dict[str, str]:
    return {shard.path: shard.digest for shard in read_manifest(run / "dataset").shards}


@pytest.mark.ray
@pytest.mark.faults
@pytest.mark.timeout(600)
def test_faults_in_every_stage_change_no_result(
    finished_run: Folder, tiny_config: ExperimentConfig, tmp_path: Path
) -> None:
    markers, path = tmp_path / "markers", tmp_path / "run"
    markers.mkdir()
    stages = ("dataset", "tune", "train", "transfer")
    faults = Faults(str(path), markers, os.getpid(), fail_every=3, kill_every=4, seed=597, stages=stages)
    run = Folder(pafs.PyFileSystem(FaultyHandler(faults)), str(path))
    run_stages(STAGE_NAMES, tiny_config, run)

    killed, failed = ([marker.read_text() for marker in markers.glob(f"{kind}-*")] for kind in ("kill", "fail"))
    assert {path.split("/")[0] for path in killed} == set(stages), "the seed must strike in every stage"
    assert len(killed) >= 5
    assert len(failed) >= 5
    assert digests(run) == digests(finished_run)
    for name in TABLES:
        expected: pd.DataFrame = finished_run.read_table(f"{name}.parquet").to_pandas()
        pd.testing.assert_frame_equal(run.read_table(f"{name}.parquet").to_pandas(), expected, rtol=1e-4)


@pytest.mark.ray
@pytest.mark.faults
@pytest.mark.timeout(600)
def test_training_outlives_its_worker_and_its_controller(
    finished_run: Folder, tiny_config: ExperimentConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    markers, path = tmp_path / "markers", tmp_path / "run"
    shutil.copytree(finished_run.path, path)
    markers.mkdir()
    # The first write of each file kills its writer, a worker or the controller; the second fails.
    faults = Faults(str(path), markers, os.getpid(), fail_every=1, kill_every=1, seed=0, stages=("train",))
    run = Folder(pafs.PyFileSystem(FaultyHandler(faults)), str(path))
    config = tiny_config.model_copy(update={"cluster": ClusterConfig(max_attempts=12)})
    start = best_temperatures(config, run.read_table("tune/profiles.parquet").to_pandas())
    state = fit_models(config, run, run / "train" / "again", start)
    assert len(list(markers.glob("kill-*"))) >= 2
    assert len(list(markers.glob("fail-*"))) >= 2
    assert "controller stopped, goes on" in capsys.readouterr().err
    expected = finished_run.read_table("train/metrics.parquet").to_pandas()
    pd.testing.assert_frame_equal(training_table(config, state), expected, rtol=1e-4)


@pytest.mark.ray
def test_a_full_disk_is_one_line(finished_run: Folder, tiny_config: ExperimentConfig, tmp_path: Path) -> None:
    config = tiny_config.model_copy(update={"cluster": ClusterConfig(max_attempts=1)})
    weights = FittedWeights.load(finished_run, "train/weights.safetensors")
    profiles = finished_run.read_table("tune/profiles.parquet").to_pandas()
    full = Folder(pafs.PyFileSystem(FullDisk()), str(tmp_path))
    with pytest.raises(RunStoppedError, match=r"transfer to .* failed 1 times.*No space left on device") as caught:
        evaluate_transfer(config, finished_run / "dataset", weights, profiles, full)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "No space left on device", "/full/run.json"), RunStoppedError("3 trials failed")]
)
def test_a_stopped_run_is_one_line_and_status_1(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(*arguments: object) -> None:
        raise error

    monkeypatch.setattr(cli, "execute", stop)
    assert cli.main(["run"]) == 1
    printed = capsys.readouterr().err
    assert printed == f"icrl: stopped: {error}; finished work is kept and the same command goes on\n"


@pytest.mark.ray
@pytest.mark.faults
@pytest.mark.timeout(600)
def test_nodes_lost_in_collect_tune_and_transfer_change_no_result(
    finished_run: Folder, tiny_config: ExperimentConfig, tmp_path: Path
) -> None:
    config, path = tmp_path / "tiny.yaml", tmp_path / "run"
    config.write_text(yaml.safe_dump(tiny_config.model_dump(mode="json"), sort_keys=False))
    script = Path(__file__).with_name("lose_nodes.py")
    done = subprocess.run(
        [sys.executable, str(script), str(config), str(path), finished_run.path],
        env={name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr
    run = Folder.open(path)
    assert digests(run) == digests(finished_run)
    for name in ("tune/profiles", "transfer/cells"):
        expected: pd.DataFrame = finished_run.read_table(f"{name}.parquet").to_pandas()
        pd.testing.assert_frame_equal(run.read_table(f"{name}.parquet").to_pandas(), expected, rtol=1e-4)
