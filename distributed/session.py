"""Joining the Ray cluster that a command should use, and waiting for its resources, never without a time limit."""

import logging
import os
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import ray
from ray._private.services import canonicalize_bootstrap_address
from ray.autoscaler.sdk import request_resources

from icrl.config import ExperimentConfig
from icrl.errors import InputError

CONNECT_TIMEOUT_S = 10.0
POLL_S = 0.5


@contextmanager
def ray_session(config: ExperimentConfig) -> Iterator[None]:
    """Connect to the cluster named by RAY_ADDRESS, which Ray sets in submitted jobs, else start Ray on this machine.

    Raises:
        InputError: no such cluster, one that runs other versions, or one without a CPU for tasks.
    """
    if ray.is_initialized():
        yield
        return
    address = os.environ.get("RAY_ADDRESS")
    if address:
        _join(address)
    else:
        # "local" ignores the address file that a killed cluster may have left behind.
        ray.init(address="local", include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    try:
        wait_for_resources([{"CPU": 1}], config, "every stage needs one")
        yield
    finally:
        ray.shutdown()


def _join(address: str) -> None:
    remedy = "correct RAY_ADDRESS, or unset it to run on this machine alone"
    if "://" in address:
        raise InputError(
            f"RAY_ADDRESS is {address!r}, expected HOST:PORT of a cluster's head, or auto on a cluster's node; {remedy}"
        )
    try:
        # Ray itself retries for minutes where nothing answers.
        found = canonicalize_bootstrap_address(address)
        host, _, port = (found or "").rpartition(":")
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_TIMEOUT_S).close()
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, OSError, ValueError) as error:
        raise InputError(f"no Ray cluster answers at RAY_ADDRESS {address!r} ({_flat(error)}); {remedy}") from None
    except RuntimeError as error:
        raise InputError(
            f"cannot join the Ray cluster at {address!r}: {_flat(error)}; "
            "install the versions of constraints.txt on every node"
        ) from None


def _flat(error: Exception) -> str:
    return " ".join(str(error).split())


def wait_for_resources(bundles: list[dict[str, int]], config: ExperimentConfig, purpose: str) -> None:
    """Wait until the cluster has the resources for all bundles, asking an autoscaling cluster to grow for them.

    Args:
        bundles: the resources of each piece of work that must run at the same time, each on one node.
        config: the experiment; ``config.cluster.wait_s`` limits the wait.
        purpose: who needs them, for the error message.

    Raises:
        InputError: the cluster still lacks some.
    """
    needed = {name: sum(bundle.get(name, 0) for bundle in bundles) for name in ("CPU", "GPU")}
    if not _lacking(needed):
        return
    deadline = time.monotonic() + config.cluster.wait_s
    request_resources(bundles=bundles)
    try:
        while lacking := _lacking(needed):
            if time.monotonic() > deadline:
                raise InputError(
                    f"the cluster has {' and '.join(lacking)} after {config.cluster.wait_s:g} s ({purpose}); "
                    "ask for less, add nodes, or give an autoscaling cluster more time with --cluster.wait-s"
                )
            time.sleep(POLL_S)
    finally:
        # The request would otherwise outlive this run and keep its nodes alive.
        request_resources(bundles=[])


def _lacking(needed: Mapping[str, int]) -> list[str]:
    return [
        f"{cluster_total(name)} of {count} {name}s" for name, count in needed.items() if cluster_total(name) < count
    ]


def cluster_total(resource: str) -> int:
    """Whole units of a resource, such as ``CPU`` or ``GPU``, that the connected cluster has."""
    totals: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    return int(totals.get(resource, 0))


def num_workers_for(num_jobs: int, config: ExperimentConfig) -> int:
    """How many one-CPU workers to use for so many jobs: at least 1."""
    return max(1, min(num_jobs, config.cluster.max_workers or cluster_total("CPU")))
