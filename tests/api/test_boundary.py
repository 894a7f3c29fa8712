from __future__ import annotations

import pytest
import typer

from api.boundary import BAD_INPUT, REFUSED, exit_codes
from calib.errors import (
    CalibrationValueError,
    ConfigurationError,
    FitRefusedError,
    FormatError,
    NotFittedError,
    RecordError,
)


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (FitRefusedError("no_rows", "0 rows"), REFUSED, "refused: no_rows: 0 rows"),
        (RecordError("gamma", 3, "give 7"), BAD_INPUT, "error: gamma: got 3; give 7"),
        (ConfigurationError("mode", "x", "give y"), BAD_INPUT, "error: mode: got 'x'; give y"),
        (CalibrationValueError("a", 0, "b"), BAD_INPUT, "error: a: got 0; b"),
        (FormatError("f.pt", "torn", "send again"), BAD_INPUT, "error: f.pt: torn; send again"),
        (NotFittedError("fit first"), BAD_INPUT, "error: fit first"),
        (
            FileNotFoundError(2, "No such file or directory", "gone"),
            BAD_INPUT,
            "error: gone: No such file or directory; check the path and its permissions",
        ),
    ],
)
def test_typed_errors_become_one_line_and_a_code(
    error: Exception, code: int, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit) as caught, exit_codes():
        raise error
    assert getattr(caught.value, "exit_code", None) == code
    captured = capsys.readouterr()
    assert captured.err == line + "\n"
    assert captured.out == ""


def test_faults_of_our_own_pass_through() -> None:
    with pytest.raises(ZeroDivisionError), exit_codes():
        raise ZeroDivisionError
    with pytest.raises(BrokenPipeError), exit_codes():
        raise BrokenPipeError


def test_nothing_happens_without_an_error() -> None:
    with exit_codes():
        pass
