"""Monte-Carlo ground truth: values of single states from many rollouts that start exactly there.

The return along one recorded trajectory is one noisy sample of a state's value. Here the simulator is put back into the
state itself, and the behaviour policy is rolled out from it again and again with fresh action noise. The mean of the
returns estimates the value, and their spread its standard error.

What is restored is the whole physical state, velocities and contacts included, of which an observation shows a part.

Shape letters: Q states, R rollouts, A numbers in an action.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from icrl.domains import Domain, Environment, Observation, variation_seed
from icrl.errors import InputError
from icrl.types import Episode

MAX_TAIL_WEIGHT = 1e-3
"""Rollouts go on until the weight γ^k of all that follows is at most this."""


@runtime_checkable
class RestorableEnvironment(Environment, Protocol):
    """An environment whose simulator can be put back into an earlier state, bit for bit."""

    def save_state(self) -> Any:
        """Everything that the steps to come depend on."""
        ...

    def restore_state(self, state: Any) -> None:
        """Return to a saved state, as often as wanted."""
        ...


@dataclass(frozen=True)
class MonteCarloValues:
    """Values of Q states of one episode.

    Attributes:
        step: ``[Q]``, the steps of the episode whose states they are.
        value: ``[Q]`` float64, mean of the rollouts' discounted returns.
        standard_error: ``[Q]`` float64, of that mean.
        num_rollouts: R.
    """

    step: NDArray[np.intp]
    value: NDArray[np.float64]
    standard_error: NDArray[np.float64]
    num_rollouts: int


def rollout_horizon(discount: float) -> int:
    """Steps after which γ^k is at most `MAX_TAIL_WEIGHT`; 1 when the discount is 0."""
    return 1 if discount == 0 else int(np.ceil(np.log(MAX_TAIL_WEIGHT) / np.log(discount)))


def monte_carlo_values(
    domain: Domain,
    environment: Environment,
    episode: Episode,
    *,
    noise_std: float,
    steps: Sequence[int],
    num_rollouts: int,
    discount: float,
    generator: np.random.Generator,
) -> MonteCarloValues:
    """Values of the states at some steps of a recorded episode, under the policy that recorded it.

    The episode is replayed from its task's seed with its recorded actions, and must come out as recorded; at each of
    the steps the simulator's state is saved, rolled out from, and restored.

    Args:
        domain: the domain of the episode.
        environment: an environment that `domain` made.
        episode: the first episode of a task.
        noise_std: standard deviation of the behaviour policy's noise.
        steps: which states, from 0 to S − 1, ascending.
        num_rollouts: R, at least 2.
        discount: γ.
        generator: source of the rollouts' noise.

    Raises:
        InputError: the environment cannot restore states, or replays the episode differently than it was recorded.
        UnstableSimulationError: a rollout's simulation diverged.
    """
    if not isinstance(environment, RestorableEnvironment):
        raise InputError(
            f"domain {domain.name} cannot restore states, so its values cannot be sampled; "
            "give its environment save_state and restore_state"
        )
    assert num_rollouts >= 2, "a standard error needs two rollouts"
    observation = environment.reset_task(variation_seed(episode.task_seed))
    returns = []
    for step in range(max(steps) + 1):
        if not np.array_equal(observation, episode.observation[step]):
            raise InputError(
                f"{episode!r} comes out differently at step {step} when replayed; collect it again with these versions"
            )
        if step in steps:
            returns.append(_returns(domain, environment, observation, noise_std, num_rollouts, discount, generator))
        observation, *_ = environment.step(episode.action[step])
    returns_QR = np.stack(returns)
    return MonteCarloValues(
        step=np.asarray(steps),
        value=returns_QR.mean(axis=1),
        standard_error=returns_QR.std(axis=1, ddof=1) / np.sqrt(num_rollouts),
        num_rollouts=num_rollouts,
    )


def _returns(
    domain: Domain,
    environment: RestorableEnvironment,
    start: Observation,
    noise_std: float,
    num_rollouts: int,
    discount: float,
    generator: np.random.Generator,
) -> NDArray[np.float64]:
    """Discounted returns ``[R]`` of rollouts from the environment's state, in which it is left."""
    state = environment.save_state()
    weight = discount ** np.arange(rollout_horizon(discount))
    returns = np.empty(num_rollouts)
    for rollout in range(num_rollouts):
        noise_HA = noise_std * generator.standard_normal((len(weight), domain.action_size))
        observation, rewards = start, np.zeros(len(weight))
        for step, noise_A in enumerate(noise_HA):
            action = (environment.behaviour(observation) + noise_A).clip(-1.0, 1.0).astype(np.float32)
            observation, rewards[step], terminated, _ = environment.step(action)
            if terminated:
                break
        returns[rollout] = weight @ rewards
        environment.restore_state(state)
    return returns
