"""A run folder in an object store: a driver killed on the way, and the same results as on a local disk."""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest
import yaml

from distributed.pipeline import STAGE_NAMES, run_stages
from distributed.status import run_status
from icrl.config import ExperimentConfig
from icrl.datasets import read_manifest
from icrl.storage import Folder

pytestmark = [pytest.mark.ray, pytest.mark.faults, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    """URI of an empty bucket on an S3 server of this test's own."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-p", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                urllib.request.urlopen(urllib.request.Request(f"http://127.0.0.1:{port}/bucket", method="PUT"))
                break
            except OSError:
                assert time.monotonic() < deadline, "the S3 server did not start"
                time.sleep(0.2)
        yield f"s3://key:secret@bucket/{{}}?scheme=http&endpoint_override=127.0.0.1%3A{port}&region=us-east-1"
    finally:
        server.kill()
        server.wait()


def test_a_killed_run_on_s3_goes_on_and_ends_like_a_local_one(
    bucket: str, finished_run: Folder, tiny_config: ExperimentConfig, tmp_path: Path
) -> None:
    config, log, location = tmp_path / "tiny.yaml", tmp_path / "log", bucket.format("run")
    config.write_text(yaml.safe_dump(tiny_config.model_dump(mode="json"), sort_keys=False))
    run = Folder.open(location)
    with log.open("wb") as stream:
        driver = subprocess.Popen(
            [sys.executable, "-m", "distributed.cli", "run", "--config", str(config), "--run-dir", location],
            stdout=stream,
            stderr=subprocess.STDOUT,
            env={name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"},
        )
    deadline = time.monotonic() + 200
    while not run.list("tune"):
        assert driver.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.1)
    driver.send_signal(signal.SIGKILL)
    driver.wait()

    collect, tune, *_ = run_status(tiny_config, run)
    assert collect.finished
    assert not tune.finished
    shards = {shard.path: shard.digest for shard in read_manifest(run / "dataset").shards}
    assert shards == {shard.path: shard.digest for shard in read_manifest(finished_run / "dataset").shards}

    run_stages(STAGE_NAMES, tiny_config, run)
    assert run.exists("report/report.html")
    for name in ("tune/profiles", "train/metrics", "transfer/cells", "transfer/depth"):
        expected: pd.DataFrame = finished_run.read_table(f"{name}.parquet").to_pandas()
        pd.testing.assert_frame_equal(run.read_table(f"{name}.parquet").to_pandas(), expected, rtol=1e-4)
