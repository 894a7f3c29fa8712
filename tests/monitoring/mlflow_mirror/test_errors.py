from __future__ import annotations

import pickle

from monitoring.mlflow_mirror.errors import TrackingAwayError, TrackingRefusedError


def test_errors_keep_their_reason_between_processes() -> None:
    for kind in (TrackingAwayError, TrackingRefusedError):
        again = pickle.loads(pickle.dumps(kind("503")))
        assert type(again) is kind
        assert again.reason == str(again) == "503"
