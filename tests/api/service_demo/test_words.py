from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from api.service_demo.engines import Arrival
from api.service_demo.words import (
    arrival_sentence,
    carries_promotion,
    command,
    drift_sentences,
    evidence_sentences,
    milliseconds,
    numbers,
    promotion_sentence,
)


def result(
    ece: tuple[Any, Any] = (0.08, 0.02), loss: tuple[Any, Any] = (0.3, 0.2), **more: Any
) -> dict[str, Any]:
    held_out = {
        "survival_ece": {"before": ece[0], "after": ece[1]},
        "survival_log_loss": {"before": loss[0], "after": loss[1]},
    }
    return {
        "refusal": None,
        "revision": 1,
        "reason": "the error falls",
        "summary": ["Fitted."],
        "evidence": {"held_out": held_out},
        **more,
    }


def test_less_error_and_no_more_log_loss_carries_a_promotion() -> None:
    assert carries_promotion(result())
    assert carries_promotion(result(loss=(0.3, 0.3)))


@pytest.mark.parametrize(
    "found",
    [
        result(loss=(0.3, 0.31)),
        result(ece=(0.08, 0.08)),
        result(ece=(0.08, 0.09)),
        result(ece=(None, None)),
        result(loss=(None, 0.1)),
        result(refusal="not_better", revision=None),
    ],
)
def test_anything_else_is_for_a_person(found: dict[str, Any]) -> None:
    assert not carries_promotion(found)


def test_evidence_ends_with_what_came_of_it() -> None:
    assert evidence_sentences(result()) == ["Fitted.", "Proposed as revision 1: the error falls."]
    refused = result(refusal="not_better", reason="no gain")
    assert evidence_sentences(refused)[-1] == "Refused (not_better): no gain."
    refused = result(refusal="no_rows", reason="Send some.", summary=[])
    assert evidence_sentences(refused) == ["Refused (no_rows): Send some."]


def test_arrivals_are_timed_from_the_call() -> None:
    arrivals = [
        Arrival("engine-2", 2, 1, (1.25, 1.25), 10.004),
        Arrival("engine-1", 2, 1, (1.25, 1.25), 11.5),
    ]
    said = arrival_sentence(arrivals, 10.0, 3)
    assert "engine-2 after 4.0 ms, engine-1 after 1.5 s (1 still to poll)" in said
    assert said.endswith("They apply revision 1: 1.25 at every position.")
    assert "next poll" in arrival_sentence([], 10.0, 3)


def test_numbers_are_short_where_they_can_be() -> None:
    assert numbers((1.0, 1.0)) == "all ones"
    assert numbers((1.5, 0.95)) == "1.5, 0.95"
    assert milliseconds(0.0123) == "12.3 ms"


def test_a_promotion_names_both_revisions() -> None:
    said = promotion_sentence({"publication": 3, "revision": 0, "replaced": 2})
    assert said == "Publication 3 serves revision 0; before it was revision 2."


def test_what_the_loop_found_is_told_with_its_threshold() -> None:
    pooled = {
        "evidence_log10": 7.26,
        "threshold_log10": {"act": 6.1},
        "change_point": {"row": 1200, "since": None},
    }
    document = {"rows": 1500, "revision": 0, "status": "drift", "tests": [pooled]}
    first, second = drift_sentences(document)
    assert (
        first
        == "1,500 rows under revision 0: drift; evidence 10^7.3 against a threshold of 10^6.1."
    )
    assert "off since 1,200 rows ago" in second
    calm = {**document, "status": "calibrated"}
    assert len(drift_sentences(calm)) == 1


def test_a_program_that_the_shell_does_not_find_is_named_by_its_path(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    binaries = tmp_path / ".venv" / "bin"
    binaries.mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "executable", str(binaries / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert command() == "dspark-calib"  # nowhere at all
    program = binaries / "dspark-calib"
    program.touch(mode=0o755)
    assert command() == ".venv/bin/dspark-calib"
    monkeypatch.setenv("PATH", str(binaries))
    assert command() == "dspark-calib"
