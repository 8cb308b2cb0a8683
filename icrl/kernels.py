"""The five kernels κ(x, y) and their temperature δ.

Shape letters: B batch of contexts, N context keys, Q query states, D numbers in an observation, T temperatures.

======= ============================ ==============================================================
name    κ(x, y)                      note
======= ============================ ==============================================================
linear  ⟨x, y⟩                       the linear transformer of arXiv 2405.13861; no temperature
relu    max(0, ⟨x, y⟩)               no temperature
exp     exp(⟨x, y⟩ / δ)              may be rescaled by a constant, see `gram`
softmax exp(⟨x, y⟩ / δ), normalised  over the context keys of each query (arXiv 2605.09727, 2605.07333)
rbf     exp(−‖x − y‖² / (2δ))
======= ============================ ==============================================================

A gram matrix is made in two steps, so that several temperatures share the costly one: `similarity` (inner products or
squared distances, a matrix multiply) and `from_similarity` (an element-wise function of it).
"""

import torch
from torch import Tensor

from icrl.config import KERNELS_WITHOUT_TEMPERATURE, KernelName

SYMMETRIC_KERNELS: tuple[KernelName, ...] = ("linear", "relu", "exp", "rbf")
"""Kernels with κ(x, y) = κ(y, x); softmax is normalised over its second argument and is not."""

POSITIVE_SEMIDEFINITE_KERNELS: tuple[KernelName, ...] = ("linear", "exp", "rbf")
"""Kernels of a reproducing kernel Hilbert space; relu is not one, softmax is one up to a scale of each row."""


def has_temperature(kernel: KernelName) -> bool:
    """Whether the kernel depends on a temperature."""
    return kernel not in KERNELS_WITHOUT_TEMPERATURE


def similarity(kernel: KernelName, query_BQD: Tensor, context_BND: Tensor) -> Tensor:
    """What the kernel is a function of: squared distances ``[B, Q, N]`` for rbf, inner products for the others.

    Squared distances are computed around the mean key, which keeps float32 accurate for nearby states far from the
    origin; they are never negative.
    """
    query_BQE, keys_BNE = embed(kernel, query_BQD, context_BND)
    return similarity_of_embedded(kernel, query_BQE, keys_BNE)


def embed(kernel: KernelName, query_BQD: Tensor, context_BND: Tensor) -> tuple[Tensor, Tensor]:
    """Queries and keys as vectors whose inner product is what the kernel is a function of.

    For rbf ‖x − y‖² = ⟨(x, ‖x‖², 1), (−2y, 1, ‖y‖²)⟩, two numbers wider than a state; others stay as they are.
    """
    if kernel != "rbf":
        return query_BQD, context_BND
    centre_B1D = context_BND.mean(dim=-2, keepdim=True)
    x_BQD, y_BND = query_BQD - centre_B1D, context_BND - centre_B1D
    x_norm_BQ1, y_norm_BN1 = x_BQD.square().sum(-1, keepdim=True), y_BND.square().sum(-1, keepdim=True)
    query_BQE = torch.cat([x_BQD, x_norm_BQ1, torch.ones_like(x_norm_BQ1)], dim=-1)
    return query_BQE, torch.cat([y_BND * -2, torch.ones_like(y_norm_BN1), y_norm_BN1], dim=-1)


def similarity_of_embedded(kernel: KernelName, query_BQE: Tensor, keys_BNE: Tensor) -> Tensor:
    """`similarity` of what `embed` returned, or of some of its queries."""
    product_BQN = query_BQE @ keys_BNE.mT
    # Rounding can leave a distance below 0.
    return product_BQN.clamp_min_(0) if kernel == "rbf" else product_BQN


def from_similarity(
    kernel: KernelName,
    similarity_BQN: Tensor,
    temperature: Tensor,
    mask_BN: Tensor | None = None,
    offset: Tensor | None = None,
) -> Tensor:
    """The gram matrix from the matrix that `similarity` returned; arguments and result as for `gram`."""
    delta = temperature[..., None, None]
    mask_B1N = None if mask_BN is None else mask_BN[..., None, :]
    if kernel == "softmax":
        score = similarity_BQN / delta
        return torch.softmax(score if mask_B1N is None else score.masked_fill_(~mask_B1N, -torch.inf), dim=-1)
    if kernel == "rbf":
        value = (similarity_BQN * (-0.5 / delta)).exp_()
    elif kernel == "exp":
        shifted = similarity_BQN if offset is None else similarity_BQN - offset[..., None, None]
        value = (shifted / delta).exp_()
    else:
        value = similarity_BQN if kernel == "linear" else similarity_BQN.clamp_min(0)
        value = value.expand(*delta.shape[:-3], *value.shape)
    return value if mask_B1N is None else value.masked_fill(~mask_B1N, 0)


def gram(
    kernel: KernelName,
    query_BQD: Tensor,
    context_BND: Tensor,
    temperature: Tensor,
    mask_BN: Tensor | None = None,
    offset: Tensor | None = None,
) -> Tensor:
    """Kernel values between queries x and context keys y.

    Args:
        kernel: name of the kernel.
        query_BQD: ``[B, Q, D]`` floating; the states x.
        context_BND: ``[B, N, D]`` floating; the keys y.
        temperature: δ > 0, any shape that broadcasts against ``[B]``: a scalar, ``[B]``, or ``[T, 1]`` and ``[T, B]``
            for several temperatures at once. Ignored by linear and relu, but for its shape.
        mask_BN: ``[B, N]`` bool; keys where it is false get the value 0 (and no share of the softmax).
        offset: broadcasts against ``[B]``; the exp kernel becomes exp((⟨x, y⟩ − offset) / δ), that is, it is multiplied
            by a constant. With the largest inner product as offset it cannot overflow at a small δ.

    Returns:
        ``[..., B, Q, N]`` with the leading axes of `temperature`.
    """
    return from_similarity(kernel, similarity(kernel, query_BQD, context_BND), temperature, mask_BN, offset)
