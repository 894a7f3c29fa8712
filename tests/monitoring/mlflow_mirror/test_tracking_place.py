from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from calib.errors import ConfigurationError
from monitoring.mlflow_mirror.tracking_place import TrackingPlace, bound_calls, checked_uri


def chosen(setting: str = "", environment: str | None = None, **given: str) -> TrackingPlace | None:
    database = given.get("database", "sqlite:////data/service/dspark-calib.db")
    return TrackingPlace.choose(setting, database, Path("/home-of-data"), environment)


def test_setting_then_environment_then_the_store_beside_the_database() -> None:
    beside = TrackingPlace("sqlite:////data/service/mlflow.db", Path("/data/service"))
    assert chosen() == beside
    assert chosen(environment="http://mlflow:5000") == TrackingPlace("http://mlflow:5000")
    assert chosen("http://mine", "http://mlflow:5000") == TrackingPlace("http://mine")
    assert chosen("off", "http://mlflow:5000") is None
    home = chosen(database="postgresql://host/name")
    assert home is not None
    assert home.artifacts == Path("/home-of-data/mlflow-artifacts")


@pytest.mark.parametrize("uri", ["file:///tmp/runs", "./mlruns", "carrier-pigeon://x"])
def test_places_that_mlflow_cannot_write_are_refused(uri: str) -> None:
    with pytest.raises(ConfigurationError, match="tracking_uri"):
        checked_uri(uri)


def test_passwords_are_shown_nowhere() -> None:
    place = chosen("postgresql://user:secret@host/name")
    assert place is not None
    assert place.shown == "postgresql://host/name"
    assert "secret" not in place.look_command
    with pytest.raises(ConfigurationError) as refused:
        checked_uri("ftp://user:secret@host")
    assert "secret" not in str(refused.value)


def test_a_newcomer_is_told_what_to_type() -> None:
    local = chosen()
    assert local is not None
    assert local.look_command.startswith("mlflow ui --backend-store-uri sqlite:////data/service/")
    server = chosen("https://mlflow.example")
    assert server is not None
    assert server.look_command == "https://mlflow.example"


def test_a_local_store_is_made_whole_or_not_at_all(tmp_path: Path) -> None:
    place = TrackingPlace(f"sqlite:///{tmp_path / 'mlflow.db'}", tmp_path)

    def half(uri: str) -> None:
        with closing(sqlite3.connect(uri.removeprefix("sqlite:///"))) as connection:
            connection.execute("CREATE TABLE half (x)")
        raise InterruptedError

    with pytest.raises(InterruptedError):
        place.make_local_store(half)
    assert list(tmp_path.iterdir()) == []

    def whole(uri: str) -> None:
        with closing(sqlite3.connect(uri.removeprefix("sqlite:///"))) as connection:
            connection.execute("CREATE TABLE whole (x)")
            connection.commit()

    place.make_local_store(whole)
    assert [path.name for path in tmp_path.iterdir()] == ["mlflow.db"]
    with closing(sqlite3.connect(tmp_path / "mlflow.db")) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert connection.execute("SELECT name FROM sqlite_master").fetchall() == [("whole",)]
    place.make_local_store(half)  # it is there: nothing is made


def test_calls_are_bounded_and_not_repeated_by_mlflow() -> None:
    variables = bound_calls(2.4, {})
    assert variables["MLFLOW_HTTP_REQUEST_TIMEOUT"] == "2"
    assert variables["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] == "0"
    assert variables["MLFLOW_DISABLE_TELEMETRY"] == "true"
    assert bound_calls(0.1, {})["MLFLOW_HTTP_REQUEST_TIMEOUT"] == "1"
