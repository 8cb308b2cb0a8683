"""Compare two run folders: every shard's digest and every result table. Exit status 1 and a line a difference."""

import sys

import pandas as pd

from icrl.datasets import read_manifest
from icrl.storage import Folder

TABLES = ("tune/profiles", "train/metrics", "train/weights", "transfer/cells", "transfer/depth")
# Floating-point sums may be taken in another order on another number of workers.
TOLERANCE = 1e-4


def differences(first: Folder, second: Folder) -> list[str]:
    found = []
    digests = [{shard.path: shard.digest for shard in read_manifest(run / "dataset").shards} for run in (first, second)]
    if digests[0] != digests[1]:
        found.append("digests of the datasets differ")
    for name in TABLES:
        tables = [run.read_table(f"{name}.parquet").to_pandas() for run in (first, second)]
        try:
            pd.testing.assert_frame_equal(*tables, rtol=TOLERANCE)
        except AssertionError as error:
            found.append(f"{name}: {' '.join(str(error).split())}")
    return found


if __name__ == "__main__":
    problems = differences(*map(Folder.open, sys.argv[1:3]))
    print("\n".join(problems) or "same digests and tables")
    sys.exit(bool(problems))
