"""One line of progress at a time: readable on a terminal, in a log file and in `ray job logs`."""

import sys
import time


class Progress:
    """Counts finished pieces of a stage and prints how far it is, at most once every few seconds.

    Attributes:
        stage: name printed in front of every line.
        total: number of pieces.
        unit: what a piece is, in the plural.
    """

    def __init__(self, stage: str, total: int, unit: str, *, done: int = 0, every_s: float = 3.0) -> None:
        self.stage = stage
        self.total = total
        self.unit = unit
        self._done = self._done_before = done
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
        self._done += 1
        now = time.monotonic()
        if now - self._printed_at < self._every_s and self._done < self.total:
            return
        self._printed_at = now
        elapsed = now - self._start
        left = elapsed / (self._done - self._done_before) * (self.total - self._done)
        timing = f"{elapsed:.0f} s" + (f", about {left:.0f} s left" if self._done < self.total else "")
        self.say(f"{self._done}/{self.total} {self.unit}, {timing}" + (f"; {detail}" if detail else ""))
