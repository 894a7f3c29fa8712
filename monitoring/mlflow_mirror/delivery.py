"""Tells a tracking server about one entry of the outbox, completely or not at all by its own count.

Whatever an entry needs before it, the run of a revision and its registered version, is looked for
and made if it is missing. So an entry that could never be delivered does not take others with it,
and an entry that was half written when its process died is written to the end by the next.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from monitoring.mlflow_mirror.contents import (
    Content,
    job_content,
    report_content,
    revision_content,
    revision_identity,
)
from monitoring.mlflow_mirror.model_files import write_model
from monitoring.mlflow_mirror.names import AliasNames, experiment_name, registered_model_name
from monitoring.mlflow_mirror.report_picture import report_picture
from monitoring.mlflow_mirror.tracking_server import MODEL_FOLDER, TrackingServer
from monitoring.published_document import render
from monitoring.reports.html_report import html_report
from monitoring.store.database import Database
from monitoring.store.drafters import Drafter, get
from monitoring.store.errors import NotFoundError
from monitoring.store.jobs import get_job
from monitoring.store.publications import get_publication
from monitoring.store.reports import list_reports
from monitoring.store.revisions import Revision, get_revision
from monitoring.store.tracking_outbox import Entry, EntryKind

if TYPE_CHECKING:
    from mlflow.entities import Run

__all__ = ["Delivery"]

REPORT_FILE_SECONDS: Final = 3600.0
"""How often the large files of a report are put in place anew; its numbers always are."""

_FILED_TAG: Final = "report.filed_at"


class Delivery:
    """Tells one server about entries of one database.

    Args:
        database: holds what the entries name.
        server: is told.
        aliases: what the three aliases are called there.
    """

    def __init__(self, database: Database, server: TrackingServer, aliases: AliasNames) -> None:
        self._database = database
        self._server = server
        self._aliases = aliases
        self._kinds: Mapping[EntryKind, Callable[[Drafter, Entry], None]] = {
            "revision": self._revision,
            "publication": self._publication,
            "aliases": self._point,
            "job": self._job,
            "report": self._report,
        }

    def deliver(self, entry: Entry) -> None:
        """Tell it; telling it again changes nothing.

        Raises:
            TrackingAwayError: the server does not answer; tell it again.
            TrackingRefusedError: the server will never take it.
            StoreError: the database failed, or does not hold what the entry names.
        """
        with self._database.read() as connection:
            drafter = get(connection, entry.drafter)
        self._kinds[entry.kind](drafter, entry)

    def _revision(self, drafter: Drafter, entry: Entry) -> None:
        revision = self._read_revision(drafter, int(entry.content["revision"]))
        self._complete(drafter, revision, again=True)

    def _publication(self, drafter: Drafter, entry: Entry) -> None:
        number = int(entry.content["publication"])
        revision = self._read_revision(drafter, int(entry.content["revision"]))
        with self._database.read() as connection:
            document = get_publication(connection, drafter.name, number).document
        run = self._complete(drafter, revision)
        if run is not None:
            served = f"served/publication-{number:06d}"
            sts = render(document, gamma=drafter.gamma, media="sts")
            self._server.upload(run, {f"{served}.json": document, f"{served}.sts.json": sts})
        self._point(drafter, entry)

    def _point(self, drafter: Drafter, entry: Entry) -> None:
        numbers = entry.content["aliases"]
        revisions = {
            getattr(self._aliases, name): None if n is None else self._read_revision(drafter, n)
            for name, n in numbers.items()
        }
        wanted = {
            alias: None if revision is None else revision_identity(revision)
            for alias, revision in revisions.items()
        }
        model = registered_model_name(drafter.name)
        if self._server.set_aliases(model, wanted):
            # The entry of a revision failed for good, or somebody removed its version.
            for revision in revisions.values():
                if revision is not None:
                    self._complete(drafter, revision)
            self._server.set_aliases(model, wanted)

    def _job(self, drafter: Drafter, entry: Entry) -> None:
        number = (entry.content.get("result") or {}).get("revision")
        revision = None if number is None else self._read_revision(drafter, int(number))
        if revision is not None:
            self._complete(drafter, revision)
        self._write(job_content(drafter, entry.content, revision))

    def _report(self, drafter: Drafter, entry: Entry) -> None:
        revision = self._read_revision(drafter, int(entry.content["revision"]))
        run = self._complete(drafter, revision)
        content = report_content(drafter, entry.content, revision)
        if run is None:
            return
        self._server.log(run, content)
        filed = float(run.data.tags.get(_FILED_TAG, "-inf"))
        if content.at - filed >= REPORT_FILE_SECONDS:
            self._file_report(drafter, int(entry.content["report"]), run, content)

    def _file_report(self, drafter: Drafter, number: int, run: Run, content: Content) -> None:
        with self._database.read() as connection:
            found = list_reports(connection, drafter.name, before=number + 1, limit=1)
        if not found or found[0].id != number:
            return  # forgotten meanwhile; its numbers are told all the same
        document = json.loads(found[0].document)
        files = {
            "report/evaluation.html": html_report(document),
            "report/evaluation.json": found[0].document,
        }
        picture = report_picture(document)
        if picture is not None:
            files["report/reliability.png"] = picture
        self._server.upload(run, files)
        filed = Content(
            identity=content.identity,
            name=content.name,
            started_at=content.started_at,
            at=content.at,
            tags={_FILED_TAG: repr(content.at)},
        )
        self._server.log(run, filed)

    def _complete(self, drafter: Drafter, revision: Revision, *, again: bool = False) -> Run | None:
        """The run of a revision with all that belongs to it; None if somebody deleted it.

        Args:
            drafter: whose.
            revision: which.
            again: write it also where the version is registered, which is the last step.
        """
        model = registered_model_name(drafter.name)
        content = revision_content(drafter, revision, started_at=self._fit_began(revision))
        run = self._server.run(experiment_name(drafter.name), content)
        if run is None:
            return None
        registered = self._server.is_registered(model, content.identity)
        if registered and not again:
            return run
        self._server.log(run, content)
        self._server.upload(run, {"calibration.json": revision.calibration.to_json()})
        if not registered:
            self._upload_model(run, drafter, revision)
            self._server.register(model, content, run)
        self._server.finish(run, content)
        return run

    def _upload_model(self, run: Run, drafter: Drafter, revision: Revision) -> None:
        about = {
            "drafter": drafter.name,
            "revision": revision.number,
            "digest": revision.calibration.digest,
            "calibration_key": drafter.key.digest,
        }
        with tempfile.TemporaryDirectory(prefix="dspark-calib-") as folder:
            place = Path(folder, MODEL_FOLDER)
            write_model(place, revision.calibration, about, segments=revision.segments)
            self._server.upload_folder(run, place, MODEL_FOLDER)

    def _write(self, content: Content) -> None:
        drafter = content.tags["drafter"]
        run = self._server.run(experiment_name(drafter), content)
        if run is not None:
            self._server.log(run, content)
            self._server.finish(run, content)

    def _fit_began(self, revision: Revision) -> float | None:
        """When the job that made it began; None where there was none, or it is forgotten."""
        job = revision.provenance.get("job")
        if job is None:
            return None
        try:
            with self._database.read() as connection:
                return get_job(connection, str(job)).started_at
        except NotFoundError:
            return None

    def _read_revision(self, drafter: Drafter, number: int) -> Revision:
        with self._database.read() as connection:
            return get_revision(connection, drafter.name, number)
