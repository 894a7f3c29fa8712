"""The numbers of a fit on files: by the method asked for, or by the one that held-out rows choose.

``"auto"`` is the recalibration job's: :func:`monitoring.recalibration_choice.choose_method` splits
the rows to fit on once more and judges nothing on the rows of the report. Numbers are for all
traffic; a file of temperatures has no room for segments.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal

from calib.calibration import Calibration
from calib.calibration_key import CalibrationKey
from calib.records import AcceptanceRecords
from calib.sequential_temperature_scaling import SequentialTemperatureScaling
from monitoring.challenger_fit import affine_alone, clearly_gains, confirmed
from monitoring.recalibration_choice import FEW_ROWS, RULE_ON_FEW_ROWS, choose_method
from monitoring.recalibration_methods import MethodFit, MethodRules, fit_pool
from monitoring.recalibration_rows import FitRows, trimmed_mask
from monitoring.served_numbers import ServedNumbers

if TYPE_CHECKING:
    from monitoring.reports.fit_report import FitOptions

__all__ = [
    "METHOD_WORDS",
    "FileMethod",
    "FittedNumbers",
    "choice_sentence",
    "fitted_numbers",
    "form_sentence",
    "left_out_sentence",
]

FileMethod = Literal["auto", "sts", "temperature", "affine", "survival"]

METHOD_WORDS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "sts": "Sequential Temperature Scaling",
        "temperature": "temperatures by conditional likelihood",
        "affine": "slopes and intercepts by conditional likelihood",
        "survival": "temperatures fitted to imputed survival",
    }
)

# Whoever gives a file has chosen its rows; the report says where one tenant sent most of them.
_TENANT_SHARE: Final = 1.0


@dataclass(frozen=True, slots=True)
class FittedNumbers:
    """Numbers, and how their method came about.

    Attributes:
        calibration: for all traffic, with statuses by position.
        choice: evidence of :class:`monitoring.recalibration_choice.Choice`; None where the method
            was asked for by name.
        form_losses: log loss of survival by form on the judged rows, nats a label: ``temperatures``
            and, where they were fitted, ``affine``, served or not. Empty for ``sts``.
        fit: that the numbers come from; None for ``sts`` by name.
        left_out: rows to fit on that the method did not read, or not to their last position.
    """

    calibration: Calibration
    choice: Mapping[str, Any] | None = None
    form_losses: Mapping[str, float] = field(default_factory=dict)
    fit: MethodFit | None = None
    left_out: int = 0

    def affine_alone(self, judged: AcceptanceRecords) -> FittedNumbers | None:
        """Slopes and intercepts beside raw confidence; None without a clear case for them.

        Args:
            judged: as in :func:`fitted_numbers`.
        """
        raw = ServedNumbers(Calibration.identity(judged.gamma))
        found = None if self.fit is None else affine_alone(self.fit, raw)
        if found is None or not clearly_gains(found, judged, raw):
            return None
        kept, forms = confirmed(found, judged)
        losses = forms["survival_log_loss"]
        return replace(self, calibration=kept.calibration, form_losses=losses, fit=kept)


def fitted_numbers(
    fit: AcceptanceRecords,
    judged: AcceptanceRecords,
    options: FitOptions,
    *,
    key: CalibrationKey | None = None,
    fitted_at: str | None = None,
) -> FittedNumbers:
    """Numbers fitted on rows, without an affine form where the judged rows speak against it.

    Args:
        fit: usable rows to fit on.
        judged: usable rows that may only take something away.
        options: method, mode, bins and minimum rows.
        key: what the numbers are for.
        fitted_at: ISO 8601 time to store.

    Raises:
        FitRefusedError: ``no_rows`` or ``looks_like_probabilities``.
    """
    if options.method == "sts":
        estimator = SequentialTemperatureScaling(
            mode=options.mode, n_bins=options.n_bins, minimum_rows=options.minimum_rows
        )
        found = estimator.fit_records(fit)
        # Parity mode drops every shorter row; our own search, what lies beyond a row's length. A
        # stop token that cut a fully scheduled block is no trimming.
        short = fit.verified < fit.gamma if options.mode == "parity" else trimmed_mask(fit)
        numbers = found.calibration(key, fitted_at=fitted_at)
        return FittedNumbers(numbers, left_out=int(short.sum()))
    rules = MethodRules(options.minimum_rows, key=key, fitted_at=fitted_at)
    evidence: Mapping[str, Any] | None = None
    if options.method == "auto":
        choice = choose_method(fit, _TENANT_SHARE, rules, segments=False)
        method, evidence = choice.method, choice.evidence
    else:
        method = options.method
    kept, forms = confirmed(fit_pool(method, FitRows.of(fit, _TENANT_SHARE), rules), judged)
    losses = forms["survival_log_loss"]
    return FittedNumbers(kept.calibration, evidence, losses, kept, len(fit) - kept.rows)


def choice_sentence(choice: Mapping[str, Any]) -> str:
    """Which method was chosen and why, without the full stop.

    Args:
        choice: evidence of a :class:`monitoring.recalibration_choice.Choice`.
    """
    chosen, best = choice["chosen"], choice["best"]
    losses = {entry["method"]: _nats(entry["log_loss"]) for entry in choice["candidates"]}
    where = f"nats a label on {choice['scored_rows']:,} blocks held out from the choice"
    if chosen == "survival" and choice["rule"] == RULE_ON_FEW_ROWS:
        others = ", ".join(f"{name} {loss}" for name, loss in losses.items() if name != chosen)
        why = f"below {FEW_ROWS:,} blocks it is taken unless held-out log loss is clearly against "
        why += f"it ({losses[chosen]}{f'; {others}' if others else ''} {where})"
    elif chosen == best:
        why = f"its log loss is the smallest ({losses[chosen]} {where})"
    else:
        why = f"the simplest whose log loss ({losses[chosen]} {where}) lies within one standard "
        why += f"error of the smallest ({best}, {losses[best]})"
    refused = f"; not possible here: {', '.join(choice['refused'])}" if choice["refused"] else ""
    return f"Method {chosen} ({METHOD_WORDS[chosen]}) was chosen: {why}{refused}"


def _nats(loss: float | None) -> str:
    return "unknown" if loss is None else f"{loss:.4f}"


def left_out_sentence(rows: int, options: FitOptions, of: int) -> str | None:
    """Which rows a fit did not read, without the full stop; None where it read them all.

    Args:
        rows: ``left_out`` of :class:`FittedNumbers`.
        options: of the fit.
        of: rows to fit on.
    """
    if not rows:
        return None
    count = f"{rows:,} of {of:,} blocks"
    if options.method == "auto":
        return (
            f"Method sts left out {count}, which were trimmed or may have been verified fully for "
            "their confidence; method survival reads them all"
        )
    how = f"Method sts is for fully verified blocks and left out {count}"
    if options.mode == "default":
        how += ", which were trimmed, beyond the position they were verified to"
    return f"{how}; methods auto and survival read them all"


def form_sentence(losses: Mapping[str, float], *, affine: bool, alone: bool = False) -> str | None:
    """What became of slopes and intercepts, without the full stop; None where none were fitted.

    Args:
        losses: of :class:`FittedNumbers`.
        affine: whether they are served.
        alone: whether every temperature is 1.
    """
    if "affine" not in losses:
        return None
    found, other = _nats(losses["affine"]), _nats(losses["temperatures"])
    if affine and alone:
        return (
            "No temperature fits, and slopes and intercepts do: engines that apply them are served "
            f"a calibration (log loss of survival {found} nats), the others, SGLang's file among "
            f"them, raw confidence (T = 1, {other} nats)"
        )
    if affine:
        return (
            "The calibration has slopes and intercepts too, for engines that apply them: log loss "
            f"of survival {found} nats, {other} by the temperatures, which are judged here"
        )
    return (
        "Slopes and intercepts were fitted and left out: they would raise the log loss of survival "
        f"from {other} to {found} nats on the judged blocks"
    )
