"""How far a run is: what each stage has done and what remains, read from the run folder alone."""

from collections.abc import Callable
from dataclasses import dataclass

from rich import box
from rich.table import Table

from distributed.collect import shard_jobs
from distributed.evaluate import transfer_blocks
from distributed.fit import FIT_NAME
from distributed.pipeline import STAGES, Stage, stage_record, work_name
from distributed.tune import count_trials
from icrl.config import ExperimentConfig
from icrl.storage import Folder


@dataclass(frozen=True)
class StageStatus:
    """How far one stage is.

    Attributes:
        stage: name of the stage.
        done: pieces that are finished.
        total: all its pieces.
        unit: what a piece is, in the plural.
        finished: when the stage ended, ISO 8601; None if it has not.
        seconds: what the finished stage took.
    """

    stage: str
    done: int
    total: int
    unit: str
    finished: str | None
    seconds: float | None


def run_status(config: ExperimentConfig, run: Folder) -> list[StageStatus]:
    """The status of every stage in order. Shards count when they lie there; only `icrl collect` looks inside them."""
    return [_stage_status(stage, config, run) for stage in STAGES]


def status_table(statuses: list[StageStatus]) -> Table:
    """The statuses for the terminal."""
    table = Table(box=box.SIMPLE_HEAD)
    for heading, side in (
        ("stage", "left"),
        ("done", "right"),
        ("remaining", "right"),
        ("", "left"),
        ("state", "left"),
    ):
        table.add_column(heading, justify="right" if side == "right" else "left")
    for status in statuses:
        state = f"finished {status.finished}, {status.seconds:.0f} s" if status.finished else "unfinished"
        remaining = status.total - status.done
        table.add_row(status.stage, str(status.done), str(remaining), status.unit, state)
    return table


def _stage_status(stage: Stage, config: ExperimentConfig, run: Folder) -> StageStatus:
    record = stage_record(run, stage.name)
    count, unit = _COUNTERS[stage.name]
    done, total = count(config, run, run / stage.name / work_name(stage, config))
    if record is None:
        return StageStatus(stage.name, done, total, unit, None, None)
    return StageStatus(stage.name, total, total, unit, record["finished"], record["seconds"])


def _present(names: list[str], folder: Folder) -> tuple[int, int]:
    present = set(folder.list())
    return sum(name in present for name in names), len(names)


def _count_shards(config: ExperimentConfig, run: Folder, work: Folder) -> tuple[int, int]:
    return _present([job.path for job in shard_jobs(config)], run / "dataset")


def _count_trials(config: ExperimentConfig, run: Folder, work: Folder) -> tuple[int, int]:
    return count_trials(config, work)


def _count_steps(config: ExperimentConfig, run: Folder, work: Folder) -> tuple[int, int]:
    """Steps up to the last checkpoint: where the fit would go on."""
    snapshot = f"{FIT_NAME}/checkpoint_manager_snapshot.json"
    if not work.exists(snapshot):
        return 0, config.train.num_steps
    checkpoints = work.read_json(snapshot)["checkpoint_results"]
    return max((result["metrics"]["step"] for result in checkpoints), default=0), config.train.num_steps


def _count_blocks(config: ExperimentConfig, run: Folder, work: Folder) -> tuple[int, int]:
    blocks = transfer_blocks(config)
    present = set(work.list())
    return sum(present.issuperset(block.files) for block in blocks), len(blocks)


def _count_reports(config: ExperimentConfig, run: Folder, work: Folder) -> tuple[int, int]:
    return 0, 1


_Counter = Callable[[ExperimentConfig, Folder, Folder], tuple[int, int]]
_COUNTERS: dict[str, tuple[_Counter, str]] = {
    "collect": (_count_shards, "shards"),
    "tune": (_count_trials, "trials"),
    "train": (_count_steps, "steps"),
    "transfer": (_count_blocks, "blocks"),
    "report": (_count_reports, "report"),
}
