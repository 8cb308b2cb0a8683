"""What kernel TD must coincide with, and what it must not depend on."""

from dataclasses import replace

import torch
from torch import Tensor

from icrl import kernel_td
from icrl.config import KernelName
from icrl.constructions import td_layers
from icrl.engine import evaluate, evaluate_at_step_sizes
from icrl.kernels import SYMMETRIC_KERNELS
from icrl.selection import take
from icrl.tokens import Layout, trajectory_prompt, transition_prompt
from icrl.transformer import forward
from icrl.verification.check import Check, largest_relative_difference
from icrl.verification.problems import KERNELS, Problem, random_problem

EXACT = 1e-10
NUM_DRAWS = 10
DEPTH = 40


def explicit_values(problem: Problem, kernel: KernelName, step_sizes: Tensor) -> Tensor:
    """``[L, Q]``: values of the explicit transformer in the transition layout."""
    layers = td_layers(Layout("transition", problem.query.shape[-1]), step_sizes, discount=problem.discount)
    prompt = transition_prompt(problem.context, problem.query)
    temperature = torch.tensor(problem.temperature, dtype=torch.float64)
    return forward(prompt, layers, kernel=kernel, temperature=temperature)[0][0]


def check_linear_td(generator: torch.Generator) -> list[Check]:
    """With the linear kernel the transformer is linear TD on a weight vector θ, with v(x) = ⟨θ, x⟩."""
    differences = []
    for _ in range(NUM_DRAWS):
        problem = random_problem(generator).with_episodes(generator)
        step_sizes = problem.step_sizes("linear", DEPTH, generator)
        (samples,) = kernel_td.separate(problem.context, problem.query)
        theta, history = torch.zeros_like(samples.state[0]), []
        for step in step_sizes:
            next_value = samples.live * (samples.successor @ theta)
            td_error = samples.reward + problem.discount * next_value - samples.state @ theta
            theta = theta + step * samples.state.T @ td_error
            history.append(samples.query @ theta)
        value = explicit_values(problem, "linear", step_sizes)
        differences.append(largest_relative_difference(value, torch.stack(history)))
    return [Check("linear kernel = linear TD on weights", max(differences), EXACT, detail=f"{NUM_DRAWS} draws")]


def check_kernel_regression(generator: torch.Generator) -> list[Check]:
    """Without discount it is gradient descent for kernel regression, whose L-th iterate is known in closed form.

    In the eigenbasis of the gram matrix each mode approaches its least-squares value as 1 − Π_k (1 − α_k λ).
    """
    differences = []
    for kernel in SYMMETRIC_KERNELS:
        for _ in range(NUM_DRAWS):
            problem = replace(random_problem(generator, max_length=20), discount=0.0)
            step_sizes = problem.step_sizes(kernel, DEPTH, generator)
            (samples,) = kernel_td.separate(problem.context, problem.query)
            gram = kernel_td.kappa(kernel, samples.state, samples.state, problem.temperature)
            eigenvalue, mode = torch.linalg.eigh(gram)
            weight = torch.zeros_like(eigenvalue)
            for layer, step in enumerate(step_sizes):
                # Σ_k α_k Π_{later} (1 − α λ) equals (1 − Π_k (1 − α_k λ)) / λ, also where λ is 0.
                weight = weight + step * (1 - step_sizes[layer + 1 :, None] * eigenvalue).prod(dim=0)
            value = explicit_values(problem, kernel, step_sizes)[-1]
            gram_of_query = kernel_td.kappa(kernel, samples.query, samples.state, problem.temperature)
            reference = gram_of_query @ mode @ (weight * (mode.T @ samples.reward))
            differences.append(largest_relative_difference(value, reference))
    claim = "γ = 0: kernel regression by gradient descent (closed form), symmetric kernels"
    return [Check(claim, max(differences), EXACT, detail=f"{len(differences)} draws")]


def check_invariances(generator: torch.Generator) -> list[Check]:
    """Order of the context, the other queries, and padding change nothing (explicit transformer and fast path)."""
    order, others, padding = [], [], []
    for kernel in KERNELS:
        for _ in range(NUM_DRAWS // 2):
            problem = random_problem(generator).with_episodes(generator)
            step_sizes = problem.step_sizes(kernel, DEPTH, generator)
            value = explicit_values(problem, kernel, step_sizes)
            permutation = torch.randperm(problem.context.length, generator=generator)
            shuffled = replace(problem, context=take(problem.context, permutation))
            order.append(largest_relative_difference(explicit_values(shuffled, kernel, step_sizes), value))
            alone = explicit_values(replace(problem, query=problem.query[:, :1]), kernel, step_sizes)
            others.append(float((alone - value[:, :1]).abs().max() / value.abs().max()))
            padding.append(_padding_difference(problem, kernel, step_sizes, value))
    return [
        Check("values do not depend on the context's order (transition layout)", max(order), EXACT),
        Check("a query's value does not depend on the other queries", max(others), EXACT),
        Check("padding changes no value (explicit and fast)", max(padding), EXACT),
    ]


def _padding_difference(problem: Problem, kernel: KernelName, step_sizes: Tensor, value: Tensor) -> float:
    """Ten masked transitions of nonsense in front of the context."""
    index = torch.cat([torch.zeros(10, dtype=torch.int64), torch.arange(problem.context.length)])
    context = take(problem.context, index)
    mask = torch.arange(context.length)[None] >= 10
    nonsense = context.observation.where(mask.unsqueeze(-1), torch.nan)
    padded = replace(problem, context=replace(context, observation=nonsense, mask=mask))
    fast = evaluate_at_step_sizes(
        padded.context,
        padded.query,
        kernel=kernel,
        temperature=torch.full((1, 1), padded.temperature, dtype=torch.float64),
        step_size=step_sizes,
        discount=padded.discount,
        every_depth=True,
    )
    explicit = explicit_values(padded, kernel, step_sizes)
    return max(largest_relative_difference(fast.value[0, 0], value), largest_relative_difference(explicit, value))


def check_single_mask(generator: torch.Generator, offsets: dict[str, tuple[float, float]]) -> list[Check]:
    """The trajectory construction with one mask for both heads: its offset, and that centred errors hardly notice.

    States are robot-like: two coordinates move, four are constant. The centred error of two value functions cannot
    differ by more than the spread of their difference, so the check is of the arithmetic and of what the spread is.

    Args:
        generator: decides the draws.
        offsets: filled, by kernel, with the magnitude of the mean offset and the spread of the offset over queries:
            medians over draws, in units of the value's own spread.
    """
    excesses, relative_spread = [], {}
    for kernel in KERNELS:
        means, spreads = [], []
        for _ in range(NUM_DRAWS):
            problem = _robot_like(random_problem(generator, num_queries=50))
            step_sizes = problem.step_sizes(kernel, DEPTH, generator)
            exact, single = (_trajectory_values(problem, kernel, step_sizes, masks) for masks in (True, False))
            offset, spread_of_value = single - exact, exact.std(correction=0)
            means.append(float(offset.mean().abs() / spread_of_value))
            spreads.append(float(offset.std(correction=0) / spread_of_value))
            target = torch.randn(exact.shape, generator=generator, dtype=exact.dtype) * spread_of_value
            errors = [float((value - target).std(correction=0)) for value in (exact, single)]
            excesses.append(abs(errors[1] - errors[0]) - float(offset.std(correction=0)))
        offsets[kernel] = (_median(means), _median(spreads))
        relative_spread[kernel] = _median([s / abs(m) for s, m in zip(spreads, means, strict=True)])
    detail = ", ".join(f"{k}: offset {m:.2g} ± {s:.2g}" for k, (m, s) in offsets.items())
    return [
        Check("single mask: centred error as the exact variant's, to the offset's spread", max(excesses), 1e-12),
        Check(
            "single mask, exp kernel: spread of the offset over its mean (nearly state-independent)",
            relative_spread["exp"],
            0.75,
            detail=f"in units of the value's spread, {detail}",
        ),
    ]


def _median(numbers: list[float]) -> float:
    return float(torch.tensor(numbers, dtype=torch.float64).median())


def _robot_like(problem: Problem) -> Problem:
    def extend(state: Tensor) -> Tensor:
        moving = 0.2 * torch.nn.functional.pad(state, (0, 1))[..., :2]
        return torch.cat([moving, torch.full((*state.shape[:2], 4), 0.5, dtype=state.dtype)], dim=-1)

    context = replace(
        problem.context,
        observation=extend(problem.context.observation),
        next_observation=extend(problem.context.next_observation),
    )
    return replace(problem, context=context, query=extend(problem.query))


def _trajectory_values(problem: Problem, kernel: KernelName, step_sizes: Tensor, per_head_masks: bool) -> Tensor:
    layers = td_layers(Layout("trajectory", problem.query.shape[-1]), step_sizes, discount=problem.discount)
    prompt = trajectory_prompt(problem.context, problem.query, per_head_masks=per_head_masks)
    temperature = torch.tensor(problem.temperature, dtype=torch.float64)
    return forward(prompt, layers, kernel=kernel, temperature=temperature)[0][0, -1]


def check_precision(generator: torch.Generator) -> list[Check]:
    """Single against double precision, and the graphics card against the processor where there is one."""
    devices = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
    checks = []
    for device in devices:
        differences = []
        for kernel in KERNELS:
            problem = random_problem(generator)
            values = [
                evaluate(
                    problem.context.to(device=where, dtype=dtype),
                    problem.query.to(device=where, dtype=dtype),
                    kernel=kernel,
                    temperature=torch.full((1, 1), problem.temperature, dtype=dtype, device=where),
                    step_fraction=torch.ones(DEPTH, dtype=dtype, device=where),
                    discount=problem.discount,
                ).value.double()
                for where, dtype in ((device, torch.float32), ("cpu", torch.float64))
            ]
            differences.append(largest_relative_difference(values[0].cpu(), values[1]))
        checks.append(Check(f"single precision on {device} = double precision on cpu", max(differences), 1e-2))
    return checks
