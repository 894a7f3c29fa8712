"""The telemetry in the package is what its card says. Fails until the files are there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import calib.shipped
from calib.errors import FormatError
from calib.formats.arrow import read_parquet
from calib.label_consistency import check_label_consistency
from calib.record_schema import Flag
from calib.records import AcceptanceRecords
from calib.shipped import shipped_telemetry, shipped_telemetry_early


@pytest.fixture(scope="module")
def telemetry() -> AcceptanceRecords:
    return read_parquet(shipped_telemetry(), 7)


def test_missing_data_name_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calib.shipped, "files", lambda package: tmp_path)
    with pytest.raises(FormatError, match=r"telemetry\.parquet: is not part of this installation"):
        shipped_telemetry()
    with pytest.raises(FormatError, match="telemetry_early"):
        shipped_telemetry_early()


def test_shipped_size_and_tags(telemetry: AcceptanceRecords) -> None:
    assert len(telemetry) >= 30_000
    assert telemetry.domain is not None
    assert set(telemetry.domain) == {"math", "code", "chat"}
    assert telemetry.sampling_temperature is not None
    assert set(np.round(telemetry.sampling_temperature.astype(float), 4)) == {0.0, 0.6, 1.0}
    assert telemetry.prompt is not None
    assert len(set(telemetry.prompt)) >= 100
    assert None not in set(telemetry.prompt)
    assert shipped_telemetry().stat().st_size < 8_000_000


def test_shipped_rows_are_fully_verified_but_for_stop_tokens(telemetry: AcceptanceRecords) -> None:
    cut = telemetry.verified < 7
    stopped = (telemetry.flags & np.uint8(Flag.STOP_TRUNCATED)) != 0
    assert not (cut & ~stopped).any()
    assert telemetry.usable().all()


def test_shipped_soft_labels_agree_with_acceptance(telemetry: AcceptanceRecords) -> None:
    assert telemetry.soft_labels is not None
    assert not check_label_consistency(telemetry).inconsistent
    assert telemetry.sampling_temperature is not None
    greedy = telemetry.soft_labels[telemetry.sampling_temperature == 0.0]
    assert np.isin(greedy[~np.isnan(greedy)], (0.0, 1.0)).all()


def test_shipped_early_checkpoint_is_another_drafter(telemetry: AcceptanceRecords) -> None:
    early = read_parquet(shipped_telemetry_early(), 7)
    assert len(early) >= 5000
    assert early.accepted.mean() < telemetry.accepted.mean()
