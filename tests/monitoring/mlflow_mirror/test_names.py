from __future__ import annotations

import pytest

from calib.errors import ConfigurationError, InvalidInputError
from monitoring.mlflow_mirror.names import (
    DEFAULT_ALIASES,
    AliasNames,
    checked_alias,
    experiment_name,
    metric_key,
    registered_model_name,
)


@pytest.mark.parametrize(
    ("alias", "reason"),
    [
        ("latest", "newest version"),
        ("v3", "version number"),
        ("3", "version number"),
        ("Champion", "lower case"),
        ("", "letter"),
        ("the/one", "letter"),
    ],
)
def test_r78_aliases_that_mlflow_misreads_are_refused_with_a_reason(
    alias: str, reason: str
) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        checked_alias(alias)
    with pytest.raises(ConfigurationError):
        AliasNames.from_text(f"{alias},challenger,previous")


def test_three_different_names_are_needed() -> None:
    assert AliasNames.from_text(DEFAULT_ALIASES) == AliasNames()
    assert AliasNames.from_text("live, next, last").challenger == "next"
    for text in ("champion", "a,b,a", "a,b,c,d"):
        with pytest.raises(ConfigurationError, match="three different names"):
            AliasNames.from_text(text)


def test_names_have_no_sign_that_mlflow_refuses() -> None:
    assert experiment_name("deepseek-ai--v4") == "dspark-calib.deepseek-ai--v4"
    assert registered_model_name("code") == "code"
    for name in ("a/b", "a:b", "A"):
        with pytest.raises(InvalidInputError):
            registered_model_name(name)


def test_metric_keys_are_cleaned_and_short() -> None:
    assert metric_key("held_out", "ece", "before") == "held_out/ece/before"
    assert metric_key("domain=code:γ", "..", "a") == "domain_code_/_/a"
    assert len(metric_key("x" * 400)) == 250
