"""What the step bounds guarantee, on contexts made to diverge."""

from dataclasses import dataclass

import torch
from torch import Tensor

from icrl.config import KernelName
from icrl.engine import Evaluation, evaluate, evaluate_at_step_sizes
from icrl.grams import clean, compute_grams
from icrl.types import Transitions
from icrl.verification.check import Check
from icrl.verification.problems import KERNELS

NUM_CONTEXTS = 60
LENGTH = 12
STATE_SIZE = 6
DEPTH = 60
DISCOUNT = 0.9
TEMPERATURE = 0.5


@dataclass(frozen=True, eq=False)
class HardContexts:
    """Contexts whose successors are seldom states themselves, so that the operator has eigenvalues that grow.

    Attributes:
        context: B contexts.
        state: ``[B, 2 N, D]``, all their states and successors.
    """

    context: Transitions
    state: Tensor


def hard_contexts(generator: torch.Generator) -> HardContexts:
    """Random independent states with successors some way off."""
    shape = (NUM_CONTEXTS, LENGTH, STATE_SIZE)
    state = torch.randn(shape, generator=generator, dtype=torch.float64) / STATE_SIZE**0.5
    successor = state + 0.3 * torch.randn(shape, generator=generator, dtype=torch.float64) / STATE_SIZE**0.5
    reward = torch.randn(shape[:2], generator=generator, dtype=torch.float64)
    none = torch.zeros(shape[:2], dtype=torch.bool)
    return HardContexts(Transitions(state, reward, successor, none, ~none), torch.cat([state, successor], dim=1))


def _at_fractions(hard: HardContexts, kernel: KernelName, step_fraction: Tensor) -> Evaluation:
    return evaluate(
        hard.context,
        hard.state,
        kernel=kernel,
        temperature=torch.full((1, 1), TEMPERATURE, dtype=torch.float64),
        step_fraction=step_fraction,
        discount=DISCOUNT,
    )


def _at_inverse_norm(hard: HardContexts, kernel: KernelName) -> Evaluation:
    temperature = torch.full((1, 1), TEMPERATURE, dtype=torch.float64)
    grams = compute_grams(
        clean(hard.context),
        hard.state,
        kernel=kernel,
        temperature_TB=temperature.expand(1, NUM_CONTEXTS),
        discount=DISCOUNT,
    )
    norm = torch.linalg.matrix_norm(grams.operator, 2) * grams.scale
    return evaluate_at_step_sizes(
        hard.context,
        hard.state,
        kernel=kernel,
        temperature=temperature,
        step_size=(1 / norm)[:, None].expand(-1, DEPTH),
        discount=DISCOUNT,
    )


def check_stability(generator: torch.Generator) -> list[Check]:
    """The probed bound holds for every schedule; 1/‖A‖ does not suffice; too large steps are seen to diverge."""
    hard = hard_contexts(generator)
    schedules = {
        "fixed fraction 1": torch.ones(DEPTH, dtype=torch.float64),
        "fixed fraction 2": torch.full((DEPTH,), 2.0, dtype=torch.float64),
        "random fractions in [0, 2]": 2 * torch.rand(1, NUM_CONTEXTS, DEPTH, generator=generator, dtype=torch.float64),
        "random fractions of 0 and 2": 2.0
        * torch.randint(2, (1, NUM_CONTEXTS, DEPTH), generator=generator, dtype=torch.float64),
    }
    rates = {
        name: max(_divergence_rate(_at_fractions(hard, kernel, schedule)) for kernel in KERNELS)
        for name, schedule in schedules.items()
    }
    checks = [
        Check(f"probed bound, {name}: divergence rate at the context's states, worst kernel", rate, 0.0)
        for name, rate in rates.items()
    ]
    unprobed = {kernel: _divergence_rate(_at_inverse_norm(hard, kernel)) for kernel in KERNELS}
    detail = ", ".join(f"{kernel} {rate:.0%}" for kernel, rate in unprobed.items())
    too_large = torch.full((DEPTH,), 20.0, dtype=torch.float64)
    seen = min(_divergence_rate(_at_fractions(hard, kernel, too_large)) for kernel in KERNELS)
    return [
        *checks,
        Check(
            "steps of 1/‖A‖ alone diverge on such contexts (worst kernel)",
            max(unprobed.values()),
            0.1,
            at_least=True,
            detail=detail,
        ),
        Check("steps of 20 times the bound are reported as divergence (rate, best kernel)", seen, 0.9, at_least=True),
    ]


def _divergence_rate(evaluation: Evaluation) -> float:
    return float(evaluation.diverged.double().mean())
