import json
from collections.abc import Callable
from dataclasses import fields, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from icrl import datasets
from icrl.config import ExperimentConfig
from icrl.datasets import (
    MANIFEST,
    SCHEMA_VERSION,
    DamagedShardError,
    Shard,
    content_digest,
    read_manifest,
    read_shard,
    read_tasks,
    shard_path,
    write_manifest,
    write_shard,
)
from icrl.domains import Domain, get_domain
from icrl.errors import InputError
from icrl.storage import Folder
from icrl.types import Episode

DOMAIN = get_domain("reach-v3")
CONFIG = ExperimentConfig().model_dump(mode="json")


def random_episode(task_seed: int, episode: int = 0, num_steps: int = 5) -> Episode:
    rng = np.random.default_rng([task_seed, episode])
    flags = rng.random((3, num_steps)) < 0.5
    return Episode(
        domain="reach-v3",
        tier="high",
        task_seed=task_seed,
        episode=episode,
        observation=rng.standard_normal((num_steps + 1, 39)).astype(np.float32),
        action=rng.uniform(-1, 1, (num_steps, 4)).astype(np.float32),
        reward=rng.standard_normal(num_steps),
        terminated=flags[0],
        truncated=flags[1],
        success=flags[2],
    )


def write(folder: Folder, block: int = 0, num_tasks: int = 2, **changes: Any) -> Shard:
    first = block * num_tasks
    seeds = [1000 + first + i for i in range(num_tasks)]
    settings: dict[str, Any] = {
        "domain": DOMAIN,
        "tier": "high",
        "first_task": first,
        "task_seeds": seeds,
        # Lengths differ, so that no reader can take them for granted.
        "tasks": [[random_episode(seed, e, num_steps=3 + e + i) for e in range(2)] for i, seed in enumerate(seeds)],
        "unstable": {},
        "config": CONFIG,
    }
    return write_shard(folder, shard_path("reach-v3", "high", block), **{**settings, **changes})


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder.open(tmp_path)


def assert_equal(first: Episode, second: Episode) -> None:
    for field in fields(Episode):
        a, b = getattr(first, field.name), getattr(second, field.name)
        if isinstance(a, np.ndarray):
            assert a.dtype == b.dtype
            np.testing.assert_array_equal(a, b)
        else:
            assert a == b


def test_write_reopen_compare(folder: Folder) -> None:
    tasks = [[random_episode(1, 0, 3), random_episode(1, 1, 7)], [random_episode(2, 0, 1)]]
    entry = write(folder, task_seeds=[1, 2], tasks=tasks)
    stored = read_shard(folder, entry.path)
    assert stored.entry == entry
    assert stored.config == CONFIG
    assert stored.versions["numpy"] == np.__version__
    assert [len(task) for task in stored.tasks] == [2, 1]
    for before, after in zip(chain(*tasks), chain(*stored.tasks), strict=True):
        assert_equal(before, after)


def test_entry_counts_what_the_shard_holds(folder: Folder) -> None:
    episode = random_episode(1, 0, 4)
    lucky = replace(episode, success=np.array([False, True, False, False]))
    unlucky = replace(episode, episode=1, success=np.zeros(4, np.bool_))
    entry = write(folder, task_seeds=[1], tasks=[[lucky, unlucky]])
    assert (entry.rows, entry.transitions, entry.successes, entry.episodes) == (10, 8, (1,), (2,))
    assert entry.digest == content_digest([lucky, unlucky])


def test_any_reader_sees_the_documented_columns_and_closing_row(folder: Folder, tmp_path: Path) -> None:
    episode = random_episode(1, 0, 3)
    path = tmp_path / write(folder, task_seeds=[1], tasks=[[episode]]).path
    table = pq.read_table(path)
    assert [str(field.type) for field in table.schema] == [
        *("string", "string", "int64", "int32", "int32"),
        *("fixed_size_list<element: float>[39]", "fixed_size_list<element: float>[4]"),
        *("double", "bool", "bool", "bool"),
    ]
    assert table["step"].to_pylist() == [0, 1, 2, 3]
    closing = table.slice(3).to_pylist()[0]
    np.testing.assert_array_equal(np.array(closing["observation"], np.float32), episode.observation[3])
    assert np.isnan(closing["action"]).all()
    assert np.isnan(closing["reward"])
    assert [closing[name] for name in ("terminated", "truncated", "success")] == [False] * 3
    provenance = json.loads(pq.read_metadata(path).metadata[b"icrl"])
    assert provenance["config"] == CONFIG
    assert provenance["schema_version"] == SCHEMA_VERSION
    assert "mujoco" in provenance["versions"]


CHANGES: dict[str, Callable[[Episode], Any]] = {
    "domain": lambda e: "push-v3",
    "tier": lambda e: "low",
    "task_seed": lambda e: e.task_seed + 1,
    "episode": lambda e: e.episode + 1,
    "observation": lambda e: np.nextafter(e.observation, np.float32(np.inf)),
    "action": lambda e: -e.action,
    "reward": lambda e: np.nextafter(e.reward, np.inf),
    "terminated": lambda e: ~e.terminated,
    "truncated": lambda e: ~e.truncated,
    "success": lambda e: ~e.success,
}


@pytest.mark.parametrize("field", [field.name for field in fields(Episode)])
def test_digest_sees_every_field(field: str) -> None:
    episode = random_episode(1)
    changed = replace(episode, **{field: CHANGES[field](episode)})
    assert content_digest([changed]) != content_digest([episode])


def test_digest_is_the_same_for_ever() -> None:
    observation, action = np.zeros((2, 1), np.float32), np.zeros((1, 1), np.float32)
    episode = Episode("d", "t", 1, 0, observation, action, np.zeros(1), *np.zeros((3, 1), np.bool_))
    assert content_digest([episode]) == "be9330e147edc0201e18ff9957027173bb356d71baecb49ded96550de9b95039"


@pytest.mark.parametrize("keep", [0, 10, 0.3, 0.9, 0.999])
def test_truncated_shard_is_named_with_the_remedy(folder: Folder, keep: float) -> None:
    path = write(folder).path
    content = folder.read(path)
    folder.write(path, content[: int(keep if keep > 1 else keep * len(content))])
    with pytest.raises(DamagedShardError, match=rf"{path} is damaged; run `icrl collect` again"):
        read_shard(folder, path)


def test_flipped_byte_never_goes_through_as_data(folder: Folder) -> None:
    entry = write(folder)
    good = read_shard(folder, entry.path)
    content = folder.read(entry.path)
    num_refused = 0
    for position in np.linspace(0, len(content) - 1, 150).astype(int):
        folder.write(entry.path, content[:position] + bytes([content[position] ^ 0xFF]) + content[position + 1 :])
        try:
            stored = read_shard(folder, entry.path)
        except InputError:
            num_refused += 1
            continue
        # The byte was one that nothing depends on, such as a column's statistics.
        assert stored.entry == entry
        for before, after in zip(chain(*good.tasks), chain(*stored.tasks), strict=True):
            assert_equal(before, after)
    assert num_refused > 75


def test_missing_shard_is_named_with_the_remedy(folder: Folder) -> None:
    with pytest.raises(DamagedShardError, match=r"shards/a.parquet is missing; run `icrl collect` again"):
        read_shard(folder, "shards/a.parquet")


def test_shard_without_stable_tasks_can_be_read_back(folder: Folder) -> None:
    entry = write(folder, task_seeds=[1, 2], tasks=[[], []], unstable={0: "broke", 1: "broke"})
    stored = read_shard(folder, entry.path)
    assert stored.tasks == [[], []]
    assert stored.entry.unstable == {0: "broke", 1: "broke"}


def test_provenance_stays_small_beside_the_data(folder: Folder, tmp_path: Path) -> None:
    small = write(folder, config={}).path
    size = (tmp_path / small).stat().st_size
    write(folder)
    assert (tmp_path / small).stat().st_size - size < 4096


def test_manifest_round_trip(folder: Folder) -> None:
    shards = [write(folder, block) for block in (1, 0)]
    write_manifest(folder, shards, CONFIG)
    manifest = read_manifest(folder)
    assert manifest.shards == (shards[1], shards[0])
    assert manifest.config == CONFIG


def test_empty_folder_asks_for_a_collection(folder: Folder) -> None:
    with pytest.raises(InputError, match="run `icrl collect` first"):
        read_manifest(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema_version": 99}, "schema version 99, this icrl reads version"),
        ({"schema_version": None}, "schema version None"),
        ({"shards": 3}, "is damaged"),
        ({"surplus": 1}, "is damaged"),
    ],
)
def test_manifest_of_another_kind_is_refused(folder: Folder, change: dict[str, Any], message: str) -> None:
    write_manifest(folder, [write(folder)], CONFIG)
    folder.write_json(MANIFEST, {**folder.read_json(MANIFEST), **change})
    with pytest.raises(InputError, match=message) as caught:
        read_manifest(folder)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b"\xff\xfe"])
def test_manifest_that_is_no_manifest_is_refused(folder: Folder, content: bytes) -> None:
    folder.write(MANIFEST, content)
    with pytest.raises(InputError, match="is damaged"):
        read_manifest(folder)


def test_shard_of_another_schema_version_is_not_called_damaged(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(folder).path
    monkeypatch.setattr(datasets, "SCHEMA_VERSION", SCHEMA_VERSION + 1)
    with pytest.raises(InputError, match=f"schema version {SCHEMA_VERSION}, ") as caught:
        read_shard(folder, path)
    assert not isinstance(caught.value, DamagedShardError)


@pytest.mark.parametrize(
    ("indices", "expected"), [(None, [0, 1, 2, 3, 4, 5]), ([4, 1], [1, 4]), (range(2, 4), [2, 3]), ([], [])]
)
def test_tasks_come_one_at_a_time_by_index(folder: Folder, indices: list[int] | None, expected: list[int]) -> None:
    write_manifest(folder, [write(folder, block) for block in range(3)], CONFIG)
    found = list(read_tasks(folder, "reach-v3", "high", indices))
    assert [index for index, _ in found] == expected
    for index, episodes in found:
        assert [episode.task_seed for episode in episodes] == [1000 + index] * 2
        assert_equal(episodes[1], random_episode(1000 + index, 1, num_steps=4 + index % 2))


def test_only_the_shards_that_are_needed_are_read(folder: Folder) -> None:
    shards = [write(folder, block) for block in range(3)]
    write_manifest(folder, shards, CONFIG)
    folder.delete(shards[1].path)
    assert [index for index, _ in read_tasks(folder, "reach-v3", "high", [0, 5])] == [0, 5]
    tasks = read_tasks(folder, "reach-v3", "high")
    assert [next(tasks)[0], next(tasks)[0]] == [0, 1]
    with pytest.raises(InputError, match="is missing"):
        next(tasks)


def test_unstable_task_is_left_out(folder: Folder) -> None:
    shard = write(folder, task_seeds=[1, 2], tasks=[[], [random_episode(2)]], unstable={0: "broke"})
    write_manifest(folder, [shard], CONFIG)
    assert [index for index, _ in read_tasks(folder, "reach-v3", "high")] == [1]


@pytest.mark.parametrize(
    ("domain", "tier", "indices", "message"),
    [
        ("push-v3", "high", None, "no tasks of push-v3 at tier high"),
        ("reach-v3", "low", None, "no tasks of reach-v3 at tier low"),
        ("reach-v3", "high", [1, 7], "has tasks 0 to 1 of reach-v3 at tier high, not task 7"),
    ],
)
def test_what_was_not_collected_cannot_be_read(
    folder: Folder, domain: str, tier: str, indices: list[int] | None, message: str
) -> None:
    write_manifest(folder, [write(folder)], CONFIG)
    with pytest.raises(InputError, match=message):
        next(read_tasks(folder, domain, tier, indices))


def test_shard_that_was_replaced_is_noticed(folder: Folder) -> None:
    write_manifest(folder, [write(folder)], CONFIG)
    write(folder, task_seeds=[5, 6], tasks=[[random_episode(5)], [random_episode(6)]])
    with pytest.raises(InputError, match="not the one in the manifest"):
        next(read_tasks(folder, "reach-v3", "high"))


def test_domains_of_other_sizes_are_stored_too(folder: Folder) -> None:
    cart = Domain("cart", DOMAIN.make_environment, observation_size=2, action_size=1)
    episode = random_episode(1)
    small = replace(episode, observation=episode.observation[:, :2], action=episode.action[:, :1])
    entry = write(folder, domain=cart, task_seeds=[1], tasks=[[small]])
    assert_equal(read_shard(folder, entry.path).tasks[0][0], small)
