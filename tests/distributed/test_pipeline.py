"""The whole chain on real MetaWorld and real Ray: what a run leaves, and what a second run does with it."""

import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from distributed.ddp import FitState
from distributed.pipeline import STAGE_NAMES, run_stages
from distributed.stages import best_temperatures, check_validated
from distributed.tune import plan_trials, profile_rows
from icrl.config import ExperimentConfig
from icrl.errors import InputError
from icrl.storage import Folder
from icrl.tables import CELLS, DEPTHS, PROFILES, TRAINING, WEIGHTS
from icrl.training import ModelBank

pytestmark = pytest.mark.ray


def frame(run: Folder, name: str) -> pd.DataFrame:
    return run.read_table(name).to_pandas()


def test_every_stage_leaves_its_tables(finished_run: Folder, tiny_config: ExperimentConfig) -> None:
    profiles, training = frame(finished_run, "tune/profiles.parquet"), frame(finished_run, "train/metrics.parquet")
    cells, depths = frame(finished_run, "transfer/cells.parquet"), frame(finished_run, "transfer/depth.parquet")
    weights = frame(finished_run, "train/weights.parquet")
    for table, columns in (
        (profiles, PROFILES),
        (training, TRAINING),
        (weights, WEIGHTS),
        (cells, CELLS),
        (depths, DEPTHS),
    ):
        assert list(table.columns) == list(columns)
    # 2 domains × 2 tasks (fit and validation) × 2 contexts × (3 temperatures of softmax + linear)
    assert len(profiles) == 2 * 2 * 2 * 4
    # 2 sources × 2 targets × 2 kernels × 2 contexts × (4 low + 2 held-out high tasks)
    assert len(cells) == 2 * 2 * 2 * 2 * 6
    assert len(depths) == 2 * 2 * 6 * tiny_config.model.depth
    assert len(training) == 2 * 2 * tiny_config.train.num_steps
    assert not cells.diverged.any()
    assert np.isfinite(cells.td_loss).all()


def test_evaluated_tasks_were_seen_by_neither_search_nor_fit(finished_run: Folder) -> None:
    cells, profiles = frame(finished_run, "transfer/cells.parquet"), frame(finished_run, "tune/profiles.parquet")
    assert not set(cells.task_seed) & set(profiles.task_seed)


def test_the_deepest_depth_row_is_the_own_cell(finished_run: Folder, tiny_config: ExperimentConfig) -> None:
    cells, depths = frame(finished_run, "transfer/cells.parquet"), frame(finished_run, "transfer/depth.parquet")
    own = cells[cells.source == cells.target].groupby(["kernel", "target", "tier", "task_seed"]).td_loss.mean()
    last = depths[depths.depth == tiny_config.model.depth].set_index(["kernel", "domain", "tier", "task_seed"]).td_loss
    np.testing.assert_allclose(own.sort_index(), last.sort_index(), rtol=1e-5)


def test_training_lowers_the_loss_of_the_linear_baseline(finished_run: Folder) -> None:
    training = frame(finished_run, "train/metrics.parquet")
    validated = training[(training.kernel == "linear") & training.validation_loss.notna()]
    assert (
        validated.groupby("domain").validation_loss.last() < validated.groupby("domain").validation_loss.first()
    ).all()


def test_trials_do_not_depend_on_how_temperatures_are_batched(
    finished_run: Folder, tiny_config: ExperimentConfig
) -> None:
    batched = tiny_config.model_copy(update={"tune": tiny_config.tune.model_copy(update={"temperatures_per_trial": 3})})
    (trial,) = (t for t in plan_trials(batched) if (t.kernel, t.domain) == ("softmax", "reach-v3"))
    rows = profile_rows(batched, finished_run / "dataset", trial)
    profiles = frame(finished_run, "tune/profiles.parquet")
    stored = profiles[(profiles.kernel == "softmax") & (profiles.domain == "reach-v3")]
    keys = ["temperature", "task_seed", "context"]
    pd.testing.assert_frame_equal(
        rows.sort_values(keys, ignore_index=True), stored.sort_values(keys, ignore_index=True), rtol=1e-4
    )


def test_a_step_beyond_the_bound_is_reported_as_divergence(finished_run: Folder, tiny_config: ExperimentConfig) -> None:
    reckless = tiny_config.model_copy(update={"tune": tiny_config.tune.model_copy(update={"step_fraction": 500.0})})
    rows = pd.concat(profile_rows(reckless, finished_run / "dataset", trial) for trial in plan_trials(reckless))
    assert rows[rows.kernel == "softmax"].diverged.all()
    assert rows[rows.diverged][["td_loss", "td_ratio"]].isna().all().all()
    with pytest.raises(InputError, match=r"softmax diverged at every temperature on .*lower tune\.step_fraction"):
        best_temperatures(reckless, rows)


def test_a_model_that_never_passed_a_validation_is_named(tiny_config: ExperimentConfig) -> None:
    temperature = torch.full((2, 2), 0.5)
    state = FitState.start(tiny_config.train.num_steps, ModelBank(tiny_config, temperature))
    state.best_loss = torch.tensor([[1.0, torch.inf], [2.0, 3.0]])
    with pytest.raises(InputError, match=r"at every validation: softmax on plate-slide-v3; lower --train\.learning"):
        check_validated(tiny_config, state)


def test_a_second_run_keeps_everything(
    finished_run: Folder, tiny_config: ExperimentConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(finished_run.path, tmp_path / "run")
    run = Folder.open(tmp_path / "run")
    before = {name: run.read(name) for name in run.list() if name.endswith((".parquet", ".safetensors"))}
    run_stages(STAGE_NAMES[:-1], tiny_config, run)
    assert {name: run.read(name) for name in before} == before
    printed = capsys.readouterr().out
    assert [f"[{stage}] finished before, kept" in printed for stage in ("tune", "train", "transfer")] == [True] * 3


def test_other_settings_are_refused_on_the_same_folder(finished_run: Folder, tiny_config: ExperimentConfig) -> None:
    other = tiny_config.model_copy(update={"discount": 0.5})
    with pytest.raises(InputError, match=r"'tune' stage of another experiment \(discount was 0.9, now 0.5\)"):
        run_stages(("transfer",), other, finished_run)


def test_settings_that_cannot_change_a_result_may_differ(
    finished_run: Folder, tiny_config: ExperimentConfig, tmp_path: Path
) -> None:
    shutil.copytree(finished_run.path, tmp_path / "run")
    other = tiny_config.model_copy(update={"train": tiny_config.train.model_copy(update={"num_workers": 1})})
    run_stages(("transfer",), other, Folder.open(tmp_path / "run"))
