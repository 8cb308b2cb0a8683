"""A file system that loses writes and kills the processes that write: faults for tests, each at most once a file."""

import os
import re
import signal
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.fs as pafs
from fsspec.implementations.local import LocalFileSystem


@dataclass(frozen=True)
class Faults:
    """Which first writes of a file go wrong, and how.

    Attributes:
        root: the run folder's path.
        markers: local folder with a file for each fault so far; its name says of which kind, its content where.
        driver: process that is never killed.
        fail_every: one in so many files cannot be written at the first attempt.
        kill_every: one in so many files kills the process that writes it first.
        seed: decides who is struck.
        stages: names that a path must contain one of.
    """

    root: str
    markers: Path
    driver: int
    fail_every: int
    kill_every: int
    seed: int
    stages: tuple[str, ...]

    def strike(self, path: str) -> None:
        """Do what befalls this write, if anything."""
        if not any(f"/{stage}/" in path for stage in self.stages):
            return
        # What differs between runs is left out, so that a file's fate does not.
        name = re.sub(r"(work|checkpoint|tfevents)[-_.][^/]*", r"\1", path.removeprefix(f"{self.root}/"))
        draw = zlib.crc32(f"{self.seed} {name}".encode())
        if draw % self.kill_every == 0 and os.getpid() != self.driver and self._first("kill", name, draw):
            os.kill(os.getpid(), signal.SIGKILL)
        if draw % self.fail_every == 0 and self._first("fail", name, draw):
            raise OSError(f"the storage lost {path}")

    def _first(self, kind: str, name: str, draw: int) -> bool:
        try:
            with open(self.markers / f"{kind}-{draw}", "x") as marker:
                marker.write(name)
        except FileExistsError:
            return False
        return True


class FaultyHandler(pafs.FSSpecHandler):
    """The local file system with faults before writes."""

    def __init__(self, faults: Faults) -> None:
        super().__init__(LocalFileSystem(auto_mkdir=True))
        self.faults = faults

    def __reduce__(self) -> Any:
        return FaultyHandler, (self.faults,)

    def open_output_stream(self, path: str, metadata: Any) -> Any:
        self.faults.strike(path)
        return super().open_output_stream(path, metadata)
