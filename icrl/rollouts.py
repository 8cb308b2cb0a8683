"""One task's episodes: the scripted expert with Gaussian action noise, rolled out in its environment."""

import numpy as np
from numpy.typing import NDArray

from icrl.domains import Domain, Environment, UnstableSimulationError, noise_generator, variation_seed
from icrl.types import Episode


def rollout_task(
    domain: Domain,
    environment: Environment,
    *,
    tier: str,
    noise_std: float,
    task_seed: int,
    num_episodes: int,
    num_steps: int,
) -> list[Episode]:
    """Roll out every episode of one task.

    The behaviour policy is the expert's action plus Gaussian noise, clipped to [-1, 1]. `task_seed` alone decides the
    variation and the noise, so the result does not depend on what `environment` did before.

    Args:
        domain: the domain of the task.
        environment: an environment that `domain` made.
        tier: name of the noise tier.
        noise_std: standard deviation of the noise in every component of the action.
        task_seed: the integer that decides the task.
        num_episodes: episodes, all from the start of the same variation.
        num_steps: steps after which an episode is truncated.

    Raises:
        UnstableSimulationError: the simulation diverged; the message says where.
    """
    episodes = []
    for episode in range(num_episodes):
        observation = environment.reset_task(variation_seed(task_seed)) if episode == 0 else environment.reset()
        scale = noise_generator(task_seed, episode).standard_normal((num_steps, domain.action_size))
        try:
            steps = _roll_out(domain, environment, observation, noise_std * scale)
        except UnstableSimulationError as error:
            raise UnstableSimulationError(
                f"{domain.name}, tier {tier}, task seed {task_seed}, episode {episode}: {error}"
            ) from None
        episodes.append(Episode(domain.name, tier, task_seed, episode, *steps))
    return episodes


_Steps = tuple[
    NDArray[np.float32],
    NDArray[np.float32],
    NDArray[np.float64],
    NDArray[np.bool_],
    NDArray[np.bool_],
    NDArray[np.bool_],
]


def _roll_out(
    domain: Domain, environment: Environment, first_observation: NDArray[np.float32], noise_SA: NDArray[np.float64]
) -> _Steps:
    """Observation, action, reward, terminated, truncated and success of one episode of at most S steps."""
    num_steps = len(noise_SA)
    observation = np.empty((num_steps + 1, domain.observation_size), np.float32)
    action = np.empty((num_steps, domain.action_size), np.float32)
    reward = np.empty(num_steps, np.float64)
    terminated, truncated, success = (np.zeros(num_steps, np.bool_) for _ in range(3))
    observation[0] = first_observation
    for step in range(num_steps):
        noisy = environment.behaviour(observation[step]) + noise_SA[step]
        # Cheaper than `numpy.clip`, which shows beside a step of the physics.
        action[step] = np.minimum(np.maximum(noisy, -1.0), 1.0)
        observation[step + 1], reward[step], terminated[step], success[step] = environment.step(action[step])
        if terminated[step]:
            break
    taken = step + 1
    finite = np.isfinite(reward[:taken]) & np.isfinite(observation[1 : taken + 1]).all(axis=1)
    if not finite.all():
        raise UnstableSimulationError(f"observation or reward is not finite after step {int(finite.argmin())}")
    truncated[step] = not terminated[step]
    return (
        observation[: taken + 1],
        action[:taken],
        reward[:taken],
        terminated[:taken],
        truncated[:taken],
        success[:taken],
    )
