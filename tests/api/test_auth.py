from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from api.auth import (
    ANONYMOUS,
    SCOPES,
    Authenticator,
    Principal,
    check_browser,
    check_scopes,
    check_start,
)
from api.problems import ProblemError
from api.settings import Settings
from calib.errors import ConfigurationError
from monitoring.store import tokens
from monitoring.store.database import Database
from monitoring.store.errors import StoreUnavailableError
from tests.support.service import Service, empty_database, running_service


class Hands:
    """A clock that a test turns."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock() -> Hands:
    return Hands()


@pytest.fixture
def database(tmp_path: Path, clock: Hands) -> Iterator[Database]:
    opened = Database.open(empty_database(tmp_path), clock=clock)
    yield opened
    opened.close()


@pytest.fixture
def authenticator(database: Database, clock: Hands) -> Authenticator:
    return Authenticator(database, anonymous=True, monotonic=clock)


def bearer(secret: str) -> bytes:
    return f"Bearer {secret}".encode()


def create(database: Database, name: str, *scopes: str, expires_at: float | None = None) -> bytes:
    with database.write() as connection:
        _, secret = tokens.create_token(connection, name, scopes, expires_at=expires_at)
    return bearer(secret)


def asked(authenticator: Authenticator, header: bytes | None) -> Principal:
    return asyncio.run(authenticator.principal(header))


def test_scopes_are_those_of_the_store() -> None:
    assert set(SCOPES) == tokens.SCOPES


def test_a_token_is_recognised_with_its_scopes(
    database: Database, authenticator: Authenticator
) -> None:
    header = create(database, "engine", "read:temperatures", "write:telemetry")
    found = asked(authenticator, header)
    assert found.name == "engine"
    assert found.scopes == {"read:temperatures", "write:telemetry"}
    assert found.token_id not in ("", "engine", "anonymous")


def test_who_may_operate_may_look(database: Database, authenticator: Authenticator) -> None:
    found = asked(authenticator, create(database, "person", "operate"))
    assert found.scopes == {"operate", "read:temperatures", "read:reports"}


def test_without_tokens_everybody_on_this_machine_may_do_everything(
    authenticator: Authenticator,
) -> None:
    assert asked(authenticator, None) is ANONYMOUS
    assert ANONYMOUS.scopes == set(SCOPES)


def test_nobody_is_anonymous_where_that_is_off(database: Database) -> None:
    with pytest.raises(ProblemError) as caught:
        asked(Authenticator(database, anonymous=False), None)
    assert caught.value.kind.status == 401
    assert caught.value.headers["WWW-Authenticate"] == 'Bearer realm="dspark-calib"'


@pytest.mark.parametrize(
    "header",
    [
        b"Bearer wrong",
        b"Bearer dspark_0123456789abcdef_" + b"x" * 43,
        b"Bearer ",
        b"Bearer",
        b"",
        b"Basic dXNlcjpwYXNz",
        b"Bearer \xff\xfe",
        b"Bearer " + b"x" * 600,
        b"Bearer a\x00b",
    ],
)
def test_anything_else_is_401(authenticator: Authenticator, header: bytes) -> None:
    """Also while no token exists: who sends one means to be somebody."""
    with pytest.raises(ProblemError) as caught:
        asked(authenticator, header)
    assert caught.value.kind.status == 401
    assert "Bearer" in caught.value.headers["WWW-Authenticate"]


def test_the_scheme_is_not_case_sensitive(database: Database, authenticator: Authenticator) -> None:
    header = create(database, "engine", "read:temperatures")
    assert asked(authenticator, header.replace(b"Bearer", b"bEARER")).name == "engine"


def test_the_first_token_ends_anonymous_access_within_two_seconds(
    database: Database, authenticator: Authenticator, clock: Hands
) -> None:
    assert asked(authenticator, None) is ANONYMOUS
    create(database, "engine", "read:temperatures")
    clock.seconds += 2.0
    with pytest.raises(ProblemError):
        asked(authenticator, None)


def test_a_revoked_token_stops_working_within_two_seconds(
    database: Database, authenticator: Authenticator, clock: Hands
) -> None:
    header = create(database, "engine", "read:temperatures")
    asked(authenticator, header)
    assert authenticator.remembered(header) is not None
    with database.write() as connection:
        tokens.revoke_token(connection, "engine")
    clock.seconds += 2.0
    assert authenticator.remembered(header) is None
    with pytest.raises(ProblemError) as caught:
        asked(authenticator, header)
    assert caught.value.kind.status == 401


def test_a_known_token_is_read_again_without_a_wait(
    database: Database, authenticator: Authenticator, clock: Hands
) -> None:
    header = create(database, "engine", "read:temperatures")

    async def story() -> None:
        await authenticator.principal(header)
        clock.seconds += 1.5
        assert authenticator.remembered(header) is not None  # and begins to read
        with database.write() as connection:
            tokens.revoke_token(connection, "engine")
        async with asyncio.timeout(30):
            while authenticator.remembered(header) is not None:
                clock.seconds += 0.001
                await asyncio.sleep(0.001)

    asyncio.run(story())


def test_a_token_runs_out_at_its_time_even_when_remembered(
    database: Database, authenticator: Authenticator, clock: Hands
) -> None:
    header = create(database, "engine", "read:temperatures", expires_at=clock.seconds + 0.5)
    asked(authenticator, header)
    clock.seconds += 0.5
    assert authenticator.remembered(header) is None
    with pytest.raises(ProblemError):
        asked(authenticator, header)


def test_the_database_is_asked_once_for_all_who_wait(
    database: Database, authenticator: Authenticator, monkeypatch: pytest.MonkeyPatch
) -> None:
    header = create(database, "engine", "read:temperatures")
    questions = []
    really = tokens.authenticate

    def counted(*arguments: object) -> object:
        questions.append(arguments)
        return really(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(tokens, "authenticate", counted)

    async def many() -> None:
        found = await asyncio.gather(*(authenticator.principal(header) for _ in range(50)))
        assert {principal.name for principal in found} == {"engine"}

    asyncio.run(many())
    assert len(questions) == 1


def test_an_outage_keeps_who_was_known_and_lets_nobody_new_in(
    database: Database,
    authenticator: Authenticator,
    clock: Hands,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = create(database, "known", "read:temperatures")
    unknown = create(database, "unknown", "read:temperatures")
    asked(authenticator, known)

    def away(*_: object) -> None:
        raise StoreUnavailableError("away")

    monkeypatch.setattr(tokens, "authenticate", away)
    clock.seconds += 3600.0
    assert asked(authenticator, known).name == "known"
    with pytest.raises(StoreUnavailableError):
        asked(authenticator, unknown)


def test_what_is_remembered_is_bounded(
    database: Database, authenticator: Authenticator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("api.auth._MOST_REMEMBERED", 5)
    headers = [create(database, f"engine-{n}", "read:temperatures") for n in range(8)]
    for header in headers:
        asked(authenticator, header)
    remembered = [authenticator.remembered(header) is not None for header in headers]
    assert remembered == [False] * 3 + [True] * 5


def test_a_missing_scope_is_named() -> None:
    engine = Principal("engine", "id", frozenset({"read:temperatures"}))
    check_scopes(engine, ("read:temperatures", "read:reports"))
    with pytest.raises(ProblemError) as caught:
        check_scopes(engine, ("operate",))
    assert caught.value.kind.status == 403
    assert caught.value.extensions["required_scope"] == ["operate"]
    assert 'scope="operate"' in caught.value.headers["WWW-Authenticate"]


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1:8765", "localhost", "localhost:1", "[::1]:8765", "[::1]", "test", "a.localhost"],
)
def test_local_names_are_answered(host: str) -> None:
    check_browser([(b"host", host.encode())], "POST")


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8765", "10.0.0.1", "127.0.0.1.x.y"])
def test_a_foreign_name_is_refused_without_tokens(host: str) -> None:
    """A page can point its own name at 127.0.0.1, but not forge the Host header."""
    with pytest.raises(ProblemError) as caught:
        check_browser([(b"host", host.encode())], "GET")
    assert caught.value.kind.slug == "host-not-allowed"


def test_a_change_that_another_site_asks_for_is_refused_without_tokens() -> None:
    headers = [(b"host", b"127.0.0.1"), (b"sec-fetch-site", b"cross-site")]
    check_browser(headers, "GET")
    with pytest.raises(ProblemError):
        check_browser(headers, "POST")
    check_browser([(b"sec-fetch-site", b"same-origin")], "POST")


@pytest.mark.parametrize(
    ("host", "allow", "any_tokens", "field"),
    [
        ("127.0.0.1", True, False, None),
        ("127.0.0.1", False, True, None),
        ("0.0.0.0", True, True, None),
        ("0.0.0.0", True, False, "host"),
        ("example.org", True, False, "host"),
        ("127.0.0.1", False, False, "allow_anonymous"),
    ],
)
def test_the_start_is_refused_where_strangers_could_come_in(
    host: str, allow: bool, any_tokens: bool, field: str | None
) -> None:
    settings = Settings(host=host, allow_anonymous=allow)
    if field is None:
        check_start(settings, any_tokens=any_tokens)
        return
    with pytest.raises(ConfigurationError) as caught:
        check_start(settings, any_tokens=any_tokens)
    assert caught.value.field == field
    assert "token create" in caught.value.remedy


# The calls themselves -----------------------------------------------------------------------------

READ = "/v1/drafters/drafter/temperatures?gamma=7"


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[tuple[Service, dict[str, dict[str, str]]]]:
    """A service with a token for each scope, and the headers that send them."""
    url = empty_database(tmp_path)
    database = Database.open(url)
    headers = {}
    for scope in SCOPES:
        secret = create(database, scope.replace(":", "-"), scope).decode()
        headers[scope] = {"Authorization": secret}
    database.close()
    with running_service(url) as service:
        service.client.headers.update(headers["operate"])
        assert service.register().status_code == 201
        service.client.headers.pop("Authorization")
        yield service, headers


def test_calls_need_their_scope(guarded: tuple[Service, dict[str, dict[str, str]]]) -> None:
    service, headers = guarded
    needs = {
        ("GET", READ): "read:temperatures",
        ("GET", "/v1/drafters/drafter/engines"): "read:reports",
        ("GET", "/v1/events"): "read:reports",
        ("POST", "/v1/drafters/drafter/telemetry"): "write:telemetry",
        ("POST", "/v1/drafters/drafter/recalibrations"): "operate",
        ("POST", "/v1/drafters/drafter/rollback"): "operate",
        ("PUT", "/v1/drafters/drafter/cost-table"): "operate",
        ("POST", "/v1/events/1/acknowledge"): "operate",
    }
    for (method, path), scope in needs.items():
        body = {"json": {}} if method != "GET" else {}
        assert service.client.request(method, path, **body).status_code == 401, path
        for other, header in headers.items():
            status = service.client.request(method, path, headers=header, **body).status_code
            implied = other == "operate" and scope.startswith("read:")
            assert (status == 403) is (other != scope and not implied), (path, other, status)


def test_the_audit_row_names_the_token(
    guarded: tuple[Service, dict[str, dict[str, str]]],
) -> None:
    from monitoring.store.audit import list_audit

    service, _ = guarded
    with service.database.read() as connection:
        row = list_audit(connection)[0]
    assert (row.actor, row.action) == ("operate", "register")
    assert row.request_id


def test_an_unknown_caller_learns_nothing_about_its_body(
    guarded: tuple[Service, dict[str, dict[str, str]]],
) -> None:
    service, _ = guarded
    answer = service.client.put("/v1/drafters/x", content=b"{not json")
    assert answer.status_code == 401


def test_pages_and_probes_need_no_token(
    guarded: tuple[Service, dict[str, dict[str, str]]],
) -> None:
    service, _ = guarded
    for path in ("/healthz", "/readyz", "/openapi.json", "/docs", "/problems/unauthenticated"):
        assert service.client.get(path).status_code == 200, path
