"""Log-score differences and their e-values by hand, and that no bet is unfair."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from calib.calibration import Calibration
from calib.errors import RecordError
from calib.records import AcceptanceRecords
from monitoring.promotion_gate_scores import (
    STAKES,
    ScoredRows,
    component_weights,
    first_crossing,
    score_rows,
)
from tests.monitoring.traffic import leaky_traffic


def rows(champion: list[float], challenger: list[float], ell: int, n: int) -> ScoredRows:
    """One row of the given conditionals; served survival is their product."""
    before, after = np.array([champion], np.float32), np.array([challenger], np.float32)
    return ScoredRows(
        before,
        after,
        np.array([ell]),
        np.array([n]),
        np.array([1]),
        np.cumprod(before, axis=1),
        np.cumprod(after, axis=1),
    )


def test_gains_by_hand() -> None:
    scores = score_rows(rows([0.8, 0.5, 0.5], [0.9, 0.4, 0.7], ell=2, n=1))
    # Position 1 accepted: ln(.9/.8). Position 2 rejected: ln(.6/.5). Position 3 unobserved.
    assert scores.labels.tolist() == [[True, True, False]]
    first, second = np.log(0.9 / 0.8), np.log(0.6 / 0.5)
    assert scores.conditional_gain[0] == pytest.approx(first + second, rel=1e-5)
    # Survival .8, .4 against .9, .36: n ≥ 1 holds, n ≥ 2 does not.
    survived, lost = np.log(0.9 / 0.8), np.log(0.64 / 0.6)
    assert scores.survival_gain[0] == pytest.approx(survived + lost, rel=1e-5)
    assert scores.changed.tolist() == [True, True, True]
    # Every bound lies below 1 here, so bets are the gains themselves.
    for m, stake in enumerate(STAKES):
        product = np.log1p(stake * first) + np.log1p(stake * second)
        assert scores.forward[0, m] == pytest.approx(product, abs=2e-5)
        mean = np.log1p(stake * (survived + lost) / 3)
        assert scores.forward[0, 4 + m] == pytest.approx(mean, abs=2e-5)
        assert scores.forward[0, 8 + m] == pytest.approx(np.log1p(stake * survived), abs=2e-5)
        assert scores.forward[0, 16 + m] == pytest.approx(0.0, abs=2e-5)  # k = 3 > ℓ
        assert scores.backward[0, 8 + m] == pytest.approx(np.log1p(-stake * survived), abs=2e-5)


def test_the_affine_form_is_scored_by_its_own_numbers() -> None:
    one = rows([0.8, 0.5], [0.9, 0.4], ell=2, n=1)
    alone = score_rows(one)
    assert alone.affine_gain.tolist() == alone.survival_gain.tolist()
    assert alone.forward[:, 4:16].tolist() == alone.forward[:, 16:].tolist()
    affine = np.array([[0.7, 0.3]], np.float32)
    found = score_rows(replace(one, challenger_affine=affine))
    gain = np.log(0.7 / 0.8) + np.log(0.7 / 0.6)  # against the champion's temperatures
    assert found.affine_gain[0] == pytest.approx(gain, rel=1e-5)
    assert found.survival_gain.tolist() == alone.survival_gain.tolist()
    for m, stake in enumerate(STAKES):
        mean = np.log1p(stake * gain / 2)
        assert found.forward[0, 16 + m] == pytest.approx(mean, abs=2e-5)
        kept = np.log1p(stake * (gain / 2 + 0.002) / 1.002)
        assert found.kept[0, 4 + m] == pytest.approx(kept, abs=2e-5)
    assert replace(one, challenger_affine=affine).swapped().champion_affine is affine


def test_a_label_that_nobody_verified_spares_nothing() -> None:
    """Of three positions two were verified: the margin counts twice, the mean is still over 3."""
    one = rows([0.8, 0.5, 0.5], [0.9, 0.4, 0.5], ell=2, n=1)
    gain = np.log(0.9 / 0.8) + np.log((1 - 0.36) / (1 - 0.40))
    for m, stake in enumerate(STAKES):
        kept = np.log1p(stake * (gain + 2 * 0.002) / 3 / 1.002)
        assert score_rows(one).kept[0, m] == pytest.approx(kept, abs=2e-5)


def test_the_bound_is_known_before_the_label() -> None:
    """.95 against .9999: B = ln(.05/.0001) = 6.21 divides the gain whatever the label is."""
    for n, gain in ((1, np.log(0.9999 / 0.95)), (0, np.log(0.0001 / 0.05))):
        scores = score_rows(rows([0.95], [0.9999], ell=1, n=n))
        assert scores.conditional_gain[0] == pytest.approx(gain, rel=2e-3)  # never clipped
        bet = scores.forward[0, 3]
        bound = np.log(0.05 / 0.0001)
        assert bet == pytest.approx(np.log1p(0.9 * gain / bound), abs=2e-3)


def test_certainty_stays_finite() -> None:
    scores = score_rows(rows([0.5], [1.0], ell=1, n=0))
    assert scores.conditional_gain[0] == pytest.approx(np.log(1e-6 / 0.5), rel=1e-6)
    assert np.isfinite(scores.forward).all()


def test_weights_sum_to_one_and_match_the_columns() -> None:
    for gamma in (1, 7):
        assert component_weights(gamma, survival=True).sum() == pytest.approx(1.0)
        assert component_weights(gamma, survival=False).tolist() == [0.25] * 4
    scores = score_rows(rows([0.5] * 7, [0.6] * 7, ell=7, n=3))
    assert scores.forward.shape == (1, len(component_weights(7, survival=True)))


def test_no_verified_position_scores_nothing() -> None:
    scores = score_rows(rows([0.5, 0.5], [0.9, 0.9], ell=0, n=0))
    assert scores.forward.tolist() == [[0.0] * 28]
    assert (scores.conditional_gain[0], scores.survival_gain[0]) == (0.0, 0.0)


def test_equal_models_score_nothing() -> None:
    scores = score_rows(rows([0.5, 0.7], [0.5, 0.7], ell=2, n=1))
    assert not scores.changed.any()
    assert (scores.forward == 0.0).all()


@pytest.mark.statistical
@pytest.mark.parametrize("slope", [0.8, 1.3])
def test_every_component_is_fair_under_leak_and_trimming(slope: float) -> None:
    """Champion exact in both views, next logit reveals the token: mean e-value at most 1."""
    traffic = leaky_traffic(np.random.default_rng(8), 100_000, threshold=0.3)
    exact, off = traffic.served(), traffic.served(slope)
    assert exact.survival is not None
    survival = np.clip(exact.survival.astype(np.float64), 1e-3, 0.999)
    other = survival**slope
    scores = score_rows(
        ScoredRows(
            exact.conditional,
            off.conditional,
            traffic.verified,
            traffic.accepted,
            np.arange(len(traffic)),
            survival.astype(np.float32),
            other.astype(np.float32),
        )
    )
    values = np.exp(scores.forward)
    error = values.std(axis=0) / np.sqrt(len(values))
    assert (values.mean(axis=0) <= 1.0 + 4.0 * error).all()
    # Both slopes lose more than the margin: the evidence that a form is kept is fair as well.
    kept = np.exp(scores.kept)
    assert (kept.mean(axis=0) <= 1.0 + 4.0 * kept.std(axis=0) / np.sqrt(len(kept))).all()


def test_from_records() -> None:
    records = AcceptanceRecords.from_columns(
        2,
        {
            "confidence_logits": [[1.0, 2.0]] * 3,
            "verified": [2, 2, 2],
            "accepted": [1, 2, 0],
            "anticipating": [False, True, False],
        },
    )
    champion, challenger = Calibration.identity(2), Calibration.from_temperatures([2, 2], gamma=2)
    names = np.array(["a", "b", "c"], dtype=object)
    scored = ScoredRows.from_records(
        records, champion, challenger, ingested=[7, 8, 9], segment=names
    )
    assert scored.ingested.tolist() == [7, 9]
    assert scored.segment is not None
    assert scored.segment.tolist() == ["a", "c"]
    assert scored.challenger_conditional[0, 1] == pytest.approx(0.7310586)
    swapped = scored.swapped()
    assert swapped.champion_conditional is scored.challenger_conditional
    assert swapped.challenger_survival is scored.champion_survival
    assert len(scored.select(scored.ingested > 7)) == 1


def test_shapes_are_checked() -> None:
    good = rows([0.5, 0.5], [0.5, 0.5], 2, 1)
    two = np.zeros((1, 2), np.float32)
    for wrong in (
        {"champion_conditional": np.zeros(2, np.float32)},
        {"challenger_conditional": np.zeros((1, 3), np.float32)},
        {"verified": np.array([3])},
        {"ingested": np.array([1, 2])},
        {"challenger_survival": None},
        {"challenger_survival": np.zeros((1, 3), np.float32), "champion_survival": two},
        {"segment": np.array(["a", "b"], dtype=object)},
    ):
        values = {name: getattr(good, name) for name in good.__dataclass_fields__} | wrong
        with pytest.raises(RecordError):
            ScoredRows(**values)


def test_the_first_crossing_is_that_of_the_whole_mixture() -> None:
    """Against the mixture of every row; weights that sum to 1, as those of the gate."""
    rng = np.random.default_rng(8)
    path = np.cumsum(rng.normal(0.02, 0.3, (500, 6)), axis=0)
    weights = np.log(np.array([0.4, 0.3, 0.1, 0.1, 0.05, 0.05]))
    mixture = np.log(np.exp(weights + path).sum(axis=1))
    for level in (1.0, 5.0, float(mixture.max()) - 1e-6):
        assert first_crossing(path, weights, level) == int(np.argmax(mixture >= level))
    assert first_crossing(path, weights, float(mixture.max()) + 1e-6) is None
