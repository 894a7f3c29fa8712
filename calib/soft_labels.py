"""Exact acceptance labels from the draft's and the target's scores.

A soft label c*_k is the probability, over the tokens that could have been drafted at position k
and the coins of the verifier, that position k is accepted given that all before it were. It
depends on how the engine verifies: see :mod:`calib.soft_label_rules` for the formula of each
rule, :mod:`calib.soft_label_processing` for temperature and truncation, and
:mod:`calib.soft_label_bounds` where only a few probabilities of each side are known.

Letters: G block positions, V vocabulary. Leading axes are free (requests, positions, …); only
block verification needs the last of them to be the position. Labels carry no gradient, are
computed with float32 tiles (float64 for float64 scores) and float64 sums, and agree with a
float64 computation within 1e-6. Their kind in telemetry is ``soft_full``.

>>> import torch
>>> q, p = torch.tensor([[0.6, 0.4]]), torch.tensor([[0.3, 0.7]])
>>> label = soft_labels(q, p, rule="rejection", draft_mode="sampled",
...                     draft_kind="probabilities", target_kind="probabilities")
>>> round(label.item(), 6)
0.7
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Required, TypedDict, TypeVar, Unpack

import torch
from torch import Tensor

from calib.errors import ConfigurationError, DistributionError
from calib.soft_label_processing import (
    DEFAULT_CHUNK,
    ProcessedDistribution,
    Processing,
    ScoreKind,
)
from calib.soft_label_rules import (
    AcceptanceRule,
    DraftMode,
    DraftVocabulary,
    before_each,
    block_survival,
    match_probability,
    overlap,
    soft_survival,
)

__all__ = [
    "AcceptanceRule",
    "BlockLabels",
    "DraftMode",
    "LabelOptions",
    "ScoreKind",
    "block_labels",
    "soft_labels",
    "soft_survival",
    "token_acceptance",
]

_GREEDY = Processing(temperature=0.0)
_Word = TypeVar("_Word", bound=StrEnum)


@dataclass(frozen=True, slots=True)
class BlockLabels:
    """Labels of drafted blocks.

    Attributes:
        conditional: c*_k, [..., G] in [0, 1]; NaN only under block verification, where the
            prefix cannot survive.
        token_acceptance: α_k(x_k), P(k accepted | all before, x_≤k), [..., G] in [0, 1]; None
            under block verification of sampled drafts, which tests no single token.
        survival: P(n ≥ k | x_<k), [..., G] in [0, 1]: ∏_{i<k} α_i(x_i) · c*_k, or P_{k−1} · c*_k
            under block verification.
    """

    conditional: Tensor
    token_acceptance: Tensor | None
    survival: Tensor


class LabelOptions(TypedDict, total=False):
    """Keyword options of the label functions.

    Attributes:
        rule: how the target decides (required).
        draft_mode: how the drafter picked its tokens (required).
        temperature: sampling temperature of whichever side samples; 1 by default, 0 makes both
            sides greedy.
        top_k: applied to both sides, each in its own vocabulary; 0 (default) is off.
        top_p: as ``top_k``; 1 (default) is off.
        min_p: as ``top_k``; 0 (default) is off.
        draft_kind: what the draft scores are; ``logits`` by default, ``processed``
            probabilities are taken as they are.
        target_kind: what the target scores are; ``logits`` by default.
        draft_to_target: [V_draft] long, the target id of each draft id, for a drafter with a
            reduced vocabulary. Target mass outside it counts as never accepted.
        chunk: tokens a tile.
    """

    rule: Required[AcceptanceRule | str]
    draft_mode: Required[DraftMode | str]
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    draft_kind: ScoreKind | str
    target_kind: ScoreKind | str
    draft_to_target: Tensor | None
    chunk: int


def soft_labels(
    draft: Tensor,  # [..., V_draft]
    target: Tensor,  # [..., V]
    *,
    drafted: Tensor | None = None,  # [..., G] long, target ids
    **options: Unpack[LabelOptions],
) -> Tensor:
    """Conditional acceptance probability c*_k of each row; [...] in [0, 1].

    Args:
        draft: scores of the drafter, Markov correction included.
        target: scores of the target at the same prefixes.
        drafted: drafted tokens, needed by block verification of sampled drafts only; NaN comes
            back where its prefix cannot survive.
        options: see :class:`LabelOptions`.

    Raises:
        DistributionError: rows that are no distribution, shapes that do not match, or a drafted
            token that the stated processing could not have drawn.
        ConfigurationError: an unknown rule or mode, or an option outside its range.
    """
    pair = _Pair(draft, target, **options)
    return pair.finish(pair.conditional(None if drafted is None else pair.tokens(drafted)))


def token_acceptance(
    draft: Tensor,  # [..., V_draft]
    target: Tensor,  # [..., V]
    drafted: Tensor,  # [...] long, target ids
    **options: Unpack[LabelOptions],
) -> Tensor:
    """Acceptance probability α_k of the token that was drafted; [...] in [0, 1].

    ``rejection``: min(1, p(x)/q(x)), with q(x) = 1 for greedy drafts; ``exact_match``: p(x);
    ``greedy``: 1 where x is the target's best token, else 0. Averaged over the draft it gives
    :func:`soft_labels`, whose options and errors it shares.

    Raises:
        ConfigurationError: also for ``block`` with sampled drafts, which tests no single token.
    """
    pair = _Pair(draft, target, **options)
    return pair.finish(pair.token_acceptance(pair.tokens(drafted)))


def block_labels(
    draft: Tensor,  # [..., G, V_draft]
    target: Tensor,  # [..., G, V]
    drafted: Tensor,  # [..., G] long, target ids
    **options: Unpack[LabelOptions],
) -> BlockLabels:
    """All three labels of drafted blocks, with each normaliser computed once.

    Options and errors are those of :func:`soft_labels`.
    """
    pair = _Pair(draft, target, **options)
    tokens = pair.tokens(drafted)
    conditional = pair.finish(pair.conditional(tokens))
    if pair.tests_blocks:
        return BlockLabels(conditional, None, pair.finish(pair.block_survival(tokens)))
    acceptance = pair.finish(pair.token_acceptance(tokens))
    return BlockLabels(conditional, acceptance, soft_survival(conditional, acceptance))


class _Pair:
    """Both sides of one call, with the rule resolved to what each side does."""

    def __init__(self, draft: Tensor, target: Tensor, **options: Unpack[LabelOptions]) -> None:
        processing = Processing(
            temperature=options.get("temperature", 1.0),
            top_k=options.get("top_k", 0),
            top_p=options.get("top_p", 1.0),
            min_p=options.get("min_p", 0.0),
        )
        self._rule = _word(AcceptanceRule, "rule", options["rule"])
        mode = _word(DraftMode, "draft_mode", options["draft_mode"])
        greedy = processing.temperature == 0.0
        self._greedy_draft = greedy or mode is DraftMode.GREEDY
        self._greedy_target = greedy or self._rule is AcceptanceRule.GREEDY
        # A one-point draft leaves one token to test: block verification is rejection then.
        self.tests_blocks = self._rule is AcceptanceRule.BLOCK and not self._greedy_draft
        if draft.shape[:-1] != target.shape[:-1]:
            raise DistributionError(
                "draft",
                tuple(draft.shape),
                f"give the leading axes of the target, {tuple(target.shape[:-1])}",
            )
        chunk = options.get("chunk", DEFAULT_CHUNK)
        # Of a greedy side only the best token is asked for: no normaliser.
        self._draft = ProcessedDistribution(
            "draft",
            draft,
            _word(ScoreKind, "draft_kind", options.get("draft_kind", ScoreKind.LOGITS)),
            _GREEDY if self._greedy_draft else processing,
            chunk,
        )
        self._target = ProcessedDistribution(
            "target",
            target,
            _word(ScoreKind, "target_kind", options.get("target_kind", ScoreKind.LOGITS)),
            _GREEDY if self._greedy_target else processing,
            chunk,
        )
        self._vocabulary = DraftVocabulary(
            options.get("draft_to_target"),
            self._draft.vocabulary,
            self._target.vocabulary,
            self._target.device,
        )

    def tokens(self, drafted: Tensor) -> Tensor:
        """Drafted target ids as one column of rows; [R] long."""
        shape = self._target.leading_shape
        if tuple(drafted.shape) != shape or drafted.is_floating_point():
            raise DistributionError(
                "drafted", f"{drafted.dtype} {tuple(drafted.shape)}", f"give token ids {shape}"
            )
        tokens = drafted.to(device=self._target.device, dtype=torch.long).reshape(-1)
        outside = (tokens < 0) | (tokens >= self._target.vocabulary)
        if bool(outside.any()):
            remedy = f"give target ids in [0, {self._target.vocabulary})"
            raise DistributionError("drafted", int(tokens[outside][0]), remedy)
        return tokens

    def conditional(self, tokens: Tensor | None) -> Tensor:
        """c* of each row; [R] float64."""
        if self._greedy_target:
            best = self._target.best_tokens()
            if self._greedy_draft:
                return (self._best_drafted() == best).double()
            return self._draft_probability(best)
        if self._greedy_draft:
            return self._target.probability_of(self._best_drafted())
        if self._rule is AcceptanceRule.EXACT_MATCH:
            return match_probability(self._draft, self._target, self._vocabulary)
        if self.tests_blocks:
            return self._block_conditional(tokens)
        return overlap(self._draft, self._target, self._vocabulary)

    def token_acceptance(self, tokens: Tensor) -> Tensor:
        """α of each row's drafted token; [R] float64."""
        if self.tests_blocks:
            remedy = "ask for block_labels: block verification tests no single token"
            raise ConfigurationError("rule", str(self._rule), remedy)
        if self._greedy_target:
            return (tokens == self._target.best_tokens()).double()
        if self._greedy_draft or self._rule is AcceptanceRule.EXACT_MATCH:
            return self._target.probability_of(tokens)
        return self._ratio(tokens).clamp(max=1.0)

    def block_survival(self, tokens: Tensor) -> Tensor:
        """P(τ ≥ k | x_<k) under block verification; [R] float64."""
        before = self._before_each(tokens)
        return torch.where(before > 0.0, before * self._block_conditional(tokens), before)

    def finish(self, labels: Tensor) -> Tensor:
        """Row labels in the caller's leading shape and computing dtype."""
        dtype = torch.promote_types(self._draft.dtype, self._target.dtype)
        return labels.to(dtype).reshape(self._target.leading_shape)

    def _best_drafted(self) -> Tensor:
        return self._vocabulary.target_ids(self._draft.best_tokens())

    def _draft_probability(self, tokens: Tensor) -> Tensor:
        """q of target ids, 0 outside the draft vocabulary; [R] float64."""
        ids = self._vocabulary.draft_ids(tokens)
        return self._draft.probability_of(ids.clamp(min=0)).masked_fill(ids < 0, 0.0)

    def _ratio(self, tokens: Tensor) -> Tensor:
        """p(x)/q(x) of the drafted tokens; [R] float64."""
        q = self._draft_probability(tokens)
        impossible = q == 0.0
        if bool(impossible.any()):
            remedy = "give tokens that the draft can say under the stated temperature and cuts"
            raise DistributionError("drafted", int(tokens[impossible][0]), remedy)
        return self._target.probability_of(tokens) / q

    def _before_each(self, tokens: Tensor) -> Tensor:
        """P_{k−1} of the drafted blocks under block verification; [R] float64."""
        shape = self._target.leading_shape
        if not shape:
            raise DistributionError("target", shape, "give [..., G, V] for block verification")
        return before_each(block_survival(self._ratio(tokens).reshape(shape))).reshape(-1)

    def _block_conditional(self, tokens: Tensor | None) -> Tensor:
        if tokens is None:
            raise ConfigurationError(
                "drafted", None, "give the drafted tokens: block verification depends on them"
            )
        before = self._before_each(tokens)
        # Below float32's range the label is its limit, Σ p over the tokens with q > 0.
        label = overlap(self._draft, self._target, self._vocabulary, before.clamp(min=1e-30))
        return torch.where(before > 0.0, label, torch.nan)


def _word(kind: type[_Word], field: str, value: str) -> _Word:
    try:
        return kind(value)
    except ValueError:
        words = ", ".join(f"`{word}`" for word in kind)
        raise ConfigurationError(field, value, f"give one of {words}") from None
