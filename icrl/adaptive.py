"""One model for every domain: the temperature is chosen inside the context, by weights that never change.

The theory (arXiv 2605.09727) gives a head pair one fixed temperature δ; a domain of another smoothness then needs
another model. Here one forward pass holds a bank of T temperatures, and the context itself says how to combine them.
Everything stays inside the forward pass and needs no more than attention offers:

1. *Folds.* The context is cut into K blocks. For every δ and fold, a head pair whose mask hides the fold's keys runs
   kernel TD on the rest, and the fold's transitions get the TD errors e_t[j] that they had no part in. This is theory:
   each head pair is kernel TD on a smaller context.
2. *Bank.* For every δ a head pair runs kernel TD on the whole context and writes the queries' values v_t. Theory too.
3. *Gate.* Weights w on the simplex combine the values, v = Σ_t w_t v_t. A TD error is affine in the value, so the
   combination's TD error on the folds is Σ_t w_t e_t exactly, and the best combination is a convex problem:

       minimise  (1 / N) Σ_j (Σ_t w_t e_t[j])² / s  +  (λ / n) KL(w ‖ π),

   where s is the smallest mean square of a single e_t, π what the source domains found useful (`fit_gate`), and
   n = (Σ_j e[j]²)² / Σ_j e[j]⁴ of the best e_t the number of errors that carry the evidence: where few transitions
   decide the loss, the prior decides the choice. Entropic mirror descent solves it, and each of its steps is one
   softmax over the T temperatures. This part is ours, as are its two plainer relatives, the best δ alone (`hard`) and
   a softmax of the folds' losses (`soft`).

What a value may be is known from the context: rewards in [a, b] allow values between a / (1 − γ) and b / (1 − γ), and 0
where an episode ended. What is combined is clipped to this range, so that no temperature can do unbounded harm.

Cost: T (1 + K ((K − 1) / K)²) fixed forward passes when all is counted in N × N products, less what is shared: the
distances behind a fold's kernel matrices are computed once for all temperatures.

Shape letters: B contexts, N transitions in a context, Q queries, D numbers in an observation, T temperatures, L depth.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from icrl.config import KernelName
from icrl.engine import evaluate
from icrl.errors import InputError
from icrl.metrics import td_errors
from icrl.selection import take
from icrl.types import Transitions

Rule = Literal["hard", "soft", "stacked"]
RULES: tuple[Rule, ...] = ("hard", "soft", "stacked")

NUM_FOLDS = 5
MIRROR_STEPS = 60

SOFT_SAMPLES = 40.0
"""How many independent TD errors the `soft` rule takes a context for: fewer than N, since squares are heavy-tailed."""

SHARPNESS = 6.0
"""How sharply a source's loss counts in the prior; docs/adaptive.md says how this and the next were chosen."""

HALF_STRENGTH = 10
"""Number of source domains whose prior has half its full strength: what few domains share is known less surely."""


@dataclass(frozen=True, eq=False)
class Gate:
    """The fixed weights of the choice.

    Attributes:
        temperature: ``[T]``, the bank's δ, ascending.
        log_prior: ``[..., T]``, log π; −inf excludes a temperature. Leading axes stand for several gates at once.
        strength: ``[...]``, λ, at least 0; only the `stacked` rule reads it.
    """

    temperature: Tensor
    log_prior: Tensor
    strength: Tensor


@dataclass(frozen=True, eq=False)
class Bank:
    """What all temperatures say about B contexts and their queries.

    Attributes:
        value: ``[T, B, Q]``, values from the whole context, as each fixed temperature has them.
        value_range: ``[2, B, 1]``, the smallest and largest possible value.
        fold_error: ``[T, B, N]``, TD error of each context transition under clipped values from the other folds; 0 at
            padding.
        mask: ``[B, N]`` bool, false at padding.
        diverged: ``[T, B]`` bool; values left the divergence limit, of the whole context or of a fold.
    """

    value: Tensor
    value_range: Tensor
    fold_error: Tensor
    mask: Tensor
    diverged: Tensor

    @property
    def fold_loss(self) -> Tensor:
        """``[T, B]``, mean squared TD error over the folds."""
        return self.fold_error.square().sum(-1) / self.mask.sum(-1)

    def combine(self, weight: Tensor) -> Tensor:
        """Values ``[..., B, Q]`` under weights ``[..., T, B]`` of the clipped temperatures."""
        clipped_TBQ = self.value.clamp(*self.value_range).masked_fill(self.diverged.unsqueeze(-1), 0)
        return torch.einsum("...tb,tbq->...bq", weight, clipped_TBQ)


@dataclass(frozen=True, eq=False)
class AdaptiveEvaluation:
    """Values under the temperatures that each context chose.

    Attributes:
        value: ``[B, Q]``.
        weight: ``[T, B]``, on the simplex; the share of each temperature.
        diverged: ``[B]`` bool; every temperature diverged.
    """

    value: Tensor
    weight: Tensor
    diverged: Tensor


def log_excess(profiles: pd.DataFrame, kernel: KernelName, temperatures: Sequence[float]) -> pd.DataFrame:
    """Log of every temperature's TD loss over the domain's best: a row a domain, a column a temperature.

    A domain's loss between two temperatures that were searched for it is interpolated linearly in log δ and log loss;
    beyond all of them it is that of the nearest.

    Args:
        profiles: rows of `icrl.tables.PROFILES`; each domain may have temperatures of its own.
        kernel: name of a kernel with a temperature.
        temperatures: δ of the columns, ascending.

    Returns:
        Without domains that have a loss of 0, or a temperature at which every context diverged: they teach no prior.
    """
    of_kernel = profiles[profiles["kernel"] == kernel]
    of_task = of_kernel.groupby(["domain", "temperature", "task_seed"])["td_loss"].mean()
    rows = {}
    for domain, loss in of_task.groupby(["domain", "temperature"]).mean().groupby("domain"):
        if (loss > 0).all():
            searched = np.log(loss.index.get_level_values("temperature").to_numpy())
            log_loss = np.log(loss.to_numpy())
            rows[domain] = np.interp(np.log(temperatures), searched, log_loss) - log_loss.min()
    return pd.DataFrame.from_dict(rows, orient="index", columns=list(temperatures))


def fit_gate(excess: pd.DataFrame, sources: Sequence[str]) -> Gate:
    """The gate of S source domains: log π = −sharpness · mean of log(loss / the source's best loss), λ = S / (S + 10).

    A temperature that costs some sources much keeps little of the prior, whatever it gains on others: losses of single
    contexts do not show this risk, because the transitions that reveal it are rare.

    Args:
        excess: from `log_excess`.
        sources: domains to learn from; when none of them has an excess, the prior is uniform.
    """
    known = excess.to_numpy()[excess.index.isin(sources)]
    mean_T = known.sum(axis=0) / max(len(known), 1)
    log_prior_T = torch.log_softmax(torch.tensor(-SHARPNESS * mean_T), dim=0)
    num_sources = max(len(known), 1)
    return Gate(
        torch.tensor(excess.columns.to_numpy(), dtype=torch.float32),
        log_prior_T.float(),
        torch.tensor(num_sources / (num_sources + HALF_STRENGTH)),
    )


def evaluate_adaptive(
    context: Transitions,
    query_BQD: Tensor,
    *,
    kernel: KernelName,
    gate: Gate,
    step_fraction: Tensor,
    discount: float,
    rule: Rule = "stacked",
    num_folds: int = NUM_FOLDS,
) -> AdaptiveEvaluation:
    """Values of the queries under the combination of temperatures that each context chooses for itself.

    Args:
        context: the transitions.
        query_BQD: ``[B, Q, D]``.
        kernel: name of a kernel with a temperature.
        gate: temperatures and prior.
        step_fraction: ``[L]``, step sizes as fractions of the stability bound, as in `icrl.engine.evaluate`.
        discount: γ.
        rule: how temperatures are combined.
        num_folds: blocks K that the context is cut into, at least 2.

    Raises:
        InputError: see `evaluate_bank`.
    """
    bank = evaluate_bank(
        context,
        query_BQD,
        kernel=kernel,
        temperature=gate.temperature,
        step_fraction=step_fraction,
        discount=discount,
        num_folds=num_folds,
    )
    weight = gate_weights(bank, gate, rule)
    return AdaptiveEvaluation(bank.combine(weight), weight, bank.diverged.all(0))


def evaluate_bank(
    context: Transitions,
    query_BQD: Tensor,
    *,
    kernel: KernelName,
    temperature: Tensor,
    step_fraction: Tensor,
    discount: float,
    num_folds: int = NUM_FOLDS,
) -> Bank:
    """Values of every temperature from the whole context, and TD errors on every fold from the rest of the context.

    Folds are blocks of consecutive transitions: a random draw's blocks are random, and those of a trajectory keep
    near copies of a transition out of the part that predicts it.

    Args:
        context: the transitions.
        query_BQD: ``[B, Q, D]``.
        kernel: name of a kernel with a temperature.
        temperature: ``[T]``.
        step_fraction: ``[L]``.
        discount: γ.
        num_folds: K.

    Raises:
        InputError: a context too short for K folds, and what `icrl.engine.check_inputs` refuses.
    """
    folds = _folds(context, num_folds)
    if num_folds < 2 or not all(bool(context.mask[:, ~fold].any(-1).all()) for fold in folds):
        raise InputError(
            f"with {num_folds} folds a context of {int(context.mask.sum(-1).amin())} transitions has none left beside "
            "a fold; give longer contexts, and at least 2 folds"
        )
    limits = value_range(context, discount)

    def values(part: Transitions, queries: Tensor) -> tuple[Tensor, Tensor]:
        result = evaluate(
            part,
            queries,
            kernel=kernel,
            temperature=temperature[:, None],
            step_fraction=step_fraction[None, None],
            discount=discount,
        )
        return result.value, result.diverged

    value, diverged = values(context, query_BQD)
    errors = []
    for fold in folds:
        heldout, rest = take(context, fold), take(context, ~fold)
        at_both, fold_diverged = values(rest, torch.cat([heldout.observation, heldout.next_observation], dim=1))
        at_both = at_both.clamp(*limits)
        at_state, at_successor = at_both[..., : heldout.length], at_both[..., heldout.length :]
        error = td_errors(heldout.reward, at_state, at_successor, heldout.terminated, discount)
        errors.append(error.masked_fill(~heldout.mask, 0))
        diverged = diverged | fold_diverged
    return Bank(value, limits, torch.cat(errors, dim=-1), context.mask, diverged)


def value_range(context: Transitions, discount: float) -> Tensor:
    """The smallest and largest value ``[2, B, 1]`` that rewards like the context's allow; 0 lies within, for ends."""
    reward = context.reward.masked_fill(~context.mask, 0)
    low_B1, high_B1 = reward.amin(-1, keepdim=True).clamp_max(0), reward.amax(-1, keepdim=True).clamp_min(0)
    return torch.stack([low_B1, high_B1]) / (1 - discount)


def gate_weights(bank: Bank, gate: Gate, rule: Rule = "stacked") -> Tensor:
    """The weights ``[..., T, B]`` that each context gives to the temperatures; 0 for those that diverged.

    A context without any TD error to learn from, such as one whose rewards are all 0, keeps the prior.
    """
    allowed_TB = ~bank.diverged | bank.diverged.all(0)
    log_prior_TB = torch.log_softmax(gate.log_prior.unsqueeze(-1).masked_fill(~allowed_TB, -torch.inf), dim=-2)
    loss_TB = bank.fold_loss.masked_fill(~allowed_TB, torch.inf)
    best_B = loss_TB.amin(0)
    informative_B = best_B > torch.finfo(best_B.dtype).tiny
    if rule == "hard":
        weight_TB = torch.nn.functional.one_hot(loss_TB.argmin(0), len(loss_TB)).to(loss_TB).T
    elif rule == "soft":
        relative_TB = (loss_TB / best_B.where(informative_B, 1)).clamp_min(1)
        weight_TB = torch.softmax(log_prior_TB - SOFT_SAMPLES / 2 * relative_TB.log(), dim=-2)
    else:
        error = bank.fold_error.masked_fill(~allowed_TB.unsqueeze(-1), 0) / bank.mask.sum(-1, keepdim=True).sqrt()
        product_BTT = torch.einsum("tbn,ubn->btu", error, error) / best_B.where(informative_B, 1)[:, None, None]
        square_BN = error[loss_TB.argmin(0), torch.arange(len(best_B))].square()
        evidence_B = (square_BN.sum(-1).square() / square_BN.square().sum(-1)).where(informative_B, 1)
        weight_TB = mirror_descent(product_BTT, log_prior_TB.mT, (gate.strength[..., None] / evidence_B)[..., None]).mT
    return torch.where(informative_B, weight_TB, log_prior_TB.exp())


def mirror_descent(product_BTT: Tensor, log_prior_BT: Tensor, strength: Tensor) -> Tensor:
    """Minimise wᵀ C w + λ KL(w ‖ π) over the simplex by steps that are each one softmax over temperatures.

    A step solves the problem with wᵀ C w replaced by its slope, at a distance KL(w ‖ w_k) / η, which gives
    log w = (log w_k − η · 2 C w_k + η λ log π) / (1 + η λ) up to a constant. The step size η follows the current
    loss, so that temperatures with enormous errors, which lose all weight at once, do not slow down the others.

    Args:
        product_BTT: C, symmetric and positive semidefinite; in units of the best temperature's loss.
        log_prior_BT: ``[..., B, T]``, log π; −inf excludes a temperature.
        strength: λ, broadcastable to ``[..., B, 1]``.

    Returns:
        ``[..., B, T]``; differentiable in all arguments.
    """
    log_weight_BT = torch.log_softmax(log_prior_BT, dim=-1)
    kept_BT = log_prior_BT > -torch.inf
    finite_prior_BT = log_prior_BT.where(kept_BT, 0)
    diagonal_BT = product_BTT.diagonal(dim1=-2, dim2=-1)
    for _ in range(MIRROR_STEPS):
        weight_BT = log_weight_BT.exp()
        slope_BT = 2 * (product_BTT @ weight_BT.unsqueeze(-1)).squeeze(-1)
        rate_B1 = 0.5 / (weight_BT * diagonal_BT).sum(-1, keepdim=True).clamp_min(1e-9)
        pull_BT = log_weight_BT + rate_B1 * (strength * finite_prior_BT - slope_BT)
        log_weight_BT = torch.log_softmax(
            (pull_BT / (1 + rate_B1 * strength)).masked_fill(~kept_BT, -torch.inf), dim=-1
        )
    return log_weight_BT.exp()


def _folds(context: Transitions, num_folds: int) -> list[Tensor]:
    """``[N]`` bool masks of the K blocks, as equal as they can be."""
    fold_N = torch.arange(context.length, device=context.reward.device) * num_folds // context.length
    return [fold_N == fold for fold in range(num_folds)]
