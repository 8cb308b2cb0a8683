"""The pool, with small actors that fail in every way an actor can."""

import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import ray
from ray import cloudpickle

from distributed.actor_pool import ActorPool, JobFailedError
from icrl.errors import InputError

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("local_ray")]

# Workers cannot import this module.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


@dataclass(frozen=True)
class Job:
    name: str
    group: str = "g"
    fault: str = ""
    faulty_runs: int = 1


class Worker:
    """Appends a line to a job's file at each run, so that a test can count the runs of killed workers too."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def ping(self) -> None:
        pass

    def run(self, job: Job) -> str:
        with (self.folder / job.name).open("a") as file:
            file.write("run\n")
        if num_runs(self.folder, job) <= job.faulty_runs:
            match job.fault:
                case "killed":
                    os.kill(os.getpid(), signal.SIGKILL)
                case "hangs":
                    time.sleep(3600)
                case "raises":
                    raise OSError("the disk is full")
                case "input":
                    raise InputError("no such thing; give another")
        return job.name.upper()


class Stillborn(Worker):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        raise RuntimeError("cannot start")


def num_runs(folder: Path, job: Job) -> int:
    return len((folder / job.name).read_text().splitlines())


def run(folder: Path, jobs: list[Job], num_actors: int = 2, worker: type[Worker] = Worker) -> list[tuple[Job, str]]:
    actor_class: Any = ray.remote(num_cpus=1)(worker)
    pool = ActorPool(
        lambda: actor_class.remote(folder),
        jobs,
        group_of=lambda job: job.group,
        num_actors=num_actors,
        timeout_s=8,
        max_attempts=3,
    )
    return list(pool.run())


def test_every_job_is_finished_whatever_happens_to_its_first_actor(tmp_path: Path) -> None:
    faults = ["", "killed", "hangs", "raises", ""]
    jobs = [Job(f"job{i}", fault=fault) for i, fault in enumerate(faults)]
    results = run(tmp_path, jobs)
    assert sorted((job.name, result) for job, result in results) == [(job.name, job.name.upper()) for job in jobs]
    assert [num_runs(tmp_path, job) for job in jobs] == [2 if fault else 1 for fault in faults]


def test_job_that_keeps_failing_ends_the_run_with_its_name_and_the_cause(tmp_path: Path) -> None:
    job = Job("cursed", fault="raises", faulty_runs=99)
    with pytest.raises(JobFailedError, match=r"cursed.* failed 3 times") as caught:
        run(tmp_path, [job])
    assert "the disk is full" in str(caught.value.__cause__)
    assert num_runs(tmp_path, job) == 3


def test_input_error_comes_through_at_once_and_the_actors_are_released(tmp_path: Path) -> None:
    job = Job("wrong", fault="input", faulty_runs=99)
    with pytest.raises(InputError, match="no such thing; give another"):
        run(tmp_path, [job, Job("other", fault="hangs")])
    assert num_runs(tmp_path, job) == 1
    deadline = time.monotonic() + 60
    while ray.available_resources().get("CPU") != 2:
        assert time.monotonic() < deadline, "an actor still holds its CPU"
        time.sleep(0.1)


def test_actors_that_cannot_start_end_the_run(tmp_path: Path) -> None:
    with pytest.raises(JobFailedError, match="3 actors in a row did not start"):
        run(tmp_path, [Job("never")], worker=Stillborn)
    assert not list(tmp_path.iterdir())


def test_actor_keeps_to_a_group_while_it_has_jobs(tmp_path: Path) -> None:
    jobs = [Job(f"job{i}", group="ab"[i % 2]) for i in range(8)]
    order = [job.group for job, _ in run(tmp_path, jobs, num_actors=1)]
    assert "".join(order) in ("aaaabbbb", "bbbbaaaa")


def test_nothing_to_do_starts_nothing(tmp_path: Path) -> None:
    assert run(tmp_path, [], worker=Stillborn) == []
