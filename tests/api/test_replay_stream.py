from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from api.replay_stream import StreamOptions
from calib.errors import ConfigurationError
from calib.formats.arrow import write_parquet
from tests.monitoring.loop_rows import rows


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("stream") / "telemetry.parquet"
    write_parquet(rows(1, 40, domain=["math", "code"] * 20), path)
    return path


def test_options_come_together_in_one_stream(recording: Path) -> None:
    """Slices, then the other drafter, then a factor from a row on: phases follow one another."""
    options = StreamOptions(
        (str(recording),),
        order="domain=code,math",
        swap=recording,
        announced=True,
        scale_logits="2@60",
    )
    stream = options.read()
    assert [(each.name, each.first, each.announced) for each in stream.stretches] == [
        ("domain=code", 0, False),
        ("domain=math", 20, False),
        ("swap to telemetry.parquet", 40, True),
        ("logits × 2 (synthetic)", 60, False),
    ]
    plain = StreamOptions((str(recording),)).read()
    first = np.flatnonzero(plain.records.domain == "code")
    assert np.array_equal(
        stream.records.confidence_logits[:20], plain.records.confidence_logits[first]
    )


def test_a_factor_without_a_row_begins_in_the_middle(recording: Path) -> None:
    stream = StreamOptions((str(recording),), scale_logits="3").read()
    assert [each.first for each in stream.stretches] == [0, 20]


@pytest.mark.parametrize(
    ("changes", "field"),
    [({"order": "domain"}, "order"), ({"scale_logits": "big@3"}, "scale_logits")],
)
def test_what_cannot_be_read_is_named(recording: Path, changes: dict[str, str], field: str) -> None:
    with pytest.raises(ConfigurationError, match=field):
        StreamOptions((str(recording),), **changes).read()  # type: ignore[arg-type]
