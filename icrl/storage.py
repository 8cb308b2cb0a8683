"""A folder of results: a local path, NFS, or an object store such as ``s3://`` and ``gs://``.

Every file appears whole or not at all: it is written under a temporary name and renamed, and an object store makes an
upload visible only once it is complete.
"""

import errno
import json
import os
import posixpath
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from icrl.errors import InputError

TEMPORARY_SUFFIX = ".tmp"
RETRY_PAUSES_S = (0.5, 3.0)


@dataclass(frozen=True)
class Folder:
    """A folder on some file system; it need not exist yet and is picklable, so that actors can write to it.

    Attributes:
        filesystem: where the folder lies.
        path: its path there, absolute for a local folder.
    """

    filesystem: pafs.FileSystem
    path: str

    @classmethod
    def open(cls, location: str | os.PathLike[str]) -> Self:
        """The folder at a local path or at a URI that pyarrow understands.

        Raises:
            InputError: the URI's scheme or host cannot be used.
        """
        text = os.fspath(location)
        if "://" not in text:
            return cls(pafs.LocalFileSystem(), str(Path(text).expanduser().absolute()))
        try:
            filesystem, path = pafs.FileSystem.from_uri(text)
        except (pa.ArrowException, OSError, ValueError) as error:
            reason = " ".join(str(error).split())
            raise InputError(
                f"cannot use folder {text!r}: {reason}; give a local path, s3://bucket/path or gs://bucket/path"
            ) from None
        return cls(filesystem, path.rstrip("/"))

    @property
    def is_local(self) -> bool:
        """Whether the folder lies on a file system of this machine."""
        return isinstance(self.filesystem, pafs.LocalFileSystem)

    def __truediv__(self, name: str) -> "Folder":
        return Folder(self.filesystem, posixpath.join(self.path, name))

    def __str__(self) -> str:
        return self.path if self.is_local else f"{self.filesystem.type_name}://{self.path}"

    def _join(self, name: str) -> str:
        return posixpath.join(self.path, name)

    def exists(self, name: str = "") -> bool:
        """Whether the file or folder `name` exists here."""
        info = self.filesystem.get_file_info(self._join(name) if name else self.path)
        return bool(info.type != pafs.FileType.NotFound)

    def list(self, name: str = "") -> list[str]:
        """Paths, relative to this folder and sorted, of all files below `name`."""
        selector = pafs.FileSelector(self._join(name) if name else self.path, recursive=True, allow_not_found=True)
        infos = self.filesystem.get_file_info(selector)
        files = [posixpath.relpath(info.path, self.path) for info in infos if info.type == pafs.FileType.File]
        return sorted(files)

    def read(self, name: str) -> bytes:
        """The content of the file `name`."""
        with self.filesystem.open_input_file(self._join(name)) as stream:
            return bytes(stream.read())

    def write(self, name: str, content: bytes) -> None:
        """Write the file `name` so that nobody ever sees half of it; storage that fails is tried again twice."""
        for pause_s in RETRY_PAUSES_S:
            try:
                return self._write_once(name, content)
            except OSError as error:
                if error.errno == errno.ENOSPC:
                    raise
                time.sleep(pause_s)
        return self._write_once(name, content)

    def _write_once(self, name: str, content: bytes) -> None:
        target = self._join(name)
        if not self.is_local:
            with self.filesystem.open_output_stream(target) as stream:
                stream.write(content)
            return
        self.filesystem.create_dir(posixpath.dirname(target), recursive=True)
        temporary = f"{target}.{uuid.uuid4().hex}{TEMPORARY_SUFFIX}"
        try:
            with self.filesystem.open_output_stream(temporary) as stream:
                stream.write(content)
            os.replace(temporary, target)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise

    def delete(self, name: str) -> None:
        """Delete the file `name`."""
        self.filesystem.delete_file(self._join(name))

    def sweep(self) -> None:
        """Delete the temporary files that killed writers left below this folder."""
        for name in self.list():
            if name.endswith(TEMPORARY_SUFFIX):
                self.delete(name)

    def read_json(self, name: str) -> Any:
        """The JSON document `name`.

        Raises:
            InputError: the file is not valid JSON.
        """
        try:
            return json.loads(self.read(name))
        except ValueError as error:
            raise InputError(f"{self / name} is not valid JSON ({error}); delete it and run the stage again") from None

    def write_json(self, name: str, document: Any) -> None:
        """Write a JSON document a person can read."""
        self.write(name, (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode())

    def read_table(self, name: str) -> pa.Table:
        """The Parquet table `name`.

        Raises:
            InputError: the file is damaged.
        """
        try:
            return pq.read_table(pa.BufferReader(self.read(name)))
        except (pa.ArrowInvalid, OSError) as error:
            reason = " ".join(str(error).split())
            raise InputError(
                f"{self / name} is damaged ({reason}); run the stage that wrote it again to restore it"
            ) from None

    def write_table(self, name: str, table: pa.Table) -> None:
        """Write a Parquet table."""
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink, compression="zstd")
        self.write(name, sink.getvalue().to_pybytes())
