"""What Ray itself costs a shard: thousands of tiny shards of a domain without physics, and the driver's memory.

shards.py [NUM_SHARDS] [NUM_WORKERS…]
"""

import resource
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import ray
from numpy.typing import NDArray
from ray import cloudpickle

from distributed.collect import collect
from icrl.config import ExperimentConfig
from icrl.domains import Domain, register_domain
from icrl.storage import Folder

cloudpickle.register_pickle_by_value(sys.modules[__name__])


class Still:
    """A point that never moves."""

    def reset_task(self, variation_seed: int) -> NDArray[np.float32]:
        return self.reset()

    def reset(self) -> NDArray[np.float32]:
        return np.zeros(4, np.float32)

    def step(self, action: NDArray[np.float32]) -> tuple[NDArray[np.float32], float, bool, bool]:
        return np.zeros(4, np.float32), 0.0, False, False

    def behaviour(self, observation: NDArray[np.float32]) -> NDArray[np.float32]:
        return np.zeros(4, np.float32)


def resident_memory() -> int:
    """Bytes of this process in memory (Linux)."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


class PeakMemory:
    """Most resident memory of this process while the body runs, in MiB above its start."""

    def __enter__(self) -> "PeakMemory":
        self._ended = threading.Event()
        self._start = self._peak = resident_memory()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()
        self.growth = (self._peak - self._start) / 2**20

    def _watch(self) -> None:
        while not self._ended.wait(0.1):
            self._peak = max(self._peak, resident_memory())


def main(num_shards: int, *num_workers: int) -> None:
    ray.init(address="local", num_cpus=max(num_workers), include_dashboard=False, log_to_driver=False)
    register_domain(Domain("still", Still, observation_size=4))
    config = ExperimentConfig.model_validate(
        {
            "domains": ["still"],
            "collect": {"noise_tiers": {"high": 0.0}, "tasks_per_tier": num_shards, "tasks_per_shard": 1}
            | {"steps_per_episode": 4},
            "contexts": {"context_length": 2, "num_heldout": 2},
        }
    )
    for workers in num_workers:
        with tempfile.TemporaryDirectory() as folder, PeakMemory() as memory:
            start, cpu = time.monotonic(), time.process_time()
            summary = collect(config, Folder.open(folder), num_workers=workers)
            seconds, cpu = time.monotonic() - start, time.process_time() - cpu
        print(
            f"{workers} workers: {summary.written} shards in {seconds:.1f} s, "
            f"{1000 * summary.rollout_seconds * workers / summary.written:.1f} ms a shard and worker, "
            f"{1000 * cpu / summary.written:.1f} ms of the driver's CPU a shard, "
            f"driver +{memory.growth:.0f} MiB"
        )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:] or ("2000", "1", "2")))
