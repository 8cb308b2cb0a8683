"""Joining the Ray cluster that a command should use: the one it was submitted to, or a private one on this machine."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

import ray


@contextmanager
def ray_session() -> Iterator[None]:
    """Connect to the cluster named by RAY_ADDRESS, which Ray sets in submitted jobs, else start Ray on this machine."""
    if ray.is_initialized():
        yield
        return
    address = os.environ.get("RAY_ADDRESS")
    if address:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    else:
        # "local" ignores the address file that a killed cluster may have left behind.
        ray.init(address="local", include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    try:
        yield
    finally:
        ray.shutdown()


def cluster_total(resource: str) -> int:
    """Whole units of a resource, such as ``CPU`` or ``GPU``, that the connected cluster has."""
    totals: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    return int(totals.get(resource, 0))


def num_cluster_cpus() -> int:
    """CPUs of the connected cluster, at least 1."""
    return max(1, cluster_total("CPU"))
