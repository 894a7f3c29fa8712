"""The report of a drafter: its champion judged on the newest stored rows, as one JSON document."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal

from sqlalchemy import Connection

from calib.canonical_json import plain_json, round_numbers
from calib.cost_table_files import parse_cost_table
from calib.errors import CalibrationError
from calib.records import AcceptanceRecords
from calib.statuses import NullReason
from monitoring.held_out_rows import held_out_rows
from monitoring.mlflow_mirror.report_numbers import report_numbers
from monitoring.published_document import iso_time
from monitoring.reports.evaluation_report import (
    MINIMUM_SEGMENT_ROWS,
    EvaluationReport,
    evaluation_report,
)
from monitoring.reports.html_report import html_report
from monitoring.reports.revision_history import revision_history
from monitoring.reports.sentences import (
    evaluation_sentences,
    headline,
    position_sentences,
    worth_sentences,
)
from monitoring.reports.throughput import Throughput, throughput
from monitoring.store.cost_tables import StoredCostTable, get_cost_table
from monitoring.store.database import Database
from monitoring.store.drafters import get
from monitoring.store.jobs import Job, check_fence, finish
from monitoring.store.reports import PAGE_KIND, PICTURE_KIND, put_report
from monitoring.store.revisions import Revision, aliases, get_revision
from monitoring.store.telemetry import TelemetryCounters, counters
from monitoring.windows import DEFAULT_WINDOW_ROWS, Window, window_of

__all__ = ["REPORT_KIND", "TelemetryReport", "report_job", "telemetry_report"]

REPORT_KIND: Final = "evaluation"
_FORMAT: Final = "dspark-calib/telemetry-report/1"

JudgedRows = Literal["all", "after_fit", "held_out", "fitted"]

_NOTES: dict[JudgedRows, str] = {
    "all": "all rows of the window; this revision was not fitted on any",
    "after_fit": "rows that arrived after this revision was fitted",
    "held_out": "prompts or requests that this revision was not fitted on",
    "fitted": "rows of which some were fitted on: these errors are too kind",
}


@dataclass(frozen=True, slots=True)
class TelemetryReport:
    """What the newest rows say about the champion.

    Attributes:
        drafter: whose.
        revision: number of the champion.
        through_batch: id of the newest batch read; None without telemetry.
        created_at: seconds since the epoch, by the database's clock.
        document: JSON of the report.
        told: the few of its numbers that the tracking server is told.
        page: the report as HTML.
        picture: its reliability figure as PNG.
    """

    drafter: str
    revision: int
    through_batch: int | None
    created_at: float
    document: bytes
    told: Mapping[str, Any] = field(default_factory=dict)
    page: bytes = b""
    picture: bytes = b""


def telemetry_report(
    database: Database, drafter: str, *, rows: int = DEFAULT_WINDOW_ROWS
) -> TelemetryReport:
    """Judge the champion on the newest rows, where possible on rows it was not fitted on.

    Args:
        database: holds telemetry and champion.
        drafter: whose.
        rows: newest rows to read.

    Raises:
        NotFoundError: no such drafter.
        StoreError: the database failed.
    """
    with database.read() as connection:
        get(connection, drafter)
        champion = get_revision(connection, drafter, aliases(connection, drafter).champion)
        counted = counters(connection, drafter)
        history = revision_history(connection, drafter)
        cost = get_cost_table(connection, drafter)
        created_at = database.now(connection)
    window, chosen, judged = _rows(database, champion, drafter, rows)
    evaluation = evaluation_report(judged, champion.calibration) if len(judged) else None
    worth = _worth(judged, champion, cost)
    document = _document(champion, window, chosen, evaluation, counted, created_at) | {
        "revisions": round_numbers(history),
        "throughput": round_numbers(worth.to_dict()),
        "sentences": _sentences(champion, evaluation, worth),
    }
    encoded = json.dumps(document, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    return TelemetryReport(
        drafter,
        champion.number,
        window.last_batch,
        created_at,
        encoded.encode(),
        report_numbers(document),
        html_report(document),
        _picture(champion, evaluation),
    )


def report_job(
    database: Database, job: Job, *, default_rows: int = DEFAULT_WINDOW_ROWS
) -> Mapping[str, Any]:
    """Do one job of kind ``report`` and finish it; returns its result.

    Args:
        database: holds telemetry, champion and job.
        job: leased by the caller.
        default_rows: newest rows to read.

    Raises:
        LeaseLostError: another worker has the job; nothing was written.
        StoreError: the database failed.
    """
    report = telemetry_report(database, job.drafter, rows=default_rows)
    result = {"revision": report.revision, "through_batch": report.through_batch}

    def commit(connection: Connection) -> None:
        check_fence(connection, database, job)
        _put(connection, report)
        finish(connection, job, "succeeded", result, None)

    database.run(commit)
    return result


def _put(connection: Connection, report: TelemetryReport) -> None:
    put_report(
        connection,
        report.drafter,
        REPORT_KIND,
        report.document,
        revision=report.revision,
        through_batch=report.through_batch,
        created_at=report.created_at,
        told=report.told,
    )
    for kind, content in ((PAGE_KIND, report.page), (PICTURE_KIND, report.picture)):
        put_report(
            connection,
            report.drafter,
            kind,
            content,
            revision=report.revision,
            through_batch=report.through_batch,
            created_at=report.created_at,
        )


def _rows(
    database: Database, champion: Revision, drafter: str, rows: int
) -> tuple[Window, JudgedRows, AcceptanceRecords]:
    """The window, which of its usable rows are judged, and those rows."""
    fitted_through = _fitted_through(champion)
    if fitted_through is not None:
        later = window_of(database, drafter, rows=rows, after_batch=fitted_through)
        usable = later.records.fitting_rows()
        if len(usable) >= MINIMUM_SEGMENT_ROWS:
            return later, "after_fit", usable
    window = window_of(database, drafter, rows=rows)
    usable = window.records.fitting_rows()
    if fitted_through is None:
        return window, "all", usable
    split = champion.calibration.evidence.get("held_out", {}).get("split", {})
    if len(usable) >= 2 and split.get("salt") is not None:
        again = held_out_rows(usable, share=split["share"], salt=split["salt"])
        if again.kind == split.get("kind"):
            return window, "held_out", again.judged
    return window, "fitted", usable


def _sentences(
    champion: Revision, evaluation: EvaluationReport | None, worth: Throughput
) -> list[str]:
    if evaluation is None:
        return []
    return [
        *evaluation_sentences(evaluation),
        *position_sentences(champion.calibration),
        *worth_sentences(worth),
    ]


def _worth(
    judged: AcceptanceRecords, champion: Revision, stored: StoredCostTable | None
) -> Throughput:
    """Θ with and without the champion, where the engine's step curve is known."""
    if stored is None or not len(judged):
        return throughput(judged, champion.calibration, None)
    try:
        cost = parse_cost_table(json.dumps(stored.document), source="the stored cost table")
    except CalibrationError as error:
        return Throughput(None, str(error))
    return throughput(judged, champion.calibration, cost)


def _picture(champion: Revision, evaluation: EvaluationReport | None) -> bytes:
    # matplotlib takes a second to import; who only reads this module's names must not wait.
    from monitoring.reports.figures import note_figure, png_bytes, reliability_figure

    if evaluation is None:
        return png_bytes(note_figure("There are no rows to judge yet."))
    title = f"Survival of {evaluation.rows:,} blocks, revision {champion.number}"
    return png_bytes(reliability_figure(evaluation.overall, title=title))


def _fitted_through(champion: Revision) -> int | None:
    """The newest batch that the champion was fitted on; None where it was not fitted here."""
    window = champion.provenance.get("window")
    through = window.get("last_batch") if isinstance(window, Mapping) else None
    return through if isinstance(through, int) else None


def _document(
    champion: Revision,
    window: Window,
    chosen: JudgedRows,
    evaluation: EvaluationReport | None,
    counted: TelemetryCounters,
    created_at: float,
) -> dict[str, Any]:
    plain: dict[str, Any] = plain_json(
        {
            "format": _FORMAT,
            "drafter": champion.drafter,
            "revision": champion.number,
            "digest": champion.calibration.digest,
            "created_at": iso_time(created_at),
            "judged": {"rows": chosen, "note": _NOTES[chosen]},
            "window": window.to_dict(),
            "telemetry": asdict(counted),
            "reason": str(NullReason.NO_ROWS) if evaluation is None else None,
            "headline": None if evaluation is None else headline(evaluation),
            "evaluation": None if evaluation is None else _evaluation(evaluation),
        },
        "report",
    )
    return plain


def _evaluation(report: EvaluationReport) -> dict[str, Any]:
    """The evaluation at six significant digits, with reliability bins for all rows only.

    A report is kept for every few minutes; bins of every slice would make most of its size.
    """
    found: dict[str, Any] = round_numbers(report.to_dict())
    for segment in found["segments"]:
        comparison = segment["comparison"] or {}
        for side in ("raw", "calibrated"):
            for view in ("conditional", "survival"):
                for position in comparison.get(side, {}).get(view, {}).get("positions", ()):
                    position.pop("bins", None)
                    position.pop("sharpness", None)
    return found
