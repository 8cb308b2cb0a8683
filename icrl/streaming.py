"""Kernel TD on contexts too long for an N × N matrix: gram matrices are made row block by row block, and made again.

Memory is linear in the context length N; time stays quadratic, once for every layer but the first. The values are
those of `icrl.engine.evaluate_at_step_sizes`.

Shape letters: B contexts, N transitions in a context, Q queries, R rows of a block, L depth.
"""

import torch
from torch import Tensor

from icrl.config import KernelName
from icrl.engine import Evaluation, check_inputs
from icrl.grams import clean
from icrl.kernels import gram
from icrl.stability import divergence_limit
from icrl.types import Transitions

BLOCK_BYTES = 64 * 2**20
"""Size of one block of a gram matrix; a handful of such blocks exist at a time."""


def safe_step_size(context: Transitions, *, kernel: KernelName, discount: float) -> Tensor:
    """``[B]``: a step size below 1 / ‖A‖₂ that needs no gram matrix.

    ‖A‖₂ ≤ √(‖A‖₁ ‖A‖_∞), and no entry of A exceeds (1 + γ) max κ. For softmax, whose rows sum to 1, this gives
    1 / ((1 + γ) √N), for the others 1 / ((1 + γ) N max κ). Smaller, often far smaller, than the probed bound of
    `icrl.stability`, and without its guarantee. The exp kernel is taken in units of exp(max‖x‖² / δ), see
    `evaluate_streamed`.
    """
    length_B = context.mask.sum(dim=-1).to(context.reward.dtype)
    if kernel == "softmax":
        return 1 / ((1 + discount) * length_B.sqrt())
    largest = clean(context).largest_square() if kernel in ("linear", "relu") else torch.ones_like(length_B)
    return 1 / ((1 + discount) * length_B * largest)


@torch.no_grad()
def evaluate_streamed(
    context: Transitions,
    query_BQD: Tensor,
    *,
    kernel: KernelName,
    temperature: Tensor,
    step_size: Tensor,
    discount: float,
) -> Evaluation:
    """Values after the last layer at given step sizes, in memory linear in N.

    Args:
        context: the transitions.
        query_BQD: ``[B, Q, D]``, the queries.
        kernel: name of the kernel. The exp kernel is divided by exp(max‖x‖² / δ), the largest value it takes on the
            context's states, and the step sizes are those of the divided kernel.
        temperature: δ, broadcasts to ``[B]``.
        step_size: α_k, broadcasts to ``[B, L]``.
        discount: γ.

    Returns:
        Values ``[1, B, Q]`` and divergence ``[1, B]``.

    Raises:
        InputError: see `icrl.engine.check_inputs`.
    """
    cleaned = check_inputs(context, query_BQD, kernel=kernel, temperature=temperature, discount=discount)
    state_BND, successor_BND, reward_BN = cleaned.state, cleaned.successor, cleaned.reward
    live_BN1 = (context.mask & ~context.terminated).unsqueeze(-1)
    temperature_B = temperature.expand(context.batch_size)
    offset_B = cleaned.largest_square()
    numbers_per_row = context.batch_size * context.length * context.reward.element_size()
    block = max(1, BLOCK_BYTES // numbers_per_row)

    def apply_gram(rows_BRD: Tensor, weight_BNL: Tensor) -> Tensor:
        products = [
            gram(kernel, part, state_BND, temperature_B, context.mask, offset_B) @ weight_BNL
            for part in torch.split(rows_BRD, block, dim=1)
        ]
        return torch.cat(products, dim=1)

    weight_BN1 = torch.zeros_like(reward_BN).unsqueeze(-1)
    history = []
    for layer, step_B in enumerate(step_size.expand(context.batch_size, -1).unbind(-1)):
        residual_BN1 = reward_BN.unsqueeze(-1)
        if layer > 0:
            next_value_BN1 = apply_gram(successor_BND, weight_BN1) * live_BN1
            residual_BN1 = residual_BN1 - apply_gram(state_BND, weight_BN1) + discount * next_value_BN1
        weight_BN1 = weight_BN1 + step_B[:, None, None] * residual_BN1 * context.mask.unsqueeze(-1)
        history.append(weight_BN1)
    value_BQL = apply_gram(query_BQD.to(state_BND.dtype), torch.cat(history, dim=-1))
    diverged_B = ~(value_BQL.abs().amax(dim=(1, 2)) <= divergence_limit(reward_BN, discount))
    return Evaluation(value=value_BQL[None, :, :, -1], diverged=diverged_B[None])
