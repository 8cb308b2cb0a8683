"""How close learned weights are to the construction, head by head.

Weights have a freedom of scale that changes nothing: with a homogeneous kernel c P_h and Q_h / c do the same as P_h and
Q_h, and the others trade the scale of Q_h for the temperature. Heads are interchangeable. So each matrix is compared by
the magnitude of its cosine with the construction's, which no scale changes, under the assignment of heads that fits
best.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from icrl.constructions import td_layers
from icrl.tokens import Layout
from icrl.transformer import LayerWeights


@dataclass(frozen=True, eq=False)
class HeadEmergence:
    """One head of learned weights beside the head of the construction that it is most like.

    Attributes:
        written: what the construction's head writes, ``v`` or ``v'``.
        value_cosine: |cosine| of P with the construction's, 1 for a multiple of it.
        attention_cosine: |cosine| of Q = AᵀB with the construction's.
        value_support: share of P's squared weights that stand where the construction's are not 0.
        attention_support: the same of Q.
        value: ``[R, R]``, the learned P.
        attention: ``[R, R]``, the learned Q.
    """

    written: str
    value_cosine: float
    attention_cosine: float
    value_support: float
    attention_support: float
    value: Tensor
    attention: Tensor


def measure_emergence(learned: LayerWeights, *, state_size: int, discount: float) -> list[HeadEmergence]:
    """Compare two heads in the transition layout with the construction's, first the one that writes v."""
    value, attention = learned.value.detach(), (learned.query.mT @ learned.key).detach()
    (ideal,) = td_layers(Layout("transition", state_size), torch.ones(1).to(value), discount=discount)
    ideal_attention = ideal.query.mT @ ideal.key

    def compare(head: int, ideal_head: int) -> HeadEmergence:
        return HeadEmergence(
            written=("v", "v'")[ideal_head],
            value_cosine=_cosine(value[head], ideal.value[ideal_head]),
            attention_cosine=_cosine(attention[head], ideal_attention[ideal_head]),
            value_support=_share(value[head], ideal.value[ideal_head] != 0),
            attention_support=_share(attention[head], ideal_attention[ideal_head] != 0),
            value=value[head],
            attention=attention[head],
        )

    assignments = [[compare(0, 0), compare(1, 1)], [compare(1, 0), compare(0, 1)]]
    return max(assignments, key=lambda heads: sum(head.value_cosine + head.attention_cosine for head in heads))


def _cosine(learned: Tensor, ideal: Tensor) -> float:
    return float((learned * ideal).sum().abs() / (learned.norm() * ideal.norm()))


def _share(learned: Tensor, support: Tensor) -> float:
    return float(learned[support].square().sum() / learned.square().sum())
