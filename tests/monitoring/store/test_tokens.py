"""Tokens: the secret is nowhere, and what is revoked or expired opens nothing."""

from __future__ import annotations

import hashlib
import hmac
from pathlib import Path

import pytest

from calib.errors import InvalidInputError
from monitoring.store import tables, tokens
from monitoring.store.database import Database
from monitoring.store.errors import ConflictError, NotFoundError
from tests.monitoring.store.store_fixtures import START, ManualClock


def create(
    database: Database, name: str = "engines", expires_at: float | None = None
) -> tuple[tokens.Token, str]:
    scopes = ["read:temperatures", "write:telemetry"]
    return database.run(
        lambda connection: tokens.create_token(connection, name, scopes, expires_at=expires_at)
    )


def opens(database: Database, secret: str) -> tokens.Token | None:
    with database.read() as connection:
        return tokens.authenticate(connection, secret)


def test_secret_opens_and_nothing_near_it_does(database: Database) -> None:
    token, secret = create(database)
    assert opens(database, secret) == token
    assert token.scopes == {"read:temperatures", "write:telemetry"}
    other = "A" if secret[-1] != "A" else "B"
    wrong = [secret[:-1] + other, secret[:-1], secret + "A", secret.upper(), "", "dspark_", "é"]
    wrong += ["\ud800", secret.replace(token.id, "0" * 16), f"{secret}\n", "x" * 10_000]
    assert [opens(database, attempt) for attempt in wrong] == [None] * len(wrong)


def test_two_tokens_do_not_open_for_each_other(database: Database) -> None:
    one, first = create(database, "one")
    two, second = create(database, "two")
    crossed = first.replace(one.id, two.id)
    assert first != second
    assert opens(database, crossed) is None


def test_only_the_hash_is_stored(database: Database) -> None:
    _, secret = create(database)
    with database.read() as connection:
        stored = " ".join(map(str, connection.execute(tables.tokens.select()).one()))
    assert secret not in stored
    assert secret.split("_", 2)[2] not in stored  # which may begin with an underscore
    assert hashlib.sha256(secret.encode()).hexdigest() in stored


def test_secret_is_in_no_file(sqlite_url: str, tmp_path: Path) -> None:
    database = Database.open(sqlite_url)
    _, secret = create(database)
    random_part = secret.rpartition("_")[2].encode()
    for path in tmp_path.iterdir():
        assert random_part[-20:] not in path.read_bytes()
    database.close()


def test_comparison_takes_constant_time_also_for_unknown_tokens(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, secret = create(database)
    compared: list[tuple[int, int]] = []
    real = hmac.compare_digest

    def spy(one: str, two: str) -> bool:
        compared.append((len(one), len(two)))
        return real(one, two)

    monkeypatch.setattr("monitoring.store.tokens.hmac.compare_digest", spy)
    for attempt in (secret, secret[:-1] + "_", f"dspark_{'0' * 16}_{'x' * 43}", "nonsense"):
        opens(database, attempt)
    assert compared == [(64, 64)] * 4


def test_revoked_token_is_refused_and_its_name_free(database: Database) -> None:
    token, secret = create(database)
    with pytest.raises(ConflictError, match="the name is taken"):
        create(database)
    revoked = database.run(lambda connection: tokens.revoke_token(connection, "engines"))
    assert revoked.id == token.id
    assert revoked.revoked_at is not None
    assert opens(database, secret) is None
    again, new_secret = create(database)
    assert opens(database, new_secret) == again
    # By id, a second time: nothing changes.
    assert database.run(lambda c: tokens.revoke_token(c, token.id)) == revoked
    assert opens(database, new_secret) == again
    with pytest.raises(NotFoundError, match="no token 'none'"):
        database.run(lambda connection: tokens.revoke_token(connection, "none"))
    with database.read() as connection:
        assert [found.id for found in tokens.list_tokens(connection)] == [token.id, again.id]


def test_expired_token_is_refused(sqlite_url: str) -> None:
    clock = ManualClock()
    database = Database.open(sqlite_url, clock=clock)
    _, secret = create(database, expires_at=START + 60)
    clock.seconds = START + 59.9
    assert opens(database, secret) is not None
    clock.seconds = START + 60
    assert opens(database, secret) is None
    database.close()


def test_revoking_the_last_token_does_not_open_the_service(database: Database) -> None:
    with database.read() as connection:
        assert not tokens.any_tokens(connection)
    create(database)
    database.run(lambda connection: tokens.revoke_token(connection, "engines"))
    with database.read() as connection:
        assert tokens.any_tokens(connection)


@pytest.mark.parametrize("scopes", [[], ["everything"], ["operate", "admin"]])
def test_unknown_scopes(database: Database, scopes: list[str]) -> None:
    with database.write() as connection, pytest.raises(InvalidInputError, match="scopes"):
        tokens.create_token(connection, "x", scopes)
    with database.write() as connection, pytest.raises(InvalidInputError, match="name"):
        tokens.create_token(connection, "No Slug", ["operate"])
