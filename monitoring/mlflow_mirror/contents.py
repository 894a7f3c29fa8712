"""What a run says about a revision, a refusal or a report: plain values, no MLflow.

Equal things give equal contents whenever they are told, time stamps included: telling a thing twice
adds nothing, because MLflow keeps one of two equal metrics, parameters and tags.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from calib.canonical_json import sha256_hex
from monitoring.mlflow_mirror.names import metric_key
from monitoring.mlflow_mirror.numbers import Metric, Metrics
from monitoring.store.drafters import Drafter
from monitoring.store.revisions import Revision

__all__ = [
    "Content",
    "DatasetContent",
    "job_content",
    "report_content",
    "revision_content",
]

RUN_TAG: Final = "dspark_calib.run"
"""The tag that a run is found by; one run has one value, for ever."""

_LONGEST_PARAMETER: Final = 500
_LONGEST_TAG: Final = 4000
_LONGEST_DATASET_DIGEST: Final = 36

_FIT_FIELDS: Final = ("ece_before", "ece_after", "null_level", "residual", "rows")
_HELD_OUT_FIELDS: Final = ("ece", "auc", "debiased_error", "log_loss", "rows", "effective_rows")


@dataclass(frozen=True, slots=True)
class DatasetContent:
    """The frozen window that a fit read.

    Attributes:
        name: of the dataset.
        digest: at most 36 characters, the beginning of the full one.
        source: where the rows are, as plain JSON.
        profile: sizes, as plain JSON.
    """

    name: str
    digest: str
    source: Mapping[str, Any]
    profile: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Content:
    """What is written to one run.

    Attributes:
        identity: value of the tag :data:`RUN_TAG`.
        name: name of the run, for people.
        started_at: seconds since the epoch.
        parameters: name to text.
        tags: name to text.
        metrics: all finite.
        at: time of the metrics, seconds since the epoch.
        dataset: what the fit read, or None.
        status: MLflow's word for how the run ended, or None where it stays as it is.
    """

    identity: str
    name: str
    started_at: float
    at: float
    parameters: Mapping[str, str] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    metrics: tuple[Metric, ...] = ()
    dataset: DatasetContent | None = None
    status: str | None = None


def revision_identity(revision: Revision) -> str:
    """What the run of a revision is found by; another database with an equal name has another."""
    return f"{revision.drafter}:{revision.number}:{revision.created_at!r}"


def revision_content(
    drafter: Drafter, revision: Revision, *, started_at: float | None = None
) -> Content:
    """The run of a revision: its numbers, its evidence, and what it was made from.

    Args:
        drafter: whose.
        revision: identity and hand-made numbers included.
        started_at: when its fit began, seconds since the epoch; None where nothing was fitted.
    """
    calibration, provenance = revision.calibration, revision.provenance
    metrics = Metrics()
    metrics.add_positions("temperature", calibration.temperatures)
    if calibration.slopes is not None and calibration.intercepts is not None:
        metrics.add_positions("slope", calibration.slopes)
        metrics.add_positions("intercept", calibration.intercepts)
    _add_evidence(metrics, calibration.evidence)
    window = _mapping(provenance.get("window"))
    tags = {
        **_common_tags(drafter),
        RUN_TAG: revision_identity(revision),
        "revision": str(revision.number),
        "digest": calibration.digest,
        "status": str(calibration.status),
        "method": revision.method,
        "position_statuses": ", ".join(str(word) for word in calibration.position_statuses),
        "created_by": revision.created_by,
        "origin": str(provenance.get("kind") or provenance.get("origin") or "unknown"),
        **_window_tags(window),
        **_left_out(metrics),
    }
    if "job" in provenance:
        tags["job"] = str(provenance["job"])
    return Content(
        identity=tags[RUN_TAG],
        name=f"revision {revision.number} ({revision.method})",
        started_at=min(started_at or revision.created_at, revision.created_at),
        at=revision.created_at,
        parameters=_parameters(drafter, revision),
        tags=_bounded(tags),
        metrics=tuple(metrics.found),
        dataset=_dataset(drafter.name, window),
        status="FINISHED",
    )


def job_content(drafter: Drafter, told: Mapping[str, Any], revision: Revision | None) -> Content:
    """What a finished recalibration adds: to the run of its revision, or a run of its own.

    Args:
        drafter: whose.
        told: content of the outbox entry.
        revision: what it made; None where it was refused or failed.
    """
    result = _mapping(told.get("result"))
    at = float(told["finished_at"])
    metrics = Metrics()
    tags = {**_common_tags(drafter), "job": str(told["job"])}
    if result.get("reason"):
        tags["reason"] = str(result["reason"])
    summary = result.get("summary") or ()
    if summary:
        tags["mlflow.note.content"] = "\n\n".join(str(sentence) for sentence in summary)
    if revision is not None:
        tags[RUN_TAG] = revision_identity(revision)
        return Content(
            identity=tags[RUN_TAG],
            name=f"revision {revision.number} ({revision.method})",
            started_at=revision.created_at,
            at=at,
            tags=_bounded(tags),
        )
    _add_evidence(metrics, result)
    window = _mapping(result.get("window"))
    error = _mapping(told.get("error"))
    tags |= {
        RUN_TAG: f"{drafter.name}:job:{told['job']}",
        "status": str(told["status"]),
        "method": str(result.get("method", "unknown")),
        **_window_tags(window),
        **_left_out(metrics),
    }
    for name, value in (("refusal", result.get("refusal")), ("error", error.get("reason"))):
        if value:
            tags[name] = str(value)
    options = {f"option.{name}": value for name, value in _mapping(told.get("options")).items()}
    return Content(
        identity=tags[RUN_TAG],
        name=f"recalibration {told['status']}",
        started_at=float(told.get("started_at") or at),
        at=at,
        parameters=_texts({"gamma": drafter.gamma, **options}),
        tags=_bounded(tags),
        metrics=tuple(metrics.found),
        dataset=_dataset(drafter.name, window),
        status="FAILED" if told["status"] == "failed" else "FINISHED",
    )


def report_content(drafter: Drafter, told: Mapping[str, Any], revision: Revision) -> Content:
    """What a report adds to the run of the revision it judges; its step is the report's number.

    Args:
        drafter: whose.
        told: content of the outbox entry.
        revision: what the report is about.
    """
    metrics = Metrics()
    for key, value in sorted(_mapping(told.get("metrics")).items()):
        metrics.add(metric_key("monitored", *key.split("/")), value, int(told["report"]))
    missing = [name.partition("[")[0] for name in metrics.left_out]
    tags = {"report": str(told["report"]), "report.left_out": ", ".join(missing) or "nothing"}
    sentences = told.get("sentences") or ()
    if sentences:
        tags["report.summary"] = "\n\n".join(str(sentence) for sentence in sentences)
    return Content(
        identity=revision_identity(revision),
        name=f"revision {revision.number} ({revision.method})",
        started_at=revision.created_at,
        at=float(told["created_at"]),
        tags=_bounded(tags),
        metrics=tuple(metrics.found),
    )


def _add_evidence(metrics: Metrics, evidence: Mapping[str, Any]) -> None:
    """Errors of the fit and on held-out rows, one value a position, and their means."""
    metrics.add_fields("fit", _mappings(evidence.get("positions")), _FIT_FIELDS)
    held_out = _mapping(evidence.get("held_out"))
    metrics.add_fields("held_out", _mappings(held_out.get("positions")), _HELD_OUT_FIELDS)
    for name in ("survival_ece", "survival_log_loss"):
        for side, value in _mapping(held_out.get(name)).items():
            metrics.add(metric_key("held_out", f"mean_{name}", side), value)
    for side, value in _mapping(held_out.get("block_error")).items():
        for end, number in _mapping(value).items():
            metrics.add(metric_key("held_out", "block_error", side, end), number)


def _common_tags(drafter: Drafter) -> dict[str, str]:
    return {
        "mlflow.source.name": "dspark-calib",
        "mlflow.user": "dspark-calib",
        "drafter": drafter.name,
        "calibration_key": drafter.key.digest,
    }


def _window_tags(window: Mapping[str, Any]) -> dict[str, str]:
    if not window:
        return {"window": "none"}
    first, last = window.get("first_batch"), window.get("last_batch")
    words = f"batches {first} to {last}, {window.get('rows')} rows"
    return {"window": words, "window_digest": _window_digest(window)}


def _window_digest(window: Mapping[str, Any]) -> str:
    """Of the rows, where the fit kept it; else of what is known about the window."""
    return str(window.get("digest") or sha256_hex(dict(window)))


def _left_out(metrics: Metrics) -> dict[str, str]:
    return {"metrics.left_out": ", ".join(metrics.left_out) or "nothing"}


def _parameters(drafter: Drafter, revision: Revision) -> dict[str, str]:
    calibration, provenance = revision.calibration, revision.provenance
    values: dict[str, Any] = {
        "gamma": calibration.gamma,
        "method": revision.method,
        "label_kind": calibration.label_kind,
        "derived_from_gamma": calibration.derived_from_gamma,
        "fitted_at": calibration.fitted_at,
    }
    named: dict[str, Mapping[str, Any]] = {
        "key": drafter.key.to_dict(),
        "option": _mapping(provenance.get("options")),
        "window": _mapping(provenance.get("window")),
        "version": _mapping(provenance.get("versions")),
        "fit": _mapping(calibration.evidence.get("parameters")),
        "split": _mapping(_mapping(calibration.evidence.get("held_out")).get("split")),
    }
    for prefix, mapping in named.items():
        for name, value in mapping.items():
            if not isinstance(value, Mapping):
                values[f"{prefix}.{name}"] = value
    return _texts(values)


def _dataset(drafter: str, window: Mapping[str, Any]) -> DatasetContent | None:
    if not window.get("rows"):
        return None
    named = ("first_batch", "last_batch", "rows", "batches", "usable")
    found = {name: window[name] for name in named if window.get(name) is not None}
    digest = _window_digest(window)
    return DatasetContent(
        name=f"{drafter} telemetry",
        digest=digest[:_LONGEST_DATASET_DIGEST],
        source={"drafter": drafter, "window_digest": digest, **found},
        profile={name: found[name] for name in ("rows", "batches", "usable") if name in found},
    )


def _texts(values: Mapping[str, Any]) -> dict[str, str]:
    """Values as parameters: what is null is left out, what is long is cut."""
    return {
        metric_key(name): str(value)[:_LONGEST_PARAMETER]
        for name, value in values.items()
        if value is not None
    }


def _bounded(tags: Mapping[str, str]) -> dict[str, str]:
    return {name: value[:_LONGEST_TAG] for name, value in tags.items()}


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _mappings(value: object) -> list[Mapping[str, Any]]:
    return [_mapping(entry) for entry in value] if isinstance(value, list | tuple) else []
