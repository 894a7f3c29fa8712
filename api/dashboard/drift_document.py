"""The drift document of a drafter, as the closed loop writes it and pages read it.

Every member has a default: a document of another release shows what it has.
"""

from __future__ import annotations

import math
from typing import Literal

import msgspec

from calib.segment_tags import segment_name

__all__ = [
    "ChangePoint",
    "DriftDocument",
    "DriftStatus",
    "DriftTest",
    "Explanations",
    "HistoryPoint",
    "Level",
    "Moved",
    "Quality",
    "Trial",
    "Watch",
    "read_drift",
]

DriftStatus = Literal["collecting", "calibrated", "warning", "drift", "held"]


class Level(msgspec.Struct, frozen=True):
    """A level of evidence at which something happens."""

    threshold: float | None = None
    false_alarms_per_million_rows: float | None = None

    @property
    def log10(self) -> float | None:
        """The threshold's decimal logarithm."""
        return math.log10(self.threshold) if self.threshold and self.threshold > 0 else None


class ChangePoint(msgspec.Struct, frozen=True):
    """Since when a test's evidence grows."""

    row: int | None = None
    since: str | None = None


class DriftTest(msgspec.Struct, frozen=True):
    """One test: what it looks at and how much evidence it has."""

    scope: str = "pooled"
    position: int | None = None
    segment: dict[str, str | int | float | bool | None] | None = None
    detector: str = ""
    quantity: str = "conditional"
    evidence_log10: float = 0.0
    warn_evidence_log10: float | None = None
    threshold_log10: dict[str, float | None] = {}
    status: str = "calm"
    rows: int = 0
    tolerance: float | None = None
    mean_residual: float | None = None
    change_point: ChangePoint | None = None

    @property
    def segment_name(self) -> str | None:
        """Tags of its segment, such as ``domain=chat``."""
        return None if self.segment is None else segment_name(self.segment)

    @property
    def share(self) -> float:
        """Evidence as a share of what the act level asks for; 1 is an alarm."""
        act = self.threshold_log10.get("act")
        return self.evidence_log10 / act if act else 0.0


class HistoryPoint(msgspec.Struct, frozen=True):
    """What was known at one time."""

    at: str
    rows: int = 0
    evidence_log10_max: float | None = None
    ece: float | None = None
    ece_low: float | None = None
    ece_high: float | None = None


class Quality(msgspec.Struct, frozen=True):
    """A monitor of the data themselves; while it holds, nothing is recalibrated."""

    monitor: str = ""
    status: str = "calm"
    value: float | None = None
    limit: float | None = None
    message: str = ""
    engine: str | None = None


class Trial(msgspec.Struct, frozen=True):
    """A challenger beside the champion, on the same rows."""

    revision: int
    status: str = "collecting"
    wealth_log10: float = 0.0
    threshold_log10: float | None = None
    rows: int = 0
    reason: str | None = None


class Watch(msgspec.Struct, frozen=True):
    """A new champion that is rolled back when the one before proves better."""

    revision: int
    previous: int | None = None
    evidence_log10: float = 0.0
    threshold_log10: float | None = None
    rows: int = 0
    until: str | None = None


class Decision(msgspec.Struct, frozen=True):
    """What the loop decided last."""

    kind: str = ""
    at: str = ""
    reason: str = ""


class Moved(msgspec.Struct, frozen=True):
    """A mean then and now."""

    reference: float | None = None
    current: float | None = None


class Explanations(msgspec.Struct, frozen=True):
    """What changed in the traffic: shown beside an alarm, never a reason for one."""

    psi: list[dict[str, float | None]] = []
    acceptance: Moved = Moved()
    verified_length: Moved = Moved()
    mix: dict[str, Moved] = {}

    @property
    def told(self) -> list[tuple[str, str, str]]:
        """Name, then, now: of everything known on both sides, largest shifts of the mix first."""
        share = [("acceptance", self.acceptance, 1.0), ("verified length", self.verified_length, 0)]
        found = []
        for name, moved, percent in [*share, *((n, m, 1.0) for n, m in self._shifts())]:
            if moved.reference is not None and moved.current is not None:
                form = "{:.1%}" if percent else "{:.2f}"
                found.append((name, form.format(moved.reference), form.format(moved.current)))
        return found

    def _shifts(self) -> list[tuple[str, Moved]]:
        def size(item: tuple[str, Moved]) -> float:
            return -abs((item[1].current or 0.0) - (item[1].reference or 0.0))

        return sorted(self.mix.items(), key=size)


class DriftDocument(msgspec.Struct, frozen=True):
    """The document; see the module's description."""

    status: DriftStatus = "collecting"
    revision: int = 0
    updated_at: str | None = None
    rows: int = 0
    rows_total: int = 0
    levels: dict[str, Level] = {}
    tests: list[DriftTest] = []
    history: list[HistoryPoint] = []
    data_quality: list[Quality] = []
    explanations: Explanations = Explanations()
    challenger: Trial | None = None
    watch: Watch | None = None
    cool_down_until: str | None = None
    last_decision: Decision | None = None

    @property
    def worst(self) -> DriftTest | None:
        """The test that is nearest to its act level, or beyond it most."""
        return max(self.tests, key=lambda test: test.share, default=None)

    @property
    def leading(self) -> DriftTest | None:
        """The test to tell first: of all traffic where that is loud, else the worst."""
        loud = "alarm" if self.status == "drift" else "warning"
        pooled = [t for t in self.tests if t.scope == "pooled" and t.status == loud]
        return max(pooled, key=lambda test: test.share, default=self.worst)

    @property
    def loudest_position(self) -> int | None:
        """Position with the most evidence, where positions are tested and one has any."""
        tests = [test for test in self.tests if test.position is not None and not test.segment]
        loudest = max(tests, key=lambda test: test.share, default=None)
        return loudest.position if loudest is not None and loudest.share > 0.0 else None

    @property
    def evidence(self) -> list[tuple[int, float]]:
        """Rows and strongest evidence (log10) under the present champion, in order.

        Rows start anew with every publication; evidence of the champion before does not count.
        """
        found: list[tuple[int, float]] = []
        for point in self.history:
            if point.evidence_log10_max is None:
                continue
            if found and point.rows < found[-1][0]:
                found.clear()
            found.append((point.rows, point.evidence_log10_max))
        # A new champion has fewer rows than the last point of the one before.
        return found if not found or found[-1][0] <= self.rows else []

    @property
    def holds(self) -> list[Quality]:
        """Data-quality monitors that hold recalibration now."""
        return [quality for quality in self.data_quality if quality.status == "held"]

    def threshold_log10(self, level: Literal["warn", "act"]) -> float | None:
        """Evidence at which this level is reached, as a decimal logarithm."""
        found = self.levels.get(level)
        return None if found is None else found.log10


_decoder = msgspec.json.Decoder(DriftDocument)


def read_drift(document: bytes) -> DriftDocument | None:
    """The document, or None where this release cannot read it."""
    try:
        return _decoder.decode(document)
    except msgspec.DecodeError:  # also where it is no JSON
        return None
