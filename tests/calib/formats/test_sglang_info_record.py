"""Step records of SGLang: true acceptance, trimmed rows, post-temperature confidences."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calib.errors import CalibrationValueError, FormatError
from calib.formats.sglang_info_record import (
    NOTE_FORCED,
    NOTE_NO_STOPS,
    logits_of_confidences,
    read_info_records,
)

GAMMA = 3
ONES = (1.0, 1.0, 1.0)
EOS = 2


def request(**changes: Any) -> dict[str, Any]:
    """One entry as the engine's dumper writes it; defaults that it omits are omitted."""
    entry = {
        "req_pool_index": 4,
        "prefix_len": 20,
        "verify_len": 4,
        "acc_len": 3,
        "correct_drafts": 2,
        "cap_trim": 0,
        "bonus_token": 7,
        "draft_tokens": [11, 12, 13],
        "rid": "alice",
        "confidence": [0.9, 0.5, 0.25],
        "survival": [0.9, 0.45, 0.1125],
    }
    return {**entry, **changes}


def step(count: int, *requests: dict[str, Any], **changes: Any) -> dict[str, Any]:
    entry = {"forward_ct": count, "bs": len(requests), "mode": "compact", "budget": 5}
    return {**entry, "reqs": list(requests), **changes}


def dump(tmp_path: Path, *records: dict[str, Any], name: str = "d.json", **changes: Any) -> Path:
    """The body of ``GET /server_info``."""
    record = {
        "mode": "compact",
        "gamma": GAMMA,
        "verify_num_draft_tokens": GAMMA + 1,
        "components": ["core", "reqs"],
        "records": list(records),
        "simulate_acc_len": None,
        **changes,
    }
    path = tmp_path / name
    path.write_text(
        json.dumps({"version": "0.5.23", "internal_states": [{"dspark_info_record": record}]})
    )
    return path


def lengths(path: Path, **options: Any) -> list[tuple[int, int]]:
    records = read_info_records([path], GAMMA, ONES, **options).records
    return list(zip(records.verified.tolist(), records.accepted.tolist(), strict=True))


def test_r36_trimmed_positions_are_unobserved_not_rejected(tmp_path: Path) -> None:
    """Verified 2 of 3 and both kept: position 3 is unknown, which only ℓ = 2 says."""
    path = dump(tmp_path, step(1, request(verify_len=3, acc_len=3, correct_drafts=2)))
    assert lengths(path) == [(2, 2)]


def test_a_cap_hides_nothing(tmp_path: Path) -> None:
    entry = request(verify_len=2, acc_len=2, correct_drafts=1, cap_trim=2)
    path = dump(tmp_path, step(1, entry, mode="cap-accept"))
    assert lengths(path) == [(3, 3)]
    assert read_info_records([path], GAMMA, ONES).records.propensity.tolist() == [1.0]


def test_only_steps_without_a_budget_were_verified_whatever_came(tmp_path: Path) -> None:
    path = dump(tmp_path, step(1, request(), budget=None), step(2, request()))
    assert read_info_records([path], GAMMA, ONES).records.propensity.tolist()[:1] == [1.0]
    assert math.isnan(read_info_records([path], GAMMA, ONES).records.propensity[1])


def test_confidences_become_raw_logits_again(tmp_path: Path) -> None:
    """σ(1.5 / 2) = 0.6792 as the dumper rounds it; times T it is 1.5 within the rounding."""
    path = dump(tmp_path, step(1, request(confidence=[0.6792, 0.5, 0.5])))
    found = read_info_records([path], GAMMA, (2.0, 1.0, 1.0), revision=4)
    assert found.records.confidence_logits[0, 0] == pytest.approx(1.5, abs=5e-4)
    assert found.records.revision.tolist() == [4]


def test_a_rounded_certainty_is_finite_and_counted(tmp_path: Path) -> None:
    path = dump(tmp_path, step(1, request(confidence=[1.0, 0.0, 0.5])))
    found = read_info_records([path], GAMMA, ONES)
    edge = math.log(0.99995 / 0.00005)
    assert found.records.confidence_logits[0].tolist() == pytest.approx([edge, -edge, 0.0])
    assert found.saturated == 2
    assert np.isfinite(logits_of_confidences(np.array([0.0, 1.0]), (20.0, 20.0))).all()


def test_r52_simulated_acceptance_is_flagged(tmp_path: Path) -> None:
    found = read_info_records(
        [dump(tmp_path, step(1, request()), simulate_acc_len=2.0)], GAMMA, ONES
    )
    assert found.records.flags.tolist() == [4]
    assert NOTE_FORCED in found.notes


def test_overlapping_dumps_count_once(tmp_path: Path) -> None:
    """The engine hands out its whole memory at every call."""
    first = dump(tmp_path, step(1, request()), step(2, request()), name="a.json")
    second = dump(tmp_path, step(2, request()), step(3, request()), name="b.json")
    found = read_info_records([first, second], GAMMA, ONES)
    assert found.records.step is not None
    assert found.records.step.tolist() == [1, 2, 3]
    assert found.duplicates == 1


def test_r38_stop_tokens_cut_blocks_and_end_requests(tmp_path: Path) -> None:
    ends = request(draft_tokens=[11, EOS, 13], acc_len=4, correct_drafts=3)
    path = dump(tmp_path, step(1, ends), step(2, request()), step(2, request(rid="bob")))
    found = read_info_records([path], GAMMA, ONES, stop_ids=[EOS])
    assert lengths(path, stop_ids=[EOS]) == [(2, 2), (3, 2)]
    assert found.after_stop == 1
    assert found.records.flags.tolist() == [16, 0]
    assert NOTE_NO_STOPS not in found.notes
    assert NOTE_NO_STOPS in read_info_records([path], GAMMA, ONES).notes


def test_names_are_hashed_and_replicas_kept_apart(tmp_path: Path) -> None:
    path = dump(tmp_path, step(1, request()))
    state = json.loads(path.read_text())["internal_states"][0]
    path.write_text(json.dumps([state, {"other": 1}, state]))
    found = read_info_records([path], GAMMA, ONES, engine="pod").records
    assert found.engine is not None
    assert found.engine.tolist() == ["pod-0", "pod-2"]
    assert found.request is not None
    assert "alice" not in str(found.request.tolist())


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"verify_len": 9}, "gamma 3"),
        ({"verify_len": 2}, "2 drafts correct of 1"),
        ({"acc_len": 2}, "2 tokens kept"),
        ({"confidence": [0.5, 0.5]}, "2 confidences"),
        ({"confidence": [1.5, 0.5, 0.5]}, "outside"),
        ({"confidence": None}, "static"),
        ({"draft_tokens": None}, "step 1"),
    ],
)
def test_an_entry_that_contradicts_itself_is_named(
    tmp_path: Path, changes: dict[str, Any], reason: str
) -> None:
    with pytest.raises(FormatError, match=reason):
        read_info_records([dump(tmp_path, step(1, request(**changes)))], GAMMA, ONES)


def test_files_of_another_kind_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="gamma is 3, asked for 7"):
        read_info_records([dump(tmp_path, step(1, request()))], 7, (1.0,) * 7)
    with pytest.raises(FormatError, match="DEBUG_DUMP"):
        read_info_records([dump(tmp_path, {"forward_ct": 1, "mode": "compact"})], GAMMA, ONES)
    with pytest.raises(FormatError, match="no rows"):
        read_info_records([dump(tmp_path)], GAMMA, ONES)
    path = tmp_path / "x.json"
    for text in ("{", "[]", '{"internal_states": [{}]}', "3", '{"records": 3, "gamma": 3}'):
        path.write_text(text)
        with pytest.raises(FormatError):
            read_info_records([path], GAMMA, ONES)
    for wrong in ((1.0,), (0.0, 1.0, 1.0), (float("inf"), 1.0, 1.0)):
        with pytest.raises(CalibrationValueError):
            read_info_records([path], GAMMA, wrong)
