"""Survival that knows what the next logit reveals (g-hazards).

The scheduler spends on survival, and a product of perfect conditionals is no perfect survival:
c_i was made before token x_i was sampled, and z_{i+1} has seen it. So

    S_k = [∏_{i<k} g_i(z_i, z_{i+1})] · c_k(z_k)

with g_i a logistic hazard of y_i that has the next logit as one more feature. It is fitted on rows
with an observed y_i (l >= i, n >= i - 1), weight 1, convex, right under trimming, and needs no
exploration. Without its extra feature g_i is c_i and S the plain product; a pair keeps that simpler
form unless the next logit raises the likelihood of rows it was not fitted on.

S may rise along a block. Ranking on a rising score is not lossless, because later tokens would
decide whether earlier ones are verified: rank by :meth:`SurvivalModel.ranking`, forecast with S.

Letters: N rows, g = gamma draft positions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit

from calib.clusters import cluster_codes
from calib.conditional_likelihood import ConditionalLikelihood
from calib.errors import InvalidInputError, RecordError
from calib.logistic_newton import LogisticFits, fit_logistic, log_loss
from calib.logit_sketch import LabelSource
from calib.pair_sketch import PairCells, PairSketch, pair_cells
from calib.records import AcceptanceRecords
from calib.temperature_estimator import checked_logits, checked_positive

__all__ = ["HAZARD_RIDGE", "Hazard", "SurvivalModel", "fit_survival_model", "pair_folds"]

Floats = NDArray[np.float64]

# Pull of a hazard to the conditional fit without the next logit, in rows: weights of the next logit
# within 0.2 of 0, the size that leaks of up to .18 partial correlation give.
HAZARD_RIDGE = 20.0
_AKAIKE = 1.0  # nats by which one needless parameter raises the fitted likelihood, on average


@dataclass(frozen=True, slots=True)
class Hazard:
    """Hazard of one position: g_i = σ(intercept + slope·z_i + following·z_{i+1}).

    Attributes:
        position: i, from 1.
        intercept: in log-odds.
        slope: per unit of z_i.
        following: per unit of z_{i+1}; 0 where the next logit is not used.
        rows: weighted rows it was fitted on.
        fitted_following: the fitted weight of z_{i+1}, used or not; None without rows.
        following_error: its standard error; None where unknown.
        gain: log loss that the next logit saves on rows outside the fit, in nats over all rows;
            from one sketch, what the fit saves less what a needless feature would.
    """

    position: int
    intercept: float
    slope: float
    following: float
    rows: float
    fitted_following: float | None = None
    following_error: float | None = None
    gain: float = 0.0

    @property
    def uses_next(self) -> bool:
        """Whether the hazard differs from the conditional confidence."""
        return self.following != 0.0


@dataclass(frozen=True, slots=True)
class SurvivalModel:
    """Conditional confidences c_k and hazards g_i; gives S without any label.

    It has ``conditional`` and ``survival``, so :func:`calib.evaluation.evaluate` can judge it.

    Attributes:
        slopes: [g] of c_k = σ(s_k z_k + b_k).
        intercepts: [g] of the same.
        hazards: g_1 … g_{γ-1}.
        rows: [g] effective rows behind each c_k.
    """

    slopes: tuple[float, ...]
    intercepts: tuple[float, ...]
    hazards: tuple[Hazard, ...]
    rows: tuple[int, ...]

    @property
    def gamma(self) -> int:
        """Draft positions."""
        return len(self.slopes)

    @property
    def is_product(self) -> bool:
        """Whether no hazard uses the next logit: S is then the plain product."""
        return not any(hazard.uses_next for hazard in self.hazards)

    def conditional(
        self,
        confidence_logits: ArrayLike,  # [N, g] raw, finite
    ) -> NDArray[np.float32]:
        """Conditional confidences c, fp32 [N, g].

        Raises:
            RecordError: logits of another width or not finite.
        """
        logits = self._checked(confidence_logits)
        odds = logits * np.array(self.slopes) + np.array(self.intercepts)
        return np.asarray(expit(odds), dtype=np.float32)

    def hazard(
        self,
        confidence_logits: ArrayLike,  # [N, g] raw, finite
    ) -> NDArray[np.float32]:
        """Hazards g_i(z_i, z_{i+1}), fp32 [N, g - 1].

        Raises:
            RecordError: logits of another width or not finite.
        """
        logits = self._checked(confidence_logits)
        intercept, slope, following = (
            np.array([getattr(hazard, name) for hazard in self.hazards])
            for name in ("intercept", "slope", "following")
        )
        odds = intercept + slope * logits[:, :-1] + following * logits[:, 1:]
        return np.asarray(expit(odds), dtype=np.float32)

    def survival(
        self,
        confidence_logits: ArrayLike,  # [N, g] raw, finite
        conditional: NDArray[np.float32] | None = None,  # [N, g] of the same rows
    ) -> NDArray[np.float32]:
        """S_k, fp32 [N, g] in [0, 1], multiplied from the left; may rise along k.

        Column k - 1 reads z_1 … z_k only.

        Args:
            confidence_logits: of the rows.
            conditional: their :meth:`conditional`, where it is known already.

        Raises:
            RecordError: logits of another width or not finite.
        """
        c = self.conditional(confidence_logits) if conditional is None else conditional
        plain = all(
            (hazard.intercept, hazard.slope, hazard.following) == (intercept, slope, 0.0)
            for hazard, intercept, slope in zip(
                self.hazards, self.intercepts[:-1], self.slopes[:-1], strict=True
            )
        )
        factors = c[:, :-1] if plain else self.hazard(confidence_logits)
        survival = c.copy()
        survival[:, 1:] *= np.cumprod(factors, axis=1, dtype=np.float32)
        return survival

    def ranking(
        self,
        confidence_logits: ArrayLike,  # [N, g] raw, finite
    ) -> NDArray[np.float32]:
        """m_k = min over i <= k of S_i, fp32 [N, g]: what a scheduler may rank by.

        Raises:
            RecordError: logits of another width or not finite.
        """
        return np.minimum.accumulate(self.survival(confidence_logits), axis=1)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "slopes": list(self.slopes),
            "intercepts": list(self.intercepts),
            "hazards": [asdict(hazard) for hazard in self.hazards],
            "rows": list(self.rows),
        }

    def _checked(self, confidence_logits: ArrayLike) -> NDArray[np.float64]:
        logits = checked_logits(confidence_logits).astype(np.float64)
        if logits.shape[1] != self.gamma:
            raise RecordError("confidence_logits", logits.shape, f"gamma is {self.gamma}")
        return logits


def fit_survival_model(
    conditional: ConditionalLikelihood,
    pairs: Sequence[PairSketch],
    *,
    weights: Sequence[float] | None = None,
    folds: Sequence[int] | None = None,
    ridge: float = HAZARD_RIDGE,
) -> SurvivalModel:
    """Fit the hazards on sketches, around a fitted conditional model.

    Args:
        conditional: fitted; its ``slopes_`` and ``intercepts_`` are c (1/T and 0 of a temperature
            fit).
        pairs: sketches of disjoint rows.
        weights: forgetting weight of each sketch; 1 when None.
        folds: fold of each sketch; each its own when None. With two folds or more, each is
            predicted from the others to judge whether the next logit helps; with one, Akaike's
            estimate of that stands in.
        ridge: pull of each hazard to c, in rows; 0 is the plain likelihood.

    Raises:
        NotFittedError: before ``conditional.fit``.
        InvalidInputError: no sketches, of another γ or scale, or another number of folds.
        ConfigurationError: a negative ridge or weight.
    """
    pull = checked_positive("ridge", ridge)
    conditional._require_fit()
    gamma = conditional.n_features_in_
    parts = list(pairs)
    if any(part.gamma != gamma for part in parts):
        raise InvalidInputError(
            "pairs", [p.gamma for p in parts], f"give sketches of gamma {gamma}"
        )
    factors = [1.0] * len(parts) if weights is None else list(weights)
    numbers = list(range(len(parts)) if folds is None else folds)
    if len(numbers) != len(parts):
        raise InvalidInputError("folds", len(numbers), f"give {len(parts)}, one per sketch")
    whole = pair_cells(parts, factors)
    known = sorted(set(numbers)) if len(set(numbers)) > 1 else []

    def cells_of(chosen: Callable[[int], bool]) -> tuple[PairCells, ...]:
        each = [place for place, number in enumerate(numbers) if chosen(number)]
        return pair_cells([parts[place] for place in each], [factors[place] for place in each])

    apart = [_Stack.of(cells_of(fold.__eq__)) for fold in known]
    rest = [_Stack.of(cells_of(fold.__ne__)) for fold in known]
    center = np.stack([conditional.intercepts_, conditional.slopes_, np.zeros(gamma)], axis=1)[:-1]
    hazards = _fit_hazards(_Stack.of(whole), rest, apart, center, pull) if gamma > 1 else ()
    return SurvivalModel(
        slopes=tuple(conditional.slopes_.tolist()),
        intercepts=tuple(conditional.intercepts_.tolist()),
        hazards=hazards,
        rows=tuple(fit.rows for fit in conditional.position_fits_),
    )


def pair_folds(
    records: AcceptanceRecords, *, labels: LabelSource = "hard", folds: int = 2
) -> list[PairSketch]:
    """Sketches of disjoint halves of the usable rows, whole prompts (or requests) each.

    Rows of one prompt share luck, so they must not sit on both sides of a held-out comparison.
    """
    column = records.prompt if records.prompt is not None else records.request
    codes = np.arange(len(records)) if column is None else cluster_codes(column)
    return [
        PairSketch.from_records(records.select(codes % folds == fold), labels=labels)
        for fold in range(folds)
    ]


@dataclass(frozen=True, eq=False, slots=True)
class _Stack:
    """Cells of G = g - 1 pairs: features [G, 3, M] (1, z_i, z_{i+1} in units), Σw, Σwy [G, M]."""

    features: Floats
    weight: Floats
    positive: Floats
    unit: float

    @classmethod
    def of(cls, pairs: Sequence[PairCells]) -> _Stack:
        """Cells of all pairs, with weight 0 where a pair has fewer."""
        most = max((len(cells.weight) for cells in pairs), default=0)
        features = np.zeros((len(pairs), 3, most))
        weight, positive = np.zeros((2, len(pairs), most))
        for index, cells in enumerate(pairs):
            held = slice(len(cells.weight))
            features[index, 0, held] = 1.0
            features[index, 1, held] = cells.first / cells.unit
            features[index, 2, held] = cells.second / cells.unit
            weight[index, held] = cells.weight
            positive[index, held] = cells.positive
        return cls(features, weight, positive, pairs[0].unit if pairs else 1.0)

    def fit(self, center: Floats, ridge: float, *, following: bool) -> LogisticFits:
        """Hazards around c, [G, 3] of intercept, slope and 0; with the next logit or without."""
        size = 3 if following else 2
        units = np.array([1.0, self.unit, self.unit])[:size]
        return fit_logistic(
            self.features[:, :size],
            self.weight,
            self.positive,
            ridge=np.tile(ridge / units**2, (len(center), 1)),
            center=center[:, :size] * units,
        )

    def loss(self, fit: LogisticFits) -> Floats:
        """[G] log loss of fitted hazards on these cells, in nats."""
        size = fit.coefficients.shape[1]
        odds = (fit.coefficients[:, None, :] @ self.features[:, :size])[:, 0]
        return log_loss(odds, self.weight, self.positive)


def _fit_hazards(
    cells: _Stack,
    training: Sequence[_Stack],
    held_out: Sequence[_Stack],
    center: Floats,
    ridge: float,
) -> tuple[Hazard, ...]:
    fit = cells.fit(center, ridge, following=True)
    if training:
        gains = np.zeros(len(center))
        for rest, part in zip(training, held_out, strict=True):
            gains += part.loss(rest.fit(center, ridge, following=False))
            gains -= part.loss(rest.fit(center, ridge, following=True))
    else:
        without = cells.fit(center, ridge, following=False)
        gains = cells.loss(without) - cells.loss(fit) - _AKAIKE
    numbers = fit.coefficients / [1.0, cells.unit, cells.unit]
    rows = cells.weight.sum(axis=1).tolist()
    found = []
    for index, (intercept, slope, following) in enumerate(numbers.tolist()):
        hazard = Hazard(
            index + 1, float(center[index, 0]), float(center[index, 1]), 0.0, rows[index]
        )
        if rows[index] > 0.0:
            hazard = replace(
                hazard,
                fitted_following=following,
                following_error=_error(fit.information[index], cells.unit),
                gain=float(gains[index]),
            )
        if rows[index] > 0.0 and gains[index] > 0.0:
            hazard = replace(hazard, intercept=intercept, slope=slope, following=following)
        found.append(hazard)
    return tuple(found)


def _error(information: Floats, unit: float) -> float | None:
    try:
        variance = float(np.linalg.inv(information)[2, 2])
    except np.linalg.LinAlgError:
        return None
    return variance**0.5 / unit if 0.0 < variance < np.inf else None
