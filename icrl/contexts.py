"""Episodes -> contexts and held-out transitions, and the split of tasks into fit, validation and test.

Shape letters as in `icrl.types`: C contexts of a task, N transitions of a context, H transitions held out of it,
M transitions of the task, D numbers in an observation.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from icrl.errors import InputError
from icrl.seeds import derived_seed
from icrl.types import Episode, Transitions

MAX_TAIL_WEIGHT = 0.01
"""A return counts as complete when what lies beyond the episode's end weighs at most this share."""


@dataclass(frozen=True, eq=False)
class TaskTransitions:
    """All transitions of one task, with Monte-Carlo returns.

    Attributes:
        observation: ``[M, D]`` float32.
        reward: ``[M]`` float64.
        next_observation: ``[M, D]`` float32.
        terminated: ``[M]`` bool.
        monte_carlo_return: ``[M]`` float64; discounted sum of the rewards from here to the episode's end.
        has_return: ``[M]`` bool; whether that sum is complete enough to stand for the value.
    """

    observation: NDArray[np.float32]
    reward: NDArray[np.float64]
    next_observation: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    monte_carlo_return: NDArray[np.float64]
    has_return: NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Transitions held out of contexts, with ground truth for the value of their states.

    Attributes:
        transitions: ``[C, H]`` transitions.
        monte_carlo_return: ``[C, H]`` floating; discounted return along the trajectory from the state.
        has_return: ``[C, H]`` bool; false where the episode was cut off too early for that to be the value.
    """

    transitions: Transitions
    monte_carlo_return: torch.Tensor
    has_return: torch.Tensor


def transitions_of(episodes: Sequence[Episode], discount: float) -> TaskTransitions:
    """All transitions of one task's episodes, in order.

    The return of the state at step t is G_t = r_t + γ G_{t+1}, with G = 0 after the last step. It is complete enough
    when the episode terminated, or when γ^k, the weight of all that a truncation cut off k steps later, is at most
    `MAX_TAIL_WEIGHT`.
    """
    returns = [_returns(episode, discount) for episode in episodes]
    return TaskTransitions(
        observation=np.concatenate([episode.observation[:-1] for episode in episodes]),
        reward=np.concatenate([episode.reward for episode in episodes]),
        next_observation=np.concatenate([episode.observation[1:] for episode in episodes]),
        terminated=np.concatenate([episode.terminated for episode in episodes]),
        monte_carlo_return=np.concatenate([values for values, _ in returns]),
        has_return=np.concatenate([complete for _, complete in returns]),
    )


def draw_contexts(
    episodes: Sequence[Episode],
    *,
    num_contexts: int,
    context_length: int,
    num_heldout: int,
    discount: float,
    generator: np.random.Generator,
    dtype: torch.dtype = torch.float32,
) -> tuple[Transitions, HeldOut]:
    """Draw contexts of one task, each with transitions held out of it.

    Every context is a uniformly random subset of the task's transitions, without replacement; its held-out transitions
    are a uniformly random subset of the others.

    Args:
        episodes: the task's episodes.
        num_contexts: contexts C, drawn independently.
        context_length: transitions N of a context.
        num_heldout: transitions H held out of each context.
        discount: discount factor γ of the returns.
        generator: source of all draws.
        dtype: floating dtype of the result.

    Returns:
        The contexts ``[C, N]`` and what was held out of each ``[C, H]``.

    Raises:
        InputError: the task has fewer than N + H transitions.
    """
    task = transitions_of(episodes, discount)
    available, needed = len(task.reward), context_length + num_heldout
    if available < needed:
        raise InputError(
            f"{episodes[0]!r}: the task has {available} transitions, context_length + num_heldout is {needed}; "
            "lower them or collect longer episodes"
        )
    order = np.stack([generator.permutation(available)[:needed] for _ in range(num_contexts)])
    context, heldout = order[:, :context_length], order[:, context_length:]
    return _gather(task, context, dtype), HeldOut(
        transitions=_gather(task, heldout, dtype),
        monte_carlo_return=torch.from_numpy(task.monte_carlo_return[heldout]).to(dtype),
        has_return=torch.from_numpy(task.has_return[heldout]),
    )


def split_tasks(num_tasks: int) -> tuple[range, range, range]:
    """Task indices of the source tier for fitting, for validation and for testing.

    The second half is for testing; a quarter of the first half, at least one task, is for validation. Every task of
    another tier is a test task.

    Args:
        num_tasks: tasks of a domain at the tier, at least 4.
    """
    assert num_tasks >= 4, "collect.tasks_per_tier is at least 4"
    half = num_tasks // 2
    fit = half - max(1, half // 4)
    return range(fit), range(fit, half), range(half, num_tasks)


def context_generator(seed: int, domain: str, tier: str, task_index: int, purpose: str) -> np.random.Generator:
    """The generator of one task's contexts for one purpose, the same whichever worker draws them and when."""
    return np.random.default_rng(derived_seed("contexts", seed, domain, tier, task_index, purpose))


def _returns(episode: Episode, discount: float) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    values = np.empty(episode.num_steps)
    value = 0.0
    for step in reversed(range(episode.num_steps)):
        value = episode.reward[step] + discount * value
        values[step] = value
    steps_left = np.arange(episode.num_steps, 0, -1)
    return values, episode.terminated[-1] | (discount**steps_left <= MAX_TAIL_WEIGHT)


def _gather(task: TaskTransitions, index: NDArray[np.intp], dtype: torch.dtype) -> Transitions:
    return Transitions(
        observation=torch.from_numpy(task.observation[index]).to(dtype),
        reward=torch.from_numpy(task.reward[index]).to(dtype),
        next_observation=torch.from_numpy(task.next_observation[index]).to(dtype),
        terminated=torch.from_numpy(task.terminated[index]),
        mask=torch.ones(index.shape, dtype=torch.bool),
    )
