from collections.abc import Sequence

import numpy as np
import pytest
import torch

from icrl.contexts import HeldOut, context_generator, draw_contexts, split_tasks, transitions_of
from icrl.errors import InputError
from icrl.types import Episode, Transitions


def numbered_episode(first: int, num_steps: int, terminated: bool = False) -> Episode:
    """State t is (first + t, -(first + t)) and the reward of step t is first + t: each is recognisable."""
    numbers = np.arange(first, first + num_steps + 1)
    last = np.arange(num_steps) == num_steps - 1
    return Episode(
        domain="line",
        tier="high",
        task_seed=0,
        episode=first,
        observation=np.stack([numbers, -numbers], axis=1).astype(np.float32),
        action=np.zeros((num_steps, 1), np.float32),
        reward=numbers[:-1].astype(np.float64),
        terminated=last & terminated,
        truncated=last & (not terminated),
        success=np.zeros(num_steps, np.bool_),
    )


def draw(
    episodes: Sequence[Episode], seed: int = 0, dtype: torch.dtype = torch.float64, num_contexts: int = 3
) -> tuple[Transitions, HeldOut]:
    return draw_contexts(
        episodes,
        num_contexts=num_contexts,
        context_length=6,
        num_heldout=4,
        discount=0.5,
        generator=np.random.default_rng(seed),
        dtype=dtype,
    )


def test_transitions_join_episodes_without_a_step_across_the_seam() -> None:
    task = transitions_of([numbered_episode(0, 3), numbered_episode(10, 2, terminated=True)], discount=0.5)
    np.testing.assert_array_equal(task.observation[:, 0], [0, 1, 2, 10, 11])
    np.testing.assert_array_equal(task.next_observation[:, 0], [1, 2, 3, 11, 12])
    np.testing.assert_array_equal(task.reward, [0, 1, 2, 10, 11])
    np.testing.assert_array_equal(task.terminated, [False, False, False, False, True])


@pytest.mark.parametrize("discount", [0.0, 0.5, 0.9])
def test_returns_are_the_discounted_sums_to_the_end(discount: float) -> None:
    rewards = np.random.default_rng(0).standard_normal(30)
    episode = numbered_episode(0, 30)
    object.__setattr__(episode, "reward", rewards)
    found = transitions_of([episode], discount).monte_carlo_return
    expected = [sum(discount**k * rewards[t + k] for k in range(30 - t)) for t in range(30)]
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize(
    ("discount", "terminated", "num_complete"),
    [
        (0.9, False, 57),  # 0.9^44 is the first power at or below 0.01: states with 44 or more steps left, of 100.
        (0.5, False, 94),  # 0.5^7
        (0.0, False, 100),
        (0.999, False, 0),
        (0.999, True, 100),
    ],
)
def test_return_is_complete_when_the_cut_off_tail_weighs_little(
    discount: float, terminated: bool, num_complete: int
) -> None:
    complete = transitions_of([numbered_episode(0, 100, terminated)], discount).has_return
    np.testing.assert_array_equal(complete, np.arange(100) < num_complete)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_draws_have_the_documented_shapes_and_dtypes(dtype: torch.dtype) -> None:
    context, heldout = draw([numbered_episode(0, 20)], dtype=dtype)
    assert context.observation.shape == context.next_observation.shape == (3, 6, 2)
    assert context.reward.shape == context.terminated.shape == (3, 6)
    assert heldout.transitions.observation.shape == (3, 4, 2)
    assert heldout.monte_carlo_return.shape == heldout.has_return.shape == (3, 4)
    for transitions in (context, heldout.transitions):
        assert transitions.observation.dtype == transitions.reward.dtype == dtype
        assert transitions.terminated.dtype == torch.bool
        assert transitions.mask.all()
    assert heldout.monte_carlo_return.dtype == dtype


def test_context_and_heldout_are_disjoint_and_without_repetition() -> None:
    context, heldout = draw([numbered_episode(0, 7), numbered_episode(100, 3)], num_contexts=20)
    everything = {*range(7), *range(100, 103)}
    for row in range(20):
        drawn = [*context.reward[row].tolist(), *heldout.transitions.reward[row].tolist()]
        assert len(drawn) == len(set(drawn)) == 10
        assert set(drawn) == everything


def test_parts_of_a_transition_stay_together() -> None:
    episodes = [numbered_episode(0, 10), numbered_episode(100, 5, terminated=True)]
    task = transitions_of(episodes, 0.5)
    expected_return = dict(zip(task.reward, task.monte_carlo_return, strict=True))
    context, heldout = draw(episodes)
    for transitions in (context, heldout.transitions):
        torch.testing.assert_close(transitions.observation[..., 0], transitions.reward)
        torch.testing.assert_close(transitions.observation[..., 1], -transitions.reward)
        torch.testing.assert_close(transitions.next_observation[..., 0], transitions.reward + 1)
        torch.testing.assert_close(transitions.terminated, transitions.reward == 104)
    rewards = heldout.transitions.reward
    torch.testing.assert_close(heldout.monte_carlo_return, rewards.clone().apply_(lambda r: expected_return[r]))
    # 0.5^7 is the first power at or below 0.01; the first episode has 10 steps, the second terminates.
    torch.testing.assert_close(heldout.has_return, (rewards <= 3) | (rewards >= 100))


def test_every_transition_is_equally_likely_in_a_context() -> None:
    num_contexts = 4000
    context, heldout = draw([numbered_episode(0, 20)], num_contexts=num_contexts)
    for drawn, length in ((context, 6), (heldout.transitions, 4)):
        share = np.bincount(drawn.reward.flatten().int().numpy(), minlength=20) / num_contexts
        deviation = np.sqrt(length / 20 * (1 - length / 20) / num_contexts)
        np.testing.assert_allclose(share, length / 20, atol=5 * deviation)


def test_draws_follow_the_generator() -> None:
    episodes = [numbered_episode(0, 20)]
    first, again, other = draw(episodes, 1)[0], draw(episodes, 1)[0], draw(episodes, 2)[0]
    torch.testing.assert_close(first.reward, again.reward)
    assert not torch.equal(first.reward, other.reward)


@pytest.mark.parametrize("num_steps", [1, 9])
def test_too_short_a_task_is_refused(num_steps: int) -> None:
    with pytest.raises(InputError, match=rf"has {num_steps} transitions, .* is 10"):
        draw([numbered_episode(0, num_steps)])


@pytest.mark.parametrize(
    ("num_tasks", "fit", "validation", "test"),
    [
        (4, range(1), range(1, 2), range(2, 4)),
        (5, range(1), range(1, 2), range(2, 5)),
        (8, range(3), range(3, 4), range(4, 8)),
        (24, range(9), range(9, 12), range(12, 24)),
    ],
)
def test_split_of_the_source_tier(num_tasks: int, fit: range, validation: range, test: range) -> None:
    assert split_tasks(num_tasks) == (fit, validation, test)


@pytest.mark.parametrize("num_tasks", range(4, 40))
def test_split_uses_every_task_once_and_leaves_none_empty(num_tasks: int) -> None:
    parts = split_tasks(num_tasks)
    assert all(parts)
    assert [index for part in parts for index in part] == list(range(num_tasks))


def test_context_generators_differ_in_every_part_of_their_name_and_in_nothing_else() -> None:
    names = [
        (seed, domain, tier, index, purpose)
        for seed in (0, 1)
        for domain in ("a", "b")
        for tier in ("low", "high")
        for index in (0, 1)
        for purpose in ("tune", "fit")
    ]
    draws = [context_generator(*name).integers(2**63) for name in names]
    assert len(set(draws)) == len(names)
    assert draws == [context_generator(*name).integers(2**63) for name in names]
