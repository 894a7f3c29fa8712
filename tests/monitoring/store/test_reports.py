"""Reports: the newest of each kind in front, a bounded number kept."""

from __future__ import annotations

import pytest

from monitoring.store import reports
from monitoring.store.database import Database
from monitoring.store.errors import ConflictError
from tests.monitoring.store.store_fixtures import START, registered


def put(database: Database, document: bytes = b"{}", kind: str = "evaluation") -> reports.Report:
    return database.run(
        lambda connection: reports.put_report(
            connection,
            "code",
            kind,
            document,
            revision=2,
            through_batch=17,
            created_at=START,
        )
    )


def test_latest_report_of_its_kind(database: Database) -> None:
    registered(database)
    put(database, b"\x00first")
    second = put(database, b"second")
    other = put(database, b"other", "shift")
    with database.read() as connection:
        assert reports.latest_report(connection, "code") == second
        assert reports.latest_report(connection, "code", "shift") == other
        assert reports.latest_report(connection, "code", "none") is None
        assert reports.latest_report(connection, "none") is None
        found = reports.list_reports(connection, "code")
        assert [report.document for report in found] == [b"second", b"\x00first"]
        assert reports.list_reports(connection, "code", before=second.id) == found[1:]
    assert (second.revision, second.through_batch, second.created_at) == (2, 17, START)


def test_old_reports_go(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    registered(database)
    monkeypatch.setattr(reports, "KEPT_REPORTS", 3)
    other = put(database, b"other", "shift")
    ids = [put(database).id for _ in range(5)]
    with database.read() as connection:
        found = reports.list_reports(connection, "code")
        assert [report.id for report in found] == ids[:1:-1]
        assert reports.latest_report(connection, "code", "shift") == other


def test_of_pages_and_pictures_only_the_newest_stays(database: Database) -> None:
    registered(database)
    for content in (b"<p>1", b"<p>2"):
        put(database, content, reports.PAGE_KIND)
        put(database, content, reports.PICTURE_KIND)
    kept = put(database)
    with database.read() as connection:
        for kind in (reports.PAGE_KIND, reports.PICTURE_KIND):
            assert [r.document for r in reports.list_reports(connection, "code", kind)] == [b"<p>2"]
        assert reports.latest_report(connection, "code") == kept


def test_report_of_nobody(database: Database) -> None:
    with pytest.raises(ConflictError):
        put(database)
