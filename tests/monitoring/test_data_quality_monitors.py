"""Each fault is found, holds recalibration, clears when it is over, and survives a restart."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from calib.errors import ConfigurationError, FormatError
from calib.label_consistency import check_label_consistency
from calib.records import AcceptanceRecords
from monitoring.data_quality_monitors import (
    DataQualityMonitors,
    QualityFault,
    QualityState,
    QualityStatus,
    QualityVerdict,
    recalibration_held_by,
)

KEY = "a" * 64


def batch(rows: int = 500, seed: int = 0, rate: float = 0.7, **columns: Any) -> AcceptanceRecords:
    rng = np.random.default_rng(seed)
    labels = rng.random((rows, 3)) < rate
    data = {
        "confidence_logits": rng.normal(size=(rows, 3)),
        "verified": np.full(rows, 3),
        "accepted": np.cumprod(labels, axis=1).sum(axis=1),
    }
    return AcceptanceRecords.from_columns(3, data | columns)


class Stream:
    """Monitors that are fed through JSON, as a worker's are."""

    def __init__(self, **options: Any) -> None:
        self.monitors = DataQualityMonitors(gamma=3, key_digest=KEY, **options)
        self.state = self.monitors.start(now=0.0)
        self.verdicts: dict[QualityFault, QualityVerdict] = {}

    def feed(self, records: AcceptanceRecords | None, now: float = 1.0, **options: Any) -> Any:
        stored = json.loads(json.dumps(self.state.to_dict(), allow_nan=False))
        state = QualityState.from_dict(stored)
        assert state == self.state
        step = self.monitors.update(state, records, now=now, **options)
        self.state = step.state
        self.verdicts = {verdict.fault: verdict for verdict in step.verdicts}
        return self

    def held(self) -> tuple[QualityFault, ...]:
        return recalibration_held_by(self.verdicts.values())


def test_sound_traffic_holds_nothing() -> None:
    stream = Stream()
    for seed in range(20):
        stream.feed(batch(seed=seed), now=float(seed), key_digest=KEY)
        assert stream.held() == ()
    statuses = {fault: verdict.status for fault, verdict in stream.verdicts.items()}
    assert statuses.pop(QualityFault.LABEL_INCONSISTENT) is QualityStatus.INSUFFICIENT
    assert set(statuses.values()) == {QualityStatus.FINE}
    assert [*stream.verdicts] == [*QualityFault]


def test_r61_a_window_of_nan_only() -> None:
    """Validation refuses every row; the monitors alert and nothing crashes."""
    stream = Stream().feed(None, rejected=40)
    assert stream.held() == (QualityFault.INVALID_SHARE,)
    assert stream.verdicts[QualityFault.INVALID_SHARE].raised
    assert stream.feed(None, rejected=40).held() == (QualityFault.INVALID_SHARE,)
    assert not stream.verdicts[QualityFault.INVALID_SHARE].raised


def test_r61_a_window_of_nothing() -> None:
    stream = Stream(silence_seconds=60.0).feed(batch(), now=10.0)
    assert stream.feed(None, now=70.0).held() == ()
    assert stream.feed(None, now=71.0).held() == (QualityFault.SILENCE,)
    assert "no row for 61 s" in stream.verdicts[QualityFault.SILENCE].reason
    assert stream.feed(batch(), now=90.0).held() == ()
    silent = Stream(silence_seconds=60.0)
    assert silent.feed(None, now=61.0).held() == (QualityFault.SILENCE,)  # never a row at all


def test_r44_no_silence_while_speculation_is_off() -> None:
    stream = Stream(silence_seconds=60.0).feed(batch(), now=10.0)
    assert stream.feed(None, now=1000.0, expected=False).held() == ()


def test_invalid_share_clears_at_half_the_limit() -> None:
    stream = Stream(invalid_share=0.1, window_rows=500)
    assert stream.feed(batch(450), rejected=60).held() == (QualityFault.INVALID_SHARE,)
    assert stream.feed(batch(460), rejected=40).held() == (QualityFault.INVALID_SHARE,)  # 8 %
    assert stream.feed(batch(480), rejected=20).held() == ()  # 4 %
    assert stream.feed(batch(460), rejected=40).held() == ()  # 8 % again: no flapping


def test_few_rejected_rows_are_no_share_yet() -> None:
    stream = Stream().feed(batch(50), rejected=1)
    assert stream.verdicts[QualityFault.INVALID_SHARE].status is QualityStatus.INSUFFICIENT


def test_acceptance_collapse() -> None:
    stream = Stream(window_rows=400)
    stream.feed(batch(400, rate=0.01))
    assert stream.held() == (QualityFault.ACCEPTANCE_COLLAPSE,)
    assert stream.feed(batch(20)).held() == (QualityFault.ACCEPTANCE_COLLAPSE,)  # too few to clear
    assert stream.feed(batch(400)).held() == ()


def test_collapse_counts_usable_rows_that_checked_position_one() -> None:
    rejected = batch(400, rate=0.0)
    assert Stream().feed(rejected.with_flag(1, np.arange(400))).held() == ()
    unchecked = batch(400, verified=np.zeros(400, int), accepted=np.zeros(400, int))
    assert Stream().feed(unchecked).held() == ()


def test_confidence_collapse_names_the_position() -> None:
    logits = np.random.default_rng(1).normal(size=(400, 3))
    logits[:, 1] = 0.25
    stream = Stream(window_rows=400).feed(batch(400, confidence_logits=logits))
    assert stream.held() == (QualityFault.CONFIDENCE_COLLAPSE,)
    assert "position 2" in stream.verdicts[QualityFault.CONFIDENCE_COLLAPSE].reason
    assert stream.feed(batch(400)).held() == ()


def test_acceptance_of_exactly_one() -> None:
    stream = Stream()
    always = np.full(500, 3)
    stream.feed(batch(accepted=always)).feed(batch(accepted=always))
    assert stream.held() == ()  # 1,000 in a row at a true rate of .99: once in 23,000
    stream.feed(batch(accepted=always))
    assert stream.held() == (QualityFault.ALWAYS_ACCEPTED,)
    assert stream.feed(batch()).held() == ()  # a reject ends the run


def test_a_head_that_is_sure_is_given_longer() -> None:
    stream = Stream()
    sure = np.full((500, 3), 0.999, dtype=np.float32)
    for _ in range(10):
        stream.feed(batch(accepted=np.full(500, 3)), conditional=sure)
    assert stream.held() == ()


def test_label_inconsistency_is_taken_over() -> None:
    labels = np.full((3000, 3), 0.9, dtype=np.float32)
    wrong = check_label_consistency(batch(3000, rate=0.6, soft_labels=labels))
    right = check_label_consistency(batch(3000, rate=0.9, soft_labels=labels))
    stream = Stream().feed(batch(), consistency=wrong)
    assert stream.held() == (QualityFault.LABEL_INCONSISTENT,)
    assert "mean soft label" in stream.verdicts[QualityFault.LABEL_INCONSISTENT].reason
    assert stream.feed(batch()).held() == (QualityFault.LABEL_INCONSISTENT,)  # until checked again
    assert stream.feed(batch(), consistency=right).held() == ()


def test_foreign_rows_alert_and_leave_the_counts_alone() -> None:
    other = AcceptanceRecords.from_columns(
        2, {"confidence_logits": np.zeros((300, 2)), "verified": [2] * 300, "accepted": [2] * 300}
    )
    stream = Stream().feed(other)
    assert stream.held() == (QualityFault.GAMMA_MISMATCH,)
    assert stream.state.sent == 0
    stream = Stream().feed(batch(300), key_digest="b" * 64)
    assert stream.held() == (QualityFault.KEY_MISMATCH,)
    assert stream.state.sent == 0
    assert stream.state.last_row == 1.0  # the engine is alive all the same
    assert stream.feed(batch(300), key_digest=KEY).held() == ()


def test_verdicts_are_plain_json() -> None:
    stream = Stream().feed(None, rejected=40)
    [values] = [v.to_dict() for v in stream.verdicts.values() if v.holds_recalibration]
    assert json.loads(json.dumps(values)) == {
        "fault": "invalid_share",
        "status": "alert",
        "reason": "40 of 40 rows were rejected",
        "value": 1.0,
        "limit": 0.01,
        "engine": None,
        "raised": True,
        "holds_recalibration": True,
    }


def test_options_and_states_are_checked() -> None:
    for options in ({"invalid_share": 0.0}, {"silence_seconds": 0.0}, {"chance": 0.6}):
        with pytest.raises(ConfigurationError):
            Stream(**options)
    with pytest.raises(FormatError, match="quality state"):
        QualityState.from_dict({"started": 1.0})


def test_an_alert_says_how_far_off_it_is() -> None:
    dead = batch(accepted=np.zeros(500, dtype=int))
    found = Stream().feed(dead).verdicts[QualityFault.ACCEPTANCE_COLLAPSE]
    assert (found.status, found.value, found.limit) == (QualityStatus.ALERT, 0.0, 0.02)
    calm = Stream().feed(batch(engine=["decode-3"] * 500)).verdicts[QualityFault.INVALID_SHARE]
    assert (calm.value, calm.limit, calm.engine) == (0.0, 0.01, None)


@pytest.mark.parametrize(
    ("engines", "named"),
    [(["decode-3"] * 4, "decode-3"), (["decode-3", "decode-4"] * 2, None), (None, None)],
)
def test_rows_of_another_key_name_the_engine_that_sent_them(
    engines: list[str] | None, named: str | None
) -> None:
    columns: dict[str, Any] = {} if engines is None else {"engine": engines}
    stream = Stream().feed(batch(4, **columns), key_digest="b" * 64)
    assert stream.verdicts[QualityFault.KEY_MISMATCH].engine == named


def test_a_sound_engine_is_not_blamed_for_rows_of_another() -> None:
    dead = batch(600, accepted=np.zeros(600, dtype=int), engine=["decode-3"] * 600)
    stream = Stream().feed(dead).feed(batch(10, engine=["decode-4"] * 10))
    found = stream.verdicts[QualityFault.ACCEPTANCE_COLLAPSE]
    assert (found.status, found.engine) == (QualityStatus.ALERT, None)
