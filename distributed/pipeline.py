"""The order of the stages, what each depends on, and resuming: no science.

A finished stage leaves a record with a digest of the settings that decided its result. The same command again skips
it; other settings on the same run folder are refused, so that a folder never mixes two experiments.
"""

import hashlib
import json
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import yaml

from distributed import stages
from distributed.session import ray_session
from distributed.stages import Summary
from icrl.config import ExperimentConfig, decisive_settings
from icrl.errors import InputError
from icrl.provenance import package_versions, source_commit
from icrl.storage import Folder


@dataclass(frozen=True)
class Stage:
    """One stage of a run.

    Attributes:
        name: name of the stage and of its command.
        settings: top-level settings that decide its result, besides those of the stages before it.
        run: does the work; gets the configuration, the run folder and the name of a working folder.
        always: run even when finished, since it checks or repairs what lies there.
        on_ray: whether it needs a Ray cluster.
    """

    name: str
    settings: tuple[str, ...]
    run: Callable[[ExperimentConfig, Folder, str], Summary]
    always: bool = False
    on_ray: bool = True


STAGES = (
    # Collection verifies every shard, so that a damaged one is found and collected again.
    Stage("collect", ("seed", "domains", "collect"), stages.run_collect, always=True),
    Stage("tune", ("source_tier", "discount", "contexts", "model", "tune"), stages.run_tune),
    Stage("train", ("train",), stages.run_train),
    Stage("transfer", (), stages.run_transfer),
    Stage("report", ("transfer",), stages.run_report, always=True, on_ray=False),
)
STAGE_NAMES = tuple(stage.name for stage in STAGES)


def run_stages(names: tuple[str, ...], config: ExperimentConfig, run: Folder) -> None:
    """Run stages in their order, skipping those that are finished.

    Args:
        names: which stages.
        config: the experiment.
        run: the run folder.

    Raises:
        InputError: a stage before them is not finished, or the folder holds results of other settings.
    """
    chosen = [stage for stage in STAGES if stage.name in names]
    _check_same_experiment(config, run)
    _check_ready(chosen[0], run)
    with ExitStack() as stack:
        for stage in chosen:
            record = stage_record(run, stage.name)
            if record is not None and not stage.always:
                print(f"[{stage.name}] finished before, kept", flush=True)
                continue
            if stage.on_ray:
                # Joins the cluster once; entering again changes nothing.
                stack.enter_context(ray_session(config))
            _run_one(stage, config, run, record)


def stage_record(run: Folder, name: str) -> dict[str, Any] | None:
    """Record of a finished stage: seconds, versions, settings and figures; None if it has not finished."""
    record: dict[str, Any] | None = run.read_json(_record_name(name)) if run.exists(_record_name(name)) else None
    return record


def _run_one(stage: Stage, config: ExperimentConfig, run: Folder, record: dict[str, Any] | None) -> None:
    _write_provenance(config, run)
    start = time.monotonic()
    summary = stage.run(config, run, work_name(stage, config))
    seconds = time.monotonic() - start
    if record is not None:
        # The time of a check says nothing about what the stage cost.
        seconds = max(seconds, record["seconds"])
    run.write_json(
        _record_name(stage.name),
        {
            "stage": stage.name,
            "finished": datetime.now(UTC).isoformat(timespec="seconds"),
            "seconds": round(seconds, 2),
            "versions": package_versions(),
            "settings": _stage_settings(stage, config),
            "summary": summary,
        },
    )


def work_name(stage: Stage, config: ExperimentConfig) -> str:
    """Name of the working folder in which an unfinished stage keeps its pieces, one for each set of settings."""
    settings = json.dumps(_stage_settings(stage, config), sort_keys=True)
    return f"work-{hashlib.sha256(settings.encode()).hexdigest()[:12]}"


def _record_name(stage: str) -> str:
    return f"stages/{stage}.json"


def _stage_settings(stage: Stage, config: ExperimentConfig) -> dict[str, Any]:
    position = STAGE_NAMES.index(stage.name)
    names = tuple(name for earlier in STAGES[: position + 1] for name in earlier.settings)
    return decisive_settings(config, names)


def _check_ready(stage: Stage, run: Folder) -> None:
    for needed in STAGES[: STAGES.index(stage)]:
        if stage_record(run, needed.name) is None:
            raise InputError(
                f"run folder {run} has no finished {needed.name!r} stage, which {stage.name!r} builds on; "
                f"run `icrl {needed.name} --run-dir {run}` first, or `icrl run` for all stages"
            )


def _check_same_experiment(config: ExperimentConfig, run: Folder) -> None:
    for stage in STAGES:
        record = None if stage.name == "report" else stage_record(run, stage.name)
        if record is None:
            continue
        wanted = _stage_settings(stage, config)
        differing = sorted(_differences(record["settings"], wanted))
        if differing:
            raise InputError(
                f"run folder {run} holds a {stage.name!r} stage of another experiment "
                f"({'; '.join(differing[:3])}); use another --run-dir or the same settings"
            )


def _differences(stored: Any, wanted: Any, path: str = "") -> list[str]:
    if isinstance(stored, dict) and isinstance(wanted, dict):
        return [
            difference
            for key in stored.keys() | wanted.keys()
            for difference in _differences(stored.get(key), wanted.get(key), f"{path}.{key}" if path else key)
        ]
    return [] if stored == wanted else [f"{path} was {stored}, now {wanted}"]


def _write_provenance(config: ExperimentConfig, run: Folder) -> None:
    settings = config.model_dump(mode="json")
    run.write("config.yaml", yaml.safe_dump(settings, sort_keys=False, allow_unicode=True).encode())
    run.write_json(
        "run.json",
        {"config": settings, "seed": config.seed, "versions": package_versions(), "commit": source_commit()},
    )
