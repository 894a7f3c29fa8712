"""Champion beside challenger on the same rows: log-score differences and their e-values.

With p the champion's and q the challenger's prediction of a label y,

    d = y·ln(q/p) + (1 − y)·ln((1 − q)/(1 − p)),      B = max(|ln(q/p)|, |ln((1 − q)/(1 − p))|).

B is known before y, so L = 1 + λ·d / max(1, B) is positive for λ < 1 and has conditional mean at
most 1 while the challenger is not better. d itself is never clipped: clipping hides the rare large
loss of an over-confident challenger. With truth .98, champion .95 and challenger .9999 the
challenger is worse by .074 nats a label, and with d clipped at 1 it is promoted every time.

Two views are scored, for they can differ:

* conditional: y_k against c_k where k ≤ min(n + 1, ℓ). Its filtration goes along the prefix, so a
  row's factor is the product over its labels;
* survival: [n ≥ k] against a_k where k ≤ ℓ. Given z_{≤k} it is a fair bet for each k, but not given
  the labels before k, so labels of one row must not be multiplied. Two e-values are used: the mean
  over all γ positions (never over ℓ of them: ℓ knows the outcome), and each position by itself.

The backward e-values swap the two models: evidence that the challenger is worse.

Letters: N rows, γ (gamma) positions, M components.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib.calibration import Calibration, Form
from calib.errors import RecordError
from calib.labels import checked_lengths
from calib.records import AcceptanceRecords
from monitoring.detectors.e_cusum import Floats, round_down

STAKES = (0.1, 0.25, 0.5, 0.9)
OTHER_SEGMENT = "(other)"

_SMALLEST = 1e-6  # predictions are scored within [1e-6, 1 - 1e-6]: fp32 knows no closer to 1
_CONDITIONAL_WEIGHT = 0.5
_SURVIVAL_MEAN_WEIGHT = 0.25  # the other quarter is spread over single positions


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
        champion_survival: [N, γ] served survival; None scores the conditional view alone.
        challenger_survival: [N, γ]; given exactly when the champion's is.
        segment: [N] segment of each row, by tags known before verification; None for one segment.

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

    def __post_init__(self) -> None:
        shape = np.shape(self.champion_conditional)
        if len(shape) != 2:
            raise RecordError("champion_conditional", shape, "give an array [rows, gamma]")
        rows, gamma = shape
        checked_lengths(self.verified, self.accepted, gamma)
        if (self.champion_survival is None) != (self.challenger_survival is None):
            raise RecordError("survival", "one model", "give the survival of both or of none")
        for name in ("challenger_conditional", "champion_survival", "challenger_survival"):
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
        served: Form = "temperatures",
    ) -> Self:
        """The usable rows under two calibrations.

        Models are compared on conditionals (the affine form where there is one), served numbers
        on survival.

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
            champion.survival(logits, form=served),
            challenger.survival(logits, form=served),
            None if segment is None else segment[usable],
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
        )


@dataclass(frozen=True, eq=False, slots=True)
class RowScores:
    """Scores of N rows.

    Attributes:
        conditional_gain: [N] Σd over the observed labels, in nats; above 0 the challenger won.
        survival_gain: [N] Σd over k ≤ ℓ, in nats; 0 without survival.
        labels: [N, γ] where a conditional label was observed.
        changed: [γ] where the two conditional predictions differ in any row.
        forward: [N, M] log e-values against "the challenger is not better", rounded down.
        backward: [N, M] log e-values against "the challenger is not worse", rounded down.
    """

    conditional_gain: Floats
    survival_gain: Floats
    labels: NDArray[np.bool_]
    changed: NDArray[np.bool_]
    forward: Floats
    backward: Floats


def component_weights(gamma: int, *, survival: bool) -> Floats:
    """Prior weights [M] of the components, in the order of :class:`RowScores`; they sum to 1."""
    stakes = len(STAKES)
    if not survival:
        return np.full(stakes, 1.0 / stakes)
    by_position = 1.0 - _CONDITIONAL_WEIGHT - _SURVIVAL_MEAN_WEIGHT
    shares = [_CONDITIONAL_WEIGHT, _SURVIVAL_MEAN_WEIGHT] + [by_position / gamma] * gamma
    return np.repeat(np.array(shares) / stakes, stakes)


def score_rows(rows: ScoredRows, *, survival: bool = True) -> RowScores:
    """Gains and e-values of every row; ``survival`` says whether that view is scored if given."""
    index = np.arange(rows.gamma)
    labels = index < rows.accepted[:, None]
    reached = np.minimum(np.asarray(rows.accepted, dtype=np.int16) + 1, rows.verified)
    observed = index < reached[:, None]
    gains, bounds = _differences(rows.champion_conditional, rows.challenger_conditional, labels)
    gains = np.where(observed, gains, 0.0)
    bets = gains / np.maximum(1.0, bounds)  # [N, γ]
    forward = [_log_product(bets)]
    backward = [_log_product(-bets)]
    survival_gain = np.zeros(len(rows))
    champion, challenger = rows.champion_survival, rows.challenger_survival
    if survival and champion is not None and challenger is not None:
        wins, limits = _differences(champion, challenger, labels)
        wins = np.where(index < rows.verified[:, None], wins, 0.0)
        survival_gain = wins.sum(axis=1)
        fair = wins / np.maximum(1.0, limits)
        forward.append(_log_survival(fair))
        backward.append(_log_survival(-fair))
    changed = np.abs(rows.champion_conditional - rows.challenger_conditional) > _SMALLEST
    return RowScores(
        gains.sum(axis=1),
        survival_gain,
        observed,
        changed.any(axis=0),
        round_down(np.concatenate(forward, axis=1)),
        round_down(np.concatenate(backward, axis=1)),
    )


def _differences(
    champion: NDArray[np.float32], challenger: NDArray[np.float32], labels: NDArray[np.bool_]
) -> tuple[Floats, Floats]:
    """d and its bound B, [N, γ]."""
    before = np.clip(champion.astype(np.float64), _SMALLEST, 1.0 - _SMALLEST)
    after = np.clip(challenger.astype(np.float64), _SMALLEST, 1.0 - _SMALLEST)
    if_accepted = np.log(after) - np.log(before)
    if_rejected = np.log1p(-after) - np.log1p(-before)
    bounds = np.maximum(np.abs(if_accepted), np.abs(if_rejected))
    return np.where(labels, if_accepted, if_rejected), bounds


def _log_product(bets: Floats) -> Floats:
    """[N, stakes] log product over the labels of each row."""
    return np.stack([np.log1p(stake * bets).sum(axis=1) for stake in STAKES], axis=1)


def _log_survival(bets: Floats) -> Floats:
    """[N, (1 + γ)·stakes] log e-values of the mean over positions, then of each position."""
    mean = bets.mean(axis=1)  # over γ, a constant
    streams = np.concatenate([mean[:, None], bets], axis=1)
    logs = np.log1p(streams[:, :, None] * np.array(STAKES))
    flat: Floats = logs.reshape(len(bets), -1)
    return flat


def _model(calibration: Calibration, logits: NDArray[np.float32]) -> NDArray[np.float32]:
    form: Form = "temperatures" if calibration.slopes is None else "affine"
    return calibration.conditional(logits, form=form)
