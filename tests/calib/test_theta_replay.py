from __future__ import annotations

import numpy as np
import pytest

from calib.cost_table import MeasuredCostTable
from calib.errors import RecordError
from calib.records import AcceptanceRecords
from calib.regret import ThroughputReplay

COST = MeasuredCostTable((1, 9), (0.02, 0.1))


def replay(policy: str = "early_stop") -> ThroughputReplay:
    columns = {
        "confidence_logits": [[0.0, 0.0]] * 4,
        "verified": [2] * 4,
        "accepted": [2, 0, 1, 2],
        "step": [0, 0, 1, 1],
    }
    records = AcceptanceRecords.from_columns(2, columns)
    return ThroughputReplay.of(records, COST, policy=policy)  # type: ignore[arg-type]


def test_given_lengths_by_hand() -> None:
    """ℓ = 1 everywhere: B = 4 in .05 s, accepted 1 + 0 and 1 + 1, two anchors each."""
    found = replay().theta_of(1)
    assert found.tokens.tolist() == [3.0, 4.0]
    assert found.theta == pytest.approx(7 / 0.1)
    assert (found.verified, found.wasted) == (1.0, 0.25)
    assert (found.predicted_theta, found.predicted_tau, found.forecast_bias) == (None,) * 3
    assert (found.policy, found.modelled_share, found.anticipating) == ("given", 0.0, False)
    mixed = replay().theta_of([2, 0, 0, 1], np.full((4, 2), 0.5))
    assert mixed.tokens.tolist() == [4.0, 3.0]
    assert mixed.predicted_tau == pytest.approx((3.0 + 2.5) / 2)
    plain = mixed.to_dict()
    assert "tokens" not in plain
    assert plain["wasted"] == pytest.approx(0.0)


def test_lengths_of_a_policy_give_its_replay_again() -> None:
    survival = np.array([[0.9, 0.8], [0.1, 0.05], [0.7, 0.1], [0.6, 0.5]])
    free = MeasuredCostTable((1,), (0.02,))
    engine = ThroughputReplay.of(replay().records, free)
    lengths = engine.lengths(survival)
    assert lengths.tolist() == [2, 2, 2, 2]
    assert engine.theta_of(lengths).theta == engine.theta(survival).theta


def test_the_unconstrained_policy_says_that_it_anticipates() -> None:
    survival = np.full((4, 2), 0.5)
    assert replay("unconstrained").theta(survival).anticipating
    assert not replay("lagged").theta(survival).anticipating


@pytest.mark.parametrize("lengths", [[1, 1], [1.0, 1.0, 1.0, 1.0], 3, [-1, 0, 0, 0]])
def test_wrong_lengths_are_named(lengths: object) -> None:
    with pytest.raises(RecordError, match="lengths"):
        replay().theta_of(lengths)  # type: ignore[arg-type]
