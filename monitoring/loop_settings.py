"""How the closed loop watches and acts: levels, window sizes, and when it may promote by itself.

Everything is counted in rows, because evidence is. Only ``refit_seconds`` and ``silence_seconds``
are times. The defaults are those of docs/decisions/0005 and 0007.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

from calib.errors import ConfigurationError
from monitoring.asked_exploration import asked_exploration
from monitoring.detectors.e_cusum import tempering
from monitoring.detectors.levels import ACT_THRESHOLD, ACT_TOLERANCE, WARN_THRESHOLD, Acting
from monitoring.recalibration_options import RecalibrationMethod

__all__ = ["LoopSettings"]

_COUNTS: Final = (
    "maximum_segments",
    "minimum_labels",
    "gate_rows",
    "watch_rows",
    "cool_down_rows",
    "minimum_rows",
    "early_fit_rows",
    "fit_position_rows",
    "refit_rows",
    "history_rows",
    "traffic_rows",
    "hours",
    "window_rows",
)


@dataclass(frozen=True, slots=True)
class LoopSettings:
    """Settings of the closed loop of one drafter.

    Attributes:
        automatic: whether decisions may change what is served; without it they are only told.
        act_threshold: A of the act level: the mean number of rows to a false alarm is at least A.
        warn_threshold: A of the warn level.
        tolerance: δ of the act level, at least two standard errors of the champion's fit.
        design_effect: d ≥ 1 that detectors, gate and watch divide log evidence by, because rows of
            a request share luck (:mod:`monitoring.detectors.e_cusum`). 1 where 64 requests or more
            run side by side; what the drift document measures where only a few do; 1.5 where whole
            fleets begin at once. A drift, or a gain, takes about d times as many rows to see.
        acting: ``likelihood_ratio``, or ``betting`` where fresh champions do not stay silent
            under the pointwise null.
        maximum_segments: S, streams beside the pooled one; segments seen later share the last.
        alpha: error of the gate over all challengers of one champion, and of the watch.
        minimum_labels: scored labels a gate needs at every position whose numbers change.
        gate_rows: scored rows after which a challenger is given up.
        watch_rows: scored rows for which a promotion is watched.
        cool_down_rows: rows after a rollback during which nothing is promoted or fitted.
        minimum_rows: usable rows a fit needs, and rows before the champion counts as judged.
        fit_method: of the loop's own fits.
        early_fit_method: of those on fewer than ``early_fit_rows`` rows: by conditional likelihood,
            pulled to what is served, for a search on a few thousand rows finds its noise.
        early_fit_rows: rows from which ``fit_method`` is used.
        fit_position_rows: rows a position needs before such a fit moves its number: fewer than a
            fit that a person asks for, because the gate looks at rows after it.
        fit_judged_share: share of the window that such a fit is judged on.
        refit_rows: rows after which an unasked refit is due.
        refit_seconds: least time between two unasked refits.
        history_rows: rows between two points of the history, before it is thinned.
        traffic_rows: rows of the reference, and of the current half, that explanations compare.
        hours: hours of sketches kept.
        window_rows: recent row keys kept to find duplicates.
        silence_seconds: longest time without a row while rows are expected.
        exploration_share: share of steps that engines are asked to verify in full.
        exploration_share_on_warning: least such share while a warning or an alarm of drift holds.

    Raises:
        ConfigurationError: an option outside its range.
    """

    automatic: bool = True
    act_threshold: float = ACT_THRESHOLD
    warn_threshold: float = WARN_THRESHOLD
    tolerance: float = ACT_TOLERANCE
    design_effect: float = 1.0
    acting: Acting = "likelihood_ratio"
    maximum_segments: int = 16
    alpha: float = 0.05
    minimum_labels: int = 30
    gate_rows: int = 100_000
    watch_rows: int = 50_000
    cool_down_rows: int = 4000
    minimum_rows: int = 1000
    fit_method: RecalibrationMethod = "auto"
    early_fit_method: RecalibrationMethod = "survival"
    early_fit_rows: int = 10_000
    fit_position_rows: int = 200
    fit_judged_share: float = 0.25
    refit_rows: int = 20_000
    refit_seconds: float = 3600.0
    history_rows: int = 1000
    traffic_rows: int = 5000
    hours: int = 24
    window_rows: int = 65_536
    silence_seconds: float = 300.0
    exploration_share: float = 0.0
    exploration_share_on_warning: float = 0.005

    def __post_init__(self) -> None:
        for name in _COUNTS:
            if getattr(self, name) < 1:
                raise ConfigurationError(name, getattr(self, name), "give a count above 0")
        self._check_shares()
        for name in ("act_threshold", "warn_threshold"):
            if not 100.0 <= getattr(self, name) < 1e15:
                raise ConfigurationError(name, getattr(self, name), "give rows from 100 to 1e15")
        for name in ("refit_seconds", "silence_seconds"):
            if not 0.0 <= getattr(self, name) < float("inf"):
                raise ConfigurationError(name, getattr(self, name), "give seconds, 0 or more")

    def _check_shares(self) -> None:
        if self.maximum_segments < 2:
            raise ConfigurationError("maximum_segments", self.maximum_segments, "give 2 or more")
        for name in ("alpha", "fit_judged_share"):
            if not 0.0 < getattr(self, name) < 1.0:
                raise ConfigurationError(name, getattr(self, name), "give a share in (0, 1)")
        tempering(self.design_effect)
        if not 0.0 <= self.tolerance < 0.2:
            raise ConfigurationError("tolerance", self.tolerance, "give a gap in [0, 0.2)")
        for name in ("exploration_share", "exploration_share_on_warning"):
            if not 0.0 <= getattr(self, name) <= 0.05:
                raise ConfigurationError(name, getattr(self, name), "give a share in [0, 0.05]")

    @property
    def pooled_threshold(self) -> float:
        """A of the pooled stream: with S segments at A each, both together keep 1/A a row."""
        return self.act_threshold * self.maximum_segments / (self.maximum_segments - 1)

    def exploration(self, *, warned: bool) -> float:
        """Share of steps that engines are asked to verify in full.

        Args:
            warned: whether a warning or an alarm of drift holds. It changes something only where
                the loop may act unasked.
        """
        raised = warned and self.automatic
        usual, on_warning = self.exploration_share, self.exploration_share_on_warning
        return asked_exploration(usual, on_warning, raised=raised)

    def raises_exploration(self, *, warned: bool) -> bool:
        """Whether that is more than without a warning."""
        return self.exploration(warned=warned) > self.exploration_share

    def method_for(self, rows: int) -> RecalibrationMethod:
        """Method of a fit on so many rows."""
        return self.fit_method if rows >= self.early_fit_rows else self.early_fit_method

    def to_dict(self) -> dict[str, float | int | bool | str]:
        """Plain JSON values by field name."""
        return {entry.name: getattr(self, entry.name) for entry in fields(self)}
