from __future__ import annotations

from dataclasses import fields
from types import MappingProxyType

import pytest
from pydantic import BaseModel, ValidationError

from api import schemas
from api.schemas import (
    CalibrationKeyModel,
    CalibrationKeyView,
    HandMadeRevision,
    RecalibrationRequest,
    plain,
)
from calib.calibration_key import CalibrationKey
from monitoring.recalibration_options import MOST_ROWS, RecalibrationOptions
from tests.support.service import KEY


def test_the_key_has_the_fields_of_the_core() -> None:
    expected = {field.name for field in fields(CalibrationKey)}
    assert set(CalibrationKeyModel.model_fields) == expected
    assert set(CalibrationKeyView.model_fields) == expected


def test_a_key_round_trips() -> None:
    model = CalibrationKeyModel.model_validate(KEY)
    assert CalibrationKey.from_dict(model.model_dump()) == CalibrationKey.from_dict(KEY)


def test_the_examples_are_valid() -> None:
    for model in (CalibrationKeyModel, HandMadeRevision, RecalibrationRequest):
        extra = model.model_config["json_schema_extra"]
        assert isinstance(extra, dict)
        for example in extra["examples"]:  # type: ignore[union-attr]
            model.model_validate(example)


def test_the_options_are_those_of_the_worker() -> None:
    expected = {field.name for field in fields(RecalibrationOptions)}
    assert set(RecalibrationRequest.model_fields) == expected
    asked = RecalibrationRequest(rows=MOST_ROWS, minimum_rows=MOST_ROWS)
    assert RecalibrationOptions.from_mapping(asked.model_dump()).rows == MOST_ROWS
    defaults = RecalibrationOptions.from_mapping(RecalibrationRequest().model_dump())
    assert defaults == RecalibrationOptions()


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), True, "1.5", None, [1.0]])
def test_r69_what_is_no_number_is_refused(wrong: object) -> None:
    with pytest.raises(ValidationError):
        HandMadeRevision.model_validate({"temperatures": [wrong]})


def test_a_moment_may_be_written_as_rfc_3339_allows() -> None:
    for written in ("2026-11-29T12:00:00.5Z", "2026-11-29t12:00:00.5z", "2026-11-29 12:00:00.5Z"):
        made = HandMadeRevision(temperatures=[1.0], fitted_at=written)
        assert made.fitted_at is not None
        assert made.fitted_at.replace(" ", "T") == "2026-11-29T12:00:00.5Z"
    for wrong, told in (
        ("2026-11-29T23:59:60Z", "second must be in"),  # a leap second; say :59
        ("2026-11-29T12:00:00", "with its offset"),
    ):
        with pytest.raises(ValidationError, match=told):
            HandMadeRevision(temperatures=[1.0], fitted_at=wrong)


def test_whole_numbers_are_numbers() -> None:
    made = HandMadeRevision.model_validate({"temperatures": [1, 2.5]})
    assert made.temperatures == [1.0, 2.5]


def test_every_public_model_is_documented_and_strict() -> None:
    for name in schemas.__all__:
        model = getattr(schemas, name)
        assert issubclass(model, BaseModel)
        assert model.__doc__
        assert model.model_config["extra"] == ("allow" if name == "Problem" else "forbid"), name


def test_read_only_views_become_plain_values() -> None:
    value = MappingProxyType({"a": (1, MappingProxyType({"b": (None, "x")}))})
    assert plain(value) == {"a": [1, {"b": [None, "x"]}]}
    assert plain(None) is None
