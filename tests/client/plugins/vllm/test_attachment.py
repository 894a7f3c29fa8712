"""The plugin on a host that steps as vLLM does: in place, at one step, failing open."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from dspark_calib_client import State  # noqa: E402
from dspark_calib_client.plugins.common.row_maker import MOST_FAULTS  # noqa: E402
from dspark_calib_client.plugins.vllm import attachment as module  # noqa: E402
from dspark_calib_client.plugins.vllm.attachment import explores  # noqa: E402
from tests.client.plugins.vllm.host import (  # noqa: E402
    Engine,
    Verdict,
    environment_of,
    request,
)
from tests.client.stand_in_service import (  # noqa: E402
    DRAFTER,
    GAMMA,
    KEY,
    Canned,
    StandInService,
    problem,
)
from tests.client.waiting import eventually  # noqa: E402

pytestmark = pytest.mark.torch
EOS_TOKEN = 2
RAW = [2.0, 1.0, -0.5]


@pytest.fixture
def environment(service: StandInService) -> dict[str, str]:
    return environment_of(service.url, DRAFTER, KEY)


@pytest.fixture
def start(environment: dict[str, str]) -> Iterator[Callable[..., tuple[Engine, Any]]]:
    clients: list[Any] = []

    def started(*, more: dict[str, str] | None = None, **options: Any) -> tuple[Engine, Any]:
        engine = Engine(GAMMA, **options)
        named = {f"DSPARK_CALIB_{name}": value for name, value in (more or {}).items()}
        attached = engine.start({**environment, **named})
        if attached is not None:
            clients.append(attached)
            engine.add(request("a"))
        return engine, attached

    yield started
    for client in clients:
        client.stop(5.0)


def walked_until(engine: Engine, met: Callable[[list[float]], bool]) -> bool:
    verdict = Verdict(RAW, [11, 12, 13], admitted=2 if engine.steps else 0, accepted=1)

    def walked() -> bool:
        return met(engine.step(["a"], [verdict])[0].tolist())

    return eventually(walked)


def sigmoid(values: list[float]) -> list[float]:
    return [1.0 / (1.0 + math.exp(-value)) for value in values]


def rows_sent(attached: Any, service: StandInService) -> list[dict[str, Any]]:
    assert eventually(lambda: attached._client.current().state is State.FRESH)
    assert attached.stop(10.0)
    return service.rows


def test_new_temperatures_reach_a_recorded_graph(
    start: Callable[..., tuple[Engine, Any]], service: StandInService
) -> None:
    """The graph was recorded before the numbers came, and reads the memory they are put into."""
    engine, attached = start()
    first = engine.step(["a"], [Verdict(RAW, [11, 12, 13])])
    assert first[0].tolist() == pytest.approx(sigmoid(RAW), rel=1e-6)
    tensor, address = attached.numbers.tensor, attached.numbers.tensor.data_ptr()
    service.publish([2.0, 0.5, 1.0])
    wanted = sigmoid([1.0, 2.0, -0.5])
    assert walked_until(engine, lambda seen: seen == pytest.approx(wanted, rel=1e-6))
    assert attached.numbers.tensor is tensor
    assert tensor.data_ptr() == address
    (graph,) = engine._graphs.values()  # never recorded again
    assert graph.operations
    assert not graph.waits


def test_the_affine_form_is_used_where_the_answer_has_one(
    start: Callable[..., tuple[Engine, Any]], service: StandInService
) -> None:
    engine, attached = start()
    affine = {"slopes": [0.5, 2.0, 1.0], "intercepts": [0.25, -1.0, 0.0]}
    service.publish([2.0, 2.0, 2.0], affine=affine)
    wanted = sigmoid([1.25, 1.0, -0.5])
    assert walked_until(engine, lambda seen: seen == pytest.approx(wanted, rel=1e-6))
    assert attached.status()["form"] == "affine"


def test_temperatures_can_be_asked_for_instead(
    start: Callable[..., tuple[Engine, Any]], service: StandInService
) -> None:
    engine, attached = start(more={"FORM": "temperatures"})
    affine = {"slopes": [0.5, 2.0, 1.0], "intercepts": [0.25, -1.0, 0.0]}
    service.publish([2.0, 2.0, 2.0], affine=affine)
    wanted = sigmoid([1.0, 0.5, -0.25])
    assert walked_until(engine, lambda seen: seen == pytest.approx(wanted, rel=1e-6))
    assert attached.status()["form"] == "temperatures"


def test_rows_say_what_was_admitted_and_accepted(
    start: Callable[..., tuple[Engine, Any]], service: StandInService
) -> None:
    """n = sampled - 1, ℓ = n + rejected; the logits are those the graded block was drafted with."""
    engine, attached = start(rows=4)
    code = {"dspark_domain": "code", "dspark_tenant": "acme"}
    engine.add(request("b", temperature=0.0, extra_args=code), request("c", min_tokens=3))
    names = ["c", "a", "b"]
    engine.step(
        names,
        [
            Verdict([1.0, 2.0, 3.0], [11, 12, 13]),
            Verdict([4.0, 5.0, 6.0], [14, EOS_TOKEN, 15]),
            Verdict([7.0, 8.0, 9.0], [16, 17, 18]),
        ],
    )
    engine.step(  # another order: logits follow the request, not the place in the batch
        ["b", "c", "a"],
        [
            Verdict(RAW, [1, 1, 1], admitted=3, accepted=2),
            Verdict(RAW, [1, 1, 1], admitted=0),
            Verdict(RAW, [1, 1, 1], admitted=3, accepted=0),
        ],
    )
    found = rows_sent(attached, service)[:3]
    assert [row["confidence_logits"] for row in found] == [
        [7.0, 8.0, 9.0],
        [1.0, 2.0, 3.0],
        [4.0, 5.0, 6.0],
    ]
    lengths = [(row["verified"], row["accepted"], row["scheduled"]) for row in found]
    assert lengths == [(3, 2, 3), (0, 0, 0), (2, 0, 3)]  # cut at the drafted stop token
    assert [row["flags"] for row in found] == [0, 8, 16]
    assert [row["acceptance_rule"] for row in found] == ["greedy", "rejection", "rejection"]
    assert [row["draft_mode"] for row in found] == ["greedy", "sampled", "sampled"]
    assert [row["domain"] for row in found] == ["code", None, None]
    assert found[0]["tenant"] not in (None, "acme")
    assert {row["request"] for row in found}.isdisjoint({"a", "b", "c"})
    assert [(row["revision"], row["applied_form"]) for row in found] == [(0, "identity")] * 3
    assert found[0]["context_length"] == 96  # before the anchor: 100 less four checked tokens


def test_rows_carry_the_revision_they_were_drafted_with(
    start: Callable[..., tuple[Engine, Any]], service: StandInService
) -> None:
    engine, attached = start()
    service.publish([2.0, 2.0, 2.0], revision=9)
    wanted = sigmoid([1.0, 0.5, -0.25])
    assert walked_until(engine, lambda seen: seen == pytest.approx(wanted, rel=1e-6))
    changed = engine.steps  # the first block drafted with the new numbers is graded one step on
    for _ in range(2):
        engine.step(["a"], [Verdict(RAW, [11, 12, 13], admitted=2, accepted=1)])
    found = {row["step"] - attached._first_step: row for row in rows_sent(attached, service)}
    assert found[changed - 1]["revision"] == 0
    assert found[changed]["revision"] == 9


def test_a_block_drafted_before_a_pause_names_the_older_revision(
    start: Callable[..., tuple[Engine, Any]], service: StandInService
) -> None:
    """A request that sat out the change mixes two revisions in one batch."""
    engine, attached = start()
    assert walked_until(engine, lambda seen: attached.status()["publication"] == 1)
    engine.add(request("b"), request("c"))
    before = engine.steps
    block = Verdict(RAW, [11, 12, 13], admitted=2, accepted=1)
    engine.step(["a", "b", "c"], [Verdict(RAW, [1, 1, 1])] * 3)
    attached._made_with.append(module.Applied(5, 4, "temperatures"))
    engine.step(["a", "b"], [block] * 2)
    engine.step(["a", "b", "c"], [block] * 3)
    rows = rows_sent(attached, service)
    late = [row["revision"] for row in rows if row["step"] > attached._first_step + before]
    assert late == [0, 0, 4, 4, 0]


def test_a_drafter_without_a_head_is_calibrated_by_its_log_odds(
    start: Callable[..., tuple[Engine, Any]], service: StandInService
) -> None:
    """vLLM's own estimate stands until the service has numbers, and its feature is the logit."""
    engine, attached = start(head=False, spec={"method": "eagle3"})
    assert attached.source.name == "max_log_odds"
    block = [[math.log(p) for p in row] for row in ([0.8, 0.05, 0.05, 0.05, 0.05],) * 3]
    feature = math.log(0.8 / 0.2)
    first = engine.step(["a"], [Verdict(block, [11, 12, 13])])[0].tolist()
    assert first == pytest.approx(sigmoid([0.5 * feature - 0.2] * 3), rel=1e-5)
    affine = {"slopes": [1.0, 0.5, 2.0], "intercepts": [0.5, 0.0, -1.0]}
    service.publish([1.0, 1.0, 1.0], affine=affine)
    wanted = sigmoid([feature + 0.5, 0.5 * feature, 2.0 * feature - 1.0])
    verdict = Verdict(block, [11, 12, 13], admitted=2, accepted=1)

    def served() -> bool:
        seen = engine.step(["a"], [verdict])[0].tolist()
        return bool(seen == pytest.approx(wanted, rel=1e-5))

    assert eventually(served)
    rows = rows_sent(attached, service)
    assert rows[0]["confidence_logits"] == pytest.approx([feature] * 3, rel=1e-5)
    assert rows[0]["revision"] == -1  # nobody's revision: vLLM's estimate


def test_block_predictions_are_replaced_as_single_ones_are() -> None:
    """Drafters that sample their block in one pass hand over one position for each row."""
    from dspark_calib_client.plugins.vllm.sources import EstimatorSource

    numbers = torch.tensor([[1.0, 0.5], [0.25, 0.0], [1.0, 1.0]])
    estimator = type("Estimator", (), {"features": torch.tensor([[1.0, 2.0], [3.0, 4.0]])})()
    found = torch.zeros((3, 2))
    source = EstimatorSource(2, estimator, numbers)
    source.after_predict(torch.tensor([1, 1, 0, 0]), torch.tensor([0, 1, 0, 1]), found)
    wanted = [*sigmoid([3.25, 2.0]), *sigmoid([1.25, 1.0]), 0.0, 0.0]
    assert found.flatten().tolist() == pytest.approx(wanted)


def test_an_exploring_step_verifies_everything_and_says_so(
    start: Callable[..., tuple[Engine, Any]], service: StandInService
) -> None:
    """The coin is the number of the step's own: it falls before anything is drafted."""
    engine, attached = start()
    number = service.publish([1.5] * GAMMA)
    assert walked_until(engine, lambda seen: attached.status()["publication"] == number)
    assert attached.status()["exploration"] is None
    service.publish([1.5] * GAMMA, publication=number, exploration=0.05)  # a warning raised it
    assert walked_until(engine, lambda seen: attached.status()["exploration"] == 0.05)
    assert attached.status()["publication"] == number
    engine.runner.adaptive_verification.budget = 1
    while not explores(attached._steps, 0.05):
        engine.step(["a"], [Verdict(RAW, [11, 12, 13], admitted=1, accepted=1)])
        assert engine.tokens == 2
    engine.step(["a"], [Verdict(RAW, [11, 12, 13], admitted=3, accepted=1)])
    assert engine.tokens == 1 + GAMMA
    before, last = rows_sent(attached, service)[-2:]
    assert (bool(before["explored"]), before["propensity"]) == (False, None)
    assert (last["explored"], last["propensity"]) == (True, pytest.approx(0.05))
    shares = sum(explores(step, 0.05) for step in range(20_000)) / 20_000
    assert shares == pytest.approx(0.05, abs=0.006)  # four standard errors
    assert not any(explores(step, None) for step in range(100))
    assert sum(explores(step, 1.0) for step in range(2_000)) < 200  # never believed


@pytest.mark.parametrize(
    "answer",
    [
        problem("calibration-key-mismatch", 409),
        problem("gamma-too-long", 409),
        Canned(200, b'{"temperatures": [0.0, -1.0, 1e400]}', {"ETag": '"00"'}),
        Canned(500, b"no"),
    ],
    ids=["wrong drafter", "wrong gamma", "a lie", "broken"],
)
def test_a_service_that_cannot_be_believed_changes_nothing(
    start: Callable[..., tuple[Engine, Any]], service: StandInService, answer: Canned
) -> None:
    service.answers.extend([answer] * 10_000)
    engine, attached = start()
    for _ in range(20):
        seen = engine.step(["a"], [Verdict(RAW, [11, 12, 13])])
        assert seen[0].tolist() == pytest.approx(sigmoid(RAW), rel=1e-6)
    assert attached.status()["revision"] == 0


def test_numbers_out_of_range_are_not_staged(start: Callable[..., tuple[Engine, Any]]) -> None:
    """Even a client that let them through could not put them into the graph."""
    from dspark_calib_client import Source, Temperatures

    _, attached = start()
    before = attached.numbers.tensor.clone()
    for slopes, intercepts in (
        ((0.0,) * GAMMA, (0.0,) * GAMMA),
        ((1.0,) * GAMMA, (math.nan,) * GAMMA),
        ((1.0,) * GAMMA, (1e9,) * GAMMA),
        ((1.0,), (0.0,)),
    ):
        bad = Temperatures(
            *((1.0,) * GAMMA, 1, 1, None, None, State.FRESH, Source.SERVICE, 0.0, "fitted"),
            slopes=slopes,
            intercepts=intercepts,
        )
        assert not attached.numbers.stage(bad, 0)
    assert attached.numbers.at_step(0) is None
    assert attached.numbers.failed == 4
    assert torch.equal(attached.numbers.tensor, before)


WAITS = ("item", "tolist", "cpu", "to", "__bool__", "__int__", "__float__", "__index__", "nonzero")


def test_a_step_asks_for_nothing_that_would_wait_for_the_device(
    start: Callable[..., tuple[Engine, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No number of a tensor is looked at: that would wait for everything that is queued."""
    engine, attached = start()
    engine.step(["a"], [Verdict(RAW, [11, 12, 13])])
    batch = SimpleNamespace(
        req_ids=["a"],
        num_reqs=1,
        idx_mapping=torch.tensor([0], dtype=torch.int32),
        num_draft_tokens_per_req=np.array([GAMMA]),
        is_prefilling_np=np.array([False]),
        seq_lens=torch.tensor([100], dtype=torch.int32),
    )
    texts = SimpleNamespace(sampled_token_ids=torch.full((1, GAMMA + 1), 11))
    result = (texts, torch.tensor([2], dtype=torch.int32), torch.tensor([1], dtype=torch.int32))
    asked: list[str] = []
    for name in WAITS:
        monkeypatch.setattr(torch.Tensor, name, lambda *_, name=name: asked.append(name))
    for _ in range(10):
        attached.after_sample(engine.runner, batch, result)
        attached.after_draft(batch)
    monkeypatch.undo()
    assert asked == []
    assert eventually(lambda: attached.counters["rows"] == 10)
    assert attached.counters["telemetry_faults"] == 0


def test_faults_of_the_plugin_end_its_telemetry_and_not_the_engine(
    start: Callable[..., tuple[Engine, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, attached = start()
    monkeypatch.setattr(attached.source, "logits", lambda *_: 1 / 0)
    for _ in range(MOST_FAULTS + 5):
        seen = engine.step(["a"], [Verdict(RAW, [11, 12, 13], admitted=1)])
    assert seen[0].tolist() == pytest.approx(sigmoid(RAW), rel=1e-6)
    assert attached.counters["telemetry_faults"] == MOST_FAULTS
    assert attached.status()["telemetry"] is False
    assert attached.status()["broadcasts"] == engine.steps  # every step, whatever else failed


def test_an_engine_without_anything_to_calibrate_is_left_alone(
    environment: dict[str, str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One line with the remedy, and a word for the doctor."""
    engine = Engine(GAMMA, adaptive=False)
    told = tmp_path / "status.json"
    assert engine.start({**environment, "DSPARK_CALIB_STATUS_FILE": str(told)}) is None
    lines = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(lines) == 1
    assert '"enable_adaptive_verification": true' in lines[0]
    assert json.loads(told.read_text())["attached"] is False


def test_synthetic_acceptance_is_flagged(
    start: Callable[..., tuple[Engine, Any]], service: StandInService
) -> None:
    engine, attached = start(spec={"rejection_sample_method": "synthetic"})
    for _ in range(3):
        engine.step(["a"], [Verdict(RAW, [11, 12, 13], admitted=2, accepted=1)])
    assert {row["flags"] for row in rows_sent(attached, service)} == {4}
