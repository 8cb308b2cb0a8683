"""Ray Train: the structured transformers of all source domains and kernels, fitted by DDP in one run.

Starting a worker group takes longer than a fit, so one group fits every model. The models share no parameter: a step
adds their losses, and Adam treats each number by itself, so each gets what a fit of its own would give it.
"""

import math
import tempfile
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pandas as pd
import ray.train
import torch
from ray.train.torch import TorchTrainer, get_device, prepare_model

from distributed import tensorboard
from distributed.progress import Progress
from distributed.relay import relayed
from distributed.session import cluster_total, wait_for_resources
from icrl.batches import BatchSource
from icrl.config import ExperimentConfig
from icrl.errors import RunStoppedError, one_line
from icrl.storage import Folder
from icrl.tables import TRAINING
from icrl.training import ModelBank, Outcome

CHECKPOINT_FILE = "state.pt"
MIN_PLACEMENTS = 5


@dataclass
class FitState:
    """Everything but the models and the optimiser that a fit carries from one step to the next.

    Attributes:
        train_loss: ``[P, K, S]``, mean TD loss of each step's contexts; NaN from the first unfinished step on.
        validation_loss: the same on the validation contexts; NaN also where a step was not validated.
        temperature: ``[P, K, S]``, δ after each step.
        best_loss: ``[K, S]``, lowest validation loss so far.
        best_temperature: ``[K, S]``, δ of the weights that had it.
        best_step_fraction: ``[K, S, L]``, their step sizes.
        diverged: ``[K, S]``, number of training contexts so far that diverged.
    """

    train_loss: torch.Tensor
    validation_loss: torch.Tensor
    temperature: torch.Tensor
    best_loss: torch.Tensor
    best_temperature: torch.Tensor
    best_step_fraction: torch.Tensor
    diverged: torch.Tensor

    @classmethod
    def start(cls, num_steps: int, bank: ModelBank) -> "FitState":
        """The state before the first step."""
        temperature, step_fraction = bank.weights()
        unknown = torch.full((num_steps, *temperature.shape), torch.nan)
        return cls(
            train_loss=unknown,
            validation_loss=unknown.clone(),
            temperature=unknown.clone(),
            best_loss=torch.full_like(temperature, torch.inf),
            best_temperature=temperature.cpu(),
            best_step_fraction=step_fraction.cpu(),
            diverged=torch.zeros_like(temperature).cpu(),
        )

    def keep_best(self, loss: torch.Tensor, bank: ModelBank) -> None:
        """Remember the present weights of every model whose validation loss is its lowest so far."""
        temperature, step_fraction = bank.weights()
        better = loss < self.best_loss
        self.best_loss = torch.where(better, loss, self.best_loss)
        self.best_temperature = torch.where(better, temperature.cpu(), self.best_temperature)
        self.best_step_fraction = torch.where(better[..., None], step_fraction.cpu(), self.best_step_fraction)


def load_state(folder: str | Path) -> dict[str, Any]:
    """The content of a checkpoint folder: `step`, `bank`, `optimizer` and `fit` (the fields of `FitState`)."""
    content: dict[str, Any] = torch.load(Path(folder) / CHECKPOINT_FILE, map_location="cpu", weights_only=True)
    return content


def train_worker(settings: dict[str, Any]) -> None:
    """One DDP worker: fits every model, or goes on from the last checkpoint.

    Args:
        settings: `config` (ExperimentConfig), `run` (Folder) and `temperature` (``[K, S]``, where δ starts)
            and `board` (see `distributed.relay`).
    """
    config: ExperimentConfig = settings["config"]
    run: Folder = settings["run"]
    context = ray.train.get_context()
    device = get_device()
    source = BatchSource(config, run / "dataset", context.get_world_rank(), context.get_world_size())
    bank = ModelBank(config, settings["temperature"])
    model = prepare_model(bank)
    optimizer = torch.optim.Adam(bank.parameters(), lr=config.train.learning_rate)
    state, first = FitState.start(config.train.num_steps, bank), 0
    checkpoint = ray.train.get_checkpoint()
    if checkpoint is not None:
        with checkpoint.as_directory() as folder:
            stored = load_state(folder)
        bank.load_state_dict(stored["bank"])
        optimizer.load_state_dict(stored["optimizer"])
        state, first = FitState(**stored["fit"]), stored["step"]
    leads = context.get_world_rank() == 0

    num_sources = len(config.domains)
    for step in range(first, config.train.num_steps):
        batch = source.training(step).to(device)
        outcome: Outcome = model(batch)
        # DDP averages gradients over the workers; the factor makes that average the sum over all contexts.
        loss = outcome.loss.sum() * context.get_world_size() / config.train.contexts_per_step
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

        total, kept, diverged = _over_workers(outcome.sums(batch.source, num_sources))
        state.train_loss[step] = total / kept
        state.temperature[step] = bank.weights()[0].cpu()
        state.diverged += diverged
        if leads:
            detail = f"mean TD loss {float(state.train_loss[step].nanmean()):.3g}"
            settings["board"].reach.remote(step + 1, detail)
        last = step + 1 == config.train.num_steps
        if last or (step + 1) % config.train.validate_every == 0:
            state.validation_loss[step] = _validate(source, bank, num_sources, device)
            state.keep_best(state.validation_loss[step], bank)
            if leads:
                # Replaced as training goes on, so that TensorBoard shows a fit while it runs.
                tensorboard.log_training(run, training_table(config, state))
            _report(step + 1, state, bank, optimizer, context.get_world_rank())


@torch.no_grad()
def _validate(source: BatchSource, bank: ModelBank, num_sources: int, device: torch.device) -> torch.Tensor:
    """Mean TD loss of every model over all validation contexts, ``[K, S]``; infinite where any of them diverged."""
    sums = torch.zeros(3, *bank.weights()[0].shape, device=device)
    for batch in source.validation():
        on_device = batch.to(device)
        outcome: Outcome = bank(on_device)
        sums += outcome.sums(on_device.source, num_sources)
    total, kept, diverged = _over_workers(sums)
    return torch.where(diverged > 0, torch.inf, total / kept)


def _over_workers(sums: torch.Tensor) -> torch.Tensor:
    if torch.distributed.is_initialized():
        torch.distributed.all_reduce(sums)
    return sums.cpu()


def _report(step: int, state: FitState, bank: ModelBank, optimizer: torch.optim.Optimizer, rank: int) -> None:
    metrics = {"step": step, "validation_loss": float(state.validation_loss[step - 1].mean())}
    if rank != 0:
        ray.train.report(metrics)
        return
    with tempfile.TemporaryDirectory() as folder:
        content = {
            "step": step,
            "bank": bank.state_dict(),
            "optimizer": optimizer.state_dict(),
            "fit": {field.name: getattr(state, field.name) for field in fields(state)},
        }
        torch.save(content, Path(folder) / CHECKPOINT_FILE)
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
        RunStoppedError: the workers failed as often as `cluster.max_attempts` allows.
    """
    failures = ray.train.FailureConfig(  # type: ignore[call-arg]  # Ray swaps the class when it is imported.
        max_failures=config.cluster.max_attempts - 1,
        # Attempts of a minute each to place the workers, in vain while a lost node is being replaced.
        controller_failure_limit=max(MIN_PLACEMENTS, math.ceil(config.cluster.wait_s / 60)),
    )
    with relayed(Progress("train", config.train.num_steps, "steps")) as board:
        trainer = TorchTrainer(
            train_worker,
            train_loop_config={"config": config, "run": run, "temperature": temperature, "board": board},
            scaling_config=ray.train.ScalingConfig(num_workers=config.train.num_workers, use_gpu=wants_gpus(config)),
            run_config=ray.train.RunConfig(
                name="ray",
                storage_path=storage.path,
                storage_filesystem=storage.filesystem,
                failure_config=failures,
                checkpoint_config=ray.train.CheckpointConfig(num_to_keep=2),
            ),
        )
        try:
            result = trainer.fit()
        except ray.train.TrainingFailedError as error:
            raise RunStoppedError(f"training failed {config.cluster.max_attempts} times: {one_line(error)}") from error
    assert result.checkpoint is not None, "the last step always reports a checkpoint"
    with result.checkpoint.as_directory() as folder:
        return FitState(**load_state(folder)["fit"])


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
