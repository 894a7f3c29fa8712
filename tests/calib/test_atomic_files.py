from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from calib.atomic_files import atomic_writer, write_bytes_atomically


def test_writes_and_replaces(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    write_bytes_atomically(path, b"one")
    write_bytes_atomically(str(path), b"two")
    assert path.read_bytes() == b"two"
    assert os.listdir(tmp_path) == ["file.json"]


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    write_bytes_atomically(path, b"old")

    def interrupted() -> None:
        with atomic_writer(path) as file:
            file.write(b"half of the new")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file.json"]


def test_the_old_file_is_there_until_the_block_ends(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    write_bytes_atomically(path, b"old")
    with atomic_writer(path) as file:
        file.write(b"new")
        file.flush()
        assert path.read_bytes() == b"old"
        hidden = [name for name in os.listdir(tmp_path) if name != "file.json"]
        assert all(name.startswith(".") and name.endswith(".tmp") for name in hidden)
    assert path.read_bytes() == b"new"


def test_a_reader_never_sees_part_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "file.bin"
    write_bytes_atomically(path, bytes(100_000))
    stop = threading.Event()
    seen: set[bytes] = set()

    def read() -> None:
        while not stop.is_set():
            data = path.read_bytes()
            seen.add(data[:1] + bytes([len(set(data))]) + len(data).to_bytes(4, "big"))

    reader = threading.Thread(target=read)
    reader.start()
    for value in range(1, 30):
        write_bytes_atomically(path, bytes([value]) * 100_000)
    stop.set()
    reader.join()
    assert {entry[1:] for entry in seen} == {b"\x01" + (100_000).to_bytes(4, "big")}


def test_permissions_follow_the_old_file_or_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        fresh = tmp_path / "fresh"
        write_bytes_atomically(fresh, b"")
        assert stat.S_IMODE(fresh.stat().st_mode) == 0o644
        fresh.chmod(0o600)
        write_bytes_atomically(fresh, b"secret")
        assert stat.S_IMODE(fresh.stat().st_mode) == 0o600
    finally:
        os.umask(before)


def test_a_symbolic_link_keeps_pointing(tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    real.write_bytes(b"old")
    link.symlink_to(real)
    write_bytes_atomically(link, b"new")
    assert link.is_symlink()
    assert real.read_bytes() == b"new"


def test_a_missing_directory_is_not_invented(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_bytes_atomically(tmp_path / "missing" / "file", b"")
