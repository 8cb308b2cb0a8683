"""Ray Tune: how well each temperature serves each domain, on the source tier's fit and validation tasks.

A trial is a kernel, a domain and a few neighbouring temperatures. It reads its contexts from the dataset, writes its
rows of the profile table itself and reports one figure a temperature to Tune. Trials are plain single-process
functions in reused actors, since a fresh actor costs more than a trial.
"""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import torch
from ray import tune

from distributed.progress import Progress
from icrl.config import KERNELS_WITHOUT_TEMPERATURE, ExperimentConfig, KernelName
from icrl.contexts import context_generator, draw_contexts, split_tasks
from icrl.datasets import read_tasks
from icrl.errors import InputError, RunStoppedError, one_line
from icrl.evaluation import measure
from icrl.storage import Folder
from icrl.tables import PROFILES


@dataclass(frozen=True)
class Trial:
    """One piece of the search.

    Attributes:
        kernel: name of the kernel.
        domain: name of the domain.
        temperatures: δ values to evaluate; NaN alone for a kernel without temperature.
    """

    kernel: KernelName
    domain: str
    temperatures: tuple[float, ...]

    @property
    def file(self) -> str:
        """Where the trial's rows lie in the search's folder."""
        return f"trials/{self.kernel}/{self.domain}/{self.temperatures[0]:.6g}.parquet"


def temperature_grid(config: ExperimentConfig) -> list[float]:
    """The searched temperatures, evenly spaced in their logarithm."""
    search = config.tune
    grid = np.geomspace(search.min_temperature, search.max_temperature, search.num_temperatures)
    return [float(temperature) for temperature in grid]


def plan_trials(config: ExperimentConfig) -> list[Trial]:
    """All trials of a search, in the order in which they are started."""
    grid, size = temperature_grid(config), config.tune.temperatures_per_trial
    blocks = [tuple(grid[start : start + size]) for start in range(0, len(grid), size)]
    return [
        Trial(kernel, domain, block)
        for domain in config.domains
        for kernel in config.model.kernels
        for block in ([(float("nan"),)] if kernel in KERNELS_WITHOUT_TEMPERATURE else blocks)
    ]


def profile_rows(config: ExperimentConfig, dataset: Folder, trial: Trial) -> pd.DataFrame:
    """Rows of the profile table (`icrl.tables.PROFILES`) for one trial, reading one task at a time."""
    fit, validation, _ = split_tasks(config.collect.tasks_per_tier)
    step_fraction = torch.full((1, 1, config.model.depth), config.tune.step_fraction)
    parts = []
    for index, episodes in read_tasks(dataset, trial.domain, config.source_tier, [*fit, *validation]):
        context, heldout = draw_contexts(
            episodes,
            num_contexts=config.contexts.contexts_per_task,
            context_length=config.contexts.context_length,
            num_heldout=config.contexts.num_heldout,
            discount=config.discount,
            generator=context_generator(config.seed, trial.domain, config.source_tier, index, "tune"),
        )
        measured = measure(
            context,
            heldout,
            kernel=trial.kernel,
            temperature=torch.tensor(trial.temperatures)[:, None],
            step_fraction=step_fraction,
            discount=config.discount,
        )
        columns = {
            "temperature": np.repeat(trial.temperatures, context.batch_size),
            "task_seed": episodes[0].task_seed,
            "context": np.tile(np.arange(context.batch_size), len(trial.temperatures)),
            "td_loss": measured.td_loss.flatten().double().numpy(),
            "td_ratio": measured.td_ratio.flatten().double().numpy(),
            "diverged": measured.diverged.flatten().numpy(),
        }
        parts.append(pd.DataFrame(columns))
    rows = pd.concat(parts, ignore_index=True).assign(kernel=trial.kernel, domain=trial.domain)
    return rows[list(PROFILES)]


def _run_trial(parameters: dict[str, Any], *, config: ExperimentConfig, dataset: Folder, search: Folder) -> None:
    trial = Trial(**parameters["trial"])
    rows = profile_rows(config, dataset, trial)
    search.write_table(trial.file, pa.Table.from_pandas(rows, preserve_index=False))
    for temperature, group in rows.groupby("temperature", dropna=False):
        tune.report(
            {"temperature": temperature, "td_loss": group.td_loss.mean(), "divergence_rate": group.diverged.mean()}
        )


class _ShowProgress(tune.Callback):
    """Prints a line as trials finish."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Called by Tune once per finished trial."""
        parameters, loss = trial.config["trial"], trial.last_result["td_loss"]
        self._progress.advance(f"{parameters['kernel']} on {parameters['domain']}: TD loss {loss:.3g}")


def search_temperatures(config: ExperimentConfig, dataset: Folder, search: Folder) -> pd.DataFrame:
    """Run the search, or what remains of it, and return the profile table.

    Args:
        config: the experiment.
        dataset: folder of the collected dataset.
        search: folder of this search; finished trials that lie there are kept.

    Returns:
        One row a context and temperature, columns as in `icrl.tables.PROFILES`.

    Raises:
        InputError: a shard of the dataset is damaged.
        RunStoppedError: a trial failed as often as ``config.cluster.max_attempts`` allows.
    """
    trials = plan_trials(config)
    remaining = [trial for trial in trials if not search.exists(trial.file)]
    progress = Progress("tune", len(trials), "trials", done=len(trials) - len(remaining))
    if remaining:
        tuner = tune.Tuner(
            tune.with_resources(
                tune.with_parameters(_run_trial, config=config, dataset=dataset, search=search), {"cpu": 1}
            ),
            param_space={"trial": tune.grid_search([asdict(trial) for trial in remaining])},
            tune_config=tune.TuneConfig(metric="td_loss", mode="min", reuse_actors=True),
            run_config=tune.RunConfig(
                name="ray",
                storage_path=search.path,
                storage_filesystem=search.filesystem,
                callbacks=[_ShowProgress(progress)],
                failure_config=tune.FailureConfig(max_failures=config.cluster.max_attempts - 1),
                verbose=0,
            ),
        )
        failed = tuner.fit().errors
        if failed:
            if isinstance(failed[0], InputError):
                raise InputError(one_line(failed[0]))
            raise RunStoppedError(
                f"{len(failed)} of {len(remaining)} trials failed; one of them: {one_line(failed[0])}"
            )
    tables = [search.read_table(trial.file) for trial in trials]
    profiles: pd.DataFrame = pa.concat_tables(tables).to_pandas()
    return profiles
