"""Which segments are flagged, and the error over patience that is promised."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from calib.errors import ConfigurationError
from monitoring.detectors.many_segments import flag_segments


def logs(**evidence: float) -> dict[str, float]:
    return {name: math.log(value) for name, value in evidence.items()}


def test_benjamini_hochberg_steps_up() -> None:
    # A·S/i = 400, 200, 133.3, 100: the third passes its own step and takes both before it along.
    evidence = logs(a=190.0, b=150.0, c=140.0, d=90.0)
    found = flag_segments(evidence, threshold=100.0, segments=4, rows=40)
    assert found.flagged == ("a", "b", "c")
    assert found.log_threshold == pytest.approx(math.log(400 / 3))
    assert found.error_bound == pytest.approx(0.1)
    strict = flag_segments(evidence, threshold=100.0, segments=4, rows=40, procedure="bonferroni")
    assert strict.flagged == ()
    assert strict.log_threshold == pytest.approx(math.log(400))


def test_silent_segments_count() -> None:
    evidence = logs(a=450.0)
    assert flag_segments(evidence, threshold=100.0, segments=4, rows=1).flagged == ("a",)
    assert flag_segments(evidence, threshold=100.0, segments=5, rows=1).flagged == ()


def test_nothing_to_judge() -> None:
    found = flag_segments({}, threshold=1e6, segments=3, rows=0)
    assert found.flagged == ()
    assert json.dumps(found.to_dict(), allow_nan=False)


def test_ties_are_ordered_by_name() -> None:
    found = flag_segments(logs(b=1e9, a=1e9), threshold=10.0, segments=2, rows=1)
    assert found.flagged == ("a", "b")


def test_options_are_checked() -> None:
    with pytest.raises(ConfigurationError, match="segments"):
        flag_segments(logs(a=1.0, b=1.0), threshold=10.0, segments=1, rows=0)
    with pytest.raises(ConfigurationError, match="threshold"):
        flag_segments({}, threshold=0.5, segments=1, rows=0)
    with pytest.raises(ConfigurationError, match="procedure"):
        flag_segments({}, threshold=10.0, segments=1, rows=0, procedure="holm")  # type: ignore[arg-type]


@pytest.mark.statistical
def test_error_over_patience() -> None:
    """20 segments, 15 of them calibrated: E[FDP] at a fixed time ≤ calibrated rows / (A·S)."""
    rng = np.random.default_rng(0)
    segments, drifted, rows, threshold, runs = 20, 5, 400, 2000.0, 600
    probability = np.where(np.arange(segments) < drifted, 0.6, 0.5)
    wealth = np.zeros((runs, segments))  # Shiryaev–Roberts, the least favourable e-detector
    for _ in range(rows):
        heads = rng.random((runs, segments)) < probability
        wealth = (wealth + 1.0) * np.where(heads, 1.2, 0.8)
    shares = []
    for run in wealth:
        evidence = {f"{i:02d}": math.log(value) for i, value in enumerate(run)}
        flagged = flag_segments(
            evidence, threshold=threshold, segments=segments, rows=rows * segments
        ).flagged
        false = sum(int(name) >= drifted for name in flagged)
        shares.append(false / max(len(flagged), 1))
    bound = rows * (segments - drifted) / (threshold * segments)
    assert np.mean(shares) - 3.0 * np.std(shares) / math.sqrt(runs) <= bound
    assert bound < 0.2  # the promise says something here
