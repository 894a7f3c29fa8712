"""Champion beside challenger on the same rows: log-score differences and their e-values.

With p the champion's and q the challenger's prediction of a label y,

    d = y·ln(q/p) + (1 − y)·ln((1 − q)/(1 − p)),      B = max(|ln(q/p)|, |ln((1 − q)/(1 − p))|).

B is known before y, so L = 1 + λ·d / max(1, B) is positive for λ < 1 and has conditional mean at
most 1 while the challenger is not better. d itself is never clipped: clipping hides the rare large
loss of an over-confident challenger. With truth .98, champion .95 and challenger .9999 the
challenger is worse by .074 nats a label, and with d clipped at 1 it is promoted every time.

Three views are scored, for they can differ:

* conditional: y_k against c_k of the models, where k ≤ min(n + 1, ℓ). Its filtration goes along the
  prefix, so a row's factor is the product over its labels;
* survival and affine: [n ≥ k] against a_k where k ≤ ℓ, for each of the two published forms. Given
  z_{≤k} it is a fair bet for each k, but not given the labels before k, so labels of one row must
  not be multiplied. Two e-values are used: the mean over all γ positions (never over ℓ of them: ℓ
  knows the outcome), and each position by itself. A revision without slopes and intercepts serves
  (1/T, 0) to engines that ask for them.

The backward e-values swap the two models: evidence that the challenger is worse. With x the mean
over γ positions of one form's bounded d, plus m where k ≤ ℓ, 1 + λ·x/(1 + m) is an e-value against
"the challenger loses m or more at each verified label": evidence that this form is kept. Labels
that nobody verified spare nothing, so a trimmed log needs γ/ℓ times the rows.

Letters: N rows, γ (gamma) positions, M components, m = ``KEPT_MARGIN``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib.calibration import Calibration, Form
from calib.errors import RecordError
from calib.labels import checked_lengths
from calib.records import AcceptanceRecords
from monitoring.detectors.e_cusum import Floats, round_down

STAKES = (0.1, 0.25, 0.5, 0.9)
FORMS = ("temperatures", "slopes and intercepts")
"""What revisions publish, in the order of the components."""
OTHER_SEGMENT = "(other)"

KEPT_MARGIN = 0.002
"""Loss that counts as none, in nats a label: what a temperature off by a tenth costs (.0018 on
simulated heads), and that costs .05 % of throughput at most."""

_SMALLEST = 1e-6  # predictions are scored within [1e-6, 1 - 1e-6]: fp32 knows no closer to 1
_CONDITIONAL_WEIGHT = 0.5
# The other half goes to the forms alike, half of each spread over single positions.


@dataclass(frozen=True, eq=False)
class ScoredRows:
    """Predictions of both models and what happened, row by row.

    Attributes:
        champion_conditional: [N, γ] conditional confidences of the champion's model.
        challenger_conditional: [N, γ] of the challenger's model.
        verified: [N] ℓ.
        accepted: [N] n.
        ingested: [N] sequence number with which each row was stored; tells rows after the
            challenger's fit from rows it was fitted on.
        champion_survival: [N, γ] survival served by temperatures; None scores the conditional view
            alone.
        challenger_survival: [N, γ]; given exactly when the champion's is.
        segment: [N] segment of each row, by tags known before verification; None for one segment.
        champion_affine: [N, γ] survival served by slopes and intercepts; None where that is what
            temperatures serve.
        challenger_affine: [N, γ]; the same of the challenger.

    Raises:
        RecordError: shapes that do not fit or lengths that do not keep 0 ≤ n ≤ ℓ ≤ γ.
    """

    champion_conditional: NDArray[np.float32]
    challenger_conditional: NDArray[np.float32]
    verified: NDArray[Any]
    accepted: NDArray[Any]
    ingested: NDArray[np.int64]
    champion_survival: NDArray[np.float32] | None = None
    challenger_survival: NDArray[np.float32] | None = None
    segment: NDArray[np.object_] | None = None
    champion_affine: NDArray[np.float32] | None = None
    challenger_affine: NDArray[np.float32] | None = None

    def __post_init__(self) -> None:
        shape = np.shape(self.champion_conditional)
        if len(shape) != 2:
            raise RecordError("champion_conditional", shape, "give an array [rows, gamma]")
        rows, gamma = shape
        checked_lengths(self.verified, self.accepted, gamma)
        if (self.champion_survival is None) != (self.challenger_survival is None):
            raise RecordError("survival", "one model", "give the survival of both or of none")
        others = ("champion_affine", "challenger_affine")
        for name in ("challenger_conditional", "champion_survival", "challenger_survival", *others):
            array = getattr(self, name)
            if array is not None and np.shape(array) != shape:
                raise RecordError(name, np.shape(array), f"give an array of shape {shape}")
        for name in ("verified", "ingested", "segment"):
            array = getattr(self, name)
            if array is not None and np.shape(array) != (rows,):
                raise RecordError(name, np.shape(array), f"give {rows} rows")

    @classmethod
    def from_records(
        cls,
        records: AcceptanceRecords,
        champion: Calibration,
        challenger: Calibration,
        *,
        ingested: ArrayLike,  # [N] of the same records
        segment: NDArray[np.object_] | None = None,  # [N] of the same records
    ) -> Self:
        """The usable rows under two calibrations.

        Models are compared on conditionals (the affine form where there is one), served numbers
        on survival, in both forms.

        Raises:
            RecordError, CalibrationValueError: as :meth:`Calibration.conditional`.
        """
        usable = records.usable()
        rows = records.select(usable)
        logits = rows.confidence_logits
        return cls(
            _model(champion, logits),
            _model(challenger, logits),
            rows.verified,
            rows.accepted,
            np.asarray(ingested, dtype=np.int64)[usable],
            champion.survival(logits),
            challenger.survival(logits),
            None if segment is None else segment[usable],
            None if champion.slopes is None else champion.survival(logits, form="affine"),
            None if challenger.slopes is None else challenger.survival(logits, form="affine"),
        )

    def __len__(self) -> int:
        return len(self.verified)

    @property
    def gamma(self) -> int:
        """γ."""
        return int(self.champion_conditional.shape[1])

    def select(self, rows: NDArray[np.bool_]) -> Self:
        """The rows of a mask [N]."""
        arrays: dict[str, Any] = {name: getattr(self, name) for name in self.__dataclass_fields__}
        chosen: dict[str, Any] = {n: None if a is None else a[rows] for n, a in arrays.items()}
        return type(self)(**chosen)

    def swapped(self) -> Self:
        """The same rows with champion and challenger exchanged."""
        return type(self)(
            self.challenger_conditional,
            self.champion_conditional,
            self.verified,
            self.accepted,
            self.ingested,
            self.challenger_survival,
            self.champion_survival,
            self.segment,
            self.challenger_affine,
            self.champion_affine,
        )


@dataclass(frozen=True, eq=False, slots=True)
class RowScores:
    """Scores of N rows.

    Attributes:
        conditional_gain: [N] Σd over the observed labels, in nats; above 0 the challenger won.
        survival_gain: [N] Σd over k ≤ ℓ by temperatures, in nats; 0 without survival.
        affine_gain: [N] the same by slopes and intercepts.
        labels: [N, γ] where a conditional label was observed.
        changed: [γ] where the two conditional predictions differ in any row.
        forward: [N, M] log e-values against "the challenger is not better", rounded down.
        backward: [N, M] log e-values against "the challenger is not worse", rounded down.
        kept: [N, forms · stakes] log e-values against "this form loses ``KEPT_MARGIN`` or more",
            rounded down; [N, 0] without survival.
    """

    conditional_gain: Floats
    survival_gain: Floats
    affine_gain: Floats
    labels: NDArray[np.bool_]
    changed: NDArray[np.bool_]
    forward: Floats
    backward: Floats
    kept: Floats


def component_weights(gamma: int, *, survival: bool) -> Floats:
    """Prior weights [M] of the components, in the order of :class:`RowScores`; they sum to 1."""
    stakes = len(STAKES)
    if not survival:
        return np.full(stakes, 1.0 / stakes)
    each = (1.0 - _CONDITIONAL_WEIGHT) / len(FORMS) / 2.0
    shares = [_CONDITIONAL_WEIGHT] + ([each] + [each / gamma] * gamma) * len(FORMS)
    return np.repeat(np.array(shares) / stakes, stakes)


def score_rows(rows: ScoredRows, *, survival: bool = True, forward_only: bool = False) -> RowScores:
    """Gains and e-values of every row.

    Args:
        rows: under both models.
        survival: whether served survival is scored.
        forward_only: leave ``backward`` and ``kept`` empty, [N, 0]: logarithms are what it costs.

    Raises:
        RecordError: no served survival where it is scored.
    """
    index = np.arange(rows.gamma)
    labels = index < rows.accepted[:, None]
    reached = np.minimum(np.asarray(rows.accepted, dtype=np.int16) + 1, rows.verified)
    observed = index < reached[:, None]
    gains, bounds = _differences(rows.champion_conditional, rows.challenger_conditional, labels)
    gains = np.where(observed, gains, 0.0)
    bets = gains / np.maximum(1.0, bounds)  # [N, γ]
    empty = np.zeros((len(rows), 0))
    nothing = _Served(np.zeros(len(rows)), empty, empty, empty)
    temperatures, affine = nothing, nothing
    if survival:
        temperatures, affine = _forms(rows, labels, forward_only=forward_only)
    against = empty if forward_only else round_down(_log_product(-bets))
    changed = np.abs(rows.champion_conditional - rows.challenger_conditional) > _SMALLEST
    return RowScores(
        gains.sum(axis=1),
        temperatures.gain,
        affine.gain,
        observed,
        changed.any(axis=0),
        np.hstack([round_down(_log_product(bets)), temperatures.forward, affine.forward]),
        np.hstack([against, temperatures.backward, affine.backward]),
        np.hstack([temperatures.kept, affine.kept]),
    )


class _Served(NamedTuple):
    """Scores of survival by one form, as in :class:`RowScores`."""

    gain: Floats
    forward: Floats
    backward: Floats
    kept: Floats


def _forms(
    rows: ScoredRows, labels: NDArray[np.bool_], *, forward_only: bool
) -> tuple[_Served, _Served]:
    """Scores by temperatures, and by slopes and intercepts."""
    champion, challenger = rows.champion_survival, rows.challenger_survival
    if champion is None or challenger is None:
        raise RecordError("survival", None, "give served survival of both models")
    score = partial(_served, labels=labels, verified=rows.verified, forward_only=forward_only)
    found = score(champion, challenger)
    if rows.champion_affine is None and rows.challenger_affine is None:
        return found, found
    before = champion if rows.champion_affine is None else rows.champion_affine
    after = challenger if rows.challenger_affine is None else rows.challenger_affine
    return found, score(before, after)


def _served(
    champion: NDArray[np.float32],
    challenger: NDArray[np.float32],
    *,
    labels: NDArray[np.bool_],
    verified: NDArray[Any],
    forward_only: bool,
) -> _Served:
    wins, limits = _differences(champion, challenger, labels)
    wins = np.where(np.arange(labels.shape[1]) < verified[:, None], wins, 0.0)
    bets = wins / np.maximum(1.0, limits)
    forward = round_down(_log_survival(bets))
    if forward_only:
        empty = np.zeros((len(bets), 0))
        return _Served(wins.sum(axis=1), forward, empty, empty)
    others = (_log_survival(-bets), _log_kept(bets, verified))
    return _Served(wins.sum(axis=1), forward, *map(round_down, others))


def first_crossing(path: Floats, log_weights: Floats, threshold: float) -> int | None:
    """First row of log e-values [N, M] whose mixture reaches a logarithm; None without one."""
    # The mixture is at most its largest component, so few rows need the exponentials.
    near = np.flatnonzero(path.max(axis=1) >= threshold - 1e-9)
    evidence = np.logaddexp.reduce(log_weights + path[near], axis=1)
    found = near[evidence >= threshold]
    return int(found[0]) if found.size else None


def _differences(
    champion: NDArray[np.float32], challenger: NDArray[np.float32], labels: NDArray[np.bool_]
) -> tuple[Floats, Floats]:
    """d and its bound B, [N, γ]."""
    before = np.clip(champion.astype(np.float64), _SMALLEST, 1.0 - _SMALLEST)
    after = np.clip(challenger.astype(np.float64), _SMALLEST, 1.0 - _SMALLEST)
    if_accepted = np.log(after / before)
    if_rejected = np.log((1.0 - after) / (1.0 - before))
    bounds = np.maximum(np.abs(if_accepted), np.abs(if_rejected))
    return np.where(labels, if_accepted, if_rejected), bounds


def _log_product(bets: Floats) -> Floats:
    """[N, stakes] log product over the labels of each row."""
    # One logarithm a row: each factor is at least .1, and γ of them stay a normal double.
    return np.stack([np.log(np.prod(1.0 + stake * bets, axis=1)) for stake in STAKES], axis=1)


def _log_survival(bets: Floats) -> Floats:
    """[N, (1 + γ)·stakes] log e-values of the mean over positions, then of each position."""
    mean = bets.mean(axis=1)  # over γ, a constant
    streams = np.concatenate([mean[:, None], bets], axis=1)
    logs: Floats = streams[:, :, None] * np.array(STAKES)
    np.log1p(logs, out=logs)
    return logs.reshape(len(bets), -1)


def _log_kept(bets: Floats, verified: NDArray[Any]) -> Floats:
    """[N, stakes] log e-values against a loss of the margin or more at each verified label."""
    gamma = bets.shape[1]
    spared = (bets.sum(axis=1) + KEPT_MARGIN * verified) / (gamma * (1.0 + KEPT_MARGIN))
    logs: Floats = np.log1p(spared[:, None] * np.array(STAKES))
    return logs


def _model(calibration: Calibration, logits: NDArray[np.float32]) -> NDArray[np.float32]:
    form: Form = "temperatures" if calibration.slopes is None else "affine"
    return calibration.conditional(logits, form=form)
