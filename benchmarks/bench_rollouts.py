"""Time of a step, domain by domain: MetaWorld's own loop, the fast loop, and the physics alone.

The three take turns in one process, on the same task and actions in every round, and the two loops are compared bit by
bit. A figure is the least CPU time of any round: other work on the machine can only add to it.

    python benchmarks/bench_rollouts.py [DOMAIN ...]
"""

import json
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import mujoco
import numpy as np
from numpy.typing import NDArray

from icrl.domains import MetaWorldEnvironment
from icrl.metaworld_fast.environment import FastMetaWorldEnvironment
from icrl.provenance import package_versions

NOISE_STD = 0.4
ROUNDS = 4
SEED = 1
STEPS = 250
RESULTS = Path(__file__).parent / "results" / "rollouts.json"

Timed = tuple[float, float, list[Any]]


def loop(environment: MetaWorldEnvironment, seed: int, noise: NDArray[np.float64]) -> Timed:
    """Microseconds of the reset and of a step (expert, noise, step), and all that the steps gave."""
    start = time.thread_time()
    observation = environment.reset_task(seed)
    ready = time.thread_time()
    rows = []
    for row in noise:
        noisy = environment.behaviour(observation) + row
        action = np.minimum(np.maximum(noisy, -1.0), 1.0).astype(np.float32)
        observation, reward, _, success = environment.step(action)
        rows.append((action, observation, reward, success))
    end = time.thread_time()
    return (ready - start) * 1e6, (end - ready) / len(noise) * 1e6, rows


def physics(environment: FastMetaWorldEnvironment, seed: int, actions: list[NDArray[np.float32]]) -> float:
    """Microseconds of a step of the physics alone: the frame skip's substeps and the closing forward pass."""
    environment.reset_task(seed)
    simulator = environment._environment
    model, data, frame_skip = simulator.model, simulator.data, simulator.frame_skip
    low, high = simulator.mocap_low, simulator.mocap_high
    taken = 0.0
    for action in actions:
        data.mocap_pos[0] = np.clip(data.mocap_pos[0] + action[:3] * simulator.action_scale, low, high)
        data.ctrl[:] = action[3], -action[3]
        start = time.thread_time()
        mujoco.mj_step(model, data, nstep=frame_skip)
        mujoco.mj_forward(model, data)
        taken += time.thread_time() - start
    return taken / len(actions) * 1e6


def bench_domain(name: str) -> dict[str, Any]:
    """The least of all rounds, in microseconds, and the number of steps on which the two loops differ."""
    plain, fast = MetaWorldEnvironment(name), FastMetaWorldEnvironment(name)
    loop(fast, 0, np.zeros((2, 4)))  # writes the scalar code
    columns: dict[str, list[float]] = {key: [] for key in ("plain_reset", "plain", "fast_reset", "fast", "raw")}
    differing = 0
    noise = NOISE_STD * np.random.default_rng(SEED).standard_normal((STEPS, 4))
    for _ in range(ROUNDS):
        plain_reset, plain_step, expected = loop(plain, SEED, noise)
        fast_reset, fast_step, rows = loop(fast, SEED, noise)
        raw = physics(fast, SEED, [row[0] for row in expected])
        for key, value in zip(columns, (plain_reset, plain_step, fast_reset, fast_step, raw), strict=True):
            columns[key].append(value)
        differing += sum(
            not all(np.array_equal(a, b) for a, b in zip(row, other, strict=True))
            for row, other in zip(rows, expected, strict=True)
        )
    return {key: min(values) for key, values in columns.items()} | {"differing_steps": differing}


def main(names: list[str]) -> None:
    from metaworld.env_dict import ALL_V3_ENVIRONMENTS

    results = {}
    print(f"{'microseconds':30}{'plain':>8}{'fast':>8}{'raw':>8}{'fast/raw':>10}{'plain/fast':>12}{'differing':>11}")
    for name in names or list(ALL_V3_ENVIRONMENTS):
        row = results[name] = bench_domain(name)
        print(
            f"{name:30}{row['plain']:8.0f}{row['fast']:8.0f}{row['raw']:8.0f}{row['fast'] / row['raw']:10.2f}"
            f"{row['plain'] / row['fast']:12.2f}{row['differing_steps']:11}",
            flush=True,
        )
    medians = {
        "fast_to_raw": median(row["fast"] / row["raw"] for row in results.values()),
        "plain_to_raw": median(row["plain"] / row["raw"] for row in results.values()),
        "plain_to_fast": median(row["plain"] / row["fast"] for row in results.values()),
        "plain_to_fast_reset": median(row["plain_reset"] / row["fast_reset"] for row in results.values()),
        "differing_steps": sum(row["differing_steps"] for row in results.values()),
    }
    print(
        f"median of {len(results)}: fast loop {medians['fast_to_raw']:.2f} x raw physics, "
        f"MetaWorld's {medians['plain_to_raw']:.2f} x; {medians['plain_to_fast']:.2f} times faster, "
        f"reset {medians['plain_to_fast_reset']:.1f} times; {medians['differing_steps']} steps differ"
    )
    RESULTS.parent.mkdir(exist_ok=True)
    document = {"versions": package_versions(), "medians": medians, "domains": results}
    RESULTS.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
