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
from icrl.kernels import embed, from_similarity, similarity_of_embedded
from icrl.stability import divergence_limit
from icrl.types import Transitions

BLOCK_BYTES = 16 * 2**20
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
    length, live = context.length, 1.0 if cleaned.live is None else cleaned.live.to(cleaned.reward.dtype)
    present = 1.0 if cleaned.present is None else cleaned.present.to(cleaned.reward.dtype)
    temperature_B, offset_B = temperature.expand(context.batch_size), cleaned.largest_square()
    rows_BRD = torch.cat([cleaned.state, cleaned.successor, query_BQD.to(cleaned.state.dtype)], dim=1)
    rows_BRE, keys_BNE = embed(kernel, rows_BRD, cleaned.state)
    block = max(1, BLOCK_BYTES // (context.batch_size * length * cleaned.reward.element_size()))

    def apply_gram(rows_BRE: Tensor, weight_BNL: Tensor) -> Tensor:
        # Results kept between the blocks' large buffers would keep the allocator from using those buffers again.
        product_BRL = weight_BNL.new_empty(*rows_BRE.shape[:2], weight_BNL.shape[-1])
        for start in range(0, rows_BRE.shape[1], block):
            part = slice(start, start + block)
            similarity_BRN = similarity_of_embedded(kernel, rows_BRE[:, part], keys_BNE)
            gram_BRN = from_similarity(kernel, similarity_BRN, temperature_B, cleaned.present, offset_B)
            product_BRL[:, part] = gram_BRN @ weight_BNL
        return product_BRL

    weight_BN = torch.zeros_like(cleaned.reward)
    history = []
    for layer, step_B in enumerate(step_size.expand(context.batch_size, -1).unbind(-1)):
        residual_BN = cleaned.reward
        if layer > 0:
            value_BS = apply_gram(rows_BRE[:, : 2 * length], weight_BN.unsqueeze(-1)).squeeze(-1)
            residual_BN = residual_BN + discount * live * value_BS[:, length:] - present * value_BS[:, :length]
        weight_BN = weight_BN + step_B[:, None] * residual_BN
        history.append(weight_BN)
    value_BQL = apply_gram(rows_BRE[:, 2 * length :], torch.stack(history, dim=-1))
    diverged_B = ~(value_BQL.abs().amax(dim=(1, 2)) <= divergence_limit(cleaned.reward, discount))
    return Evaluation(value=value_BQL[None, :, :, -1], diverged=diverged_B[None])
