"""Torch files are whole or absent, and damage has one name."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from calib.errors import FormatError
from heads.torch_files import read_torch, write_torch

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("mapped", [False, True])
def test_what_was_written_is_read(tmp_path: Path, mapped: bool) -> None:
    path = tmp_path / "new" / "a.pt"
    write_torch(path, {"x": torch.arange(5), "n": 3})
    value = read_torch(path, remedy="-", mapped=mapped)
    assert value["x"].tolist() == [0, 1, 2, 3, 4]
    assert value["n"] == 3
    assert [p.name for p in path.parent.iterdir()] == ["a.pt"]


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("kept", [0, 10, 300])
def test_truncated_files_are_named(tmp_path: Path, kept: int, mapped: bool) -> None:
    path = tmp_path / "a.pt"
    write_torch(path, {"x": torch.arange(500)})
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(FormatError, match=r"a\.pt: not readable .*; delete it"):
        read_torch(path, remedy="delete it", mapped=mapped)


def test_missing_and_foreign_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="FileNotFoundError"):
        read_torch(tmp_path / "none.pt", remedy="-")
    (tmp_path / "text.pt").write_text("hello")
    with pytest.raises(FormatError, match=r"text\.pt"):
        read_torch(tmp_path / "text.pt", remedy="-")


class Harmful:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (exec, ("raise SystemExit('executed')",))


def test_nothing_in_a_file_is_executed(tmp_path: Path) -> None:
    path = tmp_path / "harmful.pt"
    torch.save({"x": Harmful()}, path)
    with pytest.raises(FormatError, match="UnpicklingError"):
        read_torch(path, remedy="-")


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    write_torch(path, {"x": 1})
    with pytest.raises((AttributeError, TypeError)):
        write_torch(path, {"x": lambda: None})
    assert read_torch(path, remedy="-") == {"x": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["a.pt"]
