from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from api.app import create_app, prepare, release
from api.settings import Settings
from calib.errors import ConfigurationError
from monitoring.store.database import Database
from monitoring.store.errors import StoreUnavailableError
from monitoring.store.migrate import is_current
from monitoring.store.tokens import create_token
from tests.support.service import BASE_URL, empty_database

ROOT = Path(__file__).resolve().parents[2]
HEAVY = ["torch", "mlflow", "netcal", "pandas", "sklearn", "matplotlib", "transformers", "IPython"]
# Installed all the same, and of no use to polls and ingest.
UNUSED = ["alembic", "jinja2", "pyarrow.compute", "pyarrow.dataset", "pyarrow.parquet", "rich"]
UNUSED += ["psycopg", "pygments", "scipy", "watchfiles"]
SCRIPT = f"""
import sys
import api.server
from api.app import create_app, prepare
from api.settings import Settings
settings = Settings(database_url=sys.argv[1])
create_app(settings, prepare(settings))
print(sorted(set({HEAVY + UNUSED!r}) & set(sys.modules)))
"""


@pytest.mark.slow
def test_the_application_loads_nothing_heavy(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SCRIPT, empty_database(tmp_path)]
    answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"


def test_the_release_is_the_distribution_s() -> None:
    assert release()[0].isdigit()


def test_it_opens_migrates_and_closes_its_own_database(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/new/folder/service.db"
    app = create_app(Settings(database_url=url))
    with TestClient(app, base_url=BASE_URL) as client:
        assert client.get("/readyz").status_code == 200
        assert is_current(app.state.database)
    assert app.state.feed.releasing


def test_a_given_database_is_left_open(tmp_path: Path) -> None:
    database = Database.open(empty_database(tmp_path))
    app = create_app(Settings(database_url="sqlite:///unused.db"), database)
    with TestClient(app, base_url=BASE_URL) as client:
        assert client.get("/readyz").status_code == 200
    database.check()
    database.close()


def test_it_starts_again_on_the_same_database(tmp_path: Path) -> None:
    url = empty_database(tmp_path)
    for _ in range(2):
        with TestClient(create_app(Settings(database_url=url)), base_url=BASE_URL) as client:
            assert client.get("/readyz").status_code == 200


def test_it_refuses_to_be_open_to_others_without_tokens(tmp_path: Path) -> None:
    settings = Settings(database_url=empty_database(tmp_path), host="0.0.0.0")
    with pytest.raises(ConfigurationError) as caught:
        prepare(settings)
    assert caught.value.field == "host"
    with pytest.raises(ConfigurationError), TestClient(create_app(settings), base_url=BASE_URL):
        pytest.fail("it started")
    database = Database.open(settings.database_url)
    with database.write() as connection:
        create_token(connection, "person", ["operate"])
    database.close()
    prepare(settings).close()


def test_a_database_that_is_none_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "text.db"
    path.write_text("no database at all, but long enough to be read as one" * 100)
    with pytest.raises(StoreUnavailableError):
        prepare(Settings(database_url=f"sqlite:///{path}"))


def test_websockets_are_turned_away(tmp_path: Path) -> None:
    from starlette.websockets import WebSocketDisconnect

    app = create_app(Settings(database_url=empty_database(tmp_path)))
    with (
        TestClient(app, base_url=BASE_URL) as client,
        pytest.raises(WebSocketDisconnect),
        client.websocket_connect("/v1/events"),
    ):
        pytest.fail("it was accepted")
