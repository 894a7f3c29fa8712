"""The soft label in eager torch: the twin of ``heads.kernels.soft_label``, tile by tile.

Letters: R rows, V vocabulary, q draft, p target, each at its own temperature (0 is greedy: all
mass on the best token, the lowest id among equals).

    quantity              formula                              gradient to the draft logits x
    shared m              Σ_v min(q, p)
    distance              Σ_v |q − p| (+ target mass outside)  q · (sign(q − p) − S)/T
    label c*              m / (m + distance/2)                 none: labels are detached
    exact-match label     Σ_v q·p                              none
    log_probability       log q(label)                         ([v = label] − q)/T
    confidence_error      log(1 + e^z) − c*·z                  none; to z: σ(z) − c*

with S = Σ_v q · sign(q − p) and sign(0) = 0. If one side of a row is greedy the sums collapse to
one token: p(argmax q), q(argmax p), or whether both agree.

A row that is no distribution (NaN, +inf, or −inf everywhere) gives NaN. Only tiles are held in
float32 (float64 for float64 scores); sums are float64.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

_LOG2_E = 1.4426950408889634
_LN_2 = 0.6931471805599453
_TILE = 1 << 19  # elements of one tile: 2 MB of float32, as calib.soft_label_processing
_SMALLEST_TEMPERATURE = 1e-30

# Rows of the statistics that forward leaves for backward.
DRAFT_SHIFT, DRAFT_OFFSET, TARGET_SHIFT, TARGET_OFFSET = 0, 1, 2, 3
SLOPE, CONFIDENCE_SLOPE, TARGET_BEST = 4, 5, 6
STATISTICS = 7


@dataclass(frozen=True, slots=True, eq=False)
class SoftLabelTerms:
    """What one forward pass gives, all [R] float32 unless said otherwise.

    Attributes:
        label: c*, in [0, 1].
        distance: un-halved ‖q − p‖₁, in [0, 2]; [0] for exact match, which has none.
        log_probability: log q(label), [0] when no labels were given.
        confidence_error: binary cross-entropy of the confidence logit against c*, [0] when no
            logits were given.
        statistics: [7, R] what :func:`soft_label_gradient` needs: shift and offset of each side
            (p(v) = exp2((x − shift)·log2(e)/T − offset)), S, σ(z) − c*, and the target's best id.
    """

    label: Tensor
    distance: Tensor
    log_probability: Tensor
    confidence_error: Tensor
    statistics: Tensor


@dataclass(frozen=True, slots=True)
class _Side:
    """One side's rows, ready to be evaluated in tiles."""

    scores: Tensor  # [R, V]
    dtype: torch.dtype
    shift: Tensor  # [R, 1]
    scale: Tensor  # [R, 1]
    offset: Tensor  # [R, 1]
    best: Tensor  # [R, 1] long
    greedy: Tensor  # [R, 1] bool

    def probabilities(self, rows: slice, tokens: slice) -> Tensor:
        """p of a tile; [rows, tokens]."""
        x = self.scores[rows, tokens].to(self.dtype) - self.shift[rows]
        p = x.mul_(self.scale[rows]).sub_(self.offset[rows]).exp2_()
        if bool(self.greedy[rows].any()):
            ids = torch.arange(tokens.start, tokens.stop, device=p.device)
            one_hot = (ids == self.best[rows]).to(p.dtype) + self.broken[rows]
            p = torch.where(self.greedy[rows], one_hot, p)
        return p

    @property
    def broken(self) -> Tensor:
        """0, or NaN in rows that are no distribution; [R, 1]."""
        return (self.shift + self.offset) * 0.0


def soft_label_terms(
    draft: Tensor,  # [R, V]
    target: Tensor,  # [R, V]
    draft_temperature: Tensor,  # [R] or [1]; 0 is greedy
    target_temperature: Tensor,  # [R] or [1]
    draft_log_sum_exp: Tensor | None = None,  # [R] log Σ exp(x/T), if known
    target_log_sum_exp: Tensor | None = None,  # [R]
    labels: Tensor | None = None,  # [R] long, −1 for none
    confidence_logits: Tensor | None = None,  # [R]
    *,
    exact_match: bool = False,
    outside: bool = False,
    needs_slope: bool = True,
    block: int | None = None,
) -> SoftLabelTerms:
    """Labels, distances and losses of rows of scores; see the module for the formulas.

    Args:
        draft: scores of the drafter.
        target: scores of the target for the same tokens.
        draft_temperature: of sampling; negative gives NaN.
        target_temperature: as ``draft_temperature``.
        draft_log_sum_exp: saves the pass that would find it. Greedy rows with it give NaN.
        target_log_sum_exp: as ``draft_log_sum_exp``. It may count tokens that the rows leave out.
        labels: tokens whose log-probability is wanted.
        confidence_logits: z of each row.
        exact_match: the label is Σ q·p.
        outside: target mass that ``target_log_sum_exp`` counts and the rows lack is distance.
        needs_slope: whether a backward pass will follow.
        block: tokens a tile.
    """
    dtype = torch.promote_types(torch.promote_types(draft.dtype, target.dtype), torch.float32)
    block = block or max(1, min(draft.shape[1], _TILE // max(1, draft.shape[0])))
    sides = [
        _side(draft, draft_temperature, draft_log_sum_exp, dtype, block),
        _side(target, target_temperature, target_log_sum_exp, dtype, block),
    ]
    shared, distance, slope = _compare(sides[0], sides[1], exact_match, outside, block)
    label = shared if exact_match else shared / (shared + 0.5 * distance)
    statistics = torch.zeros(STATISTICS, len(draft), dtype=dtype, device=draft.device)
    for place, column in zip(
        (DRAFT_SHIFT, DRAFT_OFFSET, TARGET_SHIFT, TARGET_OFFSET, TARGET_BEST),
        (sides[0].shift, sides[0].offset, sides[1].shift, sides[1].offset, sides[1].best),
        strict=True,
    ):
        statistics[place] = column.squeeze(-1)
    statistics[SLOPE] = slope
    label = label.to(dtype)
    distance = label.new_empty(0) if exact_match else distance.to(dtype)
    error, log_probability = label.new_empty(0), label.new_empty(0)
    if confidence_logits is not None:
        error, statistics[CONFIDENCE_SLOPE] = _confidence(confidence_logits.to(dtype), label)
    if labels is not None:
        log_probability = _log_probability(sides[0], labels)
    return SoftLabelTerms(label, distance, log_probability, error, statistics)


def soft_label_gradient(
    grad_distance: Tensor,  # [R]
    grad_log_probability: Tensor | None,  # [R]
    draft: Tensor,  # [R, V]
    target: Tensor,  # [R, V]
    draft_temperature: Tensor,  # [R] or [1]
    target_temperature: Tensor,  # [R] or [1]
    labels: Tensor | None,  # [R] long
    statistics: Tensor,  # [7, R]
    *,
    block: int | None = None,
) -> Tensor:
    """Gradient of distance and log-probability to the draft scores; [R, V] in their dtype.

    Rows whose incoming gradients are both 0 get 0 whatever they hold, and so do rows whose draft
    is greedy.
    """
    rows, vocabulary = draft.shape
    block = block or max(1, min(vocabulary, _TILE // max(1, rows)))
    sides = [
        _kept_side(draft, draft_temperature, statistics, DRAFT_SHIFT),
        _kept_side(target, target_temperature, statistics, TARGET_SHIFT),
    ]
    per_distance = grad_distance.to(statistics.dtype)[:, None]
    per_log = torch.zeros_like(per_distance)
    if grad_log_probability is not None and labels is not None:
        per_log = torch.where(labels >= 0, grad_log_probability, 0.0)[:, None].to(per_log)
    silent = ((per_distance == 0.0) & (per_log == 0.0)) | sides[0].greedy
    inverse = sides[0].scale * _LN_2
    slope = statistics[SLOPE][:, None]
    gradient = torch.empty_like(draft, memory_format=torch.contiguous_format)
    for tokens in _tiles(vocabulary, block):
        every = slice(None)
        q, p = sides[0].probabilities(every, tokens), sides[1].probabilities(every, tokens)
        tile = q * (per_distance * (torch.sign(q - p) - slope) - per_log)
        if labels is not None:
            ids = torch.arange(tokens.start, tokens.stop, device=draft.device)
            tile += torch.where(ids == labels[:, None], per_log, 0.0)
        gradient[:, tokens] = torch.where(silent, 0.0, tile * inverse).to(draft.dtype)
    return gradient


def _tiles(vocabulary: int, block: int) -> list[slice]:
    starts = range(0, vocabulary, block)
    return [slice(start, min(start + block, vocabulary)) for start in starts]


def _scale(temperature: Tensor, rows: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """log2(e)/T [R, 1], NaN for T < 0, and which rows are greedy [R, 1]."""
    t = temperature.to(dtype).reshape(-1, 1).expand(rows, 1)
    greedy = t == 0.0
    scale = _LOG2_E / torch.where(greedy, 1.0, t).clamp(min=_SMALLEST_TEMPERATURE)
    return torch.where(t >= 0.0, scale, torch.nan), greedy


def _side(
    scores: Tensor,
    temperature: Tensor,
    log_sum_exp: Tensor | None,
    dtype: torch.dtype,
    block: int,
) -> _Side:
    rows, vocabulary = scores.shape
    scale, greedy = _scale(temperature, rows, dtype)
    if log_sum_exp is not None:
        lse = torch.where(greedy, torch.nan, log_sum_exp.to(dtype)[:, None])
        best = torch.zeros(rows, 1, dtype=torch.long, device=scores.device)
        t = temperature.to(dtype).reshape(-1, 1)
        return _Side(scores, dtype, lse * t, scale, lse * 0.0, best, greedy)
    peak, best = scores.max(dim=-1, keepdim=True)
    shift = peak.to(dtype).clamp(min=torch.finfo(dtype).min)
    total = torch.zeros(rows, 1, dtype=torch.float64, device=scores.device)
    for tokens in _tiles(vocabulary, block):
        x = scores[:, tokens].to(dtype) - shift
        total += x.mul_(scale).exp2_().sum(-1, keepdim=True, dtype=torch.float64)
    offset = torch.where(total > 0.0, total, torch.nan).log2().to(dtype)
    return _Side(scores, dtype, shift, scale, offset, best, greedy)


def _kept_side(scores: Tensor, temperature: Tensor, statistics: Tensor, first: int) -> _Side:
    scale, greedy = _scale(temperature, len(scores), statistics.dtype)
    shift, offset = statistics[first][:, None], statistics[first + 1][:, None]
    best = statistics[TARGET_BEST][:, None].long()
    return _Side(scores, statistics.dtype, shift, scale, offset, best, greedy)


def _compare(
    draft: _Side, target: _Side, exact_match: bool, outside: bool, block: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Shared mass, distance and S; [R] float64. Distance and S are 0 for exact match."""
    rows, vocabulary = draft.scores.shape
    sums = torch.zeros(4, rows, dtype=torch.float64, device=draft.scores.device)
    shared, distance, slope, mass = sums
    for tokens in _tiles(vocabulary, block):
        every = slice(None)
        q, p = draft.probabilities(every, tokens), target.probabilities(every, tokens)
        if exact_match:
            shared += q.mul_(p).sum(-1, dtype=torch.float64)
            continue
        shared += torch.minimum(q, p).sum(-1, dtype=torch.float64)
        mass += p.sum(-1, dtype=torch.float64)
        difference = q - p
        slope += (torch.sign(difference) * q).sum(-1, dtype=torch.float64)
        distance += difference.abs_().sum(-1, dtype=torch.float64)
    if outside and not exact_match:
        # A greedy target has put all its mass on a token that is here.
        missing = (1.0 - mass).clamp(min=0.0)
        distance += torch.where(target.greedy.squeeze(-1), 0.0, missing)
    return shared, distance, slope


def _confidence(logits: Tensor, label: Tensor) -> tuple[Tensor, Tensor]:
    """Binary cross-entropy against the label, from the logit, and its derivative; [R]."""
    error = logits.clamp(min=0.0) - logits * label + torch.log1p(torch.exp(-logits.abs()))
    return error, torch.sigmoid(logits) - label


def _log_probability(draft: _Side, labels: Tensor) -> Tensor:
    """log q of one token a row at the row's temperature, 0 where there is none; [R]."""
    x = draft.scores.gather(-1, labels.clamp(min=0)[:, None]).to(draft.dtype)
    log2 = (x - draft.shift) * draft.scale - draft.offset
    return torch.where(labels >= 0, log2.squeeze(-1) * _LN_2, 0.0)
