"""What values tend to: with depth the fixed point, with context length the truth."""

from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

from icrl import kernel_td
from icrl.config import KernelName
from icrl.engine import evaluate
from icrl.grams import clean, compute_grams
from icrl.mrps import Draw, loops, random_kernel_processes
from icrl.recursion import td_weights
from icrl.verification.check import Check

DISCOUNT = 0.9


@dataclass(frozen=True)
class Curve:
    """A line of a figure.

    Attributes:
        x: depths or lengths.
        y: errors.
        low: lower ends of intervals, or None.
        high: upper ends of intervals, or None.
    """

    x: list[float]
    y: list[float]
    low: list[float] | None = None
    high: list[float] | None = None


DEPTHS = tuple(4**exponent for exponent in range(8))
DEPTH_KERNELS: tuple[KernelName, ...] = ("linear", "exp", "softmax", "rbf")
RESOLUTION = 1e-9
"""Relative errors below this are rounding, and need not fall any further."""


def check_depth(generator: torch.Generator, curves: dict[str, Curve]) -> list[Check]:
    """With depth, values tend to kernel LSTD at the rate that the operator's eigenvalues say.

    A deterministic loop, each state once, on the unit sphere: there the samples are stationary, the eigenvalues of a
    positive definite kernel's operator have positive real parts, and small enough steps converge (relu is not positive
    definite).

    Args:
        generator: decides the loop.
        curves: filled with the error by depth, by kernel.
    """
    process = loops(1, discount=DISCOUNT, generator=generator, num_states=10, forward_probability=1.0)
    process = replace(process, feature=torch.nn.functional.normalize(process.feature, dim=-1))
    context = process.sample(10, generator).context
    temperature, checks = 0.3, []
    for kernel in DEPTH_KERNELS:
        grams = compute_grams(
            clean(context),
            context.observation,
            kernel=kernel,
            temperature_TB=torch.full((1, 1), temperature, dtype=torch.float64),
            discount=DISCOUNT,
        )
        step_size = 0.3 / torch.linalg.matrix_norm(grams.operator, 2)
        weight = td_weights(grams.operator, grams.reward, step_size[:, None].expand(-1, DEPTHS[-1]))
        (samples,) = kernel_td.separate(context, context.observation)
        limit = kernel_td.fixed_point(samples, kernel=kernel, temperature=temperature, discount=DISCOUNT)
        value = torch.stack([weight[0, depth - 1] @ grams.query_gram[0].T for depth in DEPTHS])
        error = ((value - limit.value).norm(dim=1) / limit.value.norm()).tolist()
        curves[kernel] = Curve(list(DEPTHS), error)
        rises = sum(b >= a for a, b in pairwise(error) if a > RESOLUTION)
        rate = limit.rate(float(step_size / grams.scale))
        checks += [
            Check(
                f"values tend to the fixed point with depth, {kernel} (relative error at depth {DEPTHS[-1]})",
                error[-1],
                1e-2,
                detail=f"condition {limit.condition:.2g}, error shrinks by {1 - rate:.2e} per layer in the long run",
            ),
            Check(f"the error falls at every fourfold depth, {kernel} (number of rises)", rises, 0),
        ]
    return checks


LENGTHS = (10, 20, 40, 80, 160)
NUM_PROCESSES = 100
NUM_QUERIES = 100
NUM_RESAMPLES = 2000


def centred_errors(draw: Draw, kernel: KernelName, temperature: float, depth: int) -> Tensor:
    """``[B]``: mean squared error of centred values, relative to the variance of the exact values."""
    evaluation = evaluate(
        draw.context,
        draw.query,
        kernel=kernel,
        temperature=torch.full((1, 1), temperature, dtype=draw.query.dtype),
        step_fraction=torch.ones(depth, dtype=draw.query.dtype),
        discount=DISCOUNT,
    )
    assert not evaluation.diverged.any(), "steps at the probed bound keep these contexts stable"
    difference = evaluation.value[0] - draw.query_value
    return difference.var(dim=1, correction=0) / draw.query_value.var(dim=1, correction=0)


def median_interval(values: Tensor, generator: torch.Generator) -> tuple[float, float, float]:
    """Median with its percentile bootstrap 95 % interval."""
    index = torch.randint(len(values), (NUM_RESAMPLES, len(values)), generator=generator)
    medians = values[index].median(dim=1).values
    low, high = torch.quantile(medians, torch.tensor([0.025, 0.975], dtype=values.dtype)).tolist()
    return float(values.median()), low, high


def check_length(generator: torch.Generator, curves: dict[str, Curve]) -> list[Check]:
    """With context length, values tend to the truth.

    Args:
        generator: decides the processes.
        curves: filled with the error by length under ``rbf``.
    """
    processes = random_kernel_processes(
        NUM_PROCESSES, kernel="rbf", temperature=0.5, discount=DISCOUNT, generator=generator
    )
    intervals = []
    for length in LENGTHS:
        draw = processes.sample(length, NUM_QUERIES, generator)
        intervals.append(median_interval(centred_errors(draw, "rbf", 0.5, depth=100), generator))
    medians, lows, highs = (list(column) for column in zip(*intervals, strict=True))
    curves["rbf"] = Curve(list(LENGTHS), medians, lows, highs)
    rises = sum(b >= a for a, b in pairwise(medians))
    detail = ", ".join(f"N={n}: {m:.1e} [{a:.1e}, {b:.1e}]" for n, (m, a, b) in zip(LENGTHS, intervals, strict=True))
    return [
        Check("value error falls at every doubling of the context (rises of the median)", rises, 0, detail=detail),
        Check(
            f"error at N={LENGTHS[-1]} below that at N={LENGTHS[0]} (ratio of the intervals' near ends)",
            highs[-1] / lows[0],
            0.5,
            detail=f"{NUM_PROCESSES} processes",
        ),
    ]


MATCHING_LENGTH = 150
MATCHING_DEPTH = 300
MATCHING_TEMPERATURES: dict[KernelName, float] = {"rbf": 0.5, "exp": 1.0}
WRONG_FACTOR = 8.0


def check_matching(generator: torch.Generator, errors: dict[str, dict[str, float]]) -> list[Check]:
    """A value in the kernel's RKHS is found; with a wrong temperature or the linear kernel it is not.

    Args:
        generator: decides the processes.
        errors: filled with median errors by true kernel and by kernel of the transformer.
    """
    checks = []
    for kernel, temperature in MATCHING_TEMPERATURES.items():
        processes = random_kernel_processes(
            20, kernel=kernel, temperature=temperature, discount=DISCOUNT, generator=generator
        )
        draw = processes.sample(MATCHING_LENGTH, NUM_QUERIES, generator)
        tried: dict[str, tuple[KernelName, float]] = {
            f"{kernel}, true temperature": (kernel, temperature),
            f"{kernel}, temperature × {WRONG_FACTOR:g}": (kernel, temperature * WRONG_FACTOR),
            f"{kernel}, temperature / {WRONG_FACTOR:g}": (kernel, temperature / WRONG_FACTOR),
            "linear": ("linear", 1.0),
        }
        medians = {
            name: float(centred_errors(draw, used, delta, MATCHING_DEPTH).median())
            for name, (used, delta) in tried.items()
        }
        errors[kernel] = medians
        right, *wrong = medians.values()
        detail = ", ".join(f"{name}: {error:.1e}" for name, error in medians.items())
        checks += [
            Check(f"value in the RKHS of {kernel}: centred MSVE over the value's variance", right, 1e-3, detail=detail),
            Check(f"any wrong kernel is worse there, {kernel} (smallest ratio)", min(wrong) / right, 10, at_least=True),
        ]
    return checks
