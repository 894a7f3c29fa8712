"""What a recalibration can show for itself: errors before and after on rows it did not see."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from calib.calibration import Form
from calib.held_out_guard import HeldOutVerdict, improves_survival
from calib.position_metrics import PositionMetrics
from calib.statuses import Refusal
from monitoring.held_out_rows import HeldOutRows
from monitoring.recalibration_choice import rounded
from monitoring.reports.block_error import BlockError
from monitoring.reports.evaluation_report import Judgement

__all__ = ["HeldOutComparison", "code_versions"]

_NEGLIGIBLE = 5e-4  # a difference of two errors that both print alike


@dataclass(frozen=True, slots=True)
class HeldOutComparison:
    """The champion and a new fit, judged on the same rows that the fit did not see.

    Attributes:
        champion: revision number of the version in use.
        before: its judgement.
        after: the new fit's judgement; the same object where both serve the same numbers.
        rows: the split.
        form: by which both were judged; ``"affine"`` where the temperatures are the champion's, and
            by its temperatures where it has no affine form.
    """

    champion: int
    before: Judgement
    after: Judgement
    rows: HeldOutRows
    form: Form = "temperatures"

    @property
    def verdict(self) -> HeldOutVerdict:
        """Whether the new fit replaces the champion: less error, and no more log loss."""
        if self.before is self.after:
            reason = f"the fit serves the same numbers as revision {self.champion}"
            return HeldOutVerdict(False, Refusal.NOT_BETTER, f"{reason}: nothing would change")
        against = f"against revision {self.champion}"
        if self.form == "affine":
            against = f"by slopes and intercepts {against}"
        found = improves_survival(self.before.report, self.after.report, against=against)
        if found is None:
            reason = "no held-out row informs a survival: nothing was measured"
            return HeldOutVerdict(False, Refusal.NOT_BETTER, reason)
        return found

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values, six significant digits; nulls where nothing was measured."""
        before, after = self.before.report.survival, self.after.report.survival
        blocks = (self.before.block["survival"], self.after.block["survival"])
        return {
            "champion": self.champion,
            "form": self.form,
            "split": self.rows.to_dict(),
            "survival_ece": {
                "before": rounded(before.weighted_mean.ece),
                "after": rounded(after.weighted_mean.ece),
                "perfect": rounded(after.weighted_mean.null_level),
            },
            "survival_log_loss": {
                "before": rounded(before.weighted_mean.log_loss),
                "after": rounded(after.weighted_mean.log_loss),
            },
            "block_error": {"before": _block(blocks[0]), "after": _block(blocks[1])},
            "positions": [
                _position(k + 1, *pair) for k, pair in enumerate(zip(before, after, strict=True))
            ],
        }

    def sentences(self) -> Iterator[str]:
        """What changed, for a person; a point is 1/100 of a probability."""
        found = self.to_dict()
        yield _split_sentence(found["split"])
        if self.form == "affine":
            yield (
                "No temperature serves better than those of revision "
                f"{self.champion}: engines that apply temperatures alone keep them, and what "
                "follows is of slopes and intercepts."
            )
        error, block = found["survival_ece"], found["block_error"]
        loss = found["survival_log_loss"]
        if error["before"] is None or error["after"] is None:
            yield "No held-out row informs a survival: nothing was measured."
            return
        perfect = f"a perfect model would show {_points(error['perfect'] or 0.0)} on these rows"
        if self.before is self.after:
            yield (
                f"Mean survival error of what is served now, revision {self.champion}: "
                f"{_points(error['before'])} points; {perfect}. The fit found no other numbers."
            )
            return
        yield (
            f"Mean survival error: {_points(error['before'])} points under revision "
            f"{self.champion}, {_points(error['after'])} with the new numbers; {perfect}."
        )
        if block["before"]["value"] is not None and block["after"]["value"] is not None:
            yield (
                f"Over the whole block (debiased, with 95 % interval): {_interval(block['before'])}"
                f" before, {_interval(block['after'])} after."
            )
        if loss["before"] is not None and loss["after"] is not None:
            yield _loss_sentence(loss["before"], loss["after"])


def code_versions() -> dict[str, str]:
    """Versions of what decides a fit's numbers, by name."""
    names = ("dspark-calib", "numpy", "scipy")
    found = {"python": platform.python_version()}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "unknown"  # run from a checkout that is not installed
    return found


def _position(position: int, before: PositionMetrics, after: PositionMetrics) -> dict[str, Any]:
    return {
        "position": position,
        "rows": after.n,
        "effective_rows": rounded(after.effective_n),
        "ece": {"before": rounded(before.ece), "after": rounded(after.ece)},
        "auc": {"before": rounded(before.auc), "after": rounded(after.auc)},
        "debiased_error": {"before": _debiased(before), "after": _debiased(after)},
        "log_loss": {"before": rounded(before.log_loss), "after": rounded(after.log_loss)},
    }


def _debiased(metrics: PositionMetrics) -> dict[str, float | None]:
    return {
        "value": rounded(metrics.debiased_ece),
        "low": rounded(metrics.debiased_ece_low),
        "high": rounded(metrics.debiased_ece_high),
    }


def _block(error: BlockError) -> dict[str, float | None]:
    return {
        "value": rounded(error.value),
        "low": rounded(error.low),
        "high": rounded(error.high),
    }


def _points(value: float) -> str:
    return f"{abs(100.0 * value):.1f}"


def _interval(error: Mapping[str, float | None]) -> str:
    value, low, high = (error[name] or 0.0 for name in ("value", "low", "high"))
    return f"{_points(value)} points [{_points(low)}, {_points(high)}]"


def _split_sentence(split: Mapping[str, Any]) -> str:
    fit, judged = f"{split['fit_rows']:,} blocks", f"{split['judged_rows']:,} blocks"
    if split["fit_keys"] is not None:
        fit += f" of {split['fit_keys']:,} {split['kind']}s"
        judged += f" of {split['judged_keys']:,} other {split['kind']}s"
    plain = f"Fitted on {fit}, judged on {judged}"
    return f"{plain}." if split["kind"] == "prompt" else f"{plain}: {split['note']}."


def _loss_sentence(before: float, after: float) -> str:
    if after > before:
        change = f"rises from {before:.4f} to {after:.4f}"
        return f"The log loss of survival {change} nats: block by block the forecasts get worse."
    if before - after < _NEGLIGIBLE * before:
        return f"The log loss of survival stays at {before:.4f} nats."
    return f"The log loss of survival falls from {before:.4f} to {after:.4f} nats."
