"""The exploration share of the settings is in the answer that engines poll, and nowhere else."""

from __future__ import annotations

import json
from pathlib import Path

from dspark_calib_client.validation import Expected, read_publication
from tests.support.service import empty_database, running_service


def test_engines_are_told_the_share(tmp_path: Path) -> None:
    with running_service(empty_database(tmp_path), exploration_share=0.005) as service:
        service.register()
        place = "/v1/drafters/drafter/temperatures"
        for gamma in (7, 3):
            answer = service.client.get(place, params={"gamma": gamma})
            expected = Expected("drafter", gamma, None)
            found = read_publication(answer.content, answer.headers["ETag"], expected)
            assert found.exploration == 0.005
        sts = {"Accept": "application/vnd.sglang.dspark-sts+json"}
        file = service.client.get(place, params={"gamma": 7}, headers=sts)
        assert "exploration" not in json.loads(file.content)
