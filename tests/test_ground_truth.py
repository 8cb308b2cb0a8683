"""Restored states, bit for bit in MetaWorld; Monte-Carlo values against a process whose values are known."""

import numpy as np
import pytest
from numpy.typing import NDArray

from icrl.domains import Domain, MetaWorldEnvironment, get_domain, variation_seed
from icrl.errors import InputError
from icrl.ground_truth import RestorableEnvironment, monte_carlo_values, rollout_horizon
from icrl.rollouts import rollout_task
from icrl.types import Episode


class Cliff:
    """A point that follows its noise; the reward is the action, and beyond 2.6 the episode ends."""

    def reset_task(self, variation_seed: int) -> NDArray[np.float32]:
        self.position = 2.5
        return np.full(1, 2.5, np.float32)

    def reset(self) -> NDArray[np.float32]:
        return self.reset_task(0)

    def step(self, action: NDArray[np.float32]) -> tuple[NDArray[np.float32], float, bool, bool]:
        self.position += float(action[0])
        return np.array([self.position], np.float32), float(action[0]), self.position > 2.6, False

    def behaviour(self, observation: NDArray[np.float32]) -> NDArray[np.float32]:
        return np.full(1, 0.5, np.float32)


class RestorableCliff(Cliff):
    def save_state(self) -> float:
        return self.position

    def restore_state(self, state: float) -> None:
        self.position = state


CLIFF = Domain("cliff", RestorableCliff, observation_size=1, action_size=1)


def record(domain: Domain, noise_std: float, num_steps: int, seed: int = 4) -> Episode:
    (episode,) = rollout_task(
        domain,
        domain.make_environment(),
        tier="t",
        noise_std=noise_std,
        task_seed=seed,
        num_episodes=1,
        num_steps=num_steps,
    )
    return episode


@pytest.mark.parametrize("name", ["button-press-v3", "pick-place-v3", "door-open-v3"])
@pytest.mark.parametrize("plain", [False, True])
def test_metaworld_goes_on_from_a_restored_state_as_it_did_before(name: str, plain: bool) -> None:
    environment = MetaWorldEnvironment(name) if plain else get_domain(name).make_environment()
    assert isinstance(environment, RestorableEnvironment)
    noise = np.random.default_rng(0).standard_normal((70, 4)) * 0.4
    actions, path, states = [], [environment.reset_task(variation_seed(3))], {}
    rewards = []
    for step in range(70):
        if step in (0, 1, 35, 60):
            states[step] = environment.save_state()
        actions.append((environment.behaviour(path[-1]) + noise[step]).clip(-1, 1).astype(np.float32))
        observation, reward, _, _ = environment.step(actions[-1])
        path.append(observation)
        rewards.append(reward)
    # Twice from each, in another order, so that no restored state lives on what another left.
    for start in (35, 0, 60, 35, 1):
        environment.restore_state(states[start])
        for step in range(start, start + 10):
            observation, reward, _, _ = environment.step(actions[step])
            np.testing.assert_array_equal(observation, path[step + 1])
            assert reward == rewards[step]


def test_without_noise_the_value_is_the_recorded_return() -> None:
    domain, discount = get_domain("reach-v3"), 0.8
    episode = record(domain, 0.0, 60)
    environment = domain.make_environment()
    result = monte_carlo_values(
        domain,
        environment,
        episode,
        noise_std=0.0,
        steps=[0, 7, 20],
        num_rollouts=2,
        discount=discount,
        generator=np.random.default_rng(0),
    )
    horizon = rollout_horizon(discount)
    expected = [discount ** np.arange(horizon) @ episode.reward[step : step + horizon] for step in (0, 7, 20)]
    np.testing.assert_allclose(result.value, expected, rtol=1e-12)
    np.testing.assert_allclose(result.standard_error, 0, atol=1e-12)


def test_noisy_values_lie_within_their_standard_errors_of_the_truth() -> None:
    # The first step, 0.5 with noise 0.1, ends the episode but for one in 30 000.
    episode = record(CLIFF, 0.1, 4)
    assert episode.num_steps == 1
    result = monte_carlo_values(
        CLIFF,
        RestorableCliff(),
        episode,
        noise_std=0.1,
        steps=[0],
        num_rollouts=400,
        discount=0.9,
        generator=np.random.default_rng(1),
    )
    assert result.standard_error[0] == pytest.approx(0.1 / 20, rel=0.2)
    assert abs(result.value[0] - 0.5) < 4 * result.standard_error[0]


def test_the_horizon_leaves_a_thousandth() -> None:
    assert 0.9 ** rollout_horizon(0.9) <= 1e-3 < 0.9 ** (rollout_horizon(0.9) - 1)
    assert rollout_horizon(0.0) == 1


def test_an_environment_that_cannot_restore_and_an_episode_of_other_making_are_refused() -> None:
    def sample(environment: Cliff, episode: Episode) -> None:
        monte_carlo_values(
            CLIFF,
            environment,
            episode,
            noise_std=0.1,
            steps=[0],
            num_rollouts=2,
            discount=0.9,
            generator=np.random.default_rng(0),
        )

    episode = record(CLIFF, 0.1, 4)
    with pytest.raises(InputError, match="save_state"):
        sample(Cliff(), episode)
    episode.observation[0] += 1
    with pytest.raises(InputError, match="step 0"):
        sample(RestorableCliff(), episode)
