"""Collection: actors roll out tasks and write dataset shards; the driver sees manifest entries only."""

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import ray

from distributed.actor_pool import ActorPool
from distributed.progress import Progress
from distributed.session import num_workers_for
from icrl.config import ExperimentConfig
from icrl.datasets import DamagedShardError, Shard, StoredShard, read_shard, shard_path, write_manifest, write_shard
from icrl.domains import Domain, Environment, MetaWorldEnvironment, UnstableSimulationError, get_domain, task_seed
from icrl.errors import InputError
from icrl.provenance import package_versions
from icrl.rollouts import rollout_task
from icrl.storage import Folder


@dataclass(frozen=True)
class ShardJob:
    """One shard to collect: a block of tasks of one domain at one noise tier."""

    domain: Domain
    tier: str
    block: int
    first_task: int
    task_seeds: tuple[int, ...]

    @property
    def path(self) -> str:
        """Path of the shard within the dataset's folder."""
        return shard_path(self.domain.name, self.tier, self.block)

    def __str__(self) -> str:
        return f"shard {self.path}"


@dataclass(frozen=True)
class CollectSummary:
    """What a collection did and found.

    Attributes:
        shards: manifest entries of the whole dataset, sorted by path.
        kept: shards that were finished before.
        written: shards collected now.
        transitions: transitions collected now.
        seconds: seconds from start to end.
        rollout_seconds: seconds from the moment the first collector was ready.
        num_workers: collectors, one a CPU.
        physics_seconds: seconds that all collectors spent in the physics, as far as their environments measure it.
        plain_domains: the domains that could not use their fast environment, and why.
    """

    shards: tuple[Shard, ...]
    kept: int
    written: int
    transitions: int
    seconds: float
    rollout_seconds: float
    num_workers: int
    physics_seconds: float
    plain_domains: dict[str, str]

    @property
    def physics_share(self) -> float:
        """Speed as a share of what is possible, physics that costs as much and all else nothing; NaN if unmeasured."""
        return (
            self.physics_seconds / (self.rollout_seconds * self.num_workers) if self.physics_seconds else float("nan")
        )

    @property
    def transitions_per_second_per_core(self) -> float:
        """Rate of one collector once it was ready; NaN when nothing had to be collected."""
        return self.transitions / (self.rollout_seconds * self.num_workers) if self.transitions else float("nan")

    @property
    def success_rates(self) -> dict[str, dict[str, float]]:
        """Share of episodes in which success was reached at some step, by domain and tier; NaN without episodes."""
        rates: dict[str, dict[str, float]] = {}
        for domain, tier in dict.fromkeys((shard.domain, shard.tier) for shard in self.shards):
            cell = [shard for shard in self.shards if (shard.domain, shard.tier) == (domain, tier)]
            episodes = sum(sum(shard.episodes) for shard in cell)
            successes = sum(sum(shard.successes) for shard in cell)
            rates.setdefault(domain, {})[tier] = successes / episodes if episodes else float("nan")
        return rates

    @property
    def unstable(self) -> list[str]:
        """Reasons of all tasks that were left out because their simulation became unstable."""
        return [reason for shard in self.shards for reason in shard.unstable.values()]


@dataclass(frozen=True)
class Collected:
    """A shard just written, and what its collector has to tell besides.

    Attributes:
        shard: its manifest entry.
        physics_seconds: seconds spent in the physics; 0 if the environment does not measure it.
        plain_because: why the environment is not the fast one, if that was wanted.
    """

    shard: Shard
    physics_seconds: float
    plain_because: str | None


class Collector:
    """Rolls out and writes one shard at a time; the environment is kept while the domain stays the same.

    Args:
        folder: the dataset's folder.
        config: the experiment.
        first_domain: a domain to get ready for, so that a collector that answers has loaded its simulator.
    """

    def __init__(self, folder: Folder, config: ExperimentConfig, first_domain: Domain) -> None:
        self._folder = folder
        self._config = config
        self._domain_name = first_domain.name
        self._environment = first_domain.make_environment()

    def ping(self) -> None:
        """Answer, as a sign of life."""

    def run(self, job: ShardJob) -> Collected:
        """Collect and write the shard."""
        settings = self._config.collect
        environment = self._environment_of(job.domain)
        physics_before = _physics_seconds(environment)
        tasks, unstable = [], {}
        for index, seed in enumerate(job.task_seeds, start=job.first_task):
            try:
                episodes = rollout_task(
                    job.domain,
                    environment,
                    tier=job.tier,
                    noise_std=settings.noise_tiers[job.tier],
                    task_seed=seed,
                    num_episodes=settings.episodes_per_task,
                    num_steps=settings.steps_per_episode,
                )
            except UnstableSimulationError as error:
                episodes, unstable[index] = [], str(error)
            tasks.append(episodes)
        shard = write_shard(
            self._folder,
            job.path,
            domain=job.domain,
            tier=job.tier,
            first_task=job.first_task,
            task_seeds=job.task_seeds,
            tasks=tasks,
            unstable=unstable,
            config=self._config.model_dump(mode="json"),
        )
        plain_because = environment.plain_because if isinstance(environment, MetaWorldEnvironment) else None
        return Collected(shard, _physics_seconds(environment) - physics_before, plain_because)

    def _environment_of(self, domain: Domain) -> Environment:
        if domain.name != self._domain_name:
            self._environment = domain.make_environment()
            self._domain_name = domain.name
        return self._environment


def _physics_seconds(environment: Environment) -> float:
    return environment.physics_seconds or 0.0 if isinstance(environment, MetaWorldEnvironment) else 0.0


def collect(config: ExperimentConfig, folder: Folder, num_workers: int | None = None) -> CollectSummary:
    """Collect the dataset that `config` describes into `folder`, keeping the shards that are already there.

    Ray must be running. Every byte of a shard's content depends on `config` alone, not on `num_workers`.

    Args:
        config: the experiment.
        folder: the dataset's folder.
        num_workers: collectors, each on one CPU; as ``config.cluster`` says when None.

    Raises:
        InputError: an unknown domain, or shards in `folder` that were collected under other settings.
        JobFailedError: a shard failed as often as ``config.cluster.max_attempts`` allows.
    """
    start = time.monotonic()
    jobs = shard_jobs(config)
    folder.sweep()
    finished, damaged = _finished_shards(folder, jobs, config)
    missing = [job for job in jobs if job.path not in finished]
    kept = len(finished)
    workers = num_workers_for(len(missing), config) if num_workers is None else min(num_workers, max(1, len(missing)))
    progress = Progress("collect", len(jobs), "shards", done=kept)
    for path in damaged:
        progress.say(f"shard {folder / path} is damaged and will be collected again")
    actor_class = ray.remote(num_cpus=1, num_gpus=0)(Collector)
    pool = ActorPool(
        lambda: actor_class.remote(folder, config, missing[0].domain),
        missing,
        group_of=lambda job: job.domain.name,
        num_actors=workers,
        timeout_s=config.cluster.timeout_s,
        max_attempts=config.cluster.max_attempts,
    )
    transitions, physics_seconds, plain_domains = 0, 0.0, {}
    if missing:
        progress.say(f"starting {workers} collectors for {len(missing)} shards")
    for job, collected in pool.run():
        finished[job.path] = collected.shard
        transitions += collected.shard.transitions
        physics_seconds += collected.physics_seconds
        if collected.plain_because and job.domain.name not in plain_domains:
            plain_domains[job.domain.name] = collected.plain_because
            progress.say(
                f"{job.domain.name} is stepped by MetaWorld itself, several times slower: {collected.plain_because}"
            )
        rate = transitions / (time.monotonic() - (pool.first_answer_at or start))
        progress.advance(f"{transitions} transitions, {rate:.0f}/s; {job.domain.name} {job.tier}")
    folder.sweep()
    write_manifest(folder, list(finished.values()), config.model_dump(mode="json"))
    end = time.monotonic()
    summary = CollectSummary(
        shards=tuple(finished[path] for path in sorted(finished)),
        kept=kept,
        written=len(missing),
        transitions=transitions,
        seconds=end - start,
        rollout_seconds=end - (pool.first_answer_at or end),
        num_workers=workers,
        physics_seconds=physics_seconds,
        plain_domains=plain_domains,
    )
    _say_summary(progress, summary)
    return summary


def shard_jobs(config: ExperimentConfig) -> list[ShardJob]:
    """All shards of the dataset that `config` describes, domain by domain.

    Raises:
        InputError: an unknown domain.
    """
    settings = config.collect
    starts = range(0, settings.tasks_per_tier, settings.tasks_per_shard)
    return [
        ShardJob(
            domain=domain,
            tier=tier,
            block=block,
            first_task=first,
            task_seeds=tuple(
                task_seed(config.seed, domain.name, tier, index)
                for index in range(first, min(first + settings.tasks_per_shard, settings.tasks_per_tier))
            ),
        )
        for domain in map(get_domain, config.domains)
        for tier in settings.noise_tiers
        for block, first in enumerate(starts)
    ]


def _finished_shards(
    folder: Folder, jobs: Sequence[ShardJob], config: ExperimentConfig
) -> tuple[dict[str, Shard], list[str]]:
    """Entries of the jobs' shards that are whole and collected under the same settings, and paths of damaged ones."""

    def look(job: ShardJob) -> Shard | None:
        try:
            stored = read_shard(folder, job.path)
        except DamagedShardError:
            return None
        _require_same_settings(stored, job, config, f"{folder / job.path}")
        return stored.entry

    present = [job for job in jobs if folder.exists(job.path)]
    with ThreadPoolExecutor() as readers:
        entries = dict(zip((job.path for job in present), readers.map(look, present), strict=True))
    finished = {path: entry for path, entry in entries.items() if entry is not None}
    return finished, [path for path in entries if path not in finished]


def _require_same_settings(stored: StoredShard, job: ShardJob, config: ExperimentConfig, origin: str) -> None:
    now = _settings_of(config.model_dump(mode="json"), package_versions(), job.tier)
    for name, before in _settings_of(stored.config, stored.versions, job.tier).items():
        if before != now[name]:
            raise InputError(
                f"{origin} was collected with {name} {before}, now it is {now[name]}; "
                "restore the setting or use another run folder"
            )


def _settings_of(config: dict[str, Any], versions: dict[str, str], tier: str) -> dict[str, Any]:
    """Everything that decides which shards there are and what is in them."""
    settings = config["collect"]
    names = ("tasks_per_tier", "tasks_per_shard", "episodes_per_task", "steps_per_episode")
    return {
        "seed": config["seed"],
        **{f"collect.{name}": settings[name] for name in names},
        f"collect.noise_tiers.{tier}": settings["noise_tiers"][tier],
        **{f"the {package} package": versions[package] for package in ("metaworld", "mujoco")},
    }


def _say_summary(progress: Progress, summary: CollectSummary) -> None:
    for domain, rates in summary.success_rates.items():
        shown = ", ".join(f"{tier} {rate:.2f}" for tier, rate in rates.items())
        transitions = sum(shard.transitions for shard in summary.shards if shard.domain == domain)
        progress.say(f"{domain}: {transitions} transitions; episodes with success: {shown}")
    for reason in summary.unstable:
        progress.say(f"left out as unstable: {reason}")
    if summary.written:
        limit = f", {summary.physics_share:.0%} of the physics' own speed" if summary.physics_seconds else ""
        progress.say(
            f"{summary.written} shards written, {summary.kept} kept; {summary.transitions} transitions "
            f"in {summary.seconds:.0f} s, {summary.transitions_per_second_per_core:.0f} a second and core{limit}"
        )
