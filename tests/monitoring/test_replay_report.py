"""A replay as JSON."""

from __future__ import annotations

import json

import numpy as np

from monitoring.loop_settings import LoopSettings
from monitoring.replay import Replay
from monitoring.replay_report import detection_delays, replay_document
from monitoring.replay_shifts import Stream
from tests.monitoring.loop_rows import rows


def test_the_document_is_plain_json_and_says_how_long_detection_took() -> None:
    stream = Stream.of(rows(1, 3000)).scaled(1.8, 1500)
    settings = LoopSettings(automatic=False)
    result = Replay(stream.records, stream.stretches, settings=settings).run()
    document = replay_document(stream, result, (), settings.to_dict())
    again = json.loads(json.dumps(document, allow_nan=False))
    assert again == document
    assert document["synthetic"] == ["logits times 1.8 from row 1500 on"]
    (delay,) = detection_delays(result)
    assert 0 < delay["warn"] <= delay["act"] < 1000
    assert document["counts"]["rows_total"] == 3000
    assert np.isfinite(document["seconds"])
