from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from scipy.special import logit

from calib.calibration import Calibration
from calib.errors import ConfigurationError, InvalidInputError
from calib.evaluation import SEGMENT_TAGS, evaluate, evaluate_by
from calib.metrics import calibration_metrics
from calib.record_schema import Flag
from calib.records import AcceptanceRecords
from tests.support.telemetry import GAMMA, TEMPERATURES, synthetic_columns, synthetic_records


def _records(logits: Any, verified: Any, accepted: Any, **columns: Any) -> AcceptanceRecords:
    rows = np.atleast_2d(np.asarray(logits, dtype=np.float32))
    values = {"confidence_logits": rows, "verified": verified, "accepted": accepted, **columns}
    return AcceptanceRecords.from_columns(rows.shape[1], values)


def test_r16_errors_that_cancel_in_the_product_show_in_the_conditional_view() -> None:
    """True rates .7 then .8, confidences .8 then .7: survival .56 is right by luck."""
    accepted = np.repeat([0, 1, 2], [300, 140, 560])
    logits = np.tile(logit([0.8, 0.7]), (1000, 1))
    report = evaluate(_records(logits, [2] * 1000, accepted), Calibration.identity(2))
    assert report.survival[1].ece == pytest.approx(0.0, abs=1e-6)
    assert report.survival[0].ece == pytest.approx(0.1, abs=1e-6)
    assert [m.ece for m in report.conditional] == pytest.approx([0.1, 0.1], abs=1e-6)
    assert set(report.to_dict()) >= {"conditional", "survival"}


def test_r37_coverage_beside_the_rate_among_verified() -> None:
    """Position 3: 60 of 100 blocks verified, 54 accepted."""
    verified = [3] * 60 + [2] * 40
    accepted = [3] * 54 + [2] * 6 + [2] * 40
    report = evaluate(_records(np.zeros((100, 3)), verified, accepted), Calibration.identity(3))
    third = report.survival[2]
    assert (third.n, third.coverage, third.mean_label) == (60, 0.6, pytest.approx(0.9))
    assert report.conditional[2].coverage == 0.6
    assert report.observed == (1.0, 1.0, 0.6)


def test_known_zeros_beyond_the_verified_length_take_no_part() -> None:
    """n < ℓ < k is known to be 0 because of the outcome: counting it is the trap."""
    report = evaluate(
        _records(np.zeros((4, 3)), [1, 1, 3, 3], [0, 1, 3, 1]), Calibration.identity(3)
    )
    assert [m.n for m in report.survival] == [4, 2, 2]
    assert [m.mean_label for m in report.survival] == [0.75, 0.5, 0.5]
    assert [m.n for m in report.conditional] == [4, 2, 1]  # k <= min(n + 1, ℓ)


def test_r13_saturated_logits_through_both_views() -> None:
    records = _records(np.full((1, 2), 40.0), [2], [1])
    report = evaluate(records, Calibration.identity(2))
    assert report.conditional[1].log_loss == pytest.approx(40.0, rel=1e-12)
    assert report.survival[1].log_loss == pytest.approx(40.0 - np.log(2.0), rel=1e-12)
    halved = evaluate(records, Calibration.from_temperatures([2.0, 2.0], gamma=2))
    assert halved.conditional[1].log_loss == pytest.approx(20.0, rel=1e-8)


def test_r09_means_skip_a_position_of_one_class() -> None:
    logits = np.random.default_rng(0).normal(size=(60, 2))
    accepted = np.where(np.arange(60) % 3 == 0, 0, 2)  # whoever passes position 1 passes 2
    report = evaluate(_records(logits, [2] * 60, accepted), Calibration.identity(2))
    first, second = report.conditional
    assert second.auc is None
    assert second.reasons["auc"] == "one_class"
    assert second.ece is not None
    assert report.conditional.mean.auc == first.auc
    assert report.conditional.weighted_mean.ece == pytest.approx(
        (60 * first.ece + 40 * second.ece) / 100
    )
    assert report.conditional.mean.ece == pytest.approx((first.ece + second.ece) / 2)


def test_views_are_the_metrics_of_their_rows() -> None:
    records = synthetic_records(800, seed=3)
    calibration = Calibration.from_temperatures(TEMPERATURES, gamma=GAMMA)
    report = evaluate(records, calibration, cluster_column=None)
    k = 2
    n, length = records.accepted, records.verified
    rows = length >= k + 1
    direct = calibration_metrics(
        calibration.survival(records.confidence_logits)[rows, k], (n >= k + 1)[rows]
    )
    assert report.survival[k].ece == direct.ece
    assert report.survival[k].n == rows.sum()
    rows = np.minimum(n + 1, length) >= k + 1
    direct = calibration_metrics(
        calibration.conditional(records.confidence_logits)[rows, k], (n >= k + 1)[rows]
    )
    assert report.conditional[k].ece == direct.ece
    assert report.conditional[k].log_loss == pytest.approx(direct.log_loss, abs=1e-6)


def test_right_temperatures_beat_identity() -> None:
    records = synthetic_records(6000, seed=1)
    right = evaluate(records, Calibration.from_temperatures(TEMPERATURES, gamma=GAMMA))
    raw = evaluate(records, Calibration.identity(GAMMA))
    assert right.conditional.mean.debiased_ece_squared < 0.001
    assert raw.conditional.mean.debiased_ece_squared > 0.001
    assert right.conditional.mean.log_loss < raw.conditional.mean.log_loss
    for ours, theirs in zip(right.conditional, raw.conditional, strict=True):
        assert ours.auc == pytest.approx(theirs.auc, abs=1e-9)  # R27: a temperature ranks nothing


def test_soft_labels_of_the_conditional_view() -> None:
    soft = np.array([[0.5, np.nan], [0.7, 0.2], [np.nan, 0.9]], dtype=np.float32)
    records = _records(np.tile(logit([0.6, 0.5]), (3, 1)), [2, 2, 2], [0, 1, 0], soft_labels=soft)
    report = evaluate(records, Calibration.identity(2), label_kind="soft_full")
    first, second = report.conditional
    assert (first.n, second.n) == (2, 1)  # c* known and k <= min(n + 1, ℓ)
    assert first.brier == pytest.approx(0.01, abs=1e-6)
    assert first.log_loss == pytest.approx(0.673012, abs=1e-6)
    assert second.mean_label == pytest.approx(0.2, abs=1e-6)
    assert report.survival[0].mean_label == pytest.approx(1 / 3)  # hard in any case
    assert report.to_dict()["label_kind"] == "soft_full"


def test_label_kinds_that_cannot_be_had() -> None:
    records = _records([[0.0]], [1], [1])
    identity = Calibration.identity(1)
    with pytest.raises(InvalidInputError, match="no soft labels"):
        evaluate(records, identity, label_kind="soft_full")
    with pytest.raises(ConfigurationError, match="bounds"):
        evaluate(records, identity, label_kind="soft_truncated")
    with pytest.raises(ConfigurationError, match="hard"):
        evaluate(records, identity, label_kind="firm")


def test_excluded_rows_are_counted_and_left_out() -> None:
    records = _records(np.zeros((3, 1)), [1] * 3, [1, 0, 0], flags=[0, int(Flag.WARMUP), 0])
    report = evaluate(records, Calibration.identity(1))
    assert report.n_rows == 2
    assert report.excluded["warmup"] == 1
    assert report.conditional[0].mean_label == 0.5


def test_no_rows_at_all() -> None:
    report = evaluate(AcceptanceRecords.empty(2), Calibration.identity(2))
    assert report.n_rows == 0
    assert report.observed == (None, None)
    assert report.survival.mean.ece is None
    assert report.survival[1].reasons["ece"] == "no_rows"
    json.dumps(report.to_dict(), allow_nan=False)


def test_cluster_column() -> None:
    columns = {"request": ["a", "a", "b", None], "prompt": ["p", "p", "p", "q"]}
    args: Any = (np.zeros((4, 1)), [1] * 4, [1, 0, 1, 0])
    both, request, none = (
        _records(*args, **columns),
        _records(*args, request=columns["request"]),
        _records(*args),
    )
    identity = Calibration.identity(1)

    def used(records: AcceptanceRecords, column: Any) -> tuple[str | None, int]:
        report = evaluate(records, identity, cluster_column=column)
        return report.cluster_column, report.n_clusters

    assert used(both, "auto") == ("prompt", 2)
    assert used(request, "auto") == ("request", 3)  # the unknown request stands alone
    assert used(none, "auto") == (None, 4)
    assert used(both, None) == (None, 4)
    with pytest.raises(ConfigurationError):
        used(none, "prompt")
    with pytest.raises(ConfigurationError):
        used(both, "verified")


def test_row_order_changes_no_binned_number() -> None:
    records = synthetic_records(500, seed=2)
    shuffled = records.select(np.random.default_rng(0).permutation(500))
    identity = Calibration.identity(GAMMA)
    one, other = (evaluate(r, identity).survival for r in (records, shuffled))
    assert [m.ece for m in one] == [m.ece for m in other]
    assert [m.auc for m in one] == [m.auc for m in other]


def test_by_segment() -> None:
    records = synthetic_records(900, seed=4)
    identity = Calibration.identity(GAMMA)
    reports = evaluate_by(records, identity, "domain")
    assert list(reports) == ["chat", "code", "math"]
    assert sum(report.n_rows for report in reports.values()) == 900
    code = evaluate(records.select(records.domain == "code"), identity)
    assert reports["code"].to_dict() == code.to_dict()


def test_by_segment_with_unknown_values_last() -> None:
    args: Any = (np.zeros((3, 1)), [1] * 3, [1, 0, 1])
    identity = Calibration.identity(1)
    texts = _records(*args, domain=["b", None, "a"])
    assert list(evaluate_by(texts, identity, "domain")) == ["a", "b", None]
    numbers = _records(*args, sampling_temperature=[0.7, None, 0.0])
    assert [*evaluate_by(numbers, identity, "sampling_temperature")][::2] == [0.0, None]
    lengths = _records(*args, context_length=[9, None, 9])
    by_length = evaluate_by(lengths, identity, "context_length")
    assert {value: r.n_rows for value, r in by_length.items()} == {9: 2, None: 1}


@pytest.mark.parametrize("tag", ["verified", "accepted", "scheduled", "soft_labels", "colour"])
def test_outcomes_are_no_segments(tag: str) -> None:
    """Given ℓ the labels of a perfect model are off by up to .1: such a split is refused."""
    with pytest.raises(ConfigurationError, match="domain"):
        evaluate_by(synthetic_records(20), Calibration.identity(GAMMA), tag)


def test_missing_segment_column() -> None:
    with pytest.raises(ConfigurationError, match="no such column"):
        evaluate_by(_records([[0.0]], [1], [1]), Calibration.identity(1), "domain")


def test_segment_tags_are_columns() -> None:
    assert set(SEGMENT_TAGS) <= set(AcceptanceRecords.__dataclass_fields__)


def test_takes_any_two_functions() -> None:
    class Constant:
        def conditional(self, confidence_logits: Any) -> Any:
            return np.full(confidence_logits.shape, 0.9, dtype=np.float32)

        def survival(self, confidence_logits: Any) -> Any:
            return np.cumprod(self.conditional(confidence_logits), axis=1, dtype=np.float32)

    columns = synthetic_columns(200, seed=5)
    records = AcceptanceRecords.from_columns(GAMMA, columns)
    report = evaluate(records, Constant())
    assert report.survival[1].mean_prediction == pytest.approx(0.81, abs=1e-6)
    assert report.conditional[0].auc == 0.5
    share = float(np.mean(records.accepted >= 1))
    expected = -(share * np.log(0.9) + (1 - share) * np.log(0.1))
    assert report.conditional[0].log_loss == pytest.approx(expected, abs=1e-6)
