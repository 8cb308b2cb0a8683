"""Progress from inside workers, whose own output Ray keeps in its logs, to the driver's terminal."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError

from distributed.progress import Progress

POLL_S = 1.0
HEARTBEAT_S = 10.0
PATIENCE_S = 5.0


class _Board:
    """Holds how far the workers are."""

    def __init__(self) -> None:
        self._done, self._detail = 0, ""

    def reach(self, done: int, detail: str) -> None:
        self._done, self._detail = done, detail

    def look(self) -> tuple[int, str]:
        return self._done, self._detail


@contextmanager
def relayed(progress: Progress) -> Iterator[Any]:
    """Print what workers report while the body runs, and a sign of life while they are silent.

    Yields:
        Handle of an actor; a worker calls ``handle.reach.remote(done, detail)``.
    """
    board: Any = ray.remote(num_cpus=0)(_Board).remote()
    ended = threading.Event()
    printer = threading.Thread(target=_print_until, args=(ended, board, progress), daemon=True)
    printer.start()
    try:
        yield board
    finally:
        ended.set()
        printer.join()
        ray.kill(board)


def _print_until(ended: threading.Event, board: Any, progress: Progress) -> None:
    started = spoke = time.monotonic()
    last = False
    while not last:
        # One more look after the end, so that the last report is printed.
        last = ended.wait(POLL_S)
        try:
            done, detail = ray.get(board.look.remote(), timeout=PATIENCE_S)
        except (GetTimeoutError, RayActorError):
            # The board's node is busy or lost; the fit itself does not need the board.
            done, detail = progress.done, ""
        now = time.monotonic()
        if done != progress.done:
            progress.reach(done, detail)
            spoke = now
        elif now - spoke > HEARTBEAT_S and not last:
            progress.say(f"{'starting workers' if done == 0 else 'waiting for workers'}, {now - started:.0f} s")
            spoke = now
