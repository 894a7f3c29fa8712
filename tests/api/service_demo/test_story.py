"""The whole story against a real service: where the evidence carries it, and where it does not."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from api.service_calls import ServiceCalls
from api.service_demo.story import Story
from api.service_demo.teller import Teller
from calib.calibration_key import CalibrationKey
from calib.formats.arrow import write_parquet
from tests.api.served import Served
from tests.support.service import KEY
from tests.support.telemetry import synthetic_records


def told(service: Served, telemetry: Path) -> str:
    """The story of a telemetry file, as it was printed."""
    text = StringIO()
    with ServiceCalls(service.url) as calls:
        story = Story(
            calls,
            service.url,
            "a database",
            telemetry=telemetry,
            key=CalibrationKey.from_dict(KEY),
            drafter="played",
            teller=Teller(Console(file=text, width=100)),
        )
        try:
            story.tell()
        finally:
            story.close()
    return text.getvalue()


@pytest.mark.slow
def test_a_person_promotes_what_held_out_rows_speak_for_and_says_so(tmp_path: Path) -> None:
    telemetry = tmp_path / "telemetry.parquet"
    write_parquet(synthetic_records(20_000, prompts=400), telemetry)
    with Served("--data", "data", folder=tmp_path, closed_loop="watch") as service:
        service.listening()
        first = told(service, telemetry)
        assert "it starts at identity, publication 1" in first
        assert "304 in" in first
        assert "20,000 rows in" in first
        assert "rows under revision 0" in first  # the loop watched them
        assert "Proposed as revision 1" in first
        assert "held-out rows speak for it; a person decides" in first
        assert "an operator promotes it" in " ".join(first.split())
        assert "Publication 2 serves revision 1; before it was revision 0." in first
        assert "engine-1 after" in first
        assert "3 engines on publication 2, 0 behind" in first
        assert f"{service.url}/docs" in first
        assert f"--order domain=math,chat,code --baseline-rows 8000 --into {service.url}" in first
        again = told(service, telemetry)  # the same numbers again: refused, so by hand, and back
        assert "it was here before; publication 2 is served" in again
        assert "the fit serves the same numbers as revision 1" in again
        assert "Promote by hand" in again
        assert "Publication 4 serves revision 1; before it was revision 2." in again
        place = f"{service.url}/v1/drafters/played"
        assert service.http.get(place).json()["aliases"]["champion"] == 1
        assert service.stop() == 0
