import numpy as np
import pytest
from metaworld.env_dict import ALL_V3_ENVIRONMENTS
from numpy.typing import NDArray

from icrl.datasets import content_digest
from icrl.domains import Domain, UnstableSimulationError, get_domain, noise_generator, variation_seed
from icrl.rollouts import rollout_task
from icrl.types import Episode


class Line:
    """A point on a line; a step adds the action, the reward is the new position, the end is beyond `limit`."""

    def __init__(self, limit: float = np.inf, bad_step: int | None = None, bad_reward: float = np.nan) -> None:
        self.limit, self.bad_step, self.bad_reward = limit, bad_step, bad_reward

    def reset_task(self, variation_seed: int) -> NDArray[np.float32]:
        self.start = np.float32(variation_seed % 7)
        return self.reset()

    def reset(self) -> NDArray[np.float32]:
        self.position, self.steps = self.start, 0
        return np.array([self.position], np.float32)

    def step(self, action: NDArray[np.float32]) -> tuple[NDArray[np.float32], float, bool, bool]:
        self.position += action[0]
        self.steps += 1
        reward = self.bad_reward if self.steps - 1 == self.bad_step else float(self.position)
        terminated = bool(self.position > self.limit)
        return np.array([self.position], np.float32), reward, terminated, self.steps == 2

    def behaviour(self, observation: NDArray[np.float32]) -> NDArray[np.float32]:
        return np.array([0.75], np.float32)


LINE = Domain("line", Line, observation_size=1, action_size=1)


def roll(environment: Line, noise_std: float = 0.0, num_episodes: int = 1, num_steps: int = 4) -> list[Episode]:
    return rollout_task(
        LINE,
        environment,
        tier="t",
        noise_std=noise_std,
        task_seed=11,
        num_episodes=num_episodes,
        num_steps=num_steps,
    )


def test_episode_without_noise_is_the_trajectory_worked_by_hand() -> None:
    start = variation_seed(11) % 7
    (episode,) = roll(Line())
    assert (episode.domain, episode.tier, episode.task_seed, episode.episode) == ("line", "t", 11, 0)
    np.testing.assert_array_equal(episode.observation[:, 0], start + 0.75 * np.arange(5))
    np.testing.assert_array_equal(episode.reward, start + 0.75 * np.arange(1, 5))
    np.testing.assert_array_equal(episode.action, np.full((4, 1), 0.75))
    assert not episode.terminated.any()
    np.testing.assert_array_equal(episode.truncated, [False, False, False, True])
    np.testing.assert_array_equal(episode.success, [False, True, False, False])
    dtypes = [getattr(episode, name).dtype for name in ("observation", "action", "reward", "success")]
    assert dtypes == [np.float32, np.float32, np.float64, np.bool_]


def test_termination_ends_the_episode_early() -> None:
    limit = variation_seed(11) % 7 + 1.0
    first, second = roll(Line(limit), num_episodes=2)
    for episode in (first, second):
        assert episode.num_steps == 2
        assert len(episode.observation) == 3
        np.testing.assert_array_equal(episode.terminated, [False, True])
        assert not episode.truncated.any()


def test_noise_has_the_tiers_deviation_and_is_clipped() -> None:
    mild, strong = (roll(Line(), noise_std=std, num_steps=4000)[0].action[:, 0] for std in (0.05, 5.0))
    assert abs(mild.mean() - 0.75) < 0.005
    assert abs(mild.std() - 0.05) < 0.005
    assert strong.min() == -1
    assert strong.max() == 1


def test_episodes_of_a_task_share_the_start_but_not_the_noise() -> None:
    first, second = roll(Line(), noise_std=0.1, num_episodes=2)
    assert first.observation[0] == second.observation[0]
    assert not np.array_equal(first.action, second.action)
    assert [first.episode, second.episode] == [0, 1]


@pytest.mark.parametrize("bad_reward", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_not_finite_are_refused_with_their_place(bad_reward: float) -> None:
    with pytest.raises(UnstableSimulationError, match=r"line, tier t, task seed 11, episode 0: .* step 2"):
        roll(Line(bad_step=2, bad_reward=bad_reward))


def roll_metaworld(name: str, task_seed: int, history: tuple[int, ...] = ()) -> list[Episode]:
    domain = get_domain(name)
    environment = domain.make_environment()
    for seed in (*history, task_seed):
        episodes = rollout_task(
            domain, environment, tier="high", noise_std=1.0, task_seed=seed, num_episodes=2, num_steps=40
        )
    return episodes


def test_metaworld_answers_the_recorded_actions_with_the_recorded_episode() -> None:
    """Replay through MetaWorld's own interface, with its task object instead of our seeding."""
    (episode, _) = roll_metaworld("pick-place-v3", 5)
    environment = ALL_V3_ENVIRONMENTS["pick-place-v3"]()
    environment._partially_observable = False
    del environment.sawyer_observation_space
    environment._set_task_called = True
    space = environment._random_reset_space
    assert space is not None
    draws = np.random.Generator(np.random.PCG64(variation_seed(5))).uniform(space.low, space.high, size=(2, 6))
    environment._last_rand_vec = draws[1]  # A reset draws twice and keeps the second.
    environment._freeze_rand_vec = True
    observation, _ = environment.reset()
    np.testing.assert_array_equal(observation.astype(np.float32), episode.observation[0])
    for step in range(episode.num_steps):
        observation, reward, _, _, info = environment.step(episode.action[step])
        np.testing.assert_array_equal(observation.astype(np.float32), episode.observation[step + 1])
        assert float(reward) == episode.reward[step]
        assert bool(info["success"]) == episode.success[step]


@pytest.mark.filterwarnings("ignore:Constant")
def test_behaviour_is_the_scripted_expert_plus_the_tasks_noise() -> None:
    from metaworld.policies import SawyerPickPlaceV3Policy

    (_, episode) = roll_metaworld("pick-place-v3", 5)
    noise = noise_generator(5, 1).standard_normal((40, 4))
    policy = SawyerPickPlaceV3Policy()
    expert = np.array([policy.get_action(row.astype(np.float64)) for row in episode.observation[:-1]])
    np.testing.assert_array_equal(episode.action, np.clip(expert + noise, -1, 1).astype(np.float32))


def test_task_does_not_depend_on_what_its_environment_did_before() -> None:
    fresh, used = roll_metaworld("box-close-v3", 5), roll_metaworld("box-close-v3", 5, history=(6, 7))
    assert content_digest(fresh) == content_digest(used)
    assert content_digest(fresh) != content_digest(roll_metaworld("box-close-v3", 6))
