"""A whole run under hardship, compared with one without: prints what happened, the time it cost, and any difference.

    endure.py faults EXPECTED RUN [OPTION…]   storage loses writes, and processes die while writing, in every stage
    endure.py nodes EXPECTED RUN [OPTION…]    four simulated nodes, of which one is replaced again and again

EXPECTED is the run folder of `icrl run OPTION…` without hardship; RUN must not exist yet.
"""

import os
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
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


@contextmanager
def storage_faults(run: str) -> Iterator[tuple[Folder, Counter[str]]]:
    cloudpickle.register_pickle_by_value(faulty)
    happened: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as markers:
        stages = ("dataset", "tune", "train", "transfer")
        faults = faulty.Faults(run, Path(markers), os.getpid(), fail_every=3, kill_every=4, seed=0, stages=stages)
        yield Folder(pafs.PyFileSystem(faulty.FaultyHandler(faults)), run), happened
        happened.update(marker.name.split("-")[0] for marker in Path(markers).iterdir())


@contextmanager
def restless_nodes(run: str) -> Iterator[tuple[Folder, Counter[str]]]:
    happened: Counter[str] = Counter()
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    nodes = [cluster.add_node(num_cpus=1) for _ in range(3)]
    os.environ["RAY_ADDRESS"] = cluster.address
    ended = threading.Event()

    def replace_nodes() -> None:
        chance = random.Random(0)
        while not ended.wait(NODE_LIFE_S):
            lost = nodes.pop(chance.randrange(len(nodes)))
            cluster.remove_node(lost, allow_graceful=False)
            nodes.append(cluster.add_node(num_cpus=1))
            happened["node lost and another added"] += 1
            print(f"-- replaced a node, {happened.total()} so far", flush=True)

    thread = threading.Thread(target=replace_nodes)
    thread.start()
    try:
        yield Folder.open(run), happened
    finally:
        ended.set()
        thread.join()
        cluster.shutdown()


def main(hardship: str, expected: str, location: str, *options: str) -> int:
    _, command = parse(["run", *options])
    start = time.monotonic()
    with {"faults": storage_faults, "nodes": restless_nodes}[hardship](os.path.abspath(location)) as (run, happened):
        run_stages(STAGE_NAMES, command.experiment(), run)
    seconds = time.monotonic() - start
    undisturbed = sum(stage_record(Folder.open(expected), stage)["seconds"] for stage in STAGE_NAMES)
    print(f"{happened.total()} faults: {dict(happened)}; {seconds:.0f} s, without them {undisturbed:.0f} s")
    problems = differences(Folder.open(expected), run)
    print("\n".join(problems) or "same digests and tables")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
