"""Fixtures that several test modules share."""

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session")
def local_ray() -> Iterator[None]:
    """One small Ray for the whole test session."""
    import ray

    # "local" makes Ray ignore the address file that a killed cluster may have left behind.
    ray.init(
        address="local",
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="error",
        object_store_memory=128 * 2**20,
    )
    yield
    ray.shutdown()
