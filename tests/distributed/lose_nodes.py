"""Run collect and transfer on simulated nodes, losing one in the middle of each stage.

lose_nodes.py CONFIG RUN FITTED     FITTED: run folder whose weights are applied
"""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray
import yaml
from ray.cluster_utils import Cluster

from distributed.collect import collect
from distributed.evaluate import evaluate_transfer
from distributed.stages import write_frame
from icrl.config import ExperimentConfig
from icrl.storage import Folder
from icrl.weights import FittedWeights

PATIENCE_S = 120.0


@contextmanager
def losing_a_node(cluster: Cluster, nodes: list[Any], folder: Path, pattern: str) -> Iterator[None]:
    """Cut off the older node, and add a new one, once the stage has written a file."""

    def lose() -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not any(folder.glob(pattern)) and time.monotonic() < deadline:
            time.sleep(0.02)
        cluster.remove_node(nodes.pop(0), allow_graceful=False)
        lost.set()
        nodes.append(cluster.add_node(num_cpus=1))

    lost, thread = threading.Event(), threading.Thread(target=lose)
    thread.start()
    yield
    assert lost.is_set(), "the stage ended before its node was lost"
    thread.join()


def main(config_file: str, location: str, fitted: str) -> None:
    config = ExperimentConfig.model_validate(yaml.safe_load(Path(config_file).read_text()))
    run, path = Folder.open(location), Path(location)
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
    ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
    with losing_a_node(cluster, nodes, path, "dataset/shards/*/*/*.parquet"):
        collect(config, run / "dataset")
    weights = FittedWeights.load(Folder.open(fitted), "train/weights.safetensors")
    with losing_a_node(cluster, nodes, path, "blocks/cells/*/*.parquet"):
        profiles = run.read_table("profiles.parquet").to_pandas()
        tables = evaluate_transfer(config, run / "dataset", weights, profiles, run / "blocks")
        write_frame(run, "cells.parquet", tables.cells)
    ray.shutdown()
    cluster.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
