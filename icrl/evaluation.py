"""Applying weights to contexts and measuring them on the transitions held out of each context.

Shape letters: T sets of weights (temperatures of a sweep, or sources), B contexts, N context transitions, H held-out
transitions, L depth.
"""

from dataclasses import dataclass

import torch

from icrl.config import KernelName
from icrl.contexts import HeldOut
from icrl.engine import evaluate
from icrl.metrics import td_loss, td_ratio, value_error
from icrl.types import Transitions


@dataclass(frozen=True, eq=False)
class Measurement:
    """Metrics of several sets of weights on several contexts; NaN where a context diverged.

    Attributes:
        td_loss: ``[T, B]``, or ``[T, B, L]`` when measured after every layer.
        td_ratio: the same shape.
        value_error: the same shape.
        diverged: ``[T, B]`` bool.
    """

    td_loss: torch.Tensor
    td_ratio: torch.Tensor
    value_error: torch.Tensor
    diverged: torch.Tensor


def measure(
    context: Transitions,
    heldout: HeldOut,
    *,
    kernel: KernelName,
    temperature: torch.Tensor,
    step_fraction: torch.Tensor,
    discount: float,
    every_depth: bool = False,
) -> Measurement:
    """Run the transformer on each context and measure its values on the held-out transitions.

    Args:
        context: B contexts of N transitions.
        heldout: the H transitions held out of each.
        kernel: name of the kernel.
        temperature: broadcastable to ``[T, B]``.
        step_fraction: broadcastable to ``[T, B, L]``, step sizes as fractions of the stability bound.
        discount: γ.
        every_depth: measure after every layer instead of after the last one.
    """
    transitions = heldout.transitions
    queries_BQD = torch.cat([transitions.observation, transitions.next_observation], dim=1)
    with torch.no_grad():
        result = evaluate(
            context,
            queries_BQD,
            kernel=kernel,
            temperature=temperature,
            step_fraction=step_fraction,
            discount=discount,
            every_depth=every_depth,
        )
    value, next_value = result.value[..., : transitions.length], result.value[..., transitions.length :]
    # With every_depth the layers stand between the batch axis and the held-out axis.
    layers = (slice(None), None) if every_depth else (slice(None),)
    reward, terminated, mask = transitions.reward[layers], transitions.terminated[layers], transitions.mask[layers]
    failed = result.diverged.unsqueeze(-1) if every_depth else result.diverged
    loss = td_loss(reward, value, next_value, terminated, mask, discount).masked_fill(failed, torch.nan)
    explained = value_error(value, heldout.monte_carlo_return[layers], heldout.has_return[layers])
    return Measurement(
        td_loss=loss,
        td_ratio=td_ratio(loss, reward, terminated, mask, discount),
        value_error=explained.masked_fill(failed, torch.nan),
        diverged=result.diverged,
    )
