"""The fast path: kernel TD in weight space, batched over contexts, queries, temperatures and layers.

With the theory's weights the state part of every token stays as it is, so that a forward pass of the transformer is
exactly the recursion

    w_{k+1} = w_k + α_k (r − A w_k),    A = K_ss − γ diag(1 − terminated) K_s's,    v_k(x) = Σ_j κ(x, s_j) w_k[j]

(arXiv 2605.09727; `icrl.kernel_td` states it plainly and is the oracle). All kernel matrices come from one matrix of
inner products or distances and serve all layers.

Shape letters: B contexts, N transitions in a context, Q queries, D numbers in an observation, T temperatures, L depth.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from icrl.config import KernelName
from icrl.errors import InputError
from icrl.kernels import from_similarity, has_temperature, similarity
from icrl.stability import divergence_limit, probed_bound, td_weights
from icrl.types import Transitions


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
) -> None:
    """The one place where contexts and queries are checked before values are computed.

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
    parts = {
        "observations": context.observation[context.mask],
        "successors": context.next_observation[context.mask & ~context.terminated],
        "rewards": context.reward[context.mask],
        "queries": query_BQD,
    }
    for name, numbers in parts.items():
        if not bool(numbers.isfinite().all()):
            raise InputError(f"{name} contain NaN or infinite numbers; remove or mask those transitions")
    if not 0 <= discount < 1:
        raise InputError(f"the discount is {discount:g}, but must lie in [0, 1)")
    if has_temperature(kernel) and not bool(((temperature > 0) & temperature.isfinite()).all()):
        raise InputError(f"a temperature of the {kernel} kernel is not positive and finite; give δ > 0")


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
    check_inputs(context, query_BQD, kernel=kernel, temperature=temperature, discount=discount)
    batch_size, length, num_queries = context.batch_size, context.length, query_BQD.shape[1]
    num_temperatures, depth = torch.broadcast_shapes(temperature.shape, (1, batch_size))[0], step_fraction.shape[-1]
    temperature_TB = temperature.expand(num_temperatures, batch_size)
    step_fraction_TBL = step_fraction.expand(num_temperatures, batch_size, depth)

    mask_BN1 = context.mask.unsqueeze(-1)
    state_BND = context.observation.where(mask_BN1, 0)
    successor_BND = context.next_observation.where(mask_BN1 & ~context.terminated.unsqueeze(-1), 0)
    reward_BN = context.reward.to(state_BND.dtype).where(context.mask, 0)

    rows_BRD = torch.cat([state_BND, successor_BND, query_BQD.to(state_BND.dtype)], dim=1)
    similarity_BRN = similarity(kernel, rows_BRD, state_BND)
    offset_B = similarity_BRN[:, : 2 * length].amax(dim=(-2, -1))
    gram_TBRN = from_similarity(kernel, similarity_BRN, temperature_TB, context.mask, offset_B)

    state_gram, query_gram = gram_TBRN.flatten(0, 1).split([2 * length, num_queries], dim=1)
    live_TBN = (context.mask & ~context.terminated).to(state_BND.dtype).expand(num_temperatures, -1, -1)
    present_TBN = context.mask.to(state_BND.dtype).expand(num_temperatures, -1, -1)
    operator = (
        present_TBN.flatten(0, 1).unsqueeze(-1) * state_gram[:, :length]
        - discount * live_TBN.flatten(0, 1).unsqueeze(-1) * state_gram[:, length:]
    )
    reward = reward_BN.expand(num_temperatures, -1, -1).flatten(0, 1)
    limit = divergence_limit(reward, discount)
    # Masked and terminal rows are no states of the context: their gram rows do not belong to the probe.
    probe_gram = state_gram * torch.cat([present_TBN, live_TBN], dim=-1).flatten(0, 1).unsqueeze(-1)
    bound = probed_bound(operator, probe_gram, reward, limit, depth)
    weight = td_weights(operator, reward, step_fraction_TBL.flatten(0, 1) * bound.unsqueeze(-1))

    value = weight @ query_gram.mT
    diverged = ~(value.detach().abs().amax(dim=(-2, -1)) <= limit)
    shape = (num_temperatures, batch_size)
    value_TBLQ = value.unflatten(0, shape)
    return Evaluation(value=value_TBLQ if every_depth else value_TBLQ[:, :, -1], diverged=diverged.unflatten(0, shape))
