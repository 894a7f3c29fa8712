"""Where typed errors become exit codes: 0 done, 1 refused by the data, 2 bad input.

The core raises, only this boundary prints and exits. A person who mistyped a path or sent a broken
file reads one line with field, value and remedy; a traceback is left to faults of our own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer

from calib.errors import CalibrationError, FitRefusedError

__all__ = ["BAD_INPUT", "REFUSED", "exit_codes"]

REFUSED = 1
BAD_INPUT = 2


@contextmanager
def exit_codes() -> Iterator[None]:
    """Turn errors raised on purpose into a line on standard error and an exit code."""
    try:
        yield
    except FitRefusedError as error:
        _leave(f"refused: {error}", REFUSED, error)
    except CalibrationError as error:
        _leave(f"error: {error}", BAD_INPUT, error)
    except BrokenPipeError:
        raise  # the reader of a pipe went away; no input of ours is wrong
    except OSError as error:
        where = error.filename or "file"
        reason = error.strerror or str(error)
        _leave(f"error: {where}: {reason}; check the path and its permissions", BAD_INPUT, error)


def _leave(line: str, code: int, cause: Exception) -> None:
    typer.echo(line, err=True)
    raise typer.Exit(code) from cause
