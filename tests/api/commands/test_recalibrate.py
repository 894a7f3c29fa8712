"""Every method from the command line through a real server and worker, on trimmed traffic.

The traffic is that of :mod:`tests.support.segment_generator`: domains that need different numbers,
verified as far as an early-stopping scheduler goes. What is right is computed from its truth.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest
from typer.testing import CliRunner, Result

from api.cli import app
from api.commands.recalibrate import result_lines
from calib.formats.arrow import ipc_from_records
from calib.formats.sglang_sts import parse_sts
from calib.records import AcceptanceRecords
from tests.api.served import Served
from tests.support.leaky_generator import trimmed_lengths
from tests.support.segment_generator import NAMES, segment_errors, simulate_segments
from tests.support.service import KEY

GAMMA = 4
ROWS = 12_000


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("recalibrate")
    with Served("--data", str(folder / "data"), folder=folder) as service:
        service.listening()
        place = f"{service.url}/v1/drafters/code"
        service.http.put(place, json={"key": {**KEY, "gamma": GAMMA}}).raise_for_status()
        for part in np.array_split(np.arange(ROWS), 3):
            service.http.post(
                f"{place}/telemetry",
                content=ipc_from_records(trimmed_traffic().select(part)),
                headers={"Content-Type": "application/vnd.apache.arrow.stream"},
            ).raise_for_status()
        yield service


def trimmed_traffic() -> AcceptanceRecords:
    traffic = simulate_segments(ROWS, 3, gamma=GAMMA)
    records = traffic.records(trimmed_lengths(traffic.blocks.logits, 64))
    steps = np.arange(ROWS)
    more = {
        "request": np.array([f"r{row // 10}" for row in range(ROWS)], dtype=object),
        "engine": np.full(ROWS, "decode-0", dtype=object),
        "step": steps,
    }
    return AcceptanceRecords.from_columns(GAMMA, {**records.columns(), **more})


def order(served: Served, method: str, *more: str) -> Result:
    arguments = ["recalibrate", "code", "--method", method, *more, "--url", served.url]
    return CliRunner().invoke(app, arguments)


def answer_for(served: Served, **segment: str) -> httpx.Response:
    query = {f"segment.{tag}": value for tag, value in segment.items()} | {"gamma": str(GAMMA)}
    place = f"{served.url}/v1/drafters/code/temperatures"
    return served.http.get(place, params=query).raise_for_status()


def errors_of(served: Served) -> float:
    """Mean survival error over domains with what engines of each domain get."""
    traffic = simulate_segments(20_000, 77, gamma=GAMMA)
    numbers = [answer_for(served, domain=name).json() for name in NAMES]
    affine = [each["affine"] or {} for each in numbers]
    slopes = np.array(
        [
            form.get("slopes", [1.0 / t for t in each["temperatures"]])
            for form, each in zip(affine, numbers, strict=True)
        ]
    )
    intercepts = np.array([form.get("intercepts", [0.0] * GAMMA) for form in affine])
    odds = slopes[traffic.segment] * traffic.blocks.logits + intercepts[traffic.segment]
    predicted = np.cumprod(1.0 / (1.0 + np.exp(-odds)), axis=1)
    return float(segment_errors(predicted, traffic).mean())


@pytest.mark.slow
def test_every_method_end_to_end(served: Served) -> None:
    refused = order(served, "sts", "--promote", "never")
    assert (refused.exit_code, "Refused (trimmed_rows)" in refused.stdout) == (1, True)
    raw = errors_of(served)
    for method in ("temperature", "affine", "survival"):
        found = order(served, method, "--promote", "never", "--json")
        assert found.exit_code == 0, found.stdout + found.stderr
        job = json.loads(found.stdout)
        assert (job["status"], job["result"]["method"]) == ("succeeded", method)
        assert job["result"]["evidence"]["rows"]["trimmed_share"] > 0.5
    assert answer_for(served).json()["publication"] == 1  # nobody promoted anything
    done = order(served, "segments", "--promote", "guard", "--reason", "domains differ")
    assert "Fitted on " in done.stdout
    assert "is served: 2." in done.stdout
    assert errors_of(served) < 0.4 * raw

    known = answer_for(served, domain="code").json()
    assert known["segment"] == {
        "requested": {"domain": "code"},
        "matched": {"domain": "code"},
        "level": "segment",
    }
    pooled, unseen = answer_for(served).json(), answer_for(served, domain="poetry").json()
    assert (unseen["segment"]["level"], unseen["segment"]["matched"]) == ("pooled", None)
    assert unseen["temperatures"] == pooled["temperatures"] != known["temperatures"]
    sglang = served.http.get(
        f"{served.url}/v1/drafters/code/temperatures",
        params={"gamma": GAMMA},
        headers={"Accept": "application/vnd.sglang.dspark-sts+json"},
    )
    assert parse_sts(sglang.content, GAMMA).temperatures == tuple(pooled["temperatures"])
    revision = served.http.get(f"{served.url}/v1/drafters/code/revisions/{pooled['revision']}")
    provenance = revision.json()["provenance"]
    assert (provenance["reason"], provenance["method"]) == ("domains differ", "segments")
    assert len(provenance["window"]["digest"]) == 64


def test_what_came_of_a_job_in_words() -> None:
    job: dict[str, Any] = {"id": "1", "drafter": "d", "status": "queued", "error": None}
    assert result_lines(job) == ["Job 1 of d is queued."]
    failed = {**job, "status": "failed", "error": {"reason": "five owners vanished"}}
    assert result_lines(failed) == ["Failed: five owners vanished"]
    result: dict[str, Any] = {"summary": ["a", "b"], "refusal": "not_better", "reason": "no gain"}
    assert result_lines({**job, "status": "refused", "result": result})[-1] == (
        "Refused (not_better): no gain."
    )
    result |= {"method": "survival", "revision": 3, "publication": None}
    assert result_lines({**job, "status": "succeeded", "result": result}) == [
        "a",
        "b",
        "Method survival: no gain.",
        "Revision 3 is the challenger.",
    ]
