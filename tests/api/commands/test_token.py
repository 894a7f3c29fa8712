from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from api.cli import app
from monitoring.store.database import Database
from monitoring.store.tokens import authenticate


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/tokens.db"


def token(runner: CliRunner, url: str, *arguments: str) -> Result:
    return runner.invoke(app, ["token", *arguments, "--database-url", url])


def test_the_secret_is_printed_once_and_opens_the_service(runner: CliRunner, url: str) -> None:
    made = token(
        runner,
        url,
        "create",
        "engine-1",
        "--scope",
        "read:temperatures",
        "--scope",
        "write:telemetry",
    )
    assert made.exit_code == 0, made.stderr
    secret = made.stdout.strip()
    assert "only time" in made.stderr
    assert secret not in made.stderr
    database = Database.open(url)
    with database.read() as connection:
        found = authenticate(connection, secret)
    database.close()
    assert found is not None
    assert (found.name, found.scopes) == ("engine-1", {"read:temperatures", "write:telemetry"})
    assert secret.encode() not in Path(url.removeprefix("sqlite:///")).read_bytes()
    listed = token(runner, url, "list")
    assert "engine-1  read:temperatures write:telemetry  valid" in listed.stdout
    assert secret not in listed.stdout


def test_a_revoked_token_opens_nothing(runner: CliRunner, url: str) -> None:
    secret = token(runner, url, "create", "ops", "--scope", "operate").stdout.strip()
    revoked = token(runner, url, "revoke", "ops")
    assert revoked.exit_code == 0
    assert "revoked" in revoked.stdout
    database = Database.open(url)
    with database.read() as connection:
        assert authenticate(connection, secret) is None
    database.close()
    assert token(runner, url, "create", "ops", "--scope", "operate").exit_code == 0


def test_scripts_read_json(runner: CliRunner, url: str) -> None:
    made = token(runner, url, "create", "ci", "--scope", "operate", "--expires-days", "7", "--json")
    found = json.loads(made.stdout)
    assert found["secret"].startswith("dspark_")
    assert found["scopes"] == ["operate"]
    assert found["expires_at"] > found["created_at"]
    (listed,) = json.loads(token(runner, url, "list", "--json").stdout)
    assert listed["id"] == found["id"]
    assert "secret" not in listed


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["create", "No Slug", "--scope", "operate"], "name: got 'No Slug'"),
        (["create", "x"], "--scope"),
        (["create", "x", "--scope", "admin"], "admin"),
        (["revoke", "nobody"], "no token 'nobody'"),
    ],
)
def test_mistakes_are_bad_input(
    runner: CliRunner, url: str, arguments: list[str], words: str
) -> None:
    result = token(runner, url, *arguments)
    assert result.exit_code == 2
    assert words in result.stderr


def test_a_name_in_use_is_refused(runner: CliRunner, url: str) -> None:
    token(runner, url, "create", "x", "--scope", "operate")
    again = token(runner, url, "create", "x", "--scope", "operate")
    assert again.exit_code == 2
    assert "the name is taken" in again.stderr


def test_an_empty_list_says_what_that_means(runner: CliRunner, url: str) -> None:
    assert "this machine only" in token(runner, url, "list").stdout


def test_the_folder_of_the_service_names_its_database(runner: CliRunner, tmp_path: Path) -> None:
    made = runner.invoke(
        app, ["token", "create", "ops", "--scope", "operate", "--data", str(tmp_path)]
    )
    assert made.exit_code == 0, made.stderr
    listed = token(runner, f"sqlite:///{tmp_path / 'dspark-calib.db'}", "list")
    assert "ops  operate  valid" in listed.stdout
    both = token(runner, "sqlite:///other.db", "list", "--data", str(tmp_path))
    assert both.exit_code == 2
    assert "give either --data or --database-url" in both.stderr
