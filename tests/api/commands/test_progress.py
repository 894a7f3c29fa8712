"""Progress bars: counts, notes, and nothing on standard output."""

from __future__ import annotations

import pytest

from api.commands.progress import CountingDisplay, TrainingDisplay


def test_bars_go_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    with CountingDisplay() as display:
        display.stage("recording 10 blocks")
        display.count("blocks", 4, 10)
        display.count("blocks", 12, 10)  # a whole request may go past what was asked for
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "recording 10 blocks" in printed.err
    assert "10/10" in printed.err


@pytest.mark.torch
def test_training_shows_loss_and_accepted_length(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    from heads.training import StepReport

    report = StepReport(
        step=1,
        total=2.5,
        cross_entropy=3.0,
        l1=1.0,
        confidence=0.5,
        soft_labels=(0.5, 0.5),
        survival=(0.5, 0.25),
    )
    with TrainingDisplay(2) as display:
        display.responses(3, 3)
        display.step(report)
    printed = capsys.readouterr().err
    assert "3/3" in printed
    assert "2/2" in printed
    assert "2.500" in printed
    assert "1.75" in printed  # 1 + .5 + .25
