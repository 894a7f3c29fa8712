"""Findings about a drafter's checkpoint: whether it has the heads, and how many positions it says.

Only names and shapes are read, from the headers of its safetensors files, and its ``config.json``.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from api.doctor.findings import Finding, Level
from calib.canonical_json import parse_json_object
from calib.errors import FormatError, TargetLoadError
from heads.checkpoint_names import head_tensors

__all__ = ["checkpoint_findings"]

_LONGEST_HEADER = 128 * 2**20
_PROJECTION = "confidence_head.proj.weight"
_BIAS = "confidence_head.proj.bias"
_FACTOR = "markov_head.markov_w1.weight"
_WIDTHS = ("block_size", "dspark_block_size")
_INNER = ("dspark_config", "dflash_config")


@dataclass(frozen=True, slots=True)
class _Entry:
    shape: tuple[int, ...]


def checkpoint_findings(path: Path, *, gamma: int | None) -> Iterator[Finding]:
    """Heads, their widths and γ of a checkpoint under any project's names.

    Args:
        path: a safetensors file, or a folder of them with ``config.json``.
        gamma: draft positions of the engine or the service; None unknown.

    Raises:
        FormatError: no safetensors, or a configuration that is no JSON object.
        OSError: it cannot be read.
    """
    folder = path if path.is_dir() else path.parent
    files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
    if not files:
        raise FormatError(path, "no *.safetensors in it", "give a drafter's folder or file")
    tensors: dict[str, _Entry] = {}
    for file in files:
        tensors |= _entries(file)
    config = folder / "config.json"
    options = parse_json_object(config.read_bytes(), str(config)) if config.is_file() else {}
    try:
        heads = head_tensors(tensors)
    except TargetLoadError as error:
        yield Finding("heads", Level.FAIL, str(error), "this is no DSpark drafter")
        return
    flat = [name for name, entry in heads.items() if name != _BIAS and len(entry.shape) != 2]
    if flat:
        text = f"{flat[0]} has {len(heads[flat[0]].shape)} dimensions, a head's weight has 2"
        yield Finding("heads", Level.FAIL, text, "this is no DSpark drafter")
        return
    yield from _confidence(heads, options)
    yield from _gamma(options, gamma)


def _confidence(heads: Mapping[str, _Entry], options: Mapping[str, Any]) -> Iterator[Finding]:
    projection, factor = heads.get(_PROJECTION), heads.get(_FACTOR)
    if projection is None:
        yield Finding(
            "confidence_head",
            Level.FAIL,
            "the checkpoint has a Markov head and no confidence head",
            "SGLang refuses it in a mode with confidence; vLLM calibrates it by max_log_odds",
        )
        return
    width, bias = projection.shape[-1], "with" if _BIAS in heads else "without"
    yield Finding("confidence_head", Level.OK, f"it reads {width} numbers, {bias} bias")
    if options.get("enable_confidence_head") is False:
        yield Finding(
            "confidence_head",
            Level.WARN,
            "config.json turns the confidence head off: SGLang uses it all the same, vLLM does not",
            "set enable_confidence_head to true",
        )
    rank = 0 if factor is None else factor.shape[-1]
    hidden = options.get("hidden_size") or _inner(options, "transformer_layer_config").get(
        "hidden_size"
    )
    if not _is_count(hidden):
        return
    if width == hidden + rank:
        text = f"hidden {hidden}" + (f" and Markov rank {rank}" if rank else "")
        yield Finding("features", Level.OK, text)
    elif width == hidden:
        yield Finding("features", Level.OK, f"hidden {hidden}; the Markov embedding is not read")
    else:
        text = (
            f"the head reads {width} numbers, hidden {hidden} and rank {rank} give {hidden + rank}"
        )
        yield Finding("features", Level.FAIL, text, "config.json is not of these weights")


def _gamma(options: Mapping[str, Any], gamma: int | None) -> Iterator[Finding]:
    places = [options, *(_inner(options, name) for name in _INNER)]
    widths = [place[name] for place in places for name in _WIDTHS if _is_count(place.get(name))]
    if not widths:
        yield Finding("gamma", Level.UNKNOWN, "config.json names no block size")
        return
    width, anchor = widths[0], options.get("sample_from_anchor")
    shown = f"block size {width}"
    remedy = "take gamma from the running engine: it may draft one position less than the block"
    if anchor is None:
        shown += ", sample_from_anchor not said: SGLang takes it for true, vLLM for false"
    elif anchor is False:
        shown += ", not sampled from the anchor: one draft less under vLLM"
    if gamma is None:
        yield Finding("gamma", Level.UNKNOWN, shown, remedy)
    elif gamma in (width, width - 1 if anchor is not True else width):
        yield Finding("gamma", Level.OK, f"{shown}; gamma {gamma} fits")
    elif gamma < width:
        yield Finding("gamma", Level.WARN, f"{shown}; gamma is {gamma}", remedy)
    else:
        yield Finding("gamma", Level.FAIL, f"{shown}; gamma {gamma} is more than it drafts", remedy)


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _inner(options: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = options.get(name)
    return found if isinstance(found, Mapping) else {}


def _entries(file: Path) -> dict[str, _Entry]:
    """Names and shapes of a safetensors file, from its header alone."""
    remedy = "give a safetensors file that was written to its end"
    with file.open("rb") as stream:
        start = stream.read(8)
        size = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
        if not 0 < size <= _LONGEST_HEADER:
            raise FormatError(file, "no safetensors header", remedy)
        data = stream.read(size)
    try:
        header = json.loads(data)
        return {
            name: _Entry(tuple(int(length) for length in entry["shape"]))
            for name, entry in header.items()
            if name != "__metadata__"
        }
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise FormatError(file, f"no safetensors header ({error})", remedy) from error
