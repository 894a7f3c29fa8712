"""The query of a poll, read without the cost of a framework, and its description for OpenAPI.

An engine sends the same query again and again, so what was read is remembered by its bytes.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final
from urllib.parse import parse_qsl

from api.problems import FieldError, ProblemError
from calib.record_schema import MAX_GAMMA
from monitoring.segment_match import SEGMENT_TAGS

__all__ = ["LONGEST_WAIT", "POLL_PARAMETERS", "PollQuery", "parse_poll_query"]

LONGEST_WAIT: Final = 60
_SEGMENT: Final = "segment."
_REMEMBERED_BYTES: Final = 512  # longer queries are read anew: they must not fill the memory
_MOST_PARAMETERS: Final = 32

_WHOLE = re.compile(r"-?[0-9]{1,15}", re.ASCII)
_DIGEST = re.compile(r"[0-9a-f]{64}", re.ASCII)
_NAME = re.compile(r"[^\x00-\x1f\x7f\ud800-\udfff]{1,128}")
_STATES = ("fresh", "stale", "fallback")


@dataclass(frozen=True, slots=True)
class PollQuery:
    """What an engine asks for and says about itself.

    Attributes:
        gamma: positions it runs.
        key: digest of its calibration key, or None.
        wait: seconds it will wait for a change.
        segment: raw tag values in the order of their names.
        engine: its id, or None.
        client: version of its client, or None.
        applied_publication: what it runs on, or None.
        applied_revision: what it runs on, or None.
        state: ``fresh``, ``stale``, ``fallback`` or None.
    """

    gamma: int
    key: str | None = None
    wait: int = 0
    segment: tuple[tuple[str, str], ...] = ()
    engine: str | None = None
    client: str | None = None
    applied_publication: int | None = None
    applied_revision: int | None = None
    state: str | None = None


def parse_poll_query(raw: bytes) -> PollQuery:
    """The poll in a raw query string. Parameters that are not known are ignored.

    Raises:
        ProblemError: 422 with every fault: gamma is missing, a value is not what it should be, a
            parameter is given twice.
    """
    return _remembered(raw) if len(raw) <= _REMEMBERED_BYTES else _parse(raw)


def _parse(raw: bytes) -> PollQuery:
    try:
        text = raw.decode("ascii")
        pairs = parse_qsl(
            text, keep_blank_values=True, errors="strict", max_num_fields=_MOST_PARAMETERS
        )
    except ValueError as error:
        raise _refused([FieldError("query:", f"cannot be read: {error}")]) from error
    values: dict[str, Any] = {}
    segment: dict[str, str] = {}
    faults: list[FieldError] = []
    for name, value in pairs:
        tag = name.removeprefix(_SEGMENT) if name.startswith(_SEGMENT) else None
        place: dict[str, Any] = values if tag is None else segment
        key = name if tag is None else tag
        if key in place:
            faults.append(FieldError(f"query:{name}", "is given twice"))
        elif tag is not None:
            faults += _segment_faults(tag, value)
            segment[tag] = value
        elif name in _READERS:
            try:
                values[name] = _READERS[name](value)
            except ValueError as error:
                faults.append(FieldError(f"query:{name}", f"got {value[:80]!r}; {error}"))
                values[name] = None
    if "gamma" not in values:
        faults.append(FieldError("query:gamma", "is missing; state the block size you run"))
    if faults:
        raise _refused(faults)
    return PollQuery(**values, segment=tuple(sorted(segment.items())))


_remembered = lru_cache(maxsize=4096)(_parse)


def _refused(faults: list[FieldError]) -> ProblemError:
    detail = "; ".join(f"{fault.pointer} {fault.detail}" for fault in faults[:3])
    return ProblemError("invalid-request", detail, errors=faults)


def _segment_faults(tag: str, value: str) -> list[FieldError]:
    """Tags are known; whether a value is a number is checked where it is matched."""
    pointer = f"query:{_SEGMENT}{tag}"[:200]
    if tag not in SEGMENT_TAGS:
        return [FieldError(pointer, f"is no tag; tags are {', '.join(SEGMENT_TAGS)}")]
    if not _NAME.fullmatch(value):
        return [FieldError(pointer, "give 1 to 128 characters, no control characters")]
    return []


def _whole_from(least: int, most: int) -> Callable[[str], int]:
    def read(value: str) -> int:
        if not _WHOLE.fullmatch(value) or not least <= int(value) <= most:
            raise ValueError(f"give a whole number from {least} to {most}")
        return int(value)

    return read


def _digest(value: str) -> str:
    if not _DIGEST.fullmatch(value):
        raise ValueError("give 64 lower-case hexadecimal digits")
    return value


def _name(value: str) -> str:
    if not _NAME.fullmatch(value):
        raise ValueError("give 1 to 128 characters, no control characters")
    return value


def _state(value: str) -> str:
    if value not in _STATES:
        raise ValueError(f"give one of {', '.join(_STATES)}")
    return value


_READERS: dict[str, Callable[[str], Any]] = {
    "gamma": _whole_from(1, MAX_GAMMA),
    "key": _digest,
    "wait": _whole_from(0, LONGEST_WAIT),
    "engine": _name,
    "client": _name,
    "applied_publication": _whole_from(0, 2**31 - 1),
    "applied_revision": _whole_from(-1, 2**31 - 1),
    "state": _state,
}


def _described(name: str, description: str, schema: dict[str, Any], example: Any) -> dict[str, Any]:
    return {
        "name": name,
        "in": "query",
        "required": name == "gamma",
        "description": description,
        "schema": schema,
        "example": example,
    }


_TEXT = {"type": "string", "minLength": 1, "maxLength": 128, "pattern": r"^[^\x00-\x1f\x7f]+$"}
_NUMBER_TEXT = {"type": "number", "minimum": 0, "maximum": 1e9}
_TAG_SCHEMAS = {"sampling_temperature": _NUMBER_TEXT, "context_length": _NUMBER_TEXT}
_TAG_EXAMPLES = {
    "sampling_temperature": 0.7,
    "context_length": 4096,
    "domain": "code",
    "adapter": "support-lora",
    "acceptance_rule": "rejection",
    "draft_mode": "sampled",
}

POLL_PARAMETERS: Final[tuple[dict[str, Any], ...]] = (
    _described(
        "gamma",
        "Positions the engine runs. Fewer than published: the prefix, marked with "
        "`derived_from_gamma`. More: 409.",
        {"type": "integer", "minimum": 1, "maximum": MAX_GAMMA},
        7,
    ),
    _described(
        "key",
        "Digest of the engine's calibration key. Another one than the drafter's is a 409 "
        "`calibration-key-mismatch`: nothing is matched silently.",
        {"type": "string", "pattern": "^[0-9a-f]{64}$"},
        "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    ),
    _described(
        "wait",
        "Whole seconds to hold the request until something changes; needs If-None-Match, and is "
        "answered at once without it.",
        {"type": "integer", "minimum": 0, "maximum": LONGEST_WAIT, "default": 0},
        30,
    ),
    _described("engine", "Id of the engine, for the fleet view.", _TEXT, "decode-0"),
    _described("client", "Version of the engine's client.", _TEXT, "0.1.0"),
    _described(
        "applied_publication",
        "Publication the engine runs on.",
        {"type": "integer", "minimum": 0, "maximum": 2**31 - 1},
        3,
    ),
    _described(
        "applied_revision",
        "Revision the engine runs on; −1 where it does not know.",
        {"type": "integer", "minimum": -1, "maximum": 2**31 - 1},
        2,
    ),
    _described(
        "state",
        "How good what the engine runs on is, by its own judgement.",
        {"type": "string", "enum": list(_STATES)},
        "fresh",
    ),
    *(
        _described(
            f"{_SEGMENT}{tag}",
            "Raw value of a traffic tag; `segment` in the answer says what it was matched with.",
            _TAG_SCHEMAS.get(tag, _TEXT),
            _TAG_EXAMPLES[tag],
        )
        for tag in SEGMENT_TAGS
    ),
)
"""OpenAPI parameters of a poll."""
