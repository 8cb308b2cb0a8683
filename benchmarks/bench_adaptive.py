"""What choosing the temperature inside the context costs: an adaptive forward pass against a fixed one.

    python benchmarks/bench_adaptive.py

One thread, interleaved, best of several; contexts of random walks of the size of MetaWorld's observations.
"""

import time
from collections.abc import Callable

import torch

from icrl.adaptive import Gate, evaluate_bank, gate_weights
from icrl.config import KernelName
from icrl.engine import evaluate
from icrl.types import Transitions

BATCH, LENGTH, QUERIES, STATE, DEPTH, DISCOUNT = 8, 100, 200, 39, 60, 0.9
NUM_TEMPERATURES = 16
REPEATS = 12


def random_walks(generator: torch.Generator) -> tuple[Transitions, torch.Tensor]:
    """Contexts and queries."""
    path = 0.05 * torch.randn(BATCH, LENGTH + 1, STATE, generator=generator).cumsum(dim=1)
    context = Transitions(
        observation=path[:, :-1],
        reward=torch.rand(BATCH, LENGTH, generator=generator),
        next_observation=path[:, 1:],
        terminated=torch.zeros(BATCH, LENGTH, dtype=torch.bool),
        mask=torch.ones(BATCH, LENGTH, dtype=torch.bool),
    )
    return context, torch.randn(BATCH, QUERIES, STATE, generator=generator)


def seconds(work: Callable[[], object]) -> float:
    """CPU seconds of one call."""
    start = time.process_time()
    work()
    return time.process_time() - start


def compare(kernel: KernelName) -> None:
    """Print the milliseconds of one context under each kind of forward pass."""
    context, query = random_walks(torch.Generator().manual_seed(0))
    temperature = torch.logspace(-2, 1, NUM_TEMPERATURES)
    step_fraction = torch.ones(DEPTH)
    gate = Gate(temperature, torch.zeros(NUM_TEMPERATURES), torch.tensor(1.0))

    def fixed(deltas: torch.Tensor) -> None:
        evaluate(
            context,
            query,
            kernel=kernel,
            temperature=deltas[:, None],
            step_fraction=step_fraction[None, None],
            discount=DISCOUNT,
        )

    def adaptive() -> None:
        bank = evaluate_bank(
            context, query, kernel=kernel, temperature=temperature, step_fraction=step_fraction, discount=DISCOUNT
        )
        gate_weights(bank, gate)

    kinds = {
        "one fixed temperature": lambda: fixed(temperature[NUM_TEMPERATURES // 2, None]),
        f"{NUM_TEMPERATURES} fixed temperatures": lambda: fixed(temperature),
        "adaptive": adaptive,
    }
    best = dict.fromkeys(kinds, float("inf"))
    for _ in range(REPEATS):
        for name, work in kinds.items():
            best[name] = min(best[name], seconds(work))
    reference = best["one fixed temperature"]
    for name, spent in best.items():
        print(f"{kernel:8s} {name:24s} {1000 * spent / BATCH:7.2f} ms a context  {spent / reference:5.1f} ×")


if __name__ == "__main__":
    torch.set_num_threads(1)
    for kernel in ("softmax", "rbf"):
        compare(kernel)
