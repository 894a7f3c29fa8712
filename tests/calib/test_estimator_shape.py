from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from sklearn.base import clone
from sklearn.utils import get_tags
from sklearn.utils.validation import check_is_fitted

from calib.conditional_temperature import ConditionalTemperature
from calib.errors import ConfigurationError, NotFittedError
from calib.estimator_shape import EstimatorShape
from calib.sequential_temperature_scaling import SequentialTemperatureScaling

ESTIMATORS = [SequentialTemperatureScaling, ConditionalTemperature]


class Small(EstimatorShape):
    def __init__(self, alpha: float = 0.5, names: tuple[str, ...] = ()) -> None:
        self.alpha = alpha
        self.names = names

    def fit(self) -> Small:
        self.result_ = self.alpha
        return self

    def read(self) -> float:
        self._require_fit()
        return self.result_


def test_parameters_are_the_constructors() -> None:
    small = Small(alpha=2.0)
    assert small.get_params() == {"alpha": 2.0, "names": ()}
    assert small.set_params(alpha=3.0, names=("a",)) is small
    assert small.get_params(deep=False) == {"alpha": 3.0, "names": ("a",)}


def test_unknown_parameters_are_named() -> None:
    with pytest.raises(ConfigurationError, match="beta"):
        Small().set_params(beta=1)


def test_repr_shows_what_differs_from_the_defaults() -> None:
    assert repr(Small()) == "Small()"
    assert repr(Small(alpha=1.0, names=("x",))) == "Small(alpha=1.0, names=('x',))"


def test_results_before_fit_are_an_error() -> None:
    with pytest.raises(NotFittedError, match="Small"):
        Small().read()
    assert Small().fit().read() == 0.5


@pytest.mark.parametrize("estimator", [Small, *ESTIMATORS])
def test_scikit_learn_can_clone_and_inspect(estimator: Any) -> None:
    original = estimator()
    copied = clone(original)
    assert copied is not original
    assert copied.get_params() == original.get_params()
    assert get_tags(original).target_tags.required
    with pytest.raises(Exception, match="not fitted"):
        check_is_fitted(copied)


def test_calib_works_without_loading_scikit_learn() -> None:
    script = (
        "import sys, calib.sequential_temperature_scaling as s, calib.conditional_temperature\n"
        "e = s.SequentialTemperatureScaling(n_bins=10); repr(e); e.set_params(n_bins=15)\n"
        "assert 'sklearn' not in sys.modules and 'torch' not in sys.modules\n"
        "try: e.__sklearn_tags__()\n"
        "except AttributeError: print('ok')\n"
    )
    answer = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert answer.stdout.strip() == "ok"
