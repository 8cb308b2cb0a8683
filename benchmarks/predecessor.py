"""The plain way of linear attention (arXiv 2405.13861): one query at a time through every layer of explicit tokens.

A token holds (s, γ s', r) in its 2 D + 1 rows; the query's column holds (s, 0, 0). A layer is

    Z ← Z + P Z M Zᵀ Q Z / N

with P picking the last row, M leaving out the query's column and Q = [[−C, C, 0], [0, 0, 0], [0, 0, 0]]. The last row
then holds TD errors, and under the query −v. It is the baseline of the engine's benchmark, written as that construction
reads.
"""

import torch
from torch import Tensor


def construct(state_size: int, step_size: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """P and Q of one layer, ``[2 D + 1, 2 D + 1]`` each, for C = step_size · I."""
    rows = 2 * state_size + 1
    value, attention = torch.zeros(2, rows, rows, dtype=dtype)
    value[-1, -1] = 1
    identity = torch.eye(state_size, dtype=dtype)
    attention[:state_size, :state_size] = -step_size * identity
    attention[:state_size, state_size : 2 * state_size] = step_size * identity
    return value, attention


def value_of_query(
    state: Tensor, reward: Tensor, successor: Tensor, query: Tensor, *, step_size: float, discount: float, depth: int
) -> float:
    """The value of one query ``[D]`` from one context of N transitions."""
    length, state_size = state.shape
    value, attention = construct(state_size, step_size, state.dtype)
    tokens = torch.zeros(2 * state_size + 1, length + 1, dtype=state.dtype)
    tokens[:state_size, :length] = state.T
    tokens[:state_size, length] = query
    tokens[state_size : 2 * state_size, :length] = discount * successor.T
    tokens[-1, :length] = reward
    mask = torch.eye(length + 1, dtype=state.dtype)
    mask[length, length] = 0
    for _ in range(depth):
        tokens = tokens + value @ tokens @ mask @ (tokens.T @ attention @ tokens) / length
    return -float(tokens[-1, length])
