import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from ray import cloudpickle

from distributed.collect import Collector, CollectSummary, collect, shard_jobs
from icrl import domains
from icrl.config import ClusterConfig, ExperimentConfig
from icrl.datasets import MANIFEST, content_digest, read_manifest, read_shard, read_tasks
from icrl.domains import Domain, MetaWorldEnvironment, UnstableSimulationError, get_domain, register_domain, task_seed
from icrl.errors import InputError
from icrl.metaworld_fast import guard
from icrl.rollouts import rollout_task
from icrl.storage import TEMPORARY_SUFFIX, Folder

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("local_ray")]

# Workers cannot import this module.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


def make_config(*names: str, **collect: Any) -> ExperimentConfig:
    return ExperimentConfig.model_validate(
        {
            "domains": names or ("reach-v3", "button-press-v3"),
            "collect": {
                "noise_tiers": {"low": 0.1, "high": 1.0},
                "tasks_per_tier": 4,
                "tasks_per_shard": 3,
                "steps_per_episode": 12,
                **collect,
            },
            "contexts": {"context_length": 4, "num_heldout": 4},
        }
    )


def digests(folder: Folder) -> dict[str, str]:
    return {shard.path: shard.digest for shard in read_manifest(folder).shards}


def damage(folder: Folder, name: str) -> None:
    content = folder.read(name)
    folder.write(name, content[: len(content) // 2])


class Drifting:
    """A point that moves by its action; its simulation breaks in the variations that `breaks` picks."""

    def __init__(self, breaks: Callable[[int], bool]) -> None:
        self.breaks = breaks

    def reset_task(self, variation_seed: int) -> NDArray[np.float32]:
        self.broken = self.breaks(variation_seed)
        return self.reset()

    def reset(self) -> NDArray[np.float32]:
        self.position = np.zeros(4, np.float32)
        return self.position

    def step(self, action: NDArray[np.float32]) -> tuple[NDArray[np.float32], float, bool, bool]:
        if self.broken:
            raise UnstableSimulationError("the state has diverged")
        self.position = self.position + action
        return self.position, 1.0, False, True

    def behaviour(self, observation: NDArray[np.float32]) -> NDArray[np.float32]:
        return np.zeros(4, np.float32)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, local_ray: None) -> tuple[Folder, CollectSummary]:
    folder = Folder.open(tmp_path_factory.mktemp("finished"))
    return folder, collect(make_config(), folder, num_workers=2)


@pytest.mark.ray
def test_summary_and_manifest_describe_the_dataset(finished: tuple[Folder, CollectSummary]) -> None:
    folder, summary = finished
    manifest = read_manifest(folder)
    assert summary.shards == manifest.shards
    assert manifest.config == make_config().model_dump(mode="json")
    assert (summary.kept, summary.written, summary.num_workers) == (0, 8, 2)
    assert summary.transitions == 2 * 2 * 4 * 12
    assert summary.transitions_per_second_per_core > 0
    assert 0 < summary.physics_share < 1
    assert not summary.plain_domains
    assert sorted(folder.list()) == sorted([MANIFEST, *digests(folder)])
    for name in ("reach-v3", "button-press-v3"):
        for tier in ("low", "high"):
            tasks = dict(read_tasks(folder, name, tier))
            assert list(tasks) == [0, 1, 2, 3]
            rate = np.mean([episode.success.any() for episodes in tasks.values() for episode in episodes])
            assert summary.success_rates[name][tier] == rate


@pytest.mark.ray
def test_workers_write_what_a_rollout_in_this_process_gives(finished: tuple[Folder, CollectSummary]) -> None:
    folder, _ = finished
    domain = get_domain("button-press-v3")
    episodes = rollout_task(
        domain,
        domain.make_environment(),
        tier="low",
        noise_std=0.1,
        task_seed=task_seed(0, "button-press-v3", "low", 3),
        num_episodes=1,
        num_steps=12,
    )
    ((_, stored),) = read_tasks(folder, "button-press-v3", "low", [3])
    assert content_digest(stored) == content_digest(episodes)


@pytest.mark.ray
def test_number_of_workers_changes_no_byte(finished: tuple[Folder, CollectSummary], tmp_path: Path) -> None:
    alone = Folder.open(tmp_path)
    collect(make_config(), alone, num_workers=1)
    assert digests(alone) == digests(finished[0])


@pytest.mark.ray
def test_rerun_redoes_only_what_is_damaged_or_missing(
    finished: tuple[Folder, CollectSummary], capsys: pytest.CaptureFixture[str]
) -> None:
    folder, _ = finished
    before = digests(folder)
    again = collect(make_config(), folder)
    assert (again.kept, again.written) == (8, 0)

    deleted, truncated, *others = before
    kept_files = [Path(folder.path, path) for path in others]
    times = [path.stat().st_mtime_ns for path in kept_files]
    folder.delete(deleted)
    damage(folder, truncated)
    # A driver that was killed leaves no manifest and perhaps half a shard under its temporary name.
    folder.delete(MANIFEST)
    Path(folder.path, f"{others[0]}.0{TEMPORARY_SUFFIX}").write_bytes(b"half")

    repaired = collect(make_config(), folder, num_workers=1)
    assert (repaired.kept, repaired.written) == (6, 2)
    assert digests(folder) == before
    assert [path.stat().st_mtime_ns for path in kept_files] == times
    assert sorted(folder.list()) == sorted([MANIFEST, *before])
    assert f"{truncated} is damaged" in capsys.readouterr().err


def kill_the_first_worker(marker: Path) -> Drifting:
    if not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return Drifting(lambda seed: False)


@pytest.mark.ray
def test_worker_killed_in_the_middle_costs_nothing_but_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, local_ray: None
) -> None:
    monkeypatch.setattr(domains, "_registered", {})
    marker = tmp_path / "killed"
    register_domain(Domain("deadly", lambda: kill_the_first_worker(marker), observation_size=4))
    folder = Folder.open(tmp_path / "data")
    summary = collect(make_config("deadly"), folder, num_workers=2)
    assert marker.exists()
    assert (summary.written, len(digests(folder))) == (4, 4)
    for path, digest in digests(folder).items():
        assert read_shard(folder, path).entry.digest == digest


def collect_here(config: ExperimentConfig, folder: Folder) -> list[str]:
    """Digests of all shards, collected by one collector in this process."""
    jobs = shard_jobs(config)
    collector = Collector(folder, config, jobs[0].domain)
    return [collector.run(job).shard.digest for job in jobs]


def test_a_collector_without_the_fast_environment_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(guard.PROVED_VERSIONS, "metaworld", "3.0.0")
    config, folder = make_config("reach-v3"), Folder.open(tmp_path)
    job = shard_jobs(config)[0]
    with pytest.warns(RuntimeWarning, match="several times slower"):
        collector = Collector(folder, config, job.domain)
    collected = collector.run(job)
    assert collected.plain_because is not None
    assert "metaworld 3.0.0" in collected.plain_because
    assert collected.physics_seconds == 0


def test_the_fast_environment_and_metaworld_write_the_same_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config("reach-v3", episodes_per_task=2)
    fast = collect_here(config, Folder.open(tmp_path / "fast"))
    monkeypatch.setattr(guard, "make_environment", MetaWorldEnvironment)
    assert collect_here(config, Folder.open(tmp_path / "plain")) == fast


def test_unstable_tasks_are_named_and_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(domains, "_registered", {})
    broken = domains.variation_seed(task_seed(0, "drifting", "high", 1))
    domain = Domain("drifting", lambda: Drifting(lambda seed: seed == broken), observation_size=4)
    register_domain(domain)
    folder = Folder.open(tmp_path)
    collect_here(make_config("drifting"), folder)
    summary = collect(make_config("drifting"), folder)  # Finds everything done, so it needs no worker.
    assert (summary.kept, summary.written) == (4, 0)
    (reason,) = summary.unstable
    assert "drifting, tier high" in reason
    assert "the state has diverged" in reason
    assert summary.success_rates == {"drifting": {"high": 1.0, "low": 1.0}}
    assert [index for index, _ in read_tasks(folder, "drifting", "high")] == [0, 2, 3]
    assert [index for index, _ in read_tasks(folder, "drifting", "low")] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"steps_per_episode": 13}, "collect.steps_per_episode 12, now it is 13"),
        ({"episodes_per_task": 2}, "collect.episodes_per_task 1, now it is 2"),
        ({"tasks_per_tier": 5}, "collect.tasks_per_tier 4, now it is 5"),
        ({"tasks_per_shard": 2}, "collect.tasks_per_shard 3, now it is 2"),
        ({"noise_tiers": {"low": 0.2, "high": 1.0}}, "collect.noise_tiers.low 0.1, now it is 0.2"),
    ],
)
def test_shards_of_other_settings_are_not_mixed_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], named: str
) -> None:
    monkeypatch.setattr(domains, "_registered", {})
    register_domain(Domain("drifting", lambda: Drifting(lambda seed: False), observation_size=4))
    folder = Folder.open(tmp_path)
    collect_here(make_config("drifting"), folder)
    with pytest.raises(InputError, match=named):
        collect(make_config("drifting", **change), folder)


def test_shards_of_another_seed_or_simulator_are_not_mixed_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(domains, "_registered", {})
    register_domain(Domain("drifting", lambda: Drifting(lambda seed: False), observation_size=4))
    folder = Folder.open(tmp_path)
    config = make_config("drifting")
    collect_here(config, folder)
    with pytest.raises(InputError, match="seed 0, now it is 1"):
        collect(config.model_copy(update={"seed": 1}), folder)
    monkeypatch.setattr("distributed.collect.package_versions", lambda: {"metaworld": "3.1.1", "mujoco": "9.9"})
    with pytest.raises(InputError, match=r"the mujoco package .* now it is 9.9"):
        collect(config, folder)


def test_settings_that_change_no_shard_do_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(domains, "_registered", {})
    register_domain(Domain("drifting", lambda: Drifting(lambda seed: False), observation_size=4))
    folder = Folder.open(tmp_path)
    collect_here(make_config("drifting"), folder)
    other = make_config("drifting").model_copy(
        update={"discount": 0.5, "cluster": ClusterConfig(max_attempts=9, timeout_s=1)}
    )
    assert collect(other, folder).kept == 4


def test_unknown_domain_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="did you mean reach-v3"):
        collect(make_config("reach-v3", "reech-v3"), Folder.open(tmp_path))
    assert not list(tmp_path.iterdir())
