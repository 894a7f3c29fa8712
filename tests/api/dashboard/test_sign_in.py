from __future__ import annotations

from collections.abc import Iterator

import pytest

from api.dashboard.session import COOKIE, SESSION_SECONDS
from api.dashboard.sign_in import local_target
from monitoring.store import tokens
from tests.support.service import Service, empty_database, running_service


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Service, str]]:
    with running_service(empty_database(tmp_path_factory.mktemp("guarded"))) as service:
        with service.database.write() as connection:
            _, secret = tokens.create_token(connection, "reader", ["read:reports"])
        service.client.headers["Accept"] = "text/html"
        service.client.follow_redirects = False
        yield service, secret


def test_a_token_becomes_a_session(guarded: tuple[Service, str]) -> None:
    service, secret = guarded
    answer = service.client.post("/sign-in", data={"token": f" {secret}\n", "next": "/drafters/a"})
    assert (answer.status_code, answer.headers["Location"]) == (303, "/drafters/a")
    cookie = answer.headers["Set-Cookie"]
    assert cookie == (
        f"{COOKIE}={secret}; HttpOnly; Max-Age={SESSION_SECONDS}; Path=/; SameSite=strict"
    )
    encrypted = service.client.post(
        "/sign-in", data={"token": secret}, headers={"X-Forwarded-Proto": "https"}
    )
    assert "; Secure" in encrypted.headers["Set-Cookie"]
    out = service.client.post("/sign-out", data={"x": ""})
    assert (out.status_code, out.headers["Location"]) == (303, "/sign-in")
    assert "Max-Age=0" in out.headers["Set-Cookie"]


@pytest.mark.parametrize(("token", "status"), [("wrong", 401), ("", 422), ("ä€\x00", 401)])
def test_no_token_is_no_session(guarded: tuple[Service, str], token: str, status: int) -> None:
    service, _ = guarded
    answer = service.client.post("/sign-in", data={"token": token, "next": "//evil.example"})
    assert answer.status_code == status
    assert "Set-Cookie" not in answer.headers
    assert 'role="alert"' in answer.text
    assert 'name="next" value="/"' in answer.text


def test_who_needs_no_token_is_not_asked(shown: Service) -> None:
    answer = shown.client.get("/sign-in?next=/drafters/first", follow_redirects=False)
    assert (answer.status_code, answer.headers["Location"]) == (303, "/drafters/first")


@pytest.mark.parametrize(
    "given",
    ["//evil.example", "/\\evil.example", "https://evil.example", "x", "", "/a\nb", "/a\\b"],
)
def test_the_way_back_stays_on_this_site(given: str) -> None:
    assert local_target(given) == "/"
