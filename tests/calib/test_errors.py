"""The error tree: what callers may catch, and messages that are enough to mend a call."""

from __future__ import annotations

import pickle

import pytest

from calib import errors
from calib.statuses import Refusal

INVALID = [
    errors.RecordError,
    errors.CalibrationValueError,
    errors.DistributionError,
    errors.ScheduleError,
    errors.ConfigurationError,
    errors.TargetLoadError,
]


@pytest.mark.parametrize("kind", INVALID)
def test_invalid_input_names_field_value_and_remedy(kind: type[errors.InvalidInputError]) -> None:
    error = kind("gamma", 0, "give 1 or more")
    assert str(error) == "gamma: got 0; give 1 or more"
    assert (error.field, error.value, error.remedy) == ("gamma", 0, "give 1 or more")
    assert isinstance(error, ValueError)
    assert isinstance(error, errors.CalibrationError)


def test_long_values_are_shortened_in_the_message_only() -> None:
    value = list(range(1000))
    error = errors.RecordError("accepted", value, "send whole numbers")
    assert len(str(error)) < 200
    assert "…" in str(error)
    assert error.value == value


def test_a_format_error_names_its_source() -> None:
    error = errors.FormatError("rows.parquet", "truncated", "write it again")
    assert str(error) == "rows.parquet: truncated; write it again"
    assert isinstance(error, ValueError)


def test_a_refusal_carries_its_status() -> None:
    error = errors.FitRefusedError(Refusal.NOT_BETTER, "no gain on 100 rows")
    assert error.status == "not_better"
    assert str(error) == "not_better: no gain on 100 rows"
    assert not isinstance(error, ValueError)


def test_not_fitted_is_what_scikit_learn_raises_too() -> None:
    error = errors.NotFittedError("call fit first")
    assert isinstance(error, ValueError)
    assert isinstance(error, AttributeError)


@pytest.mark.parametrize(
    "error",
    [
        *(kind("gamma", 0, "give 1 or more") for kind in INVALID),
        errors.FormatError("rows.parquet", "truncated", "write it again"),
        errors.FitRefusedError(Refusal.NOT_BETTER, "no gain on 100 rows"),
        errors.NotFittedError("call fit first"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_cross_process_borders(error: errors.CalibrationError) -> None:
    """Fits and recordings run in worker processes; their errors come back whole."""
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert vars(again) == vars(error)
