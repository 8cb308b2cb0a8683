"""Synthetic processes: exact values against Monte Carlo, against figures known otherwise, and their sampling."""

import pytest
import torch

from icrl.config import KernelName
from icrl.mrps import FiniteProcesses, boyan_chains, loops, random_kernel_processes

DISCOUNT = 0.9


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


FINITE = {
    "chain": lambda: boyan_chains(3, discount=DISCOUNT, generator=rng()),
    "loop": lambda: loops(3, discount=DISCOUNT, generator=rng()),
}


@pytest.mark.parametrize("name", FINITE)
def test_exact_values_are_monte_carlo_returns(name: str) -> None:
    """400 rollouts of each process from each state, by sampling successors independently of the class."""
    processes, generator, num_rollouts = FINITE[name](), rng(1), 400
    num_processes, num_states = processes.reward.shape
    state = torch.arange(num_states).repeat(num_processes, num_rollouts, 1)
    process = torch.arange(num_processes)[:, None, None].expand_as(state)
    returns, weight = torch.zeros(state.shape, dtype=torch.float64), torch.ones(state.shape, dtype=torch.float64)
    cumulative = processes.transition.cumsum(dim=-1)
    for _ in range(60):
        weight = weight * ~processes.terminal[state]
        returns += weight * processes.reward[process, state]
        draw = torch.rand(state.shape, generator=generator, dtype=torch.float64)
        state = (draw.unsqueeze(-1) > cumulative[process, state]).sum(dim=-1).clamp_max(num_states - 1)
        weight = weight * DISCOUNT
    deviation = returns.mean(dim=1) - processes.value()
    standard_error = returns.std(dim=1) / num_rollouts**0.5
    assert (deviation.abs() <= 5 * standard_error + 1e-3).all()


def test_boyan_chain_without_discount() -> None:
    """The classical rewards, −3 a step and −2 for the last, give the value −2 i in state i."""
    chain = boyan_chains(1, discount=1.0, generator=rng())
    reward = torch.full((1, 13), -3.0, dtype=torch.float64)
    reward[0, 1] = -2
    classical = FiniteProcesses(chain.transition, reward, chain.terminal, chain.initial, chain.feature, 1.0)
    assert torch.allclose(classical.value()[0], -2 * torch.arange(13, dtype=torch.float64))


def test_episodes_end_and_start_anew() -> None:
    draw = boyan_chains(4, discount=DISCOUNT, generator=rng()).sample(200, rng(1))
    context, process = draw.context, boyan_chains(4, discount=DISCOUNT, generator=rng())
    assert 0.08 < context.terminated.double().mean() < 0.16
    first, terminal = process.feature[:, -1], process.feature[:, 0]
    for b in range(4):
        ends = context.terminated[b, :-1].nonzero()[:, 0]
        assert (context.observation[b, ends + 1] == first[b]).all()
        assert (context.next_observation[b, ends] == terminal[b]).all()
        going_on = (~context.terminated[b, :-1]).nonzero()[:, 0]
        assert torch.equal(context.observation[b, going_on + 1], context.next_observation[b, going_on])
    assert draw.query.shape == (4, 12, 4)
    assert torch.equal(draw.query_value, process.value()[:, 1:])


def test_transitions_have_their_probabilities() -> None:
    processes = loops(1, discount=DISCOUNT, generator=rng(), forward_probability=0.7)
    context = processes.sample(1500, rng(1)).context
    stays = (context.observation == context.next_observation).all(dim=-1).double().mean()
    assert float(stays) == pytest.approx(0.3, abs=0.05)


@pytest.mark.parametrize("kernel", ["linear", "relu", "exp", "rbf"])
def test_kernel_processes_solve_the_bellman_equation_on_every_transition(kernel: KernelName) -> None:
    processes = random_kernel_processes(5, kernel=kernel, temperature=0.5, discount=DISCOUNT, generator=rng())
    draw = processes.sample(50, 400, rng(1))
    value, next_value = (
        processes.value(states) for states in (draw.context.observation, draw.context.next_observation)
    )
    assert torch.allclose(value, draw.context.reward + DISCOUNT * next_value)
    assert torch.equal(draw.context.observation[:, 1:], draw.context.next_observation[:, :-1])
    assert (draw.context.observation.abs() <= 1).all()
    assert (draw.query_value.std(dim=1) - 1).abs().max() < 0.25


def test_walk_is_uniform_and_takes_steps_of_the_given_size() -> None:
    processes = random_kernel_processes(
        200, kernel="rbf", temperature=0.5, discount=DISCOUNT, generator=rng(), step=0.1
    )
    context = processes.sample(100, 1, rng(1)).context
    # A uniform distribution on [−1, 1] has variance ⅓.
    assert float(context.observation[:, -1].var()) == pytest.approx(1 / 3, rel=0.15)
    inside = (context.observation.abs() < 0.6).all(dim=-1)
    steps = (context.next_observation - context.observation)[inside]
    assert float(steps.std()) == pytest.approx(0.1, rel=0.05)


def test_a_seed_decides_everything() -> None:
    def draw(seed: int) -> torch.Tensor:
        generator = rng(seed)
        processes = random_kernel_processes(2, kernel="rbf", temperature=0.5, discount=DISCOUNT, generator=generator)
        return processes.sample(5, 1, generator).context.reward

    assert torch.equal(draw(0), draw(0))
    assert not torch.equal(draw(0), draw(1))
