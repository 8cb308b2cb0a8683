"""The transformer's forward pass, by the fast path where the weights allow it.

Weights of the theory's sparsity leave the states in the tokens as they are; then kernel matrices can be computed once
and shared by all layers (`icrl.engine`). Whether weights have that form is found out by reading step sizes, discount
and metric off them, building the construction anew, and comparing. The result says which path was taken and why.

Shape letters: B contexts, Q queries, D numbers in an observation, L depth.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from icrl.config import KernelName
from icrl.constructions import td_layers
from icrl.engine import check_inputs, evaluate_at_step_sizes
from icrl.tokens import Layout, LayoutName, check_contiguous, trajectory_prompt, transition_prompt
from icrl.transformer import LayerWeights, forward
from icrl.types import Transitions


@dataclass(frozen=True, eq=False)
class TDForm:
    """What weights of the theory's sparsity say.

    Attributes:
        step_size: ``[L]``, α_k.
        discount: γ.
        metric: ``[E, D]``, applied to states before the kernel.
    """

    step_size: Tensor
    discount: float
    metric: Tensor


@dataclass(frozen=True, eq=False)
class ForwardPass:
    """Values of the queries and how they were computed.

    Attributes:
        value: ``[B, L, Q]``, after each layer.
        path: ``fast`` or ``explicit``.
        reason: why this path.
    """

    value: Tensor
    path: Literal["fast", "explicit"]
    reason: str


def read_td_form(layers: Sequence[LayerWeights], layout: Layout) -> TDForm | None:
    """The TD(0) that the layers compute, or None when they are not the construction's up to rounding."""
    first = layers[0].value
    if first.shape != (2, layout.num_rows, layout.num_rows):
        return None
    step_size = torch.stack([layer.value[0, layout.value, layout.reward] for layer in layers])
    largest = int(step_size.abs().argmax())
    bootstrap_row = layout.value if layout.name == "trajectory" else layout.next_value
    bootstrap_head = 1 if layout.name == "trajectory" else 0
    discount = float(layers[largest].value[bootstrap_head, layout.value, bootstrap_row] / step_size[largest])
    metric = layers[0].query[0][:, layout.state]
    expected = td_layers(layout, step_size, discount=discount, metric=metric)
    tolerance = 8 * torch.finfo(first.dtype).eps
    same = all(
        torch.allclose(layer.value, other.value, rtol=tolerance, atol=0)
        and torch.equal(layer.query, other.query)
        and torch.equal(layer.key, other.key)
        for layer, other in zip(layers, expected, strict=True)
    )
    return TDForm(step_size, discount, metric) if same and 0 <= discount < 1 else None


def run(
    context: Transitions,
    query_BQD: Tensor,
    layers: Sequence[LayerWeights],
    *,
    layout: LayoutName = "transition",
    kernel: KernelName,
    temperature: Tensor,
    per_head_masks: bool = True,
) -> ForwardPass:
    """Values of the queries under any weights.

    Args:
        context: the transitions; in the trajectory layout one contiguous trajectory.
        query_BQD: ``[B, Q, D]``, the queries.
        layers: weights of the L layers, each with two heads.
        layout: how tokens are laid out.
        kernel: name of the kernel.
        temperature: δ, a scalar tensor.
        per_head_masks: trajectory layout only; false gives the variant with a single mask.

    Raises:
        InputError: see `icrl.engine.check_inputs`, and transitions that the trajectory layout cannot hold.
    """
    check_inputs(context, query_BQD, kernel=kernel, temperature=temperature, discount=0.0)
    if layout == "trajectory":
        check_contiguous(context)
    form = read_td_form(layers, Layout(layout, query_BQD.shape[-1]))
    if form is not None and per_head_masks:
        return ForwardPass(
            value=_run_fast(context, query_BQD, form, kernel, temperature),
            path="fast",
            reason="the weights are the construction's: kernel matrices are shared by all layers and heads",
        )
    if layout == "trajectory":
        prompt = trajectory_prompt(context, query_BQD, per_head_masks=per_head_masks)
    else:
        prompt = transition_prompt(context, query_BQD)
    value_BLQ, _ = forward(prompt, layers, kernel=kernel, temperature=temperature)
    reason = "the weights are not the construction's" if form is None else "a single mask is not kernel TD"
    return ForwardPass(value=value_BLQ, path="explicit", reason=reason)


def _run_fast(context: Transitions, query_BQD: Tensor, form: TDForm, kernel: KernelName, temperature: Tensor) -> Tensor:
    mapped = replace(
        context,
        observation=context.observation @ form.metric.mT,
        next_observation=context.next_observation @ form.metric.mT,
    )
    evaluation = evaluate_at_step_sizes(
        mapped,
        query_BQD @ form.metric.mT,
        kernel=kernel,
        temperature=temperature.reshape(1, 1),
        step_size=form.step_size,
        discount=form.discount,
        every_depth=True,
    )
    return evaluation.value[0]
