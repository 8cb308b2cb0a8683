"""Free weights: every P_h, A_h and B_h of a looped transformer, learned from random initialisation by multi-task TD.

Shows what learning makes of the architecture when nothing of the theory is built in but the tokens and the masks
(arXiv 2405.13861 asks the same of linear attention). `icrl.emergence` compares the outcome with the construction.

Shape letters: B tasks, N context transitions, Q queries, D numbers in an observation, R rows of a token, L depth.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from icrl.config import KernelName
from icrl.metrics import td_loss
from icrl.selection import take
from icrl.tokens import Layout, transition_prompt
from icrl.transformer import LayerWeights, Prompt, forward
from icrl.types import Transitions


class FreeTransformer(nn.Module):
    """One layer with two heads on tokens in the transition layout, applied L times.

    Args:
        state_size: numbers in an observation, D.
        depth: layers L.
        kernel: name of the kernel.
        temperature: its δ; Q_h is free to learn any other.
        context_length: N; the values' weights are divided by it for kernels that sum over keys, so that weights of
            order 1 are the natural scale.
        generator: decides the initial weights.
    """

    def __init__(
        self,
        state_size: int,
        *,
        depth: int,
        kernel: KernelName,
        temperature: float,
        context_length: int,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.layout, self.depth, self.kernel, self.temperature = (
            Layout("transition", state_size),
            depth,
            kernel,
            temperature,
        )
        self.value_scale = 1.0 if kernel == "softmax" else 1 / context_length
        shape = (2, self.layout.num_rows, self.layout.num_rows)
        width = self.layout.num_rows**0.5
        # Small values' weights start the forward pass near the identity.
        self.value = nn.Parameter(torch.randn(shape, generator=generator) / (10 * self.layout.num_rows))
        self.query = nn.Parameter(torch.randn(shape, generator=generator) / width)
        self.key = nn.Parameter(torch.randn(shape, generator=generator) / width)

    def layers(self) -> list[LayerWeights]:
        """The weights of the L layers, all the same."""
        return [LayerWeights(self.value * self.value_scale, self.query, self.key)] * self.depth

    def forward(self, context: Transitions, query_BQD: Tensor) -> Tensor:
        """The queries' values after the last layer, ``[B, Q]``."""
        prompt = free_prompt(context, query_BQD)
        temperature = torch.as_tensor(self.temperature, dtype=query_BQD.dtype, device=query_BQD.device)
        return forward(prompt, self.layers(), kernel=self.kernel, temperature=temperature)[0][:, -1]


def free_prompt(context: Transitions, query_BQD: Tensor) -> Prompt:
    """Tokens in the transition layout with masks that tell neither head what it is for: both write every column."""
    prompt = transition_prompt(context, query_BQD)
    return replace(prompt, write_mask=torch.ones_like(prompt.write_mask))


@dataclass(frozen=True)
class FreeTraining:
    """How free weights are trained.

    Attributes:
        num_steps: optimiser steps.
        batch_size: tasks in a step.
        num_queries: held-out transitions of each task in a step.
        learning_rate: Adam's, falling to 0 as half a cosine.
        sparsity: weight of the L1 penalty on all weights, which makes what was learned readable.
    """

    num_steps: int = 600
    batch_size: int = 16
    num_queries: int = 6
    learning_rate: float = 2e-2
    sparsity: float = 1e-4


def semi_gradient_loss(model: nn.Module, context: Transitions, heldout: Transitions, discount: float) -> Tensor:
    """Mean TD loss of the held-out transitions, a scalar; its gradient takes the bootstrapped target as given."""
    value: Tensor = model(context, torch.cat([heldout.observation, heldout.next_observation], dim=1))
    at_state, at_successor = value[:, : heldout.length], value[:, heldout.length :].detach()
    return td_loss(heldout.reward, at_state, at_successor, heldout.terminated, heldout.mask, discount).mean()


def train_free(
    model: nn.Module,
    context: Transitions,
    heldout: Transitions,
    *,
    discount: float,
    training: FreeTraining,
    generator: torch.Generator,
) -> list[float]:
    """Multi-task TD: each step draws tasks, and transitions held out of their contexts, and follows the semi-gradient.

    Args:
        model: maps a context and queries to values; trained in place.
        context: one context of each task; synthetic or MetaWorld's.
        heldout: transitions of the same tasks.
        discount: γ.
        training: how to train.
        generator: decides the draws.

    Returns:
        The loss of every step, relative to the variance of the reward.
    """
    optimiser = torch.optim.Adam(model.parameters(), lr=training.learning_rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, training.num_steps)
    variance, losses = heldout.reward.var(), []
    for tasks, transitions in _draws(heldout, training, generator):
        loss = semi_gradient_loss(model, context[tasks], take(heldout[tasks], transitions), discount) / variance
        penalty = sum((weight.abs().sum() for weight in model.parameters()), torch.zeros(()))
        optimiser.zero_grad()
        torch.autograd.backward(loss + training.sparsity * penalty)
        # Early layers' values can be far off; one bad batch must not undo the rest.
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        losses.append(float(loss.detach()))
    return losses


def _draws(heldout: Transitions, training: FreeTraining, generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
    """Indices of tasks and of held-out transitions for every step."""
    for _ in range(training.num_steps):
        tasks = torch.randint(heldout.batch_size, (training.batch_size,), generator=generator)
        yield tasks, torch.randperm(heldout.length, generator=generator)[: training.num_queries]
