"""One worker's part of a data-parallel fit; whoever starts the workers, and how many there are, makes no difference.

A fit's whole state is in its checkpoint and none of it belongs to a worker, so a fit may go on with more or fewer.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import nn

from icrl.batches import BatchSource
from icrl.config import ExperimentConfig
from icrl.training import ModelBank, Outcome


@dataclass
class FitState:
    """Everything but the models and the optimiser that a fit carries from one step to the next.

    Attributes:
        train_loss: ``[P, K, S]``, mean TD loss of each step's contexts; NaN from the first unfinished step on.
        validation_loss: the same on the validation contexts; NaN also where a step was not validated.
        temperature: ``[P, K, S]``, δ after each step.
        best_loss: ``[K, S]``, lowest validation loss so far.
        best_temperature: ``[K, S]``, δ of the weights that had it.
        best_step_fraction: ``[K, S, L]``, their step sizes.
        diverged: ``[K, S]``, number of training contexts so far that diverged.
    """

    train_loss: torch.Tensor
    validation_loss: torch.Tensor
    temperature: torch.Tensor
    best_loss: torch.Tensor
    best_temperature: torch.Tensor
    best_step_fraction: torch.Tensor
    diverged: torch.Tensor

    @classmethod
    def start(cls, num_steps: int, bank: ModelBank) -> "FitState":
        """The state before the first step."""
        temperature, step_fraction = (part.cpu() for part in bank.weights())
        unknown = torch.full((num_steps, *temperature.shape), torch.nan)
        return cls(
            train_loss=unknown,
            validation_loss=unknown.clone(),
            temperature=unknown.clone(),
            best_loss=torch.full_like(temperature, torch.inf),
            best_temperature=temperature,
            best_step_fraction=step_fraction,
            diverged=torch.zeros_like(temperature),
        )

    def keep_best(self, loss: torch.Tensor, bank: ModelBank) -> None:
        """Remember the present weights of every model whose validation loss is its lowest so far."""
        temperature, step_fraction = (part.cpu() for part in bank.weights())
        better = loss < self.best_loss
        self.best_loss = torch.where(better, loss, self.best_loss)
        self.best_temperature = torch.where(better, temperature, self.best_temperature)
        self.best_step_fraction = torch.where(better[..., None], step_fraction, self.best_step_fraction)


class Fit:
    """The models of every kernel and source, their optimiser, and how far the fit is.

    Args:
        config: the experiment.
        source: draws this worker's share of the batches.
        temperature: ``[K, S]`` float32, where each δ starts.
        world_size: number of workers.
        device: where this worker computes.
        wrap: puts the models on the device and makes their gradients the average over the workers.
    """

    def __init__(
        self,
        config: ExperimentConfig,
        source: BatchSource,
        temperature: torch.Tensor,
        *,
        world_size: int,
        device: torch.device,
        wrap: Callable[[nn.Module], nn.Module],
    ) -> None:
        self.bank = ModelBank(config, temperature)
        self.state = FitState.start(config.train.num_steps, self.bank)
        self.num_done = 0
        """Optimiser steps taken."""
        self._config = config
        self._source = source
        self._world_size = world_size
        self._device = device
        self._model = wrap(self.bank)
        self._optimizer = torch.optim.Adam(self.bank.parameters(), lr=config.train.learning_rate)

    @property
    def is_done(self) -> bool:
        """Whether every step has been taken."""
        return self.num_done == self._config.train.num_steps

    def step(self) -> bool:
        """Take one optimiser step, and validate if it is due; says whether it was."""
        step = self.num_done
        self._optimizer.zero_grad()
        sums = self.add_gradients(step)
        self._optimizer.step()
        total, kept, diverged = _over_workers(sums)
        self.state.train_loss[step] = total / kept
        self.state.temperature[step] = self.bank.weights()[0].cpu()
        self.state.diverged += diverged
        self.num_done += 1
        due = self.is_done or self.num_done % self._config.train.validate_every == 0
        if due:
            self.state.validation_loss[step] = self._validate()
            self.state.keep_best(self.state.validation_loss[step], self.bank)
        return due

    def add_gradients(self, step: int) -> torch.Tensor:
        """Add the gradient of a step's loss, that of all workers' contexts; return `Outcome.sums` of this worker's."""
        batch = self._source.training(step).to(self._device)
        outcome: Outcome = self._model(batch)
        # Workers' gradients are averaged; the factor makes that average the sum over all contexts.
        loss = outcome.loss.sum() * self._world_size / self._config.train.contexts_per_step
        loss.backward()  # type: ignore[no-untyped-call]
        return outcome.sums(batch.source, len(self._config.domains))

    @torch.no_grad()
    def _validate(self) -> torch.Tensor:
        """Mean TD loss of every model over all validation contexts, ``[K, S]``; infinite where any of them diverged."""
        sums = torch.zeros(3, *self.state.best_loss.shape, device=self._device)
        for batch in self._source.validation():
            on_device = batch.to(self._device)
            outcome: Outcome = self.bank(on_device)
            sums += outcome.sums(on_device.source, len(self._config.domains))
        total, kept, diverged = _over_workers(sums)
        return torch.where(diverged > 0, torch.inf, total / kept)

    def checkpoint(self) -> dict[str, Any]:
        """Everything that `restore` needs, the same on every worker."""
        return {
            "num_done": self.num_done,
            "bank": self.bank.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "state": {field.name: getattr(self.state, field.name) for field in fields(self.state)},
        }

    def restore(self, checkpoint: dict[str, Any]) -> None:
        """Go on from a checkpoint, whatever number of workers wrote it."""
        self.num_done = checkpoint["num_done"]
        self.bank.load_state_dict(checkpoint["bank"])
        self._optimizer.load_state_dict(checkpoint["optimizer"])
        self.state = FitState(**checkpoint["state"])


def _over_workers(sums: torch.Tensor) -> torch.Tensor:
    if torch.distributed.is_initialized():
        torch.distributed.all_reduce(sums)
    return sums.cpu()
