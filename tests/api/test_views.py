from __future__ import annotations

import hashlib
import json

import pytest

from api.schemas import Health
from api.views import (
    body_of,
    drafter_body,
    drafter_view,
    engine_view,
    json_answer,
    revision_summary,
    revision_view,
)
from calib.calibration import Calibration
from calib.calibration_key import CalibrationKey
from monitoring.store.drafter_rows import Aliases, Drafter, DrafterState
from monitoring.store.engines import EngineRow
from monitoring.store.revisions import Revision
from tests.support.service import KEY

KEY_7 = CalibrationKey.from_dict(KEY)
STATE = DrafterState(Drafter("drafter", 7, KEY_7, 4, 0.5), Aliases(3, None, 2), 5)


def test_an_answer_is_canonical_and_not_kept() -> None:
    answer = json_answer(Health(status="ok"), 201, {"Location": "/x"})
    assert answer.body == b'{"status":"ok"}'
    assert answer.status_code == 201
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["location"] == "/x"


def test_the_body_of_a_drafter_has_its_tag() -> None:
    body, tag = drafter_body(STATE)
    assert tag == f'"{hashlib.sha256(body).hexdigest()}"'
    assert body == body_of(drafter_view(STATE))
    assert json.loads(body)["created_at"] == "1970-01-01T00:00:00.500Z"


def test_every_version_has_a_tag_of_its_own() -> None:
    later = DrafterState(Drafter("drafter", 7, KEY_7, 5, 0.5), STATE.aliases, STATE.publication)
    assert drafter_body(later)[1] != drafter_body(STATE)[1]


def test_a_revision_shows_its_affine_form_and_aliases() -> None:
    calibration = Calibration(
        gamma=2,
        temperatures=(1.5, 1.0),
        slopes=(0.5, 1.0),
        intercepts=(0.0, 0.25),
        evidence={"rows": [1, 2]},
    )
    revision = Revision("drafter", 3, calibration, {"entries": ()}, {"job": "x"}, 1.0, "worker")
    found = revision_view(revision, Aliases(3, 3, 1), KEY_7)
    assert found.aliases == ["champion", "challenger"]
    assert found.affine is not None
    assert (found.affine.slopes, found.affine.intercepts) == ([0.5, 1.0], [0.0, 0.25])
    assert found.evidence == {"rows": [1, 2]}
    assert found.segments == {"entries": []}
    assert found.key.target_model == KEY["target_model"]
    summary = revision_summary(revision, Aliases(1, None, None))
    assert (summary.aliases, summary.digest) == ([], calibration.digest)


@pytest.mark.parametrize(
    ("applied", "age", "status"),
    [
        (5, 10.0, "on_champion"),
        (6, 10.0, "on_champion"),  # told by another replica that is ahead
        (4, 10.0, "behind"),
        (0, 10.0, "behind"),
        (None, 10.0, "unreported"),
        (5, 180.5, "silent"),
        (None, 500.0, "silent"),
        (5, -3.0, "on_champion"),  # seen by a replica whose clock is ahead
    ],
)
def test_an_engine_is_where_it_says(applied: int | None, age: float, status: str) -> None:
    row = EngineRow("drafter", "a", None, applied, None, None, 0.0, 1000.0)
    found = engine_view(row, publication=5, now=1000.0 + age, silent_after=180.0)
    assert found.status == status
    assert found.silent_seconds == max(0.0, age)
