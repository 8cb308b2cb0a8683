"""`icrl status` against run folders whose state is known."""

import shutil
from pathlib import Path

import pytest

from distributed.cli import main
from distributed.status import run_status
from icrl.config import ExperimentConfig
from icrl.storage import Folder

pytestmark = pytest.mark.ray

WHOLE = {"collect": (8, 8), "tune": (8, 8), "train": (4, 4), "transfer": (4, 4), "report": (1, 1)}


def counts(config: ExperimentConfig, run: Folder) -> dict[str, tuple[int, int]]:
    return {status.stage: (status.done, status.total) for status in run_status(config, run)}


def test_a_finished_run_has_nothing_left(finished_run: Folder, tiny_config: ExperimentConfig) -> None:
    assert counts(tiny_config, finished_run) == WHOLE
    assert all(status.finished for status in run_status(tiny_config, finished_run))


def test_an_interrupted_run_counts_its_pieces(
    finished_run: Folder, tiny_config: ExperimentConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run"
    shutil.copytree(finished_run.path, path)
    for record in ("collect", "tune", "train", "transfer", "report"):
        (path / "stages" / f"{record}.json").unlink()
    sorted(path.glob("dataset/shards/*/*/*.parquet"))[0].unlink()
    for trial in sorted(path.glob("tune/work-*/trials/*/*/*.parquet"))[:2]:
        trial.unlink()
    sorted(path.glob("transfer/work-*/depth/*/*.parquet"))[0].unlink()
    expected = WHOLE | {"collect": (7, 8), "tune": (6, 8), "transfer": (3, 4), "report": (0, 1)}
    assert counts(tiny_config, Folder.open(path)) == expected
    assert main(["status", "--run-dir", str(path)]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert any(line.split() == ["tune", "6", "2", "trials", "unfinished"] for line in printed)


def test_a_folder_without_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--run-dir", str(tmp_path)]) == 2
    assert "is not a run folder" in capsys.readouterr().err
