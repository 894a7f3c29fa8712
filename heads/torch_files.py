"""Torch files that are whole or absent, and one error for all the ways in which one is damaged."""

from __future__ import annotations

from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch

from calib.atomic_files import atomic_writer
from calib.errors import FormatError

# What torch raises for files that are missing, foreign, truncated or corrupt.
UNREADABLE = (OSError, ValueError, RuntimeError, EOFError, KeyError, UnpicklingError)


def write_torch(path: Path, value: Any) -> None:
    """Write tensors and plain containers of them atomically; the folder is made when missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_writer(path) as file:
        torch.save(value, file)


def read_torch(path: Path, *, remedy: str, mapped: bool = False) -> Any:
    """Read what :func:`write_torch` wrote; nothing in the file is ever executed.

    Args:
        path: file to read.
        remedy: what the user can do about a damaged file.
        mapped: leave tensors on disk until they are looked at.

    Raises:
        FormatError: the file cannot be read.
    """
    try:
        return torch.load(path, weights_only=True, mmap=mapped, map_location="cpu")
    except UNREADABLE as error:
        reason = str(error).strip().partition("\n")[0]
        raise FormatError(
            path, f"not readable ({type(error).__name__}: {reason})", remedy
        ) from error
