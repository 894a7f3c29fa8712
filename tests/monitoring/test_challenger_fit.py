"""Every method on traffic with known truth, trimmed as a scheduler trims it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from calib.calibration import Calibration
from calib.records import AcceptanceRecords
from calib.segment_serving import SegmentTable
from calib.segment_tags import POOL, SegmentKey
from calib.sequential_temperature_scaling import SequentialTemperatureScaling
from calib.served_segment import ServedSegment
from monitoring.challenger_fit import ChallengerFit, Champion, fit_challenger
from monitoring.recalibration_methods import with_segments
from monitoring.recalibration_options import RecalibrationOptions
from monitoring.revision_model import RevisionModel
from monitoring.served_numbers import ServedNumbers, stored_table
from tests.support.leaky_generator import (
    TRUE_TEMPERATURES,
    LeakyBlocks,
    simulate_leaky,
    survival_ece,
    trimmed_lengths,
)
from tests.support.segment_generator import segment_errors, simulate_segments
from tests.support.shifted_head import GAMMA, shifted_head

REACHED = 4  # positions that trimmed traffic of 20,000 rows reaches 1,000 times


def with_requests(records: AcceptanceRecords, size: int = 20) -> AcceptanceRecords:
    names = np.array([f"r{row // size}" for row in range(len(records))], dtype=object)
    return AcceptanceRecords.from_columns(records.gamma, {**records.columns(), "request": names})


@pytest.fixture(scope="module")
def leaky() -> tuple[AcceptanceRecords, LeakyBlocks]:
    """20,000 trimmed rows of a head whose next logit reveals the token, and a test part."""
    blocks = simulate_leaky(20_000, 1, partial=0.18)
    trimmed = with_requests(blocks.records(trimmed_lengths(blocks.logits)))
    return trimmed, simulate_leaky(20_000, 99, partial=0.18)


def fit(records: AcceptanceRecords, method: str, **options: Any) -> ChallengerFit:
    return fit_challenger(records, RecalibrationOptions(method=method, **options))  # type: ignore[arg-type]


def error(found: ChallengerFit, truth: LeakyBlocks) -> float:
    """Survival error of served temperatures over the positions that traffic reaches."""
    assert found.calibration is not None, found.reason
    return float(survival_ece(found.calibration.survival(truth.logits), truth)[:REACHED].mean())


@pytest.mark.slow
def test_on_trimmed_leaky_traffic_only_imputed_survival_is_right(
    leaky: tuple[AcceptanceRecords, LeakyBlocks],
) -> None:
    records, truth = leaky
    raw = survival_ece(Calibration.identity(7).survival(truth.logits), truth)[:REACHED].mean()
    # The trap: accepted lengths read as if everything had been verified.
    naive = SequentialTemperatureScaling().fit(records.confidence_logits, records.accepted)
    trapped = survival_ece(naive.survival(truth.logits), truth)[:REACHED].mean()
    product = fit(records, "temperature")
    imputed = fit(records, "survival")
    assert raw > 0.05
    assert trapped > 0.05
    assert error(product, truth) > 0.02
    assert error(imputed, truth) < 0.006
    assert imputed.calibration is not None
    assert imputed.calibration.method == "sts"
    assert imputed.calibration.evidence["imputed_survival"] is True
    # Conditionals are right in either: they are what monitors test.
    for found in (product, imputed):
        assert found.model is not None
        slopes = RevisionModel.from_dict(found.model).pooled.slopes[:REACHED]
        assert slopes == pytest.approx(1.0 / TRUE_TEMPERATURES[:REACHED], rel=0.1)
    model = RevisionModel.from_dict(imputed.model or {})
    assert survival_ece(model.pooled.survival(truth.logits), truth)[:REACHED].mean() < 0.01


def test_auto_takes_imputed_survival_there_and_says_why(
    leaky: tuple[AcceptanceRecords, LeakyBlocks],
) -> None:
    records, truth = leaky
    found = fit(records, "auto")
    assert (found.refusal, found.method) == (None, "survival")
    assert error(found, truth) < 0.006
    choice = found.evidence["choice"]
    assert (choice["best"], choice["chosen"]) == ("survival", "survival")
    assert "trimmed" in choice["refused"]["sts"]
    assert found.evidence["rows"]["trimmed_share"] > 0.9


def test_sts_on_trimmed_rows_is_refused_and_never_silently_wrong(
    leaky: tuple[AcceptanceRecords, LeakyBlocks],
) -> None:
    found = fit(leaky[0], "sts")
    assert (found.refusal, found.calibration) == ("trimmed_rows", None)
    assert "use method 'survival'" in found.reason


def test_sts_reads_rows_that_low_load_verified_fully() -> None:
    """A quarter of the steps had room for everything; their rows fit survival as if untrimmed."""
    blocks = simulate_leaky(16_000, 5)
    lengths = trimmed_lengths(blocks.logits)
    free = np.arange(16_000) // 128 % 4 == 0
    lengths[free] = 7
    columns = blocks.records(lengths).columns()
    columns["propensity"] = np.where(free, 1.0, np.nan).astype(np.float32)
    records = with_requests(AcceptanceRecords.from_columns(7, columns), 128)
    found = fit(records, "sts")
    truth = simulate_leaky(20_000, 98)
    assert found.calibration is not None, found.reason
    assert found.evidence["rows"]["decided_in_advance"] > 1000
    predicted = found.calibration.survival(truth.logits)
    assert survival_ece(predicted, truth).mean() < 0.012


@pytest.mark.slow
def test_segments_serve_what_one_vector_cannot() -> None:
    traffic = simulate_segments(16_000, 3)
    lengths = trimmed_lengths(traffic.blocks.logits)
    records = with_requests(traffic.records(lengths))
    test = simulate_segments(20_000, 77)
    tags = test.records()
    found = fit(records, "auto")
    assert (found.refusal, found.method) == (None, "segments"), found.reason
    table = stored_table(found.segments)
    assert table is not None
    assert found.calibration is not None
    pooled = ServedNumbers(found.calibration)
    segmented = ServedNumbers(found.calibration, table)
    form = "affine" if found.calibration.slopes is not None else "temperatures"
    before = segment_errors(pooled.survival(tags, "temperatures"), test).mean()
    after = segment_errors(segmented.survival(tags, form), test).mean()  # type: ignore[arg-type]
    assert before > 0.03
    assert after < 0.6 * before
    kept = found.evidence["choice"]["segments"]
    assert kept["kept"] is True
    assert kept["gain"] > kept["standard_error"]
    model = RevisionModel.from_dict(found.model or {})
    assert model.segments is not None
    c = model.conditional(tags)
    truth = test.blocks.survival / np.c_[np.ones(len(c)), test.blocks.survival[:, :-1]]
    assert np.abs(c[:, :3] - truth[:, :3]).mean() < 0.03


@pytest.mark.slow
def test_segments_that_worsen_one_form_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that applies slopes and intercepts has nothing of better temperatures."""
    simulated = simulate_segments(12_000, 3).records()
    shifted = {"confidence_logits": simulated.confidence_logits + np.float32(1.0)}
    records = with_requests(
        AcceptanceRecords.from_columns(simulated.gamma, {**simulated.columns(), **shifted})
    )
    whole = fit(records, "segments").evidence["forms"]
    assert (whole["affine"], whole["segments"] > 0) == (True, True)

    def with_wrong_intercepts(*arguments: Any) -> Any:
        found = with_segments(*arguments)
        wrong = {
            key: segment
            if segment.intercepts is None
            else replace(segment, intercepts=tuple(b + 1.5 for b in segment.intercepts))
            for key, segment in found.table.segments.items()
        }
        return replace(found, table=replace(found.table, segments=wrong))

    monkeypatch.setattr("monitoring.challenger_fit.with_segments", with_wrong_intercepts)
    forms = fit(records, "segments").evidence["forms"]
    assert (forms["affine"], forms["segments"]) == (True, None)
    losses = forms["survival_log_loss"]
    assert losses["temperatures by segment"] < losses["temperatures"]
    assert losses["affine by segment"] > losses["affine"]


def test_rows_without_tags_have_no_segments() -> None:
    found = fit(with_requests(simulate_leaky(6000, 2).records()), "segments")
    assert (found.method, found.segments) == ("segments", None)
    assert found.evidence["forms"]["segments"] is None


def test_r53_a_tenant_of_95_percent_does_not_decide_the_fit() -> None:
    """Expected: the weighted likelihood's optimum in float64, both tenants at one half."""
    draw = np.random.default_rng(8)
    rows = 20_000
    small = draw.random(rows) < 0.05
    z = draw.normal(1.0, 1.5, rows).astype(np.float32)
    accepted = draw.random(rows) < 1.0 / (1.0 + np.exp(-z / np.where(small, 3.0, 1.25)))
    records = AcceptanceRecords.from_columns(
        1,
        {
            "confidence_logits": z[:, None],
            "verified": np.ones(rows, dtype=np.uint8),
            "accepted": accepted.astype(np.uint8),
            "tenant": np.where(small, "small", "large").astype(object),
        },
    )
    first = slice(0, rows // 2)  # later rows are judged on
    weight = np.where(small[first], 1.0, small[first].sum() / (~small[first]).sum())
    x, y = z[first].astype(np.float64), accepted[first]

    def loss(log_temperature: float) -> float:
        odds = x * np.exp(-log_temperature)
        return float(weight @ (np.logaddexp(0.0, odds) - y * odds))

    best = float(np.exp(minimize_scalar(loss, bounds=(-1.0, 2.0), method="bounded").x))
    found = fit(records, "temperature", largest_tenant_share=0.5)
    evidence = found.evidence["fit"]["positions"][0]
    assert evidence["temperature"] == pytest.approx(best, rel=0.02)
    assert best > 1.4  # rows alone would say about 1.3
    (capped,) = found.evidence["rows"]["tenants"]["capped"]
    assert capped["tenant"] == "large"
    assert capped["share"] == pytest.approx(0.95, abs=0.01)


@pytest.mark.slow
def test_r26_the_order_of_rows_changes_nothing() -> None:
    records = with_requests(simulate_leaky(5000, 6, partial=0.18).records())
    order = np.random.default_rng(0).permutation(5000)
    for method in ("survival", "temperature"):
        one, other = fit(records, method), fit(records.select(order), method)
        assert one.calibration is not None
        assert other.calibration is not None
        assert one.calibration.digest == other.calibration.digest
        assert one.model == other.model


@pytest.mark.parametrize(("champion", "kept"), [(1.75, 1.75), (6.0, 1.0)])
def test_positions_without_a_number_keep_the_champions_unless_that_is_worse_than_none(
    leaky: tuple[AcceptanceRecords, LeakyBlocks], champion: float, kept: float
) -> None:
    served = Calibration.from_temperatures([champion] * 7, gamma=7)
    options = RecalibrationOptions(method="survival")
    found = fit_challenger(leaky[0], options, champion=Champion(4, ServedNumbers(served)))
    assert found.calibration is not None, found.reason
    assert found.calibration.temperatures[6] == kept
    assert found.calibration.temperatures[0] == pytest.approx(1.6, rel=0.1)
    assert found.evidence["held_out"]["champion"] == 4


def test_numbers_worse_than_raw_confidence_are_never_proposed() -> None:
    """Logits that are right as they are, a champion that is far off, and eight rows to fit."""
    blocks = simulate_leaky(4000, 12, gamma=2)
    logits = (blocks.logits / TRUE_TEMPERATURES[:2]).astype(np.float32)
    columns = {**blocks.records().columns(), "confidence_logits": logits}
    records = AcceptanceRecords.from_columns(2, columns)
    served = Calibration.from_temperatures([8.0, 8.0], gamma=2)
    options = RecalibrationOptions(method="temperature", minimum_rows=8, evaluation_share=0.998)
    found = fit_challenger(records, options, champion=Champion(3, ServedNumbers(served)))
    assert found.refusal == "not_better"
    assert found.reason.endswith("roll back to identity, revision 0, instead")


def test_numbers_whose_affine_form_loses_to_the_champions_are_refused() -> None:
    """Whatever temperatures gain, engines on the affine form would be served worse."""
    blocks = simulate_leaky(4000, 17)
    true = 1.0 / TRUE_TEMPERATURES
    stale = Calibration.from_temperatures([1.0] * 7, gamma=7)
    for slopes, expected in ((true, "slopes and intercepts"), (0.7 * true, "")):
        affine = replace(stale, slopes=tuple(slopes), intercepts=(0.0,) * 7)
        champion = Champion(3, ServedNumbers(affine))
        options = RecalibrationOptions(method="temperature")
        found = fit_challenger(blocks.records(), options, champion=champion)
        assert (found.refusal is None) == (not expected)
        assert expected in found.reason


@pytest.mark.parametrize("method", ["affine", "survival"])
@pytest.mark.parametrize("served", [(1.0, 1.0), (1.125, 0.875)])
def test_a_head_that_only_an_intercept_mends_gets_it_beside_the_champions_temperatures(
    method: str, served: tuple[float, ...]
) -> None:
    """Was refused: statuses and the held-out comparison spoke of temperatures alone."""
    champion = Champion(4, ServedNumbers(Calibration.from_temperatures(served, gamma=GAMMA)))
    options = RecalibrationOptions(method=method)  # type: ignore[arg-type]
    found = fit_challenger(shifted_head(shift=0.5), options, champion=champion)
    assert found.calibration is not None, found.reason
    assert found.calibration.temperatures == served
    assert found.calibration.slopes == pytest.approx((1.0,) * GAMMA, abs=0.1)
    assert found.calibration.intercepts == pytest.approx((-0.5,) * GAMMA, abs=0.12)
    assert found.calibration.status == "partial"
    assert found.calibration.prefix(1).status == "partial"
    assert "ok" not in found.calibration.position_statuses
    assert found.evidence["held_out"]["form"] == "affine"
    assert "by slopes and intercepts against revision 4 falls" in found.reason
    assert found.summary[1].startswith("No temperature serves better than those of revision 4")
    assert found.evidence["fit"] == found.calibration.evidence


def test_segments_keep_their_temperatures_beside_the_slopes_of_all_traffic() -> None:
    pool = Calibration.from_temperatures((1.125, 0.875), gamma=GAMMA)
    code = ServedSegment(SegmentKey.of({"domain": "code"}), 500, (1.5, 0.75))
    table = SegmentTable.of_pool(pool, 9000)
    table = replace(table, segments={**table.segments, code.key: code}, seen={"domain": ("code",)})
    champion = Champion(4, ServedNumbers(pool, table))
    options = RecalibrationOptions(method="survival")
    found = fit_challenger(shifted_head(shift=0.5), options, champion=champion)
    assert found.calibration is not None, found.reason
    assert found.calibration.temperatures == pool.temperatures
    assert found.segments is not None
    after = SegmentTable.from_dict(found.segments)
    assert {key: each.temperatures for key, each in after.segments.items()} == {
        POOL: (1.125, 0.875),
        code.key: (1.5, 0.75),
    }
    for each in after.segments.values():
        assert (each.slopes, each.intercepts) == (
            found.calibration.slopes,
            found.calibration.intercepts,
        )


def test_temperatures_that_gain_nothing_are_not_published_beside_slopes() -> None:
    """A small shift: every temperature fits within the tolerance, and none serves better than 1."""
    found = fit(shifted_head(shift=0.2, seed=1), "affine")
    assert found.calibration is not None, found.reason
    assert found.calibration.temperatures == (1.0,) * GAMMA
    fits = found.calibration.evidence["positions"]
    assert {each["status"] for each in fits} == {"temperature_cannot_fit"}
    assert all(each["temperature"] != 1.0 for each in fits)
    assert "serves no better than 1; slopes do." in fits[0]["reason"]


def test_slopes_alone_need_a_clear_case() -> None:
    """A calibrated head: what is refused by temperatures does not pass by chance in slopes."""
    passed = 0
    for seed in range(10):
        found = fit(shifted_head(4000, 0.0, seed=seed), "affine", minimum_rows=300)
        alone = found.evidence["held_out"]["form"] == "affine"
        passed += alone and found.calibration is not None
    assert passed == 0


def test_too_few_rows_for_any_temperature_give_no_slopes_either() -> None:
    found = fit(shifted_head(shift=0.5), "affine", minimum_rows=12_000)
    assert found.refusal == "insufficient"
    assert "Slope and intercept of position 1: " in found.reason
    assert "12000 and 100 are needed" in found.reason
