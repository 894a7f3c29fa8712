"""What happens to a change on its way through a page; the browser tests walk the whole of it."""

from __future__ import annotations

import re

import pytest

from api.dashboard.actions import MESSAGES
from monitoring.store import revisions
from monitoring.store.audit import list_audit
from monitoring.store.events import get_event
from tests.api.dashboard import seeding
from tests.support.service import Service

HOSTILE = "<b>'\"</b>"


def fields(page: str) -> dict[str, str]:
    found = re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', page)
    return {name: value.replace("&#34;", '"') for name, value in found}


def test_a_question_changes_nothing(shown: Service) -> None:
    number = seeding.add_revision(shown.database, "first", [1.5] * 7)
    page = shown.client.get(f"/drafters/first/revisions/{number}/promote")
    assert page.status_code == 200
    assert "in place of revision 0" in page.text
    with shown.database.read() as connection:
        assert revisions.aliases(connection, "first").champion == 0


def test_a_promotion_is_the_apis(shown: Service) -> None:
    number = seeding.add_revision(shown.database, "second", [1.5] * 7)
    path = f"/drafters/second/revisions/{number}/promote"
    form = fields(shown.client.get(path).text) | {"reason": f"because\x00 {HOSTILE}"}
    answer = shown.client.post(path, data=form, follow_redirects=False)
    assert (answer.status_code, answer.headers["Location"]) == (
        303,
        "/drafters/second?done=promoted",
    )
    polled = shown.poll("second", headers={"Accept": "application/json"}).json()
    assert polled["temperatures"] == [1.5] * 7  # at once, on this replica
    with shown.database.read() as connection:
        (row, *_) = [row for row in list_audit(connection) if row.action == "publish"]
    assert (row.actor, row.details["reason"]) == ("anonymous", f"because {HOSTILE}")
    page = shown.client.get(answer.headers["Location"]).text
    assert MESSAGES["promoted"] in page
    assert HOSTILE not in page
    # The same form again: somebody has changed the drafter since, this visitor.
    again = shown.client.post(path, data=form)
    assert again.status_code == 412
    assert 'href="/drafters/second">Look again' in again.text
    # And without the state that it was decided on there is no change at all.
    del form["etag"]
    assert shown.client.post(path, data=form).status_code == 428


def test_there_must_be_something_to_roll_back_to(shown: Service) -> None:
    answer = shown.client.get("/drafters/first/rollback")
    assert answer.status_code == 409
    assert "There is no previous champion" in answer.text


def test_an_event_is_acknowledged_once(shown: Service) -> None:
    event = seeding.raise_event(shown.database, f"Odd {HOSTILE}", drafter="first")
    path = f"/events/{event.id}/acknowledge"
    page = shown.client.get(path).text
    assert HOSTILE not in page
    answer = shown.client.post(path, data=fields(page), follow_redirects=False)
    assert answer.headers["Location"] == "/drafters/first?done=acknowledged"
    with shown.database.read() as connection:
        assert get_event(connection, event.id).acknowledged_by == "anonymous"
    assert shown.client.get(path).status_code == 409
    assert shown.client.get("/events/999999/acknowledge").status_code == 404


def test_a_report_can_be_ordered(shown: Service) -> None:
    form = fields(shown.client.get("/drafters/first/recalibrate").text)
    answer = shown.client.post("/drafters/first/refresh-report", data=form, follow_redirects=False)
    assert answer.headers["Location"] == "/drafters/first?done=report"
    assert "queued" in shown.client.get("/drafters/first").text


@pytest.mark.parametrize("word", ["<b>", "nothing", ""])
def test_a_page_says_only_what_it_knows(shown: Service, word: str) -> None:
    page = shown.client.get("/drafters/first", params={"done": word}).text
    assert 'class="message"' not in page
