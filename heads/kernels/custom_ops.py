"""The operations as torch sees them: custom ops that compile, differentiate and dispatch.

Each op is opaque to ``torch.compile`` and has a fake implementation, so a function that calls it
compiles with ``fullgraph=True``. When it runs, :mod:`heads.kernel_dispatch` chooses Triton kernels
or eager torch by the tensors it got; Triton is imported only when kernels run.

    op                                gradient
    dspark_calib::soft_label          distance and log-probability to the draft scores,
                                      confidence error to the confidence logits
    dspark_calib::soft_label_gradient none
    dspark_calib::reliability_bins    none

The labels c* are detached: they carry no gradient, and no gradient reaches the target.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from calib.errors import ConfigurationError, DistributionError
from calib.reliability import one_of
from calib.soft_label_rules import AcceptanceRule, DraftMode
from heads import kernel_dispatch
from heads.reference import reliability_bins as reliability_reference
from heads.reference import soft_label as soft_label_reference
from heads.reference.reliability_bins import SUM_NAMES, BinnedSums
from heads.reference.soft_label import CONFIDENCE_SLOPE, STATISTICS, SoftLabelTerms

# ---- soft labels ----


@torch.library.custom_op("dspark_calib::soft_label", mutates_args=())
def soft_label_op(
    draft: Tensor,
    target: Tensor,
    draft_temperature: Tensor,
    target_temperature: Tensor,
    draft_log_sum_exp: Tensor | None,
    target_log_sum_exp: Tensor | None,
    labels: Tensor | None,
    confidence_logits: Tensor | None,
    exact_match: bool,
    outside: bool,
    needs_slope: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """(label, distance, log_probability, confidence_error, statistics); see the twins."""
    terms = _soft_label_twin(draft, target).soft_label_terms(
        draft,
        target,
        draft_temperature,
        target_temperature,
        draft_log_sum_exp,
        target_log_sum_exp,
        labels,
        confidence_logits,
        exact_match=exact_match,
        outside=outside,
        needs_slope=needs_slope,
    )
    return (
        terms.label,
        terms.distance,
        terms.log_probability,
        terms.confidence_error,
        terms.statistics,
    )


@torch.library.custom_op("dspark_calib::soft_label_gradient", mutates_args=())
def soft_label_gradient_op(
    grad_distance: Tensor,
    grad_log_probability: Tensor | None,
    draft: Tensor,
    target: Tensor,
    draft_temperature: Tensor,
    target_temperature: Tensor,
    labels: Tensor | None,
    statistics: Tensor,
) -> Tensor:
    """Gradient to the draft scores; see the twins."""
    gradient: Tensor = _soft_label_twin(draft, target).soft_label_gradient(
        grad_distance,
        grad_log_probability,
        draft,
        target,
        draft_temperature,
        target_temperature,
        labels,
        statistics,
    )
    return gradient


def _soft_label_twin(draft: Tensor, target: Tensor) -> Any:
    if kernel_dispatch.decide("soft_label", (draft, target)).uses_kernels:
        from heads.kernels import soft_label

        return soft_label
    return soft_label_reference


@soft_label_op.register_fake
def _(
    draft: Tensor,
    target: Tensor,
    draft_temperature: Tensor,
    target_temperature: Tensor,
    draft_log_sum_exp: Tensor | None,
    target_log_sum_exp: Tensor | None,
    labels: Tensor | None,
    confidence_logits: Tensor | None,
    exact_match: bool,
    outside: bool,
    needs_slope: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    rows = draft.shape[0]
    dtype = torch.promote_types(torch.promote_types(draft.dtype, target.dtype), torch.float32)

    def column(wanted: bool) -> Tensor:
        return draft.new_empty(rows if wanted else 0, dtype=dtype)

    statistics = draft.new_empty((STATISTICS, rows), dtype=dtype)
    return (
        column(True),
        column(not exact_match),
        column(labels is not None),
        column(confidence_logits is not None),
        statistics,
    )


@soft_label_gradient_op.register_fake
def _(
    grad_distance: Tensor,
    grad_log_probability: Tensor | None,
    draft: Tensor,
    target: Tensor,
    draft_temperature: Tensor,
    target_temperature: Tensor,
    labels: Tensor | None,
    statistics: Tensor,
) -> Tensor:
    return torch.empty_like(draft, memory_format=torch.contiguous_format)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    draft, target, draft_temperature, target_temperature, _, _, labels, logits, exact, _, _ = inputs
    label, distance, log_probability, error, statistics = output
    absent = [distance] if exact else []
    absent += [log_probability] if labels is None else []
    absent += [error] if logits is None else []
    ctx.mark_non_differentiable(label, statistics, *absent)
    ctx.save_for_backward(draft, target, draft_temperature, target_temperature, labels, statistics)
    ctx.logits_dtype = None if logits is None else logits.dtype
    ctx.set_materialize_grads(False)


def _backward(
    ctx: Any,
    _label: Tensor | None,
    distance: Tensor | None,
    log_probability: Tensor | None,
    error: Tensor | None,
    _statistics: Tensor | None,
) -> tuple[Tensor | None, ...]:
    draft, target, draft_temperature, target_temperature, labels, statistics = ctx.saved_tensors
    grad_draft = grad_logits = None
    if ctx.needs_input_grad[0] and (distance is not None or log_probability is not None):
        grad_draft = soft_label_gradient_op(
            torch.zeros_like(statistics[0]) if distance is None else distance,
            log_probability,
            draft,
            target,
            draft_temperature,
            target_temperature,
            labels,
            statistics,
        )
    if ctx.needs_input_grad[7] and error is not None:
        # Rows that count nothing may be no distribution, and 0 · NaN would be NaN.
        slope = torch.where(error == 0.0, 0.0, statistics[CONFIDENCE_SLOPE])
        grad_logits = (error * slope).to(ctx.logits_dtype)
    return grad_draft, None, None, None, None, None, None, grad_logits, None, None, None


soft_label_op.register_autograd(_backward, setup_context=_keep)


def soft_label_terms(
    draft: Tensor,  # [..., V]
    target: Tensor,  # [..., V]
    *,
    rule: AcceptanceRule | str = AcceptanceRule.REJECTION,
    draft_mode: DraftMode | str = DraftMode.SAMPLED,
    temperature: Tensor | float = 1.0,  # [...] or one number
    draft_log_sum_exp: Tensor | None = None,  # [...]
    target_log_sum_exp: Tensor | None = None,  # [...]
    labels: Tensor | None = None,  # [...] long
    confidence_logits: Tensor | None = None,  # [...]
    outside: bool = False,
) -> SoftLabelTerms:
    """Labels, distances and losses of rows of scores, each in the leading shape [...].

    Distance and log-probability differentiate to the draft scores, the confidence error to the
    confidence logits; nothing differentiates to the target. NaN marks rows that are no
    distribution, so that nothing has to wait for the device;
    :func:`heads.soft_labels.soft_labels` refuses them aloud.

    Args:
        draft: scores of the drafter.
        target: scores of the target for the same tokens.
        rule: how the target decides; ``block`` depends on drafted tokens and is not here.
        draft_mode: how the drafter picked its tokens.
        temperature: of whichever side samples; rows at 0 are greedy on both sides.
        draft_log_sum_exp: log Σ exp(x/T) if known: with both, rows are read once.
        target_log_sum_exp: as ``draft_log_sum_exp``; may count tokens that ``target`` leaves out.
        labels: tokens whose log-probability under the draft is wanted, −1 for none.
        confidence_logits: z, for the confidence error.
        outside: target mass that ``target_log_sum_exp`` counts and ``target`` lacks is distance.

    Raises:
        DistributionError: shapes that do not belong together.
        ConfigurationError: a rule that is not here, a negative temperature, or a log-sum-exp for a
            side that is greedy.
    """
    shape = draft.shape[:-1]
    _check_rows(draft, target, draft_log_sum_exp, target_log_sum_exp, labels, confidence_logits)
    draft_greedy, target_greedy, exact_match = _resolve(
        one_of("rule", rule, AcceptanceRule), one_of("draft_mode", draft_mode, DraftMode)
    )
    rows = _temperature_rows(temperature, draft)
    cold = not isinstance(temperature, Tensor) and temperature == 0.0
    _check_greedy(cold or draft_greedy, "draft_log_sum_exp", draft_log_sum_exp)
    _check_greedy(cold or target_greedy, "target_log_sum_exp", target_log_sum_exp)
    *columns, statistics = soft_label_op(
        draft.reshape(-1, draft.shape[-1]),
        target.detach().reshape(-1, target.shape[-1]),
        torch.zeros_like(rows) if draft_greedy else rows,
        torch.zeros_like(rows) if target_greedy else rows,
        _flat(draft_log_sum_exp),
        _flat(target_log_sum_exp),
        _flat(labels),
        None if confidence_logits is None else confidence_logits.reshape(-1),
        exact_match,
        outside,
        draft.requires_grad and torch.is_grad_enabled(),
    )
    label, distance, log_probability, error = (
        column.reshape(shape) if column.numel() == shape.numel() else column for column in columns
    )
    return SoftLabelTerms(label, distance, log_probability, error, statistics)


def _resolve(rule: AcceptanceRule, mode: DraftMode) -> tuple[bool, bool, bool]:
    """Whether the draft is greedy, whether the target is, and whether samples are compared."""
    if rule is AcceptanceRule.BLOCK and mode is DraftMode.SAMPLED:
        raise ConfigurationError(
            "rule", "block", "use calib.soft_labels: block verification depends on the draft"
        )
    return (
        mode is DraftMode.GREEDY,
        rule is AcceptanceRule.GREEDY,
        rule is AcceptanceRule.EXACT_MATCH,
    )


def _check_rows(draft: Tensor, target: Tensor, *columns: Tensor | None) -> None:
    if draft.dim() < 1 or draft.shape != target.shape or draft.shape[-1] < 1:
        raise DistributionError("target", tuple(target.shape), f"give {tuple(draft.shape)}")
    if not draft.is_floating_point() or not target.is_floating_point():
        raise DistributionError("draft", draft.dtype, "give floating-point scores")
    for column in columns:
        if column is not None and column.shape != draft.shape[:-1]:
            remedy = f"give one a row, {tuple(draft.shape[:-1])}"
            raise DistributionError("rows", tuple(column.shape), remedy)


def _check_greedy(greedy: bool, field: str, log_sum_exp: Tensor | None) -> None:
    if greedy and log_sum_exp is not None:
        raise ConfigurationError(field, "given", "leave it out: this side is greedy")


def _temperature_rows(temperature: Tensor | float, draft: Tensor) -> Tensor:
    """[R] or [1] float32."""
    if isinstance(temperature, Tensor):
        rows = temperature.to(device=draft.device, dtype=torch.float32)
        if temperature.numel() == 1:
            return rows.reshape(1)
        if temperature.shape != draft.shape[:-1]:
            raise ConfigurationError(
                "temperature", tuple(temperature.shape), f"give {tuple(draft.shape[:-1])}"
            )
        return rows.reshape(-1)
    if not 0.0 <= temperature < float("inf"):
        raise ConfigurationError("temperature", temperature, "give 0 (greedy) or more")
    return torch.full((1,), temperature, dtype=torch.float32, device=draft.device)


def _flat(values: Tensor | None) -> Tensor | None:
    return None if values is None else values.detach().reshape(-1)


# ---- reliability ----


@torch.library.custom_op("dspark_calib::reliability_bins", mutates_args=())
def reliability_bins_op(
    p: Tensor,
    y: Tensor,
    mask: Tensor | None,
    bins: Tensor | None,
    log_losses: Tensor | None,
    cells: int,
) -> tuple[Tensor, Tensor]:
    """(sums, invalid); see the twins."""
    if kernel_dispatch.decide("reliability_bins", (p, y)).uses_kernels:
        from heads.kernels.reliability_bins import reliability_sums as kernel

        found = kernel(p, y, mask, cells, bins=bins, log_losses=log_losses)
    else:
        found = reliability_reference.reliability_sums(
            p, y, mask, cells, bins=bins, log_losses=log_losses
        )
    return found.sums, found.invalid


@reliability_bins_op.register_fake
def _(
    p: Tensor,
    y: Tensor,
    mask: Tensor | None,
    bins: Tensor | None,
    log_losses: Tensor | None,
    cells: int,
) -> tuple[Tensor, Tensor]:
    sums = len(SUM_NAMES) if log_losses is not None else len(SUM_NAMES) - 1
    gamma = p.shape[1]
    return (
        p.new_empty((sums, gamma, cells), dtype=torch.int64),
        p.new_empty(gamma, dtype=torch.int64),
    )


def reliability_sums(
    p: Tensor,  # [N, g] in [0, 1]
    y: Tensor,  # [N, g] in [0, 1]
    mask: Tensor | None = None,  # [N, g] bool
    cells: int = 15,
    *,
    bins: Tensor | None = None,  # [N, g] integers
    log_losses: Tensor | None = None,  # [N, g] nats
) -> BinnedSums:
    """Additive reliability sums on the device of ``p``, bit-equal to ``calib.reliability``.

    Args:
        p: predictions.
        y: labels, hard or soft; anything where the mask is False.
        mask: what counts; all when None.
        cells: bins, or ``heads.reference.reliability_bins.cells_of`` for equal mass.
        bins: cells instead of p's own; −1 and ``cells`` leave a row out.
        log_losses: loss of each cell, 0 or more.

    Raises:
        ConfigurationError: shapes that differ, or a number of cells out of range.
    """
    reliability_reference.cells_of(cells)
    if p.dim() != 2:
        raise ConfigurationError("p", tuple(p.shape), "give [rows, positions]")
    for name, values in (("y", y), ("mask", mask), ("bins", bins), ("log_losses", log_losses)):
        if values is not None and values.shape != p.shape:
            raise ConfigurationError(name, tuple(values.shape), f"give {tuple(p.shape)}")
    return BinnedSums(*reliability_bins_op(p.detach(), y.detach(), mask, bins, log_losses, cells))
