"""Many segments at once: which of them drifted, and what exactly is promised.

Each segment runs its own detector on its own rows. With S segments, evidence M_s, and A as for
one stream:

* Bonferroni flags M_s ≥ A·S;
* Benjamini–Hochberg (e-d-BH) sorts the evidence, finds the largest i with M_(i) ≥ A·S/i, and flags
  the i largest.

Guaranteed, for any dependence between and within segments, at every stopping time τ (Dandapanthula
and Ramdas, arXiv 2501.04130). Let T be the expected number of rows, up to τ, of the segments that
are still calibrated. Then, because E[M_s(τ)] is at most the expected rows of s,

* Bonferroni: expected number of calibrated segments flagged at τ ≤ T / (A·S);
* Benjamini–Hochberg: expected share of calibrated segments among those flagged at τ, E[FDP(τ)],
  is ≤ T / (A·S), that is the mean rows per segment divided by A. This is error over patience.

Also, each segment by itself: P(M_s ever reaches A·S within t of its rows) ≤ t / (A·S).

Not guaranteed. No false-discovery rate at the moment of an alarm: with a finite run length every
procedure's rate there is trivial in the worst case, because one may wait until something is
flagged. Nothing sharp about sets collected over time by Benjamini–Hochberg: a calibrated segment is
in their union with probability up to t / A, as if it were alone. Nothing for segments chosen after
seeing the evidence: S is the number of segments that could be flagged, fixed beforehand, silent
ones included.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from calib.errors import ConfigurationError

Procedure = Literal["benjamini_hochberg", "bonferroni"]


@dataclass(frozen=True, slots=True)
class SegmentsVerdict:
    """Segments flagged at one moment.

    Attributes:
        procedure: ``benjamini_hochberg`` or ``bonferroni``.
        flagged: segments, strongest evidence first.
        segments: S, the number the error is spread over.
        log_threshold: evidence that flagged the weakest of them; what the strongest segment would
            have needed where none is flagged.
        error_bound: T / (A·S) with T all rows seen so far: the bound on the error named in the
            module, at this moment, if every segment were calibrated; at most 1 says something.
    """

    procedure: Procedure
    flagged: tuple[str, ...]
    segments: int
    log_threshold: float
    error_bound: float

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "procedure": self.procedure,
            "flagged": list(self.flagged),
            "segments": self.segments,
            "log_threshold": self.log_threshold,
            "error_bound": self.error_bound,
        }


def flag_segments(
    log_evidence: Mapping[str, float],
    *,
    threshold: float,
    segments: int,
    rows: int,
    procedure: Procedure = "benjamini_hochberg",
) -> SegmentsVerdict:
    """The segments whose evidence stands out.

    Args:
        log_evidence: natural logarithm of each segment's evidence, as in a verdict of
            :mod:`monitoring.detectors.verdict`. Segments without rows may be missing.
        threshold: A.
        segments: S, fixed beforehand; at least as many as are given.
        rows: rows of all segments so far, for the bound.
        procedure: which of the two.

    Raises:
        ConfigurationError: fewer ``segments`` than given, a threshold below 1 or another word.

    Examples:
        >>> evidence = {"code": math.log(3e6), "math": math.log(6e6), "chat": 2.0}
        >>> flag_segments(evidence, threshold=1e6, segments=5, rows=10_000).flagged
        ('math', 'code')
        >>> flag_segments(
        ...     evidence, threshold=1e6, segments=5, rows=10_000, procedure="bonferroni"
        ... ).flagged
        ('math',)
    """
    if segments < max(len(log_evidence), 1):
        raise ConfigurationError("segments", segments, f"give at least {len(log_evidence)}")
    if not threshold >= 1.0:
        raise ConfigurationError("threshold", threshold, "give a number of rows above 1")
    if procedure not in ("benjamini_hochberg", "bonferroni"):
        raise ConfigurationError("procedure", procedure, "benjamini_hochberg or bonferroni")
    # Equal evidence is ordered by name, so that replicas agree.
    ranked = sorted(log_evidence, key=lambda name: (-log_evidence[name], name))
    base = math.log(threshold * segments)
    steps = [base - math.log(i) for i in range(1, len(ranked) + 1)]
    if procedure == "bonferroni":
        steps = [base] * len(ranked)
    passed = [i for i, name in enumerate(ranked) if log_evidence[name] >= steps[i]]
    count = passed[-1] + 1 if passed else 0
    return SegmentsVerdict(
        procedure,
        tuple(ranked[:count]),
        segments,
        steps[count - 1] if count else base,
        rows / (threshold * segments),
    )
