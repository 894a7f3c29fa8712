"""Every error this project raises on purpose, as one tree.

::

    CalibrationError
    ├── InvalidInputError (ValueError)      a caller's value is wrong
    │   ├── RecordError                     telemetry rows or columns
    │   ├── CalibrationValueError           numbers of a calibration
    │   ├── DistributionError               probabilities or logits of draft and target
    │   ├── ScheduleError                   scheduler inputs and cost tables
    │   ├── ConfigurationError              options of training, recording and the CLI
    │   └── TargetLoadError                 a target or drafter that cannot be loaded
    ├── FormatError (ValueError)            a file or stream that cannot be read as what it claims
    ├── FitRefusedError                     the data do not support a fit; carries a status
    └── NotFittedError (ValueError, AttributeError)   an estimator used before ``fit``

Each invalid-input error names the field, the offending value and the remedy, in that order,
so that a log line alone is enough to mend the call.
"""

from __future__ import annotations

from typing import Any, Self

_VALUE_LENGTH = 120


class CalibrationError(Exception):
    """Base of all errors raised on purpose."""


class InvalidInputError(CalibrationError, ValueError):
    """A value that the caller can mend.

    Attributes:
        field: name of the argument, column or key.
        value: the offending value, shortened when printed.
        remedy: what to do instead.
    """

    def __init__(self, field: str, value: Any, remedy: str) -> None:
        self.field = field
        self.value = value
        self.remedy = remedy
        shown = repr(value)
        if len(shown) > _VALUE_LENGTH:
            shown = shown[: _VALUE_LENGTH - 1] + "…"
        super().__init__(f"{field}: got {shown}; {remedy}")

    # Exceptions rebuild themselves from their message alone; worker processes need the fields.
    def __reduce__(self) -> tuple[type[Self], tuple[str, Any, str]]:
        return type(self), (self.field, self.value, self.remedy)


class RecordError(InvalidInputError):
    """Telemetry rows or columns that break the row contract."""


class CalibrationValueError(InvalidInputError):
    """Temperatures, slopes or intercepts outside what may be published."""


class DistributionError(InvalidInputError):
    """Probabilities or logits that are no distribution."""


class ScheduleError(InvalidInputError):
    """Survivals, budgets or cost tables that a scheduler cannot use."""


class ConfigurationError(InvalidInputError):
    """An option outside its range, or two options that exclude each other."""


class TargetLoadError(InvalidInputError):
    """A target model or a drafter that cannot be loaded."""


class FormatError(CalibrationError, ValueError):
    """A foreign, truncated or corrupt file.

    Attributes:
        source: path or name of what was read.
        reason: what is wrong with it.
        remedy: what to do instead.
    """

    def __init__(self, source: object, reason: str, remedy: str) -> None:
        self.source = str(source)
        self.reason = reason
        self.remedy = remedy
        super().__init__(f"{self.source}: {reason}; {remedy}")

    def __reduce__(self) -> tuple[type[Self], tuple[str, str, str]]:
        return type(self), (self.source, self.reason, self.remedy)


class FitRefusedError(CalibrationError):
    """The data do not support a fit.

    Attributes:
        status: a refusal from :class:`calib.statuses.Refusal`.
        reason: evidence in words and numbers.
    """

    def __init__(self, status: str, reason: str) -> None:
        self.status = status
        self.reason = reason
        super().__init__(f"{status}: {reason}")

    def __reduce__(self) -> tuple[type[Self], tuple[str, str]]:
        return type(self), (self.status, self.reason)


class NotFittedError(CalibrationError, ValueError, AttributeError):
    """An estimator asked for results before ``fit``."""
