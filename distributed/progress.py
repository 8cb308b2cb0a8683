"""One line of progress at a time: readable on a terminal, in a log file and in `ray job logs`."""

import sys
import time


class Progress:
    """Counts finished pieces of a stage and prints how far it is, at most once every few seconds.

    Attributes:
        stage: name printed in front of every line.
        total: number of pieces.
        unit: what a piece is, in the plural.
        done: number of finished pieces.
    """

    def __init__(self, stage: str, total: int, unit: str, *, done: int = 0, every_s: float = 3.0) -> None:
        self.stage = stage
        self.total = total
        self.unit = unit
        self.done = self._done_before = done
        self._every_s = every_s
        self._start = time.monotonic()
        self._printed_at = -float("inf")
        if done:
            self.say(f"{done} of {total} {unit} were finished before and are kept")

    def say(self, text: str) -> None:
        """Print one line now."""
        print(f"[{self.stage}] {text}", file=sys.stderr, flush=True)

    def advance(self, detail: str = "") -> None:
        """Count one more piece as finished."""
        self.reach(self.done + 1, detail)

    def reach(self, done: int, detail: str = "") -> None:
        """Say that `done` pieces are finished."""
        self.done = done
        now = time.monotonic()
        if now - self._printed_at < self._every_s and done < self.total:
            return
        self._printed_at = now
        elapsed = now - self._start
        timing = f"{elapsed:.0f} s"
        if self._done_before < done < self.total:
            timing += f", about {elapsed / (done - self._done_before) * (self.total - done):.0f} s left"
        self.say(f"{done}/{self.total} {self.unit}, {timing}" + (f"; {detail}" if detail else ""))
