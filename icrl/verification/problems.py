"""Random evaluation problems for the checks: contexts as unlike MetaWorld's as possible, in float64."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from icrl.config import KernelName
from icrl.grams import clean, compute_grams
from icrl.types import Transitions

KERNELS: tuple[KernelName, ...] = ("linear", "relu", "exp", "softmax", "rbf")


@dataclass(frozen=True, eq=False)
class Problem:
    """One random context with everything a forward pass needs.

    Attributes:
        context: one context (B = 1), a contiguous trajectory without terminal states.
        query: ``[1, Q, D]``.
        temperature: δ.
        discount: γ.
    """

    context: Transitions
    query: Tensor
    temperature: float
    discount: float

    def step_sizes(self, kernel: KernelName, depth: int, generator: torch.Generator) -> Tensor:
        """``[L]``: random step sizes, different for each layer, up to 1 / (2 ‖A‖₂)."""
        grams = compute_grams(
            clean(self.context),
            self.query,
            kernel=kernel,
            temperature_TB=torch.full((1, 1), self.temperature, dtype=self.query.dtype),
            discount=self.discount,
        )
        norm = torch.linalg.matrix_norm(grams.operator[0], 2) * grams.scale[0]
        return torch.rand(depth, generator=generator, dtype=self.query.dtype).div(2 * norm)

    def with_episodes(self, generator: torch.Generator) -> "Problem":
        """The same context with a fifth of its transitions ending an episode."""
        terminated = torch.rand(1, self.context.length, generator=generator) < 0.2
        return replace(self, context=replace(self.context, terminated=terminated))


def random_problem(
    generator: torch.Generator, *, max_length: int = 100, num_queries: int = 5, discount: float = 0.9
) -> Problem:
    """A random walk of random length, speed and state size, with random rewards."""

    def integer(low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (1,), generator=generator))

    length, state_size = integer(2, max_length), integer(1, 6)
    steps = torch.randn(1, length + 1, state_size, generator=generator, dtype=torch.float64)
    state = steps.cumsum(dim=1) / length**0.5
    return Problem(
        context=Transitions(
            observation=state[:, :-1],
            reward=torch.randn(1, length, generator=generator, dtype=torch.float64),
            next_observation=state[:, 1:],
            terminated=torch.zeros(1, length, dtype=torch.bool),
            mask=torch.ones(1, length, dtype=torch.bool),
        ),
        query=torch.randn(1, num_queries, state_size, generator=generator, dtype=torch.float64),
        temperature=0.5 + 2 * float(torch.rand(1, generator=generator)),
        discount=discount,
    )
