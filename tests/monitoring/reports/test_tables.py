from __future__ import annotations

import math

import pytest

from monitoring.reports.fit_report import FitReport
from monitoring.reports.tables import (
    acceptance_table,
    leak_table,
    position_table,
    reference_table,
    segment_position_table,
    segment_table,
)


@pytest.mark.parametrize("view", ["conditional", "survival"])
def test_position_table_holds_the_metrics(fitted: FitReport, view: str) -> None:
    overall = fitted.evaluation.overall
    table = position_table(overall, view)  # type: ignore[arg-type]
    raw = getattr(overall.raw.report, view)
    calibrated = getattr(overall.calibrated.report, view)
    assert list(table.index) == [1, 2, 3, 4, 5, 6, 7]
    for k, row in table.iterrows():
        assert row["rows"] == calibrated[k - 1].n
        assert row["observed"] == calibrated[k - 1].mean_label
        assert row["raw_mean"] == raw[k - 1].mean_prediction
        assert row["raw_ece"] == raw[k - 1].ece
        assert row["calibrated_debiased_ece_low"] == calibrated[k - 1].debiased_ece_low
        assert row["null_level"] == calibrated[k - 1].null_level
        assert row["calibrated_auc"] == calibrated[k - 1].auc


def test_segment_table_lists_all_rows_first(fitted: FitReport) -> None:
    table = segment_table(fitted.evaluation)
    assert table.index[0] == "all"
    assert len(table) == 16
    assert table.loc["all", "rows"] == fitted.evaluation.rows
    assert table.loc["all", "raw_block"] == fitted.evaluation.overall.raw.block["survival"].value
    pooled = table["pooled"].notna()
    assert pooled.sum() == 9
    assert table.loc[pooled, "raw_ece"].isna().all()


def test_segment_positions_stack_the_position_tables(fitted: FitReport) -> None:
    table = segment_position_table(fitted.evaluation)
    assert list(table.index.names) == ["segment", "position"]
    part = fitted.evaluation.segments_by("domain")[0]
    assert part.comparison is not None
    expected = position_table(part.comparison, "survival")
    assert table.loc["domain=chat"].equals(expected)


def test_leak_table_ends_with_the_pooled_row(fitted: FitReport) -> None:
    table = leak_table(fitted.evaluation)
    assert list(table.index) == ["1", "2", "3", "4", "5", "6", "pooled"]
    assert table.loc["pooled", "partial"] == fitted.evaluation.leak.pooled.partial


def test_acceptance_table_sets_soft_labels_beside_acceptance(fitted: FitReport) -> None:
    table = acceptance_table(fitted.evaluation)
    assert table.loc[1, "conditional"] == table.loc[1, "survived"] / table.loc[1, "observed"]
    assert table.loc[1, "soft_label"] == pytest.approx(table.loc[1, "conditional"], abs=0.03)
    assert (table["coverage"].diff().dropna() <= 0).all()


def test_reference_table_starts_with_raw_and_calibrated(fitted: FitReport) -> None:
    table = reference_table(fitted)
    assert list(table.index) == ["raw", "sts", "isotonic", "platt"]
    assert table.loc["isotonic", "ece"] < table.loc["raw", "ece"]
    assert not any(math.isnan(value) for value in table["block"])
