"""From the entry point to an attached speculator, or to one line that says why not."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from dspark_calib_client.plugins.vllm import registration  # noqa: E402
from tests.client.plugins.vllm.host import (  # noqa: E402
    DraftModelSpeculator,
    Engine,
    Group,
    environment_of,
)
from tests.client.stand_in_service import DRAFTER, GAMMA, KEY  # noqa: E402

pytestmark = pytest.mark.torch
NOBODY = environment_of("http://127.0.0.1:9", DRAFTER, KEY)


def test_the_entry_point_is_declared_and_loads() -> None:
    declared = (Path(__file__).parents[4] / "client" / "pyproject.toml").read_text()
    assert '[project.entry-points."vllm.general_plugins"]' in declared
    point = EntryPoint("dspark_calib", "dspark_calib_client.plugins.vllm:register", "vllm")
    assert point.load()() is None  # no settings: nothing happens


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"DSPARK_CALIB_DRAFTER": ""}, "DSPARK_CALIB_DRAFTER"),
        ({"DSPARK_CALIB_FORM": "exact"}, "DSPARK_CALIB_FORM"),
    ],
)
def test_settings_that_cannot_be_used_are_one_line(
    changes: dict[str, str], named: str, caplog: pytest.LogCaptureFixture
) -> None:
    engine = Engine(GAMMA)
    assert engine.start({**NOBODY, **changes}) is None
    (record,) = [entry for entry in caplog.records if entry.levelname == "WARNING"]
    assert record.getMessage().startswith("dspark-calib steps aside: ")
    assert named in record.getMessage()


def test_a_rank_whose_partner_stays_away_stays_away_too() -> None:
    """Its collective would wait for ever: so both stay out, within the patience given."""
    store = torch.distributed.HashStore()
    engine = Engine(GAMMA, group=Group(0, 2))
    assert engine.start(NOBODY, store=store, patience=0.2) is None
    assert registration.attachment_of(engine.speculator) is None


def test_loading_a_drafter_attaches(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wrapped ``load_model`` asks vLLM for its group and attaches to what was loaded."""

    class Own(DraftModelSpeculator):
        pass

    module: Any = SimpleNamespace(DraftModelSpeculator=Own, __name__="m")
    registration.hook_speculator(module)
    state = SimpleNamespace(get_tp_group=Group)
    monkeypatch.setattr(registration, "import_module", lambda name: state)
    for name, value in NOBODY.items():
        monkeypatch.setenv(name, value)
    speculator = Own(GAMMA, 4, head=True, adaptive=True)
    speculator.load_model()
    attached = registration.attachment_of(speculator)
    assert attached is not None
    assert attached.stop(5.0)
