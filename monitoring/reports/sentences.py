"""Reports in plain sentences, the most important first. A point is 1/100 of a probability."""

from __future__ import annotations

from collections.abc import Iterator

from calib.calibration import Calibration
from calib.position_metrics import PositionMetrics
from calib.statuses import PositionStatus, ServingStatus
from calib.survival_leak import SurvivalLeak
from monitoring.reports.evaluation_report import Comparison, EvaluationReport, Segment
from monitoring.reports.fit_report import FitReport, RowSplit
from monitoring.reports.fitted_numbers import choice_sentence, form_sentence, left_out_sentence
from monitoring.reports.throughput import Throughput

__all__ = [
    "evaluation_sentences",
    "fit_sentences",
    "headline",
    "points",
    "position_sentences",
    "worth_sentences",
]

# Gaps of means within this many standard errors of 0 are chance.
_STANDARD_ERRORS = 2.0
# A partial correlation below this moves survival by less than a tenth of a point.
_NEGLIGIBLE_LEAK = 0.02
# A smaller part of a gap would read "removes 0.0 of them".
_SHOWN = 0.0005
_ONE = 1e-5  # numbers are kept to six digits
# A tenant with more of the rows than this decides what they say.
_LARGE_TENANT = 0.5


def fit_sentences(report: FitReport) -> list[str]:
    """What a fit gained, on which rows, and what stands in its way."""
    return [
        *_refusal(report),
        _rows(report.split),
        *_choice(report),
        *position_sentences(report.calibration),
        *evaluation_sentences(report.evaluation),
        *_references(report),
    ]


def evaluation_sentences(report: EvaluationReport) -> list[str]:
    """What the judged rows say about raw and calibrated confidence."""
    overall = report.overall
    return [
        *_form(report),
        *_block(overall),
        *_mean_error(overall),
        *_log_loss(overall),
        *_mean_gap(overall),
        *_accepted(overall),
        *_tenants(report.tenant_shares),
        *_slices("By domain", report.segments_by("domain")),
        *_slices("By sampling temperature", report.segments_by("sampling_temperature")),
        *_worse(report.segments),
        *_leak(report.leak),
        *_soft_labels(report),
        *_excluded(report),
        *(f"Warning: {word.replace('_', ' ')}." for word in report.warnings),
    ]


def headline(report: EvaluationReport) -> str | None:
    """The one sentence for somebody in a hurry: where confidence is most wrong, and what is left.

    None where there are no rows to say it of.
    """
    gap = _worst_gap(report.overall)
    # Where means are right the errors lie in the bins: what all positions say together comes first.
    return gap if gap is not None else next(_block(report.overall), None)


def worth_sentences(worth: Throughput | None) -> Iterator[str]:
    """What recalibration is worth in tokens a second; none where that is unknown or nothing."""
    if worth is None or worth.regret is None or worth.regret.loss == 0.0:
        return
    loss, low, high = worth.regret.loss, worth.regret.loss_low, worth.regret.loss_high
    if low is None or high is None:
        yield f"Replayed, raw confidence loses {_percent(loss)} of the tokens a second."
    elif low <= 0.0 <= high:
        yield (
            "No difference in tokens a second can be shown: raw confidence loses "
            f"{_percent(loss)} [{_percent(low)}, {_percent(high)}] against calibrated confidence."
        )
    elif loss > 0.0:
        yield (
            f"Calibration is worth {_percent(loss)} [{_percent(low)}, {_percent(high)}] of the "
            "tokens a second."
        )
    else:
        yield (
            f"Calibration costs {_percent(-loss)} [{_percent(-high)}, {_percent(-low)}] of the "
            "tokens a second: it lowers no regret."
        )


def _percent(share: float) -> str:
    text = f"{100.0 * share:.2f}"
    return f"{'0.00' if text == '-0.00' else text} %"


def points(value: float) -> str:
    """A probability or a difference of two, in points with one decimal."""
    text = f"{100.0 * value:.1f}"
    return "0.0" if text == "-0.0" else text


def _refusal(report: FitReport) -> Iterator[str]:
    if report.refusal is not None:
        yield f"Nothing is published. {report.refusal.rstrip('.')}."


def _rows(split: RowSplit) -> str:
    if split.in_sample:
        return (
            f"Fitted and judged on the same {split.fit_rows:,} blocks: these numbers are too kind. "
            "Split by prompt, or judge on other telemetry."
        )
    fitted, judged = f"{split.fit_rows:,} blocks", f"{split.evaluation_rows:,} blocks"
    if split.fit_keys is not None and split.evaluation_keys is not None:
        fitted += f" of {split.fit_keys:,} {split.kind}s"
        judged += f" of {split.evaluation_keys:,} other {split.kind}s"
    else:
        judged += " of other telemetry"
    return f"Fitted on {fitted}, judged on {judged}."


def _choice(report: FitReport) -> Iterator[str]:
    if report.choice is not None:
        yield f"{choice_sentence(report.choice)}."
    left_out = left_out_sentence(report.left_out, report.options, report.split.fit_rows)
    affine, alone = report.calibration.slopes is not None, report.evaluation.form == "affine"
    said = form_sentence(report.form_losses, affine=affine, alone=alone)
    refused = alone and report.refusal is not None  # the refusal speaks of both forms
    for sentence in (left_out, None if refused else said):
        if sentence is not None:
            yield f"{sentence}."


def _form(report: EvaluationReport) -> Iterator[str]:
    if report.form == "affine":
        yield "What follows judges slopes and intercepts; every temperature is 1: raw confidence."


def _block(overall: Comparison) -> Iterator[str]:
    raw, calibrated = (side.block["survival"] for side in (overall.raw, overall.calibrated))
    if raw.value is None or calibrated.value is None:
        return
    before = f"{points(raw.value)} points [{points(raw.low or 0)}, {points(raw.high or 0)}]"
    if overall.raw is overall.calibrated:
        yield f"The survival error of raw confidence over all positions is {before} (debiased)."
        return
    after = f"{points(calibrated.value)} [{points(calibrated.low or 0)}, "
    after += f"{points(calibrated.high or 0)}]"
    # Within the interval of raw confidence nothing was shown to change.
    moved = calibrated.value < (raw.low or 0.0) or calibrated.value > (raw.high or 0.0)
    verb = "goes" if moved else "hardly moves,"
    verb = "falls" if moved and calibrated.value < raw.value else verb
    yield f"Over all positions the survival error {verb} from {before} to {after} (debiased)."


def _mean_error(overall: Comparison) -> Iterator[str]:
    raw = overall.raw.report.survival.weighted_mean
    calibrated = overall.calibrated.report.survival.weighted_mean
    if raw.ece is None or calibrated.ece is None or calibrated.null_level is None:
        return
    after = "" if overall.raw is overall.calibrated else f", {points(calibrated.ece)} calibrated"
    yield (
        f"Mean survival ECE: {points(raw.ece)} points raw{after}; a perfect model would show "
        f"{points(calibrated.null_level)} on these rows."
    )


def _log_loss(overall: Comparison) -> Iterator[str]:
    """An ECE can fall while forecasts get worse: sharp nonsense averages out in its bins."""
    raw = overall.raw.report.survival.weighted_mean.log_loss
    calibrated = overall.calibrated.report.survival.weighted_mean.log_loss
    if raw is not None and calibrated is not None and calibrated > raw:
        yield (
            f"But the mean log loss of survival rises from {raw:.4f} to {calibrated:.4f} nats: "
            "block by block these forecasts are worse than raw confidence."
        )


def _mean_gap(overall: Comparison) -> Iterator[str]:
    if any(_gap(metrics) is not None for metrics in overall.raw.report.survival):
        right = "On average raw survival is right at every position, within chance."
        yield _worst_gap(overall) or right


def _worst_gap(overall: Comparison) -> str | None:
    """The position at which mean raw survival is furthest from observed survival.

    None where no position is off by more than chance.
    """
    pairs = list(zip(overall.raw.report.survival, overall.calibrated.report.survival, strict=True))
    known = [
        (abs(gap), gap, index)
        for index, (raw, _) in enumerate(pairs)
        if (gap := _gap(raw)) is not None
    ]
    if not known:
        return None
    size, gap, index = max(known)
    raw, calibrated = pairs[index]
    if size <= _STANDARD_ERRORS * _standard_error(raw):
        return None
    word = "overconfident" if gap > 0 else "underconfident"
    sentence = f"Raw confidence is {word} by {points(size)} points at position {index + 1}"
    if overall.raw is overall.calibrated:
        return f"{sentence} (survival)."
    left = abs(_gap(calibrated) or 0.0)
    removed = size - left
    effect = (
        f"removes {points(removed)} of them"
        if removed >= _SHOWN
        else f"leaves {points(left)}, which is no gain"
    )
    return f"{sentence} (survival); calibration {effect}."


def _accepted(overall: Comparison) -> Iterator[str]:
    length, lengths = overall.acceptance.accepted_length, overall.lengths
    if length is None:
        return
    said = f"Accepted length {length:.2f}, bonus token included"
    if lengths.raw.predicted is not None:
        said += f"; raw confidence predicts {lengths.raw.predicted:.2f}"
    if overall.raw is not overall.calibrated and lengths.calibrated.predicted is not None:
        said += f", calibrated confidence {lengths.calibrated.predicted:.2f}"
    yield f"{said}."


def _tenants(shares: tuple[float, ...]) -> Iterator[str]:
    if shares and shares[0] > _LARGE_TENANT:
        yield (
            f"One tenant sent {100.0 * shares[0]:.0f} % of these blocks: the numbers are mostly "
            "about its traffic."
        )


def _gap(metrics: PositionMetrics) -> float | None:
    if metrics.mean_prediction is None or metrics.mean_label is None:
        return None
    return metrics.mean_prediction - metrics.mean_label


def _standard_error(metrics: PositionMetrics) -> float:
    share = metrics.mean_label or 0.0
    return float((share * (1.0 - share) / max(metrics.effective_n, 1.0)) ** 0.5)


def _slices(title: str, segments: tuple[Segment, ...]) -> Iterator[str]:
    texts = []
    for part in segments:
        (value,) = part.tags.values()
        errors = _errors(part)
        if errors is None:
            texts.append(f"{value} (only {part.rows:,} blocks)")
        else:
            before, after = errors
            texts.append(f"{value} ({points(before)} → {points(after)})")
    if texts:
        yield f"{title}, mean survival ECE raw → calibrated: {', '.join(texts)}."


def _errors(part: Segment) -> tuple[float, float] | None:
    if part.comparison is None:
        return None
    raw = part.comparison.raw.report.survival.weighted_mean.ece
    calibrated = part.comparison.calibrated.report.survival.weighted_mean.ece
    return None if raw is None or calibrated is None else (raw, calibrated)


def _worse(segments: tuple[Segment, ...]) -> Iterator[str]:
    """Slices in which calibration costs more than what chance explains."""
    for part in segments:
        if part.comparison is None:
            continue
        raw = part.comparison.raw.block["survival"]
        calibrated = part.comparison.calibrated.block["survival"]
        if raw.high is not None and calibrated.low is not None and calibrated.low > raw.high:
            yield (
                f"Calibration makes {part.name} worse: its survival error goes from "
                f"{points(raw.value or 0)} to {points(calibrated.value or 0)} points (debiased)."
            )


def _leak(leak: SurvivalLeak) -> Iterator[str]:
    pooled = leak.pooled
    if pooled.partial is None or pooled.partial_low is None or pooled.partial_high is None:
        return
    interval = f"{pooled.partial:.3f} [{pooled.partial_low:.3f}, {pooled.partial_high:.3f}]"
    negligible = max(abs(pooled.partial_low), abs(pooled.partial_high)) < _NEGLIGIBLE_LEAK
    if not pooled.is_present or negligible:
        yield (
            f"The next logit says nothing more about an outcome (partial correlation {interval}): "
            "the product of conditionals will do as survival."
        )
        return
    gap = pooled.product_gap or 0.0
    direction = "understates" if gap > 0 else "overstates"
    yield (
        f"The next logit knows about the outcome before it (partial correlation {interval}): over "
        f"two positions the product of conditionals {direction} survival by "
        f"{points(abs(gap))} points, which a survival model could win back."
    )


def _soft_labels(report: EvaluationReport) -> Iterator[str]:
    found = report.soft_labels
    if found is not None and found.rows:
        reason = found.reason[0].upper() + found.reason[1:]
        yield f"{reason}." if not found.inconsistent else f"Labels disagree: {found.reason}."


def _excluded(report: EvaluationReport) -> Iterator[str]:
    counts = [
        f"{count:,} {reason.replace('_', ' ')}"
        for reason, count in report.excluded.items()
        if count
    ]
    if counts:
        yield f"Left out: {', '.join(counts)}."


def _references(report: FitReport) -> Iterator[str]:
    texts = []
    for kind, judgement in report.references.items():
        ece = judgement.report.survival.weighted_mean.ece
        if ece is not None:
            name = "Platt" if kind == "platt" else kind
            texts.append(f"{name} {points(ece)}")
    if texts:
        yield (
            "Calibrators that no engine can apply, fitted on the same prompts, reach in mean "
            f"survival ECE: {', '.join(texts)} points."
        )


def position_sentences(calibration: Calibration) -> Iterator[str]:
    """Positions without a number of their own, grouped by status, and why; none for identity."""
    if calibration.status is ServingStatus.IDENTITY:
        return
    fits = calibration.evidence.get("positions", ())
    by_status: dict[PositionStatus, list[int]] = {}
    for index, status in enumerate(calibration.position_statuses):
        if status is not PositionStatus.OK:
            by_status.setdefault(status, []).append(index)
    for status, indices in by_status.items():
        served = {f"{calibration.temperatures[index]:g}" for index in indices}
        names = ", ".join(str(index + 1) for index in indices)
        reasons = [fits[index]["reason"] for index in indices if index < len(fits)]
        reason = reasons[0] if reasons else None
        if reason and len(set(reasons)) > 1:
            reason = f"Position {indices[0] + 1}: {reason[0].lower()}{reason[1:]}"
        yield (
            f"{'Positions' if len(indices) > 1 else 'Position'} {names} "
            f"{'keep' if len(indices) > 1 else 'keeps'} T = {', '.join(sorted(served))} "
            f"({status.replace('_', ' ')}). {reason or ''}".rstrip()
        )
    yield from _without_slopes(calibration)


def _without_slopes(calibration: Calibration) -> Iterator[str]:
    """Positions of a served affine form without a slope of their own, and why the first is."""
    fits = calibration.evidence.get("affine", ())
    if calibration.slopes is None or calibration.intercepts is None or not fits:
        return
    plain = [
        fit
        for fit, slope, shift, temperature in zip(
            fits,
            calibration.slopes,
            calibration.intercepts,
            calibration.temperatures,
            strict=True,
        )
        if fit["status"] != PositionStatus.OK
        and shift == 0.0
        and abs(slope * temperature - 1) < _ONE
    ]
    if plain:
        names = ", ".join(str(fit["position"]) for fit in plain)
        reason = f" Position {plain[0]['position']}: {plain[0]['reason']}" if len(plain) > 1 else ""
        yield (
            f"The slope of position{'s' if len(plain) > 1 else ''} {names} is 1/T, the intercept 0."
            f"{reason or ' ' + str(plain[0]['reason'])}"
        )
