"""The plugin on a host that steps as SGLang does: in place, at one step, failing open."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from dspark_calib_client import State  # noqa: E402
from dspark_calib_client.plugins.sglang import registration  # noqa: E402
from tests.client.plugins.sglang.host import (  # noqa: E402
    Block,
    CapturedGraph,
    Engine,
    Group,
    Request,
    environment_of,
    plain_blocks,
    step_arguments,
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


@pytest.fixture
def environment(service: StandInService) -> dict[str, str]:
    return environment_of(service.url, DRAFTER, KEY)


@pytest.fixture
def engine() -> Iterator[Engine]:
    made = Engine(GAMMA)
    yield made
    attached = registration.attachment_of(made.planner)
    if attached is not None:
        attached.stop(0.1)


def steps_until(engine: Engine, met: Any) -> bool:
    reqs = [Request("a"), Request("b")]

    def walked() -> bool:
        engine.step(reqs, plain_blocks(2, GAMMA, engine.steps))
        return bool(met())

    return eventually(walked)


def held(engine: Engine) -> list[float]:
    return [float(value) for value in engine.head.sts_temperatures]


def rows_sent(engine: Engine, service: StandInService) -> list[dict[str, Any]]:
    """Every row so far; the client is stopped, which sends what waits."""
    attached = registration.attachment_of(engine.planner)
    assert attached is not None
    assert eventually(lambda: attached._client.current().state is State.FRESH)
    assert attached.stop(10.0)
    return service.rows


def test_new_temperatures_reach_a_captured_graph(
    engine: Engine, environment: dict[str, str], service: StandInService
) -> None:
    """The storage the graph reads is the one that is written, and is never another one."""
    assert engine.start(environment) is not None
    buffer = engine.head.sts_temperatures
    assert buffer.shape == (GAMMA,)
    engine.step([Request("a")], plain_blocks(1, GAMMA))
    assert engine.seen[0] == pytest.approx([1.0] * GAMMA)
    wanted = [1.5, 0.75, 2.0]
    service.publish(wanted)
    assert steps_until(engine, lambda: engine.seen[-1] == pytest.approx(wanted, rel=1e-4))
    assert engine.head.sts_temperatures is buffer
    assert buffer.data_ptr() == engine.graph.address
    # Within one step all positions change together: no vector was ever half new.
    whole = ([1.0] * GAMMA, wanted)
    assert all(any(seen == pytest.approx(v, rel=1e-4) for v in whole) for seen in engine.seen)


def test_a_rebound_tensor_would_not_reach_the_graph() -> None:
    """Why the plugin copies: the stand-in has the trap of the real thing."""
    engine = Engine(GAMMA)
    engine.start({})  # no settings: steps aside
    assert engine.head.sts_temperatures.ndim == 0
    graph = CapturedGraph(engine.head, 1, GAMMA)
    engine.head.sts_temperatures = torch.full((GAMMA,), 2.0)
    assert float(graph.replay(torch.ones(1, GAMMA))[0, 0]) == pytest.approx(0.731, abs=1e-3)


def test_rows_say_what_was_verified_accepted_and_applied(
    engine: Engine, environment: dict[str, str], service: StandInService
) -> None:
    """Compact mode: ℓ = verify_len - 1; the anchor and the bonus are never counted."""
    engine.start(environment)
    greedy = Request("g", top_k=1, custom_params={"dspark_domain": "code"})
    sampled = Request("s", temperature=0.6, frequency_penalty=0.5)
    blocks = [
        Block([2.0, 1.0, -1.0], [11, 12, 13], correct=2, verify_len=3),
        Block([0.5, 0.25, 4.0], [14, 15, 16], correct=0, verify_len=4, context=7),
    ]
    engine.step([greedy, sampled], blocks)
    first, second = rows_sent(engine, service)[:2]
    assert first["confidence_logits"] == [2.0, 1.0, -1.0]
    shown = ("verified", "accepted", "scheduled", "revision", "applied_form", "acceptance_rule")
    assert [first[name] for name in shown] == [2, 2, 2, 0, "identity", "greedy"]
    assert [second[name] for name in shown] == [3, 0, 3, 0, "identity", "rejection"]
    assert (first["sampling_temperature"], first["domain"]) == (0.0, "code")
    assert second["sampling_temperature"] == pytest.approx(0.6)
    assert (first["flags"], second["flags"]) == (0, 8)  # a penalty the drafter does not see
    assert second["context_length"] == 7
    assert first.get("propensity") is None  # confidences had their say
    assert first["request"] not in ("g", second["request"])  # ids are hashed


def test_rows_carry_the_revision_they_were_made_with(
    engine: Engine, environment: dict[str, str], service: StandInService
) -> None:
    """Temperatures change behind a step: its own rows still name the old revision."""
    engine.start(environment)
    service.publish([2.0, 2.0, 2.0], revision=9)
    reqs = [Request("a")]
    assert steps_until(engine, lambda: engine.seen[-1] == pytest.approx([2.0] * GAMMA, rel=1e-4))
    changed = engine.steps  # the first step with the new numbers
    engine.step(reqs, plain_blocks(1, GAMMA))
    attached = registration.attachment_of(engine.planner)
    assert attached is not None
    rows = rows_sent(engine, service)
    by_step = {row["step"] - attached._first_step: row["revision"] for row in rows}
    assert by_step[changed] == 9
    assert {by_step[step] for step in range(1, changed)} == {0}


@pytest.mark.parametrize("simulated", [0.0, 3.0])
def test_cap_accept_checks_every_position(
    environment: dict[str, str], service: StandInService, simulated: float
) -> None:
    engine = Engine(GAMMA, mode="cap-accept", simulate_acc_len=simulated)
    engine.start(environment)
    block = Block([1.0, 1.0, 1.0], [11, 12, 13], correct=3, verify_len=2)
    engine.step([Request("a")], [block])
    row = rows_sent(engine, service)[0]
    assert (row["verified"], row["accepted"], row["propensity"]) == (3, 3, 1.0)
    assert row["flags"] == (4 if simulated else 0)  # R52: simulated acceptance stays apart


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (problem("calibration-key-mismatch", 409), "another drafter's key"),
        (problem("gamma-too-long", 409), "a calibration that is too short"),
        (Canned(200, b'{"temperatures": [NaN, 1, 1]}'), "no JSON"),
        (Canned(500, b"oops"), "a broken service"),
    ],
)
def test_what_the_service_should_not_say_leaves_identity(
    engine: Engine,
    environment: dict[str, str],
    service: StandInService,
    answer: Canned,
    why: str,
) -> None:
    service.answers.extend([answer] * 10_000)
    assert engine.start(environment) is not None, why
    assert steps_until(engine, lambda: len(service.requests("GET")) > 3)
    assert held(engine) == [1.0] * GAMMA


def test_a_service_that_starts_to_lie_leaves_the_last_good_numbers(
    engine: Engine, environment: dict[str, str], service: StandInService
) -> None:
    attached = engine.start(environment)
    service.publish([1.5, 1.5, 1.5])
    assert steps_until(engine, lambda: held(engine) == [1.5] * GAMMA)
    for lie in ([1.5, 1.5], [1e9, 1.0, 1.0], [0.0, 1.0, 1.0], [1.0] * 9):
        asked = len(service.requests("GET"))
        service.publish(lie)
        attached._client.poll_now()  # no longer wait after faults
        assert steps_until(engine, lambda asked=asked: len(service.requests("GET")) > asked)
        engine.step([Request("a")], plain_blocks(1, GAMMA))
        assert held(engine) == [1.5] * GAMMA
    service.publish([1.25, 1.25, 1.25])  # and the truth is believed again
    attached._client.poll_now()
    assert steps_until(engine, lambda: held(engine) == [1.25] * GAMMA)


def test_flapping_is_waited_out(
    engine: Engine,
    environment: dict[str, str],
    service: StandInService,
    caplog: pytest.LogCaptureFixture,
) -> None:
    attached = engine.start(environment)
    changes = 0

    def flap() -> bool:
        nonlocal changes
        changes += 1
        service.publish([1.0 + changes % 2] * GAMMA)
        return bool(attached.status()["holding"])

    assert steps_until(engine, flap)
    stays = held(engine)
    for _ in range(5):
        asked = len(service.requests("GET"))
        flap()
        assert steps_until(engine, lambda asked=asked: len(service.requests("GET")) > asked + 1)
    assert held(engine) == stays
    assert "stays until it has been quiet" in caplog.text


def test_a_restart_begins_with_the_last_good_numbers(
    environment: dict[str, str], service: StandInService, tmp_path: Path
) -> None:
    """The service is gone, the engine comes back: what was good before is applied again."""
    lasting = environment | {"DSPARK_CALIB_STATE_DIR": str(tmp_path)}
    first = Engine(GAMMA)
    attached = first.start(lasting)
    service.publish([1.75, 1.5, 1.25])
    assert steps_until(first, lambda: held(first) == [1.75, 1.5, 1.25])
    attached.stop(5.0)
    service.answers.extend([Canned(503)] * 10_000)
    second = Engine(GAMMA)
    again = second.start(lasting)
    try:
        assert steps_until(second, lambda: held(second) == [1.75, 1.5, 1.25])
        assert again.status()["client"]["state"] == "stale"
    finally:
        again.stop(5.0)


def test_a_fault_in_a_step_is_counted_and_the_next_step_works(
    engine: Engine, environment: dict[str, str], service: StandInService
) -> None:
    attached = engine.start(environment)
    blocks = plain_blocks(1, GAMMA)
    engine.step([], blocks)  # requests and rows disagree
    engine.step([Request("a")], blocks, draft_block=None)
    engine.step([Request("a")], blocks, confidence_raw=None)
    assert attached.counters["telemetry_faults"] == 2
    assert attached.counters["steps_without_logits"] == 1
    service.publish([3.0, 3.0, 3.0])
    assert steps_until(engine, lambda: held(engine) == [3.0] * GAMMA)
    assert attached.status()["broadcasts_failed"] == 0


def test_only_watching_changes_nothing(
    engine: Engine, environment: dict[str, str], service: StandInService
) -> None:
    """``DSPARK_CALIB_APPLY=0``, and an engine that collects shards, which must stay at identity."""
    collecting = environment | {"SGLANG_DSPARK_STS_COLLECT_PATH": "shards"}
    for watching in (environment | {"DSPARK_CALIB_APPLY": "0"}, collecting):
        attached = engine.start(watching)
        service.publish([3.0 + engine.steps] * GAMMA)
        asked = len(service.requests("GET"))
        assert steps_until(engine, lambda asked=asked: len(service.requests("GET")) > asked + 2)
        assert held(engine) == [1.0] * GAMMA
        assert attached.status()["applies"] is False
        assert len(rows_sent(engine, service)) > 2
        service.rows.clear()


@pytest.mark.slow
def test_two_ranks_apply_a_revision_at_the_same_step(
    service: StandInService, tmp_path: Path
) -> None:
    """Two processes over gloo; takes seconds because both import torch."""
    from tests.client.plugins.sglang.rank_processes import walk_two_ranks

    held_by_rank = walk_two_ranks(service, tmp_path, steps=120)
    first, second = (np.array(held) for held in held_by_rank)
    assert len(first) == len(second) == 120
    assert np.array_equal(first, second)  # at no step does one rank know more than the other
    assert len(np.unique(first, axis=0)) >= 4  # and there were revisions to apply


def test_a_rank_without_the_plugin_turns_it_off_on_all(
    environment: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    """Rank 1 never comes: rank 0 waits its time, then leaves everything as it was."""
    store = torch.distributed.HashStore()
    engine = Engine(GAMMA, group=Group(0, 2))
    assert engine.start(environment, store=store, patience=0.2) is None
    assert engine.head.sts_temperatures.ndim == 0
    assert "steps aside" in caplog.text
    late = Engine(GAMMA, group=Group(1, 2))
    assert late.start(environment, store=store, patience=0.2) is None


def test_ranks_of_which_one_collects_shards_stay_out(environment: dict[str, str]) -> None:
    """It would leave out the exchange that the other waits in; a node may be set differently."""
    store = torch.distributed.HashStore()
    collecting = environment | {"SGLANG_DSPARK_STS_COLLECT_PATH": "shards"}
    engines = [Engine(GAMMA, group=Group(rank, 2)) for rank in range(2)]
    with ThreadPoolExecutor() as pool:
        begun = [
            pool.submit(engine.start, settings, store=store, patience=20.0)
            for engine, settings in zip(engines, (collecting, environment), strict=True)
        ]
        assert [start.result(60.0) for start in begun] == [None, None]


WAITS = ("item", "tolist", "cpu", "to", "__bool__", "__int__", "__float__", "__index__", "nonzero")


def test_a_step_asks_for_nothing_that_would_wait_for_the_device(
    engine: Engine,
    environment: dict[str, str],
    service: StandInService,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No number of a tensor is looked at: that would wait for everything that is queued."""
    engine.start(environment)
    service.publish([2.0, 2.0, 2.0])
    steps = [
        step_arguments("compact", [Request("a")], plain_blocks(1, GAMMA, seed), GAMMA)
        for seed in range(50)
    ]
    assert eventually(lambda: engine.attachment._client.current().publication == 2)
    asked: list[str] = []
    for name in WAITS:
        monkeypatch.setattr(torch.Tensor, name, lambda *_, name=name: asked.append(name))
    for count, step in enumerate(steps):
        engine.observe(**step, forward_ct=count)
    monkeypatch.undo()
    assert asked == []
    assert engine.attachment.counters["telemetry_faults"] == 0
    assert held(engine) == [2.0] * GAMMA
    assert len(rows_sent(engine, service)) == 50 - engine.attachment.counters["steps_left_out"]


def test_the_status_is_plain_json(engine: Engine, environment: dict[str, str]) -> None:
    attached = engine.start(environment)
    found = json.loads(json.dumps(attached.status()))
    assert (found["attached"], found["gamma"], found["rank"]) == (True, GAMMA, 0)
    assert found["temperatures"] == [1.0] * GAMMA
