"""A pool of Ray actors that finishes its jobs although actors, processes and whole nodes are lost on the way.

Ray's own retries can stall for minutes when a node vanishes. Here the driver never waits without a time limit, gives
work only to actors that have answered, gives every answer a deadline, and tries a job a bounded number of times.
"""

import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import ray
from ray.exceptions import RayError, RayTaskError

from icrl.errors import InputError, RunStoppedError, one_line

Job = TypeVar("Job")

POLL_S = 1.0
"""Longest time between two looks at the deadlines."""
START_TIMEOUT_S = 300.0
"""Seconds within which a new actor must answer; a cluster that grows may need minutes for it."""


class JobFailedError(RunStoppedError):
    """A job, or the start of an actor, failed as often as it may."""


@dataclass(frozen=True)
class _Errand(Generic[Job]):
    """What an actor was last asked for: a job, or with None only a sign of life."""

    actor: Any
    job: Job | None
    deadline: float


class ActorPool(Generic[Job]):
    """Runs every job on some actor's method ``run``; actors also have a method ``ping``.

    Args:
        start_actor: starts one actor.
        jobs: the jobs; hashable and different.
        group_of: the group of a job; an actor keeps to its group while that has jobs left.
        num_actors: most actors at a time.
        timeout_s: seconds within which a job must be finished.
        max_attempts: times a job is tried, and times in a row that actors may fail to start.
    """

    def __init__(
        self,
        start_actor: Callable[[], Any],
        jobs: Sequence[Job],
        *,
        group_of: Callable[[Job], str],
        num_actors: int,
        timeout_s: float,
        max_attempts: int,
    ) -> None:
        self.first_answer_at: float | None = None
        """`time.monotonic` when the first actor was ready to work."""
        self._start_actor = start_actor
        self._group_of = group_of
        self._num_actors = num_actors
        self._timeout_s = timeout_s
        self._max_attempts = max_attempts
        self._attempts: Counter[Job] = Counter()
        self._failed_starts = 0
        self._errands: dict[Any, _Errand[Job]] = {}
        self._pending: defaultdict[str, deque[Job]] = defaultdict(deque)
        for job in jobs:
            self._pending[group_of(job)].append(job)

    def run(self) -> Iterator[tuple[Job, Any]]:
        """Yield every job with its result, in the order in which they finish.

        Raises:
            InputError: raised by a job.
            JobFailedError: a job, or the start of actors, failed `max_attempts` times.
        """
        try:
            while self._num_unfinished():
                while len(self._errands) < min(self._num_actors, self._num_unfinished()):
                    self._send(self._start_actor(), None)
                ready, _ = ray.wait(list(self._errands), timeout=POLL_S)
                for answer in ready:
                    yield from self._receive(answer)
                self._give_up_overdue()
        finally:
            for errand in self._errands.values():
                ray.kill(errand.actor)

    def _num_unfinished(self) -> int:
        return sum(map(len, self._pending.values())) + sum(e.job is not None for e in self._errands.values())

    def _send(self, actor: Any, job: Job | None) -> None:
        answer, timeout_s = (
            (actor.ping.remote(), START_TIMEOUT_S) if job is None else (actor.run.remote(job), self._timeout_s)
        )
        self._errands[answer] = _Errand(actor, job, time.monotonic() + timeout_s)

    def _receive(self, answer: Any) -> Iterator[tuple[Job, Any]]:
        errand = self._errands.pop(answer)
        try:
            result = ray.get(answer)
        except RayTaskError as error:
            if isinstance(error.cause, InputError):
                ray.kill(errand.actor)
                raise error.cause from None
            self._retry(errand, error)
            return
        except RayError as error:
            self._retry(errand, error)
            return
        self._failed_starts = 0
        self.first_answer_at = self.first_answer_at or time.monotonic()
        if (job := self._next_job(errand.job)) is None:
            ray.kill(errand.actor)
        else:
            self._send(errand.actor, job)
        if errand.job is not None:
            yield errand.job, result

    def _give_up_overdue(self) -> None:
        now = time.monotonic()
        for answer in [answer for answer, errand in self._errands.items() if errand.deadline < now]:
            self._retry(self._errands.pop(answer), TimeoutError("no answer within the time limit"))

    def _retry(self, errand: _Errand[Job], error: Exception) -> None:
        """Drop the actor of a failed errand and put its job back."""
        ray.kill(errand.actor)
        if errand.job is None:
            if isinstance(error, TimeoutError) and any(other.job is not None for other in self._errands.values()):
                return  # The cluster has no room for more actors than those that work.
            self._failed_starts += 1
            if self._failed_starts >= self._max_attempts:
                raise JobFailedError(
                    f"{self._failed_starts} actors in a row did not start; the last: {one_line(error)}"
                ) from error
            return
        self._attempts[errand.job] += 1
        if self._attempts[errand.job] >= self._max_attempts:
            raise JobFailedError(
                f"{errand.job} failed {self._max_attempts} times; the last time: {one_line(error)}"
            ) from error
        self._pending[self._group_of(errand.job)].append(errand.job)

    def _next_job(self, last: Job | None) -> Job | None:
        """A job of the last one's group, else of the fullest group, rather one that no other actor is at."""
        if last is not None and self._pending[self._group_of(last)]:
            return self._pending[self._group_of(last)].popleft()
        waiting = [group for group, jobs in self._pending.items() if jobs]
        if not waiting:
            return None
        taken = {self._group_of(errand.job) for errand in self._errands.values() if errand.job is not None}
        return self._pending[min(waiting, key=lambda g: (g in taken, -len(self._pending[g])))].popleft()
