"""Episodes <-> Parquet: schema, provenance, digests, manifest.

A dataset is a folder of shards, each holding a block of one domain's tasks at one noise tier, and a manifest. An
episode of S steps takes S + 1 rows: row t holds the observation at step t and what happened in that step; the closing
row holds the final observation, NaN as action and reward, and false flags. A shard carries its schema version,
configuration, package versions and its own manifest entry in the footer (key `icrl`, JSON), so the shards alone suffice
to rebuild the manifest.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, ValidationError

from icrl.domains import Domain
from icrl.errors import InputError
from icrl.provenance import package_versions
from icrl.storage import Folder
from icrl.types import Episode

SCHEMA_VERSION = 1
MANIFEST = "manifest.json"
_PROVENANCE_KEY = b"icrl"
_PROVENANCE_DIGEST_KEY = b"icrl.sha256"
_REMEDY = "run `icrl collect` again"


class DamagedShardError(InputError):
    """A shard is missing, or its file is not what was written; collecting again restores it."""


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class Shard(_Record):
    """One shard's entry in the manifest."""

    path: str
    """Path within the dataset's folder."""
    domain: str
    """Name of the domain."""
    tier: str
    """Name of the noise tier."""
    first_task: int
    """Index of the shard's first task within domain and tier."""
    task_seeds: tuple[int, ...]
    """Seed of every task; task ``first_task + i`` has seed ``task_seeds[i]``."""
    successes: tuple[int, ...]
    """Episodes of every task in which success was reached at some step."""
    episodes: tuple[int, ...]
    """Episodes of every task; 0 for a task whose simulation became unstable."""
    unstable: dict[int, str]
    """Index and reason of every task left out because its simulation became unstable."""
    rows: int
    """Rows of the Parquet file."""
    transitions: int
    """Transitions of all episodes."""
    digest: str
    """SHA-256 of the shard's content; see `content_digest`."""


class Manifest(_Record):
    """What a finished dataset holds."""

    schema_version: int
    """Version of the columns and of this manifest."""
    config: dict[str, Any]
    """The experiment's configuration."""
    versions: dict[str, str]
    """Versions of the packages that were installed when the manifest was written."""
    shards: tuple[Shard, ...]
    """One entry a shard, sorted by path."""


class _Footer(_Record):
    schema_version: int
    config: dict[str, Any]
    versions: dict[str, str]
    shard: Shard


@dataclass(frozen=True)
class StoredShard:
    """A shard as read back: its content agrees with its digest.

    Attributes:
        entry: its manifest entry.
        config: the configuration under which it was written.
        versions: the package versions that wrote it.
        tasks: the episodes of every task, in the order of ``entry.task_seeds``.
    """

    entry: Shard
    config: dict[str, Any]
    versions: dict[str, str]
    tasks: list[list[Episode]]


def shard_path(domain: str, tier: str, block: int) -> str:
    """Where the shard of one block of tasks lies within the dataset's folder."""
    return f"shards/{domain}/{tier}/block-{block:05d}.parquet"


def content_digest(episodes: Sequence[Episode]) -> str:
    """SHA-256 over episodes in the given order: names, numbers and the little-endian bytes of every array.

    It depends on neither compression nor package versions.
    """
    digest = hashlib.sha256()
    for episode in episodes:
        header = [episode.domain, episode.tier, episode.task_seed, episode.episode, episode.num_steps]
        digest.update(json.dumps(header).encode())
        for array, dtype in (
            (episode.observation, "<f4"),
            (episode.action, "<f4"),
            (episode.reward, "<f8"),
            (episode.terminated, "?"),
            (episode.truncated, "?"),
            (episode.success, "?"),
        ):
            digest.update(np.ascontiguousarray(array, dtype).tobytes())
    return digest.hexdigest()


def write_shard(
    folder: Folder,
    path: str,
    *,
    domain: Domain,
    tier: str,
    first_task: int,
    task_seeds: Sequence[int],
    tasks: Sequence[Sequence[Episode]],
    unstable: dict[int, str],
    config: dict[str, Any],
) -> Shard:
    """Write one shard, whole or not at all, and return its manifest entry.

    Args:
        folder: the dataset's folder.
        path: where in it, usually from `shard_path`.
        domain: the domain.
        tier: name of the noise tier.
        first_task: index of the first task.
        task_seeds: the seed of every task.
        tasks: the episodes of every task; none for an unstable one.
        unstable: index and reason of every unstable task.
        config: the experiment's configuration, as JSON.
    """
    episodes = [episode for task in tasks for episode in task]
    transitions = sum(episode.num_steps for episode in episodes)
    shard = Shard(
        path=path,
        domain=domain.name,
        tier=tier,
        first_task=first_task,
        task_seeds=tuple(task_seeds),
        successes=tuple(sum(bool(episode.success.any()) for episode in task) for task in tasks),
        episodes=tuple(len(task) for task in tasks),
        unstable=unstable,
        rows=transitions + len(episodes),
        transitions=transitions,
        digest=content_digest(episodes),
    )
    footer = _Footer(schema_version=SCHEMA_VERSION, config=config, versions=package_versions(), shard=shard)
    folder.write(path, _to_parquet(domain, episodes, footer))
    return shard


def read_shard(folder: Folder, path: str) -> StoredShard:
    """Read one shard and check its content against its digest.

    Raises:
        DamagedShardError: the file is missing or damaged.
        InputError: the file has another schema version.
    """
    damaged = DamagedShardError(f"shard {folder / path} is damaged; {_REMEDY} to restore it")
    try:
        file = pq.ParquetFile(pa.BufferReader(folder.read(path)))
        provenance = file.metadata.metadata[_PROVENANCE_KEY]
        if _sha256(provenance).encode() != file.metadata.metadata[_PROVENANCE_DIGEST_KEY]:
            raise damaged
        footer = _parse(_Footer, provenance, f"shard {folder / path}")
        episodes = _to_episodes(file.read())
    except FileNotFoundError:
        raise DamagedShardError(f"shard {folder / path} is missing; {_REMEDY} to restore it") from None
    # What pyarrow was seen to raise for a file with changed bytes; ArrowException covers its own errors.
    except (pa.ArrowException, OSError, UnicodeDecodeError, KeyError, TypeError) as error:
        raise damaged from error
    entry = footer.shard
    if content_digest(episodes) != entry.digest:
        raise damaged
    remaining = iter(episodes)
    tasks = [list(islice(remaining, count)) for count in entry.episodes]
    return StoredShard(entry, footer.config, footer.versions, tasks)


def write_manifest(folder: Folder, shards: Sequence[Shard], config: dict[str, Any]) -> None:
    """Declare the dataset in `folder` finished: it holds `shards`, written under `config`."""
    manifest = Manifest(
        schema_version=SCHEMA_VERSION,
        config=config,
        versions=package_versions(),
        shards=tuple(sorted(shards, key=lambda shard: shard.path)),
    )
    folder.write_json(MANIFEST, manifest.model_dump(mode="json"))


def read_manifest(folder: Folder) -> Manifest:
    """What the dataset in `folder` holds.

    Raises:
        InputError: there is no manifest, or it is damaged or of another schema version.
    """
    if not folder.exists(MANIFEST):
        raise InputError(f"no dataset in {folder}: {MANIFEST} is missing; run `icrl collect` first")
    return _parse(Manifest, folder.read(MANIFEST), f"manifest {folder / MANIFEST}")


def stable_tasks(folder: Folder, domain: str, tier: str) -> set[int]:
    """Indices of the tasks of one domain at one tier that `read_tasks` yields: all but the unstable ones.

    Raises:
        InputError: there is no manifest, or it is damaged or of another schema version.
    """
    shards = [shard for shard in read_manifest(folder).shards if (shard.domain, shard.tier) == (domain, tier)]
    return {index for shard in shards for index in _task_indices(shard) if index not in shard.unstable}


def read_tasks(
    folder: Folder, domain: str, tier: str, indices: Sequence[int] | None = None
) -> Iterator[tuple[int, list[Episode]]]:
    """Tasks of one domain at one tier, one (task index, episodes) at a time, by ascending index.

    No more than one shard is held in memory. Tasks marked as unstable are left out; the manifest names them.

    Args:
        folder: the dataset's folder.
        domain: name of the domain.
        tier: name of the noise tier.
        indices: indices of the tasks wanted; all when None.

    Raises:
        InputError: the dataset has no such domain, tier or task, or a shard of it is missing or damaged.
    """
    shards = [shard for shard in read_manifest(folder).shards if (shard.domain, shard.tier) == (domain, tier)]
    if not shards:
        raise InputError(f"the dataset in {folder} has no tasks of {domain} at tier {tier}; {_REMEDY} with them")
    available = [index for shard in shards for index in _task_indices(shard)]
    wanted = set(available if indices is None else indices)
    if missing := sorted(wanted.difference(available)):
        raise InputError(
            f"the dataset in {folder} has tasks {min(available)} to {max(available)} of {domain} at tier {tier}, "
            f"not task {missing[0]}; {_REMEDY} with more tasks_per_tier"
        )
    for shard in shards:
        if wanted.isdisjoint(_task_indices(shard)):
            continue
        stored = read_shard(folder, shard.path)
        if stored.entry.digest != shard.digest:
            raise InputError(f"shard {folder / shard.path} is not the one in the manifest; {_REMEDY}")
        for index, episodes in zip(_task_indices(shard), stored.tasks, strict=True):
            if index in wanted and index not in shard.unstable:
                yield index, episodes


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _task_indices(shard: Shard) -> range:
    return range(shard.first_task, shard.first_task + len(shard.task_seeds))


_R = TypeVar("_R", bound=_Record)


def _parse(record: type[_R], text: bytes, origin: str) -> _R:
    """The record in a JSON text, after a look at its schema version."""
    try:
        document = json.loads(text)
        found = document["schema_version"]
        if found == SCHEMA_VERSION:
            return record.model_validate(document)
    except (ValueError, KeyError, TypeError) as error:
        reason = error.errors()[0]["msg"] if isinstance(error, ValidationError) else repr(error)
        raise InputError(f"{origin} is damaged ({reason}); {_REMEDY}") from None
    raise InputError(
        f"{origin} has schema version {found}, this icrl reads version {SCHEMA_VERSION}; "
        "use the icrl that wrote it, or collect into a fresh folder"
    )


def _schema(domain: Domain) -> pa.Schema:
    return pa.schema(
        [
            pa.field(name, type_, nullable=False)
            for name, type_ in {
                "domain": pa.string(),
                "tier": pa.string(),
                "task_seed": pa.int64(),
                "episode": pa.int32(),
                "step": pa.int32(),
                "observation": pa.list_(pa.float32(), domain.observation_size),
                "action": pa.list_(pa.float32(), domain.action_size),
                "reward": pa.float64(),
                "terminated": pa.bool_(),
                "truncated": pa.bool_(),
                "success": pa.bool_(),
            }.items()
        ]
    )


def _to_rows(episode: Episode, schema: pa.Schema) -> pa.RecordBatch:
    """The S + 1 rows of one episode."""
    num_rows = episode.num_steps + 1

    def closed(array: NDArray[Any], closing: float | bool) -> NDArray[Any]:
        return np.concatenate([array, np.full_like(array, closing, shape=(1, *array.shape[1:]))])

    def lists(array: NDArray[Any], name: str) -> pa.Array:
        return pa.FixedSizeListArray.from_arrays(pa.array(array.ravel()), type=schema.field(name).type)

    columns = [
        pa.repeat(episode.domain, num_rows),
        pa.repeat(episode.tier, num_rows),
        pa.repeat(pa.scalar(episode.task_seed, pa.int64()), num_rows),
        pa.repeat(pa.scalar(episode.episode, pa.int32()), num_rows),
        pa.array(np.arange(num_rows, dtype=np.int32)),
        lists(episode.observation, "observation"),
        lists(closed(episode.action, np.nan), "action"),
        pa.array(closed(episode.reward, np.nan)),
        pa.array(closed(episode.terminated, False)),
        pa.array(closed(episode.truncated, False)),
        pa.array(closed(episode.success, False)),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _to_parquet(domain: Domain, episodes: Sequence[Episode], footer: _Footer) -> bytes:
    schema = _schema(domain)
    table = pa.Table.from_batches([_to_rows(episode, schema) for episode in episodes], schema)
    sink = pa.BufferOutputStream()
    # Floating-point columns hardly repeat a value, so a dictionary would only be built and thrown away.
    with pq.ParquetWriter(sink, schema, compression="zstd", use_dictionary=["domain", "tier"]) as writer:
        writer.write_table(table)
        provenance = footer.model_dump_json().encode()
        writer.add_key_value_metadata({_PROVENANCE_KEY: provenance, _PROVENANCE_DIGEST_KEY: _sha256(provenance)})
    return bytes(sink.getvalue().to_pybytes())


def _to_episodes(table: pa.Table) -> list[Episode]:
    """The episodes of a shard's rows, in their order."""
    if table.num_rows == 0:
        return []
    column = {name: table[name].combine_chunks() for name in table.column_names}
    observation = column["observation"].flatten().to_numpy().reshape(table.num_rows, -1)
    action = column["action"].flatten().to_numpy().reshape(table.num_rows, -1)
    flat = {
        name: column[name].to_numpy(zero_copy_only=False)
        for name in ("task_seed", "episode", "step", "reward", "terminated", "truncated", "success")
    }
    starts = np.flatnonzero(flat["step"] == 0).tolist()
    episodes = []
    for start, end in zip(starts, [*starts[1:], table.num_rows], strict=True):
        steps = slice(start, end - 1)
        episodes.append(
            Episode(
                domain=column["domain"][start].as_py(),
                tier=column["tier"][start].as_py(),
                task_seed=int(flat["task_seed"][start]),
                episode=int(flat["episode"][start]),
                # Copies, so that a task that is kept does not keep the whole shard in memory.
                observation=observation[start:end].copy(),
                action=action[steps].copy(),
                reward=flat["reward"][steps].copy(),
                terminated=flat["terminated"][steps].copy(),
                truncated=flat["truncated"][steps].copy(),
                success=flat["success"][steps].copy(),
            )
        )
    return episodes
