"""Fitted weights survive the way to a file and back, and a damaged file is named."""

from pathlib import Path

import pandas as pd
import pytest
import torch

from icrl.errors import InputError
from icrl.storage import Folder
from icrl.tables import WEIGHTS
from icrl.weights import FittedWeights


@pytest.fixture
def weights() -> FittedWeights:
    temperature = torch.tensor([[0.5, 0.25], [torch.nan, torch.nan]])
    step_fraction = torch.arange(12, dtype=torch.float32).reshape(2, 2, 3) / 12
    return FittedWeights(("rbf", "linear"), ("reach-v3", "push-v3"), temperature, step_fraction)


def test_what_is_saved_is_loaded(weights: FittedWeights, tmp_path: Path) -> None:
    folder = Folder.open(tmp_path)
    weights.save(folder, "w.safetensors")
    loaded = FittedWeights.load(folder, "w.safetensors")
    assert (loaded.kernels, loaded.sources) == (weights.kernels, weights.sources)
    torch.testing.assert_close(loaded.temperature, weights.temperature, equal_nan=True, rtol=0, atol=0)
    torch.testing.assert_close(loaded.step_fraction, weights.step_fraction, rtol=0, atol=0)


def test_the_table_names_every_model(weights: FittedWeights) -> None:
    table = weights.table()
    assert list(table.columns) == list(WEIGHTS)
    pd.testing.assert_series_equal(
        table.set_index(["kernel", "source"]).temperature.loc["rbf"],
        pd.Series([0.5, 0.25], index=pd.Index(["reach-v3", "push-v3"], name="source"), name="temperature"),
    )
    assert table.step_fraction[1] == pytest.approx([3 / 12, 4 / 12, 5 / 12])


@pytest.mark.parametrize("content", [b"", b"\x00" * 7, b"\xff" * 64, b"\x02\0\0\0\0\0\0\0{}"], ids=range(4))
def test_a_damaged_file_is_named(content: bytes, tmp_path: Path) -> None:
    folder = Folder.open(tmp_path)
    folder.write("w.safetensors", content)
    with pytest.raises(InputError, match=r"w\.safetensors is damaged .* run `icrl train` again"):
        FittedWeights.load(folder, "w.safetensors")
