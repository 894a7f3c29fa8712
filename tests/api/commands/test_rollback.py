from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from api.cli import app
from monitoring.store.database import Database
from monitoring.store.migrate import upgrade
from monitoring.store.tokens import create_token
from tests.service_process import ServiceProcess
from tests.support.service import KEY


@pytest.mark.slow
def test_the_champion_before_is_served_again(runner: CliRunner, tmp_path: Path) -> None:
    """With tokens on: reading is not enough, and the number of the publication grows."""
    url = f"sqlite:///{tmp_path}/store.db"
    database = Database.open(url)
    upgrade(database)
    operator = database.run(lambda c: create_token(c, "operator", ["operate"]))[1]
    reader = database.run(lambda c: create_token(c, "reader", ["read:temperatures"]))[1]
    database.close()
    with ServiceProcess(url) as service, httpx.Client(timeout=60.0) as http:
        place = f"{service.url}/v1/drafters/d"
        headers = {"Authorization": f"Bearer {operator}"}
        state = http.put(place, json={"key": KEY}, headers=headers).raise_for_status()
        made = {"temperatures": [1.5] * 7}
        matching = headers | {"If-Match": state.headers["ETag"]}
        http.post(f"{place}/revisions", json=made, headers=matching).raise_for_status()

        def run(*arguments: str, secret: str) -> tuple[int, str]:
            shared = ["--url", service.url, "--token", secret]
            result = runner.invoke(app, [*arguments, *shared])
            return result.exit_code, result.stdout + result.stderr

        code, said = run("rollback", "d", secret=operator)
        assert (code, "no previous champion" in said) == (1, True)
        assert run("promote", "d", "1", secret=operator)[0] == 0
        code, said = run("rollback", "d", secret=reader)
        assert (code, "operate" in said) == (2, True)
        code, said = run("rollback", "d", "--reason", "worse in chat", secret=operator)
        assert code == 0
        assert said == "Revision 0 of d is served as publication 3; before it was revision 1.\n"
        code, said = run("rollback", "d", secret="dspark_wrong")
        assert (code, "status 401" in said) == (2, True)
