"""Ray Tune: how well each temperature serves each domain, on the source tier's fit and validation tasks.

A trial is a kernel, a domain and a few neighbouring temperatures. It reads its contexts from the dataset, writes its
rows of the profile table itself and reports one figure a temperature to Tune. Trials are plain single-process
functions in reused actors, since a fresh actor costs more than a trial.

A search that was interrupted goes on from the rows of its finished trials. Tune's own restoring would need its state
in the run folder, written every few seconds, and would still miss the trials that finished since.
"""

import tempfile
from collections import Counter, defaultdict
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import torch
from ray import tune

from distributed.progress import Progress
from distributed.search import AshaForEachPair, Pair, TemperatureProposer
from icrl.batches import task_contexts
from icrl.config import KERNELS_WITHOUT_TEMPERATURE, ExperimentConfig, KernelName
from icrl.contexts import split_tasks
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
        """Where the finished trial's rows lie in the search's folder."""
        ends = dict.fromkeys(f"{temperature:.6g}" for temperature in (self.temperatures[0], self.temperatures[-1]))
        return f"trials/{self.kernel}/{self.domain}/{'-'.join(ends)}.parquet"

    def file_at(self, depth: int) -> str:
        """Where its rows at a smaller depth lie until it is finished, or for good if it was stopped there."""
        return f"shallow/{depth}/{self.file}"


def plan_trials(config: ExperimentConfig) -> list[Trial]:
    """All trials of a search, in the order in which they are started."""
    grid, size = config.tune.grid, config.tune.batch_size
    blocks = [tuple(grid[start : start + size]) for start in range(0, len(grid), size)]
    return [
        Trial(kernel, domain, block)
        for domain in config.domains
        for kernel in config.model.kernels
        for block in ([(float("nan"),)] if kernel in KERNELS_WITHOUT_TEMPERATURE else blocks)
    ]


def search_depths(config: ExperimentConfig) -> tuple[int, ...]:
    """Depths at which a trial reports: with ASHA a quarter, a half and the whole of the depth, else the whole."""
    depth = config.model.depth
    quarter = max(1, depth // 4)
    return tuple(sorted({quarter, min(2 * quarter, depth), depth})) if config.tune.search == "asha" else (depth,)


def profile_rows(config: ExperimentConfig, dataset: Folder, trial: Trial, *, depth: int | None = None) -> pd.DataFrame:
    """Rows of the profile table (`icrl.tables.PROFILES`) for one trial, reading one task at a time.

    Args:
        config: the experiment.
        dataset: folder of the collected dataset.
        trial: what to evaluate.
        depth: layers; the experiment's when None.
    """
    fit, validation, _ = split_tasks(config.collect.tasks_per_tier)
    step_fraction = torch.full((1, 1, depth or config.model.depth), config.tune.step_fraction)
    parts = []
    tasks = [*fit, *validation]
    for seed, context, heldout in task_contexts(config, dataset, trial.domain, config.source_tier, tasks, "tune"):
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
            "task_seed": seed,
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
    for depth in search_depths(config):
        rows = profile_rows(config, dataset, trial, depth=depth)
        name = trial.file if depth == config.model.depth else trial.file_at(depth)
        search.write_table(name, pa.Table.from_pandas(rows, preserve_index=False))
        for temperature in trial.temperatures:
            tune.report({"temperature": temperature, "depth": depth, **_figures(rows, temperature)})


def _figures(rows: pd.DataFrame, temperature: float) -> dict[str, float]:
    of_temperature = rows[rows.temperature.isna() if np.isnan(temperature) else rows.temperature == temperature]
    # The mean over the contexts that did not diverge would make a poor temperature look good.
    loss = np.nan if of_temperature.diverged.any() else of_temperature.td_loss.mean()
    return {"td_loss": float(loss), "divergence_rate": float(of_temperature.diverged.mean())}


class _ShowProgress(tune.Callback):
    """Prints a line as trials finish."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Called by Tune once per finished trial."""
        parameters, last = trial.config["trial"], trial.last_result
        self._progress.advance(
            f"{parameters['kernel']} on {parameters['domain']}: "
            f"TD loss {last['td_loss']:.3g} at temperature {last['temperature']:.3g}"
        )


def search_temperatures(config: ExperimentConfig, dataset: Folder, search: Folder) -> pd.DataFrame:
    """Run the search, or what remains of it, and return the profile table.

    Args:
        config: the experiment.
        dataset: folder of the collected dataset.
        search: folder of this search; finished trials that lie there are kept.

    Returns:
        One row a context and temperature of every trial, columns as in `icrl.tables.PROFILES`. A trial that ASHA
        stopped has the rows of the depth that it reached.

    Raises:
        InputError: a shard of the dataset is damaged.
        RunStoppedError: a trial failed as often as ``config.cluster.max_attempts`` allows.
    """
    done, total = count_trials(config, search)
    progress = Progress("tune", total, "trials", done=done)
    if done < total:
        _run_tuner(config, dataset, search, progress)
    if config.tune.search == "optuna":
        files = [name for name in search.list("trials") if name.endswith(".parquet")]
    else:
        present = set(search.list())
        depths = search_depths(config)[:-1]
        files = [
            next(name for name in (trial.file, *map(trial.file_at, reversed(depths))) if name in present)
            for trial in plan_trials(config)
        ]
    profiles: pd.DataFrame = pa.concat_tables([search.read_table(name) for name in files]).to_pandas()
    return profiles


def count_trials(config: ExperimentConfig, search: Folder) -> tuple[int, int]:
    """How many trials of a search are finished, and how many it has."""
    present = set(search.list("trials"))
    planned = plan_trials(config)
    if config.tune.search == "optuna":
        return min(len(present), len(planned)), len(planned)
    return sum(trial.file in present for trial in planned), len(planned)


def _run_tuner(config: ExperimentConfig, dataset: Folder, search: Folder, progress: Progress) -> None:
    present = set(search.list("trials"))
    planned = [trial for trial in plan_trials(config) if trial.file not in present]
    settings: dict[str, Any] = {}
    space: dict[str, Any] = {}
    if config.tune.search == "optuna":
        proposer, num_trials = _proposer(config, search)
        settings |= {"search_alg": proposer, "num_samples": num_trials}
    else:
        space = {"trial": tune.grid_search([asdict(trial) for trial in planned])}
        settings |= {"metric": "td_loss", "mode": "min"}
    if config.tune.search == "asha":
        settings = {"scheduler": AshaForEachPair(search_depths(config))}
    with tempfile.TemporaryDirectory() as scratch:
        tuner = tune.Tuner(
            tune.with_resources(
                tune.with_parameters(_run_trial, config=config, dataset=dataset, search=search), {"cpu": 1}
            ),
            param_space=space,
            tune_config=tune.TuneConfig(reuse_actors=True, **settings),
            run_config=tune.RunConfig(
                name="search",
                storage_path=scratch,
                callbacks=[_ShowProgress(progress)],
                failure_config=tune.FailureConfig(max_failures=config.cluster.max_attempts - 1),
                verbose=0,
            ),
        )
        failed = tuner.fit().errors
    if failed:
        if isinstance(failed[0], InputError):
            raise InputError(one_line(failed[0]))
        raise RunStoppedError(f"{len(failed)} of {progress.total} trials failed; one of them: {one_line(failed[0])}")


def _proposer(config: ExperimentConfig, search: Folder) -> tuple[TemperatureProposer, int]:
    """Proposes what remains of an Optuna search: as many trials a kernel and domain as the grid would have."""
    planned: Counter[Pair] = Counter((trial.kernel, trial.domain) for trial in plan_trials(config))
    finished: defaultdict[Pair, list[tuple[float, float]]] = defaultdict(list)
    for name in search.list("trials"):
        rows = search.read_table(name).to_pandas()
        temperature = float(rows.temperature.iloc[0])
        finished[rows.kernel.iloc[0], rows.domain.iloc[0]].append((temperature, _figures(rows, temperature)["td_loss"]))
    missing = {pair: count - len(finished[pair]) for pair, count in planned.items()}
    bounds = (config.tune.min_temperature, config.tune.max_temperature)
    return TemperatureProposer(bounds, missing, finished, config.seed), sum(missing.values())
