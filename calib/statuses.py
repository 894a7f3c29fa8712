"""Every status word that leaves this project, in one place.

Serving statuses say how good the numbers in an answer are, position statuses how one fit went,
refusals why something was not done. They are plain strings on the wire (``StrEnum``).
"""

from __future__ import annotations

from enum import StrEnum


class ServingStatus(StrEnum):
    """State of a calibration as an engine sees it."""

    IDENTITY = "identity"  # nothing fitted yet: all ones
    FITTED = "fitted"  # every position carries its own fit
    PARTIAL = "partial"  # some temperatures are the parent's, or 1 (beside slopes maybe all)
    STALE = "stale"  # past ``valid_until``; judged by the client
    UNCALIBRATED = "uncalibrated"  # the calibration key changed: a new baseline at identity
    INSUFFICIENT = "insufficient"  # too few rows to fit any position


class PositionStatus(StrEnum):
    """How the fit of one position went. Only ``OK`` is published; others fall back."""

    OK = "ok"
    AT_BOUND = "at_bound"  # the best value lies at the edge of the search
    INSUFFICIENT = "insufficient"  # fewer rows, accepts or rejects than the stated minimum
    TEMPERATURE_CANNOT_FIT = "temperature_cannot_fit"  # the optimum leaves a gap no T > 0 closes
    ONE_CLASS = "one_class"  # every label is the same


class Refusal(StrEnum):
    """Why a fit or a promotion was refused."""

    LABEL_INCONSISTENT = "label_inconsistent"  # mean c* and observed acceptance disagree
    LOOKS_LIKE_PROBABILITIES = "looks_like_probabilities"  # values in [0, 1] sent as logits
    NOT_BETTER = "not_better"  # no gain on rows after the fit
    WORSE_IN_SEGMENT = "worse_in_segment"
    UNBOUNDED_CHANGE = "unbounded_change"
    NO_ROWS = "no_rows"  # nothing usable to fit on
    GAMMA_MISMATCH = "gamma_mismatch"
    TRIMMED_ROWS = "trimmed_rows"  # a method that is wrong on trimmed rows, and nothing else to fit


class NullReason(StrEnum):
    """Why a metric is null: no NaN ever leaves the project."""

    NO_ROWS = "no_rows"
    ONE_CLASS = "one_class"
    TOO_FEW_ROWS = "too_few_rows"
