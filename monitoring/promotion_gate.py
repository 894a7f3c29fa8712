"""May the challenger replace the champion? A test on rows that neither model was fitted on.

The evidence for a challenger is the wealth of bets on its log-score gains, on conditional labels
(half of the weight) and on survival by each published form, temperatures and slopes with intercepts
(a quarter each; :mod:`monitoring.promotion_gate_scores`). While the challenger is better in none of
the three views its expectation is at most 1 at any time, so

    P(promotion of a challenger that is not better) ≤ α_j,

however often and whenever one looks. "Not better" means at each label, given the past: traffic that
favours the challenger for a while can carry it through, which segments and the watch after the
promotion are for. The j-th challenger against one champion gets
α_j = α · 6 / (π² j²), which sums to α = 0.05: a day of hourly challengers is as safe as one.

What wins in one view may lose in a form that other engines apply. So each form has evidence of its
own against "it loses ``KEPT_MARGIN`` or more a label", and all of it has to reach 1/α_j. A
promotion passes every test, so that no α is split:

    P(promotion of a challenger that loses the margin or more in any published form) ≤ α_j.

Promotion needs all of: evidence ≥ 1/α_j that it is better, and for each form that it is kept; a
gain of every view above 0 on average; enough scored labels at every position whose numbers
change; no segment that loses. Bounds on the change itself and throughput regret are checked by
:mod:`monitoring.promotion_gate_guards` before a challenger gets here or by its caller.

A segment refuses when the evidence that it loses reaches S/α (S segments at most, the rest
together), and, once it has enough rows, holds promotion until an upper confidence bound of its
loss lies within the margin.

All of this is for rows that are judged given every row before them. Rows of one request share luck,
so evidence is raised to the power 1/d, with d the design effect, as detectors do
(:mod:`monitoring.detectors.e_cusum`, *Dependence*, says what that promises); bounds of a mean widen
by the root of d. States hold evidence as it is, and d divides its logarithm where it is read.

A refusal is a result: it carries a word of :class:`calib.statuses.Refusal` and its reason.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import Any, Self

import numpy as np

from calib.errors import ConfigurationError, FormatError
from calib.statuses import Refusal
from monitoring.detectors.e_cusum import Floats, tempering
from monitoring.promotion_gate_scores import (
    FORMS,
    OTHER_SEGMENT,
    STAKES,
    RowScores,
    ScoredRows,
    component_weights,
    first_crossing,
    score_rows,
)

MAXIMUM_REGRET_INCREASE = 5e-4  # of Θ, as a share

_ONE_SIDED_95 = 1.6448536269514722


class GateStatus(StrEnum):
    """Where a challenger stands."""

    WAITING = "waiting"
    PROMOTE = "promote"
    REFUSED = "refused"


def challenger_alpha(alpha: float, ordinal: int) -> float:
    """α_j = α · 6 / (π² j²), the error allowed to the j-th challenger against one champion.

    Raises:
        ConfigurationError: α outside (0, 1), or an ordinal below 1.

    Examples:
        >>> round(1 / challenger_alpha(0.05, 1), 1), round(1 / challenger_alpha(0.05, 24))
        (32.9, 18950)
    """
    if not 0.0 < alpha < 1.0:
        raise ConfigurationError("alpha", alpha, "give a probability in (0, 1)")
    if ordinal < 1:
        raise ConfigurationError("ordinal", ordinal, "challengers are counted from 1")
    return alpha * 6.0 / (math.pi * ordinal) ** 2


@dataclass(frozen=True, slots=True)
class SegmentScore:
    """Scores of one segment.

    Attributes:
        rows: scored rows.
        gain: Σ over rows of the conditional gain, in nats.
        squared_gain: Σ of its square.
        log_worse: by component, log evidence that the challenger loses here, before tempering.
    """

    rows: int
    gain: float
    squared_gain: float
    log_worse: tuple[float, ...]

    @property
    def mean_gain(self) -> float:
        """Nats per row; 0 without rows."""
        return self.gain / self.rows if self.rows else 0.0

    def loss_bound(self, design_effect: float = 1.0) -> float:
        """Upper 95 % bound of the mean loss per row, by the normal approximation.

        Args:
            design_effect: variance of a request's sum of gains over that of independent rows.
        """
        if self.rows < 2:
            return math.inf
        variance = max(self.squared_gain / self.rows - self.mean_gain**2, 0.0)
        return _ONE_SIDED_95 * math.sqrt(design_effect * variance / self.rows) - self.mean_gain


@dataclass(frozen=True, slots=True)
class GateState:
    """Everything a gate remembers; plain numbers. Evidence stands here before tempering.

    Attributes:
        rows: rows scored.
        skipped: rows that came no later than the challenger's fit.
        conditional_gain: Σ of the conditional gain over rows, in nats.
        survival_gain: Σ of the gain of survival by temperatures, in nats.
        affine_gain: Σ of the gain of survival by slopes and intercepts, in nats.
        labels: by position, scored conditional labels.
        changed: by position, whether the two models ever differed.
        log_better: by component, log evidence that the challenger is better.
        log_worse: by component, log evidence that it is worse.
        log_kept: by form and stake, log evidence that the form does not lose the margin.
        crossed_row: scored row after which the evidence first sufficed, from 0; or None.
        segments: scores by segment.
    """

    rows: int
    skipped: int
    conditional_gain: float
    survival_gain: float
    affine_gain: float
    labels: tuple[int, ...]
    changed: tuple[bool, ...]
    log_better: tuple[float, ...]
    log_worse: tuple[float, ...]
    log_kept: tuple[float, ...]
    crossed_row: int | None = None
    segments: Mapping[str, SegmentScore] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; :meth:`from_dict` restores the very same state."""
        values = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        names = SegmentScore.__slots__
        values["segments"] = {
            name: {slot: getattr(score, slot) for slot in names}
            for name, score in self.segments.items()
        }
        return {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The state that :meth:`to_dict` described.

        Raises:
            FormatError: missing or unknown fields.
        """
        try:
            plain: dict[str, Any] = {
                k: tuple(v) if isinstance(v, list) else v for k, v in values.items()
            }
            plain["segments"] = {
                name: SegmentScore(**{**score, "log_worse": tuple(score["log_worse"])})
                for name, score in values["segments"].items()
            }
            return cls(**plain)
        except (KeyError, TypeError, AttributeError) as error:
            raise FormatError("gate state", f"{error}", "write it with to_dict()") from error


@dataclass(frozen=True, slots=True)
class GateDecision:
    """What the gate says after an update.

    Attributes:
        status: see :class:`GateStatus`.
        refusal: why not; None unless refused.
        reason: numbers in words.
        rows: rows scored.
        log_evidence: natural logarithm of the evidence for the challenger.
        log_threshold: ln(1/α_j).
        conditional_gain: mean gain in nats per row; None without rows.
        survival_gain: mean gain by temperatures in nats per row; None without rows.
        affine_gain: mean gain by slopes and intercepts in nats per row; None without rows.
    """

    status: GateStatus
    refusal: Refusal | None
    reason: str
    rows: int
    log_evidence: float
    log_threshold: float
    conditional_gain: float | None
    survival_gain: float | None
    affine_gain: float | None

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        values = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        refusal = None if self.refusal is None else str(self.refusal)
        return values | {"status": str(self.status), "refusal": refusal}


@dataclass(frozen=True, slots=True)
class GateStep:
    """State to store with the rows, and the decision."""

    state: GateState
    decision: GateDecision


@dataclass(frozen=True)
class PromotionGate:
    """The gate of one challenger.

    Attributes:
        gamma: γ.
        fitted_through: sequence number of the last row ingested when the challenger was fitted;
            only later rows are scored.
        ordinal: how many challengers met this champion, this one included.
        alpha: error over all challengers of one champion.
        survival: whether served survival is scored too.
        minimum_labels: scored labels needed at every position whose numbers change.
        maximum_rows: scored rows after which the challenger is given up.
        maximum_segments: S; segments seen later are scored together.
        segment_rows: rows from which a segment's loss bound is binding.
        segment_margin: largest tolerated upper bound of a segment's loss, in nats per row. .01 is
            what a temperature off by about a quarter costs.
        design_effect: d ≥ 1 that log evidence is divided by.

    Raises:
        ConfigurationError: an option outside its range.
    """

    gamma: int
    fitted_through: int
    ordinal: int = 1
    alpha: float = 0.05
    survival: bool = True
    minimum_labels: int = 30
    maximum_rows: int = 100_000
    maximum_segments: int = 32
    segment_rows: int = 1000
    segment_margin: float = 0.01
    design_effect: float = 1.0

    def __post_init__(self) -> None:
        challenger_alpha(self.alpha, self.ordinal)
        tempering(self.design_effect)
        for name in ("gamma", "minimum_labels", "maximum_rows", "maximum_segments", "segment_rows"):
            if getattr(self, name) < 1:
                raise ConfigurationError(name, getattr(self, name), "give a count above 0")

    @property
    def log_threshold(self) -> float:
        """Evidence that promotes: ln(1/α_j)."""
        return -math.log(challenger_alpha(self.alpha, self.ordinal))

    @property
    def _log_weights(self) -> Floats:
        weights: Floats = np.log(component_weights(self.gamma, survival=self.survival))
        return weights

    def start(self) -> GateState:
        """The state of a challenger that no row has met."""
        zeros = (0.0,) * len(self._log_weights)
        none, kept = (0,) * self.gamma, (0.0,) * (len(FORMS) * len(STAKES) * self.survival)
        changed = (False,) * self.gamma
        return GateState(0, 0, 0.0, 0.0, 0.0, none, changed, zeros, zeros, kept)

    def update(self, state: GateState, rows: ScoredRows) -> GateStep:
        """State and decision after more rows.

        Rows beyond ``maximum_rows`` are scored too if they arrive in one batch with earlier ones.

        Raises:
            ConfigurationError: rows of another γ, or without survival where it is scored.
        """
        if rows.gamma != self.gamma:
            raise ConfigurationError("gamma", rows.gamma, f"this gate has {self.gamma}")
        if self.survival and rows.champion_survival is None:
            raise ConfigurationError("survival", None, "give served survival of both models")
        fresh = rows.ingested > self.fitted_through
        state = replace(state, skipped=state.skipped + int(np.count_nonzero(~fresh)))
        chosen = rows.select(fresh)
        if len(chosen):
            scores = score_rows(chosen, survival=self.survival)
            state = self._scored(state, scores)
            state = replace(state, segments=self._segments(state, chosen, scores))
        return GateStep(state, self.decide(state))

    def decide(self, state: GateState, *, regret_increase: float | None = None) -> GateDecision:
        """What a state amounts to.

        Args:
            state: of this gate.
            regret_increase: replayed throughput regret of the challenger minus the champion's,
                as a share of Θ, where it was measured.
        """
        refusal, reason = self._refusal(state, regret_increase)
        if refusal is not None:
            return self._decision(GateStatus.REFUSED, refusal, reason, state)
        waiting = self._waiting(state)
        if waiting is None:
            words = f"better by {state.conditional_gain / state.rows:.4f} nats a row"
            return self._decision(GateStatus.PROMOTE, None, words, state)
        if state.rows >= self.maximum_rows:
            word, why = waiting
            return self._decision(GateStatus.REFUSED, word, f"given up: {why}", state)
        return self._decision(GateStatus.WAITING, None, waiting[1], state)

    def log_evidence(self, state: GateState) -> float:
        """Natural logarithm of the evidence for the challenger."""
        return self._mixture(state.log_better)

    def _mixture(self, logs: Sequence[float], part: slice = slice(None)) -> float:
        """Tempered log evidence of some components, weighted among themselves."""
        weights = self._log_weights[part]
        weights = weights - np.logaddexp.reduce(weights)
        tempered = np.array(logs)[part] / self.design_effect
        return float(np.logaddexp.reduce(weights + tempered))

    def _scored(self, state: GateState, scores: RowScores) -> GateState:
        crossed, better = state.crossed_row, np.array(state.log_better)
        if crossed is None:
            path = np.cumsum(np.vstack([better, scores.forward]), axis=0)[1:]
            row = first_crossing(path / self.design_effect, self._log_weights, self.log_threshold)
            crossed = None if row is None else state.rows + row
        labels = scores.labels.sum(axis=0)
        worse = np.array(state.log_worse) + scores.backward.sum(axis=0)
        return replace(
            state,
            rows=state.rows + len(scores.forward),
            conditional_gain=state.conditional_gain + float(scores.conditional_gain.sum()),
            survival_gain=state.survival_gain + float(scores.survival_gain.sum()),
            affine_gain=state.affine_gain + float(scores.affine_gain.sum()),
            labels=tuple(a + int(b) for a, b in zip(state.labels, labels, strict=True)),
            changed=tuple(a or bool(b) for a, b in zip(state.changed, scores.changed, strict=True)),
            log_better=tuple((better + scores.forward.sum(axis=0)).tolist()),
            log_worse=tuple(worse.tolist()),
            log_kept=tuple((np.array(state.log_kept) + scores.kept.sum(axis=0)).tolist()),
            crossed_row=crossed,
        )

    def _segments(
        self, state: GateState, rows: ScoredRows, scores: RowScores
    ) -> dict[str, SegmentScore]:
        known = dict(state.segments)
        if rows.segment is None:
            return known
        names = rows.segment.tolist()
        numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
        codes = np.fromiter(map(numbers.__getitem__, names), np.intp, len(names))
        for name in sorted(numbers):
            mask = np.flatnonzero(codes == numbers[name])
            full = len(known) >= self.maximum_segments - 1
            key = OTHER_SEGMENT if full and name not in known else name
            gain = scores.conditional_gain[mask]
            before = known.get(key, SegmentScore(0, 0.0, 0.0, (0.0,) * len(state.log_worse)))
            worse = np.array(before.log_worse) + scores.backward[mask].sum(axis=0)
            known[key] = SegmentScore(
                before.rows + len(gain),
                before.gain + float(gain.sum()),
                before.squared_gain + float((gain**2).sum()),
                tuple(worse.tolist()),
            )
        return known

    def _refusal(
        self, state: GateState, regret_increase: float | None
    ) -> tuple[Refusal | None, str]:
        """What no further row can mend, by the evidence so far."""
        if regret_increase is not None and regret_increase > MAXIMUM_REGRET_INCREASE:
            return Refusal.NOT_BETTER, f"throughput regret rises by {regret_increase:.3%}"
        limit = math.log(self.maximum_segments / self.alpha)
        for name, score in sorted(state.segments.items()):
            if self._mixture(score.log_worse) >= limit:
                return Refusal.WORSE_IN_SEGMENT, f"segment {name} loses {-score.mean_gain:.4f} nats"
        for view, part in self._views().items():
            if self._mixture(state.log_worse, part) >= -math.log(self.alpha):
                return Refusal.NOT_BETTER, f"worse on {view} after {state.rows} rows"
        return None, ""

    def _waiting(self, state: GateState) -> tuple[Refusal, str] | None:
        """What still keeps the challenger from promotion; None when nothing does."""
        if state.rows == 0:
            return Refusal.NO_ROWS, "no row came after the fit"
        if state.crossed_row is None:
            share = max(self.log_evidence(state), 0.0) / self.log_threshold
            return Refusal.NOT_BETTER, f"evidence at {share:.0%} of the threshold (log)"
        lost = self._form_at_risk(state)
        if lost is not None:
            return Refusal.NOT_BETTER, lost
        for k, (labels, changed) in enumerate(zip(state.labels, state.changed, strict=True), 1):
            if changed and labels < self.minimum_labels:
                return Refusal.NOT_BETTER, f"position {k} changes on {labels} scored labels"
        for name, score in sorted(state.segments.items()):
            bound = score.loss_bound(self.design_effect)
            if score.rows >= self.segment_rows and bound > self.segment_margin:
                words = f"segment {name} may lose {bound:.4f} nats a row"
                return Refusal.WORSE_IN_SEGMENT, words
        return None

    def _form_at_risk(self, state: GateState) -> str | None:
        """The view that loses on average, or the form that has not shown that it does not."""
        gains = (state.conditional_gain, state.survival_gain, state.affine_gain)
        for view, gain in zip(self._views(), gains, strict=False):
            if gain < 0.0:
                return f"one view loses: {gain:.3f} nats on {view}"
        for form, evidence in self._kept(state).items():
            if evidence < self.log_threshold:
                share = max(evidence, 0.0) / self.log_threshold
                return f"{form}: {share:.0%} of the evidence that they lose nothing (log)"
        return None

    def _kept(self, state: GateState) -> dict[str, float]:
        """Log evidence of each form that it does not lose the margin."""
        logs = np.array(state.log_kept).reshape(-1, len(STAKES)) / self.design_effect
        found = np.logaddexp.reduce(logs, axis=1) - math.log(len(STAKES))
        return dict(zip(FORMS, found.tolist(), strict=False))

    def _views(self) -> dict[str, slice]:
        views = {"conditional labels": slice(0, len(STAKES))}
        if self.survival:
            size = len(STAKES) * (1 + self.gamma)
            for number, form in enumerate(FORMS):
                start = len(STAKES) + number * size
                views[f"survival by {form}"] = slice(start, start + size)
        return views

    def _decision(
        self, status: GateStatus, refusal: Refusal | None, reason: str, state: GateState
    ) -> GateDecision:
        served = state.rows > 0 and self.survival
        return GateDecision(
            status,
            refusal,
            reason,
            state.rows,
            self.log_evidence(state),
            self.log_threshold,
            state.conditional_gain / state.rows if state.rows else None,
            state.survival_gain / state.rows if served else None,
            state.affine_gain / state.rows if served else None,
        )
