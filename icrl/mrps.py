"""Synthetic Markov reward processes whose exact value is known: the ground truth of the theory's checks.

Both kinds hold B independent processes at once, so that many random tasks are drawn and sampled together.

Shape letters: B processes, N transitions, Q queries, D numbers in an observation, S states, M centres.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from icrl.config import KernelName
from icrl.kernels import gram
from icrl.types import Transitions


@dataclass(frozen=True, eq=False)
class Draw:
    """A context of every process, with queries whose value is known exactly.

    Attributes:
        context: B contexts.
        query: ``[B, Q, D]``.
        query_value: ``[B, Q]``, the exact value.
    """

    context: Transitions
    query: Tensor
    query_value: Tensor


@dataclass(frozen=True, eq=False)
class KernelProcesses:
    """Random walks in the box [−1, 1]^D, reflected at its walls, whose value lies in a chosen kernel's RKHS.

    The value is chosen first, v(x) = Σ_m a_m κ(x, c_m), and the reward follows from it: a step from s to s' pays
    v(s) − γ v(s'), so that v solves the Bellman equation exactly and has no TD error on any transition. The walk's
    stationary distribution is uniform.

    Attributes:
        kernel: name of the kernel; softmax has no RKHS of its own and is refused by `random_kernel_processes`.
        temperature: its δ.
        discount: γ.
        centre: ``[B, M, D]``, c.
        coefficient: ``[B, M]``, a.
        step: standard deviation of a step in each coordinate.
    """

    kernel: KernelName
    temperature: float
    discount: float
    centre: Tensor
    coefficient: Tensor
    step: float

    def value(self, state_BQD: Tensor) -> Tensor:
        """The exact value ``[B, Q]``."""
        delta = torch.as_tensor(self.temperature, dtype=state_BQD.dtype)
        return (gram(self.kernel, state_BQD, self.centre, delta) @ self.coefficient.unsqueeze(-1)).squeeze(-1)

    def sample(self, length: int, num_queries: int, generator: torch.Generator) -> Draw:
        """A contiguous trajectory of each process from a stationary start, and independent stationary queries."""
        batch_size, _, state_size = self.centre.shape
        dtype = self.centre.dtype
        start_B1D = 2 * torch.rand(batch_size, 1, state_size, generator=generator, dtype=dtype) - 1
        steps_BND = self.step * torch.randn(batch_size, length, state_size, generator=generator, dtype=dtype)
        state = _reflect(torch.cat([start_B1D, start_B1D + steps_BND.cumsum(dim=1)], dim=1))
        value = self.value(state)
        query = 2 * torch.rand(batch_size, num_queries, state_size, generator=generator, dtype=dtype) - 1
        context = Transitions(
            observation=state[:, :-1],
            reward=value[:, :-1] - self.discount * value[:, 1:],
            next_observation=state[:, 1:],
            terminated=torch.zeros(batch_size, length, dtype=torch.bool),
            mask=torch.ones(batch_size, length, dtype=torch.bool),
        )
        return Draw(context, query, self.value(query))


def _reflect(position: Tensor) -> Tensor:
    """Fold the real line onto [−1, 1] as by mirrors at both ends."""
    return torch.abs(torch.remainder(position - 1, 4) - 2) - 1


def random_kernel_processes(
    num_processes: int,
    *,
    kernel: KernelName,
    temperature: float,
    discount: float,
    generator: torch.Generator,
    state_size: int = 2,
    num_centres: int = 10,
    step: float = 0.3,
    dtype: torch.dtype = torch.float64,
) -> KernelProcesses:
    """Random tasks: uniform centres, normal coefficients, scaled to a value of unit variance over the box."""
    assert kernel != "softmax", "softmax is no reproducing kernel"
    centre = 2 * torch.rand(num_processes, num_centres, state_size, generator=generator, dtype=dtype) - 1
    coefficient = torch.randn(num_processes, num_centres, generator=generator, dtype=dtype)
    unscaled = KernelProcesses(kernel, temperature, discount, centre, coefficient, step)
    probe = 2 * torch.rand(num_processes, 1000, state_size, generator=generator, dtype=dtype) - 1
    spread_B1 = unscaled.value(probe).std(dim=1, keepdim=True)
    return KernelProcesses(kernel, temperature, discount, centre, coefficient / spread_B1, step)


@dataclass(frozen=True, eq=False)
class FiniteProcesses:
    """Finite Markov reward processes that show a feature vector for each state.

    Attributes:
        transition: ``[B, S, S]``, probability of each successor (column) in each state (row).
        reward: ``[B, S]``, paid on leaving a state.
        terminal: ``[S]`` bool; reaching such a state ends the episode, and the next starts from `initial`.
        initial: ``[S]``, distribution of an episode's first state.
        feature: ``[B, S, D]``, the observation of each state.
        discount: γ.
    """

    transition: Tensor
    reward: Tensor
    terminal: Tensor
    initial: Tensor
    feature: Tensor
    discount: float

    def value(self) -> Tensor:
        """The exact values ``[B, S]``, by solving (I − γ P) v = r; 0 at terminal states."""
        going_on = self.transition.masked_fill(self.terminal, 0)
        identity = torch.eye(len(self.terminal), dtype=going_on.dtype)
        value: Tensor = torch.linalg.solve(identity - self.discount * going_on, self.reward.unsqueeze(-1)).squeeze(-1)
        return value.masked_fill(self.terminal, 0)

    def sample(self, length: int, generator: torch.Generator) -> Draw:
        """A stream of transitions of each process, several episodes where they end; the queries are all live states."""
        batch_size = len(self.reward)
        each = torch.arange(batch_size)
        state = torch.multinomial(self.initial, batch_size, replacement=True, generator=generator)
        states, successors = [], []
        for _ in range(length):
            successor = torch.multinomial(self.transition[each, state], 1, generator=generator).squeeze(-1)
            states.append(state)
            successors.append(successor)
            fresh = torch.multinomial(self.initial, batch_size, replacement=True, generator=generator)
            state = torch.where(self.terminal[successor], fresh, successor)
        state_BN, successor_BN = torch.stack(states, dim=1), torch.stack(successors, dim=1)
        row = each.unsqueeze(-1)
        context = Transitions(
            observation=self.feature[row, state_BN],
            reward=self.reward[row, state_BN],
            next_observation=self.feature[row, successor_BN],
            terminated=self.terminal[successor_BN],
            mask=torch.ones(batch_size, length, dtype=torch.bool),
        )
        live = ~self.terminal
        return Draw(context, self.feature[:, live], self.value()[:, live])


def boyan_chains(
    num_processes: int,
    *,
    discount: float,
    generator: torch.Generator,
    num_states: int = 13,
    state_size: int = 4,
    dtype: torch.dtype = torch.float64,
) -> FiniteProcesses:
    """Boyan's chain (Machine Learning 49, 2002) with random normal features and random rewards.

    State i moves to i − 1 or i − 2 with equal probability, state 1 to 0; state 0 is terminal, and episodes start at the
    other end.
    """
    transition = torch.zeros(num_states, num_states, dtype=dtype)
    for state in range(2, num_states):
        transition[state, [state - 1, state - 2]] = 0.5
    # The terminal state's own row is never used, but has to be a distribution.
    transition[0, 0] = transition[1, 0] = 1
    terminal, initial = torch.zeros(num_states, dtype=torch.bool), torch.zeros(num_states, dtype=dtype)
    terminal[0], initial[-1] = True, 1
    return FiniteProcesses(
        transition=transition.expand(num_processes, -1, -1),
        reward=torch.randn(num_processes, num_states, generator=generator, dtype=dtype),
        terminal=terminal,
        initial=initial,
        feature=_random_features(num_processes, num_states, state_size, generator, dtype),
        discount=discount,
    )


def loops(
    num_processes: int,
    *,
    discount: float,
    generator: torch.Generator,
    num_states: int = 10,
    state_size: int = 4,
    forward_probability: float = 0.9,
    dtype: torch.dtype = torch.float64,
) -> FiniteProcesses:
    """Rings of states: one step onwards with the given probability, else none; random features and rewards."""
    stay = torch.eye(num_states, dtype=dtype)
    transition = forward_probability * stay.roll(1, dims=1) + (1 - forward_probability) * stay
    return FiniteProcesses(
        transition=transition.expand(num_processes, -1, -1),
        reward=torch.randn(num_processes, num_states, generator=generator, dtype=dtype),
        terminal=torch.zeros(num_states, dtype=torch.bool),
        initial=torch.full((num_states,), 1 / num_states, dtype=dtype),
        feature=_random_features(num_processes, num_states, state_size, generator, dtype),
        discount=discount,
    )


def _random_features(
    num_processes: int, num_states: int, state_size: int, generator: torch.Generator, dtype: torch.dtype
) -> Tensor:
    """Normal features of unit mean square norm."""
    feature = torch.randn(num_processes, num_states, state_size, generator=generator, dtype=dtype)
    return feature / math.sqrt(state_size)
