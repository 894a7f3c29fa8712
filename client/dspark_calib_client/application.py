"""Putting temperatures where an engine reads them: in place, at one step, or not at all.

An engine that has captured CUDA graphs reads the storage that the capture saw. Rebinding a new
tensor would be invisible to it, so the numbers are copied into the old one, whose storage, dtype
and device stay. The copy goes to the stream that is current at the call: call it inside the
engine's forward stream. torch and NumPy are used where the buffer is theirs, and never imported.
"""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Callable, Sequence
from typing import Any

from dspark_calib_client.errors import ClientConfigurationError
from dspark_calib_client.temperatures import Temperatures
from dspark_calib_client.validation import LARGEST_TEMPERATURE, SMALLEST_TEMPERATURE

__all__ = ["SteppedApplication", "SteppedChange", "apply_in_place", "refusal"]

_LOG = logging.getLogger("dspark_calib_client")


def refusal(buffer: Any, temperatures: Temperatures | Sequence[float]) -> str | None:
    """Why :func:`apply_in_place` would leave the buffer alone; None where it would not."""
    try:
        return _refusal(buffer, _values(temperatures))
    except Exception as error:  # noqa: BLE001  (either argument may be anything)
        return f"{type(error).__name__}: {error}"


def apply_in_place(buffer: Any, temperatures: Temperatures | Sequence[float]) -> bool:
    """Copy the temperatures into the buffer; never raises.

    Args:
        buffer: torch tensor or NumPy array of shape [gamma], float32 or float64, that the engine
            divides its logits by. It keeps its storage, dtype and device.
        temperatures: as many as the buffer is long, each within [0.05, 20].

    Returns:
        Whether the buffer holds them now. If not, no element was touched.
    """
    try:
        reason = _refusal(buffer, _values(temperatures))
        if reason is None:
            _copy(buffer, _on_host(buffer, _values(temperatures)))
            return True
    except Exception as error:  # noqa: BLE001  (called from the engine's step)
        reason = f"{type(error).__name__}: {error}"
    _LOG.error("temperatures not applied: %s", reason)
    return False


class SteppedChange:
    """Holds a change until a named step, so that all ranks make it at the same one.

    Each rank has its own, and counts the same steps. :meth:`stage` may be called on any thread,
    :meth:`at_step` at the start of every step on the thread that runs them.

    Attributes:
        late: changes that were made after their step, because it was left out or had begun
            before they were staged. They are made all the same: a rank that went without
            would differ from the others for good.
        failed: changes that could not be staged, made or reported.
    """

    def __init__(self) -> None:
        self._staged: tuple[int, Temperatures, Any] | None = None
        self.late = 0
        self.failed = 0

    def stage(self, temperatures: Temperatures, step: int) -> bool:
        """Apply these at ``step``, instead of what was staged before; whether they will be.

        The host's side of the copy is made here, so that the step itself only enqueues it.
        """
        try:
            self._staged = (step, temperatures, self._prepared(temperatures))
            return True
        except Exception as error:  # noqa: BLE001  (called from the engine's step)
            self.failed += 1
            _LOG.error("temperatures not staged: %s", error)
            return False

    def at_step(self, step: int) -> Temperatures | None:
        """Apply what was staged for this step; what was applied, or None. Never raises."""
        staged = self._staged
        if staged is None or step < staged[0]:
            return None
        self._staged = None
        if step > staged[0]:
            self.late += 1
            _LOG.warning("temperatures of step %d applied at step %d", staged[0], step)
        try:
            self._put(staged[2])
        except Exception:  # noqa: BLE001  (called from the engine's step)
            self.failed += 1
            _LOG.exception("temperatures not applied")
            return None
        try:
            self._report(staged[1], staged[2])
        except Exception:  # noqa: BLE001  (they are applied, whoever cannot hear it)
            self.failed += 1
            _LOG.exception("applied temperatures could not be reported")
        return staged[1]

    def _prepared(self, temperatures: Temperatures) -> Any:
        """What :meth:`_put` needs, on the host; raises where these cannot be applied."""
        raise NotImplementedError

    def _put(self, prepared: Any) -> None:
        raise NotImplementedError

    def _report(self, temperatures: Temperatures, prepared: Any) -> None:
        raise NotImplementedError


class SteppedApplication(SteppedChange):
    """Copies a vector into a buffer at a named step.

    Args:
        buffer: as for :func:`apply_in_place`.
        gamma: its length.
        applied: called with what was applied, such as ``client.report_applied``.

    Raises:
        ClientConfigurationError: a buffer that no vector of ``gamma`` numbers fits.
    """

    def __init__(
        self,
        buffer: Any,
        gamma: int,
        *,
        applied: Callable[[Temperatures], object] | None = None,
    ) -> None:
        reason = refusal(buffer, (1.0,) * gamma)
        if reason is not None:
            raise ClientConfigurationError("buffer", type(buffer).__name__, reason)
        super().__init__()
        self._buffer = buffer
        self._applied = applied

    def _prepared(self, temperatures: Temperatures) -> Any:
        reason = refusal(self._buffer, temperatures)
        if reason is not None:
            raise ValueError(reason)
        return _on_host(self._buffer, temperatures.values)

    def _put(self, prepared: Any) -> None:
        _copy(self._buffer, prepared)

    def _report(self, temperatures: Temperatures, prepared: Any) -> None:
        if self._applied is not None:
            self._applied(temperatures)


def _values(temperatures: Temperatures | Sequence[float]) -> tuple[float, ...]:
    if isinstance(temperatures, Temperatures):
        return temperatures.values
    return tuple(map(float, temperatures))


def _refusal(buffer: Any, values: tuple[float, ...]) -> str | None:
    for value in values:
        if not SMALLEST_TEMPERATURE <= value <= LARGEST_TEMPERATURE or not math.isfinite(value):
            return f"{value} is outside [{SMALLEST_TEMPERATURE}, {LARGEST_TEMPERATURE:g}]"
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch is not None and isinstance(buffer, torch.Tensor):
        wide = buffer.dtype in (torch.float32, torch.float64)
    elif numpy is not None and isinstance(buffer, numpy.ndarray):
        wide = buffer.dtype in (numpy.float32, numpy.float64)
        if not buffer.flags.writeable:
            return "the array is read-only"
    else:
        return f"a {type(buffer).__name__} is neither a torch tensor nor a NumPy array"
    if not wide:
        return f"{buffer.dtype} would round what was published; use float32"
    if buffer.ndim == 0:
        return f"the buffer is a scalar; install ones[{len(values)}] before graphs are captured"
    if tuple(buffer.shape) != (len(values),):
        return f"the buffer has shape {tuple(buffer.shape)}, the temperatures ({len(values)},)"
    return None


def _on_host(buffer: Any, values: tuple[float, ...]) -> Any:
    """The values in the buffer's dtype in host memory; pinned for a CUDA buffer.

    Copying from pageable memory would wait for everything that is queued on the stream.
    """
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(buffer, torch.Tensor):
        return sys.modules["numpy"].array(values, dtype=buffer.dtype)
    host = torch.tensor(values, dtype=buffer.dtype)
    return host.pin_memory() if buffer.is_cuda else host


def _copy(buffer: Any, host: Any) -> None:
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(buffer, torch.Tensor):
        buffer[:] = host
        return
    # A buffer made in inference mode may only be written in it.
    quiet = torch.inference_mode() if buffer.is_inference() else torch.no_grad()
    with quiet:
        buffer.copy_(host, non_blocking=True)
