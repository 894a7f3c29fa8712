from __future__ import annotations

import numpy as np
import pytest

from calib.calibration import Calibration
from calib.conditional_likelihood import ConditionalLikelihood
from calib.records import AcceptanceRecords
from calib.throughput_arms import FITTED_ARMS, fit_arms
from tests.support.leaky_generator import simulate_leaky, trimmed_lengths


def two_domains(rows: int, seed: int) -> AcceptanceRecords:
    columns = simulate_leaky(rows, seed).records().columns()
    columns["domain"] = np.array(["chat", "code"] * (rows // 2), dtype=object)
    return AcceptanceRecords.from_columns(7, columns)


def test_arms_are_the_fits_of_the_fit_part_alone() -> None:
    fit, judged = (two_domains(1500, seed) for seed in (1, 2))
    arms = fit_arms(fit, judged, extra={"given": Calibration.identity(7)})
    logits = judged.confidence_logits
    assert set(arms.survival) >= {*FITTED_ARMS, "oracle", "given"}
    plain = np.cumprod(1.0 / (1.0 + np.exp(-logits.astype(np.float64))), axis=1)
    assert arms.survival["raw"] == pytest.approx(plain, abs=1e-6)
    assert (arms.survival["given"] == arms.survival["raw"]).all()
    fitted = ConditionalLikelihood("temperature", minimum_rows=0).fit_records(fit)
    scaled = np.cumprod(
        1.0 / (1.0 + np.exp(-logits.astype(np.float64) / fitted.temperatures_)), axis=1
    )
    assert arms.survival["temperature"] == pytest.approx(scaled, abs=1e-5)
    assert len(arms.fitted_survival["sts"]) == len(fit)
    assert not arms.truth_known


def test_trimmed_rows_have_no_sts_and_no_hindsight() -> None:
    blocks = simulate_leaky(128 * 40, 5)
    trimmed = blocks.records(trimmed_lengths(blocks.logits))
    arms = fit_arms(trimmed, trimmed, truth=blocks.survival)
    assert "trimmed_rows" in arms.missing["sts"]
    assert "trimmed" in arms.missing["hindsight"]
    assert "tag" in arms.missing["segmented"]
    assert (arms.survival["oracle"] == blocks.survival).all()
    # What stands in for outcomes is near the truth although nothing was verified fully.
    assert np.abs(arms.baseline.mean(axis=0) - blocks.survival.mean(axis=0)).max() < 0.03


def test_rows_that_load_alone_verified_may_be_scaled_sequentially() -> None:
    blocks = simulate_leaky(4000, 6)
    verified = np.where(np.arange(4000) < 3000, 7, trimmed_lengths(blocks.logits, 100))
    columns = blocks.records(verified).columns()
    columns["propensity"] = np.where(np.arange(4000) < 3000, 1.0, np.nan).astype(np.float32)
    records = AcceptanceRecords.from_columns(7, columns)
    assert "sts" in fit_arms(records, records).survival


def test_blocks_of_one_position() -> None:
    blocks = simulate_leaky(2000, 7, gamma=1)
    arms = fit_arms(blocks.records(), blocks.records())
    assert arms.survival["survival"].shape == (2000, 1)
