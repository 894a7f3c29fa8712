"""Options are checked when they are made."""

from __future__ import annotations

from typing import Any

import pytest

from dspark_calib_client import ClientConfigurationError, TelemetryOptions


def test_defaults_are_valid() -> None:
    assert TelemetryOptions().share == 1.0


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("share", -0.1),
        ("share", 1.1),
        ("share", float("nan")),
        ("share", "all"),
        ("seed", 1.5),
        ("drop", "middle"),
        ("body", "xml"),
        ("queue_rows", 0),
        ("queue_bytes", 1.5),
        ("batch_rows", -1),
        ("batch_bytes", True),
        ("batch_seconds", 0),
        ("retry_seconds", float("inf")),
    ],
)
def test_wrong_options_name_themselves(field: str, value: Any) -> None:
    with pytest.raises(ClientConfigurationError) as caught:
        TelemetryOptions(**{field: value})
    assert caught.value.field == field
