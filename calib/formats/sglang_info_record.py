"""SGLang's own step records, ``dspark_info_record`` of ``GET /server_info``, as telemetry.

An engine that runs with ``SGLANG_DSPARK_DEBUG_DUMP=core,reqs`` keeps one record per decode step
and one entry per request in it. Nothing has to be installed there, but the entries are poorer than
the plugin's telemetry:

* confidences are those *after* the temperatures, rounded to four decimals: the raw logit is
  recovered as z = T · logit(c), so the temperatures that ran must be stated. A confidence that was
  rounded to 0 or 1 counts as 0.00005 away from it. Rows are not dropped for that: a later logit
  that decides whether an earlier position is kept would bias it;
* ``verify_len`` counts the anchor: ℓ = ``verify_len`` - 1 in compact mode. In cap-accept mode the
  target checks all positions whatever the cap: ℓ = γ and n = ``correct_drafts`` + ``cap_trim``;
* with a simulated acceptance (``simulate_acc_len``) every row is flagged as forced;
* the sampling temperature and the rule that decided acceptance are not in it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from calib.calibration_values import checked_gamma
from calib.engine_conventions import cut_at_stop_token
from calib.errors import CalibrationValueError, FormatError
from calib.record_schema import Flag
from calib.records import AcceptanceRecords

__all__ = ["InfoRecords", "logits_of_confidences", "read_info_records"]

NOTE_ROUNDED = "confidences come rounded to 4 decimals, so logits carry that rounding"
NOTE_FORCED = "acceptance was simulated: every row is flagged as forced and stays out of fits"
NOTE_NO_STOPS = (
    "no stop tokens were given: positions drafted after a stop token count as real chances"
)
# Half a unit of the fourth decimal.
_ROUNDING = 0.00005
_REMEDY = "give the body of GET /server_info, or its dspark_info_record"
_DUMP_REMEDY = "start the engine with SGLANG_DSPARK_DEBUG_DUMP=core,reqs"
_MODES = ("cap-accept", "compact", "static")


@dataclass(frozen=True, slots=True)
class InfoRecords:
    """What a set of dumps holds.

    Attributes:
        records: all rows, ordered by engine and step.
        duplicates: entries that several dumps hold; counted once.
        saturated: confidences that were rounded to 0 or 1.
        after_stop: rows left out because their request had already ended.
        notes: what the format leaves open, to be shown beside every result.
    """

    records: AcceptanceRecords
    duplicates: int
    saturated: int
    after_stop: int
    notes: tuple[str, ...]


class _Row(NamedTuple):
    """One request of one step."""

    engine: str
    step: int
    request: str
    confidence: list[float]
    tokens: list[int]
    verified: int
    accepted: int
    emitted: int  # accepted drafts that were kept; smaller than ``accepted`` under a cap
    bonus: int
    context: int
    width: int  # requests of the step
    full: bool  # everything was verified whatever the confidences said
    forced: bool


@dataclass(slots=True)
class _Gathered:
    """Rows while files are read."""

    gamma: int
    rows: list[_Row] = field(default_factory=list)
    seen: set[tuple[object, ...]] = field(default_factory=set)
    duplicates: int = 0

    def add(self, row: _Row) -> None:
        """Keep the row unless an overlapping dump has it already."""
        identity = (row.engine, row.step, row.request, tuple(row.tokens))
        if identity in self.seen:
            self.duplicates += 1
            return
        self.seen.add(identity)
        self.rows.append(row)


def logits_of_confidences(
    confidence: NDArray[np.floating[Any]],  # [..., gamma] in [0, 1], rounded to 4 decimals
    temperatures: Sequence[float],  # [gamma]
) -> NDArray[np.float32]:
    """Raw logits z = T · logit(c), finite; 0 and 1 count as half a rounding step away."""
    inside = np.clip(np.asarray(confidence, dtype=np.float64), _ROUNDING, 1.0 - _ROUNDING)
    logits = np.log(inside) - np.log1p(-inside)
    return (logits * np.asarray(temperatures, dtype=np.float64)).astype(np.float32)


def read_info_records(
    paths: Sequence[str | os.PathLike[str]],
    gamma: int,
    temperatures: Sequence[float],
    *,
    engine: str = "sglang",
    revision: int = -1,
    stop_ids: Collection[int] = (),
    acceptance_rule: str | None = None,
) -> InfoRecords:
    """All rows of one or more dumps.

    Args:
        paths: JSON files; dumps of one run may overlap.
        gamma: block size as the caller knows it; every dump must agree.
        temperatures: what the engine divided its logits by while it recorded; ones for identity.
        engine: name written into the rows, followed by the data-parallel rank.
        revision: calibration those temperatures are; 0 for identity, −1 unknown.
        stop_ids: tokens that end a text; blocks are cut at the first of them.
        acceptance_rule: rule that decided acceptance, where one rule did for all rows.

    Raises:
        FormatError: no dump of this kind, another γ, steps without requests or without
            confidences (``static`` mode), or entries that contradict themselves.
        CalibrationValueError: temperatures of another number than γ, or not above 0.
        OSError: a file does not exist or may not be read.
    """
    gamma = checked_gamma(gamma)
    scales = [float(value) for value in temperatures]
    if len(scales) != gamma or not all(0.0 < value < float("inf") for value in scales):
        raise CalibrationValueError("temperatures", scales, f"give {gamma}, each above 0")
    gathered = _Gathered(gamma)
    for path in map(Path, paths):
        for rank, dump in _dumps(path):
            _gather(dump, f"{engine}-{rank}", path, gathered)
    rows = sorted(gathered.rows, key=lambda row: (row.engine, row.step))
    if not rows:
        raise FormatError(", ".join(map(str, paths)), "no rows", _DUMP_REMEDY)
    stops = frozenset(stop_ids)
    kept = _before_the_end(rows, stops)
    if not kept:
        raise FormatError(", ".join(map(str, paths)), "every row is past a stop", "check stop ids")
    confidence = np.array([row.confidence for row in kept], dtype=np.float64)
    columns = _columns(kept, gamma, stops)
    columns["confidence_logits"] = logits_of_confidences(confidence, scales)
    columns["revision"] = [revision] * len(kept)
    if acceptance_rule is not None:
        columns["acceptance_rule"] = [acceptance_rule] * len(kept)
    notes = [NOTE_ROUNDED]
    notes += [NOTE_FORCED] if any(row.forced for row in kept) else []
    notes += [] if stops else [NOTE_NO_STOPS]
    return InfoRecords(
        AcceptanceRecords.from_columns(gamma, columns),
        gathered.duplicates,
        int(((confidence <= 0.0) | (confidence >= 1.0)).sum()),
        len(rows) - len(kept),
        tuple(notes),
    )


def _columns(rows: Sequence[_Row], gamma: int, stops: frozenset[int]) -> dict[str, Any]:
    verified = np.array([row.verified for row in rows], dtype=np.int64)
    accepted = np.array([row.accepted for row in rows], dtype=np.int64)
    flags = np.array([Flag.FORCED_ACCEPTANCE if row.forced else 0 for row in rows], dtype=np.uint8)
    columns: dict[str, Any] = {}
    if stops:
        tokens = np.array([row.tokens for row in rows], dtype=np.int64).reshape(len(rows), gamma)
        cut = cut_at_stop_token(tokens, verified, accepted, stops)
        columns["scheduled"] = cut.scheduled
        verified, accepted, flags = cut.verified, cut.accepted, flags | cut.flags
    return columns | {
        "verified": verified,
        "accepted": accepted,
        "flags": flags,
        "propensity": [1.0 if row.full else None for row in rows],
        "context_length": [row.context for row in rows],
        "engine": [row.engine for row in rows],
        "rank": [0] * len(rows),
        "step": [row.step for row in rows],
        "step_requests": [row.width for row in rows],
        "request": [row.request for row in rows],
    }


def _before_the_end(rows: Sequence[_Row], stops: frozenset[int]) -> list[_Row]:
    """Rows whose request had not ended: with overlapped scheduling a step runs beyond it."""
    ended: set[tuple[str, str]] = set()
    kept = []
    for row in rows:
        if (row.engine, row.request) in ended:
            continue
        kept.append(row)
        if not stops.isdisjoint((*row.tokens[: row.emitted], row.bonus)):
            ended.add((row.engine, row.request))
    return kept


def _dumps(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Data-parallel rank and record of every state in the file."""
    try:
        body = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise FormatError(path, f"no JSON: {error}", _REMEDY) from error
    states = body.get("internal_states") if isinstance(body, dict) else body
    if isinstance(body, dict) and "records" in body:
        states = [{"dspark_info_record": body}]
    if not isinstance(states, list):
        raise FormatError(path, "no dspark_info_record in it", _REMEDY)
    found = False
    for rank, state in enumerate(states):
        dump = state.get("dspark_info_record") if isinstance(state, dict) else None
        if isinstance(dump, dict):
            found = True
            yield rank, dump
    if not found:
        raise FormatError(path, "no dspark_info_record in it", _DUMP_REMEDY)


def _gather(dump: Mapping[str, Any], engine: str, path: Path, gathered: _Gathered) -> None:
    gamma = gathered.gamma
    if dump.get("gamma") != gamma:
        reason = f"its gamma is {dump.get('gamma')!r:.20}, asked for {gamma}"
        raise FormatError(path, reason, "state the gamma the engine runs")
    records = dump.get("records")
    if not isinstance(records, list):
        raise FormatError(path, "records is no list", _REMEDY)
    forced = bool(dump.get("simulate_acc_len"))
    for record in records:
        if not isinstance(record, dict):
            raise FormatError(path, "a record is no object", _REMEDY)
        mode = record.get("mode") or dump.get("mode")
        if mode not in _MODES:
            raise FormatError(path, f"mode {mode!r:.20} is unknown", f"known are {_MODES}")
        requests = record.get("reqs")
        if not isinstance(requests, list):
            raise FormatError(path, "a step without requests", _DUMP_REMEDY)
        for request in requests:
            try:
                gathered.add(_row(record, request, mode, engine, gamma, forced))
            except (KeyError, TypeError, ValueError) as error:
                where = f"step {record.get('forward_ct')!r:.20}"
                raise FormatError(path, f"{where}: {error}", _REMEDY) from error


def _row(
    record: Mapping[str, Any],
    request: Mapping[str, Any],
    mode: str,
    engine: str,
    gamma: int,
    forced: bool,
) -> _Row:
    confidence = request.get("confidence")
    if confidence is None:
        raise ValueError("no confidence: static mode has no head, use cap-accept or compact")
    confidence = [float(value) for value in confidence]
    tokens = [int(token) for token in request["draft_tokens"]]
    if len(confidence) != gamma or len(tokens) != gamma:
        raise ValueError(f"{len(confidence)} confidences and {len(tokens)} drafts, gamma {gamma}")
    if not all(0.0 <= value <= 1.0 for value in confidence):
        raise ValueError("a confidence lies outside [0, 1]")
    correct, planned = int(request["correct_drafts"]), int(request["verify_len"]) - 1
    if not 0 <= correct <= planned <= gamma:
        raise ValueError(f"{correct} drafts correct of {planned} verified, gamma {gamma}")
    if int(request["acc_len"]) != correct + 1:
        raise ValueError(f"{request['acc_len']} tokens kept, but {correct} drafts and a bonus")
    # Without a budget, in the first steps of a batch, everything is verified.
    full = mode == "cap-accept" or (record.get("budget") is None and planned == gamma)
    if mode == "cap-accept":
        verified, accepted = gamma, correct + int(request["cap_trim"])
    else:
        verified, accepted = planned, correct
    if accepted > verified:
        raise ValueError(f"{accepted} drafts accepted of {verified} verified")
    name = request.get("rid")
    if name is None:  # a slot is no name: the next request takes it over
        name = f"{record['forward_ct']}:{request['req_pool_index']}"
    return _Row(
        engine=engine,
        step=int(record["forward_ct"]),
        request=hashlib.blake2b(str(name).encode(), digest_size=8).hexdigest(),
        confidence=confidence,
        tokens=tokens,
        verified=verified,
        accepted=accepted,
        emitted=correct,
        bonus=int(request["bonus_token"]),
        context=int(request["prefix_len"]),
        width=len(record["reqs"]),
        full=full,
        forced=forced,
    )
