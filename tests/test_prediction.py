"""Measures from contexts alone against NumPy; predictions and their rank correlation on tables worked by hand."""

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats

from icrl.kernel_td import kappa
from icrl.prediction import RIDGE, context_measures, predict_gaps, rank_correlations
from icrl.tables import BANK
from icrl.types import Transitions

DISCOUNT = 0.9
DELTA = torch.tensor([0.5, 2.0], dtype=torch.float64)


def random_context(padding: int = 3) -> Transitions:
    generator = torch.Generator().manual_seed(0)
    draw = torch.randn(2, 12, 7, generator=generator, dtype=torch.float64)
    mask = torch.ones(2, 12, dtype=torch.bool)
    mask[1, 12 - padding :] = False
    return Transitions(draw[..., :3], draw[..., 6], draw[..., 3:6], draw[..., 0] > 1, mask)


def test_alignment_and_norm_are_those_of_their_formulas() -> None:
    context = random_context()
    alignment, norm = context_measures(context, kernel="rbf", temperature=DELTA, discount=DISCOUNT)
    for index in range(2):
        kept = context.mask[index]
        state, successor = context.observation[index][kept], context.next_observation[index][kept]
        reward = context.reward[index][kept].numpy()
        live = (~context.terminated[index][kept]).double().numpy()[:, None]
        for t, delta in enumerate(DELTA):
            gram = kappa("rbf", state, state, float(delta)).numpy()
            operator = gram - DISCOUNT * live * kappa("rbf", successor, state, float(delta)).numpy()
            weight = np.linalg.solve(operator + RIDGE * np.eye(len(gram)), reward)
            expected = np.sqrt(weight @ gram @ weight / np.mean(reward**2))
            # Padding enters the ridge's scale, not the system.
            if index == 0:
                assert norm[t, index].item() == pytest.approx(expected, rel=1e-9)
            centre = np.eye(len(gram)) - 1 / len(gram)
            centred, target = centre @ gram @ centre, centre @ reward
            expected = target @ centred @ target / (np.linalg.norm(centred) * (target @ target))
            assert alignment[t, index].item() == pytest.approx(expected, rel=1e-9)


def test_measures_are_undefined_where_rewards_say_nothing_or_there_is_no_rkhs() -> None:
    context = random_context()
    context.reward[0] = 0
    alignment, norm = context_measures(context, kernel="rbf", temperature=DELTA, discount=DISCOUNT)
    assert alignment[:, 0].isnan().all()
    assert norm[:, 0].isnan().all()
    assert alignment[:, 1].isfinite().all()
    assert context_measures(context, kernel="softmax", temperature=DELTA, discount=DISCOUNT)[1].isnan().all()


def bank(loss: dict[str, list[float]]) -> pd.DataFrame:
    """One context a domain; alignment is the inverse of the loss, the norm its square."""
    rows = [
        {"kernel": "rbf", "target": domain, "temperature": 10.0**index, "fold_loss": value}
        for domain, values in loss.items()
        for index, value in enumerate(values)
    ]
    table = pd.DataFrame(rows)
    table = table.assign(alignment=1 / table["fold_loss"], norm=table["fold_loss"] ** 2)
    return table.reindex(columns=list(BANK))


def test_predictions_of_two_domains_worked_by_hand() -> None:
    predicted = predict_gaps(bank({"a": [1.0, 2, 8], "b": [6.0, 3, 1]})).set_index(["measure", "source", "target"])
    table = predicted["predicted"]
    # b's best is the third temperature, where a loses 8; a's best is the first, where b loses 6.
    for measure in ("overlap", "alignment"):
        assert table[measure, "b", "a"] == pytest.approx(np.log(8))
        assert table[measure, "a", "b"] == pytest.approx(np.log(6))
    shapes = [2 * np.log(values) for values in ([1, 2, 8], [6, 3, 1])]
    distance = np.abs((shapes[0] - shapes[0].mean()) - (shapes[1] - shapes[1].mean())).mean()
    assert table["norm", "a", "b"] == table["norm", "b", "a"] == pytest.approx(distance)


def test_a_domain_with_an_unknown_profile_has_no_prediction() -> None:
    predicted = predict_gaps(bank({"a": [1.0, 2], "b": [2.0, 1], "lost": [1.0, np.nan]}))
    unknown = predicted[(predicted["source"] == "lost") | (predicted["target"] == "lost")]
    assert unknown["predicted"].isna().all()
    assert predicted["predicted"].notna().sum() == 3 * 2


def test_rank_correlation_is_spearmans_and_its_interval_tells_signal_from_noise() -> None:
    rng = np.random.default_rng(0)
    domains = [f"d{index}" for index in range(12)]
    pairs = pd.DataFrame([(a, b) for a in domains for b in domains if a != b], columns=["source", "target"])
    gap = rng.lognormal(size=len(pairs))
    signal = gap * rng.lognormal(sigma=0.5, size=len(pairs))
    predicted = pd.concat(
        [
            pairs.assign(kernel="rbf", measure="signal", predicted=signal),
            pairs.assign(kernel="rbf", measure="noise", predicted=rng.normal(size=len(pairs))),
            pairs.assign(kernel="rbf", measure="constant", predicted=1.0),
        ]
    )
    matrix = pairs.assign(kernel="rbf", tier="all", gap=gap)
    table = rank_correlations(predicted, matrix, rng, num_resamples=200)
    result = table.set_index("measure").to_dict("index")
    expected = stats.spearmanr(signal, gap).statistic
    assert result["signal"]["correlation"] == pytest.approx(expected)
    assert 0.5 < result["signal"]["correlation_low"] < expected < result["signal"]["correlation_high"] < 1
    assert result["noise"]["correlation_low"] < 0 < result["noise"]["correlation_high"]
    assert np.isnan(result["constant"]["correlation"])
    assert (table["num_pairs"] == 12 * 11).all()
