"""Tokens: how a context and its queries are laid out for the transformer.

Layouts (rows of a column in this order; `icrl.constructions` has the weights that belong to them):

* *transition*: a column holds (s_j, s'_j, r_j, v_j, v'_j). Both heads read the TD error r_j + γ v'_j − v_j with
  key s_j; head 1 asks for s_i and writes v_i, head 2 asks for s'_i and writes v'_i. Columns have no order, so contexts
  may mix episodes and end in terminal states, whose v' is never written.
* *trajectory* (arXiv 2605.09727): column i holds (s_i, s_{i−1}, r_i, v_i) of one contiguous trajectory. Head A reads
  r_j − v_j with key s_j, head B reads γ v_j with key s_{j−1}, which is stored in the same column. With masks per head
  (A leaves out the last state, B the first column) this is kernel TD. With a single mask, which leaves out only the
  queries, the first column's empty predecessor becomes a key at the origin and the last state a key with value −v:
  every value gains an offset that hardly depends on the state.

Queries are further columns, keys of no head.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from icrl.errors import InputError
from icrl.transformer import Prompt
from icrl.types import Transitions

LayoutName = Literal["transition", "differential", "trajectory"]
TDRule = Literal["td", "residual_gradient", "average_reward"]


@dataclass(frozen=True)
class Layout:
    """Where things stand in a token.

    Attributes:
        name: which layout.
        state_size: numbers in an observation, D.
    """

    name: LayoutName
    state_size: int

    @property
    def state(self) -> slice:
        """Rows of s."""
        return slice(0, self.state_size)

    @property
    def other_state(self) -> slice:
        """Rows of s' (transition layout) or of the state before (trajectory layout)."""
        return slice(self.state_size, 2 * self.state_size)

    @property
    def reward(self) -> int:
        """Row of r."""
        return 2 * self.state_size

    @property
    def value(self) -> int:
        """Row of v."""
        return 2 * self.state_size + 1

    @property
    def next_value(self) -> int:
        """Row of v'; not in the trajectory layout."""
        return 2 * self.state_size + 2

    @property
    def rate(self) -> int:
        """Row of r̄; differential layout only."""
        return 2 * self.state_size + 3

    @property
    def one(self) -> int:
        """Row of the constant 1; differential layout only."""
        return 2 * self.state_size + 4

    @property
    def num_rows(self) -> int:
        """Rows of a token, R."""
        return 2 * self.state_size + {"trajectory": 2, "transition": 3, "differential": 5}[self.name]


def _fill(layout: Layout, num_columns: int, parts: Sequence[tuple[int | slice, Tensor]]) -> Tensor:
    """Tokens ``[B, R, C]``; each part is ``[B, n, R']`` or ``[B, n]`` and fills the first n columns of its rows."""
    some = parts[0][1]
    tokens = some.new_zeros(len(some), layout.num_rows, num_columns)
    for rows, part in parts:
        tokens[:, rows, : part.shape[1]] = part.mT if part.ndim == 3 else part
    return tokens


def transition_prompt(
    context: Transitions, query_BQD: Tensor, *, rule: TDRule = "td", trace_decay: float = 0.0
) -> Prompt:
    """Tokens in the transition layout, or in the differential layout for the average reward.

    Args:
        context: the transitions, in any order unless traces are wanted.
        query_BQD: ``[B, Q, D]``, the queries.
        rule: the update rule whose weights will run on it, which decides the heads' masks.
        trace_decay: γλ of TD(λ); 0 is TD(0).
    """
    layout = Layout("differential" if rule == "average_reward" else "transition", query_BQD.shape[-1])
    num_queries, num_columns = query_BQD.shape[1], context.length + query_BQD.shape[1]
    present, live = context.mask, context.mask & ~context.terminated
    parts: list[tuple[int | slice, Tensor]] = [
        (layout.state, torch.cat([context.observation.where(present.unsqueeze(-1), 0), query_BQD], dim=1)),
        (layout.other_state, context.next_observation.where(live.unsqueeze(-1), 0)),
        (layout.reward, context.reward.where(present, 0)),
    ]
    if rule == "average_reward":
        parts.append((layout.one, context.reward.new_ones(context.batch_size, num_columns)))

    def columns(of_context: Tensor, of_query: bool) -> Tensor:
        return torch.nn.functional.pad(of_context, (0, num_queries), value=of_query)

    # (keys, written columns) of each head, in the order of the weights in `icrl.constructions`.
    with_queries = columns(present, True)
    heads = [(present, with_queries), (present, columns(live, False))]
    if rule == "residual_gradient":
        heads += [(live, with_queries), (live, columns(live, False))]
    elif rule == "average_reward":
        heads.append((present, with_queries))
    return Prompt(
        tokens=_fill(layout, num_columns, parts),
        key_mask=torch.stack([columns(keys, False) for keys, _ in heads], dim=1),
        write_mask=torch.stack([written for _, written in heads], dim=1),
        traces=_traces(context, num_columns, trace_decay) if trace_decay else None,
        value_row=layout.value,
        num_queries=num_queries,
    )


def trajectory_prompt(
    context: Transitions, query_BQD: Tensor, *, per_head_masks: bool = True, trace_decay: float = 0.0
) -> Prompt:
    """Tokens in the trajectory layout.

    Args:
        context: transitions of one contiguous trajectory, in order, without padding; only its end may be terminal.
        query_BQD: ``[B, Q, D]``, the queries.
        per_head_masks: leave the last state out of head A and the first column out of head B.
        trace_decay: γλ of TD(λ); 0 is TD(0).

    Raises:
        InputError: the transitions are not one contiguous trajectory.
    """
    check_contiguous(context)
    layout = Layout("trajectory", query_BQD.shape[-1])
    batch_size, length, num_queries = context.batch_size, context.length, query_BQD.shape[1]
    last = context.next_observation[:, -1:]
    parts: list[tuple[int | slice, Tensor]] = [
        (layout.state, torch.cat([context.observation, last, query_BQD], dim=1)),
        (layout.other_state, torch.cat([torch.zeros_like(last), context.observation], dim=1)),
        (layout.reward, context.reward),
    ]
    present = context.mask.new_zeros(batch_size, 2, length + 1 + num_queries)
    present[:, :, : length + 1] = True
    if per_head_masks:
        present[:, 0, length] = False
        present[:, 1, 0] = False
    write = torch.ones_like(present)
    write[:, :, length] = ~context.terminated[:, -1:]
    return Prompt(
        tokens=_fill(layout, present.shape[-1], parts),
        key_mask=present,
        write_mask=write,
        traces=_traces(context, present.shape[-1], trace_decay) if trace_decay else None,
        value_row=layout.value,
        num_queries=num_queries,
    )


def check_contiguous(context: Transitions) -> None:
    """Refuse transitions that the trajectory layout cannot hold.

    Raises:
        InputError: a context has padding, is not one contiguous trajectory, or is terminal before its end.
    """
    contiguous = torch.equal(context.next_observation[:, :-1], context.observation[:, 1:])
    if not contiguous or not bool(context.mask.all()) or bool(context.terminated[:, :-1].any()):
        raise InputError(
            "the trajectory layout got transitions that are not one contiguous trajectory without padding; "
            "use the transition layout for them"
        )


def _traces(context: Transitions, num_columns: int, decay: float) -> Tensor:
    """``[B, C, C]``: decay^(c − j) from column c to column j ≤ c of the same episode, else 0.

    Raises:
        InputError: padding stands before a transition, so that neighbouring columns are no neighbours in time.
    """
    if bool((context.mask[:, 1:] & ~context.mask[:, :-1]).any()):
        raise InputError("traces got a context with padding before a transition; move the padding to its end")
    follows = (context.next_observation[:, :-1] == context.observation[:, 1:]).all(dim=-1)
    starts = torch.nn.functional.pad(~follows | context.terminated[:, :-1], (1, 0), value=True)
    # A trajectory's last state, in the column after its last transition, continues it; other such columns are queries.
    episode_BC = torch.nn.functional.pad(starts, (0, num_columns - context.length)).cumsum(dim=1)
    column = torch.arange(num_columns, device=episode_BC.device)
    lag_CC = column[:, None] - column[None, :]
    power_CC = torch.as_tensor(decay, dtype=context.reward.dtype) ** lag_CC.clamp_min(0)
    together_BCC = (episode_BC[:, :, None] == episode_BC[:, None, :]) & (lag_CC >= 0)
    return power_CC.where(together_BCC, 0)
