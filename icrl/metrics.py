"""What is measured: TD loss, its ratio to the best constant, value error, and intervals over tasks.

All functions are pure. Shape letters: B contexts, H transitions held out of a context, Q states, K tasks. The last axis
is always the one that is averaged; every axis before it broadcasts. Values of several temperatures ``[T, B, H]``
therefore go with a reward ``[B, H]``, and values of every layer ``[M, B, L, H]`` with a reward ``[B, 1, H]``.

A metric that is undefined is NaN, never 0. A context that diverged is to be counted and left out of every mean.
"""

import warnings
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

REWARD_RESOLUTION = 1e-7
"""Rewards that differ by less than this share of the largest one are the same number in single precision."""


def td_errors(
    reward: torch.Tensor,
    value: torch.Tensor,
    next_value: torch.Tensor,
    terminated: torch.Tensor,
    discount: float,
) -> torch.Tensor:
    """TD errors r + γ v(s') − v(s), where v(s') is 0 at a terminal s'.

    Args:
        reward: ``[..., H]`` floating, r.
        value: ``[..., H]`` floating, v(s).
        next_value: ``[..., H]`` floating, v(s').
        terminated: ``[..., H]`` bool, whether s' is terminal.
        discount: γ.

    Returns:
        ``[..., H]``, differentiable in both values.
    """
    return reward + discount * next_value.masked_fill(terminated, 0.0) - value


def td_loss(
    reward: torch.Tensor,
    value: torch.Tensor,
    next_value: torch.Tensor,
    terminated: torch.Tensor,
    mask: torch.Tensor,
    discount: float,
) -> torch.Tensor:
    """Mean squared TD error over the transitions of each context that are not padding.

    Args:
        reward: ``[..., H]`` floating.
        value: ``[..., H]`` floating, v(s).
        next_value: ``[..., H]`` floating, v(s').
        terminated: ``[..., H]`` bool.
        mask: ``[..., H]`` bool, false at padding.
        discount: γ.

    Returns:
        ``[...]`` without the last axis, differentiable in both values; NaN for a context of padding alone.
    """
    return _masked_mean(td_errors(reward, value, next_value, terminated, discount).square(), mask)


def td_ratio(
    loss: torch.Tensor, reward: torch.Tensor, terminated: torch.Tensor, mask: torch.Tensor, discount: float
) -> torch.Tensor:
    """TD loss relative to that of the best constant value function on the same transitions; 1 is no better than it.

    A constant c has TD error r − (1 − γ) c, and r − c where s' is terminal, since a terminal state's value is 0. The
    best c follows by least squares. Without terminal transitions its TD loss is the variance of the reward.

    Args:
        loss: ``[...]`` TD loss on these transitions.
        reward: ``[..., H]`` floating.
        terminated: ``[..., H]`` bool.
        mask: ``[..., H]`` bool, false at padding.
        discount: γ.

    Returns:
        ``[...]`` with the dtype of `loss`; NaN where a constant is exact, as for a reward without variance.
    """
    target = torch.where(mask, reward, 0.0).double()
    factor = torch.where(mask, 1.0 - discount * (~terminated).double(), 0.0)
    best = (factor * target).sum(-1, keepdim=True) / factor.square().sum(-1, keepdim=True)
    constant_loss = _masked_mean((target - factor * best).square(), mask)
    resolution = REWARD_RESOLUTION * target.abs().amax(-1)
    undefined = constant_loss <= resolution.square()
    return (loss.double() / constant_loss).masked_fill(undefined, torch.nan).to(loss.dtype)


def value_error(value: torch.Tensor, returns: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Centred explained variance 1 − Var(G − v) / Var(G) of values against Monte-Carlo returns G.

    1 is perfect, 0 is no better than a constant, below 0 is worse. An offset common to all values cancels.

    Args:
        value: ``[..., Q]`` floating, v.
        returns: ``[..., Q]`` floating, G; anything where `mask` is false.
        mask: ``[..., Q]`` bool, true for states that have a return.

    Returns:
        ``[...]``; NaN where the returns do not vary, as with fewer than two states.
    """
    residual_variance = _masked_variance(returns - value, mask)
    return_variance = _masked_variance(returns, mask)
    resolution = REWARD_RESOLUTION * torch.where(mask, returns, 0.0).abs().amax(-1)
    undefined = return_variance <= resolution.square()
    return (1.0 - residual_variance / return_variance).masked_fill(undefined, torch.nan)


@dataclass(frozen=True)
class Interval:
    """An estimate with its interval over tasks; all three have the same shape, and NaN marks what is undefined."""

    estimate: FloatArray
    low: FloatArray
    high: FloatArray


def mean_interval(
    task_values: FloatArray, rng: np.random.Generator, *, num_resamples: int, confidence: float = 0.95
) -> Interval:
    """Mean over tasks with its percentile bootstrap interval; tasks are resampled, so contexts are averaged before.

    Args:
        task_values: ``[..., K]``, one number a task; tasks whose number is NaN are left out.
        rng: decides the resamples, which all leading indices share.
        num_resamples: number of resamples.
        confidence: probability that the interval is to cover the mean.

    Returns:
        Arrays of shape ``[...]``; the bounds are NaN with fewer than two tasks or when a resample holds only NaN.
    """
    return ratio_interval(
        task_values, np.ones_like(task_values), rng, num_resamples=num_resamples, confidence=confidence
    )


def ratio_interval(
    numerator: FloatArray,
    denominator: FloatArray,
    rng: np.random.Generator,
    *,
    num_resamples: int,
    confidence: float = 0.95,
) -> Interval:
    """Ratio of two means over the same tasks with its paired percentile bootstrap interval.

    Args:
        numerator: ``[..., K]``, one number a task.
        denominator: ``[..., K]``, one number for each of the same tasks. A task with NaN in either is left out.
        rng: decides the resamples, which all leading indices share.
        num_resamples: number of resamples.
        confidence: probability that the interval is to cover the ratio.

    Returns:
        Arrays of shape ``[...]``; the bounds are NaN with fewer than two tasks or when a resample holds only NaN.
    """
    estimate = np.asarray(_ratio_of_sums(numerator, denominator))
    if numerator.shape[-1] < 2:
        undefined = np.full_like(estimate, np.nan)
        return Interval(estimate, undefined, undefined)
    # Imported here: it takes longer to load than most workers, which never resample, take for their work.
    from scipy import stats

    with warnings.catch_warnings():
        # Bounds that are NaN say the same.
        warnings.simplefilter("ignore", stats.DegenerateDataWarning)
        result = stats.bootstrap(
            (numerator, denominator),
            _ratio_of_sums,
            paired=True,
            vectorized=True,
            axis=-1,
            n_resamples=num_resamples,
            confidence_level=confidence,
            method="percentile",
            random_state=rng,
        )
    return Interval(estimate, np.asarray(result.confidence_interval.low), np.asarray(result.confidence_interval.high))


def _ratio_of_sums(numerator: FloatArray, denominator: FloatArray, axis: int = -1) -> FloatArray:
    defined = ~(np.isnan(numerator) | np.isnan(denominator))
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio: FloatArray = np.sum(numerator, axis, where=defined) / np.sum(denominator, axis, where=defined)
    return ratio


def _masked_mean(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return torch.where(mask, values, 0.0).sum(-1) / mask.sum(-1)


def _masked_variance(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    mean = _masked_mean(values, mask).unsqueeze(-1)
    return _masked_mean((values - mean).square(), mask)
