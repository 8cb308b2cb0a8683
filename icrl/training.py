"""Structured weights: the theory's sparsity, with temperature and step sizes learned by multi-task TD.

Shape letters: K kernels, S sources (independent models), B contexts, N context transitions, H held-out transitions,
L depth.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import nn

from icrl.config import KERNELS_WITHOUT_TEMPERATURE, ExperimentConfig, KernelName
from icrl.engine import evaluate
from icrl.metrics import td_loss
from icrl.types import Transitions

MAX_STEP_FRACTION = 2.0
"""Step sizes are learned inside (0, this) times the per-context stability bound of `icrl.stability`."""

START_STEP_FRACTION = 1.0
"""Where every α_k starts: in the middle, where the logit moves it fastest."""


@dataclass(frozen=True, eq=False)
class TrainingBatch:
    """Contexts of several source domains.

    Attributes:
        context: B contexts.
        heldout: the transitions held out of each.
        source: ``[B]`` int64, index of the source that each context comes from.
    """

    context: Transitions
    heldout: Transitions
    source: torch.Tensor

    def to(self, device: torch.device) -> "TrainingBatch":
        """The same batch on another device."""
        return TrainingBatch(self.context.to(device), self.heldout.to(device), self.source.to(device))


class StructuredTransformers(nn.Module):
    """One structured transformer for each source domain, all with the same kernel and depth.

    Parameters are δ as its logarithm ``[S]`` and the layers' step sizes α_k as logits ``[S, L]`` of their fraction of
    the stability bound, so that no optimiser step can leave the stable range. The models share nothing: fitting them
    together gives what fitting each alone would give.

    Args:
        kernel: name of the kernel.
        temperature: ``[S]``, where each model's δ starts (ignored by kernels without temperature).
        depth: layers L.
        step_fraction: where every α_k starts, as a fraction of the bound.
    """

    log_temperature: torch.Tensor

    def __init__(self, kernel: KernelName, temperature: torch.Tensor, depth: int, step_fraction: float) -> None:
        super().__init__()
        self.kernel: KernelName = kernel
        if kernel in KERNELS_WITHOUT_TEMPERATURE:
            # A parameter that never receives a gradient would make DDP wait for one.
            self.register_buffer("log_temperature", torch.full_like(temperature, torch.nan))
        else:
            self.log_temperature = nn.Parameter(temperature.log())
        logit = math.log(step_fraction / (MAX_STEP_FRACTION - step_fraction))
        self.step_logit = nn.Parameter(torch.full((len(temperature), depth), logit, dtype=temperature.dtype))

    @property
    def temperature(self) -> torch.Tensor:
        """δ of each model, ``[S]``; NaN for a kernel that has none."""
        return self.log_temperature.exp()

    @property
    def step_fraction(self) -> torch.Tensor:
        """α_k of each model and layer as a fraction of the stability bound, ``[S, L]``."""
        return MAX_STEP_FRACTION * self.step_logit.sigmoid()

    def forward(self, batch: TrainingBatch, discount: float) -> "Outcome":
        """TD loss of each context under its own source's model."""
        outcome = self._outcome(batch, discount)
        if not outcome.diverged.any():
            return outcome
        # A gradient of 0 times an infinite derivative is NaN, so diverged contexts must not take part at all.
        kept = ~outcome.diverged
        rest = TrainingBatch(batch.context[kept], batch.heldout[kept], batch.source[kept])
        loss = torch.zeros_like(outcome.loss).masked_scatter(kept, self._outcome(rest, discount).loss)
        return Outcome(loss, outcome.diverged)

    def _outcome(self, batch: TrainingBatch, discount: float) -> "Outcome":
        heldout = batch.heldout
        result = evaluate(
            batch.context,
            torch.cat([heldout.observation, heldout.next_observation], dim=1),
            kernel=self.kernel,
            temperature=self.temperature[batch.source][None],
            step_fraction=self.step_fraction[batch.source][None],
            discount=discount,
        )
        value, next_value = result.value[0, :, : heldout.length], result.value[0, :, heldout.length :]
        loss = td_loss(heldout.reward, value, next_value, heldout.terminated, heldout.mask, discount)
        return Outcome(loss, result.diverged[0])


class Outcome(NamedTuple):
    """What a forward pass says of each context.

    Attributes:
        loss: ``[..., B]`` TD loss on the held-out transitions, differentiable in δ and α. The gradient is that of the
            whole squared error, which is the reported metric, not TD's semi-gradient. 0 where diverged.
        diverged: ``[..., B]`` bool; count these contexts, do not average them.
    """

    loss: torch.Tensor
    diverged: torch.Tensor

    def sums(self, source_B: torch.Tensor, num_sources: int) -> torch.Tensor:
        """Sum of the losses, contexts behind it, and diverged contexts, by source: ``[3, ..., S]``."""
        diverged = self.diverged.to(self.loss)
        parts = torch.stack([self.loss.detach(), 1 - diverged, diverged])
        return parts.new_zeros(*parts.shape[:-1], num_sources).index_add(-1, source_B, parts)


class ModelBank(nn.Module):
    """The structured transformers of every kernel, run on one batch in one forward pass, as DDP wants it.

    Args:
        config: the experiment; its domains are the sources.
        temperature: ``[K, S]``, where each model's δ starts; anything for a kernel without temperature.
    """

    def __init__(self, config: ExperimentConfig, temperature: torch.Tensor) -> None:
        super().__init__()
        self.discount = config.discount
        self.by_kernel = nn.ModuleDict(
            {
                kernel: StructuredTransformers(kernel, start, config.model.depth, START_STEP_FRACTION)
                for kernel, start in zip(config.model.kernels, temperature, strict=True)
            }
        )

    def forward(self, batch: TrainingBatch) -> Outcome:
        """The outcome under every kernel, ``[K, B]``."""
        outcomes = [model(batch, self.discount) for model in self._models()]
        return Outcome(*(torch.stack(parts) for parts in zip(*outcomes, strict=True)))

    def weights(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Detached copies of all δ ``[K, S]`` and all step sizes as fractions of the bound ``[K, S, L]``."""
        temperature = torch.stack([model.temperature for model in self._models()])
        step_fraction = torch.stack([model.step_fraction for model in self._models()])
        return temperature.detach().clone(), step_fraction.detach().clone()

    def _models(self) -> Iterator[StructuredTransformers]:
        for model in self.by_kernel.values():
            assert isinstance(model, StructuredTransformers)
            yield model
