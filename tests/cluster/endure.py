"""A whole run under hardship, compared with one without: prints what happened, the time it cost, and any difference.

    endure.py faults EXPECTED RUN [OPTION…]   storage loses writes, and processes die while writing, in every stage
    endure.py nodes EXPECTED RUN [OPTION…]    four simulated nodes, of which one is replaced again and again

EXPECTED is the run folder of `icrl run OPTION…` without hardship; RUN must not exist yet.
"""

import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import pyarrow.fs as pafs
from ray import cloudpickle
from ray.cluster_utils import Cluster
from same_results import differences

from distributed.cli import parse
from distributed.pipeline import STAGE_NAMES, run_stages, stage_record
from icrl.storage import Folder

sys.path.insert(0, str(Path(__file__).parents[1] / "distributed"))
import faulty

NODE_LIFE_S = 25.0


def with_faults(location: str, work: Callable[[Folder], None]) -> Counter[str]:
    """Do the work in a folder whose writes fail and kill."""
    cloudpickle.register_pickle_by_value(faulty)
    with tempfile.TemporaryDirectory() as markers:
        stages = ("dataset", "tune", "train", "transfer")
        faults = faulty.Faults(location, Path(markers), os.getpid(), fail_every=3, kill_every=4, seed=0, stages=stages)
        work(Folder(pafs.PyFileSystem(faulty.FaultyHandler(faults)), location))
        return Counter(marker.name.split("-")[0] for marker in Path(markers).iterdir())


def with_restless_nodes(location: str, work: Callable[[Folder], None]) -> Counter[str]:
    """Do the work on four nodes, of which one is lost and another added every `NODE_LIFE_S`."""
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    nodes = [cluster.add_node(num_cpus=1) for _ in range(3)]
    os.environ["RAY_ADDRESS"] = cluster.address
    chance, happened = random.Random(0), Counter[str]()
    # The work runs in the thread, because Ray starts nodes in the main thread only.
    with ThreadPoolExecutor() as pool:
        running = pool.submit(work, Folder.open(location))
        while not wait([running], NODE_LIFE_S).done:
            cluster.remove_node(nodes.pop(chance.randrange(len(nodes))), allow_graceful=False)
            nodes.append(cluster.add_node(num_cpus=1))
            happened["node lost and another added"] += 1
        running.result()
    cluster.shutdown()
    return happened


def main(hardship: str, expected: str, location: str, *options: str) -> int:
    _, command = parse(["run", *options])
    endure = {"faults": with_faults, "nodes": with_restless_nodes}[hardship]
    run = Folder.open(location)
    start = time.monotonic()
    happened = endure(run.path, lambda folder: run_stages(STAGE_NAMES, command.experiment(), folder))
    seconds = time.monotonic() - start
    records = [stage_record(Folder.open(expected), stage) for stage in STAGE_NAMES]
    undisturbed = sum(record["seconds"] for record in records if record)
    print(f"{happened.total()} faults: {dict(happened)}; {seconds:.0f} s, without them {undisturbed:.0f} s")
    problems = differences(Folder.open(expected), run)
    print("\n".join(problems) or "same digests and tables")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
