"""Step-curve files: SGLang's two formats, vLLM's curves, and measured points.

=========  ====================================================================================
flat       ``{"sample_batch_tokens": [int], "sample_steps_per_sec": [float],``
           ``"max_batch_tokens": int}``
additive   ``{"bias_seconds": float, "bs_probes": [int], "alpha_seconds": [float],``
           ``"m_probes": [int], "theta_seconds": [float]}``
staircase  ``{"verify_curve": [[int, float]], "draft_curve": [[int, float]],``
           ``"cudagraph_limit": int}``, milliseconds; the last two may be left out
measured   ``{"batch_tokens": [int], "step_seconds": [float]}``
=========  ====================================================================================

vLLM keeps its curves in memory; they are what its ``set_cost_curves`` is called with.

SGLang takes any text that contains ``"bias_seconds"`` (quotes included) for an additive table and
ignores keys it does not know; so does this reader, which then says what an engine would miss.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NoReturn

from calib.cost_table import AdditiveCostTable, CostTable, FlatCostTable, MeasuredCostTable
from calib.cost_table_staircase import Curve, StaircaseCostTable
from calib.errors import FormatError, ScheduleError

_ADDITIVE_MARK = '"bias_seconds"'


def load_cost_table(path: str | Path) -> CostTable:
    """Read a step-curve file.

    Raises:
        FormatError: a file that is missing, not UTF-8, or not one of the formats.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise FormatError(path, str(error), "give a readable step-curve JSON file") from error
    return parse_cost_table(text, source=str(path))


def parse_cost_table(text: str, *, source: str = "cost table") -> CostTable:
    """Read a step curve from JSON text.

    Args:
        text: one JSON object.
        source: name for error messages.

    Raises:
        FormatError: not JSON, no known format, or numbers that make no step curve.
    """
    fields = _Fields(source, text)
    try:
        if _ADDITIVE_MARK in text:
            return AdditiveCostTable(
                bias_seconds=fields.number("bias_seconds"),
                request_probes=fields.counts("bs_probes"),
                alpha_seconds=fields.numbers("alpha_seconds"),
                token_probes=fields.counts("m_probes"),
                theta_seconds=fields.numbers("theta_seconds"),
            )
        if fields.has("sample_batch_tokens"):
            return FlatCostTable(
                probes=fields.counts("sample_batch_tokens"),
                sps=fields.numbers("sample_steps_per_sec"),
                max_batch_tokens=fields.count("max_batch_tokens"),
            )
        if fields.has("verify_curve"):
            return StaircaseCostTable(
                draft_curve=fields.curve("draft_curve", ((1, 0.0),)),
                verify_curve=fields.curve("verify_curve"),
                graph_limit=fields.count("cudagraph_limit", 0),
            )
        if fields.has("batch_tokens"):
            return MeasuredCostTable(
                batch_tokens=fields.counts("batch_tokens"), seconds=fields.numbers("step_seconds")
            )
    except ScheduleError as error:
        raise FormatError(source, f"{error.field} is {error.value!r}", error.remedy) from error
    raise FormatError(
        source,
        "no known step curve",
        "give `sample_batch_tokens` (flat), `bias_seconds` (additive), `verify_curve` (staircase) "
        "or `batch_tokens` (measured)",
    )


def dump_cost_table(table: CostTable) -> str:
    """One line of JSON that :func:`parse_cost_table` reads back, and SGLang its own two formats.

    Raises:
        ScheduleError: a table of another class.
    """
    match table:
        case FlatCostTable():
            fields: dict[str, Any] = {
                "sample_batch_tokens": table.probes,
                "sample_steps_per_sec": table.sps,
                "max_batch_tokens": table.max_batch_tokens,
            }
        case AdditiveCostTable():
            fields = {
                "bias_seconds": table.bias_seconds,
                "bs_probes": table.request_probes,
                "alpha_seconds": table.alpha_seconds,
                "m_probes": table.token_probes,
                "theta_seconds": table.theta_seconds,
            }
        case StaircaseCostTable():
            fields = {
                "draft_curve": table.draft_curve,
                "verify_curve": table.verify_curve,
                "cudagraph_limit": table.graph_limit,
            }
        case MeasuredCostTable():
            fields = {"batch_tokens": table.batch_tokens, "step_seconds": table.seconds}
        case _:
            remedy = "give a flat, additive, staircase or measured table"
            raise ScheduleError("table", type(table).__name__, remedy)
    return json.dumps(fields, allow_nan=False)


class _Fields:
    """Typed access to the keys of one JSON object."""

    def __init__(self, source: str, text: str) -> None:
        self._source = source
        self._additive = _ADDITIVE_MARK in text
        try:
            found = json.loads(text, parse_constant=self._refuse_constant)
        except FormatError:
            raise
        except (ValueError, RecursionError) as error:  # also numbers too long, nesting too deep
            raise FormatError(source, f"not JSON ({error})", "give one JSON object") from error
        if not isinstance(found, dict):
            raise FormatError(source, f"a JSON {type(found).__name__}", "give one JSON object")
        self._found: dict[str, Any] = found

    def has(self, key: str) -> bool:
        return key in self._found

    def number(self, key: str) -> float:
        return self._number(key, self._get(key))

    def numbers(self, key: str) -> tuple[float, ...]:
        return tuple(self._number(key, value) for value in self._list(key))

    def count(self, key: str, otherwise: int | None = None) -> int:
        if otherwise is not None and not self.has(key):
            return otherwise
        return self._count(key, self._get(key))

    def curve(self, key: str, otherwise: Curve | None = None) -> Curve:
        if otherwise is not None and not self.has(key):
            return otherwise
        points = []
        for point in self._list(key):
            if not isinstance(point, list) or len(point) != 2:
                remedy = "give [size, milliseconds] pairs"
                raise FormatError(self._source, f"`{key}` holds {point!r}", remedy)
            points.append((self._count(key, point[0]), self._number(key, point[1])))
        return tuple(points)

    def counts(self, key: str) -> tuple[int, ...]:
        return tuple(self._count(key, value) for value in self._list(key))

    def _get(self, key: str) -> Any:
        if key not in self._found:
            remedy = "add the key"
            if self._additive:
                remedy += f"; an engine reads any file that contains {_ADDITIVE_MARK} as additive"
            raise FormatError(self._source, f"`{key}` is missing", remedy)
        return self._found[key]

    def _list(self, key: str) -> list[Any]:
        value = self._get(key)
        if not isinstance(value, list):
            raise FormatError(self._source, f"`{key}` is {value!r}", "give a list")
        return value

    def _number(self, key: str, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise FormatError(self._source, f"`{key}` holds {value!r}", "give numbers")
        try:
            return float(value)
        except OverflowError as error:
            raise FormatError(self._source, f"`{key}` is too large", "give a float") from error

    def _count(self, key: str, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise FormatError(self._source, f"`{key}` holds {value!r}", "give whole numbers")
        return value

    def _refuse_constant(self, word: str) -> NoReturn:
        raise FormatError(self._source, f"{word} is no JSON number", "give finite numbers")
