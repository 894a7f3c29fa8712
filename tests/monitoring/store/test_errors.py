"""The errors of the store: one tree, one line each, and whole after a trip between processes."""

from __future__ import annotations

import pickle

import pytest

from calib.errors import CalibrationError
from monitoring.store import errors

EXAMPLES = [
    errors.StoreError("it failed"),
    errors.StoreBusyError("locked"),
    errors.StoreUnavailableError("gone", outcome_unknown=True),
    errors.StoreFullError("no room"),
    errors.NotFoundError("drafter", "code"),
    errors.ConflictError("drafter", "code", "another key"),
    errors.PreconditionFailedError("drafter", "code", 3, 4),
    errors.LeaseLostError("abc"),
]


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_one_line_with_a_remedy_that_survives_pickling(error: errors.StoreError) -> None:
    assert isinstance(error, CalibrationError)
    assert "\n" not in str(error)
    assert str(error).endswith(error.remedy)
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)


def test_every_error_of_the_module_is_tried_here() -> None:
    assert {type(error).__name__ for error in EXAMPLES} == set(errors.__all__)


def test_messages_name_what_and_what_to_do() -> None:
    assert str(errors.NotFoundError("job", "x")) == "no job 'x'; look at the list of what exists"
    assert str(errors.PreconditionFailedError("drafter", "code", 3, 4)) == (
        "drafter 'code' has version 4, not 3; read it again and decide anew"
    )
    assert str(errors.StoreError("a\nb", "c")) == "a b; c"
    assert errors.StoreUnavailableError("gone").outcome_unknown is False
