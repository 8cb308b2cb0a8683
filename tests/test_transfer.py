"""The transfer matrix against gaps worked by hand."""

import numpy as np
import pandas as pd
import pytest

from icrl.errors import InputError
from icrl.transfer import own_summary, transfer_matrix

LOSS = {
    # (source, target, tier): TD loss of task 0 and of task 1, alike for both contexts.
    ("a", "a", "low"): (1.0, 3.0),
    ("b", "a", "low"): (2.0, 6.0),
    ("b", "b", "low"): (2.0, 2.0),
    ("a", "b", "low"): (1.0, 5.0),
    ("a", "a", "high"): (10.0, 10.0),
    ("b", "a", "high"): (30.0, 30.0),
    ("b", "b", "high"): (4.0, 4.0),
    ("a", "b", "high"): (4.0, 4.0),
}


def cells(kernel: str = "rbf") -> pd.DataFrame:
    rows = [
        {
            "kernel": kernel,
            "source": source,
            "target": target,
            "tier": tier,
            "task_seed": task,
            "context": context,
            "temperature": 0.1,
            "td_loss": loss,
            "td_ratio": loss / 10,
            "value_error": 1 - loss / 10,
            "diverged": False,
        }
        for (source, target, tier), losses in LOSS.items()
        for task, loss in enumerate(losses)
        for context in range(2)
    ]
    return pd.DataFrame(rows)


def entry(table: pd.DataFrame, **key: str) -> pd.Series:
    chosen = table[(table[list(key)] == pd.Series(key)).all(axis=1)]
    assert len(chosen) == 1
    return chosen.iloc[0]


def diverge(table: pd.DataFrame, **key: object) -> pd.DataFrame:
    hit = (table[list(key)] == pd.Series(key)).all(axis=1)
    assert hit.sum() == 1
    table.loc[hit, ["td_loss", "td_ratio", "value_error"]] = np.nan
    table.loc[hit, "diverged"] = True
    return table


@pytest.mark.parametrize(
    ("source", "target", "tier", "gap", "low", "high"),
    [
        ("a", "a", "low", 1.0, 1.0, 1.0),
        ("b", "a", "low", 2.0, 2.0, 2.0),
        ("a", "b", "low", 1.5, 0.5, 2.5),
        ("b", "a", "high", 3.0, 3.0, 3.0),
        # All tasks of all tiers: (1 + 5 + 4 + 4) / (2 + 2 + 4 + 4), not the mean of 1.5 and 1.
        ("a", "b", "all", 14 / 12, None, None),
    ],
)
def test_gap_is_the_ratio_of_means(
    source: str, target: str, tier: str, gap: float, low: float | None, high: float | None
) -> None:
    matrix = transfer_matrix(cells(), np.random.default_rng(0), num_resamples=500)
    found = entry(matrix, source=source, target=target, tier=tier)
    assert found["gap"] == pytest.approx(gap)
    if low is not None:
        assert (found["gap_low"], found["gap_high"]) == pytest.approx((low, high))
    assert found["divergence_rate"] == 0


def test_every_kernel_tier_source_and_target_has_one_entry() -> None:
    both = pd.concat([cells("rbf"), cells("linear")])
    matrix = transfer_matrix(both, np.random.default_rng(0), num_resamples=100)
    assert len(matrix) == 2 * 3 * 2 * 2
    assert not matrix.duplicated(["kernel", "tier", "source", "target"]).any()


def test_a_diverged_context_is_counted_and_leaves_both_means() -> None:
    table = cells()
    # Without its second context, task 0 keeps its loss under either weights; task 1 is left as it was.
    table.loc[(table["task_seed"] == 0) & (table["context"] == 1) & (table["source"] == "b"), "td_loss"] = 100.0
    table = diverge(table, source="a", target="b", tier="low", task_seed=0, context=1)
    matrix = transfer_matrix(table, np.random.default_rng(0), num_resamples=100)
    found = entry(matrix, source="a", target="b", tier="low")
    assert found["gap"] == pytest.approx((1 + 5) / (2 + 2))
    assert found["divergence_rate"] == 0.25
    assert found["num_contexts"] == 4
    assert entry(matrix, source="b", target="b", tier="low")["divergence_rate"] == 0


def test_a_context_on_which_own_weights_diverged_leaves_both_means() -> None:
    table = cells()
    table.loc[(table["task_seed"] == 0) & (table["context"] == 1) & (table["source"] == "a"), "td_loss"] = 100.0
    table = diverge(table, source="b", target="b", tier="low", task_seed=0, context=1)
    matrix = transfer_matrix(table, np.random.default_rng(0), num_resamples=100)
    found = entry(matrix, source="a", target="b", tier="low")
    assert found["gap"] == pytest.approx((1 + 5) / (2 + 2))
    assert found["divergence_rate"] == 0


def test_a_cell_that_always_diverged_has_no_gap() -> None:
    table = cells()
    for task in range(2):
        for context in range(2):
            table = diverge(table, source="a", target="b", tier="low", task_seed=task, context=context)
    matrix = transfer_matrix(table, np.random.default_rng(0), num_resamples=100)
    found = entry(matrix, source="a", target="b", tier="low")
    assert np.isnan(found[["gap", "gap_low", "gap_high", "td_loss"]].to_numpy(float)).all()
    assert found["divergence_rate"] == 1


def test_target_without_own_weights_is_refused() -> None:
    table = cells()
    with pytest.raises(InputError, match="no rbf weights fitted on b"):
        transfer_matrix(
            table[(table["source"] != "b") | (table["target"] != "b")], np.random.default_rng(0), num_resamples=100
        )


def test_own_summary_averages_own_weights_alone() -> None:
    table = own_summary(cells(), np.random.default_rng(0), num_resamples=500)
    low = entry(table, domain="a", tier="low")
    assert low["td_loss"] == 2.0
    assert (low["td_loss_low"], low["td_loss_high"]) == (1.0, 3.0)
    assert low["value_error"] == pytest.approx(0.8)
    pooled = entry(table, domain="a", tier="all")
    assert pooled["td_loss"] == 6.0
    assert pooled["num_tasks"] == 4
    assert pooled["divergence_rate"] == 0
