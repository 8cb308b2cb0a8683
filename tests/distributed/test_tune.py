"""Searches that spend less than the grid: what they try, what they keep, and how they go on after a kill."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from ray.tune.search import Searcher

from distributed.search import TemperatureProposer
from distributed.tune import count_trials, search_depths, search_temperatures
from icrl.config import ExperimentConfig
from icrl.storage import Folder

PAIRS = {("rbf", "reach-v3"): 20, ("softmax", "reach-v3"): 20}
BEST = {"rbf": 0.05, "softmax": 2.0}


def loss_at(kernel: str, temperature: float) -> float:
    """A bowl around the kernel's best temperature; hot temperatures diverge."""
    return math.nan if temperature > 8 else math.log(temperature / BEST[kernel]) ** 2


def drive(proposer: TemperatureProposer) -> dict[str, list[float]]:
    """Run every proposal, as Tune would, two at a time."""
    tried: dict[str, list[float]] = {}
    running: list[tuple[str, Any]] = []
    for number in range(1000):
        proposal = proposer.suggest(str(number))
        if proposal != Searcher.FINISHED:
            running.append((str(number), proposal["trial"]))
        if len(running) == 2 or proposal == Searcher.FINISHED:
            if not running:
                return tried
            name, trial = running.pop(0)
            (temperature,) = trial["temperatures"]
            tried.setdefault(trial["kernel"], []).append(temperature)
            proposer.on_trial_complete(name, {"td_loss": loss_at(trial["kernel"], temperature)})
    raise AssertionError("the search never ends")


def test_proposals_find_each_kernels_own_best_temperature() -> None:
    tried = drive(TemperatureProposer((0.01, 10), PAIRS, {}, seed=0))
    for kernel, temperatures in tried.items():
        assert len(temperatures) == 20
        assert all(0.01 <= temperature <= 10 for temperature in temperatures)
        closest = min(temperatures, key=lambda temperature: abs(math.log(temperature / BEST[kernel])))
        assert abs(math.log(closest / BEST[kernel])) < 0.25
        late = np.abs(np.log(np.array(temperatures[10:]) / BEST[kernel])).mean()
        early = np.abs(np.log(np.array(temperatures[:10]) / BEST[kernel])).mean()
        assert late < early


def test_earlier_trials_are_learned_from_and_not_repeated() -> None:
    grid = np.geomspace(0.01, 10, 15)
    finished = {("rbf", "reach-v3"): [(float(t), loss_at("rbf", t)) for t in grid]}
    tried = drive(TemperatureProposer((0.01, 10), {("rbf", "reach-v3"): 5}, finished, seed=0))
    assert len(tried["rbf"]) == 5
    assert all(0.01 < temperature < 0.5 for temperature in tried["rbf"])


def test_a_kernel_without_temperature_gets_its_one_trial() -> None:
    proposer = TemperatureProposer((0.01, 10), {("linear", "reach-v3"): 1}, {}, seed=0)
    assert math.isnan(proposer.suggest("a")["trial"]["temperatures"][0])
    assert proposer.suggest("b") == Searcher.FINISHED


@pytest.mark.parametrize("search", ["optuna", "asha"])
def test_batches_of_temperatures_are_for_the_grid_alone(search: str) -> None:
    with pytest.raises(ValueError, match=f"temperatures_per_trial must be 1 with search {search}"):
        ExperimentConfig.model_validate({"tune": {"search": search, "temperatures_per_trial": 2}})


@pytest.fixture(scope="module")
def small(tiny_config: ExperimentConfig) -> dict[str, Any]:
    """Settings of a search over one domain and eight temperatures."""
    settings = tiny_config.model_dump(mode="json")
    return settings | {
        "domains": ["reach-v3"],
        "model": {"kernels": ["softmax", "linear"], "depth": 8},
        "tune": {"min_temperature": 0.05, "max_temperature": 20, "num_temperatures": 8},
    }


def configured(settings: dict[str, Any], search: str) -> ExperimentConfig:
    return ExperimentConfig.model_validate(settings | {"tune": settings["tune"] | {"search": search}})


def table(profiles: pd.DataFrame) -> pd.DataFrame:
    softmax = profiles[profiles.kernel == "softmax"]
    return softmax.set_index(["temperature", "task_seed", "context"]).sort_index()[["td_loss"]]


@pytest.mark.ray
def test_asha_keeps_a_row_of_every_temperature_and_the_best_at_full_depth(
    finished_run: Folder, small: dict[str, Any], tmp_path: Path
) -> None:
    dataset = finished_run / "dataset"
    grid = search_temperatures(configured(small, "grid"), dataset, Folder.open(tmp_path / "grid"))
    config, folder = configured(small, "asha"), Folder.open(tmp_path / "asha")
    assert search_depths(config) == (2, 4, 8)
    halved = search_temperatures(config, dataset, folder)

    assert table(halved).index.equals(table(grid).index)
    done, total = count_trials(config, folder)
    assert 2 <= done < total == 9
    best = table(grid).groupby("temperature").td_loss.mean().idxmin()
    pd.testing.assert_frame_equal(table(halved).loc[[best]], table(grid).loc[[best]], rtol=1e-4)


@pytest.mark.ray
def test_optuna_goes_on_after_a_kill_and_keeps_what_is_finished(
    finished_run: Folder, small: dict[str, Any], tmp_path: Path
) -> None:
    config, folder = configured(small, "optuna"), Folder.open(tmp_path)
    first = table(search_temperatures(config, finished_run / "dataset", folder))
    assert first.index.get_level_values("temperature").nunique() == 8
    assert count_trials(config, folder) == (9, 9)

    kept = folder.list("trials/softmax")
    for lost in kept[:3]:
        folder.delete(lost)
    assert count_trials(config, folder) == (6, 9)
    again = table(search_temperatures(config, finished_run / "dataset", folder))
    assert again.index.get_level_values("temperature").nunique() == 8
    assert set(kept[3:]) <= set(folder.list("trials/softmax"))
