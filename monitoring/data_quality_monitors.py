"""Signs that telemetry cannot be trusted. Each holds recalibration instead of feeding it.

Drift says that the world changed; these say that the measurement did. A fit on such rows would
move every temperature to the wrong place, so while any verdict here is an alert, the loop neither
fits nor promotes. Every monitor is a pure function of its state, which is plain numbers, and of a
batch; time comes in as an argument.

=================== ================================================ ==========================
fault               alert                                            cleared
=================== ================================================ ==========================
invalid_share       rejected rows among those sent                   share at half the limit
silence             no row for too long while rows are expected      by the next row
acceptance_collapse position 1 is almost never accepted              share at twice the limit
confidence_collapse logits of a whole window do not vary             by a window that varies
always_accepted     a run of accepts too long to be chance           by the next reject
label_inconsistent  soft labels contradict acceptance                by the next check
gamma_mismatch      rows of another block size                       by a batch that fits
key_mismatch        rows of another calibration key                  by a batch that fits
=================== ================================================ ==========================
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, NamedTuple, Self

import numpy as np

from calib.errors import ConfigurationError, FormatError
from calib.label_consistency import LabelConsistency
from calib.records import AcceptanceRecords
from monitoring.detectors.hysteresis import Hysteresis

_ALWAYS_ACCEPTED_RATE = 0.99  # no head is taken at its word above this
_FP32_NOISE = 1e-6  # logits closer than this are one value


class QualityFault(StrEnum):
    """What is wrong with the telemetry."""

    INVALID_SHARE = "invalid_share"
    SILENCE = "silence"
    ACCEPTANCE_COLLAPSE = "acceptance_collapse"
    CONFIDENCE_COLLAPSE = "confidence_collapse"
    ALWAYS_ACCEPTED = "always_accepted"
    LABEL_INCONSISTENT = "label_inconsistent"
    GAMMA_MISMATCH = "gamma_mismatch"
    KEY_MISMATCH = "key_mismatch"


class QualityStatus(StrEnum):
    """State of one monitor."""

    INSUFFICIENT = "insufficient"  # too little data to say anything
    FINE = "fine"
    ALERT = "alert"


@dataclass(frozen=True, slots=True)
class QualityVerdict:
    """One monitor's view.

    Attributes:
        fault: what it looks for.
        status: see :class:`QualityStatus`.
        reason: the numbers in words.
        value: what was measured, in the unit of its limit; None where nothing was.
        limit: from where on it is an alert.
        engine: the one that sent every row of the update, where that update alone is at fault; None
            for several, and for what is counted over many updates.
        raised: whether this very update turned the alert on.
    """

    fault: QualityFault
    status: QualityStatus
    reason: str
    value: float | None = None
    limit: float | None = None
    engine: str | None = None
    raised: bool = False

    @property
    def holds_recalibration(self) -> bool:
        """Whether nothing may be fitted or promoted while this verdict stands."""
        return self.status is QualityStatus.ALERT

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        words = {"fault": str(self.fault), "status": str(self.status)}
        return asdict(self) | words | {"holds_recalibration": self.holds_recalibration}


def recalibration_held_by(verdicts: Iterable[QualityVerdict]) -> tuple[QualityFault, ...]:
    """The faults that hold recalibration; empty when it may go on."""
    return tuple(verdict.fault for verdict in verdicts if verdict.holds_recalibration)


@dataclass(frozen=True, slots=True)
class QualityState:
    """What the monitors of one drafter remember between batches; plain numbers.

    Attributes:
        started: seconds since 1970 when watching began.
        last_row: seconds since 1970 of the latest row; None before the first.
        sent: rows of the open window, the rejected ones included.
        rejected: rejected rows of the open window.
        checked: usable rows of the open window that verified position 1.
        accepted: those of them that accepted it.
        lowest_logit: by position over the open window; None for none.
        highest_logit: by position over the open window.
        accept_run: by position, evidence of the present run of accepts, in nats.
        alerts: faults whose alert is on.
    """

    started: float
    last_row: float | None = None
    sent: int = 0
    rejected: int = 0
    checked: int = 0
    accepted: int = 0
    lowest_logit: tuple[float, ...] | None = None
    highest_logit: tuple[float, ...] | None = None
    accept_run: tuple[float, ...] = ()
    alerts: tuple[QualityFault, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; :meth:`from_dict` restores the very same state."""
        return asdict(self) | {"alerts": [str(fault) for fault in self.alerts]}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The state that :meth:`to_dict` described.

        Raises:
            FormatError: missing or unknown fields.
        """
        try:
            lists = ("lowest_logit", "highest_logit", "accept_run")
            tuples = {name: values[name] and tuple(values[name]) for name in lists}
            tuples["accept_run"] = tuple(values["accept_run"])
            alerts = tuple(QualityFault(word) for word in values["alerts"])
            return cls(**{**values, **tuples, "alerts": alerts})
        except (KeyError, TypeError, ValueError) as error:
            raise FormatError("quality state", f"{error}", "write it with to_dict()") from error


@dataclass(frozen=True, slots=True)
class QualityStep:
    """State to store and verdicts of one update."""

    state: QualityState
    verdicts: tuple[QualityVerdict, ...]


@dataclass(frozen=True)
class DataQualityMonitors:
    """The monitors of one drafter.

    Attributes:
        gamma: γ of the drafter.
        key_digest: digest of its calibration key; None where none is registered.
        window_rows: rows sent after which shares are judged and the window begins anew.
        invalid_share: limit of rejected rows among those sent.
        silence_seconds: longest time without a row.
        collapsed_acceptance: limit of the acceptance rate at position 1.
        minimum_rows: rows a window needs before a rate is judged.
        chance: probability per row that a sound engine starts a run called ``always_accepted``.

    Raises:
        ConfigurationError: an option outside its range.
    """

    gamma: int
    key_digest: str | None = None
    window_rows: int = 2000
    invalid_share: float = 0.01
    silence_seconds: float = 300.0
    collapsed_acceptance: float = 0.02
    minimum_rows: int = 100
    chance: float = 1e-6

    def __post_init__(self) -> None:
        for name in ("invalid_share", "collapsed_acceptance", "chance"):
            if not 0.0 < getattr(self, name) < 0.5:
                raise ConfigurationError(name, getattr(self, name), "give a share in (0, 0.5)")
        for name in ("window_rows", "silence_seconds", "minimum_rows"):
            if not getattr(self, name) > 0:
                raise ConfigurationError(name, getattr(self, name), "give a number above 0")

    def start(self, now: float) -> QualityState:
        """The state of a drafter that is watched from ``now`` (seconds since 1970) on."""
        return QualityState(started=now, accept_run=(0.0,) * self.gamma)

    def update(
        self,
        state: QualityState,
        records: AcceptanceRecords | None,
        *,
        now: float,
        rejected: int = 0,
        expected: bool = True,
        conditional: np.ndarray[Any, np.dtype[np.float32]] | None = None,  # [N, γ]
        key_digest: str | None = None,
        consistency: LabelConsistency | None = None,
    ) -> QualityStep:
        """State and verdicts, one per fault, after a batch or after a tick without one.

        Args:
            state: as :meth:`start` or an earlier step gave it.
            records: the valid rows of the batch, or None where nothing valid came.
            now: seconds since 1970.
            rejected: rows of the batch that validation refused.
            expected: whether rows are due at all; false while engines have speculation off.
            conditional: champion's conditional confidences of the same rows.
            key_digest: of the key that the batch names.
            consistency: result of the latest check of soft labels.
        """
        found = {
            QualityFault.GAMMA_MISMATCH: self._gamma(records),
            QualityFault.KEY_MISMATCH: self._key(key_digest),
            QualityFault.LABEL_INCONSISTENT: _consistency(consistency),
        }
        rows = records
        if any(finding.alert is True for finding in found.values()) or rows is None:
            rows = AcceptanceRecords.empty(self.gamma)  # foreign rows leave the counts alone
        # Rows that validation refused are a sign of life too, and counted on their own.
        alive = records is not None and len(records) > 0
        values = _folded(state, rows, rejected, now if alive or rejected else state.last_row)
        runs = _accept_runs(state.accept_run, rows, conditional)
        values["accept_run"] = runs
        found[QualityFault.SILENCE] = self._silence(values, now, expected=expected)
        found[QualityFault.ALWAYS_ACCEPTED] = self._always_accepted(runs)
        found |= self._window(values, state.alerts)
        foreign = any(found[fault].alert for fault in _OF_ONE_UPDATE)
        sender = _sender(records) if foreign else None
        verdicts = tuple(
            _verdict(fault, found[fault], state.alerts, sender) for fault in QualityFault
        )
        alerts = tuple(v.fault for v in verdicts if v.status is QualityStatus.ALERT)
        if values["sent"] >= self.window_rows:
            values |= _EMPTY_WINDOW
        return QualityStep(QualityState(**values, alerts=alerts), verdicts)

    def _gamma(self, records: AcceptanceRecords | None) -> _Finding:
        if records is None:
            return _Finding(None, "no rows")
        wrong = records.gamma != self.gamma
        words = f"rows have γ {records.gamma}, expected {self.gamma}"
        return _Finding(wrong, words, records.gamma, self.gamma)

    def _key(self, digest: str | None) -> _Finding:
        if digest is None or self.key_digest is None:
            return _Finding(None, "no key was named")
        words = f"rows are of key {digest}, expected {self.key_digest}"
        return _Finding(digest != self.key_digest, words)

    def _silence(self, values: Mapping[str, Any], now: float, *, expected: bool) -> _Finding:
        if not expected:
            return _Finding(False, "no rows are expected", None, self.silence_seconds)
        last = values["last_row"]
        quiet = now - (values["started"] if last is None else last)
        limit = self.silence_seconds
        return _Finding(quiet > limit, f"no row for {quiet:.0f} s", quiet, limit)

    def _always_accepted(self, runs: tuple[float, ...]) -> _Finding:
        longest = max(runs)
        k = runs.index(longest) + 1
        reason = f"position {k}: a run of accepts of chance e^-{longest:.1f} at most"
        limit = -math.log(self.chance)
        return _Finding(longest >= limit, reason, longest, limit)

    def _window(
        self, values: Mapping[str, Any], alerts: tuple[QualityFault, ...]
    ) -> dict[QualityFault, _Finding]:
        """Findings on the shares of the open window."""
        sent, checked = values["sent"], values["checked"]
        invalid = values["rejected"] / sent if sent else math.nan
        refused = 1.0 - values["accepted"] / checked if checked else math.nan
        limit = Hysteresis(self.invalid_share, self.invalid_share / 2.0)
        floor = self.collapsed_acceptance
        collapse = Hysteresis(1.0 - floor, 1.0 - 2.0 * floor)
        share = f"{values['rejected']} of {sent} rows were rejected"
        rate = f"{values['accepted']} of {checked} rows accepted position 1"
        # A window without any valid row is an alert at once, however short.
        enough = sent >= self.minimum_rows or (sent > 0 and values["rejected"] == sent)
        seen = checked >= self.minimum_rows
        was_invalid = QualityFault.INVALID_SHARE in alerts
        was_collapsed = QualityFault.ACCEPTANCE_COLLAPSE in alerts
        return {
            QualityFault.INVALID_SHARE: _Finding(
                limit.update(was_invalid, invalid) if enough else None,
                share,
                invalid if sent else None,
                self.invalid_share,
            ),
            QualityFault.ACCEPTANCE_COLLAPSE: _Finding(
                collapse.update(was_collapsed, refused) if seen else None,
                rate,
                1.0 - refused if checked else None,
                floor,
            ),
            QualityFault.CONFIDENCE_COLLAPSE: self._constant(values)
            if seen
            else _Finding(None, rate),
        }

    def _constant(self, values: Mapping[str, Any]) -> _Finding:
        low, high = values["lowest_logit"], values["highest_logit"]
        spread = [above - below for below, above in zip(low, high, strict=True)]
        smallest = min(spread)
        k = spread.index(smallest) + 1
        words = f"logits of position {k} span {smallest:.3g}"
        return _Finding(smallest <= _FP32_NOISE, words, smallest, _FP32_NOISE)


# Windows and runs may hold rows of other engines than the one that sends last.
_OF_ONE_UPDATE = (QualityFault.GAMMA_MISMATCH, QualityFault.KEY_MISMATCH)


class _Finding(NamedTuple):
    alert: bool | None  # None: too little to say; the alert stays as it was
    reason: str
    value: float | None = None
    limit: float | None = None


_EMPTY_WINDOW: dict[str, Any] = {
    "sent": 0,
    "rejected": 0,
    "checked": 0,
    "accepted": 0,
    "lowest_logit": None,
    "highest_logit": None,
}


def _consistency(consistency: LabelConsistency | None) -> _Finding:
    if consistency is None or not consistency.rows:
        return _Finding(None, "no row carries both a soft label and an observed acceptance")
    evidence = max(position.log_evidence for position in consistency.positions)
    limit = consistency.log_threshold
    return _Finding(consistency.inconsistent, consistency.reason, evidence, limit)


def _verdict(
    fault: QualityFault, finding: _Finding, alerts: tuple[QualityFault, ...], sender: str | None
) -> QualityVerdict:
    was_on = fault in alerts
    status = QualityStatus.ALERT if finding.alert else QualityStatus.FINE
    if finding.alert is None:
        status = QualityStatus.ALERT if was_on else QualityStatus.INSUFFICIENT
    return QualityVerdict(
        fault,
        status,
        finding.reason,
        finding.value,
        finding.limit,
        sender if finding.alert and fault in _OF_ONE_UPDATE else None,
        raised=bool(finding.alert) and not was_on,
    )


def _sender(records: AcceptanceRecords | None) -> str | None:
    """The engine of all rows; None where there are several, or it is not named."""
    if records is None or records.engine is None or not len(records):
        return None
    names = set(records.engine.tolist())
    return None if len(names) > 1 else names.pop()


def _folded(
    state: QualityState, records: AcceptanceRecords, rejected: int, last_row: float | None
) -> dict[str, Any]:
    """Fields of the state with the batch added; ``alerts`` and ``accept_run`` come later."""
    usable = records.usable()
    checked = usable & (records.verified >= 1)
    low, high = state.lowest_logit, state.highest_logit
    if usable.any():
        logits = records.confidence_logits
        logits = logits if usable.all() else logits[usable]
        floor, ceiling = logits.min(axis=0), logits.max(axis=0)
        low = tuple((floor if low is None else np.minimum(low, floor)).tolist())
        high = tuple((ceiling if high is None else np.maximum(high, ceiling)).tolist())
    return {
        "started": state.started,
        "last_row": last_row,
        "sent": state.sent + len(records) + rejected,
        "rejected": state.rejected + rejected,
        "checked": state.checked + int(np.count_nonzero(checked)),
        "accepted": state.accepted + int(np.count_nonzero(records.accepted[checked] >= 1)),
        "lowest_logit": low,
        "highest_logit": high,
    }


def _accept_runs(
    runs: tuple[float, ...],
    records: AcceptanceRecords,
    conditional: np.ndarray[Any, np.dtype[np.float32]] | None,
) -> tuple[float, ...]:
    """−Σ ln max(c, .99) over the accepts since the last reject, by position.

    With the true rate at most max(c, .99) a run beyond −ln p begins at a row with chance p.
    """
    usable = records.usable()
    reached = np.minimum(records.accepted.astype(np.int16) + 1, records.verified)
    reached[~usable] = 0
    known = conditional is not None and len(conditional) == len(records)
    result = []
    for k, before in enumerate(runs):
        observed, accepted = reached > k, records.accepted > k
        rejected = np.flatnonzero(observed & ~accepted)
        first = int(rejected[-1]) + 1 if rejected.size else 0
        accepts = np.flatnonzero(observed[first:]) + first  # none of them was rejected
        rates = np.full(len(accepts), _ALWAYS_ACCEPTED_RATE)
        if conditional is not None and known:
            rates = np.clip(conditional[accepts, k], _ALWAYS_ACCEPTED_RATE, 1.0).astype(np.float64)
        since = float(-np.log(rates).sum())
        result.append((0.0 if rejected.size else before) + since)
    return tuple(result)
