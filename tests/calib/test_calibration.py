from __future__ import annotations

import copy
import json
import pickle
from dataclasses import FrozenInstanceError, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from calib.calibration import Calibration, CalibrationKey
from calib.canonical_json import sha256_hex
from calib.errors import CalibrationValueError, FormatError, RecordError
from calib.statuses import PositionStatus, ServingStatus

KEY = CalibrationKey("t", "r1", "none", "d", "r2", "none", 3, "anchor_excluded")
OK = PositionStatus.OK

RICH = Calibration(
    gamma=3,
    temperatures=(1.5, 1.25, 1.0),
    slopes=(0.7, 0.8, 1.0),
    intercepts=(0.1, -0.2, 0.0),
    status=ServingStatus.PARTIAL,
    position_statuses=(OK, OK, PositionStatus.AT_BOUND),
    method="affine",
    label_kind="hard",
    key=KEY,
    evidence={"rows": [100, 90, 80], "held_out": {"ece": 0.01}},
    fitted_at="2026-11-29T12:00:00Z",
)


def test_identity_changes_nothing_and_says_so() -> None:
    identity = Calibration.identity(3, KEY)
    assert identity.temperatures == (1.0, 1.0, 1.0)
    assert identity.status is ServingStatus.IDENTITY
    assert identity.method == "identity"
    z = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
    expected = (1 / (1 + np.exp(-z.astype(np.float64)))).astype(np.float32)
    assert np.array_equal(identity.conditional(z), expected)


def test_from_temperatures_rounds_to_six_digits() -> None:
    fitted = Calibration.from_temperatures([1.5848932266, 2], gamma=2)
    assert fitted.temperatures == (1.58489, 2.0)
    assert fitted.status is ServingStatus.FITTED
    assert fitted.position_statuses == (OK, OK)


def test_status_follows_from_the_positions() -> None:
    statuses = [OK, PositionStatus.ONE_CLASS]
    partial = Calibration.from_temperatures([1.5, 1.0], gamma=2, position_statuses=statuses)
    assert partial.status is ServingStatus.PARTIAL


R69: list[Any] = [[1.0, float("nan")], [0], [-1], [], "1.0", [True], ["1.5"], [1e400], [1, 1, 1]]


@pytest.mark.parametrize("values", R69, ids=str)
def test_r69_no_calibration_holds_wrong_temperatures(values: Any) -> None:
    gamma = 2 if values == R69[0] else 1
    with pytest.raises(CalibrationValueError, match="temperatures"):
        Calibration.from_temperatures(values, gamma=gamma)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"slopes": None}, "intercepts"),
        ({"slopes": (0.7, 0.8, 30.0)}, "slopes"),
        ({"intercepts": (0.0, 0.0, float("inf"))}, "intercepts"),
        ({"status": "fitted"}, "status"),
        ({"status": "identity"}, "status"),
        ({"status": "great"}, "status"),
        ({"position_statuses": (OK,)}, "position_statuses"),
        ({"method": "guess"}, "method"),
        ({"label_kind": "firm"}, "label_kind"),
        ({"fitted_at": 3}, "fitted_at"),
        ({"evidence": {"ece": float("nan")}}, "evidence"),
        ({"key": replace(KEY, gamma=4)}, "key.gamma"),
        ({"key": "mine"}, "key"),
        ({"derived_from_gamma": 3}, "derived_from_gamma"),
        ({"gamma": 4}, "temperatures"),
    ],
    ids=str,
)
def test_inconsistent_fields_are_named(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(CalibrationValueError) as caught:
        replace(RICH, **changes)
    assert caught.value.field.startswith(field)


def test_is_immutable_down_to_the_evidence() -> None:
    with pytest.raises(FrozenInstanceError):
        RICH.gamma = 4  # type: ignore[misc]
    with pytest.raises(TypeError):
        RICH.evidence["rows"] = []  # type: ignore[index]
    with pytest.raises(TypeError):
        RICH.evidence["held_out"]["ece"] = 0.0


def test_digest_covers_key_and_numbers_only() -> None:
    numbers = {
        "key": KEY.to_dict(),
        "gamma": 3,
        "temperatures": [1.5, 1.25, 1],
        "slopes": [0.7, 0.8, 1],
        "intercepts": [0.1, -0.2, 0],
    }
    assert RICH.digest == sha256_hex(numbers)
    same_numbers = replace(RICH, evidence={}, fitted_at=None, method="manual")
    assert same_numbers.digest == RICH.digest
    assert same_numbers != RICH
    for changes in (
        {"temperatures": (1.5, 1.25, 1.00001)},
        {"key": None},
        {"intercepts": (0, 0, 0)},
    ):
        assert replace(RICH, **changes).digest != RICH.digest


def test_equal_within_six_digits_is_equal_bytes() -> None:
    close = replace(RICH, temperatures=(1.5000004, 1.2500003, 0.9999999))
    assert close == RICH
    assert close.to_json() == RICH.to_json()
    assert len({close, RICH}) == 1
    assert RICH != "a calibration"


@pytest.mark.parametrize("calibration", [RICH, Calibration.identity(3), RICH.prefix(2)])
def test_json_round_trip_is_exact(calibration: Calibration) -> None:
    data = calibration.to_json()
    again = Calibration.from_json(data)
    assert again == calibration
    assert again.to_json() == data
    assert data == json.dumps(json.loads(data), separators=(",", ":"), sort_keys=True).encode()


def test_copies_and_pickles_are_equal() -> None:
    assert pickle.loads(pickle.dumps(RICH)) == RICH
    assert copy.deepcopy(RICH) == RICH


def edited(**changes: Any) -> bytes:
    values = json.loads(RICH.to_json())
    for name, value in changes.items():
        if value is ...:
            del values[name]
        else:
            values[name] = value
    return json.dumps(values).encode()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b'{"temperatures": [NaN]}',
        edited(format="other/1"),
        edited(format=...),
        edited(temperatures=...),
        edited(colour="red"),
        edited(digest="0" * 64),
        edited(temperatures=[1.5, 1.25, 1.125]),
    ],
)
def test_foreign_and_damaged_json_is_refused(data: bytes) -> None:
    with pytest.raises(FormatError):
        Calibration.from_json(data)


@pytest.mark.parametrize(
    ("name", "value"),
    [("temperatures", ["1.5", 1, 1]), ("temperatures", [0, 1, 1]), ("key", 3), ("evidence", [])],
)
def test_wrong_values_in_json_are_named(name: str, value: Any) -> None:
    with pytest.raises(CalibrationValueError, match=name):
        Calibration.from_json(edited(**{name: value}))


def test_r69_numbers_beyond_doubles_in_json() -> None:
    text = RICH.to_json().decode().replace('"temperatures":[1.5', '"temperatures":[1e400')
    with pytest.raises(CalibrationValueError, match=r"temperatures\[0\]: got inf"):
        Calibration.from_json(text)


def test_prefix_is_marked_and_keeps_the_key() -> None:
    short = RICH.prefix(2)
    assert short.gamma == 2
    assert short.temperatures == (1.5, 1.25)
    assert short.slopes == (0.7, 0.8)
    assert short.intercepts == (0.1, -0.2)
    assert short.derived_from_gamma == 3
    assert short.key == KEY
    assert short.status is ServingStatus.FITTED  # the position at a bound was cut off
    assert short.prefix(1).derived_from_gamma == 3
    assert RICH.prefix(3) is RICH
    assert Calibration.identity(3).prefix(1).status is ServingStatus.IDENTITY


@pytest.mark.parametrize("gamma", [4, 0, -1, True, 2.0])
def test_prefix_never_grows(gamma: Any) -> None:
    with pytest.raises(CalibrationValueError, match="gamma"):
        RICH.prefix(gamma)


def test_conditional_and_survival_by_hand() -> None:
    # R18: 100 blocks with logits 2.0 and 1.5 and their temperatures.
    fitted = Calibration.from_temperatures([2.3604, 1.7703], gamma=2)
    z = np.array([[2.0, 1.5]])
    assert fitted.conditional(z)[0] == pytest.approx([0.7, 0.7], abs=1e-4)
    assert fitted.survival(z)[0] == pytest.approx([0.7, 0.49], abs=1e-4)
    affine = RICH.conditional(np.array([[1.0, 2.0, -1.0]]), form="affine")[0]
    expected = 1 / (1 + np.exp(-np.array([0.8, 1.4, -1.0])))
    assert affine == pytest.approx(expected, abs=1e-7)


def test_survival_is_multiplied_in_fp32_from_the_left() -> None:
    z = np.random.default_rng(3).normal(size=(200, 3)).astype(np.float32)
    c = RICH.conditional(z)
    by_hand = np.empty_like(c)
    by_hand[:, 0] = c[:, 0]
    by_hand[:, 1] = by_hand[:, 0] * c[:, 1]
    by_hand[:, 2] = by_hand[:, 1] * c[:, 2]
    assert RICH.survival(z).dtype == np.float32
    assert np.array_equal(RICH.survival(z), by_hand)


def test_extreme_logits_give_zero_and_one_without_warnings() -> None:
    calibration = Calibration.from_temperatures([0.05], gamma=1)
    assert calibration.conditional([[3e38], [-3e38], [0.0]]).ravel().tolist() == [1.0, 0.0, 0.5]


@pytest.mark.parametrize("z", [np.zeros((2, 4)), 1.0, [[1.0, np.nan, 0.0]], [[1e39, 0.0, 0.0]]])
def test_wrong_logits_are_refused(z: Any) -> None:
    with pytest.raises(RecordError, match="confidence_logits"):
        RICH.conditional(z)


def test_unknown_or_missing_form_is_refused() -> None:
    with pytest.raises(CalibrationValueError, match="affine"):
        Calibration.identity(3).survival(np.zeros((1, 3)), form="affine")
    with pytest.raises(CalibrationValueError, match="form"):
        RICH.survival(np.zeros((1, 3)), form="slopes")  # type: ignore[arg-type]


logit_blocks = hnp.arrays(
    np.float32,
    st.tuples(st.integers(1, 20), st.just(4)),
    elements=st.floats(-(2.0**100), 2.0**100, width=32) | st.floats(-30, 30, width=32),
)
temperatures = st.lists(st.floats(0.05, 20.0), min_size=4, max_size=4)


@pytest.mark.property
@given(logit_blocks, temperatures)
def test_r27_survival_never_rises_along_a_block(z: Any, values: list[float]) -> None:
    survival = Calibration.from_temperatures(values, gamma=4).survival(z)
    assert (np.diff(survival, axis=1) <= 0).all()
    assert ((survival >= 0) & (survival <= 1)).all()


@pytest.mark.property
@given(logit_blocks, temperatures)
def test_r27_temperatures_keep_the_order_within_a_position(z: Any, values: list[float]) -> None:
    c = Calibration.from_temperatures(values, gamma=4).conditional(z)
    ranked = np.take_along_axis(c, np.argsort(z, axis=0), axis=0)
    assert (np.diff(ranked, axis=0) >= 0).all()


def test_r27_auc_is_the_same_at_any_temperature() -> None:
    rng = np.random.default_rng(5)
    z = rng.normal(scale=2.0, size=(400, 1)).astype(np.float32)
    accepted = rng.random(400) < 1 / (1 + np.exp(-z[:, 0]))

    def auc(scores: Any) -> float:
        wins = scores[accepted][:, None] - scores[~accepted][None, :]
        return float(np.mean((wins > 0) + 0.5 * (wins == 0)))

    raw = auc(z[:, 0])
    for value in (0.5, 1.0, 1.7, 20.0):
        c = Calibration.from_temperatures([value], gamma=1).conditional(z)[:, 0]
        assert auc(c) == raw
