"""Blocks drawn from pair sketches: neighbours as they were counted, the same on every machine."""

from __future__ import annotations

import numpy as np
import pytest

from calib.conditional_likelihood import ConditionalLikelihood
from calib.errors import ConfigurationError, FitRefusedError, InvalidInputError
from calib.logit_chain import chained_logits
from calib.pair_sketch import PairSketch
from calib.survival_model import fit_survival_model, pair_folds
from calib.survival_projection import project_survival
from tests.support.leaky_generator import simulate_leaky, trimmed_lengths


def test_neighbours_are_distributed_as_those_that_were_counted() -> None:
    logits = simulate_leaky(50_000, 1).logits
    everything = np.full(len(logits), 7)
    drawn = chained_logits([PairSketch.from_lengths(logits, everything)], 20_000)
    assert drawn.shape == (20_000, 7)
    assert drawn.mean(axis=0) == pytest.approx(logits.mean(axis=0), abs=0.05)
    assert drawn.std(axis=0) == pytest.approx(logits.std(axis=0), rel=0.03)
    for k in range(6):
        truth = np.corrcoef(logits[:, k], logits[:, k + 1])[0, 1]
        assert np.corrcoef(drawn[:, k], drawn[:, k + 1])[0, 1] == pytest.approx(truth, abs=0.03)


def test_weights_count_and_draws_are_a_function_of_the_seed() -> None:
    low, high = (
        PairSketch.from_lengths(np.full((100, 2), value), np.full(100, 2)) for value in (-2.0, 2.0)
    )
    drawn = chained_logits([low, high], 4000, weights=[1.0, 3.0])
    assert (drawn[:, 0] == drawn[:, 1]).all()  # neighbours were equal
    assert sorted(set(drawn.ravel().tolist())) == [-2.0, 2.0]
    assert (drawn[:, 0] > 0).mean() == pytest.approx(0.75, abs=0.03)
    assert (drawn == chained_logits([low, high], 4000, weights=[1.0, 3.0])).all()
    assert (drawn != chained_logits([low, high], 4000, weights=[1.0, 3.0], seed=1)).any()


def test_positions_that_no_row_reached_go_on_as_the_one_before() -> None:
    logits = simulate_leaky(2000, 2, gamma=4).logits
    stopped = PairSketch.from_lengths(logits, np.zeros(2000, int), np.full(2000, 4))
    assert stopped.rows.tolist() == [2000, 0, 0]
    drawn = chained_logits([stopped], 500)
    assert np.isfinite(drawn).all()
    assert drawn[:, 3].std() > 0.5


def test_what_cannot_be_drawn_is_refused() -> None:
    empty = PairSketch.empty(3)
    with pytest.raises(FitRefusedError):
        chained_logits([empty], 10)
    for sketches in ([], [PairSketch.empty(1)], [empty, PairSketch.empty(2)]):
        with pytest.raises(InvalidInputError):
            chained_logits(sketches, 10)
    with pytest.raises(InvalidInputError):
        chained_logits([empty], 10, weights=[1.0, 1.0])
    with pytest.raises(ConfigurationError):
        chained_logits([empty], 0)


@pytest.mark.parametrize("trimmed", [False, True])
def test_a_projection_on_drawn_blocks_serves_what_one_on_rows_would(trimmed: bool) -> None:
    blocks = simulate_leaky(30_000, 3, partial=0.18)
    records = blocks.records(trimmed_lengths(blocks.logits) if trimmed else None)
    pairs = pair_folds(records)
    model = fit_survival_model(ConditionalLikelihood("affine").fit_records(records), pairs)
    rows, drawn = records.confidence_logits[:10_000], chained_logits(pairs, 10_000)
    expected, found = (
        project_survival(logits, model.survival(logits), evidence_rows=model.rows).temperatures
        for logits in (rows, drawn)
    )
    # Positions 5 to 7 are hardly reached when trimmed; a tenth of a temperature costs .05 % of Θ.
    reached = slice(0, 4 if trimmed else 7)
    assert found[reached] == pytest.approx(expected[reached], rel=0.1)
