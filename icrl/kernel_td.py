"""Kernel TD, written as plainly as possible: the recursion and its fixed point. The oracle of all tests.

Everything here works on one context after the other, on functions rather than weights: v_k is held at the context's
states, their successors and the queries, and each layer adds α_k times the direction of one update rule,

    v_{k+1}(x) = v_k(x) + α_k Σ_j κ(x, s_j) δ_k[j],    δ_k[j] = r_j + γ v_k(s'_j) − v_k(s_j),    v_0 = 0,

(arXiv 2605.09727; v_k is 0 at terminal successors). It shares no arithmetic with `icrl.engine` or `icrl.transformer`:
masked transitions are cut out, kernels are evaluated from their formulas, nothing is batched.

Shape letters: B contexts, N transitions in a context, Q queries, D numbers in an observation, L depth.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from icrl.config import KernelName
from icrl.types import Transitions


def kappa(kernel: KernelName, x_QD: Tensor, y_ND: Tensor, temperature: float) -> Tensor:
    """Kernel values ``[Q, N]`` from the formulas in `icrl.kernels`, softmax normalised over the N keys y."""
    inner = (x_QD[:, None] * y_ND[None]).sum(-1)
    if kernel == "linear":
        return inner
    if kernel == "relu":
        return inner.clamp_min(0)
    if kernel == "rbf":
        return torch.exp(-(x_QD[:, None] - y_ND[None]).square().sum(-1) / (2 * temperature))
    if kernel == "exp":
        return torch.exp(inner / temperature)
    unnormalised = torch.exp((inner - inner.amax(dim=1, keepdim=True)) / temperature)
    return unnormalised / unnormalised.sum(dim=1, keepdim=True)


@dataclass(frozen=True, eq=False)
class Samples:
    """One context without padding, with its queries.

    Attributes:
        state: ``[N, D]``, s.
        reward: ``[N]``, r.
        successor: ``[N, D]``, s'.
        live: ``[N]``, 0 where s' is terminal, else 1.
        query: ``[Q, D]``.
    """

    state: Tensor
    reward: Tensor
    successor: Tensor
    live: Tensor
    query: Tensor

    def everywhere(self) -> Tensor:
        """States, successors and queries ``[2 N + Q, D]``, where the recursion holds its values."""
        return torch.cat([self.state, self.successor, self.query])

    def split(self, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Values at states, at successors (0 if terminal) and at queries."""
        length = len(self.reward)
        return value[:length], self.live * value[length : 2 * length], value[2 * length :]


def separate(context: Transitions, query_BQD: Tensor) -> Iterator[Samples]:
    """The contexts of a batch one by one, padding cut out, in float64."""
    for index in range(context.batch_size):
        kept = context.mask[index]
        yield Samples(
            state=context.observation[index][kept].double(),
            reward=context.reward[index][kept].double(),
            successor=context.next_observation[index][kept].double(),
            live=(~context.terminated[index][kept]).double(),
            query=query_BQD[index].double(),
        )


def traces(samples: Samples, decay: float) -> Tensor:
    """Trace matrix ``[N, N]`` with decay^(i − j) where transition i follows j ≤ i within an episode, else 0.

    A transition continues the one before it when that one's successor is its state and is not terminal.
    """
    length = len(samples.reward)
    matrix = torch.eye(length, dtype=samples.reward.dtype)
    for i in range(1, length):
        if samples.live[i - 1] and torch.equal(samples.successor[i - 1], samples.state[i]):
            matrix[:, i] += decay * matrix[:, i - 1]
    return matrix


def td(
    samples: Samples,
    step_sizes: Tensor,
    *,
    kernel: KernelName,
    temperature: float,
    discount: float,
    trace_decay: float = 0.0,
) -> Tensor:
    """TD(λ): v ← v + α Σ_j κ(·, s_j) Σ_{i ≥ j} (γλ)^{i−j} δ_i, the inner sum over the rest of j's episode.

    Args:
        samples: the context.
        step_sizes: ``[L]``, α_k.
        kernel: name of the kernel.
        temperature: δ of the kernel.
        discount: γ.
        trace_decay: λ; with 0 this is TD(0), the recursion in the module's docstring.

    Returns:
        ``[L, Q]``, the queries' values after each layer.
    """
    gram = kappa(kernel, samples.everywhere(), samples.state, temperature)
    trace = traces(samples, discount * trace_decay)
    value, history = torch.zeros(len(gram), dtype=gram.dtype), []
    for step in step_sizes:
        at_state, at_successor, _ = samples.split(value)
        td_error = samples.reward + discount * at_successor - at_state
        value = value + step * gram @ (trace @ td_error)
        history.append(samples.split(value)[2])
    return torch.stack(history)


def residual_gradient(
    samples: Samples, step_sizes: Tensor, *, kernel: KernelName, temperature: float, discount: float
) -> Tensor:
    """Functional gradient descent on ½ Σ_j δ_j²: v ← v + α Σ_j δ_j [κ(·, s_j) − γ κ(·, s'_j)].

    Arguments and result as for `td`; the second kernel is 0 (and no key of the softmax) where s'_j is terminal.
    """
    gram = kappa(kernel, samples.everywhere(), samples.state, temperature)
    next_gram = torch.zeros_like(gram)
    going_on = samples.live.bool()
    next_gram[:, going_on] = kappa(kernel, samples.everywhere(), samples.successor[going_on], temperature)
    value, history = torch.zeros(len(gram), dtype=gram.dtype), []
    for step in step_sizes:
        at_state, at_successor, _ = samples.split(value)
        td_error = samples.reward + discount * at_successor - at_state
        value = value + step * (gram - discount * next_gram) @ td_error
        history.append(samples.split(value)[2])
    return torch.stack(history)


def average_reward(
    samples: Samples, step_sizes: Tensor, *, kernel: KernelName, temperature: float, rate_fraction: float
) -> tuple[Tensor, Tensor]:
    """Differential TD: δ_j = r_j − r̄ + v(s'_j) − v(s_j), v ← v + α Σ_j κ(·, s_j) δ_j, r̄ ← r̄ + η α mean_j δ_j.

    Arguments as for `td`; `rate_fraction` is η, the rate of the average reward r̄ relative to α.

    Returns:
        Differential values ``[L, Q]`` and average rewards ``[L]`` after each layer.
    """
    gram = kappa(kernel, samples.everywhere(), samples.state, temperature)
    value, rate = torch.zeros(len(gram), dtype=gram.dtype), torch.zeros((), dtype=gram.dtype)
    values, rates = [], []
    for step in step_sizes:
        at_state, at_successor, _ = samples.split(value)
        td_error = samples.reward - rate + at_successor - at_state
        value = value + step * gram @ td_error
        rate = rate + rate_fraction * step * td_error.mean()
        values.append(samples.split(value)[2])
        rates.append(rate)
    return torch.stack(values), torch.stack(rates)


@dataclass(frozen=True, eq=False)
class FixedPoint:
    """Where a recursion with constant step size ends, if it converges.

    Attributes:
        value: ``[Q]``, values of the queries.
        condition: 2-norm condition number of the linear system that was solved.
        eigenvalue: complex eigenvalues of the operator A.
    """

    value: Tensor
    condition: float
    eigenvalue: Tensor

    def rate(self, step_size: float) -> float:
        """Spectral radius of I − α A: in the long run a layer multiplies the error by it; from 1 on it grows.

        Not for TD(λ), whose traces change the rate though not the fixed point.
        """
        return float((1 - step_size * self.eigenvalue).abs().max())


def fixed_point(
    samples: Samples, *, kernel: KernelName, temperature: float, discount: float, ridge: float = 0.0
) -> FixedPoint:
    """Kernel LSTD: v(x) = Σ_j κ(x, s_j) w_j with (A + ridge · I) w = r and A = K_ss − γ K_s's.

    TD(λ) has the same fixed point for every λ, since its trace matrix is invertible.
    """
    at_state, at_successor, at_query = _grams(samples, kernel, temperature)
    operator = at_state - discount * samples.live[:, None] * at_successor
    return _solve(operator, samples.reward, directions=at_state, query_gram=at_query, ridge=ridge)


def residual_gradient_fixed_point(
    samples: Samples, *, kernel: KernelName, temperature: float, discount: float, ridge: float = 0.0
) -> FixedPoint:
    """Fixed point of `residual_gradient`, in the span of κ(·, s_j) − γ κ(·, s'_j)."""
    going_on = samples.live.bool()
    features = kappa(kernel, samples.everywhere(), samples.state, temperature)
    features[:, going_on] -= discount * kappa(kernel, samples.everywhere(), samples.successor[going_on], temperature)
    length = len(samples.reward)
    operator = features[:length] - discount * samples.live[:, None] * features[length : 2 * length]
    return _solve(
        operator, samples.reward, directions=features[: 2 * length], query_gram=features[2 * length :], ridge=ridge
    )


def average_reward_fixed_point(
    samples: Samples, *, kernel: KernelName, temperature: float, rate_fraction: float, ridge: float = 0.0
) -> FixedPoint:
    """Fixed point of `average_reward`: constant steps keep r̄ = η mean(w), so (A + η 11ᵀ / N) w = r with γ = 1."""
    at_state, at_successor, at_query = _grams(samples, kernel, temperature)
    operator = at_state - samples.live[:, None] * at_successor + rate_fraction / len(samples.reward)
    directions = torch.cat([at_state, torch.ones_like(at_state[:1])])
    return _solve(operator, samples.reward, directions=directions, query_gram=at_query, ridge=ridge)


def _grams(samples: Samples, kernel: KernelName, temperature: float) -> tuple[Tensor, Tensor, Tensor]:
    """Gram rows of states, successors and queries against the context's states."""
    length = len(samples.reward)
    gram = kappa(kernel, samples.everywhere(), samples.state, temperature)
    return gram[:length], gram[length : 2 * length], gram[2 * length :]


def _solve(operator: Tensor, reward: Tensor, *, directions: Tensor, query_gram: Tensor, ridge: float) -> FixedPoint:
    """The TD errors' part that an update can see is 0: V ᵀ(r − (A + ridge) V c) = 0, V the row space of `directions`.

    For a gram matrix of full rank this is (A + ridge) w = r. For one of finite rank, such as the linear kernel's, no w
    makes every TD error 0, and the recursion ends where those that change the function are.
    """
    _, singular, rows = torch.linalg.svd(directions, full_matrices=False)
    basis = rows[singular > max(directions.shape) * torch.finfo(singular.dtype).eps * singular[0]].T
    reduced = basis.T @ operator @ basis
    system = reduced + ridge * torch.eye(len(reduced), dtype=reduced.dtype)
    return FixedPoint(
        value=query_gram @ basis @ torch.linalg.solve(system, basis.T @ reward),
        condition=float(torch.linalg.cond(system)),
        eigenvalue=torch.linalg.eigvals(reduced),
    )
