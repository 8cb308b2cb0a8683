"""Transfer gaps predicted from contexts alone, before anything is trained, and how well the prediction ranks them.

Three cheap measures, each a number for a source A and a target B under one kernel:

* `overlap`: what B's contexts lose, on their own folds, at the temperature that A's contexts like best,
  log L_B(δ_A) − min_δ log L_B(δ), with L the mean fold loss of `icrl.adaptive`.
* `alignment`: the same with kernel–target alignment ⟨K, r rᵀ⟩ / (‖K‖ ‖r‖²), K and r centred, instead of the loss:
  log a_B(δ_B) − log a_B(δ_A), with δ where each alignment is largest.
* `norm`: how far the profiles of the RKHS norm of the fixed point lie apart, the mean over δ of
  |log n_A(δ) − log n_B(δ)|, each profile without its mean: domains whose values need the same smoothness run parallel.

Shape letters: B contexts, N transitions in a context, T temperatures, P pairs of domains.
"""

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from icrl.config import ALL_TIERS, KernelName
from icrl.kernels import POSITIVE_SEMIDEFINITE_KERNELS, gram
from icrl.metrics import FloatArray
from icrl.tables import BANK, require_columns
from icrl.types import Transitions

_CORRELATIONS = ["kernel", "measure", "correlation", "correlation_low", "correlation_high", "num_pairs"]

RIDGE = 0.01
"""Regularisation of the fixed point whose norm is taken, as a fraction of the mean of κ(s, s)."""


def context_measures(
    context: Transitions, *, kernel: KernelName, temperature: Tensor, discount: float
) -> tuple[Tensor, Tensor]:
    """Kernel–target alignment and RKHS norm of every context at every temperature.

    The norm is √(wᵀ K w) with (A + ridge) w = r, divided by the root mean square of r. The alignment of softmax, which
    is no reproducing kernel and has no norm, is that of its symmetric part.

    Args:
        context: the transitions.
        kernel: name of a kernel with a temperature.
        temperature: ``[T]``.
        discount: γ.

    Returns:
        Both ``[T, B]``; NaN where all rewards are equal or, for the norm, 0, and for a kernel without an RKHS.
    """
    live_BN = context.mask & ~context.terminated
    delta_T1 = temperature[:, None]
    at_state = gram(kernel, context.observation, context.observation, delta_T1, context.mask)
    at_state = at_state * context.mask.unsqueeze(-1)
    at_successor = gram(kernel, context.next_observation, context.observation, delta_T1, context.mask)
    operator = at_state - discount * at_successor * live_BN.unsqueeze(-1)
    symmetric = (at_state + at_state.mT) / 2
    reward = context.reward.masked_fill(~context.mask, 0)
    count_B1 = context.mask.sum(-1, keepdim=True)
    centred = (reward - reward.sum(-1, keepdim=True) / count_B1).masked_fill(~context.mask, 0)
    alignment = _quadratic(symmetric, centred) / (
        _centre(symmetric, context.mask).norm(dim=(-2, -1)) * _square(centred)
    )

    ridge = RIDGE * at_state.diagonal(dim1=-2, dim2=-1).mean(-1)[..., None, None]
    system = operator + ridge * torch.eye(context.length, dtype=operator.dtype, device=operator.device)
    # Padding has an empty row and no reward, so its weight is 0.
    weight = torch.linalg.solve(system, reward.expand(len(temperature), -1, -1))
    norm = _quadratic(symmetric, weight).clamp_min(0).sqrt() / (_square(reward) / count_B1[:, 0]).sqrt()
    has_norm = (_square(reward) > 0) & (kernel in POSITIVE_SEMIDEFINITE_KERNELS)
    nothing = torch.tensor(torch.nan, dtype=norm.dtype)
    return alignment.where(_square(centred) > 0, nothing), norm.where(has_norm, nothing)


def predict_gaps(bank: pd.DataFrame) -> pd.DataFrame:
    """Every measure for every kernel, source and target.

    Args:
        bank: rows of `icrl.tables.BANK`; held-out losses are not looked at.

    Returns:
        One row a kernel, source, target and measure, without a domain's pair with itself: `predicted`, larger where
        the gap is expected to be larger.
    """
    require_columns(bank, BANK, "the table of the bank's temperatures")
    rows = []
    for kernel, of_kernel in bank.groupby("kernel"):
        means = of_kernel.groupby(["target", "temperature"])[["fold_loss", "alignment", "norm"]].mean()
        loss_DT, alignment_DT, norm_DT = (means[name].unstack("temperature") for name in means)
        with np.errstate(divide="ignore", invalid="ignore"):
            log_loss, log_alignment = np.log(loss_DT.to_numpy()), np.log(alignment_DT.to_numpy())
            log_norm = np.log(norm_DT.to_numpy())
        shape_DT = log_norm - log_norm.mean(axis=1, keepdims=True)
        predicted = {
            "overlap": _loss_at_the_others_best(log_loss),
            "alignment": _loss_at_the_others_best(-log_alignment),
            "norm": np.abs(shape_DT[:, None] - shape_DT[None]).mean(axis=-1),
        }
        domains = list(loss_DT.index)
        rows += [
            (kernel, source, target, measure, matrix[i, j])
            for measure, matrix in predicted.items()
            for i, source in enumerate(domains)
            for j, target in enumerate(domains)
            if i != j
        ]
    return pd.DataFrame(rows, columns=["kernel", "source", "target", "measure", "predicted"])


def rank_correlations(
    predicted: pd.DataFrame, matrix: pd.DataFrame, rng: np.random.Generator, *, num_resamples: int
) -> pd.DataFrame:
    """Spearman's rank correlation between predicted and measured gaps, with an interval over domains.

    Pairs share domains and are not independent, so the bootstrap resamples domains and keeps the pairs of different
    ones among those drawn.

    Args:
        predicted: from `predict_gaps`.
        matrix: from `icrl.transfer.transfer_matrix`; its entries over all tiers count.
        rng: decides the bootstrap.
        num_resamples: number of resamples.

    Returns:
        One row a kernel and measure: `correlation`, `correlation_low`, `correlation_high` (95 % percentile interval),
        `num_pairs`. NaN with fewer than three pairs, or when either side does not vary; no row without a defined pair.
    """
    measured = matrix.loc[matrix["tier"] == ALL_TIERS, ["kernel", "source", "target", "gap"]]
    rows = []
    pairs = predicted.merge(measured, on=["kernel", "source", "target"]).dropna(subset=["predicted", "gap"])
    for (kernel, measure), defined in pairs.groupby(["kernel", "measure"]):
        domains = np.unique(defined[["source", "target"]])
        index = np.full((len(domains), len(domains)), -1)
        index[np.searchsorted(domains, defined["source"]), np.searchsorted(domains, defined["target"])] = range(
            len(defined)
        )
        x, y = defined["predicted"].to_numpy(float), defined["gap"].to_numpy(float)
        resampled = [_resampled_correlation(x, y, index, rng) for _ in range(num_resamples)]
        known = [value for value in resampled if np.isfinite(value)]
        low, high = np.quantile(known, [0.025, 0.975]) if known else (np.nan, np.nan)
        rows.append((kernel, measure, _spearman(x, y), low, high, len(defined)))
    return pd.DataFrame(rows, columns=_CORRELATIONS)


def _loss_at_the_others_best(loss_DT: FloatArray) -> FloatArray:
    """``[source, target]``: what the target loses at the source's best temperature; NaN for unknown profiles."""
    known: NDArray[np.bool_] = np.asarray(np.isfinite(loss_DT).all(axis=1))
    best_D = np.where(known, np.nan_to_num(loss_DT, nan=np.inf).argmin(axis=1), 0)
    lost = (loss_DT - loss_DT.min(axis=1, keepdims=True))[:, best_D].T
    return np.where(known[:, None] & known[None], lost, np.nan)


def _resampled_correlation(
    x_P: FloatArray, y_P: FloatArray, index: NDArray[np.intp], rng: np.random.Generator
) -> float:
    drawn = rng.integers(len(index), size=len(index))
    chosen = index[np.ix_(drawn, drawn)].ravel()
    chosen = chosen[chosen >= 0]
    return _spearman(x_P[chosen], y_P[chosen])


def _spearman(x_P: FloatArray, y_P: FloatArray) -> float:
    if len(x_P) < 3 or np.ptp(x_P) == 0 or np.ptp(y_P) == 0:
        return np.nan
    return float(np.corrcoef(pd.Series(x_P).rank(), pd.Series(y_P).rank())[0, 1])


def _quadratic(matrix: Tensor, vector: Tensor) -> Tensor:
    """vᵀ M v over the last axes."""
    return ((matrix @ vector.unsqueeze(-1)).squeeze(-1) * vector).sum(-1)


def _square(vector: Tensor) -> Tensor:
    return vector.square().sum(-1)


def _centre(matrix: Tensor, mask_BN: Tensor) -> Tensor:
    """H M H with H the projection that removes the mean over unmasked entries."""
    count = mask_BN.sum(-1)[..., None, None]
    rows = matrix.sum(-1, keepdim=True) / count
    columns = matrix.sum(-2, keepdim=True) / count
    centred = matrix - rows - columns + rows.sum(-2, keepdim=True) / count
    return centred * mask_BN.unsqueeze(-1) * mask_BN.unsqueeze(-2)
