"""Every claim of the theory as a check that passes or fails: `icrl verify`.

Runs in under two minutes, prints nothing, and needs neither data nor network. The checks themselves are in
`icrl.verification`; here they are run in order and drawn.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import matplotlib as mpl
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from icrl.plots import KERNEL_COLOURS, STYLE
from icrl.verification.check import Check
from icrl.verification.constructions import check_constructions, check_fast_path
from icrl.verification.equivalences import (
    check_invariances,
    check_kernel_regression,
    check_linear_td,
    check_precision,
    check_single_mask,
)
from icrl.verification.inputs import check_inputs_refused
from icrl.verification.learning import Emergence, check_free_weights, check_structured_weights
from icrl.verification.limits import Curve, check_depth, check_length, check_matching
from icrl.verification.stability import check_stability


@dataclass(frozen=True, eq=False)
class Evidence:
    """What the checks measured on the way, for the figure.

    Attributes:
        depth: relative distance from the fixed point by depth, by kernel.
        length: value error by context length, by kernel.
        matching: value error by true kernel and by kernel of the transformer.
        offsets: mean and spread of the single mask's offset, by kernel.
        emergences: free weights after training.
    """

    depth: dict[str, Curve] = field(default_factory=dict)
    length: dict[str, Curve] = field(default_factory=dict)
    matching: dict[str, dict[str, float]] = field(default_factory=dict)
    offsets: dict[str, tuple[float, float]] = field(default_factory=dict)
    emergences: list[Emergence] = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class Verification:
    """The outcome of all checks.

    Attributes:
        checks: in the order in which they ran.
        evidence: for the figure.
        seconds: wall-clock time.
    """

    checks: list[Check]
    evidence: Evidence
    seconds: float

    @property
    def passed(self) -> bool:
        """Whether every check passed."""
        return all(check.passed for check in self.checks)

    def to_dict(self) -> dict[str, Any]:
        """The document that goes to JSON."""
        return {
            "passed": self.passed,
            "seconds": round(self.seconds, 1),
            "checks": [check.to_dict() for check in self.checks],
        }


def run_checks(seed: int = 0, progress: Callable[[str], None] | None = None) -> Verification:
    """Run every check.

    Args:
        seed: decides all random draws; each group of checks has its own generator derived from it.
        progress: called with the name of each group before it starts.
    """
    evidence = Evidence()
    groups: dict[str, Callable[[torch.Generator], list[Check]]] = {
        "constructions": check_constructions,
        "fast path": check_fast_path,
        "linear TD": check_linear_td,
        "kernel regression": check_kernel_regression,
        "invariances": check_invariances,
        "single mask": lambda generator: check_single_mask(generator, evidence.offsets),
        "depth": lambda generator: check_depth(generator, evidence.depth),
        "context length": lambda generator: check_length(generator, evidence.length),
        "matching kernel": lambda generator: check_matching(generator, evidence.matching),
        "stability": check_stability,
        "structured weights": check_structured_weights,
        "free weights": lambda generator: check_free_weights(generator, evidence.emergences),
        "precision": check_precision,
        "bad input": lambda generator: check_inputs_refused(),
    }
    start, checks = time.monotonic(), []
    with _one_thread():
        for number, (name, run) in enumerate(groups.items()):
            if progress is not None:
                progress(name)
            checks += run(torch.Generator().manual_seed(seed * len(groups) + number))
    return Verification(checks, evidence, time.monotonic() - start)


@contextmanager
def _one_thread() -> Iterator[None]:
    """The checks' matrices are so small that threads spend more time waiting for each other than working."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@mpl.rc_context(STYLE)
def plot_verification(verification: Verification) -> Figure:
    """The evidence on one page: limits, matching kernels, offsets, and free weights beside the construction."""
    evidence = verification.evidence
    rows = 2 + len(evidence.emergences)
    figure = Figure(figsize=(13, 3.6 * rows))
    top, bottom, *below = figure.subfigures(rows, 1, squeeze=False)[:, 0]
    depth, length = top.subplots(1, 2)
    _draw_curves(depth, evidence.depth, "Depth: distance from the fixed point", "layers")
    _draw_curves(length, evidence.length, "Context length: value error (median, 95 %)", "transitions")
    matching, offsets = bottom.subplots(1, 2)
    _draw_matching(matching, evidence.matching)
    _draw_offsets(offsets, evidence.offsets)
    for subfigure, emergence in zip(below, evidence.emergences, strict=True):
        _draw_emergence(subfigure.subplots(1, 5), emergence)
    return figure


def _draw_curves(axes: Axes, curves: dict[str, Curve], title: str, label: str) -> None:
    for kernel, curve in curves.items():
        colour = KERNEL_COLOURS[kernel]
        axes.plot(curve.x, curve.y, marker="o", markersize=4, color=colour, label=kernel)
        if curve.low is not None and curve.high is not None:
            axes.fill_between(curve.x, curve.low, curve.high, color=colour, alpha=0.2, linewidth=0)
    axes.set(xscale="log", yscale="log", xlabel=label, ylabel="relative error", title=title)
    axes.legend()


def _draw_matching(axes: Axes, matching: dict[str, dict[str, float]]) -> None:
    bars = [(f"{true}: {used}", error, true) for true, errors in matching.items() for used, error in errors.items()]
    names, errors, true_kernels = zip(*bars, strict=True)
    axes.barh(range(len(bars)), errors, color=[KERNEL_COLOURS[kernel] for kernel in true_kernels])
    axes.set_yticks(range(len(bars)), names)
    axes.invert_yaxis()
    axes.axvline(1e-3, color="#222222", linewidth=1, linestyle="--")
    axes.set(xscale="log", xlabel="centred MSVE / variance", title="Value's kernel: transformer's kernel")


def _draw_offsets(axes: Axes, offsets: dict[str, tuple[float, float]]) -> None:
    means, spreads = zip(*offsets.values(), strict=True)
    axes.bar(list(offsets), means, yerr=spreads, capsize=4, color=[KERNEL_COLOURS[kernel] for kernel in offsets])
    axes.set(ylabel="offset / spread of the value", title="Single mask: offset and its spread over queries")


def _draw_emergence(panels: Any, emergence: Emergence) -> None:
    losses, *matrices = panels
    state_size = (len(emergence.heads[0].value) - 3) // 2
    labels = ["s"] * state_size + ["s'"] * state_size + ["r", "v", "v'"]
    losses.plot(emergence.losses, color=KERNEL_COLOURS[emergence.kernel], linewidth=1)
    losses.set(yscale="log", xlabel="step", title=f"Free weights, {emergence.kernel}: TD loss")
    for axes, (name, matrix, cosine) in zip(
        matrices,
        [
            (f"{symbol}, head of {head.written}", matrix, cosine)
            for head in emergence.heads
            for symbol, matrix, cosine in (
                ("P", head.value, head.value_cosine),
                ("Q", head.attention, head.attention_cosine),
            )
        ],
        strict=True,
    ):
        limit = float(matrix.abs().max())
        axes.imshow(matrix.numpy(), cmap="RdBu", vmin=-limit, vmax=limit)
        axes.grid(visible=False)
        axes.set_xticks(range(len(matrix)), labels)
        axes.set_yticks(range(len(matrix)), labels)
        axes.set(title=f"{name}: |cos| {cosine:.2f}")
