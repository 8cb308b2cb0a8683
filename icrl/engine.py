"""The fast path: kernel TD in weight space, batched over contexts, queries, temperatures and layers.

With the theory's weights the state part of every token stays as it is, so that a forward pass of the transformer is
exactly the recursion

    w_{k+1} = w_k + α_k (r − A w_k),    A = K_ss − γ diag(1 − terminated) K_s's,    v_k(x) = Σ_j κ(x, s_j) w_k[j]

(arXiv 2605.09727; `icrl.kernel_td` states it plainly and is the oracle). All kernel matrices come from one matrix of
inner products or distances and serve all layers.

Shape letters: B contexts, N transitions in a context, Q queries, D numbers in an observation, T temperatures, L depth.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from icrl.config import KernelName
from icrl.errors import InputError
from icrl.grams import Cleaned, Grams, clean, compute_grams
from icrl.kernels import has_temperature
from icrl.recursion import td_weights
from icrl.stability import divergence_limit, probed_bound
from icrl.types import Transitions

CPU_WORKING_SET_BYTES = 8 * 2**20
CUDA_WORKING_SET_BYTES = 2 * 2**30


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Values of the queries of every context, at every temperature.

    Attributes:
        value: ``[T, B, Q]``, or ``[T, B, L, Q]`` (after layer 1, …, L) when every depth was asked for.
        diverged: ``[T, B]`` bool; a query's value left 10 max|r| / (1 − γ) after some layer, or was not finite.
    """

    value: Tensor
    diverged: Tensor


def check_inputs(
    context: Transitions, query_BQD: Tensor, *, kernel: KernelName, temperature: Tensor, discount: float
) -> Cleaned:
    """The one place where contexts and queries are checked before values are computed.

    Returns:
        The contexts without what padding holds.

    Raises:
        InputError: shapes that do not fit, an empty context, numbers that are not finite, δ ≤ 0, or γ outside [0, 1).
    """
    if context.length == 0 or not bool(context.mask.any(dim=-1).all()):
        raise InputError("a context has no transition; give every context at least one unmasked transition")
    batch_size, state_size = context.batch_size, context.observation.shape[-1]
    if query_BQD.ndim != 3 or query_BQD.shape[0] != batch_size or query_BQD.shape[2] != state_size:
        raise InputError(
            f"queries have shape {tuple(query_BQD.shape)}, but the contexts need [{batch_size}, Q, {state_size}]; "
            "give every context its queries, with states of the contexts' size"
        )
    if context.next_observation.shape != context.observation.shape:
        raise InputError(
            f"successors have shape {tuple(context.next_observation.shape)}, but states "
            f"{tuple(context.observation.shape)}; give every state one successor of the same size"
        )
    cleaned = clean(context)
    parts = (cleaned.state, cleaned.successor, cleaned.reward, query_BQD)
    for name, numbers in zip(("observations", "successors", "rewards", "queries"), parts, strict=True):
        # Smallest and largest are NaN when any number is, and far cheaper than asking every number.
        if numbers.numel() and not all(bool(extreme.isfinite()) for extreme in torch.aminmax(numbers.detach())):
            raise InputError(f"{name} contain NaN or infinite numbers; remove or mask those transitions")
    if not 0 <= discount < 1:
        raise InputError(f"the discount is {discount:g}, but must lie in [0, 1)")
    if has_temperature(kernel) and not bool(((temperature > 0) & temperature.isfinite()).all()):
        raise InputError(f"a temperature of the {kernel} kernel is not positive and finite; give δ > 0")
    return cleaned


def evaluate(
    context: Transitions,
    query_BQD: Tensor,
    *,
    kernel: KernelName,
    temperature: Tensor,
    step_fraction: Tensor,
    discount: float,
    every_depth: bool = False,
) -> Evaluation:
    """Values that kernel TD assigns to the queries after L layers, with steps below the context's stability bound.

    Differentiable in `temperature` and `step_fraction`; the gradient includes the bound's own 1/‖A‖₂.

    Args:
        context: the transitions; masked ones contribute nothing.
        query_BQD: ``[B, Q, D]`` floating; the states whose value is asked for.
        kernel: name of the kernel.
        temperature: δ, broadcasts to ``[T, B]``; its first axis sets T also for kernels that ignore it.
        step_fraction: f_k, broadcasts to ``[T, B, L]``; its last axis sets L. α_k = f_k · (probed bound of
            `icrl.stability`), which rules out divergence at the context's states for fractions in [0, 2].
        discount: γ in [0, 1).
        every_depth: return the values after every layer instead of the last.

    Raises:
        InputError: see `check_inputs`.
    """

    def step_sizes(grams: Grams, fraction_ML: Tensor, limit_M: Tensor) -> Tensor:
        bound_M = probed_bound(
            kernel,
            grams.operator,
            grams.state_gram,
            grams.reward,
            radius=grams.radius,
            limit=limit_M,
            depth=fraction_ML.shape[-1],
        )
        return fraction_ML * bound_M.unsqueeze(-1)

    return _evaluate(context, query_BQD, kernel, temperature, step_fraction, discount, every_depth, step_sizes)


def evaluate_at_step_sizes(
    context: Transitions,
    query_BQD: Tensor,
    *,
    kernel: KernelName,
    temperature: Tensor,
    step_size: Tensor,
    discount: float,
    every_depth: bool = False,
) -> Evaluation:
    """`evaluate` with step sizes α_k themselves, ``[T, B, L]`` or what broadcasts to it; nothing keeps them stable."""

    def step_sizes(grams: Grams, step_ML: Tensor, limit_M: Tensor) -> Tensor:
        return step_ML * grams.scale.unsqueeze(-1)

    return _evaluate(context, query_BQD, kernel, temperature, step_size, discount, every_depth, step_sizes)


def _evaluate(
    context: Transitions,
    query_BQD: Tensor,
    kernel: KernelName,
    temperature: Tensor,
    schedule: Tensor,
    discount: float,
    every_depth: bool,
    step_sizes: Callable[[Grams, Tensor, Tensor], Tensor],
) -> Evaluation:
    """Values by parts of the batch; `step_sizes` makes α_k of (kernel matrices, schedule, divergence limit)."""
    cleaned = check_inputs(context, query_BQD, kernel=kernel, temperature=temperature, discount=discount)
    num_temperatures = temperature.shape[0] if temperature.ndim == 2 else 1
    temperature_TB = temperature.expand(num_temperatures, context.batch_size)
    schedule_TBL = schedule.expand(num_temperatures, context.batch_size, -1)
    size = _contexts_at_once(context, query_BQD.shape[1], num_temperatures)
    values, divergences = [], []
    for start in range(0, context.batch_size, size):
        part = slice(start, start + size)
        grams = compute_grams(
            cleaned[part], query_BQD[part], kernel=kernel, temperature_TB=temperature_TB[:, part], discount=discount
        )
        limit_M = divergence_limit(grams.reward, discount)
        step_ML = step_sizes(grams, schedule_TBL[:, part].flatten(0, 1), limit_M)
        value_MLQ = td_weights(grams.operator, grams.reward, step_ML) @ grams.query_gram.mT
        diverged_M = ~(value_MLQ.detach().abs().amax(dim=(-2, -1)) <= limit_M)
        kept = value_MLQ if every_depth else value_MLQ[:, -1]
        values.append(kept.reshape(num_temperatures, -1, *kept.shape[1:]))
        divergences.append(diverged_M.reshape(num_temperatures, -1))
    return Evaluation(value=torch.cat(values, dim=1), diverged=torch.cat(divergences, dim=1))


def _contexts_at_once(context: Transitions, num_queries: int, num_temperatures: int) -> int:
    """How many contexts to work on at a time, so that their kernel matrices stay in the device's fast memory."""
    numbers = num_temperatures * context.length * (4 * context.length + num_queries)
    budget = CUDA_WORKING_SET_BYTES if context.reward.is_cuda else CPU_WORKING_SET_BYTES
    return max(1, budget // (numbers * context.observation.element_size()))
