"""The folder of the registered model: it loads without this project and calibrates alike."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from calib.calibration import Calibration
from monitoring.mlflow_mirror.model_files import write_model
from monitoring.mlflow_mirror.tracking_place import bound_calls

_PREDICT = """
import sys
import mlflow, numpy as np
model = mlflow.pyfunc.load_model(sys.argv[1])
logits = np.load(sys.argv[2])
code = model.predict(logits, params={"segment": "domain=code, sampling_temperature=0"})
np.save(sys.argv[3], np.stack([model.predict(logits), code]))
ours = {"calib", "monitoring", "api", "torch"} & {name.partition(".")[0] for name in sys.modules}
print(sorted(ours))
"""


@pytest.mark.slow  # MLflow is imported twice
@pytest.mark.filterwarnings("default")  # MLflow's own
def test_the_model_loads_elsewhere_and_calibrates_alike(tmp_path: Path) -> None:
    calibration = Calibration.from_temperatures([1.5, 2.0, 0.8], gamma=3)
    tags = {"sampling_temperature": "0", "domain": "code"}
    own = {"tags": tags, "temperatures": [3.0, 0.5, 1.0], "affine": None}
    pool = {"tags": {}, "temperatures": [1.5, 2.0, 0.8], "affine": None}
    segments = {"segments": [pool, own]}
    write_model(tmp_path / "model", calibration, {"revision": 1}, segments=segments)
    requirements = (tmp_path / "model" / "requirements.txt").read_text().split()
    assert requirements == ["mlflow>=3.1", "numpy>=1.26"]
    logits = np.random.default_rng(3).normal(0.0, 3.0, (50, 3)).astype(np.float32)
    np.save(tmp_path / "logits.npy", logits)
    paths = [str(tmp_path / name) for name in ("model", "logits.npy", "out.npy")]
    answer = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _PREDICT, *paths],
        cwd=tmp_path,
        env=bound_calls(10.0, {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}),
        capture_output=True,
        text=True,
        timeout=300.0,
        check=True,
    )
    assert answer.stdout.split("\n")[-2] == "[]"
    code = Calibration.from_temperatures([3.0, 0.5, 1.0], gamma=3)
    expected = [calibration.conditional(logits), code.conditional(logits)]
    np.testing.assert_array_equal(np.load(paths[2]), expected)
