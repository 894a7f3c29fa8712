"""Rows of draft or target scores turned into the distribution that sampling used, tile by tile.

Letters: R rows, V vocabulary. A row's distribution is

    p(v) = w(v) / Σ_u w(u),    w(v) = exp((x(v) − max x) / T) where v is kept, else 0

with x a logit or the logarithm of a probability. Only a tile of w exists at any time: the
normaliser is an online log-sum-exp, and a truncated support is stored as its smallest score, so
neither a float32 copy of the vocabulary nor a second softmax is ever held.

Processing runs in the order of the engines: temperature, top-k (all tokens tied with the k-th
stay), top-p (a token stays while the mass before it is short of top_p; ties in order of token
id), min-p; then the rest is renormalised.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor

from calib.errors import ConfigurationError, DistributionError

DEFAULT_CHUNK = 16_384
_CPU_TILE = 1 << 19  # elements; 2 MB of float32: fastest of 2^14..2^20 on one core, 49,152 tokens
_DEVICE_TILE = 1 << 25  # elements; enough to hide a launch, 128 MB of float32
_TOP_P_CANDIDATES = 512  # first try; real rows hold 99 % of their mass in fewer tokens

_NEGATIVE_TOLERANCE = 1e-6  # rounding of a softmax, not a mistake
_SUM_TOLERANCE = 1e-3
_HALF_SUM_TOLERANCE = 2e-2  # an 8-bit mantissa is off by 2^-9 a token


class ScoreKind(StrEnum):
    """What the numbers of a row are."""

    LOGITS = "logits"  # any reals, -inf for masked tokens
    PROBABILITIES = "probabilities"  # at temperature 1, before top-k, top-p and min-p
    PROCESSED = "processed"  # probabilities that sampling used; only renormalised


@dataclass(frozen=True, slots=True)
class Processing:
    """How logits became the distribution that was sampled from.

    Attributes:
        temperature: 0 is greedy.
        top_k: 0 keeps all tokens.
        top_p: 1 keeps all tokens.
        min_p: 0 keeps all tokens, else those below ``min_p`` times the largest go.

    Raises:
        ConfigurationError: a value outside its range.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.temperature < float("inf"):
            raise ConfigurationError("temperature", self.temperature, "give 0 (greedy) or more")
        if self.top_k < 0:
            raise ConfigurationError("top_k", self.top_k, "give 0 (off) or a positive count")
        if not 0.0 < self.top_p <= 1.0:
            raise ConfigurationError("top_p", self.top_p, "give a share in (0, 1]")
        if not 0.0 <= self.min_p < 1.0:
            raise ConfigurationError("min_p", self.min_p, "give a share in [0, 1)")


NO_PROCESSING = Processing()


class ProcessedDistribution:
    """One side's rows after processing, evaluated a tile at a time.

    Args:
        name: argument name for error messages.
        scores: [..., V] floating point, in the dtype it was stored in; leading axes are
            flattened to R rows.
        kind: what the numbers are.
        processing: temperature and truncation; ignored for ``ScoreKind.PROCESSED``. A
            temperature of 0 leaves only :meth:`best_tokens` defined.
        chunk: tokens a tile.

    Raises:
        DistributionError: scores that are no floating-point rows, a row without one finite
            logit, with NaN or +inf, with a clearly negative probability, or whose probabilities
            do not sum to 1. Values down to −1e-6 are clamped to 0.
    """

    def __init__(
        self,
        name: str,
        scores: Tensor,  # [..., V]
        kind: ScoreKind,
        processing: Processing,
        chunk: int = DEFAULT_CHUNK,
    ) -> None:
        if scores.dim() < 1 or scores.shape[-1] < 1 or not scores.is_floating_point():
            raise DistributionError(
                name, f"{scores.dtype} {tuple(scores.shape)}", "give floats [..., V] with V >= 1"
            )
        if chunk < 1:
            raise ConfigurationError("chunk", chunk, "give at least one token a tile")
        self.name = name
        self.leading_shape = tuple(scores.shape[:-1])
        self._scores = scores.detach().reshape(-1, scores.shape[-1])
        self.rows, self.vocabulary = self._scores.shape
        self.device = scores.device
        self.dtype = torch.promote_types(scores.dtype, torch.float32)
        self._is_logits = kind is ScoreKind.LOGITS
        self._processing = NO_PROCESSING if kind is ScoreKind.PROCESSED else processing
        self.chunk = chunk
        self._cut: Tensor | None = None  # [R, 1] smallest kept score, in its own dtype
        self._last_tie: Tensor | None = None  # [R, 1] largest kept id among those at the cut
        self._min_weight = 0.0
        if not self._is_logits:
            self._check_probabilities()
        if processing.temperature > 0.0:
            self._peak, self._total = self._log_normaliser()
            self._truncate()

    # ---- what rules ask for ----

    def tiles(self) -> Iterator[tuple[slice, slice]]:
        """Row and token ranges that cover [R, V] once, tokens innermost."""
        for rows in self.row_blocks():
            for start in range(0, self.vocabulary, self.chunk):
                yield rows, slice(start, min(start + self.chunk, self.vocabulary))

    def row_blocks(self) -> Iterator[slice]:
        """Row ranges whose tiles fit the cache (CPU) or a modest buffer (other devices)."""
        tile = _CPU_TILE if self._scores.device.type == "cpu" else _DEVICE_TILE
        step = max(1, tile // min(self.chunk, self.vocabulary))
        for start in range(0, max(self.rows, 1), step):  # an empty batch is one empty block
            yield slice(start, min(start + step, self.rows))

    def probabilities(
        self,
        rows: slice,
        tokens: slice | Tensor,  # range, or ids [C] long
    ) -> Tensor:
        """p of a tile; [rows, tokens] in ``dtype``, freshly allocated."""
        return self._weights(rows, tokens).mul_(self._total[rows, None].reciprocal().to(self.dtype))

    def probability_of(
        self,
        tokens: Tensor,  # [R] long, ids of this side's vocabulary
    ) -> Tensor:
        """p of one token a row; [R] float64."""
        scores = self._scores.gather(-1, tokens[:, None])
        weights = self._kept_weights(scores, slice(None), tokens[:, None])
        return weights.squeeze(-1).double() / self._total

    def best_tokens(self) -> Tensor:
        """The most likely token of each row, the lowest id among equals; [R] long."""
        best = self._scores.argmax(dim=-1)
        self._refuse_unless_finite(self._x(self._scores.gather(-1, best[:, None])).squeeze(-1))
        return best

    # ---- weights ----

    def _x(self, scores: Tensor) -> Tensor:
        """Logits, or logarithms of probabilities, in the computing dtype."""
        x = scores.to(self.dtype)
        return x if self._is_logits else x.clamp(min=0.0).log()

    def _weights(self, rows: slice, tokens: slice | Tensor) -> Tensor:
        if isinstance(tokens, slice):
            scores = self._scores[rows, tokens]
            ids = torch.arange(tokens.start, tokens.stop, device=scores.device)
        else:
            scores, ids = self._scores[rows].index_select(-1, tokens), tokens
        return self._kept_weights(scores, rows, ids)

    def _kept_weights(self, scores: Tensor, rows: slice, ids: Tensor) -> Tensor:
        weights = self._x(scores) - self._peak[rows, None]
        if self._processing.temperature != 1.0:
            weights.div_(self._processing.temperature)
        weights.exp_()
        if self._cut is not None:
            dropped = scores < self._cut[rows]
            if self._last_tie is not None:
                dropped |= (scores == self._cut[rows]) & (ids > self._last_tie[rows])
            weights.masked_fill_(dropped, 0.0)
        if self._min_weight > 0.0:
            weights.masked_fill_(weights < self._min_weight, 0.0)
        return weights

    # ---- set-up ----

    def _check_probabilities(self) -> None:
        sums = torch.zeros(self.rows, dtype=torch.float64, device=self._scores.device)
        for rows, tokens in self.tiles():
            tile = self._scores[rows, tokens]
            lowest = tile.amin(-1)
            self._refuse(
                lowest < -_NEGATIVE_TOLERANCE, lowest, rows.start, "give probabilities of 0 or more"
            )
            sums[rows] += tile.to(self.dtype).clamp(min=0.0).sum(-1)
        half = self._scores.element_size() < 4
        tolerance = _HALF_SUM_TOLERANCE if half else _SUM_TOLERANCE
        # Negated, so that NaN is refused as well.
        wrong = ~((sums - 1.0).abs() <= tolerance)
        self._refuse(wrong, sums, 0, "give a row that sums to 1 (the value is its sum)")

    def _log_normaliser(self) -> tuple[Tensor, Tensor]:
        """Largest x [R] and Σ exp((x − largest)/T) [R] float64 in one pass over the tiles."""
        device = self._scores.device
        floor = torch.finfo(self.dtype).min
        temperature = self._processing.temperature
        peak = torch.full((self.rows,), float("-inf"), dtype=self.dtype, device=device)
        total = torch.zeros(self.rows, dtype=torch.float64, device=device)
        for rows, tokens in self.tiles():
            x = self._x(self._scores[rows, tokens])
            before = peak[rows]
            # A tile of -inf only must not turn into -inf − -inf.
            after = torch.maximum(before, x.amax(-1)).clamp(min=floor)
            x = x - after[:, None]
            if temperature != 1.0:
                x.div_(temperature)
            shrink = ((before - after) / temperature).exp()
            total[rows] = total[rows] * shrink + x.exp_().sum(-1)
            peak[rows] = after
        # All -inf leaves the peak at the floor and nothing to add up; NaN and +inf stay visible.
        self._refuse_unless_finite(torch.where(total == 0.0, float("-inf"), peak))
        return peak, total

    def _truncate(self) -> None:
        processing = self._processing
        if 0 < processing.top_k < self.vocabulary:
            kth = [
                self._scores[rows].topk(processing.top_k, dim=-1).values[:, -1:]
                for rows in self.row_blocks()
            ]
            self._cut = torch.cat(kth)
            self._total = self._kept_total()
        if processing.top_p < 1.0:
            self._keep_top_p(processing.top_p)
        if processing.min_p > 0.0:
            self._min_weight = processing.min_p  # the largest weight of a row is exactly 1
            self._total = self._kept_total()

    def _kept_total(self) -> Tensor:
        total = torch.zeros_like(self._total)
        for rows, tokens in self.tiles():
            total[rows] += self._weights(rows, tokens).sum(-1)
        return total

    def _keep_top_p(self, top_p: float) -> None:
        cuts, ties, totals = [], [], []
        for rows in self.row_blocks():
            scores, kept, weights = self._top_p_candidates(rows, top_p)
            count = kept.sum(-1, keepdim=True)
            cut = scores.gather(-1, count - 1)
            above = (scores > cut).sum(-1, keepdim=True)
            cuts.append(cut)
            ties.append(self._last_kept_tie(rows, cut, count - above))
            totals.append(torch.where(kept, weights, 0.0).sum(-1, dtype=torch.float64))
        self._cut, self._last_tie, self._total = torch.cat(cuts), torch.cat(ties), torch.cat(totals)
        if bool((self._last_tie == self.vocabulary).all()):
            self._last_tie = None

    def _top_p_candidates(self, rows: slice, top_p: float) -> tuple[Tensor, Tensor, Tensor]:
        """The largest scores of some rows in falling order, whether each stays, its weight."""
        size = min(_TOP_P_CANDIDATES, self.vocabulary)
        inverse_total = self._total[rows, None].reciprocal().to(self.dtype)
        while True:
            scores, ids = self._scores[rows].topk(size, dim=-1)
            weights = self._kept_weights(scores, rows, ids)
            share = weights * inverse_total
            kept = (share.cumsum(-1) - share < top_p) & (weights > 0.0)
            if size == self.vocabulary or not bool(kept[:, -1].any()):
                return scores, kept, weights
            size = min(size * 8, self.vocabulary)

    def _last_kept_tie(self, rows: slice, cut: Tensor, allowed: Tensor) -> Tensor:
        """Largest id that stays among the tokens at the cut; V where all of them do; [rows, 1]."""
        equal = self._scores[rows] == cut
        last = torch.full_like(allowed, self.vocabulary)
        for row in (equal.sum(-1, keepdim=True) > allowed).squeeze(-1).nonzero().flatten().tolist():
            last[row] = equal[row].nonzero()[int(allowed[row]) - 1]
        return last

    # ---- refusals ----

    def _refuse_unless_finite(self, peak: Tensor) -> None:
        self._refuse(
            ~peak.isfinite(), peak, 0, "give rows without NaN or +inf and with one finite logit"
        )

    def _refuse(self, wrong: Tensor, values: Tensor, first_row: int, remedy: str) -> None:
        if not bool(wrong.any()):
            return
        row = int(wrong.int().argmax())
        place = []
        remaining = first_row + row
        for size in reversed(self.leading_shape):
            remaining, index = divmod(remaining, size)
            place.append(str(index))
        where = f"[{', '.join(reversed(place))}]" if place else ""
        raise DistributionError(f"{self.name}{where}", float(values[row]), remedy)
