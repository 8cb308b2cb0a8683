"""What training finds: free weights against the construction, structured weights against the true temperature."""

from dataclasses import dataclass

import torch

from icrl.config import KernelName
from icrl.emergence import HeadEmergence, measure_emergence
from icrl.engine import evaluate_at_step_sizes
from icrl.free_training import FreeTraining, FreeTransformer, train_free
from icrl.mrps import Draw, KernelProcesses, random_kernel_processes
from icrl.selection import take
from icrl.training import StructuredTransformers, TrainingBatch
from icrl.types import Transitions
from icrl.verification.check import Check

DISCOUNT = 0.9
STATE_SIZE = 2
CONTEXT_LENGTH = 20
NUM_TRAINING_TASKS = 4096
NUM_TEST_TASKS = 512
DEPTH = 4
TASK_KERNEL: dict[KernelName, KernelName] = {"linear": "linear", "softmax": "rbf"}
"""Kernel of the transformer, and the kernel whose RKHS its tasks' values lie in."""
TASK_TEMPERATURE = 0.5


@dataclass(frozen=True, eq=False)
class Emergence:
    """Free weights after training, for a figure.

    Attributes:
        kernel: kernel of the transformer.
        heads: comparison with the construction after training.
        initial: the same before.
        losses: TD loss of each step.
        ratio: held-out MSVE over the construction's with the best fixed step size.
    """

    kernel: KernelName
    heads: list[HeadEmergence]
    initial: list[HeadEmergence]
    losses: list[float]
    ratio: float


def _tasks(kernel: KernelName, number: int, generator: torch.Generator) -> KernelProcesses:
    return random_kernel_processes(
        number,
        kernel=kernel,
        temperature=TASK_TEMPERATURE,
        discount=DISCOUNT,
        generator=generator,
        state_size=STATE_SIZE,
        step=1.0,
        dtype=torch.float32,
    )


def _split(transitions: Transitions, length: int) -> tuple[Transitions, Transitions]:
    """The first transitions as context, the rest held out."""
    return take(transitions, slice(0, length)), take(transitions, slice(length, None))


def best_constructed_error(kernel: KernelName, context: Transitions, test: Draw) -> float:
    """MSVE of the construction, of the task's temperature, with the best of many step sizes, the same in all layers."""
    scale = 1.0 if kernel == "softmax" else 1 / CONTEXT_LENGTH
    step_sizes = scale * torch.logspace(-2, 1.5, 60)
    evaluation = evaluate_at_step_sizes(
        context,
        test.query,
        kernel=kernel,
        temperature=torch.full((len(step_sizes), 1), TASK_TEMPERATURE),
        step_size=step_sizes[:, None, None].expand(-1, -1, DEPTH),
        discount=DISCOUNT,
    )
    return float((evaluation.value - test.query_value).square().mean(dim=(1, 2)).min())


def train_and_compare(kernel: KernelName, training: FreeTraining, generator: torch.Generator) -> Emergence:
    """Free weights from random initialisation, their held-out error, and their likeness to the construction."""
    tasks = _tasks(TASK_KERNEL[kernel], NUM_TRAINING_TASKS, generator)
    context, heldout = _split(tasks.sample(2 * CONTEXT_LENGTH, 1, generator).context, CONTEXT_LENGTH)
    model = FreeTransformer(
        STATE_SIZE,
        depth=DEPTH,
        kernel=kernel,
        temperature=TASK_TEMPERATURE,
        context_length=CONTEXT_LENGTH,
        generator=generator,
    )
    initial = measure_emergence(model.layers()[0], state_size=STATE_SIZE, discount=DISCOUNT)
    losses = train_free(model, context, heldout, discount=DISCOUNT, training=training, generator=generator)
    test = _tasks(TASK_KERNEL[kernel], NUM_TEST_TASKS, generator).sample(CONTEXT_LENGTH, 20, generator)
    with torch.no_grad():
        error = float((model(test.context, test.query) - test.query_value).square().mean())
    return Emergence(
        kernel=kernel,
        heads=measure_emergence(model.layers()[0], state_size=STATE_SIZE, discount=DISCOUNT),
        initial=initial,
        losses=losses,
        ratio=error / best_constructed_error(kernel, test.context, test),
    )


def check_free_weights(generator: torch.Generator, emergences: list[Emergence]) -> list[Check]:
    """Free weights reach the construction's error; how far they become the construction is reported beside it.

    They need not become it, since it is not the only way to a low error in a few layers: learned Q often compare
    s − c s' rather than s alone, as residual gradient does, and learned P also rewrite the states, which preconditions
    the steps after. Both are out of reach of kernel TD with a single step size.

    Args:
        generator: decides tasks, initial weights and draws.
        emergences: filled with one entry a kernel.
    """
    checks = []
    for kernel in TASK_KERNEL:
        emergence = train_and_compare(kernel, FreeTraining(), generator)
        emergences.append(emergence)
        detail = "; ".join(
            f"head of {now.written}: |cos| P {before.value_cosine:.2f} to {now.value_cosine:.2f}, "
            f"Q {before.attention_cosine:.2f} to {now.attention_cosine:.2f}"
            for before, now in zip(emergence.initial, emergence.heads, strict=True)
        )
        claim = f"free weights from random ones, {kernel}: held-out MSVE over the construction's with the best α"
        checks.append(Check(claim, emergence.ratio, 2.0, detail=detail))
    return checks


STRUCTURED_STEPS = 60
STRUCTURED_DEPTH = 30
START_FACTOR = 4.0


def check_structured_weights(generator: torch.Generator) -> list[Check]:
    """Multi-task TD on structured weights moves a wrong temperature to the true one."""
    length, true_temperature = 60, TASK_TEMPERATURE
    tasks = random_kernel_processes(
        200, kernel="rbf", temperature=true_temperature, discount=DISCOUNT, generator=generator, dtype=torch.float32
    )
    transitions = tasks.sample(2 * length, 1, generator).context
    model = StructuredTransformers(
        "rbf", torch.tensor([true_temperature * START_FACTOR]), STRUCTURED_DEPTH, step_fraction=1.0
    )
    optimiser = torch.optim.Adam(model.parameters(), lr=0.1)
    for _ in range(STRUCTURED_STEPS):
        some = transitions[torch.randint(transitions.batch_size, (8,), generator=generator)]
        batch = TrainingBatch(*_split(some, length), torch.zeros(8, dtype=torch.int64))
        outcome = model(batch, DISCOUNT)
        optimiser.zero_grad()
        torch.autograd.backward(outcome.loss.mean())
        optimiser.step()
    factor = float(model.temperature.detach() / true_temperature)
    return [
        Check(
            f"structured weights: temperature learned from {START_FACTOR:g} times the true one (factor left)",
            max(factor, 1 / factor),
            2.0,
            detail=f"learned {factor * true_temperature:.2f}, true {true_temperature:g}",
        )
    ]
