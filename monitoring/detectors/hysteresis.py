"""A switch that does not flap: it turns on at one level and off only well below it."""

from __future__ import annotations

from dataclasses import dataclass

from calib.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Hysteresis:
    """On at ``enter`` or above, off at ``leave`` or below, unchanged in between.

    A signal that is not a number leaves the switch as it is.

    Raises:
        ConfigurationError: ``leave`` not below ``enter``.

    Examples:
        >>> switch = Hysteresis(enter=2.0, leave=1.5)
        >>> [switch.update(on, value) for on, value in [(False, 1.9), (False, 2.1), (True, 1.9)]]
        [False, True, True]
    """

    enter: float
    leave: float

    def __post_init__(self) -> None:
        if not self.leave < self.enter:
            raise ConfigurationError("leave", self.leave, f"give a level below {self.enter}")

    def update(self, on: bool, value: float) -> bool:
        """Whether the switch is on after it has seen ``value``."""
        if value >= self.enter:
            return True
        return on and not value <= self.leave
