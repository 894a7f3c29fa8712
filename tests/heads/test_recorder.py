"""Recordings: whole requests in order, resumable, and never two recordings in one folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from calib.errors import ConfigurationError, FormatError
from calib.label_consistency import check_label_consistency
from calib.records import AcceptanceRecords
from heads import recorder as module
from heads.recorder import Recorder, RecordingPlan
from heads.recording_plan import plan_requests
from heads.speculative_decoding import SpeculativeDecoder
from tests.heads.tiny_models import plain_logits, prompts, tiny_drafter, tiny_target

pytestmark = pytest.mark.torch

TARGET = tiny_target(eos=3, sharpness=3.0)
DRAFTER = tiny_drafter(TARGET)
PLAN = RecordingPlan(blocks=60, max_new_tokens=20, slots=4, seed=6, shard_requests=2)
TEXTS = prompts(7)


def record(folder: Path, plan: RecordingPlan = PLAN, **options: Any) -> AcceptanceRecords:
    drafter = options.pop("drafter", DRAFTER)
    policy = options.pop("policy", None)
    texts = options.pop("texts", TEXTS)
    target = options.pop("target", TARGET)
    return Recorder(target, drafter, plan, folder, policy).run(texts, **options)


def numbers(rows: AcceptanceRecords) -> list[int]:
    assert rows.request is not None
    return [int(r) for r in rows.request]


def assert_same_rows(one: AcceptanceRecords, other: AcceptanceRecords) -> None:
    """Equal but for step numbers, which tell how requests were interleaved."""
    assert numbers(one) == numbers(other)
    mine, theirs = one.columns(), other.columns()
    assert mine.keys() == theirs.keys()
    for name in mine.keys() - {"step", "step_requests"}:
        if mine[name].dtype.kind == "f":
            assert np.allclose(mine[name], theirs[name], atol=1e-4, equal_nan=True), name
        else:
            assert (mine[name] == theirs[name]).all(), name


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> AcceptanceRecords:
    return record(tmp_path_factory.mktemp("whole"))


def test_rows_are_what_decoding_alone_shows(whole: AcceptanceRecords) -> None:
    """The same requests decoded one at a time, without a recorder."""
    expected: dict[int, list[tuple[int, int, int]]] = {}
    decoder = SpeculativeDecoder(TARGET, DRAFTER, slots=1, capacity=212, seed=6)
    last = max(numbers(whole))
    stream = plan_requests(TARGET, TEXTS, PLAN)
    for step in decoder.run(next(stream).request for _ in range(last + 1)):
        row = (int(step.context_lengths[0]), int(step.verified[0]), int(step.verdict.accepted[0]))
        expected.setdefault(step.requests[0].number, []).append(row)
    assert whole.context_length is not None
    found: dict[int, list[tuple[int, int, int]]] = {}
    for number, *row in zip(
        numbers(whole),
        whole.context_length.tolist(),
        whole.verified.tolist(),
        whole.accepted.tolist(),
        strict=True,
    ):
        found.setdefault(number, []).append((row[0], row[1], row[2]))
    assert found == expected


def test_whole_requests_in_order_just_enough_of_them(whole: AcceptanceRecords) -> None:
    order = numbers(whole)
    assert order == sorted(order)
    assert len(whole) >= PLAN.blocks > sum(n != order[-1] for n in order)
    assert whole.step is not None
    for number in set(order):
        of_request = whole.step[np.array(order) == number]
        assert (np.diff(of_request) == 1).all()
    assert whole.domain is not None
    assert set(whole.domain) == {"chat", "code", "math"}
    assert whole.sampling_temperature is not None
    assert set(whole.sampling_temperature.tolist()) == {1.0, np.float32(0.6), 0.0}


def test_how_many_run_side_by_side_changes_nothing(
    whole: AcceptanceRecords, tmp_path: Path
) -> None:
    wide = record(tmp_path, replace(PLAN, slots=16, shard_requests=7))
    assert_same_rows(whole, wide)


def test_a_cut_off_recording_goes_on(whole: AcceptanceRecords, tmp_path: Path) -> None:
    def cut_off(done: int, total: int) -> None:
        assert total == 60
        if done > 15:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        record(tmp_path, progress=cut_off)
    kept = Recorder(TARGET, DRAFTER, PLAN, tmp_path).recorded()
    assert 15 < sum(map(len, kept)) < 60
    rest = record(tmp_path)
    assert_same_rows(whole, rest)
    # A step number is never used again, so (engine, request, step) stays unique.
    assert rest.step is not None
    assert len(set(zip(numbers(rest), rest.step.tolist(), strict=True))) == len(rest)


def test_a_finished_recording_is_only_read(tmp_path: Path) -> None:
    first = record(tmp_path)
    files = {p.name: p.stat().st_mtime_ns for p in tmp_path.glob("rows-*")}
    calls: list[int] = []
    again = record(tmp_path, progress=lambda done, total: calls.append(done))
    assert calls == [len(first)]
    assert again.equals(first)
    assert {p.name: p.stat().st_mtime_ns for p in tmp_path.glob("rows-*")} == files


def test_a_recording_can_be_made_longer(whole: AcceptanceRecords, tmp_path: Path) -> None:
    record(tmp_path, replace(PLAN, blocks=25))
    assert_same_rows(whole, record(tmp_path))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"plan": replace(PLAN, seed=7)}, r"plan\.seed"),
        ({"plan": replace(PLAN, temperatures=(1.0,))}, r"plan\.temperatures"),
        ({"plan": replace(PLAN, max_new_tokens=21)}, r"plan\.max_new_tokens"),
        ({"drafter": tiny_drafter(TARGET, seed=3)}, "drafter"),
        # The same name is not the same target: a checkpoint is replaced in its folder.
        ({"target": tiny_target(eos=3, sharpness=3.0, seed=1)}, "target_weights"),
        ({"texts": TEXTS[:6]}, "prompts"),
        ({"policy": lambda z: torch.zeros(len(z))}, "everything_verified"),
    ],
)
def test_another_recording_is_refused(tmp_path: Path, changes: dict[str, Any], named: str) -> None:
    small = replace(PLAN, blocks=5)
    record(tmp_path, small)
    plan = replace(changes.pop("plan", PLAN), blocks=5)
    with pytest.raises(ConfigurationError, match=f"begun with other {named}"):
        record(tmp_path, plan, **changes)


def test_damaged_folders_are_named(tmp_path: Path) -> None:
    record(tmp_path)
    shards = sorted(tmp_path.glob("rows-*"))
    assert len(shards) > 2
    data = shards[1].read_bytes()
    shards[1].unlink()
    with pytest.raises(FormatError, match=r"rows-00001\.parquet is missing"):
        record(tmp_path)
    shards[1].write_bytes(data[:100])
    with pytest.raises(FormatError, match=r"rows-00001\.parquet"):
        record(tmp_path)
    shards[1].write_bytes(data)
    (tmp_path / "recording.json").write_text("{")
    with pytest.raises(FormatError, match=r"recording\.json"):
        record(tmp_path)
    (tmp_path / "recording.json").unlink()
    with pytest.raises(FormatError, match=r"without recording\.json"):
        record(tmp_path)


def test_a_target_that_never_answers_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PATIENCE", 20)
    silent = tiny_target()
    ends = {int(plain_logits(silent, silent.encode_chat(p.text))[-1].argmax()) for p in prompts(3)}
    silent.config.eos_token_id = sorted(ends)
    with pytest.raises(ConfigurationError, match="20 requests without a block"):
        record(
            tmp_path,
            replace(PLAN, temperatures=(0.0,)),
            target=silent,
            drafter=tiny_drafter(silent),
            texts=prompts(3),
        )


def test_a_drafter_without_confidence_head_cannot_be_recorded(tmp_path: Path) -> None:
    bare = tiny_drafter(TARGET)
    bare.confidence_head = None
    with pytest.raises(ConfigurationError, match="no confidence head"):
        record(tmp_path, drafter=bare)


@pytest.mark.slow
@pytest.mark.statistical
@pytest.mark.parametrize("trimmed", [False, True])
def test_acceptance_agrees_with_the_labels(tmp_path: Path, trimmed: bool) -> None:
    """y − c* has mean zero on observed positions, trimmed or not; γ = 3, both samplings."""

    def policy(logits: Tensor) -> Tensor:
        return (torch.sigmoid(logits) >= 0.4).int().cumprod(dim=1).sum(dim=1)

    plan = replace(PLAN, blocks=6000, slots=64, shard_requests=64, temperatures=(1.0, 0.6))
    rows = record(tmp_path, plan, policy=policy if trimmed else None, texts=prompts(30))
    result = check_label_consistency(rows)
    assert not any(p.inconsistent for p in result.positions)
    for position in result.positions:
        assert position.rows > 100  # the policy lets few blocks reach the last position
        assert position.z is not None
        assert abs(position.z) < 4.0
        assert position.impossible == 0
    # The average of the drafted tokens' own acceptance is the label too.
    assert rows.soft_labels is not None
    assert rows.token_acceptance is not None
    gap = (rows.token_acceptance - rows.soft_labels)[:, 0]
    gap = gap[np.isfinite(gap)]
    assert abs(gap.mean()) < 4 * gap.std() / len(gap) ** 0.5
