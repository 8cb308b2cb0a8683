"""Rows of the adaptive model's tables: one task's contexts under the bank, and under every source's gate.

Shape letters: S gates, T temperatures, B contexts, H held-out transitions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from icrl.adaptive import RULES, Bank, Gate, evaluate_bank, fit_gate, gate_weights
from icrl.config import ExperimentConfig, KernelName
from icrl.contexts import HeldOut
from icrl.metrics import td_loss, td_ratio, value_error
from icrl.prediction import context_measures
from icrl.tables import ADAPTIVE, BANK
from icrl.types import Transitions

OTHERS = "others"
"""The source of a prior that all domains but the target have taught."""


@dataclass(frozen=True, eq=False)
class TargetGates:
    """The gates to try on one target, for one kernel.

    Attributes:
        kernel: name of the kernel.
        sources: `OTHERS`, then every domain.
        gate: S gates at once.
    """

    kernel: KernelName
    sources: tuple[str, ...]
    gate: Gate


def target_gates(excess: Mapping[KernelName, pd.DataFrame], domains: Sequence[str], target: str) -> list[TargetGates]:
    """The gates of every kernel.

    Args:
        excess: `icrl.adaptive.log_excess` of every kernel with a temperature.
        domains: all domains of the experiment.
        target: the domain that `OTHERS` leaves out.
    """
    teachers = [[domain for domain in domains if domain != target], *([domain] for domain in domains)]
    gates = []
    for kernel, of_kernel in excess.items():
        each = [fit_gate(of_kernel, sources) for sources in teachers]
        together = Gate(
            each[0].temperature,
            torch.stack([gate.log_prior for gate in each]),
            torch.stack([gate.strength for gate in each]),
        )
        gates.append(TargetGates(kernel, (OTHERS, *domains), together))
    return gates


def adaptive_rows(
    config: ExperimentConfig, gates: Sequence[TargetGates], context: Transitions, heldout: HeldOut
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Rows of `icrl.tables.ADAPTIVE` and `icrl.tables.BANK` for one task, but for the columns that name the task.

    The `stacked` rule runs with every gate, the plainer rules with that of `OTHERS`.
    """
    adaptive, banks = [], []
    transitions = heldout.transitions
    queries_BQD = torch.cat([transitions.observation, transitions.next_observation], dim=1)
    for kernel_gates in gates:
        kernel, gate = kernel_gates.kernel, kernel_gates.gate
        with torch.no_grad():
            bank = evaluate_bank(
                context,
                queries_BQD,
                kernel=kernel,
                temperature=gate.temperature,
                step_fraction=torch.full((config.model.depth,), config.tune.step_fraction),
                discount=config.discount,
            )
        banks.append(_bank_rows(config, kernel, gate, bank, context, heldout))
        of_others = Gate(gate.temperature, gate.log_prior[:1], gate.strength[:1])
        for rule in RULES:
            used, sources = (gate, kernel_gates.sources) if rule == "stacked" else (of_others, (OTHERS,))
            weight_STB = gate_weights(bank, used, rule).expand(len(sources), -1, -1)
            rows = _combined_rows(config, bank, weight_STB, gate.temperature, heldout)
            names = {"kernel": kernel, "rule": rule, "source": np.repeat(sources, context.batch_size)}
            adaptive.append(rows.assign(**names))
    adaptive_table = pd.concat(adaptive, ignore_index=True) if adaptive else pd.DataFrame(columns=list(ADAPTIVE))
    bank_table = pd.concat(banks, ignore_index=True) if banks else pd.DataFrame(columns=list(BANK))
    return adaptive_table, bank_table


def _bank_rows(
    config: ExperimentConfig, kernel: KernelName, gate: Gate, bank: Bank, context: Transitions, heldout: HeldOut
) -> pd.DataFrame:
    alignment, norm = context_measures(context, kernel=kernel, temperature=gate.temperature, discount=config.discount)
    return pd.DataFrame(
        {
            "kernel": kernel,
            "temperature": np.repeat(gate.temperature.double().numpy(), context.batch_size),
            "context": np.tile(np.arange(context.batch_size), len(gate.temperature)),
            "td_loss": _flat(_heldout_loss(config, bank.value, heldout).masked_fill(bank.diverged, torch.nan)),
            "fold_loss": _flat(bank.fold_loss.masked_fill(bank.diverged, torch.nan)),
            "alignment": _flat(alignment),
            "norm": _flat(norm),
            "diverged": bank.diverged.flatten().numpy(),
        }
    )


def _combined_rows(
    config: ExperimentConfig, bank: Bank, weight_STB: Tensor, temperature_T: Tensor, heldout: HeldOut
) -> pd.DataFrame:
    value_SBQ = bank.combine(weight_STB)
    failed_B = bank.diverged.all(0)
    loss_SB = _heldout_loss(config, value_SBQ, heldout).masked_fill(failed_B, torch.nan)
    transitions = heldout.transitions
    explained_SB = value_error(value_SBQ[..., : transitions.length], heldout.monte_carlo_return, heldout.has_return)
    ratio_SB = td_ratio(loss_SB, transitions.reward, transitions.terminated, transitions.mask, config.discount)
    mean_SB = torch.einsum("stb,t->sb", weight_STB, temperature_T.log()).exp()
    return pd.DataFrame(
        {
            "context": np.tile(np.arange(len(failed_B)), len(weight_STB)),
            "temperature": _flat(mean_SB),
            "td_loss": _flat(loss_SB),
            "td_ratio": _flat(ratio_SB),
            "value_error": _flat(explained_SB.masked_fill(failed_B, torch.nan)),
            "diverged": np.tile(failed_B.numpy(), len(weight_STB)),
        }
    )


def _heldout_loss(config: ExperimentConfig, value: Tensor, heldout: HeldOut) -> Tensor:
    transitions = heldout.transitions
    at_state, at_successor = value[..., : transitions.length], value[..., transitions.length :]
    return td_loss(
        transitions.reward, at_state, at_successor, transitions.terminated, transitions.mask, config.discount
    )


def _flat(numbers: Tensor) -> "np.ndarray[Any, np.dtype[np.float64]]":
    return numbers.flatten().double().numpy()
