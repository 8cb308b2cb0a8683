"""Adaptive against fixed: tables worked by hand, and rows computed by the adaptive model itself."""

import numpy as np
import pandas as pd
import pytest
import torch

from icrl.adaptive import evaluate_adaptive, fit_gate, log_excess
from icrl.adaptive_rows import OTHERS, adaptive_rows, target_gates
from icrl.adaptive_summary import adaptive_summary, best_fixed, over_domains
from icrl.config import ExperimentConfig
from icrl.contexts import draw_contexts
from icrl.metrics import td_errors
from icrl.tables import ADAPTIVE, BANK
from icrl.types import Episode


def tables() -> tuple[pd.DataFrame, pd.DataFrame]:
    """Two tasks; δ = 1 is best on average (3), δ = 2 on the first task, and δ = 3 would be best but diverges once."""
    losses = {1.0: (4.0, 2.0), 2.0: (1.0, 9.0), 3.0: (0.5, 0.5)}
    names = {"kernel": "rbf", "target": "a", "tier": "high", "context": 0}
    bank = pd.DataFrame(
        [
            names
            | {"task_seed": task, "temperature": delta, "td_loss": loss[task], "diverged": (delta, task) == (3, 1)}
            for delta, loss in losses.items()
            for task in (0, 1)
        ]
    ).reindex(columns=list(BANK))
    adaptive = pd.DataFrame(
        [
            names | {"rule": rule, "source": OTHERS, "task_seed": task, "td_loss": loss, "diverged": False}
            for rule, loss in (("stacked", 2.0), ("hard", 3.0))
            for task in (0, 1)
        ]
    ).reindex(columns=list(ADAPTIVE))
    return adaptive, bank


def test_the_best_fixed_temperature_is_best_for_the_domain_and_never_diverges() -> None:
    fixed = best_fixed(tables()[1]).sort_values("task_seed")
    assert list(fixed["fixed_temperature"]) == [1.0, 1.0]
    assert list(fixed["fixed_td_loss"]) == [4.0, 2.0]


def test_the_ratio_is_that_of_the_means_with_its_paired_interval() -> None:
    summary = adaptive_summary(*tables(), np.random.default_rng(0), num_resamples=500).set_index("rule")
    row = summary.loc["stacked"]
    assert row["ratio"] == pytest.approx(2 / 3)
    # Resamples of two tasks: ratios 2/4, 2/2 and 2/3.
    assert (row["ratio_low"], row["ratio_high"]) == pytest.approx((0.5, 1.0))
    assert summary.loc["hard", "ratio"] == pytest.approx(1.0)
    table = over_domains(summary.reset_index()).set_index("rule")
    assert table.loc["stacked", "worst_domain"] == "a"
    assert table.loc["stacked", "median"] == pytest.approx(2 / 3)


def test_a_diverged_context_is_counted_and_enters_neither_mean() -> None:
    adaptive, bank = tables()
    adaptive.loc[0, ["td_loss", "diverged"]] = [np.nan, True]
    summary = adaptive_summary(adaptive, bank, np.random.default_rng(0), num_resamples=100).set_index("rule")
    assert summary.loc["stacked", "ratio"] == pytest.approx(2 / 2)
    assert summary.loc["stacked", "divergence_rate"] == 0.5


def test_without_a_kernel_with_a_temperature_there_is_nothing_to_compare() -> None:
    nothing = pd.DataFrame(columns=list(ADAPTIVE)), pd.DataFrame(columns=list(BANK))
    summary = adaptive_summary(*nothing, np.random.default_rng(0), num_resamples=100)
    assert summary.empty
    assert over_domains(summary).empty


def test_rows_are_what_the_adaptive_model_says_under_each_gate() -> None:
    config = ExperimentConfig.model_validate(
        {"domains": ["a", "b"], "model": {"kernels": ["rbf", "linear"], "depth": 8}, "discount": 0.8}
    )
    rng = np.random.default_rng(2)
    episode = Episode(
        "a",
        "high",
        3,
        0,
        rng.normal(size=(61, 4)).astype(np.float32),
        np.zeros((60, 2), np.float32),
        rng.uniform(size=60),
        np.zeros(60, np.bool_),
        np.arange(60) == 59,
        np.zeros(60, np.bool_),
    )
    context, heldout = draw_contexts(
        [episode], num_contexts=2, context_length=30, num_heldout=20, discount=0.8, generator=rng
    )
    profiles = pd.DataFrame(
        [
            {"kernel": "rbf", "domain": domain, "temperature": delta, "task_seed": 0, "td_loss": loss}
            for domain, losses in {"a": (1.0, 1.5, 2.0), "b": (3.0, 1.0, 1.2)}.items()
            for delta, loss in zip((0.3, 1.0, 3.0), losses, strict=True)
        ]
    )
    excess = log_excess(profiles, "rbf", [0.3, 1.0, 3.0])
    adaptive, bank = adaptive_rows(config, target_gates({"rbf": excess}, config.domains, "a"), context, heldout)
    assert len(bank) == 3 * 2
    # Stacked under the others, a and b; hard and soft under the others alone.
    assert len(adaptive) == (3 + 2) * 2
    held = heldout.transitions
    queries = torch.cat([held.observation, held.next_observation], dim=1)
    for source, teachers in ((OTHERS, ["b"]), ("a", ["a"]), ("b", ["b"])):
        result = evaluate_adaptive(
            context,
            queries,
            kernel="rbf",
            gate=fit_gate(excess, teachers),
            step_fraction=torch.ones(8),
            discount=0.8,
        )
        error = td_errors(held.reward, result.value[:, :20], result.value[:, 20:], held.terminated, 0.8)
        rows = adaptive[(adaptive["rule"] == "stacked") & (adaptive["source"] == source)].sort_values("context")
        np.testing.assert_allclose(rows["td_loss"], error.square().mean(-1), rtol=1e-5)
