"""The two data types that every module exchanges.

Shape letters: B batch of contexts, N transitions in a context, Q query states, D numbers in an observation,
A numbers in an action, S steps of an episode, T temperatures, L depth.
"""

from dataclasses import dataclass, fields

import numpy as np
import torch
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Episode:
    """One episode of one task: the behaviour policy's trajectory from reset to its last step.

    Attributes:
        domain: name of the domain, e.g. ``pick-place-v3``.
        tier: name of the noise tier, e.g. ``high``.
        task_seed: the integer that decides variation and action noise.
        episode: number of the episode within the task, from 0.
        observation: ``[S + 1, D]`` float32; the last row is the state after the last step.
        action: ``[S, A]`` float32, as given to the environment (noise added, then clipped).
        reward: ``[S]`` float64.
        terminated: ``[S]`` bool; true where the step led to a terminal state.
        truncated: ``[S]`` bool; true on the last step of an episode that was cut off by its time limit.
        success: ``[S]`` bool; MetaWorld's success flag of the step.
    """

    domain: str
    tier: str
    task_seed: int
    episode: int
    observation: NDArray[np.float32]
    action: NDArray[np.float32]
    reward: NDArray[np.float64]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    success: NDArray[np.bool_]

    @property
    def num_steps(self) -> int:
        """Number of steps S."""
        return len(self.reward)

    def __repr__(self) -> str:
        return (
            f"Episode({self.domain}, {self.tier}, task_seed={self.task_seed}, episode={self.episode}, "
            f"num_steps={self.num_steps}, observation={self.observation.shape} {self.observation.dtype}, "
            f"success={bool(self.success.any())})"
        )


@dataclass(frozen=True, eq=False)
class Transitions:
    """A batch of transition sets of equal length: a context, or the transitions held out of one.

    Attributes:
        observation: ``[B, N, D]`` floating; the state s.
        reward: ``[B, N]`` floating; the reward r of the step from s to s'.
        next_observation: ``[B, N, D]`` floating; the successor s'.
        terminated: ``[B, N]`` bool; where true, s' is terminal and its value is 0.
        mask: ``[B, N]`` bool; false marks padding, which neither changes a value nor counts in a metric.
    """

    observation: torch.Tensor
    reward: torch.Tensor
    next_observation: torch.Tensor
    terminated: torch.Tensor
    mask: torch.Tensor

    @property
    def batch_size(self) -> int:
        """Number of transition sets B."""
        return self.reward.shape[0]

    @property
    def length(self) -> int:
        """Transitions in each set, N, padding included."""
        return self.reward.shape[1]

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> "Transitions":
        """The same transitions on another device or with another floating dtype (flags stay bool)."""
        moved = {}
        for field in fields(self):
            tensor: torch.Tensor = getattr(self, field.name)
            moved[field.name] = tensor.to(device=device, dtype=dtype if tensor.is_floating_point() else None)
        return Transitions(**moved)

    def __getitem__(self, index: slice | torch.Tensor) -> "Transitions":
        """The transition sets that `index` picks along the batch axis."""
        return Transitions(**{field.name: getattr(self, field.name)[index] for field in fields(self)})

    def __repr__(self) -> str:
        shape = tuple(self.observation.shape)
        return f"Transitions(observation={shape} {self.observation.dtype}, padding={int((~self.mask).sum())})"


def concatenate(batches: list[Transitions]) -> Transitions:
    """Join transition sets of equal length along the batch axis."""
    return Transitions(
        **{field.name: torch.cat([getattr(b, field.name) for b in batches]) for field in fields(Transitions)}
    )
