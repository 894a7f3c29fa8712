"""Fits a model of segments from sketches: two levels of shrinkage, strengths by cross-validation.

Pooled (s, b)_k → what a segment adds to all positions → what a segment adds to one position; finer
segments start from their parent's numbers. How strongly each level is pulled is judged on folds
that share no prompt. Candidates are averaged with weights exp(−held-out loss) · prior, so that
strengths, too, move without a switch: a segment of ten rows is its parent but for a trace, and one
of a hundred thousand is itself.

The fit is a conditional likelihood, as :class:`calib.conditional_likelihood.ConditionalLikelihood`:
right on trimmed telemetry, and refitted from sketches at a cost that does not depend on the rows.

Letters: G segments of a level, γ draft positions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from calib.canonical_json import round_significant
from calib.conditional_likelihood import ConditionalLikelihood
from calib.errors import ConfigurationError, FitRefusedError
from calib.segment_cells import SegmentReader, joined
from calib.segment_model import LevelEvidence, SegmentFit, SegmentModel
from calib.segment_ridge import CellStack, Strengths, fit_deviations, stack_loss
from calib.segment_sketches import FOLDS, SegmentSketches
from calib.segment_tags import POOL, SegmentKey, SegmentLevels
from calib.temperature_estimator import checked_count

__all__ = ["MAXIMUM_SEGMENTS", "STRENGTHS", "fit_segments"]

Floats = NDArray[np.float64]

# 50 rows of pull suit segments that differ by .15 in log-odds; traffic that differs by .4 asks for
# 12. Infinity is "no such level": segments that are alike must cost nothing.
STRENGTHS = tuple(
    Strengths(shared, residual)
    for shared in (12.5, 50.0, 200.0, math.inf)
    for residual in (30.0, 300.0, math.inf)
)
MAXIMUM_SEGMENTS = 256  # keeps the published table of 7 positions below 100 kB

# Two folds of few rows misjudge strengths by a nat or two: 3,000 rows of eight segments choose a
# quarter of this pull in one log of four. It, and four times as much, must therefore win by two.
_LIKELY = 50.0
# Slopes are pulled as factors of their parent's: a temperature of the segment's own is one factor.
# A slope below this share of the head's typical one is no measure of a change.
_FLAT = 0.25

# Views of the data: without fold 0, without fold 1, everything.
_VIEWS = FOLDS + 1
_ALL = FOLDS


@dataclass(frozen=True, eq=False, slots=True)
class _Fitted:
    """Numbers of one segment in every view.

    Attributes:
        slopes: [views, γ].
        intercepts: [views, γ].
        rows: [γ] labels.
    """

    slopes: Floats
    intercepts: Floats
    rows: NDArray[np.int64]


def fit_segments(
    parts: SegmentSketches | Iterable[SegmentSketches],
    *,
    weights: Sequence[float] | None = None,
    levels: SegmentLevels | None = None,
    pool: ConditionalLikelihood | None = None,
    strengths: Sequence[Strengths] = STRENGTHS,
    maximum_segments: int = MAXIMUM_SEGMENTS,
) -> SegmentModel:
    """Fit pool and segments on sketches of disjoint rows.

    Args:
        parts: sketches, of hours, engines, or rows of one weight.
        weights: of the rows of each part, as from forgetting or a tenant's cap; 1 when None.
        levels: which segments are told apart; the defaults when None.
        pool: how the pool is fitted, ``method="affine"``; defaults when None.
        strengths: candidates of the pull to the parent, of intercepts and of factors of slopes.
        maximum_segments: the largest segments that are kept; traffic of others is served by their
            parents.

    Raises:
        FitRefusedError: as :meth:`ConditionalLikelihood.fit_sketch`.
        ConfigurationError: levels that use a tag the sketches lack, a pool of another method, no
            candidates, or weights that are wrong.
        InvalidInputError: parts of different shapes.
    """
    reader = SegmentReader.of(parts, weights)
    chosen = levels or SegmentLevels()
    how = pool or ConditionalLikelihood("affine")
    _check(reader, chosen, how, strengths)
    checked_count("maximum_segments", maximum_segments, 0)
    root = _pool(reader, how)
    scale = float(np.sqrt(np.square(root.slopes[_ALL]).mean()))
    known = {POOL: root}
    evidence = []
    kept = _largest(reader, chosen, maximum_segments)
    for level in chosen.levels:
        keys = [key for key in kept if key.tags == level]
        if keys:
            evidence.append(_fit_level(reader, chosen, keys, known, strengths, scale))
    fits = {key: _segment_fit(key, chosen.parent(key), known[key]) for key in (POOL, *kept)}
    return SegmentModel(
        gamma=reader.first.gamma,
        buckets=reader.first.buckets,
        levels=chosen,
        segments=MappingProxyType(fits),
        seen=MappingProxyType({tag: reader.seen(tag) for tag in chosen.tags}),
        evidence=tuple(evidence),
    )


def _check(
    reader: SegmentReader,
    levels: SegmentLevels,
    pool: ConditionalLikelihood,
    strengths: Sequence[Strengths],
) -> None:
    missing = set(levels.tags) - set(reader.first.tags)
    if missing:
        remedy = f"sketch with these levels; the sketches tell apart {reader.first.tags}"
        raise ConfigurationError("levels", sorted(missing), remedy)
    if pool.method != "affine":
        raise ConfigurationError("pool", pool.method, "segments refine the affine form; use it")
    pulls = [value for each in strengths for value in (each.shared, each.residual)]
    if not pulls or not all(value > 0.0 for value in pulls):
        raise ConfigurationError("strengths", list(strengths), "give positive numbers of rows")


def _pool(reader: SegmentReader, how: ConditionalLikelihood) -> _Fitted:
    whole = _affine(reader, how, tuple(range(FOLDS)))
    if whole is None:
        raise FitRefusedError("no_rows", "no row has an observed label")
    views = [_affine(reader, how, (1 - fold,)) or whole for fold in range(FOLDS)]
    slopes, intercepts = (np.stack(each) for each in zip(*views, whole, strict=True))
    return _Fitted(slopes, intercepts, reader.rows(POOL))


def _affine(
    reader: SegmentReader, how: ConditionalLikelihood, folds: tuple[int, ...]
) -> tuple[Floats, Floats] | None:
    """Pooled slopes and intercepts of these folds; None where they hold no rows."""
    cells = reader.cells(folds)
    if not cells.total.any():
        return None
    fit = ConditionalLikelihood(**how.get_params()).fit_sketch(cells)
    return fit.slopes_, fit.intercepts_


def _largest(reader: SegmentReader, levels: SegmentLevels, most: int) -> list[SegmentKey]:
    """Segments to keep, parents before children: a parent has the rows of its children."""
    found = []
    for place, level in enumerate(levels.levels):
        for key in reader.keys(level):
            rows = reader.rows(key)
            if rows.any():
                found.append((-int(rows.sum()), place, key))
    return [key for _, _, key in sorted(found)[:most]]


def _fit_level(
    reader: SegmentReader,
    levels: SegmentLevels,
    keys: Sequence[SegmentKey],
    known: dict[SegmentKey, _Fitted],
    strengths: Sequence[Strengths],
    scale: float,
) -> LevelEvidence:
    """Fit the segments of one level around their parents, and add them to ``known``."""
    parents = [known[levels.parent(key)] for key in keys]
    rows = [reader.rows(key) for key in keys]
    slopes = np.stack([parent.slopes for parent in parents], axis=1)  # [views, G, γ]
    intercepts = np.stack([parent.intercepts for parent in parents], axis=1)
    # The rows of the parent and no others: nothing to add to what the parent has learnt of them.
    same = [np.array_equal(own, parent.rows) for own, parent in zip(rows, parents, strict=True)]
    free = [place for place, inherits in enumerate(same) if not inherits]
    best, weight, gain = strengths[-1], 1.0, 0.0
    if free:
        folds = reader.stacks([keys[place] for place in free])
        unit = np.maximum(slopes[_ALL, free], _FLAT * scale)
        start = slopes[:, free] / unit, intercepts[:, free]
        found = _cross_validated(folds, start, strengths, unit)
        slopes[:, free], intercepts[:, free] = unit * found.slopes, found.intercepts
        best, weight, gain = found.best, found.weight, found.gain
    for place, key in enumerate(keys):
        known[key] = _Fitted(slopes[:, place], intercepts[:, place], rows[place])
    pulls = tuple(v if math.isfinite(v) else None for v in (best.shared, best.residual))
    return LevelEvidence(keys[0].tags, len(keys), (pulls[0], pulls[1]), weight, gain)


@dataclass(frozen=True, eq=False, slots=True)
class _Averaged:
    slopes: Floats  # [views, G, γ]
    intercepts: Floats
    best: Strengths
    weight: float
    gain: float


def _cross_validated(
    folds: Sequence[CellStack],
    parents: tuple[Floats, Floats],  # [views, G, γ] each, slopes in units of ``unit``
    strengths: Sequence[Strengths],
    unit: Floats,  # [G, γ]
) -> _Averaged:
    """Segments averaged over the candidates by their loss on the fold they did not see."""
    scaled = [CellStack(unit[..., None] * each.logit, each.weight, each.positive) for each in folds]
    views = [*(scaled[1 - fold] for fold in range(FOLDS)), joined(scaled)]
    start = list(zip(*parents, strict=True))
    inherited = sum(float(stack_loss(scaled[fold], *start[fold]).sum()) for fold in range(FOLDS))
    losses, candidates = [], []
    for each in strengths:
        fits = [fit_deviations(cells, *start[view], each) for view, cells in enumerate(views)]
        held_out = (
            stack_loss(scaled[fold], fits[fold].slopes, fits[fold].intercepts)
            for fold in range(FOLDS)
        )
        losses.append(sum(float(loss.sum()) for loss in held_out))
        candidates.append((np.stack([fit.slopes for fit in fits]), [f.intercepts for f in fits]))
    loss = np.array(losses) + [_reluctance(each) for each in strengths]
    share = np.exp(loss.min() - loss)
    share /= share.sum()
    best = int(np.argmin(loss))
    return _Averaged(
        slopes=np.asarray(
            sum(w * slopes for w, (slopes, _) in zip(share, candidates, strict=True))
        ),
        intercepts=np.asarray(
            sum(w * np.stack(shift) for w, (_, shift) in zip(share, candidates, strict=True))
        ),
        best=strengths[best],
        weight=float(share[best]),
        gain=inherited - losses[best],
    )


def _reluctance(strengths: Strengths) -> float:
    """−log prior of a candidate, nats: a bell in log λ₁, flat in λ₂ and where λ₁ is infinite."""
    absent = math.isinf(strengths.shared)
    return 0.0 if absent else math.log(strengths.shared / _LIKELY) ** 2


def _segment_fit(key: SegmentKey, parent: SegmentKey, fitted: _Fitted) -> SegmentFit:
    return SegmentFit(
        key=key,
        parent=parent,
        rows=tuple(int(count) for count in fitted.rows),
        slopes=tuple(round_significant(float(v)) for v in fitted.slopes[_ALL]),
        intercepts=tuple(round_significant(float(v)) for v in fitted.intercepts[_ALL]),
    )
