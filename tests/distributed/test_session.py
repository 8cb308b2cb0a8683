"""Wrong clusters end with one clear line and soon, never with an endless wait."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest
import ray

from distributed import session
from distributed.fit import wants_gpus
from distributed.session import ray_session, wait_for_resources
from icrl.config import ExperimentConfig
from icrl.errors import InputError

IMPATIENT = ExperimentConfig.model_validate({"cluster": {"wait_s": 1}})


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A port on which nothing listens."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]


def join(address: str, code: str = "") -> str:
    """What a driver of its own says when it joins the cluster at an address."""
    program = f"""
import ray
{code}
from distributed.session import ray_session
from icrl.config import ExperimentConfig
from icrl.errors import InputError
try:
    with ray_session(ExperimentConfig()):
        print("joined")
except InputError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "RAY_ADDRESS": address},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return done.stdout


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("127.0.0.1:{port}", "no Ray cluster answers at RAY_ADDRESS"),
        ("http://127.0.0.1:{port}", "expected HOST:PORT of a cluster's head"),
        ("somewhere", "no Ray cluster answers at RAY_ADDRESS 'somewhere'"),
        ("no-such-host.invalid:6379", "no Ray cluster answers at RAY_ADDRESS"),
    ],
)
def test_an_address_without_a_cluster(
    address: str, message: str, silent_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session.ray, "is_initialized", lambda: False)
    monkeypatch.setenv("RAY_ADDRESS", address.format(port=silent_port))
    with pytest.raises(InputError, match=message), ray_session(IMPATIENT):
        pytest.fail("joined a cluster that does not exist")


@pytest.mark.ray
@pytest.mark.usefixtures("local_ray")
def test_another_version_of_ray_is_named_and_the_right_one_joins() -> None:
    address = ray.get_runtime_context().gcs_address
    refused = join(address, "ray.__version__ = '2.0.0'")
    assert "cannot join the Ray cluster" in refused
    assert "2.0.0" in refused
    assert refused.count("\n") == 1
    assert join(address) == "joined\n"


@pytest.mark.ray
@pytest.mark.usefixtures("local_ray")
@pytest.mark.parametrize(
    ("bundles", "message"),
    [
        ([{"CPU": 1}] * 99, "the cluster has 2 of 99 CPUs after 1 s"),
        ([{"CPU": 1, "GPU": 1}] * 2, "the cluster has 0 of 2 GPUs after 1 s"),
    ],
)
def test_resources_that_never_come(bundles: list[dict[str, int]], message: str) -> None:
    with pytest.raises(InputError, match=message):
        wait_for_resources(bundles, IMPATIENT, "a test needs them")


@pytest.mark.ray
@pytest.mark.usefixtures("local_ray")
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_workers": 5}, r"2 of 5 CPUs .*\(train.num_workers is 5, train.device is auto\)"),
        ({"device": "cuda"}, r"0 of 2 GPUs .*train.device is cuda"),
    ],
)
def test_training_that_the_cluster_has_no_room_for(settings: dict[str, object], message: str) -> None:
    config = ExperimentConfig.model_validate({"train": settings, "cluster": {"wait_s": 1}})
    with pytest.raises(InputError, match=message):
        wants_gpus(config)


@pytest.mark.ray
@pytest.mark.usefixtures("local_ray")
@pytest.mark.parametrize("device", ["auto", "cpu"])
def test_training_takes_cpus_where_there_are_no_gpus(device: str) -> None:
    assert not wants_gpus(ExperimentConfig.model_validate({"train": {"device": device}}))
