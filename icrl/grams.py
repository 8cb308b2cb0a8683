"""Kernel matrices of a context: everything of the fast path that depends on states alone.

Shape letters: B contexts, N transitions in a context, Q queries, D numbers in an observation, T temperatures, R rows of
a gram matrix (states, successors, queries), M = T · B problems.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from icrl.config import KernelName
from icrl.kernels import from_similarity, similarity
from icrl.types import Transitions


@dataclass(frozen=True, eq=False)
class Cleaned:
    """Contexts with 0 in place of padding and of terminal successors, whatever stood there.

    Attributes:
        state: ``[B, N, D]``, s.
        successor: ``[B, N, D]``, s'.
        reward: ``[B, N]``, r.
        present: ``[B, N]`` bool, false at padding; None when there is none.
        live: ``[B, N]`` bool, false at padding and where the successor is terminal; None when there is neither.
    """

    state: Tensor
    successor: Tensor
    reward: Tensor
    present: Tensor | None
    live: Tensor | None

    def __getitem__(self, part: slice) -> "Cleaned":
        """Some of the contexts."""
        present = None if self.present is None else self.present[part]
        live = None if self.live is None else self.live[part]
        return Cleaned(self.state[part], self.successor[part], self.reward[part], present, live)

    def largest_square(self) -> Tensor:
        """``[B]``: the largest ‖x‖² of any state or successor."""
        return torch.maximum(*(x_BND.square().sum(-1).amax(-1) for x_BND in (self.state, self.successor)))


def clean(context: Transitions) -> Cleaned:
    """Blank out what must not matter, without copying what need not be blanked."""
    present = None if bool(context.mask.all()) else context.mask
    live = context.mask & ~context.terminated
    live_or_none = None if bool(live.all()) else live
    reward = context.reward.to(context.observation.dtype)
    return Cleaned(
        state=_blank(context.observation, None if present is None else present.unsqueeze(-1)),
        successor=_blank(context.next_observation, None if live_or_none is None else live.unsqueeze(-1)),
        reward=_blank(reward, present),
        present=present,
        live=live_or_none,
    )


def _blank(numbers: Tensor, mask: Tensor | None) -> Tensor:
    return numbers if mask is None else numbers.where(mask, 0)


@dataclass(frozen=True, eq=False)
class Grams:
    """Kernel matrices of M = T · B problems.

    Attributes:
        operator: ``[M, N, N]``; the TD operator A = K_ss − γ K_s's; rows of masked transitions are 0.
        state_gram: ``[M, 2 N, N]``; κ between states, then successors, and keys; rows that are no state are 0.
        query_gram: ``[M, Q, N]``; κ between queries and keys.
        reward: ``[M, N]``; r, 0 where masked.
        radius: ``[M]``; the context's largest √κ(x, x) for kernels of an RKHS, 1 for the others.
        scale: ``[M]``; what the kernel was divided by, 1 but for exp.
    """

    operator: Tensor
    state_gram: Tensor
    query_gram: Tensor
    reward: Tensor
    radius: Tensor
    scale: Tensor


def compute_grams(
    context: Cleaned, query_BQD: Tensor, *, kernel: KernelName, temperature_TB: Tensor, discount: float
) -> Grams:
    """Kernel matrices of all temperatures from one matrix of inner products or distances.

    The exp kernel is divided by its largest value among the context's states, exp(max‖x‖² / δ), so that it cannot
    overflow; step sizes have to be multiplied by the same factor.
    """
    length, shape = context.reward.shape[1], temperature_TB.shape
    rows_BRD = torch.cat([context.state, context.successor, query_BQD.to(context.state.dtype)], dim=1)
    similarity_BRN = similarity(kernel, rows_BRD, context.state)
    square_B = context.largest_square() if kernel in ("exp", "linear") else context.reward.new_ones(shape[1])
    gram_TBRN = from_similarity(kernel, similarity_BRN, temperature_TB, context.present, square_B)
    state_gram = gram_TBRN[:, :, : 2 * length].flatten(0, 1)
    if context.live is not None:
        present = torch.ones_like(context.live) if context.present is None else context.present
        is_state_BS1 = torch.cat([present, context.live], dim=1).unsqueeze(-1)
        state_gram = gram_TBRN[:, :, : 2 * length].where(is_state_BS1, 0).flatten(0, 1)
    return Grams(
        operator=torch.sub(state_gram[:, :length], state_gram[:, length:], alpha=discount),
        state_gram=state_gram,
        query_gram=gram_TBRN[:, :, 2 * length :].flatten(0, 1),
        reward=context.reward.expand(shape[0], -1, -1).flatten(0, 1),
        radius=(square_B.sqrt() if kernel == "linear" else torch.ones_like(square_B)).expand(shape).flatten(),
        scale=(torch.exp(square_B / temperature_TB) if kernel == "exp" else square_B.new_ones(shape)).flatten(),
    )
