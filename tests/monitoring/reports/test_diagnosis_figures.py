from __future__ import annotations

import numpy as np
import pytest

from calib.block_diagnosis import BlockDiagnosis, diagnose_blocks
from calib.records import AcceptanceRecords
from monitoring.reports.diagnosis_figures import (
    acceptance_figure,
    diagnosis_figures,
    length_figure,
    threshold_figure,
    waste_figure,
)
from monitoring.reports.figures import png_bytes
from tests.support.leaky_generator import simulate_leaky


@pytest.fixture(scope="module")
def found() -> BlockDiagnosis:
    columns = simulate_leaky(600, 1).records().columns()
    columns["domain"] = np.array(["math", "code"] * 300, dtype=object)
    return diagnose_blocks(AcceptanceRecords.from_columns(7, columns), thresholds=(0.0, 0.5, 0.9))


def test_lines_show_the_numbers(found: BlockDiagnosis) -> None:
    left = acceptance_figure(found).axes[0]
    shown = [line.get_ydata() for line in left.lines if len(np.atleast_1d(line.get_ydata())) == 7]
    rates = [each.acceptance for each in found.groups[0].positions]
    assert np.asarray(shown[0]).tolist() == pytest.approx(rates)
    sweep = threshold_figure(found).axes
    assert np.asarray(sweep[1].lines[0].get_ydata()).tolist() == pytest.approx(
        [point.accepted_length for point in found.groups[0].sweep]
    )
    assert np.asarray(sweep[2].lines[0].get_ydata()).tolist() == pytest.approx(
        [point.wasted for point in found.groups[0].sweep]
    )
    bars = length_figure(found).axes[0].patches
    assert [bar.get_height() for bar in bars] == pytest.approx(
        [group.accepted_length for group in found.groups]
    )


def test_fates_fill_every_bar(found: BlockDiagnosis) -> None:
    axes = waste_figure(found).axes[0]
    top = max(bar.get_y() + bar.get_height() for bar in axes.patches)
    assert top == pytest.approx(1.0)
    assert len(axes.patches) == 4 * 7


def test_figures_that_the_numbers_do_not_allow_are_left_out(found: BlockDiagnosis) -> None:
    assert set(diagnosis_figures(found)) == {
        "acceptance",
        "accepted_length",
        "waste",
        "threshold_sweep",
    }
    one = {"confidence_logits": [[0.0]] * 3, "verified": [0, 0, 1], "accepted": [0, 0, 0]}
    thin = diagnosis_figures(diagnose_blocks(AcceptanceRecords.from_columns(1, one)))
    assert "threshold_sweep" not in thin
    for figure in thin.values():
        assert png_bytes(figure).startswith(b"\x89PNG")
