"""The theory's weights: kernel TD as a forward pass of `icrl.transformer`.

Each function returns the weights of L layers for tokens as `icrl.tokens` lays them out. The step sizes α_k stand in the
values' weights; everything else is the same in all layers.

* TD(0) and TD(λ) (arXiv 2605.09727, 2405.13861): two heads; λ is a matter of the prompt's traces, not of weights.
* Residual gradient: four heads; the two more have the successors as keys.
* Average reward: three heads; the third attends uniformly and writes r̄.
"""

import torch
from torch import Tensor

from icrl.config import KernelName
from icrl.kernels import gram
from icrl.tokens import Layout
from icrl.transformer import LayerWeights


def _scaled(layers_value: Tensor, query: Tensor, key: Tensor, step_sizes: Tensor) -> list[LayerWeights]:
    """One layer for each step size: the values' weights times α_k, the projections as they are."""
    return [LayerWeights(step * layers_value, query, key) for step in step_sizes]


def td_layers(
    layout: Layout, step_sizes: Tensor, *, discount: float | Tensor, metric: Tensor | None = None
) -> list[LayerWeights]:
    """Weights that make a layer one step of TD(0), or of TD(λ) when the prompt has traces.

    Args:
        layout: where things stand in a token.
        step_sizes: ``[L]``, α_k; their dtype and device are the weights'.
        discount: γ.
        metric: ``[E, D]``, applied to states before the kernel; default identity.
    """
    rows, size = layout.num_rows, layout.state_size
    metric = torch.eye(size).to(step_sizes) if metric is None else metric
    value, query, key = _zeros(step_sizes, 2, rows, len(metric))
    key[0, :, layout.state] = metric
    query[0, :, layout.state] = metric
    if layout.name == "trajectory":
        value[0, layout.value, layout.reward] = 1
        value[0, layout.value, layout.value] = -1
        value[1, layout.value, layout.value] = discount
        query[1, :, layout.state] = metric
        key[1, :, layout.other_state] = metric
    else:
        value[0, layout.value] = value[1, layout.next_value] = _td_error(layout, step_sizes, discount)
        query[1, :, layout.other_state] = metric
        key[1, :, layout.state] = metric
    return _scaled(value, query, key, step_sizes)


def residual_gradient_layers(state_size: int, step_sizes: Tensor, *, discount: float) -> list[LayerWeights]:
    """Weights of residual gradient in the transition layout; four heads."""
    layout = Layout("transition", state_size)
    value, query, key = _zeros(step_sizes, 4, layout.num_rows, state_size)
    identity = torch.eye(state_size).to(step_sizes)
    for head, (asked, keyed, written, factor) in enumerate(
        [
            (layout.state, layout.state, layout.value, 1.0),
            (layout.other_state, layout.state, layout.next_value, 1.0),
            (layout.state, layout.other_state, layout.value, -discount),
            (layout.other_state, layout.other_state, layout.next_value, -discount),
        ]
    ):
        value[head, written] = factor * _td_error(layout, step_sizes, discount)
        query[head, :, asked] = identity
        key[head, :, keyed] = identity
    return _scaled(value, query, key, step_sizes)


def average_reward_layers(
    state_size: int,
    step_sizes: Tensor,
    *,
    rate_fraction: float,
    context_length: int,
    kernel: KernelName,
    temperature: float,
) -> list[LayerWeights]:
    """Weights of differential TD in the differential layout; three heads.

    Args:
        state_size: D.
        step_sizes: ``[L]``, α_k.
        rate_fraction: η, the rate of r̄ relative to α.
        context_length: unmasked transitions N of every context that the weights will see; a kernel that is not
            normalised sums over them, and the third head needs their mean.
        kernel: the kernel that the weights will be used with.
        temperature: its δ.
    """
    layout = Layout("differential", state_size)
    value, query, key = _zeros(step_sizes, 3, layout.num_rows, max(state_size, 1))
    td_error = _td_error(layout, step_sizes, 1.0)
    td_error[layout.rate] = -1
    value[0, layout.value] = value[1, layout.next_value] = td_error
    query[0, :, layout.state] = query[1, :, layout.other_state] = torch.eye(state_size).to(step_sizes)
    key[0, :, layout.state] = key[1, :, layout.state] = torch.eye(state_size).to(step_sizes)
    # The third head compares the constant 1 with itself, which gives every key the same weight.
    query[2, 0, layout.one] = key[2, 0, layout.one] = 1
    ones = torch.ones(1, context_length, 1).to(step_sizes)
    delta = torch.tensor(temperature, dtype=step_sizes.dtype, device=step_sizes.device)
    weight_of_key = gram(kernel, ones[:, :1], ones, delta).mean()
    value[2, layout.rate] = rate_fraction / (context_length * weight_of_key) * td_error
    return _scaled(value, query, key, step_sizes)


def _zeros(like: Tensor, num_heads: int, num_rows: int, num_features: int) -> tuple[Tensor, Tensor, Tensor]:
    projections = like.new_zeros(2, num_heads, num_features, num_rows)
    return like.new_zeros(num_heads, num_rows, num_rows), projections[0], projections[1]


def _td_error(layout: Layout, like: Tensor, discount: float | Tensor) -> Tensor:
    """``[R]``: reads the TD error r + γ v' − v off a token in the transition layout."""
    weights = like.new_zeros(layout.num_rows)
    weights[layout.reward], weights[layout.value] = 1, -1
    weights[layout.next_value] = discount
    return weights
