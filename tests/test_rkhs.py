"""RKHS groups: profiles worked by hand, and every partition tried."""

import itertools
from collections.abc import Iterator

import numpy as np
import pandas as pd
import pytest

from icrl.errors import InputError
from icrl.rkhs import group_domains, profile_summary, temperature_intervals


def summary(loss: list[float], diverged: tuple[int, ...] = ()) -> pd.DataFrame:
    """A profile over δ = 1, 10, 100, …"""
    return pd.DataFrame(
        {
            "kernel": "rbf",
            "domain": "a",
            "temperature": 10.0 ** np.arange(len(loss)),
            "td_loss": loss,
            "divergence_rate": [0.25 if index in diverged else 0.0 for index in range(len(loss))],
        }
    )


def intervals(bounds: dict[str, tuple[float, float]], kernel: str = "rbf") -> pd.DataFrame:
    rows = [{"kernel": kernel, "domain": name, "low": low, "high": high} for name, (low, high) in bounds.items()]
    return pd.DataFrame(rows)


def test_profile_averages_contexts_inside_each_task_and_counts_divergence() -> None:
    rows = [
        # task, context, loss: the mean of task means is (2 + 8) / 2, that of all contexts would be 14 / 4.
        (0, 0, 1.0, False),
        (0, 1, 3.0, False),
        (0, 2, 2.0, False),
        (1, 0, 8.0, False),
        (1, 1, np.nan, True),
    ]
    columns = ["task_seed", "context", "td_loss", "diverged"]
    profiles = pd.DataFrame(rows, columns=columns).assign(kernel="rbf", domain="a", temperature=0.5, td_ratio=0.1)
    row = profile_summary(profiles, np.random.default_rng(0), num_resamples=200).iloc[0]
    assert row["td_loss"] == 5.0
    assert (row["td_loss_low"], row["td_loss_high"]) == (2.0, 8.0)
    assert row["num_tasks"] == 2
    assert row["divergence_rate"] == pytest.approx(0.2)


def test_kernels_without_temperature_have_neither_profile_nor_group() -> None:
    row = {"kernel": "linear", "domain": "a", "temperature": np.nan, "task_seed": 0, "context": 0}
    profiles = pd.DataFrame([row | {"td_loss": 1.0, "td_ratio": 1.0, "diverged": False}])
    table = profile_summary(profiles, np.random.default_rng(0), num_resamples=200)
    assert table.empty
    assert group_domains(temperature_intervals(table, tolerance=0.2)).empty


def test_profile_without_a_column_is_refused() -> None:
    with pytest.raises(InputError, match="td_ratio"):
        profile_summary(summary([1.0]).assign(task_seed=0, context=0), np.random.default_rng(0), num_resamples=200)


def test_interval_ends_are_interpolated_in_logarithms() -> None:
    # The limit is 2. From 1 to 4 the logarithm of the loss crosses it half-way: at 10 ** 1.5 and at 10 ** 2.5.
    row = temperature_intervals(summary([9.0, 4.0, 1.0, 4.0, 9.0]), tolerance=1.0).iloc[0]
    assert row["best_temperature"] == 100.0
    assert (row["low"], row["high"]) == pytest.approx((10**1.5, 10**2.5))
    assert not row["at_edge"]


@pytest.mark.parametrize(
    ("loss", "low", "high", "at_edge"),
    [
        ([1.0, 1.1, 9.0, 1.0], 1.0, 10 ** (1 + np.log(1.2 / 1.1) / np.log(9 / 1.1)), True),
        ([9.0, 1.2, 1.0, 1.2, 9.0], 10.0, 1000.0, False),
        ([1.0, 1.0, 1.0], 1.0, 100.0, True),
        ([0.0, 3.0, 3.0], 1.0, 1.0, True),
    ],
    ids=["second valley is not joined", "ends on the grid", "flat", "best loss of zero"],
)
def test_interval_is_contiguous_around_the_best(loss: list[float], low: float, high: float, at_edge: bool) -> None:
    row = temperature_intervals(summary(loss), tolerance=0.2).iloc[0]
    assert (row["low"], row["high"]) == pytest.approx((low, high))
    assert row["at_edge"] == at_edge


def test_a_temperature_with_a_diverged_context_is_neither_best_nor_served() -> None:
    row = temperature_intervals(summary([0.1, 1.0, 1.1, 9.0], diverged=(0,)), tolerance=0.2).iloc[0]
    assert row["best_temperature"] == 10.0
    assert row["low"] == 10.0


def test_a_domain_that_always_diverged_stands_alone() -> None:
    table = pd.concat([summary([1.0, 2.0], diverged=(0, 1)), summary([1.0, 2.0]).assign(domain="b")])
    found = temperature_intervals(table, tolerance=0.2)
    assert np.isnan(found.set_index("domain").loc["a", "low"])
    groups = group_domains(found).set_index("domain")
    assert groups["group"].to_dict() == {"a": 2, "b": 1}
    assert np.isnan(groups.loc["a", "group_temperature"])


def test_groups_of_a_worked_example() -> None:
    found = group_domains(intervals({"a": (1, 4), "b": (2, 8), "c": (5, 9), "d": (16, 25), "e": (20, 20)}))
    assert found.set_index("domain")["group"].to_dict() == {"a": 1, "b": 1, "c": 2, "d": 3, "e": 3}
    temperature = found.set_index("domain")["group_temperature"]
    assert temperature.to_dict() == pytest.approx(
        {"a": np.sqrt(8), "b": np.sqrt(8), "c": np.sqrt(45), "d": 20.0, "e": 20.0}
    )


def test_kernels_are_grouped_apart() -> None:
    table = pd.concat([intervals({"a": (1, 2), "b": (3, 4)}), intervals({"a": (1, 3), "b": (3, 4)}, kernel="exp")])
    assert group_domains(table).groupby("kernel")["group"].max().to_dict() == {"rbf": 2, "exp": 1}


def partitions(items: list[int]) -> Iterator[list[list[int]]]:
    if not items:
        yield []
        return
    for rest in partitions(items[1:]):
        yield [[items[0]], *rest]
        for index in range(len(rest)):
            yield [*rest[:index], [items[0], *rest[index]], *rest[index + 1 :]]


@pytest.mark.parametrize("seed", range(20))
def test_groups_are_the_fewest_possible(seed: int) -> None:
    rng = np.random.default_rng(seed)
    low = rng.integers(1, 12, size=6)
    high = low + rng.integers(0, 6, size=6)
    found = group_domains(intervals({str(index): (low[index], high[index]) for index in range(6)}))
    for _, group in found.groupby("group"):
        members = group["domain"].astype(int)
        temperature = group["group_temperature"].iloc[0]
        assert low[members].max() <= temperature * (1 + 1e-12)
        assert temperature <= high[members].min() * (1 + 1e-12)
    fewest = min(
        len(partition)
        for partition in partitions(list(range(6)))
        if all(low[i] <= high[j] for part in partition for i, j in itertools.permutations(part, 2))
    )
    assert found["group"].nunique() == fewest
