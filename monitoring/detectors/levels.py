"""Two levels of drift: warn looks closely and pages nobody, act recalibrates.

====  ==========================  ======  ==============================================
      tolerance δ                 A       consequence
====  ==========================  ======  ==============================================
warn  max(0.003, 2 · std. error)  10^5    engines explore more, .5 % of steps at most
act   0.01                        10^6    one event; refit on rows from the change point
====  ==========================  ======  ==============================================

A is a time: rows a day × days, see :func:`threshold_for`. At 5,000 rows a second 10^6 rows are 200
seconds, so a busy fleet sets 10^8 or more; 10^6 → 10^10 costs about half again the delay.

These promises are for rows that are calibrated given every row before them. With 64 requests or
more side by side the shared luck of a request leaves them as they are; with few, a design effect
restores them at the price of delay (:mod:`monitoring.detectors.e_cusum`).

At the act level two detectors may run side by side. They share one budget: with weights .8 and .2
their thresholds are A/.8 and A/.2, so that together they still keep P(alarm in t rows) ≤ t/A.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal, Self

from calib.errors import ConfigurationError, FormatError
from monitoring.detectors.betting import BettingDetector, Stream
from monitoring.detectors.e_cusum import CusumState, Step
from monitoring.detectors.likelihood_ratio import LikelihoodRatioDetector, update_both
from monitoring.detectors.observations import Observations
from monitoring.detectors.residuals import (
    conditional_residual,
    slope_residual,
    survival_residual,
)
from monitoring.detectors.verdict import Verdict

WARN_THRESHOLD = 1e5
ACT_THRESHOLD = 1e6
ACT_TOLERANCE = 0.01
SMALLEST_WARN_TOLERANCE = 0.003

_CONDITIONAL_SHARE = 0.8  # of the act budget; the rest watches the survival residual

Acting = Literal["likelihood_ratio", "betting"]


class Level(StrEnum):
    """How serious a drift is."""

    WARN = "warn"
    ACT = "act"


def warn_tolerance(standard_error: float | None) -> float:
    """δ of the warn level: max(0.003, two standard errors of the champion's fit).

    Below its own estimation error no table is calibrated, and a detector would find just that.

    Raises:
        ConfigurationError: a negative standard error, or one that leaves no band.

    Examples:
        >>> warn_tolerance(None), warn_tolerance(0.004)
        (0.003, 0.008)
    """
    if standard_error is None:
        return SMALLEST_WARN_TOLERANCE
    if not 0.0 <= standard_error < 0.25:
        raise ConfigurationError("standard_error", standard_error, "give a value in [0, 0.25)")
    return max(SMALLEST_WARN_TOLERANCE, 2.0 * standard_error)


def threshold_for(rows_per_day: float, days: float, probability: float) -> float:
    """A for which P(false alarm within ``days``) ≤ ``probability``.

    Raises:
        ConfigurationError: values that are not above 0, or a probability above 1.

    Examples:
        >>> threshold_for(rows_per_day=5e6, days=1, probability=0.05)
        100000000.0
    """
    for name, value in (("rows_per_day", rows_per_day), ("days", days)):
        if not value > 0.0:
            raise ConfigurationError(name, value, "give a number above 0")
    if not 0.0 < probability <= 1.0:
        raise ConfigurationError("probability", probability, "give a probability in (0, 1]")
    return rows_per_day * days / probability


@dataclass(frozen=True, eq=False, slots=True)
class DriftState:
    """States of all detectors of one stream."""

    warn: CusumState
    act: CusumState
    survival: CusumState | None

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; :meth:`from_dict` restores the very same state."""
        survival = None if self.survival is None else self.survival.to_dict()
        return {"warn": self.warn.to_dict(), "act": self.act.to_dict(), "survival": survival}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The state that :meth:`to_dict` described.

        Raises:
            FormatError: missing or unknown fields.
        """
        try:
            survival = values["survival"]
            return cls(
                CusumState.from_dict(values["warn"]),
                CusumState.from_dict(values["act"]),
                None if survival is None else CusumState.from_dict(survival),
            )
        except KeyError as error:
            raise FormatError("drift state", f"no {error}", "write it with to_dict()") from error


@dataclass(frozen=True, slots=True)
class DriftVerdict:
    """Both levels after an update.

    Attributes:
        warn: of the warn level.
        act: of the act level's first detector, on conditional confidences.
        survival: of the act level's second detector, on R; None where it does not run.
    """

    warn: Verdict
    act: Verdict
    survival: Verdict | None

    @property
    def acting(self) -> tuple[Verdict, ...]:
        """Verdicts that may trigger recalibration."""
        return (self.act,) if self.survival is None else (self.act, self.survival)

    @property
    def level(self) -> Level | None:
        """The highest level with an alarm in force."""
        if any(verdict.alarm is not None for verdict in self.acting):
            return Level.ACT
        return Level.WARN if self.warn.alarm is not None else None

    @property
    def raised(self) -> tuple[Level, ...]:
        """Levels that this very update entered: each at most once per baseline."""
        found = [Level.WARN] if self.warn.raised else []
        # The second detector to alarm reports the event that the first one opened.
        older = any(verdict.alarm and not verdict.raised for verdict in self.acting)
        if not older and any(verdict.raised for verdict in self.acting):
            found.append(Level.ACT)
        return tuple(found)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        survival = None if self.survival is None else self.survival.to_dict()
        level = None if self.level is None else str(self.level)
        return {
            "level": level,
            "warn": self.warn.to_dict(),
            "act": self.act.to_dict(),
            "survival": survival,
        }


@dataclass(frozen=True, slots=True)
class DriftStep:
    """Result of one update: the state to store with the rows, and the verdict."""

    state: DriftState
    verdict: DriftVerdict


@dataclass(frozen=True)
class DriftLevels:
    """The detectors of one stream of observations.

    Attributes:
        warn: likelihood ratio with the tight band.
        act: likelihood ratio with the wide band, or bets on the conditional and slope residuals.
        survival: bets on R; None where the champion has no survival model.
    """

    warn: LikelihoodRatioDetector
    act: LikelihoodRatioDetector | BettingDetector
    survival: BettingDetector | None

    @classmethod
    def standard(
        cls,
        gamma: int,
        *,
        standard_error: float | None = None,
        threshold: float = ACT_THRESHOLD,
        warn_threshold: float = WARN_THRESHOLD,
        tolerance: float = ACT_TOLERANCE,
        survival: bool = True,
        acting: Acting = "likelihood_ratio",
        design_effect: float = 1.0,
        minimum_rows: int = 64,
    ) -> Self:
        """The levels of the table above.

        Args:
            gamma: γ.
            standard_error: of the champion's fit, as a probability.
            threshold: A of the act level as a whole.
            warn_threshold: A of the warn level.
            tolerance: δ of the act level: the effect floor below which nothing is acted on.
            survival: whether R is watched; needs observations with survival.
            acting: ``betting`` where fresh champions do not stay silent under the pointwise null
                of the likelihood ratio; that one then only warns.
            design_effect: of requests whose rows share luck; divides every log e-value.
            minimum_rows: rows before which nothing alarms.

        Raises:
            ConfigurationError: an option outside its range.
        """
        share = _CONDITIONAL_SHARE if survival else 1.0
        act: LikelihoodRatioDetector | BettingDetector
        if acting == "betting":
            bets = (
                Stream("conditional residual", tolerance, 0.6),
                Stream("slope residual", tolerance, 0.4),
            )
            act = BettingDetector(
                bets, threshold / share, minimum_rows, "act_betting", design_effect
            )
        else:
            act = LikelihoodRatioDetector(
                gamma, tolerance, threshold / share, minimum_rows, None, "act", design_effect
            )
        on_survival = (Stream("survival residual", tolerance, 1.0),)
        return cls(
            LikelihoodRatioDetector(
                gamma,
                warn_tolerance(standard_error),
                warn_threshold,
                minimum_rows,
                None,
                "warn",
                design_effect,
            ),
            act,
            BettingDetector(
                on_survival, threshold / (1.0 - share), minimum_rows, "act_survival", design_effect
            )
            if survival
            else None,
        )

    def start(self) -> DriftState:
        """The state of a fresh baseline: after registration and whenever the champion changes."""
        survival = None if self.survival is None else self.survival.start()
        return DriftState(self.warn.start(), self.act.start(), survival)

    def update(self, state: DriftState, observations: Observations) -> DriftStep:
        """The state and verdict after a batch.

        Raises:
            RecordError: observations without survival where R is watched.
            FormatError: a state of detectors with other settings.
        """
        warn, act = self._conditional(state, observations)
        if self.survival is None or state.survival is None:
            return DriftStep(
                DriftState(warn.state, act.state, state.survival),
                DriftVerdict(warn.verdict, act.verdict, None),
            )
        survival = self.survival.update(state.survival, [survival_residual(observations)])
        return DriftStep(
            DriftState(warn.state, act.state, survival.state),
            DriftVerdict(warn.verdict, act.verdict, survival.verdict),
        )

    def _conditional(self, state: DriftState, observations: Observations) -> tuple[Step, Step]:
        """Warn and act, side by side where both read the same label counts."""
        if isinstance(self.act, BettingDetector):
            bets = [conditional_residual(observations), slope_residual(observations)]
            return self.warn.update(state.warn, observations), self.act.update(state.act, bets)
        if state.warn.rows != state.act.rows:
            return (
                self.warn.update(state.warn, observations),
                self.act.update(state.act, observations),
            )
        return update_both(self.warn, self.act, state.warn, state.act, observations)
