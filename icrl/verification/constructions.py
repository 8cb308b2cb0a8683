"""Do the constructions compute kernel TD? Explicit transformer against the plain recursion."""

from dataclasses import replace

import torch

from icrl import kernel_td
from icrl.config import KernelName
from icrl.constructions import average_reward_layers, residual_gradient_layers, td_layers
from icrl.dispatch import run
from icrl.tokens import Layout, LayoutName, trajectory_prompt, transition_prompt
from icrl.transformer import forward
from icrl.verification.check import Check, largest_relative_difference
from icrl.verification.problems import KERNELS, Problem, random_problem

EXACT = 1e-10
NUM_DRAWS = 30
NUM_DRAWS_OF_VARIANTS = 8
MAX_DEPTH = 40
TRACE_DECAY = 0.7


def _depth(generator: torch.Generator) -> int:
    return int(torch.randint(1, MAX_DEPTH + 1, (1,), generator=generator))


def td_difference(
    problem: Problem, kernel: KernelName, layout: LayoutName, depth: int, generator: torch.Generator, decay: float = 0.0
) -> float:
    """Largest relative difference, over depths and queries, between a construction of TD(λ) and the recursion."""
    step_sizes = problem.step_sizes(kernel, depth, generator)
    make_prompt = trajectory_prompt if layout == "trajectory" else transition_prompt
    prompt = make_prompt(problem.context, problem.query, trace_decay=problem.discount * decay)
    layers = td_layers(Layout(layout, problem.query.shape[-1]), step_sizes, discount=problem.discount)
    value, _ = forward(
        prompt, layers, kernel=kernel, temperature=torch.tensor(problem.temperature, dtype=torch.float64)
    )
    (samples,) = kernel_td.separate(problem.context, problem.query)
    reference = kernel_td.td(
        samples,
        step_sizes,
        kernel=kernel,
        temperature=problem.temperature,
        discount=problem.discount,
        trace_decay=decay,
    )
    return largest_relative_difference(value[0], reference)


def residual_gradient_difference(problem: Problem, kernel: KernelName, depth: int, generator: torch.Generator) -> float:
    """The same for residual gradient."""
    step_sizes = problem.step_sizes(kernel, depth, generator) / 4
    layers = residual_gradient_layers(problem.query.shape[-1], step_sizes, discount=problem.discount)
    prompt = transition_prompt(problem.context, problem.query, rule="residual_gradient")
    value, _ = forward(
        prompt, layers, kernel=kernel, temperature=torch.tensor(problem.temperature, dtype=torch.float64)
    )
    (samples,) = kernel_td.separate(problem.context, problem.query)
    reference = kernel_td.residual_gradient(
        samples, step_sizes, kernel=kernel, temperature=problem.temperature, discount=problem.discount
    )
    return largest_relative_difference(value[0], reference)


def average_reward_difference(problem: Problem, kernel: KernelName, depth: int, generator: torch.Generator) -> float:
    """The same for the average reward (γ = 1), whose rate moves at most half of the way to the mean in a layer."""
    problem = replace(problem, discount=1.0)
    step_sizes = problem.step_sizes(kernel, depth, generator) / 4
    rate_fraction = 0.5 / float(step_sizes.max())
    layers = average_reward_layers(
        problem.query.shape[-1],
        step_sizes,
        rate_fraction=rate_fraction,
        context_length=problem.context.length,
        kernel=kernel,
        temperature=problem.temperature,
    )
    prompt = transition_prompt(problem.context, problem.query, rule="average_reward")
    value, _ = forward(
        prompt, layers, kernel=kernel, temperature=torch.tensor(problem.temperature, dtype=torch.float64)
    )
    (samples,) = kernel_td.separate(problem.context, problem.query)
    reference, _ = kernel_td.average_reward(
        samples, step_sizes, kernel=kernel, temperature=problem.temperature, rate_fraction=rate_fraction
    )
    return largest_relative_difference(value[0], reference)


def check_constructions(generator: torch.Generator) -> list[Check]:
    """Both layouts and every variant against the recursion, all kernels, random lengths and depths."""
    checks = []
    for layout in ("trajectory", "transition"):
        for kernel in KERNELS:
            differences = []
            for _ in range(NUM_DRAWS):
                problem = random_problem(generator)
                if layout == "transition":
                    problem = problem.with_episodes(generator)
                differences.append(td_difference(problem, kernel, layout, _depth(generator), generator))
            claim = f"{layout} construction = kernel TD, {kernel} (largest relative difference)"
            checks.append(Check(claim, max(differences), EXACT, detail=f"{NUM_DRAWS} draws"))
    return checks + _check_variants(generator)


def _check_variants(generator: torch.Generator) -> list[Check]:
    differences: dict[str, list[float]] = {}
    for kernel in KERNELS:
        for _ in range(NUM_DRAWS_OF_VARIANTS):
            problem, depth = random_problem(generator), _depth(generator)
            split = problem.with_episodes(generator)
            measured = {
                "TD(λ), trajectory": td_difference(problem, kernel, "trajectory", depth, generator, TRACE_DECAY),
                "TD(λ), transition": td_difference(split, kernel, "transition", depth, generator, TRACE_DECAY),
                "residual gradient": residual_gradient_difference(split, kernel, depth, generator),
                "average reward": average_reward_difference(split, kernel, depth, generator),
            }
            for name, difference in measured.items():
                differences.setdefault(name, []).append(difference)
    return [
        Check(f"construction = recursion: {name}, all kernels", max(values), EXACT, detail=f"{len(values)} draws")
        for name, values in differences.items()
    ]


def check_fast_path(generator: torch.Generator) -> list[Check]:
    """Fast path against explicit transformer, in both precisions, and that it is chosen when and only when it may."""
    bounds = {torch.float64: EXACT, torch.float32: 1e-3}
    differences: dict[torch.dtype, list[float]] = {dtype: [] for dtype in bounds}
    choices = []
    for dtype in bounds:
        for kernel in KERNELS:
            for layout in ("transition", "trajectory"):
                problem = random_problem(generator, max_length=40)
                step_sizes = problem.step_sizes(kernel, MAX_DEPTH, generator).to(dtype)
                context, query = problem.context.to(dtype=dtype), problem.query.to(dtype)
                temperature = torch.tensor(problem.temperature, dtype=dtype)
                layers = td_layers(Layout(layout, query.shape[-1]), step_sizes, discount=problem.discount)
                fast = run(context, query, layers, layout=layout, kernel=kernel, temperature=temperature)
                make_prompt = trajectory_prompt if layout == "trajectory" else transition_prompt
                explicit, _ = forward(make_prompt(context, query), layers, kernel=kernel, temperature=temperature)
                differences[dtype].append(largest_relative_difference(fast.value, explicit))
                layers[0].value[0, 0, 0] = 1e-3
                other = run(context, query, layers, layout=layout, kernel=kernel, temperature=temperature)
                choices += [fast.path == "fast", other.path == "explicit"]
    checks = [
        Check(f"fast path = explicit transformer, {str(dtype).removeprefix('torch.')}", max(differences[dtype]), bound)
        for dtype, bound in bounds.items()
    ]
    share = sum(choices) / len(choices)
    return [*checks, Check("fast path chosen exactly for weights of the theory's form", share, 1.0, at_least=True)]
