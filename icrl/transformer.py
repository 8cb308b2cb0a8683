"""The transformer: layers of kernel attention on an explicit matrix of tokens. Forward only, generic in its weights.

A layer adds to the tokens Z (one column a token, one row a feature)

    Z ← Z + Σ_h P_h Z M_h S_hᵀ,    S_h[i, j] = κ(A_h z_i, B_h z_j)

with one term a head h. P_h are the values' weights; A_h and B_h project tokens to the query and key side of the kernel,
which for kernels of the inner product is the usual Z ᵀ Q_h Z with Q_h = A_hᵀ B_h (arXiv 2605.09727, 2405.13861). M_h
masks keys; with traces it also mixes the values of an episode's columns, which gives TD(λ).

Nothing here knows of TD: `icrl.constructions` has the weights and the tokens that make it one.

Shape letters: B contexts, R rows of the token matrix, C columns (tokens), H heads, E projected features, L depth.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from icrl.config import KernelName
from icrl.kernels import gram


@dataclass(frozen=True, eq=False)
class LayerWeights:
    """Weights of one layer.

    Attributes:
        value: ``[H, R, R]``, P_h.
        query: ``[H, E, R]``, A_h.
        key: ``[H, E, R]``, B_h.
    """

    value: Tensor
    query: Tensor
    key: Tensor

    @property
    def num_heads(self) -> int:
        """Number of heads H."""
        return len(self.value)


@dataclass(frozen=True, eq=False)
class Prompt:
    """Tokens of B contexts and their queries, with the masks that belong to them.

    Attributes:
        tokens: ``[B, R, C]``.
        key_mask: ``[B, H, C]`` bool; where false, the column is no key of the head.
        write_mask: ``[B, H, C]`` bool; where false, the head leaves the column as it is.
        traces: ``[B, C, C]``, mixing of the values of columns before attention, or None.
        value_row: the row that holds v.
        num_queries: the last that many columns are the queries.
    """

    tokens: Tensor
    key_mask: Tensor
    write_mask: Tensor
    traces: Tensor | None
    value_row: int
    num_queries: int

    def query_value(self, tokens: Tensor) -> Tensor:
        """``[B, Q]``, what the queries' columns of `tokens` say of their value."""
        return tokens[:, self.value_row, tokens.shape[-1] - self.num_queries :]


def apply_layer(
    tokens_BRC: Tensor, prompt: Prompt, weights: LayerWeights, kernel: KernelName, temperature: Tensor
) -> Tensor:
    """The tokens ``[B, R, C]`` after one layer.

    Args:
        tokens_BRC: the tokens before it.
        prompt: supplies the masks.
        weights: the layer's weights.
        kernel: name of the kernel.
        temperature: δ, broadcastable to ``[B]``.
    """
    update_BRC = torch.zeros_like(tokens_BRC)
    for head in range(weights.num_heads):
        mask_BC = prompt.key_mask[:, head]
        score_BCC = gram(
            kernel,
            (weights.query[head] @ tokens_BRC).mT,
            (weights.key[head] @ tokens_BRC).mT,
            temperature,
            mask_BC,
        )
        value_BRC = weights.value[head] @ tokens_BRC * mask_BC.unsqueeze(1)
        if prompt.traces is not None:
            value_BRC = value_BRC @ prompt.traces
        update_BRC = update_BRC + value_BRC @ score_BCC.mT * prompt.write_mask[:, head].unsqueeze(1)
    return tokens_BRC + update_BRC


def forward(
    prompt: Prompt, layers: Sequence[LayerWeights], *, kernel: KernelName, temperature: Tensor
) -> tuple[Tensor, Tensor]:
    """Run all layers.

    Args:
        prompt: tokens and masks.
        layers: weights of the L layers; a looped transformer repeats one.
        kernel: name of the kernel.
        temperature: δ, broadcastable to ``[B]``.

    Returns:
        The queries' values after each layer ``[B, L, Q]``, and the tokens after the last ``[B, R, C]``.
    """
    tokens, values = prompt.tokens, []
    for weights in layers:
        tokens = apply_layer(tokens, prompt, weights, kernel, temperature)
        values.append(prompt.query_value(tokens))
    return torch.stack(values, dim=1), tokens
