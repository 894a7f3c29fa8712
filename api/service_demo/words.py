"""What the story says: sentences from the service's answers, without any call."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from api.service_demo.engines import Arrival

__all__ = [
    "arrival_sentence",
    "carries_promotion",
    "command",
    "drift_sentences",
    "evidence_sentences",
    "milliseconds",
    "numbers",
    "promotion_sentence",
]


def command(program: str = "dspark-calib") -> str:
    """How a person starts it: by name where the shell finds it, else by the path beside Python."""
    beside = Path(sys.executable).with_name(program)
    if shutil.which(program) is not None or not beside.is_file():
        return program
    here = Path.cwd()
    return str(beside.relative_to(here) if beside.is_relative_to(here) else beside)


def milliseconds(seconds: float) -> str:
    """A duration for a person."""
    return f"{seconds:.1f} s" if seconds >= 1.0 else f"{1000.0 * seconds:.1f} ms"


def numbers(values: Sequence[float]) -> str:
    """Temperatures in a row, shortened when they are all the same."""
    if len(set(values)) == 1:
        return "all ones" if values[0] == 1.0 else f"{values[0]:g} at every position"
    return ", ".join(f"{value:g}" for value in values)


def evidence_sentences(result: Mapping[str, Any]) -> list[str]:
    """What a recalibration's result says: its summary, then what came of it."""
    said = [str(sentence) for sentence in result.get("summary", ())]
    if result.get("refusal") is None:
        return [*said, f"Proposed as revision {result['revision']}: {result['reason']}."]
    return [*said, f"Refused ({result['refusal']}): {_ended(str(result['reason']))}"]


def carries_promotion(result: Mapping[str, Any]) -> bool:
    """Whether the evidence alone carries a promotion: less held-out error, no more log loss."""
    if result.get("refusal") is not None or result.get("revision") is None:
        return False
    held_out = result["evidence"]["held_out"]
    error, loss = held_out["survival_ece"], held_out["survival_log_loss"]
    known = [*error.values(), *loss.values()]
    if any(value is None for value in known):
        return False
    return bool(error["after"] < error["before"] and loss["after"] <= loss["before"])


def drift_sentences(document: Mapping[str, Any]) -> list[str]:
    """What the closed loop's document says of the rows so far."""
    pooled = document["tests"][0]
    said = [
        f"{document['rows']:,} rows under revision {document['revision']}: {document['status']}; "
        f"evidence 10^{pooled['evidence_log10']:.1f} against a threshold of "
        f"10^{pooled['threshold_log10']['act']:.1f}."
    ]
    point = pooled["change_point"]
    if document["status"] == "drift" and point is not None:
        said.append(
            f"Raw confidence is off since {point['row']:,} rows ago. The loop only watches here; "
            "left on, it would order a refit by itself."
        )
    return said


def promotion_sentence(answer: Mapping[str, Any]) -> str:
    """What a promotion or a rollback published."""
    return (
        f"Publication {answer['publication']} serves revision {answer['revision']}; "
        f"before it was revision {answer['replaced']}."
    )


def arrival_sentence(arrivals: Sequence[Arrival], began: float, engines: int) -> str:
    """Who has the new numbers, and how long they took from the call that published them."""
    if not arrivals:
        return "No engine has polled yet; they get it with their next poll."
    each = ", ".join(f"{a.engine} after {milliseconds(a.at - began)}" for a in arrivals)
    missing = f" ({engines - len(arrivals)} still to poll)" if len(arrivals) < engines else ""
    first = arrivals[0]
    return (
        f"Held polls are answered at once: {each}{missing}. "
        f"They apply revision {first.revision}: {numbers(first.values)}."
    )


def _ended(sentence: str) -> str:
    return sentence if sentence.endswith((".", "!", "?")) else f"{sentence}."
