"""Fit a calibration on some prompts and judge it on others: the whole job as one pure function."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, get_args

from calib.calibration import Calibration, CalibrationKey
from calib.canonical_json import plain_json
from calib.conditional_temperature import ConditionalTemperature
from calib.errors import ConfigurationError, FitRefusedError, RecordError
from calib.fit_status import MINIMUM_ROWS
from calib.held_out_guard import HeldOutVerdict, improves_survival
from calib.label_consistency import check_label_consistency
from calib.prompt_split import DEFAULT_SALT, SplitColumn, split_by_prompt
from calib.records import AcceptanceRecords
from calib.reliability import DEFAULT_BINS
from calib.statuses import PositionStatus, Refusal, ServingStatus
from monitoring.challenger_fit import is_identity, no_numbers
from monitoring.reports.evaluation_report import (
    MINIMUM_SEGMENT_ROWS,
    EvaluationReport,
    Judgement,
    evaluation_report,
)
from monitoring.reports.fitted_numbers import (
    METHOD_WORDS,
    FileMethod,
    FittedNumbers,
    choice_sentence,
    fitted_numbers,
)

__all__ = ["FitOptions", "FitReport", "RowSplit", "fit_report"]

Mode = Literal["default", "parity"]


@dataclass(frozen=True, slots=True)
class FitOptions:
    """How to fit and how to judge.

    Attributes:
        method: ``"auto"`` (the recalibration job's choice by held-out log loss), ``"survival"``,
            ``"temperature"`` or ``"affine"`` (right on trimmed telemetry too), or ``"sts"``
            (Sequential Temperature Scaling, where everything was verified).
        mode: of STS: ``"default"``, or ``"parity"`` for the numbers of SGLang's fitter.
        evaluation_share: share of prompts kept for evaluation, in (0, 1).
        split_column: ``"prompt"`` or ``"request"``; None fits and judges on the same rows, and the
            report says so.
        salt: draws the split.
        n_bins: bins of every ECE.
        minimum_rows: rows a position needs before its number is published.
        minimum_segment_rows: rows a slice needs for numbers of its own.
        with_references: also judge isotonic and Platt calibrators fitted on the same rows.
    """

    method: FileMethod = "auto"
    mode: Mode = "default"
    evaluation_share: float = 0.5
    split_column: SplitColumn | None = "prompt"
    salt: str = DEFAULT_SALT
    n_bins: int = DEFAULT_BINS
    minimum_rows: int = MINIMUM_ROWS
    minimum_segment_rows: int = MINIMUM_SEGMENT_ROWS
    with_references: bool = False

    def __post_init__(self) -> None:
        for name, choices in (("method", get_args(FileMethod)), ("mode", get_args(Mode))):
            if getattr(self, name) not in choices:
                raise ConfigurationError(name, getattr(self, name), f"give one of {choices}")
        if self.mode == "parity" and self.method != "sts":
            remedy = f"belongs to method 'sts'; ask for that too, not for {self.method!r}"
            raise ConfigurationError("mode", "parity", remedy)


@dataclass(frozen=True, slots=True)
class RowSplit:
    """Which rows were fitted on and which judged.

    Attributes:
        kind: ``"prompt"``, ``"request"``, ``"files"`` (evaluated on telemetry of its own) or
            ``"none"`` (the same rows: the evaluation is too kind).
        fit_rows: usable rows fitted on.
        evaluation_rows: usable rows judged on.
        fit_keys: prompts or requests fitted on; None where unknown.
        evaluation_keys: prompts or requests judged on; None where unknown.
        salt: what drew the split, or None.
    """

    kind: str
    fit_rows: int
    evaluation_rows: int
    fit_keys: int | None = None
    evaluation_keys: int | None = None
    salt: str | None = None

    @property
    def in_sample(self) -> bool:
        """Whether the fit was judged on its own rows."""
        return self.kind == "none"

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "kind": self.kind,
            "in_sample": self.in_sample,
            "fit_rows": self.fit_rows,
            "evaluation_rows": self.evaluation_rows,
            "fit_keys": self.fit_keys,
            "evaluation_keys": self.evaluation_keys,
            "salt": self.salt,
        }


@dataclass(frozen=True, slots=True)
class FitReport:
    """A fit, its evidence, and whether it may be published.

    Attributes:
        options: what was asked for.
        calibration: the fitted numbers with their statuses.
        split: rows fitted and judged on.
        evaluation: raw against calibrated confidence on the judged rows.
        verdict: whether the numbers beat raw confidence there; None where nothing was fitted.
        references: what flexible calibrators reach on the same split, by kind; empty when not
            asked for.
        source: free text on where the rows come from.
        choice: candidates of ``"auto"`` and their losses; None where the method was named.
        form_losses: log loss of survival by form on the judged rows, nats a label.
        left_out: rows to fit on that the method did not read, or not to their last position.
    """

    options: FitOptions
    calibration: Calibration
    split: RowSplit
    evaluation: EvaluationReport
    verdict: HeldOutVerdict | None
    references: Mapping[str, Judgement]
    source: str
    choice: Mapping[str, Any] | None = None
    form_losses: Mapping[str, float] = field(default_factory=dict)
    left_out: int = 0

    @property
    def method(self) -> str:
        """The method asked for; after ``"auto"`` the one chosen."""
        return self.options.method if self.choice is None else str(self.choice["chosen"])

    @property
    def method_words(self) -> str:
        """That method in words."""
        return METHOD_WORDS[self.method]

    @property
    def refusal(self) -> str | None:
        """Why nothing should be published, in a sentence; None where it may be."""
        # Beside raw confidence slopes may stand alone, but for positions of too few rows.
        informed = {PositionStatus.OK, PositionStatus.TEMPERATURE_CANNOT_FIT}
        tried = not informed.isdisjoint(self.calibration.position_statuses)
        none = no_numbers(self.calibration, slopes_tried=tried)
        if self.calibration.status is ServingStatus.INSUFFICIENT:
            return f"{ServingStatus.INSUFFICIENT}: {none}"
        if is_identity(self.calibration):
            suspected = [f"{word.replace('_', ' ')}; " for word in self.evaluation.warnings]
            return f"{Refusal.NOT_BETTER}: {''.join(suspected)}{none}"
        if self.verdict is not None and not self.verdict.replace:
            return f"{self.verdict.refusal}: {self.verdict.reason}"
        return None

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; nothing is NaN.

        Raises:
            InvalidInputError: never, unless a metric broke its promise not to be NaN.
        """
        document: Mapping[str, Any] = {
            "format": "dspark-calib/fit-report/1",
            "source": self.source,
            "method": self.options.method,
            "mode": self.options.mode,
            "choice": self._choice(),
            "form_losses": dict(self.form_losses),
            "left_out": self.left_out,
            "calibration": self.calibration.to_dict(),
            "split": self.split.to_dict(),
            "refusal": self.refusal,
            "evaluation": self.evaluation.to_dict(),
            "references": {kind: found.to_dict() for kind, found in self.references.items()},
        }
        plain: dict[str, Any] = plain_json(document, "report")
        return plain

    def _choice(self) -> dict[str, Any] | None:
        if self.choice is None:
            return None
        return {**self.choice, "sentence": f"{choice_sentence(self.choice)}."}


def fit_report(
    records: AcceptanceRecords,
    options: FitOptions | None = None,
    *,
    evaluate_on: AcceptanceRecords | None = None,
    key: CalibrationKey | None = None,
    source: str = "",
    fitted_at: str | None = None,
) -> FitReport:
    """Fit on one part of the prompts, judge raw and calibrated confidence on the other.

    Args:
        records: telemetry of one drafter.
        options: defaults when None.
        evaluate_on: telemetry of other prompts to judge on; ``records`` is not split then.
        key: what the numbers are for.
        source: free text for the report.
        fitted_at: ISO 8601 time to store; None keeps the result a function of the rows alone.

    Raises:
        FitRefusedError: ``no_rows``, ``looks_like_probabilities``, or ``label_inconsistent``.
        RecordError: no split column, or telemetry of another γ.
        ConfigurationError: an option outside its range.
    """
    chosen = options or FitOptions()
    usable = _usable(records)
    fit_rows, judged_rows, split = _split(usable, evaluate_on, chosen)
    check_label_consistency(usable).require()
    numbers = fitted_numbers(fit_rows, judged_rows, chosen, key=key, fitted_at=fitted_at)
    judge = partial(
        evaluation_report,
        judged_rows,
        n_bins=chosen.n_bins,
        minimum_segment_rows=chosen.minimum_segment_rows,
        conditional_model=_conditional_model(fit_rows, chosen),
    )
    numbers, evaluation = _judged(numbers, judged_rows, judge)
    return FitReport(
        options=chosen,
        calibration=numbers.calibration,
        split=split,
        evaluation=evaluation,
        verdict=_verdict(evaluation),
        references=_references(fit_rows, judged_rows, chosen),
        source=source,
        choice=numbers.choice,
        form_losses=numbers.form_losses,
        left_out=numbers.left_out,
    )


def _judged(
    numbers: FittedNumbers,
    judged: AcceptanceRecords,
    judge: Callable[[Calibration], EvaluationReport],
) -> tuple[FittedNumbers, EvaluationReport]:
    """The numbers and their judgement; slopes and intercepts alone where temperatures fail it."""
    evaluation = judge(numbers.calibration)
    verdict = _verdict(evaluation)
    served = numbers.calibration.status is not ServingStatus.INSUFFICIENT
    if served and verdict is not None and verdict.replace:
        return numbers, evaluation
    alone = numbers.affine_alone(judged)
    if alone is None:
        return numbers, evaluation
    again = judge(alone.calibration)
    better = _verdict(again)
    return (alone, again) if better is not None and better.replace else (numbers, evaluation)


def _conditional_model(rows: AcceptanceRecords, options: FitOptions) -> Calibration:
    """Conditionals by their own likelihood, whatever is served: the leak is measured with them."""
    # Numbers of too few rows are good enough to take a temperature out of a correlation.
    return (
        ConditionalTemperature(n_bins=options.n_bins, minimum_rows=0)
        .fit_records(rows)
        .calibration()
    )


def _references(
    fit: AcceptanceRecords, judged: AcceptanceRecords, options: FitOptions
) -> Mapping[str, Judgement]:
    if not options.with_references:
        return {}
    # Not at the top: the module is only there for scikit-learn, which takes seconds to import.
    from monitoring.reports.comparison import reference_judgements

    return reference_judgements(fit, judged, n_bins=options.n_bins)


def _usable(records: AcceptanceRecords) -> AcceptanceRecords:
    rows = records.fitting_rows()
    if len(rows) == 0:
        counts = {name: count for name, count in records.exclusion_counts().items() if count}
        raise FitRefusedError(
            Refusal.NO_ROWS, f"none of {len(records)} rows may enter a fit; excluded: {counts}"
        )
    return rows


def _split(
    rows: AcceptanceRecords, evaluate_on: AcceptanceRecords | None, options: FitOptions
) -> tuple[AcceptanceRecords, AcceptanceRecords, RowSplit]:
    """Rows to fit on, rows to judge on, and how they were told apart."""
    if evaluate_on is not None:
        if evaluate_on.gamma != rows.gamma:
            remedy = f"give telemetry of the fit's gamma, {rows.gamma}"
            raise RecordError("evaluate_on.gamma", evaluate_on.gamma, remedy)
        judged = _usable(evaluate_on)
        _refuse_shared_prompts(rows, judged)
        return rows, judged, RowSplit("files", len(rows), len(judged))
    if options.split_column is None:
        return rows, rows, RowSplit("none", len(rows), len(rows))
    parts = split_by_prompt(
        rows,
        evaluation_share=options.evaluation_share,
        salt=options.salt,
        column=options.split_column,
    )
    split = RowSplit(
        kind=parts.column,
        fit_rows=len(parts.fit),
        evaluation_rows=len(parts.evaluation),
        fit_keys=parts.fit_keys,
        evaluation_keys=parts.evaluation_keys,
        salt=parts.salt,
    )
    return parts.fit, parts.evaluation, split


def _refuse_shared_prompts(fit: AcceptanceRecords, judged: AcceptanceRecords) -> None:
    if fit.prompt is None or judged.prompt is None:
        return
    shared = (set(fit.prompt) & set(judged.prompt)) - {None}
    if shared:
        raise RecordError(
            "evaluate_on.prompt",
            f"{len(shared)} prompts that were fitted on",
            "give telemetry of other prompts, or split one file by prompt",
        )


def _verdict(evaluation: EvaluationReport) -> HeldOutVerdict | None:
    """Compare survival means; None where the calibration is identity or nothing was measured."""
    overall = evaluation.overall
    if overall.raw is overall.calibrated:
        return None
    return improves_survival(overall.raw.report, overall.calibrated.report)
