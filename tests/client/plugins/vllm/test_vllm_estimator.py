"""vLLM's own acceptance estimator and our rows, on the same steps.

What vLLM learned from can be worked out from the rows that the plugin sent: its sums over observed
positions, and the Newton step that it took from them. A row with another ℓ, another n, a label at a
trimmed position or another request's feature would not give them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

torch = pytest.importorskip("torch")

from tests.client.stand_in_service import DRAFTER, GAMMA, KEY, StandInService  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.parity]
ROOT = Path(__file__).resolve().parents[4]
SLOPE, INTERCEPT, DAMPING, RIDGE = 0.5, -0.2, 50.0, 1e-3  # of acceptance_estimator.py


def sigmoid(value: Any) -> Any:
    return 1.0 / (1.0 + np.exp(-np.asarray(value, dtype=np.float64)))


def sums(rows: list[dict[str, Any]]) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Σ w f², Σ w f, Σ w; Σ r f, Σ r; and counts, by position, over observed positions."""
    info, grad, counts = np.zeros((GAMMA, 3)), np.zeros((GAMMA, 2)), np.zeros(GAMMA)
    for row in rows:
        for k in range(min(row["accepted"] + 1, row["verified"])):
            feature = row["confidence_logits"][k]
            p = sigmoid(SLOPE * feature + INTERCEPT)
            weight, residual = p * (1 - p), (k < row["accepted"]) - p
            info[k] += weight * np.array([feature**2, feature, 1.0])
            grad[k] += residual * np.array([feature, 1.0])
            counts[k] += 1
    return info, grad, counts


def newton(
    info: NDArray[Any], grad: NDArray[Any], counts: NDArray[Any]
) -> tuple[float, NDArray[Any]]:
    """The damped step in float64, from the whole system instead of its arrowhead."""
    system = np.zeros((GAMMA + 1, GAMMA + 1))
    system[0, 0] = info[:, 0].sum() + RIDGE
    system[0, 1:] = system[1:, 0] = info[:, 1]
    system[1:, 1:] = np.diag(info[:, 2] + RIDGE)
    slope_step = np.linalg.solve(system, np.append(grad[:, 0].sum(), grad[:, 1]))[0]
    slope_step *= counts.sum() / (counts.sum() + DAMPING)
    steps = (grad[:, 1] - info[:, 1] * slope_step) / (info[:, 2] + RIDGE)
    return SLOPE + slope_step, INTERCEPT + steps * counts / (counts + DAMPING)


@pytest.mark.slow
def test_its_estimator_learns_from_the_very_rows_that_we_send(service: StandInService) -> None:
    """In a process of its own, because Triton's interpreter is chosen when Triton is imported."""
    wheel = os.environ.get("DSPARK_VLLM_WHEEL")
    if not wheel:
        pytest.skip("set DSPARK_VLLM_WHEEL to an unpacked wheel")
    affine = {"slopes": [1.5, 0.5, 2.0], "intercepts": [0.5, 0.0, -1.0]}
    service.publish([1.0] * GAMMA, affine=affine)
    script = Path(__file__).with_name("drive_estimator.py")
    done = subprocess.run(
        [sys.executable, str(script), wheel, service.url, DRAFTER, KEY, str(GAMMA)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'client'}{os.pathsep}{ROOT}"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["stopped"]
    steps, first = found["steps"], min(row["step"] for row in service.rows)
    rows = [row for row in service.rows if row["step"] < first + steps]
    assert len(rows) == 3 * steps

    # The raw logit is the log-odds of the likeliest token of the distribution that is drafted from.
    for step in range(steps):
        mine = [row for row in rows if row["step"] == first + step]
        for row, logits, heat in zip(
            mine, found["logits"][step], found["temperatures"], strict=True
        ):
            q = np.exp(np.array(logits, dtype=np.float64) / (heat or 1.0))
            top = (q / q.sum(axis=1, keepdims=True)).max(axis=1)
            wanted = np.log(top / (1.0 - top))
            assert row["confidence_logits"] == pytest.approx(wanted, abs=1e-3)
        assert {row["revision"] for row in mine} == {-1}  # vLLM's own estimate

    before = [row for row in rows if row["step"] < first + steps - 1]
    for theirs, ours in zip(found["before"], sums(before), strict=True):
        assert np.array(theirs) == pytest.approx(ours, abs=1e-4)
    slope, intercepts = newton(*sums(rows))
    assert found["slope"] == pytest.approx(slope, abs=1e-4)
    assert found["intercepts"] == pytest.approx(intercepts, abs=1e-4)

    # Once the service has numbers, they stand where vLLM's own estimate would.
    wanted = sigmoid(np.array(found["features"]) * affine["slopes"] + affine["intercepts"])
    assert np.array(found["served"]) == pytest.approx(wanted, abs=1e-5)
    assert found["status"]["form"] == "affine"
