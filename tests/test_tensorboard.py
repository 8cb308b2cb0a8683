"""Event files, read back as TensorBoard reads them."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

from distributed.tensorboard import log_profiles, log_training, log_transfer
from icrl.storage import Folder


def read(location: Path) -> dict[str, list[tuple[int, float]]]:
    """Every scalar curve of one TensorBoard run as steps and values."""
    events = EventAccumulator(str(location))
    events.Reload()
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def profiles(loss: float) -> pd.DataFrame:
    rows = [
        ("rbf", "a", 0.1, loss, False),
        ("rbf", "a", 0.1, loss + 2, False),
        ("rbf", "a", 1.0, np.nan, True),
        ("rbf", "b", 0.1, 7.0, False),
        ("linear", "a", np.nan, 9.0, False),
    ]
    return pd.DataFrame(rows, columns=["kernel", "domain", "temperature", "td_loss", "diverged"]).assign(td_ratio=0.5)


def test_profiles_are_curves_over_the_temperatures_and_replace_earlier_ones(tmp_path: Path) -> None:
    folder = Folder.open(tmp_path)
    log_profiles(folder, profiles(loss=100.0), {"depth": 6})
    log_profiles(folder, profiles(loss=1.0), {"depth": 6})
    assert len(folder.list("tensorboard/tune/a")) == 1
    curves = read(tmp_path / "tensorboard/tune/a")
    assert curves["rbf/td_loss"] == [(0, 2.0)], "a temperature at which every context diverged has no TD loss"
    assert curves["rbf/divergence_rate"] == [(0, 0.0), (1, 1.0)]
    assert [value for _, value in curves["rbf/temperature"]] == pytest.approx([0.1, 1.0])
    assert curves["linear/td_loss"] == [(0, 9.0)]
    assert read(tmp_path / "tensorboard/tune/b")["rbf/td_loss"] == [(0, 7.0)]


def test_every_temperature_is_a_row_of_hyper_parameters(tmp_path: Path) -> None:
    log_profiles(Folder.open(tmp_path), profiles(loss=1.0), {"depth": 6})
    trials = tmp_path / "tensorboard/tune/trials"
    assert {path.name for path in trials.glob("*/*")} == {"rbf-0.1", "rbf-1", "linear-nan"}
    events = EventAccumulator(str(trials / "a" / "rbf-0.1"))
    events.Reload()
    start = HParamsPluginData.FromString(events.SummaryMetadata("_hparams_/session_start_info").plugin_data.content)
    given = {name: value.string_value or value.number_value for name, value in start.session_start_info.hparams.items()}
    assert given == {"depth": 6, "kernel": "rbf", "domain": "a", "temperature": 0.1}
    assert read(trials / "a" / "rbf-0.1")["td_loss"] == [(0, 2.0)]


def test_training_curves_have_the_optimiser_steps(tmp_path: Path) -> None:
    training = pd.DataFrame(
        {
            "kernel": "rbf",
            "domain": "a",
            "step": [0, 1, 2],
            "train_loss": [4.0, 3.0, 2.0],
            "validation_loss": [np.nan, 2.5, np.nan],
            "temperature": 0.5,
        }
    )
    log_training(Folder.open(tmp_path), training)
    curves = read(tmp_path / "tensorboard/train/a")
    assert curves["rbf/train_loss"] == [(0, 4.0), (1, 3.0), (2, 2.0)]
    assert curves["rbf/validation_loss"] == [(1, 2.5)]


def test_transfer_has_gaps_over_all_tiers_and_the_figures(tmp_path: Path) -> None:
    matrix = pd.DataFrame(
        {
            "kernel": "rbf",
            "tier": ["all", "high"],
            "source": "a",
            "target": "b",
            "gap": [1.5, 9.0],
            "td_loss": 0.25,
            "divergence_rate": 0.0,
        }
    )
    log_transfer(Folder.open(tmp_path), matrix, {"matrix": Figure(figsize=(1, 1))})
    assert read(tmp_path / "tensorboard/transfer/a")["rbf_gap/b"] == [(0, 1.5)]
    events = EventAccumulator(str(tmp_path / "tensorboard/transfer/figures"))
    events.Reload()
    assert events.Tags()["images"] == ["matrix"]
