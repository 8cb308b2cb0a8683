"""The experiment's configuration: typed, validated, frozen, and the presets that ship with the package."""

from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
import yaml
from pydantic import BaseModel, ConfigDict, Field, model_validator

from icrl.errors import InputError

KernelName = Literal["linear", "relu", "exp", "softmax", "rbf"]
KERNELS_WITHOUT_TEMPERATURE: tuple[KernelName, ...] = ("linear", "relu")

ALL_TIERS = "all"
"""In results, the name of all noise tiers together."""

PositiveCount = Annotated[int, Field(ge=1)]
PositiveNumber = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Section(BaseModel):
    """A group of settings: unknown keys are refused and values never change after validation."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False)


class CollectConfig(Section):
    """How trajectories are collected."""

    noise_tiers: dict[str, Annotated[float, Field(ge=0, allow_inf_nan=False)]] = {"low": 0.1, "mid": 0.4, "high": 1.0}
    """Standard deviation of the Gaussian action noise of each tier, before clipping to [-1, 1]."""
    tasks_per_tier: Annotated[int, Field(ge=4)] = 24
    """Tasks of each domain at each tier."""
    episodes_per_task: PositiveCount = 1
    """Episodes of each task; all of them share the task's variation."""
    steps_per_episode: Annotated[int, Field(ge=2)] = 500
    """Steps after which an episode is truncated."""
    tasks_per_shard: PositiveCount = 4
    """Tasks written to one Parquet file."""

    @model_validator(mode="after")
    def _has_a_tier(self) -> Self:
        if not self.noise_tiers:
            raise ValueError("at least one noise tier is needed, for example {high: 1.0}")
        if ALL_TIERS in self.noise_tiers:
            raise ValueError(f"a noise tier cannot be named {ALL_TIERS!r}, which stands for all of them; rename it")
        return self


class ContextConfig(Section):
    """How transitions of a task become contexts and held-out transitions."""

    context_length: PositiveCount = 100
    """Transitions in a context, N."""
    num_heldout: PositiveCount = 100
    """Transitions of the same task, outside the context, on which the TD error is measured."""
    contexts_per_task: PositiveCount = 4
    """Contexts drawn from each task for tuning and for transfer."""


class ModelConfig(Section):
    """The transformer."""

    kernels: tuple[KernelName, ...] = ("softmax", "rbf", "linear")
    """Kernels to study; `linear` is the baseline."""
    depth: PositiveCount = 60
    """Layers, that is TD iterations, L."""

    @model_validator(mode="after")
    def _kernels_differ(self) -> Self:
        if not self.kernels or len(set(self.kernels)) < len(self.kernels):
            raise ValueError("name at least one kernel, and none twice")
        return self


class TuneConfig(Section):
    """The temperature search."""

    min_temperature: PositiveNumber = 0.01
    """Smallest temperature."""
    max_temperature: PositiveNumber = 10.0
    """Largest temperature."""
    num_temperatures: Annotated[int, Field(ge=2)] = 25
    """Temperatures, spaced evenly in their logarithm."""
    search: Literal["grid", "optuna", "asha"] = "grid"
    """`grid` tries every temperature; `optuna` lets TPE propose as many for each kernel and domain; `asha` stops the
    weaker half of the grid at a quarter and at a half of the depth."""
    temperatures_per_trial: PositiveCount | None = None
    """Neighbouring temperatures that one trial evaluates (and reports one by one), so that they share the reading of
    data, the distances between states and what Tune costs a trial; without it 5 for `grid` and 1 for the others."""
    step_fraction: PositiveNumber = 1.0
    """Step size of every layer during the search, as a fraction of the per-context stability bound. Up to 2 no context
    can diverge at its own states; beyond it some do, and are reported."""

    @model_validator(mode="after")
    def _range_is_not_empty(self) -> Self:
        if self.min_temperature >= self.max_temperature:
            raise ValueError(
                f"min_temperature {self.min_temperature:g} must be below max_temperature {self.max_temperature:g}"
            )
        if self.search != "grid" and self.batch_size > 1:
            raise ValueError(f"temperatures_per_trial must be 1 with search {self.search}, which judges each by itself")
        return self

    @property
    def batch_size(self) -> int:
        """Temperatures that one trial evaluates."""
        return self.temperatures_per_trial or (5 if self.search == "grid" else 1)

    @property
    def grid(self) -> list[float]:
        """`num_temperatures` temperatures, evenly spaced in their logarithm."""
        grid = np.geomspace(self.min_temperature, self.max_temperature, self.num_temperatures)
        return [float(temperature) for temperature in grid]


class TrainConfig(Section):
    """The DDP fit of the structured transformer on each source domain."""

    num_steps: PositiveCount = 150
    """Optimiser steps."""
    contexts_per_step: PositiveCount = 8
    """Contexts of each source domain in one step, over all workers."""
    learning_rate: PositiveNumber = 0.05
    """Adam's learning rate."""
    validate_every: PositiveCount = 10
    """Steps between validations; each writes a checkpoint."""
    num_workers: PositiveCount = 2
    """Data-parallel workers."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """`auto` trains on GPUs when the cluster has one for every worker, else on CPUs."""

    @model_validator(mode="after")
    def _every_worker_has_a_context(self) -> Self:
        if self.num_workers > self.contexts_per_step:
            raise ValueError(
                f"num_workers {self.num_workers} must not exceed contexts_per_step {self.contexts_per_step}, "
                "or some workers would have nothing to do"
            )
        return self


class TransferConfig(Section):
    """The transfer matrix and the RKHS groups."""

    group_tolerance: PositiveNumber = 0.2
    """A temperature serves a domain when its TD loss is within this fraction of the domain's best."""
    num_resamples: Annotated[int, Field(ge=100)] = 2000
    """Bootstrap resamples behind every interval."""


class ClusterConfig(Section):
    """How a run uses the Ray cluster; nothing here changes a result."""

    max_workers: PositiveCount | None = None
    """Most collectors and evaluators at a time; by default one for every CPU that the cluster has when a stage starts.
    Set it on an autoscaling cluster, which grows as far as it is asked to."""
    wait_s: PositiveNumber = 20.0
    """Seconds to wait for CPUs and GPUs that the cluster lacks; starting nodes takes minutes."""
    timeout_s: PositiveNumber = 600.0
    """Seconds after which a shard or block that has not come back is given to another actor."""
    max_attempts: PositiveCount = 4
    """Times a shard, trial, fit or block is tried before the run stops with an error."""


class ExperimentConfig(Section):
    """Everything that decides a run's result."""

    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    """The integer from which every task seed and every draw is derived."""
    domains: tuple[str, ...] = (
        "pick-place-v3",
        "pick-place-wall-v3",
        "shelf-place-v3",
        "plate-slide-v3",
        "button-press-v3",
    )
    """Domains to collect, each both source and target."""
    source_tier: str = "high"
    """Noise tier on which temperatures are searched and weights are fitted."""
    discount: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Discount factor γ."""
    collect: CollectConfig = CollectConfig()
    contexts: ContextConfig = ContextConfig()
    model: ModelConfig = ModelConfig()
    tune: TuneConfig = TuneConfig()
    train: TrainConfig = TrainConfig()
    transfer: TransferConfig = TransferConfig()
    cluster: ClusterConfig = ClusterConfig()

    @model_validator(mode="after")
    def _parts_fit_together(self) -> Self:
        if not self.domains or len(set(self.domains)) < len(self.domains):
            raise ValueError("domains: name at least one domain, and none twice")
        if self.source_tier not in self.collect.noise_tiers:
            known = ", ".join(self.collect.noise_tiers)
            raise ValueError(f"source_tier: {self.source_tier!r} is not a noise tier; known tiers: {known}")
        available = self.collect.episodes_per_task * self.collect.steps_per_episode
        needed = self.contexts.context_length + self.contexts.num_heldout
        if needed > available:
            raise ValueError(
                f"contexts: context_length + num_heldout = {needed} transitions, but a task has {available}; "
                "lower them, or raise collect.steps_per_episode or collect.episodes_per_task"
            )
        return self


def preset_names() -> list[str]:
    """Names of the presets that ship with the package."""
    folder = resources.files("icrl") / "presets"
    return sorted(entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml"))


def read_settings(name_or_file: str) -> dict[str, Any]:
    """Settings of a preset or of a YAML file, not yet validated.

    Raises:
        InputError: no such preset or file, or a file that is not a YAML mapping.
    """
    if name_or_file in preset_names():
        text = (resources.files("icrl") / "presets" / f"{name_or_file}.yaml").read_text(encoding="utf-8")
    elif Path(name_or_file).is_file():
        text = Path(name_or_file).read_text(encoding="utf-8")
    else:
        raise InputError(
            f"config {name_or_file!r} is neither a preset ({', '.join(preset_names())}) nor an existing file"
        )
    try:
        settings = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise InputError(f"config {name_or_file!r} is not valid YAML: {' '.join(str(error).split())}") from None
    if settings is None:
        return {}
    if not isinstance(settings, dict):
        raise InputError(f"config {name_or_file!r} must be a mapping of settings, got a {type(settings).__name__}")
    return settings


# Settings that change how a run gets its result but not the result itself (up to floating-point rounding).
OPERATIONAL = {
    "tune": {"temperatures_per_trial"},
    "train": {"num_workers", "device"},
}


def decisive_settings(config: ExperimentConfig, names: tuple[str, ...]) -> dict[str, Any]:
    """The settings among the top-level fields `names` that decide a result, as plain JSON values."""
    settings = config.model_dump(mode="json", include=set(names))
    for section, operational in OPERATIONAL.items():
        if section in settings:
            settings[section] = {key: value for key, value in settings[section].items() if key not in operational}
    return settings
