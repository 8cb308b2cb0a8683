"""One model or several? The summaries beside the transfer matrix, and what they say in sentences.

They ask three things of a run: what the adaptive model gains over fixed temperatures, how many fixed temperatures the
domains need, and whether contexts alone tell which transfers fail.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from icrl.adaptive_rows import OTHERS
from icrl.adaptive_summary import adaptive_summary, over_domains
from icrl.cover import cover, cover_sizes, tolerance_by_size
from icrl.prediction import predict_gaps, rank_correlations

TOLERANCES = (0.1, 0.2)
"""The ε for which covers are listed with their assignment."""

SHOWN_RULE = "stacked"


@dataclass(frozen=True)
class OneModelSummaries:
    """Summary tables.

    Attributes:
        adaptive: from `icrl.adaptive_summary.adaptive_summary`.
        over_domains: from `icrl.adaptive_summary.over_domains`.
        assignment: from `icrl.cover.cover`, for every ε of `TOLERANCES`.
        sizes: from `icrl.cover.cover_sizes`, likewise.
        prices: from `icrl.cover.tolerance_by_size`.
        predicted: from `icrl.prediction.predict_gaps`.
        correlations: from `icrl.prediction.rank_correlations`.
    """

    adaptive: pd.DataFrame
    over_domains: pd.DataFrame
    assignment: pd.DataFrame
    sizes: pd.DataFrame
    prices: pd.DataFrame
    predicted: pd.DataFrame
    correlations: pd.DataFrame


def summarise_one_model(
    adaptive: pd.DataFrame,
    bank: pd.DataFrame,
    profiles: pd.DataFrame,
    matrix: pd.DataFrame,
    rng: np.random.Generator,
    *,
    num_resamples: int,
) -> OneModelSummaries:
    """All summary tables.

    Args:
        adaptive: rows of `icrl.tables.ADAPTIVE`.
        bank: rows of `icrl.tables.BANK`.
        profiles: from `icrl.rkhs.profile_summary`.
        matrix: from `icrl.transfer.transfer_matrix`.
        rng: decides the bootstraps.
        num_resamples: bootstrap resamples.
    """
    against_fixed = adaptive_summary(adaptive, bank, rng, num_resamples=num_resamples)
    predicted = predict_gaps(bank)
    return OneModelSummaries(
        adaptive=against_fixed,
        over_domains=over_domains(against_fixed),
        assignment=pd.concat([cover(profiles, tolerance=tolerance) for tolerance in TOLERANCES]),
        sizes=cover_sizes(profiles, TOLERANCES),
        prices=tolerance_by_size(profiles),
        predicted=predicted,
        correlations=rank_correlations(predicted, matrix, rng, num_resamples=num_resamples),
    )


def describe_one_model(summaries: OneModelSummaries) -> list[str]:
    """The findings as sentences, one or more a kernel."""
    sentences = []
    for row in summaries.over_domains.to_dict("records"):
        if row["rule"] == SHOWN_RULE:
            sentences.append(
                f"One adaptive {row['kernel']} model, its prior taught by the other domains, has a TD loss of "
                f"{row['median']:.2f} times (median) and at worst {row['worst']:.2f} times ({row['worst_domain']}) "
                f"that of the best fixed temperature of each of {row['num_domains']} domains."
            )
    for row in summaries.sizes.to_dict("records"):
        sentences.append(
            f"With {row['kernel']}, {row['num_models']} fixed "
            f"{'temperature keeps' if row['num_models'] == 1 else 'temperatures keep'} every domain within "
            f"{row['tolerance']:.0%} of its best."
        )
    for kernel, measures in summaries.correlations.dropna(subset="correlation").groupby("kernel"):
        best = measures.sort_values("correlation").to_dict("records")[-1]
        verdict = "" if best["correlation_low"] > 0 else ", which is no evidence that contexts alone predict them"
        sentences.append(
            f"Before any training, {best['measure']} ranks the {kernel} transfer gaps with a correlation of "
            f"{best['correlation']:.2f} ({best['correlation_low']:.2f}–{best['correlation_high']:.2f}){verdict}."
        )
    return sentences


def shown_adaptive(summaries: OneModelSummaries) -> pd.DataFrame:
    """Rows of the adaptive summary for the rule and the prior that are shown."""
    adaptive = summaries.adaptive
    return adaptive[(adaptive["rule"] == SHOWN_RULE) & (adaptive["source"] == OTHERS)]
