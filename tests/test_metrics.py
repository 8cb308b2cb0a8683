"""Metrics against numbers worked by hand, least squares and an exact Markov reward process."""

import numpy as np
import pytest
import torch

from icrl.metrics import (
    mean_interval,
    ratio_interval,
    td_errors,
    td_loss,
    td_ratio,
    value_error,
)


def flags(shape: tuple[int, ...], value: bool) -> torch.Tensor:
    return torch.full(shape, value)


def test_td_error_takes_no_value_from_a_terminal_successor() -> None:
    error = td_errors(
        reward=torch.tensor([1.0, 1.0]),
        value=torch.tensor([2.0, 2.0]),
        next_value=torch.tensor([4.0, torch.nan]),
        terminated=torch.tensor([False, True]),
        discount=0.5,
    )
    assert error.tolist() == [1.0, -1.0]


def test_td_loss_is_zero_for_exact_values_of_a_deterministic_cycle() -> None:
    transition = torch.roll(torch.eye(3, dtype=torch.float64), 1, dims=1)
    reward = torch.tensor([1.0, -2.0, 5.0], dtype=torch.float64)
    value = torch.linalg.solve(torch.eye(3, dtype=torch.float64) - 0.9 * transition, reward)
    loss = td_loss(reward, value, transition @ value, flags((3,), False), flags((3,), True), 0.9)
    assert loss.item() == pytest.approx(0.0, abs=1e-28)


def test_td_loss_ignores_padding() -> None:
    reward = torch.tensor([[1.0, 3.0, torch.nan]])
    zero = torch.tensor([[0.0, 0.0, torch.inf]])
    mask = torch.tensor([[True, True, False]])
    assert td_loss(reward, zero, zero, ~mask, mask, 0.9).tolist() == [5.0]


@pytest.mark.parametrize("leading", [(), (4,), (4, 2)])
def test_td_loss_broadcasts_leading_axes(leading: tuple[int, ...]) -> None:
    rng = torch.Generator().manual_seed(0)
    B, H = 3, 5
    reward = torch.randn(B, H, generator=rng)
    value, next_value = torch.randn(2, *leading, B, H, generator=rng)
    terminated = torch.rand(B, H, generator=rng) < 0.3
    mask = torch.rand(B, H, generator=rng) < 0.7
    loss = td_loss(reward, value, next_value, terminated, mask, 0.9)
    assert loss.shape == (*leading, B)
    for index in np.ndindex(*leading, B):
        b = index[-1]
        squares = [
            (reward[b, h] + (0 if terminated[b, h] else 0.9 * next_value[index][h]) - value[index][h]) ** 2
            for h in range(H)
            if mask[b, h]
        ]
        assert loss[index].item() == pytest.approx(float(sum(squares)) / len(squares), rel=1e-5)


def test_td_loss_of_every_layer_broadcasts_over_an_inserted_axis() -> None:
    value = torch.zeros(2, 3, 4, 5)
    reward = torch.arange(3.0)[:, None, None].expand(3, 1, 5)
    loss = td_loss(reward, value, value, flags((3, 1, 5), False), flags((3, 1, 5), True), 0.9)
    assert loss.shape == (2, 3, 4)
    assert loss[1, :, 2].tolist() == [0.0, 1.0, 4.0]


def test_td_ratio_divides_by_the_reward_variance() -> None:
    reward = torch.tensor([[1.0, 2.0, 3.0, 6.0]])
    mask = flags((1, 4), True)
    ratio = td_ratio(torch.tensor([7.0]), reward, ~mask, mask, 0.9)
    assert ratio.item() == pytest.approx(7.0 / np.var([1.0, 2.0, 3.0, 6.0]))


def test_td_ratio_is_one_for_the_best_constant_also_with_terminal_transitions() -> None:
    rng = np.random.default_rng(0)
    reward = rng.normal(size=(1, 8))
    terminated = np.arange(8)[None] % 3 == 0
    mask = np.arange(8)[None] != 5
    factor = 1 - 0.9 * ~terminated[mask]
    constant = np.linalg.lstsq(factor[:, None], reward[mask], rcond=None)[0].item()
    tensors = [torch.as_tensor(array) for array in (reward, terminated, mask)]
    value = torch.full((1, 8), constant, dtype=torch.float64)
    loss = td_loss(tensors[0], value, value, tensors[1], tensors[2], 0.9)
    assert td_ratio(loss, *tensors, 0.9).item() == pytest.approx(1.0)


@pytest.mark.parametrize("reward", [0.0, 0.1, 1e6])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_td_ratio_is_undefined_without_reward_variance(reward: float, dtype: torch.dtype) -> None:
    constant = torch.full((1, 7), reward, dtype=dtype)
    mask = flags((1, 7), True)
    assert td_ratio(torch.tensor([0.5], dtype=dtype), constant, ~mask, mask, 0.9).isnan().all()


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ([1.0, 2.0, 6.0], 1.0),
        ([101.0, 102.0, 106.0], 1.0),
        ([0.0, 0.0, 0.0], 0.0),
        ([6.0, 3.0, 0.0], 1 - np.var([-5.0, -1.0, 6.0]) / np.var([1.0, 2.0, 6.0])),
    ],
)
def test_value_error_is_centred(value: list[float], expected: float) -> None:
    returns = torch.tensor([1.0, 2.0, 6.0, torch.nan], dtype=torch.float64)
    values = torch.tensor([*value, 9.0], dtype=torch.float64)
    assert value_error(values, returns, ~returns.isnan()).item() == pytest.approx(expected)


@pytest.mark.parametrize(
    ("returns", "mask"),
    [([2.0, 2.0], [True, True]), ([1.0, 2.0], [True, False]), ([1.0, 2.0], [False, False])],
    ids=["constant returns", "one state", "no state"],
)
def test_value_error_is_undefined_without_variance(returns: list[float], mask: list[bool]) -> None:
    assert value_error(torch.zeros(2), torch.tensor(returns), torch.tensor(mask)).isnan()


def test_interval_equals_quantiles_over_all_resamples_of_three_tasks() -> None:
    tasks = np.array([0.0, 1.0, 5.0])
    interval = mean_interval(tasks, np.random.default_rng(0), num_resamples=20_000)
    every = [np.mean(tasks[[i, j, k]]) for i in range(3) for j in range(3) for k in range(3)]
    assert interval.estimate == 2.0
    assert [interval.low, interval.high] == pytest.approx(np.quantile(every, [0.025, 0.975], method="inverted_cdf"))


def test_interval_covers_the_true_mean_as_often_as_it_says() -> None:
    rng = np.random.default_rng(1)
    interval = mean_interval(rng.normal(3.0, 1.0, size=(400, 30)), rng, num_resamples=400)
    coverage = np.mean((interval.low <= 3.0) & (interval.high >= 3.0))
    assert 0.89 < coverage < 0.99


def test_paired_interval_has_no_width_when_every_task_has_the_same_ratio() -> None:
    denominator = np.random.default_rng(2).lognormal(size=20)
    interval = ratio_interval(1.5 * denominator, denominator, np.random.default_rng(3), num_resamples=200)
    assert [interval.estimate, interval.low, interval.high] == pytest.approx([1.5, 1.5, 1.5])


def test_a_task_without_a_number_is_left_out_of_both_means() -> None:
    numerator = np.array([[2.0, np.nan, 6.0, 1.0]])
    denominator = np.array([[1.0, 7.0, 3.0, np.nan]])
    interval = ratio_interval(numerator, denominator, np.random.default_rng(0), num_resamples=300)
    assert interval.estimate.tolist() == [2.0]


@pytest.mark.parametrize("tasks", [np.array([1.5]), np.array([1.5, np.nan])], ids=["one task", "one with a number"])
def test_interval_is_undefined_with_a_single_task(tasks: np.ndarray) -> None:
    interval = mean_interval(tasks, np.random.default_rng(0), num_resamples=300)
    assert interval.estimate == 1.5
    assert np.isnan([interval.low, interval.high]).all()


def test_interval_is_decided_by_the_generator() -> None:
    tasks = np.random.default_rng(0).normal(size=(2, 12))
    first, second = (mean_interval(tasks, np.random.default_rng(5), num_resamples=200) for _ in range(2))
    assert np.array_equal(first.low, second.low)
    assert np.array_equal(first.high, second.high)
