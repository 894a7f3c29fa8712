"""SGLang's collected confidence shards: ``.pt`` files, one dictionary of tensors each.

``logits``         float32 [N, γ]  raw, before any temperature
``prefix_mask``    float32 [N, γ]  1 at position k where k ≤ n, else 0
``observed_mask``  float32 [N, γ]  optional, ours: 1 at position k where k ≤ ℓ

SGLang writes the first two and ignores the third. Its shards do not say how far a block was
verified: without ``observed_mask`` every position counts as verified, and a shard collected while
the scheduler trimmed blocks then reads trimmed positions as rejected. Its own collector also
labels greedily, by the target's largest logit, whatever the request sampled with. Both are
repeated in the notes of what is read.

torch is imported when a shard is read or written, not before.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calib.atomic_files import atomic_writer
from calib.errors import FormatError, RecordError
from calib.record_schema import check_gamma
from calib.records import AcceptanceRecords

NOTE_ALL_VERIFIED = (
    "no observed_mask: every position counts as verified; wrong if blocks were trimmed"
)
NOTE_GREEDY_LABELS = (
    "SGLang's collector labels by the target's largest logit, also for sampled requests"
)
_REMEDY = "collect this shard again, or leave it out"


@dataclass(frozen=True, slots=True)
class ShardRecords:
    """What a set of shards holds.

    Attributes:
        records: all rows, in the order of ``files``; only logits and lengths are known.
        files: the shards read, sorted as text, as SGLang's fitter sorts them.
        notes: what the format leaves open, to be shown beside every result.
    """

    records: AcceptanceRecords
    files: tuple[Path, ...]
    notes: tuple[str, ...]


def read_shards(
    shards: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], gamma: int
) -> ShardRecords:
    """All rows of one or more shards.

    Args:
        shards: a glob pattern or a path, or a sequence of paths.
        gamma: block size as the caller knows it; every shard must agree.

    Raises:
        FormatError: no shard matches, or one is empty, torn, corrupt, no such dictionary, of
            another γ, holds logits that are not finite float32, or a mask that is no prefix.
        OSError: a named shard does not exist or may not be read.
    """
    gamma = check_gamma(gamma)
    files = _matching(shards)
    parts, trimming_known = [], True
    for file in files:
        shard = _load(file)
        trimming_known &= "observed_mask" in shard
        parts.append(_records(shard, gamma, file))
    notes = (NOTE_GREEDY_LABELS,) if trimming_known else (NOTE_ALL_VERIFIED, NOTE_GREEDY_LABELS)
    return ShardRecords(AcceptanceRecords.concatenate(parts), files, notes)


def write_shard(records: AcceptanceRecords, path: str | os.PathLike[str]) -> None:
    """Write logits and lengths as one shard, atomically; other columns are lost.

    ``observed_mask`` is added where any row was trimmed. SGLang's fitter ignores it and reads
    trimmed positions as rejected: give that fitter rows with ℓ = γ only.

    Raises:
        RecordError: no rows.
        OSError: the file cannot be written.
    """
    import torch

    if len(records) == 0:
        raise RecordError("records", "0 rows", "write at least one row")
    positions = np.arange(1, records.gamma + 1)
    masks = {"prefix_mask": positions <= records.accepted[:, None]}
    if (records.verified < records.gamma).any():
        masks["observed_mask"] = positions <= records.verified[:, None]
    # torch.from_numpy warns about arrays that cannot be written to, which ours cannot.
    payload = {"logits": torch.from_numpy(records.confidence_logits.copy())}
    for name, mask in masks.items():
        payload[name] = torch.from_numpy(mask.astype(np.float32))
    with atomic_writer(path) as file:
        torch.save(payload, file)


def _matching(
    shards: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
) -> tuple[Path, ...]:
    if not isinstance(shards, str | os.PathLike):
        found = [os.fspath(path) for path in shards]
    elif os.path.exists(shards):
        found = [os.fspath(shards)]  # a path may hold brackets that would be a pattern
    else:
        found = glob.glob(os.fspath(shards))
    if not found:
        raise FormatError(shards, "no shard matches", "check the pattern")
    return tuple(Path(path) for path in sorted(found))


def _load(file: Path) -> dict[str, Any]:
    import torch

    with file.open("rb") as handle:
        if not handle.read(1):
            raise FormatError(file, "empty file", _REMEDY)
        handle.seek(0)
        try:
            shard = torch.load(handle, map_location="cpu", weights_only=True)
        # Torn zip archives, foreign pickles and refused globals each raise their own kind, and
        # the list grows with every release of torch.
        except Exception as error:
            first_line = str(error).strip().partition("\n")[0] or type(error).__name__
            raise FormatError(file, f"not readable as a shard: {first_line}", _REMEDY) from error
    if not isinstance(shard, dict):
        raise FormatError(file, f"holds a {type(shard).__name__}, no dictionary", _REMEDY)
    return shard


def _records(shard: dict[str, Any], gamma: int, file: Path) -> AcceptanceRecords:
    logits = _matrix(shard, "logits", gamma, file)
    if logits.dtype != np.float32:
        remedy = "collect float32: a temperature fitted on rounded logits is not the served one"
        raise FormatError(file, f"logits are {logits.dtype}", remedy)
    accepted = _prefix_lengths(shard, "prefix_mask", gamma, file)
    verified = np.full_like(accepted, gamma)
    if "observed_mask" in shard:
        verified = _prefix_lengths(shard, "observed_mask", gamma, file)
    if not len(logits) == len(accepted) == len(verified):
        raise FormatError(file, "tensors of different lengths", _REMEDY)
    columns = {"confidence_logits": logits, "verified": verified, "accepted": accepted}
    try:
        return AcceptanceRecords.from_columns(gamma, columns)
    except RecordError as error:
        raise FormatError(file, str(error), _REMEDY) from error


def _matrix(shard: dict[str, Any], name: str, gamma: int, file: Path) -> NDArray[Any]:
    """The named tensor as an array [N, γ]."""
    import torch

    tensor = shard.get(name)
    if not isinstance(tensor, torch.Tensor):
        raise FormatError(file, f"no tensor {name!r}", _REMEDY)
    if tensor.is_complex() or tensor.layout != torch.strided:
        raise FormatError(file, f"{name} is no plain tensor of numbers", _REMEDY)
    if tensor.ndim != 2 or tensor.shape[1] != gamma:
        reason = f"{name} has shape {tuple(tensor.shape)}, but gamma is {gamma}"
        raise FormatError(file, reason, "state the gamma the shard was collected with")
    if tensor.dtype == torch.bfloat16:  # unknown to NumPy
        raise FormatError(file, f"{name} is bfloat16", "collect float32")
    array: NDArray[Any] = tensor.detach().numpy()
    return array


def _prefix_lengths(shard: dict[str, Any], name: str, gamma: int, file: Path) -> NDArray[np.int64]:
    """Length of the run of ones that each row of the mask starts with, and must consist of."""
    mask = _matrix(shard, name, gamma, file).astype(np.float64)
    ones = mask == 1.0
    if not (ones | (mask == 0.0)).all():
        raise FormatError(file, f"{name} holds other values than 0 and 1", _REMEDY)
    gap = (ones[:, 1:] & ~ones[:, :-1]).any(axis=1)
    if gap.any():
        reason = f"{name} is no prefix in row {int(np.argmax(gap))}"
        raise FormatError(file, reason, "a position is 1 only after all before it are 1")
    lengths: NDArray[np.int64] = ones.sum(axis=1, dtype=np.int64)
    return lengths
