"""Silences through pages: asked first, with the API's own record, and ended early."""

from __future__ import annotations

import pytest

from api.dashboard.actions import MESSAGES
from monitoring.store.audit import list_audit
from monitoring.store.silences import list_silences
from tests.api.dashboard import seeding
from tests.api.dashboard.test_actions import HOSTILE, fields
from tests.support.service import Service

PATH = "/drafters/first/silence"


def test_a_silence_begins_is_shown_and_ends(shown: Service) -> None:
    seeding.raise_event(shown.database, "Drift again", drafter="first")
    form = fields(shown.client.get(PATH).text)
    form |= {"kind": "drift", "hours": "8", "reason": f"weights {HOSTILE}"}
    answer = shown.client.post(PATH, data=form, follow_redirects=False)
    assert answer.headers["Location"] == "/drafters/first?done=silenced"
    with shown.database.read() as connection:
        (silence,) = [one for one in list_silences(connection) if one.drafter == "first"]
        actions = [row.action for row in list_audit(connection)]
    assert (silence.kind, silence.created_by) == ("drift", "anonymous")
    assert silence.ends_at - silence.starts_at == pytest.approx(8 * 3600)
    assert "silence" in actions
    page = shown.client.get(answer.headers["Location"]).text
    assert MESSAGES["silenced"] in page
    assert "Drift events of first" in page
    assert "Nobody is told: " in page  # by the event itself
    assert HOSTILE not in page
    fleet = shown.client.get("/").text
    assert "Nobody is told: " in fleet
    assert "1 silence" in fleet
    assert "Drift events" not in shown.client.get("/drafters/second").text
    end = f"/silences/{silence.id}/end"
    asked = shown.client.get(end)
    assert "End this silence?" in asked.text
    ended = shown.client.post(end, data=fields(asked.text), follow_redirects=False)
    assert ended.headers["Location"] == "/drafters/first?done=unsilenced"
    with shown.database.read() as connection:
        assert silence.id not in [one.id for one in list_silences(connection)]
    assert shown.client.get(end).status_code == 409
    assert shown.client.get("/silences/99999/end").status_code == 404


@pytest.mark.parametrize(
    "wrong",
    [
        {"reason": " "},
        {"hours": "1e9"},
        {"hours": "nan"},
        {"hours": "-1"},
        {"hours": ""},
        {"kind": "drifts"},
    ],
)
def test_a_silence_has_an_end_a_reason_and_a_kind(shown: Service, wrong: dict[str, str]) -> None:
    form = fields(shown.client.get(PATH).text) | {"hours": "1", "reason": "because"} | wrong
    answer = shown.client.post(PATH, data=form)
    assert answer.status_code == 422
    with shown.database.read() as connection:
        assert [one for one in list_silences(connection) if one.reason == "because"] == []


def test_a_drafter_that_does_not_exist_is_not_silenced(shown: Service) -> None:
    assert shown.client.get("/drafters/nobody/silence").status_code == 404
