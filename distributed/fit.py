"""Ray Train: the structured transformers of all source domains and kernels, fitted by DDP in one run.

Starting a worker group takes longer than a fit, so one group fits every model. The models share no parameter: a step
adds their losses, and Adam treats each number by itself, so each gets what a fit of its own would give it.
"""

import math
import tempfile
from pathlib import Path
from typing import Any

import pandas as pd
import ray.train
import torch
from ray.train.torch import TorchTrainer, get_device, prepare_model
from ray.util.placement_group import PlacementGroup

from distributed import tensorboard
from distributed.ddp import Fit, FitState
from distributed.progress import Progress
from distributed.relay import relayed
from distributed.session import cluster_total, wait_for_resources
from icrl.batches import BatchSource
from icrl.config import ExperimentConfig
from icrl.errors import RunStoppedError, one_line
from icrl.storage import Folder
from icrl.tables import TRAINING

CHECKPOINT_FILE = "state.pt"
FIT_NAME = "ray"
MIN_PLACEMENTS = 5


def load_checkpoint(checkpoint: ray.train.Checkpoint) -> dict[str, Any]:
    """The content of a checkpoint, see `distributed.ddp.Fit.checkpoint`."""
    with checkpoint.as_directory() as folder:
        content: dict[str, Any] = torch.load(Path(folder) / CHECKPOINT_FILE, map_location="cpu", weights_only=True)
        return content


def train_worker(settings: dict[str, Any]) -> None:
    """One DDP worker: fits every model, or goes on from the last checkpoint.

    Args:
        settings: `config` (ExperimentConfig), `run` (Folder), `temperature` (``[K, S]``, where δ starts) and `board`
            (see `distributed.relay`).
    """
    config: ExperimentConfig = settings["config"]
    run: Folder = settings["run"]
    context = ray.train.get_context()
    rank, world_size = context.get_world_rank(), context.get_world_size()
    fit = Fit(
        config,
        BatchSource(config, run / "dataset", rank, world_size),
        settings["temperature"],
        world_size=world_size,
        device=get_device(),
        wrap=prepare_model,
    )
    if (earlier := ray.train.get_checkpoint()) is not None:
        fit.restore(load_checkpoint(earlier))
    while not fit.is_done:
        validated = fit.step()
        if rank == 0:
            loss = fit.state.train_loss[fit.num_done - 1].nanmean()
            settings["board"].reach.remote(fit.num_done, f"mean TD loss {float(loss):.3g}")
        if validated:
            if rank == 0:
                # Replaced as training goes on, so that TensorBoard shows a fit while it runs.
                tensorboard.log_training(run, training_table(config, fit.state))
            _report(fit, rank)


def _report(fit: Fit, rank: int) -> None:
    metrics = {"step": fit.num_done, "validation_loss": float(fit.state.validation_loss[fit.num_done - 1].mean())}
    if rank != 0:
        ray.train.report(metrics)
        return
    with tempfile.TemporaryDirectory() as folder:
        torch.save(fit.checkpoint(), Path(folder) / CHECKPOINT_FILE)
        ray.train.report(metrics, checkpoint=ray.train.Checkpoint.from_directory(folder))


def wants_gpus(config: ExperimentConfig) -> bool:
    """Whether training uses GPUs on the connected cluster, which by then has what the workers need.

    Raises:
        InputError: the cluster has fewer GPUs or CPUs than the configuration asks for.
    """
    num_workers, device = config.train.num_workers, config.train.device
    gpus = device == "cuda" or (device == "auto" and cluster_total("GPU") >= num_workers)
    wait_for_resources(
        [{"CPU": 1, "GPU": 1} if gpus else {"CPU": 1}] * num_workers,
        config,
        f"train.num_workers is {num_workers}, train.device is {device}",
    )
    return gpus


def fit_models(config: ExperimentConfig, run: Folder, storage: Folder, temperature: torch.Tensor) -> FitState:
    """Fit every kernel's model on every source domain.

    Args:
        config: the experiment.
        run: the run folder, which holds the dataset and receives TensorBoard's event files.
        storage: folder of this fit; a fit that was interrupted there goes on from its last checkpoint.
        temperature: ``[K, S]`` float32, where each δ starts.

    Returns:
        The state after the last step.

    Raises:
        InputError: the cluster is too small for the configuration.
        RunStoppedError: the workers, or what controls them, failed as often as `cluster.max_attempts` allows.
    """
    failures = ray.train.FailureConfig(  # type: ignore[call-arg]  # Ray swaps the class when it is imported.
        max_failures=config.cluster.max_attempts - 1,
        # Attempts of a minute each to place the workers, in vain while a lost node is being replaced.
        controller_failure_limit=max(MIN_PLACEMENTS, math.ceil(config.cluster.wait_s / 60)),
    )
    progress = Progress("train", config.train.num_steps, "steps")
    with relayed(progress) as board:
        trainer = TorchTrainer(
            train_worker,
            train_loop_config={"config": config, "run": run, "temperature": temperature, "board": board},
            scaling_config=ray.train.ScalingConfig(num_workers=config.train.num_workers, use_gpu=wants_gpus(config)),
            run_config=ray.train.RunConfig(
                name=FIT_NAME,
                storage_path=storage.path,
                storage_filesystem=storage.filesystem,
                failure_config=failures,
                checkpoint_config=ray.train.CheckpointConfig(num_to_keep=2),
            ),
        )
        result = _fit(trainer, progress, config.cluster.max_attempts)
    assert result.checkpoint is not None, "the last step always reports a checkpoint"
    return FitState(**load_checkpoint(result.checkpoint)["state"])


def _fit(trainer: TorchTrainer, progress: Progress, max_attempts: int) -> ray.train.Result:
    """Fit, also through failures of Train's controller, which looks after its workers but is looked after by nobody."""
    for attempts_left in reversed(range(max_attempts)):
        try:
            return trainer.fit()
        except (ray.train.TrainingFailedError, ray.exceptions.RayActorError) as error:
            if not attempts_left or not _is_controllers(error):
                raise RunStoppedError(f"training failed {max_attempts} times: {one_line(error)}") from error
            progress.say(f"training's controller stopped, goes on from the last checkpoint: {one_line(error)}")
            _release_placement_groups()
    raise AssertionError("cluster.max_attempts is at least 1")


def _is_controllers(error: Exception) -> bool:
    """Whether the controller died, or could not read or write its notes; what befalls workers Train repeats itself."""
    if isinstance(error, ray.train.ControllerError):
        return isinstance(error.controller_failure, OSError)
    return isinstance(error, ray.exceptions.RayActorError)


def _release_placement_groups() -> None:
    """Free what a dead controller reserved; Ray does so itself only where its dashboard runs."""
    job_id = ray.get_runtime_context().get_job_id()
    for group_id, group in ray.util.placement_group_table().items():
        # The last bytes of a group's id are those of its job; no other groups of this job exist during a fit.
        if group_id.endswith(job_id) and group["state"] != "REMOVED":
            ray.util.remove_placement_group(PlacementGroup(ray.PlacementGroupID(bytes.fromhex(group_id))))


def training_table(config: ExperimentConfig, state: FitState) -> pd.DataFrame:
    """The fit's history, one row a kernel, source and step, columns as in `icrl.tables.TRAINING`."""
    index = pd.MultiIndex.from_product(
        [range(config.train.num_steps), config.model.kernels, config.domains], names=["step", "kernel", "domain"]
    )
    columns = {
        "train_loss": state.train_loss,
        "validation_loss": state.validation_loss,
        "temperature": state.temperature,
    }
    frame = pd.DataFrame({name: tensor.flatten().double().numpy() for name, tensor in columns.items()}, index=index)
    return frame.reset_index()[list(TRAINING)]
