"""Bodies of telemetry batches: an Arrow IPC stream where pyarrow imports, else gzip JSON."""

from __future__ import annotations

import gzip
import json
import logging
import math
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dspark_calib_client.coded_text import CodedText
from dspark_calib_client.rows import ROW_COLUMNS, Batch, CellKind

__all__ = ["Body", "BodyWriter"]

ARROW_MEDIA_TYPE = "application/vnd.apache.arrow.stream"
_METADATA = {"dspark_calib.schema_version": "1"}
_GZIP_LEVEL = 5  # within a few per cent of the best ratio at a third of its time
_LOG = logging.getLogger("dspark_calib_client")
_FIRST_ARRAY = threading.Lock()


@dataclass(frozen=True)
class Body:
    """One batch as bytes.

    Attributes:
        content: the request's body.
        headers: ``Content-Type`` and, where compressed, ``Content-Encoding``.
    """

    content: bytes
    headers: Mapping[str, str]


class BodyWriter:
    """Writes batches of one drafter.

    Args:
        gamma: draft positions.
        slots: width of the per-position columns.
        form: ``"auto"``, ``"arrow"`` or ``"json"``.
    """

    def __init__(self, gamma: int, slots: int, form: str) -> None:
        self._gamma = gamma
        self._slots = slots
        self._form = form
        self._arrow: Any = None

    def prepare(self) -> str:
        """Import pyarrow if it is to be used; the form that will be written.

        Called when the engine starts: the import takes some tenths of a second, which must not fall
        into its service.
        """
        if self._form != "json":
            try:
                import pyarrow

                # Its first array imports pandas, where that is installed. Two threads that do so
                # at once see each other's half of it.
                with _FIRST_ARRAY:
                    pyarrow.array([0.0])
                self._arrow = pyarrow
            except Exception as error:  # noqa: BLE001  (a broken install raises what it likes)
                _LOG.info("telemetry is sent as JSON: pyarrow does not import (%s)", error)
        return "json" if self._arrow is None else "arrow"

    def write(self, batch: Batch) -> Body:
        """The batch as a body.

        Raises:
            ValueError: JSON cannot hold it, which cleaned cells rule out.
        """
        if self._arrow is not None:
            try:
                return self._write_arrow(batch)
            except Exception:  # noqa: BLE001  (a batch that Arrow refuses may still go as JSON)
                _LOG.exception("a batch could not be written as Arrow and goes as JSON")
        return self._write_json(batch)

    def _write_json(self, batch: Batch) -> Body:
        columns = {name: _json_cells(values) for name, values in batch.columns.items()}
        document = {"gamma": self._gamma, "columns": columns}
        text = json.dumps(document, separators=(",", ":"), allow_nan=False)
        return Body(
            gzip.compress(text.encode("ascii"), _GZIP_LEVEL, mtime=0),
            {"Content-Type": "application/json", "Content-Encoding": "gzip"},
        )

    def _write_arrow(self, batch: Batch) -> Body:
        arrow = self._arrow
        arrays = {name: self._arrow_array(name, cells) for name, cells in batch.columns.items()}
        metadata = {**_METADATA, "dspark_calib.gamma": str(self._gamma)}
        fields = [arrow.field(name, array.type) for name, array in arrays.items()]
        schema = arrow.schema(fields, metadata=metadata)
        record_batch = arrow.record_batch(list(arrays.values()), schema=schema)
        sink = arrow.BufferOutputStream()
        with arrow.ipc.new_stream(sink, schema) as writer:
            writer.write_batch(record_batch)
        return Body(sink.getvalue().to_pybytes(), {"Content-Type": ARROW_MEDIA_TYPE})

    def _arrow_array(self, name: str, cells: Any) -> Any:
        """Integers are sent wide and judged by the service, which names the rows it refuses."""
        arrow = self._arrow
        column = ROW_COLUMNS[name]
        if isinstance(cells, CodedText):
            return self._arrow_dictionary(cells)
        if column.kind is CellKind.TEXT:
            return arrow.array(cells, arrow.string()).dictionary_encode()
        if not column.per_position:
            kinds = {CellKind.FLOAT: arrow.float64(), CellKind.INTEGER: arrow.int64()}
            # NaN becomes null, as it does in JSON and in a list of cells.
            return arrow.array(cells, kinds.get(column.kind, arrow.bool_()), from_pandas=True)
        if isinstance(cells, list):
            return arrow.array(cells, arrow.list_(arrow.float32(), self._slots))
        flat = arrow.array(cells.astype("float32").ravel())
        return arrow.FixedSizeListArray.from_arrays(flat, self._slots)

    def _arrow_dictionary(self, cells: CodedText) -> Any:
        arrow = self._arrow
        absent = [text is None for text in cells.texts]
        # Null is no word of a dictionary: the rows that have it have no place in one.
        mask = sys.modules["numpy"].array(absent, dtype=bool)[cells.codes] if any(absent) else None
        places = arrow.array(cells.codes, arrow.int32(), mask=mask)
        words = arrow.array([text or "" for text in cells.texts], arrow.string())
        return arrow.DictionaryArray.from_arrays(places, words)


def _json_cells(values: Any) -> list[Any]:
    """A column as JSON holds it: null for NaN and infinities."""
    if isinstance(values, list):
        return values
    cells: list[Any] = values.tolist()
    if isinstance(values, CodedText):
        return cells
    if values.dtype.kind != "f":
        return cells
    if values.ndim == 1:
        return [cell if math.isfinite(cell) else None for cell in cells]
    return [[cell if math.isfinite(cell) else None for cell in row] for row in cells]
