"""A run folder: whole files or none, on any file system."""

from pathlib import Path

import pyarrow as pa
import pytest

from icrl.errors import InputError
from icrl.storage import Folder


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    folder = Folder.open(tmp_path / "run")
    table = pa.table({"δ": [0.1, 0.2]})
    folder.write_json("a/record.json", {"name": "Σ"})
    (folder / "a").write_table("b/table.parquet", table)

    assert folder.list() == ["a/b/table.parquet", "a/record.json"]
    assert folder.read_json("a/record.json") == {"name": "Σ"}
    assert folder.read_table("a/b/table.parquet").equals(table)
    assert folder.exists("a/record.json")
    assert not folder.exists("a/other.json")


def test_an_interrupted_write_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Folder.open(tmp_path)
    folder.write("file", b"old")

    def no_space(source: str, target: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("icrl.storage.os.replace", no_space)
    with pytest.raises(OSError, match="No space"):
        folder.write("file", b"new")
    assert folder.read("file") == b"old"
    assert folder.list() == ["file"]


def test_sweep_removes_only_what_a_killed_writer_left(tmp_path: Path) -> None:
    folder = Folder.open(tmp_path)
    folder.write("deep/kept", b"1")
    (tmp_path / "deep" / "kept.0a1b.tmp").write_bytes(b"half")
    folder.sweep()
    assert folder.list() == ["deep/kept"]


@pytest.mark.parametrize(
    ("content", "read"), [(b"{", Folder.read_json), (b"PAR1 cut off", Folder.read_table)], ids=["json", "parquet"]
)
def test_a_damaged_file_is_named(tmp_path: Path, content: bytes, read) -> None:
    folder = Folder.open(tmp_path)
    folder.write("broken", content)
    with pytest.raises(InputError, match=f"{tmp_path}/broken .*again"):
        read(folder, "broken")


def test_an_unusable_location_says_what_would_do() -> None:
    with pytest.raises(InputError, match=r"ftp://host/x.*give a local path, s3://"):
        Folder.open("ftp://host/x")
