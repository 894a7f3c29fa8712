"""Rules and dashboard ask for metrics that exist, with labels that they have; promtool agrees."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from monitoring.metrics_catalogue import METRICS
from monitoring.prometheus_metrics import ServiceMetrics
from monitoring.store.database import Database
from tests.monitoring.store.store_fixtures import registered
from tests.support.service import empty_database

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
RULES = DEPLOY / "prometheus" / "dspark-calib.rules.yml"
DASHBOARD = DEPLOY / "grafana" / "dashboards" / "dspark-calib.json"

LABELS = {spec.full_name: set(spec.labels) for spec in METRICS}
OF_SCRAPE = {"instance", "job"}
SELECTOR = re.compile(r"(dspark_calibration_\w+|up)\b(?:\{([^}]*)\})?")
GROUPING = re.compile(r"\b(?:by|without|on|ignoring)\s*\(([^)]*)\)")


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    return found


def expressions() -> Iterator[tuple[str, str, str]]:
    """Where it stands, the expression, and the text that names labels of its result."""
    for rule in rules():
        said = " ".join(rule["annotations"].values())
        yield rule["alert"], rule["expr"], said
        for inner in re.findall(r'printf "(.*?)" \$labels', said):
            yield rule["alert"], inner.replace("%q", '"x"'), ""
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"], target["legendFormat"]
    for annotation in dashboard()["annotations"]["list"]:
        yield annotation["name"], annotation["expr"], annotation["titleFormat"]


def test_every_metric_and_label_that_is_asked_for_exists() -> None:
    seen = set()
    for place, expression, said in expressions():
        allowed = set(OF_SCRAPE)
        for name, matchers in SELECTOR.findall(expression):
            known = OF_SCRAPE if name == "up" else LABELS.get(name)
            assert known is not None, f"{place}: {name} is no metric of the service"
            used = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers))
            assert used <= known | OF_SCRAPE, f"{place}: {name} has no {used - known}"
            allowed |= known
            seen.add(name)
        grouped = {
            label.strip() for group in GROUPING.findall(expression) for label in group.split(",")
        }
        assert grouped <= allowed, f"{place}: {grouped - allowed}"
        shown = set(re.findall(r"\$labels\.(\w+)|\{\{\s*(\w+)\s*\}\}", said))
        names = {one or other for one, other in shown} - {"end"}
        assert names <= allowed, f"{place}: {names - allowed}"
        # What an aggregation drops cannot be shown.
        if grouped and "by" in expression and names:
            assert names <= grouped | OF_SCRAPE, f"{place}: {names - grouped} was summed away"
    assert len(seen) > 35


def test_every_metric_is_shown_or_watched_somewhere() -> None:
    """One that nobody looks at needs no place in the table; a few describe the others."""
    asked = {name for _, expression, _ in expressions() for name, _ in SELECTOR.findall(expression)}
    describing = {
        f"dspark_calibration_{name}"
        for name in (
            "build_info",
            "drafters",
            "drafters_left_out",
            "drift_timestamp_seconds",
            "report_timestamp_seconds",
            "state_timestamp_seconds",
            "alerts_silenced_total",
            "telemetry_batches_total",
            "telemetry_stored_bytes",
            "tracking_failed_total",
        )
    }
    assert set(LABELS) - asked - describing == set()


def test_every_alert_says_how_bad_it_is_and_what_helps() -> None:
    names = [rule["alert"] for rule in rules()]
    assert len(set(names)) == len(names)
    for wanted in (
        "Drift",
        "WorseThanIdentity",
        "EngineBehindChampion",
        "TelemetryStopped",
        "FitRefused",
        "ServiceDown",
    ):
        assert f"DsparkCalib{wanted}" in names
    for rule in rules():
        assert rule["labels"]["severity"] in ("info", "warning", "critical"), rule["alert"]
        assert {"summary", "description", "command"} <= set(rule["annotations"]), rule["alert"]


def test_the_dashboard_is_whole() -> None:
    found = dashboard()
    panels = found["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24, panel["title"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, f"{panel['title']} lies over another panel"
        taken |= cells
    variables = {variable["name"] for variable in found["templating"]["list"]}
    text = DASHBOARD.read_text(encoding="utf-8")
    used = set(re.findall(r"\$\{?([a-z]\w*)\}?", text))
    assert used == variables == {"datasource", "drafter", "view"}


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "rules", "dspark-calib.rules.yml"),
        ("test", "rules", "dspark-calib.test.yml"),
        ("check", "config", "--syntax-only", "prometheus.yml"),
    ],
    ids=lambda arguments: " ".join(arguments[:2]),
)
def test_promtool_agrees(arguments: tuple[str, ...]) -> None:
    answer = subprocess.run(
        ["promtool", *arguments],
        cwd=DEPLOY / "prometheus",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_finds_no_fault_in_what_the_service_shows(tmp_path: Path) -> None:
    """Names, types and help as Prometheus' own linter wants them."""
    database = Database.open(empty_database(tmp_path))
    registered(database)
    shown = ServiceMetrics("1", silent_after=60.0, most_drafters=10, refresh_seconds=5.0)
    shown.refresh(database)
    database.close()
    answer = subprocess.run(
        ["promtool", "check", "metrics"],
        input=shown.render()[0],
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert answer.returncode == 0, (answer.stdout + answer.stderr).decode()
