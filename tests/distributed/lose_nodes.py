"""Run collect, tune and transfer on simulated nodes, losing one in the middle of each stage.

lose_nodes.py CONFIG RUN FITTED     FITTED: run folder whose weights are applied
"""

import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import ray
import yaml
from ray.cluster_utils import Cluster

from distributed.stages import run_collect, run_transfer, run_tune
from icrl.config import ExperimentConfig
from icrl.storage import Folder


def lose_a_node(cluster: Cluster, nodes: list[Any], stage: Callable[[], Any], folder: Path, pattern: str) -> None:
    """Run a stage; as soon as it has written a file, cut off the older node and add a new one."""
    # The stage runs in the thread, because Ray starts nodes in the main thread only.
    with ThreadPoolExecutor() as pool:
        running = pool.submit(stage)
        while not any(folder.glob(pattern)) and not running.done():
            time.sleep(0.02)
        if running.done():
            running.result()
            raise AssertionError("the stage ended before its node was lost")
        cluster.remove_node(nodes.pop(0), allow_graceful=False)
        nodes.append(cluster.add_node(num_cpus=1))
        running.result()


def main(config_file: str, location: str, fitted: str) -> None:
    config = ExperimentConfig.model_validate(yaml.safe_load(Path(config_file).read_text()))
    run, path = Folder.open(location), Path(location)
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
    ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
    weights = "train/weights.safetensors"
    run.write(weights, Folder.open(fitted).read(weights))
    for stage, pattern in (
        (run_collect, "dataset/shards/*/*/*.parquet"),
        (run_tune, "tune/pieces/trials/*/*/*.parquet"),
        (run_transfer, "transfer/pieces/cells/*/*.parquet"),
    ):
        lose_a_node(cluster, nodes, partial(stage, config, run, "pieces"), path, pattern)
    ray.shutdown()
    cluster.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
