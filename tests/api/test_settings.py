from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from api.settings import CONFIG_VARIABLE, ENVIRONMENT_PREFIX, Settings, load_settings
from calib.errors import ConfigurationError


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the machine sets stays out of these tests."""
    for name in [
        CONFIG_VARIABLE,
        *(f"{ENVIRONMENT_PREFIX}{f.upper()}" for f in Settings.model_fields),
    ]:
        monkeypatch.delenv(name, raising=False)


def test_every_setting_is_described() -> None:
    for name, field in Settings.model_fields.items():
        assert field.description, name


def test_defaults_listen_on_loopback(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    settings = load_settings()
    assert (settings.host, settings.port, settings.is_loopback) == ("127.0.0.1", 8765, True)
    assert settings.database_url == f"sqlite:///{tmp_path}/dspark-calib/dspark-calib.db"
    assert settings.max_body_bytes == 64 * 2**20
    assert settings.max_decompressed_bytes == 256 * 2**20
    assert settings.max_wait_seconds == 60


def test_without_xdg_the_data_directory_is_in_the_home(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    expected = tmp_path / ".local" / "share" / "dspark-calib" / "dspark-calib.db"
    assert load_settings().database_url == f"sqlite:///{expected}"


def test_flag_beats_environment_beats_file_beats_default(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "service.toml"
    file.write_text("port = 1001\nhost = '127.0.0.2'\nretention_days = 'none'\n")
    monkeypatch.setenv(CONFIG_VARIABLE, str(file))
    settings = load_settings()
    assert (settings.port, settings.host, settings.retention_days) == (1001, "127.0.0.2", None)
    monkeypatch.setenv("DSPARK_CALIB_PORT", "1002")
    assert load_settings().port == 1002
    assert load_settings(port=1003).port == 1003
    assert load_settings(port=None).port == 1002  # a flag that was not given


def test_a_file_may_be_given_by_the_caller(tmp_path: Path) -> None:
    file = tmp_path / "service.toml"
    file.write_text("port = 1004\n")
    assert load_settings(config=file).port == 1004
    assert load_settings().port == 8765


@pytest.mark.parametrize(
    ("content", "named"),
    [("port = 'x'", "port"), ("prot = 1", "prot"), ("port =", CONFIG_VARIABLE)],
)
def test_a_wrong_file_is_named(tmp_path: Path, content: str, named: str) -> None:
    file = tmp_path / "service.toml"
    file.write_text(content)
    with pytest.raises(ConfigurationError) as caught:
        load_settings(config=file)
    assert caught.value.field == named


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="TOML file that exists"):
        load_settings(config=tmp_path / "none.toml")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("port", 70000),
        ("port", -1),
        ("role", "both"),
        ("log_level", "verbose"),
        ("log_format", "xml"),
        ("max_wait_seconds", 61),
        ("max_body_bytes", 0),
        ("shutdown_seconds", 0),
        ("engine_silent_seconds", float("nan")),
        ("valid_for_seconds", -1),
        ("recalibration_rows", 0),
        ("unmatched_segment", "nearest"),
        ("exploration_share_on_warning", "0.01"),
        ("host", ""),
    ],
)
def test_values_out_of_range_name_their_setting(name: str, value: object) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load_settings(**{name: value})
    assert caught.value.field == name


def test_an_unknown_setting_is_an_error() -> None:
    with pytest.raises(ConfigurationError) as caught:
        load_settings(prot=1)
    assert caught.value.field == "prot"


def test_a_wrong_database_address_does_not_repeat_its_password() -> None:
    with pytest.raises(ConfigurationError) as caught:
        load_settings(database_url="mysql://user:s3cret@host/db")
    assert "s3cret" not in str(caught.value)


def test_limits_that_exclude_each_other_are_an_error() -> None:
    with pytest.raises(ConfigurationError, match="at least max_body_bytes"):
        load_settings(max_body_bytes=4096, max_decompressed_bytes=2048)


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("localhost", True),
        ("::1", True),
        ("[::1]", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("example.org", False),
    ],
)
def test_loopback_is_recognised(host: str, loopback: bool) -> None:
    assert load_settings(host=host).is_loopback is loopback


def test_the_name_of_the_database_holds_no_password() -> None:
    settings = load_settings(database_url="postgresql://user:s3cret@db.example:5433/calib")
    assert settings.database_name == "postgresql://db.example:5433/calib"
    plain = load_settings(database_url="postgresql+psycopg://db.example/calib")
    assert plain.database_name == "postgresql+psycopg://db.example/calib"
    assert load_settings(database_url="sqlite:///x.db").database_name == "sqlite:///x.db"


def test_optional_settings_can_be_switched_off_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSPARK_CALIB_RETENTION_BYTES", "none")
    assert load_settings().retention_bytes is None


def test_settings_do_not_change() -> None:
    with pytest.raises(ValueError, match="frozen"):
        load_settings().port = 1  # type: ignore[misc]


@pytest.mark.parametrize("names", ["latest,b,c", "v3,b,c", "3,b,c", "Champion,b,c", "a,b"])
def test_r78_aliases_that_mlflow_misreads_are_refused_in_the_settings(names: str) -> None:
    with pytest.raises(ConfigurationError, match="tracking_aliases"):
        load_settings(tracking_aliases=names)


def test_runs_are_kept_beside_the_database_unless_somebody_says_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    database = f"sqlite:///{tmp_path}/store.db"
    beside = load_settings(database_url=database).tracking_place()
    assert beside is not None
    assert beside.uri == f"sqlite:///{tmp_path}/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://mlflow:5000")
    shared = load_settings(database_url=database).tracking_place()
    assert shared is not None
    assert shared.uri == "http://mlflow:5000"
    assert load_settings(database_url=database, tracking_uri="off").tracking_place() is None
    with pytest.raises(ConfigurationError, match="plain files") as refused:
        load_settings(tracking_uri="./mlruns?password=secret")
    assert "secret" not in str(refused.value.value)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, 0.005),
        ({"exploration_share": 0.02}, 0.02),  # never lowered
        ({"exploration_share": 0.001, "exploration_share_on_warning": 0.003}, 0.003),
        ({"exploration_share_on_warning": 0.0}, 0.0),
        ({"closed_loop": "watch"}, 0.0),
        ({"closed_loop": "off"}, 0.0),  # nobody is there who would take it back
    ],
)
def test_settings_say_what_a_warning_may_spend(given: dict[str, Any], expected: float) -> None:
    settings = load_settings(**given)
    assert settings.exploration(raised=True) == expected
    assert settings.exploration(raised=False) == settings.exploration_share
