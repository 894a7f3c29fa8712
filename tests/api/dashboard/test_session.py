from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from api.dashboard.session import COOKIE
from monitoring.store import tokens
from tests.support.service import Service, empty_database, running_service

FORM = {"Content-Type": "application/x-www-form-urlencoded"}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Service, str, str]]:
    """A service with tokens: an operator's and an engine's."""
    url = empty_database(tmp_path_factory.mktemp("guarded"))
    with running_service(url) as service:
        service.register("a")
        with service.database.write() as connection:
            _, operator = tokens.create_token(connection, "operator", ["operate"])
            _, engine = tokens.create_token(connection, "engine", ["read:temperatures"])
        service.client.headers["Accept"] = "text/html"
        service.client.follow_redirects = False
        yield service, operator, engine


def cookie(token: str) -> dict[str, str]:
    return {"Cookie": f"{COOKIE}={token}"}


def test_a_cookie_opens_pages_and_nothing_else(guarded: tuple[Service, str, str]) -> None:
    service, operator, _ = guarded
    assert service.client.get("/drafters/a", headers=cookie(operator)).status_code == 200
    headers = cookie(operator) | {"Authorization": "Bearer wrong"}
    assert service.client.get("/v1/drafters/a", headers=headers).status_code == 401
    wrong = service.client.get("/drafters/a", headers=cookie("wrong"))
    assert (wrong.status_code, wrong.headers["Location"]) == (303, "/sign-in?next=%2Fdrafters%2Fa")


def test_scopes_are_those_of_the_api(guarded: tuple[Service, str, str]) -> None:
    service, _, engine = guarded
    answer = service.client.get("/drafters/a", headers=cookie(engine))
    assert answer.status_code == 403
    assert "lacks the scope read:reports" in answer.text


def test_a_form_needs_its_token(guarded: tuple[Service, str, str]) -> None:
    service, operator, _ = guarded
    path = "/drafters/a/recalibrate"
    page = service.client.get(path, headers=cookie(operator)).text
    token = page.partition('name="form_token" value="')[2].partition('"')[0]
    assert len(token) == 64
    headers = cookie(operator) | FORM
    refused = service.client.post(path, headers=headers, content="form_token=" + "0" * 64)
    assert refused.status_code == 403
    none = service.client.post(path, headers=headers, content="")
    assert none.status_code == 403
    # Neither does the right token help a page of another site.
    foreign = headers | {"Sec-Fetch-Site": "cross-site"}
    assert (
        service.client.post(path, headers=foreign, content=f"form_token={token}").status_code == 403
    )
    taken = service.client.post(path, headers=headers, content=f"form_token={token}")
    assert (taken.status_code, taken.headers["Location"]) == (303, "/drafters/a?done=recalibration")


@pytest.mark.parametrize(
    ("content", "headers", "status"),
    [
        ("x" * 20_000, FORM, 413),
        ("{}", {"Content-Type": "application/json"}, 415),
        ("&".join(f"f{n}=1" for n in range(60)), FORM, 400),
        (b"\xff\xfe", FORM, 422),
    ],
)
def test_strange_forms_are_refused(
    guarded: tuple[Service, str, str], content: str | bytes, headers: dict[str, str], status: int
) -> None:
    service, _, _ = guarded
    assert service.client.post("/sign-in", content=content, headers=headers).status_code == status


def test_without_tokens_forms_are_guarded_all_the_same(tmp_path: Path) -> None:
    with running_service(empty_database(tmp_path)) as service:
        service.register("a")
        service.client.headers["Accept"] = "text/html"
        service.client.follow_redirects = False
        path = "/drafters/a/recalibrate"
        assert service.client.post(path, content="", headers=FORM).status_code == 403
        page = service.client.get(path).text
        token = page.partition('name="form_token" value="')[2].partition('"')[0]
        answer = service.client.post(path, content=f"form_token={token}", headers=FORM)
        assert answer.status_code == 303
        # A name that leads here but is not of this machine.
        rebound = service.client.get("/", headers={"Host": "evil.example"})
        assert rebound.status_code == 403
