"""Fixtures that several test modules share."""

from collections.abc import Iterator

import pytest
import torch

from icrl.config import ExperimentConfig
from icrl.storage import Folder

# The tests' matrices are small: a second thread would only wait for the first.
torch.set_num_threads(1)

TINY = ExperimentConfig.model_validate(
    {
        "seed": 5,
        "domains": ["reach-v3", "plate-slide-v3"],
        "collect": {
            "noise_tiers": {"low": 0.1, "high": 1.0},
            "tasks_per_tier": 4,
            "steps_per_episode": 60,
            "tasks_per_shard": 2,
        },
        "contexts": {"context_length": 24, "num_heldout": 24, "contexts_per_task": 2},
        "model": {"kernels": ["softmax", "linear"], "depth": 6},
        "tune": {"min_temperature": 0.1, "num_temperatures": 3, "temperatures_per_trial": 1},
        "train": {"num_steps": 4, "contexts_per_step": 4, "validate_every": 2},
        "transfer": {"num_resamples": 100},
    }
)


@pytest.fixture(scope="session")
def tiny_config() -> ExperimentConfig:
    """The smallest experiment that has two domains, two tiers, two kernels, and a task for every purpose."""
    return TINY


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


@pytest.fixture(scope="session")
def finished_run(local_ray: None, tiny_config: ExperimentConfig, tmp_path_factory: pytest.TempPathFactory) -> Folder:
    """A run folder after every stage: real MetaWorld, Tune, DDP and report. Tests must not change it."""
    from distributed.pipeline import STAGE_NAMES, run_stages

    run = Folder.open(tmp_path_factory.mktemp("finished") / "run")
    run_stages(STAGE_NAMES, tiny_config, run)
    return run
