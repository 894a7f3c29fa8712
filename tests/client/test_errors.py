"""Errors name what to mend; those that end as counters have a short kind."""

from __future__ import annotations

import pytest

from dspark_calib_client.errors import (
    ClientConfigurationError,
    ClientError,
    InvalidAnswerError,
    InvalidFileError,
    TransferError,
)


def test_a_configuration_error_names_field_value_and_remedy() -> None:
    error = ClientConfigurationError("gamma", 0, "give 1 to 254")
    assert str(error) == "gamma: got 0; give 1 to 254"
    assert (error.field, error.value, error.remedy) == ("gamma", 0, "give 1 to 254")
    assert isinstance(error, ValueError)


def test_long_values_are_cut() -> None:
    assert len(str(ClientConfigurationError("key", "x" * 10_000, "shorter"))) < 200


@pytest.mark.parametrize("kind", [TransferError, InvalidAnswerError, InvalidFileError])
def test_counted_errors_have_kind_and_detail(kind: type[TransferError]) -> None:
    error = kind("timeout", "after 3 s")
    assert (error.kind, error.detail, str(error)) == ("timeout", "after 3 s", "timeout: after 3 s")
    assert isinstance(error, ClientError)
