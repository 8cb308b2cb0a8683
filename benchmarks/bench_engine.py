"""The engine: ratios of times measured side by side in one run.

(a) values of many queries against the predecessor's plain way, linear kernel;
(b) a forward pass against the bare matrix multiplies, and exponentials, that it needs;
(c) 16 temperatures against one;
(d) memory of contexts up to 65 536 transitions;
(e) a training step against its forward pass.

The things compared take turns, and a figure is the least time of any turn: other work on the machine can only add to
it. On the processor the time is that of one thread; on a graphics card, if there is one, the wall clock's.

    python benchmarks/bench_engine.py
"""

import json
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from predecessor import value_of_query
from torch import Tensor

from icrl.config import KernelName
from icrl.engine import evaluate, evaluate_at_step_sizes
from icrl.streaming import evaluate_streamed, safe_step_size
from icrl.types import Transitions

RESULTS = Path(__file__).parent / "results" / "engine.json"
STATE_SIZE, LENGTH, NUM_QUERIES, DEPTH, DISCOUNT = 39, 100, 100, 15, 0.9
NUM_CONTEXTS = 64
STEP_SIZE = 1e-3
SEED = 0
LONG_LENGTHS = (16_384, 32_768, 65_536)
LONG_DEPTH = 2

Row = dict[str, Any]


def random_context(batch_size: int, length: int, device: str) -> tuple[Transitions, Tensor]:
    """Contexts and queries of MetaWorld's size."""
    generator = torch.Generator().manual_seed(SEED)
    state = 0.3 * torch.randn(batch_size, length, STATE_SIZE, generator=generator)
    successor = state + 0.02 * torch.randn(state.shape, generator=generator)
    reward = torch.randn(batch_size, length, generator=generator)
    query = 0.3 * torch.randn(batch_size, NUM_QUERIES, STATE_SIZE, generator=generator)
    none = torch.zeros(batch_size, length, dtype=torch.bool)
    return Transitions(state, reward, successor, none, ~none).to(device), query.to(device)


def least_seconds(candidates: dict[str, Callable[[], object]], rounds: int, device: str) -> dict[str, float]:
    """Least time of each candidate over rounds in which all take turns."""
    best = dict.fromkeys(candidates, float("inf"))
    for number in range(rounds + 1):
        for name, run in candidates.items():
            if device == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter() if device == "cuda" else time.thread_time()
            run()
            if device == "cuda":
                torch.cuda.synchronize()
            taken = (time.perf_counter() if device == "cuda" else time.thread_time()) - start
            if number > 0:  # The first round warms up.
                best[name] = min(best[name], taken)
    return best


def fast(context: Transitions, query: Tensor, kernel: KernelName, num_temperatures: int = 1) -> Tensor:
    """A forward pass of the fast path at given step sizes."""
    return evaluate_at_step_sizes(
        context,
        query,
        kernel=kernel,
        temperature=torch.linspace(0.5, 2, num_temperatures, device=query.device)[:, None],
        step_size=torch.full((DEPTH,), STEP_SIZE, device=query.device),
        discount=DISCOUNT,
    ).value


def against_predecessor(device: str) -> list[Row]:
    """(a) The plain way is measured on a few queries and scaled up, since it does one after the other."""
    num_timed = 40
    context, query = random_context(NUM_CONTEXTS, LENGTH, device)
    fast_value = fast(context, query, "linear")[0, 0, :num_timed].cpu()
    first, plain_query = context[:1].to("cpu"), query[0].cpu()

    def plain() -> Tensor:
        values = [
            value_of_query(
                first.observation[0],
                first.reward[0],
                first.next_observation[0],
                one,
                # The baseline divides by the context length.
                step_size=STEP_SIZE * LENGTH,
                discount=DISCOUNT,
                depth=DEPTH,
            )
            for one in plain_query[:num_timed]
        ]
        return torch.tensor(values)

    assert torch.allclose(plain(), fast_value, rtol=1e-3, atol=1e-4), "both ways must give the same values"
    plain_seconds = least_seconds({"plain": plain}, 3, "cpu")["plain"] / num_timed * NUM_CONTEXTS * NUM_QUERIES
    fast_seconds = least_seconds({"fast": lambda: fast(context, query, "linear")}, 20, device)["fast"]
    what = f"predecessor / fast path, {NUM_CONTEXTS} contexts × {NUM_QUERIES} queries, linear"
    return [row("a", what, plain_seconds, fast_seconds, 1000)]


def against_bare_multiplies(device: str) -> list[Row]:
    """(b) What a forward pass spends beside its matrix multiplies."""
    context, query = random_context(NUM_CONTEXTS, LENGTH, device)
    rows = torch.cat([context.observation, context.next_observation, query], dim=1)
    vector = context.reward.unsqueeze(1)

    def multiplies() -> Tensor:
        gram = rows @ context.observation.mT
        weights = [vector @ gram[:, :LENGTH] for _ in range(DEPTH)]
        return torch.cat(weights, dim=1) @ gram[:, 2 * LENGTH :].mT

    matrix = rows @ context.observation.mT
    kernels: tuple[KernelName, ...] = ("linear", "softmax", "rbf")
    candidates: dict[str, Callable[[], object]] = {
        "multiplies": multiplies,
        "exponentials": lambda: torch.exp(matrix),
        **{kernel: (lambda kernel=kernel: fast(context, query, kernel)) for kernel in kernels},
    }
    best = least_seconds(candidates, 30, device)
    bare = best["multiplies"]
    return [
        row("b", "bare multiplies / forward, linear", bare, best["linear"], 0.5),
        row("b", "bare multiplies / forward, softmax", bare, best["softmax"], None),
        row("b", "bare multiplies / forward, rbf", bare, best["rbf"], None),
        row("b", "(multiplies + exponentials) / forward, softmax", bare + best["exponentials"], best["softmax"], 0.5),
        row("b", "(multiplies + exponentials) / forward, rbf", bare + best["exponentials"], best["rbf"], 0.5),
    ]


def temperatures(device: str) -> list[Row]:
    """(c) A sweep shares distances, but each temperature needs its own exponentials, recursion and values.

    The last row is what these alone would cost, with nothing around them.
    """
    context, query = random_context(NUM_CONTEXTS, LENGTH, device)
    rows = torch.cat([context.observation, context.next_observation, query], dim=1)
    vector = context.reward.unsqueeze(1)

    def bare(number: int) -> None:
        similarity = rows @ context.observation.mT
        for _ in range(number):
            gram = torch.exp(similarity)
            weights = [vector @ gram[:, :LENGTH] for _ in range(DEPTH)]
            torch.cat(weights, dim=1) @ gram[:, 2 * LENGTH :].mT

    candidates: dict[str, Callable[[], object]] = {"bare 1": lambda: bare(1), "bare 16": lambda: bare(16)}
    for kernel in ("softmax", "rbf"):
        for number in (1, 16):
            candidates[f"{kernel} {number}"] = lambda kernel=kernel, number=number: fast(context, query, kernel, number)
    best = least_seconds(candidates, 8, device)
    return [
        row("c", f"16 temperatures / 1, {kernel}", best[f"{kernel} 16"], best[f"{kernel} 1"], 4, at_most=True)
        for kernel in ("softmax", "rbf")
    ] + [row("c", "16 temperatures / 1, bare multiplies and exponentials alone", best["bare 16"], best["bare 1"], None)]


def long_contexts(device: str) -> list[Row]:
    """(d) Each length in a process of its own, whose peak memory is read at its end."""
    peaks = {}
    for length in LONG_LENGTHS:
        command = [sys.executable, __file__, "long", str(length), device]
        peaks[length] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    longest = peaks[LONG_LENGTHS[-1]]
    grown = [peaks[length]["peak_mib"] - longest["base_mib"] for length in LONG_LENGTHS]
    detail = ", ".join(f"N={n}: {p['peak_mib']:.0f} MiB, {p['seconds']:.1f} s" for n, p in peaks.items())
    what = f"peak memory in GiB at N = {LONG_LENGTHS[-1]}, rbf, {LONG_DEPTH} layers"
    return [
        {**row("d", what, longest["peak_mib"], 1024, 2, at_most=True), "detail": detail},
        row("d", "memory beside Python and torch, N doubled", grown[2], grown[1], 2.2, at_most=True),
    ]


def run_long(length: int, device: str) -> dict[str, float]:
    """One long context; peak memory before and after, in MiB."""
    context, query = random_context(1, length, device)
    base = peak_mib(device)
    step_size = safe_step_size(context, kernel="rbf", discount=DISCOUNT)
    start = time.perf_counter()
    result = evaluate_streamed(
        context,
        query,
        kernel="rbf",
        temperature=torch.tensor(1.0, device=device),
        step_size=step_size[:, None].expand(-1, LONG_DEPTH),
        discount=DISCOUNT,
    )
    assert not bool(result.diverged.any())
    return {"base_mib": base, "peak_mib": peak_mib(device), "seconds": time.perf_counter() - start}


def peak_mib(device: str) -> float:
    """Largest memory so far: of the graphics card's tensors, or of the process."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated() / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


def training_step(device: str) -> list[Row]:
    """(e) Structured weights: forward under the stability bound, and the same with its gradient."""
    context, query = random_context(NUM_CONTEXTS // 2, LENGTH, device)
    rows = []
    for kernel in ("softmax", "rbf"):
        for depth in (DEPTH, 60):
            temperature = torch.ones(1, 1, device=device, requires_grad=True)
            fraction = torch.ones(depth, device=device, requires_grad=True)

            def forward(
                kernel: KernelName = kernel, temperature: Tensor = temperature, fraction: Tensor = fraction
            ) -> Tensor:
                result = evaluate(
                    context, query, kernel=kernel, temperature=temperature, step_fraction=fraction, discount=DISCOUNT
                )
                return result.value.square().mean()

            def without_gradient(forward: Callable[[], Tensor] = forward) -> Tensor:
                with torch.no_grad():
                    return forward()

            best = least_seconds(
                {"forward": without_gradient, "step": lambda forward=forward: forward().backward()}, 10, device
            )
            what = f"training step / forward, {kernel}, depth {depth}"
            rows.append(row("e", what, best["step"], best["forward"], 4, at_most=True))
    return rows


def row(item: str, what: str, numerator: float, denominator: float, aim: float | None, *, at_most: bool = False) -> Row:
    """One line of the table; the aim is a lower bound unless `at_most`, and None where there is none."""
    ratio = numerator / denominator
    reached = None if aim is None else (ratio <= aim if at_most else ratio >= aim)
    relation = "" if aim is None else f"{'≤' if at_most else '≥'} {aim:g}"
    return {
        "item": item,
        "what": what,
        "ratio": ratio,
        "aim": relation,
        "reached": reached,
        "detail": f"{numerator:.4g} / {denominator:.4g}",
    }


def main() -> None:
    """Run everything, print the table and save it."""
    torch.set_num_threads(1)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if sys.argv[1:2] == ["long"]:
        print(json.dumps(run_long(int(sys.argv[2]), sys.argv[3])))
        return
    name = torch.cuda.get_device_name() if device == "cuda" else f"{platform.machine()} processor, one thread"
    print(f"engine on {name}, torch {torch.__version__}")
    rows: list[Row] = []
    for measure in (against_predecessor, against_bare_multiplies, temperatures, long_contexts, training_step):
        for line in measure(device):
            rows.append(line)
            mark = {True: "reached", False: "NOT reached", None: ""}[line["reached"]]
            print(
                f"({line['item']}) {line['what']:62} {line['ratio']:9.3g}  {line['aim']:7} {mark:12} {line['detail']}",
                flush=True,
            )
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps({"device": name, "torch": torch.__version__, "rows": rows}, indent=2) + "\n")
    print(f"saved to {RESULTS}")


if __name__ == "__main__":
    main()
