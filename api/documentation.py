"""How calls are described in OpenAPI: every status, with the problems behind it and examples."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from api.problems import MEDIA_TYPE, problem_type

if TYPE_CHECKING:
    from fastapi import FastAPI

__all__ = ["describe", "header", "install_openapi", "outcomes"]

# What any call may answer, and what those that take a body may answer besides.
_EVERY_CALL = (
    "unauthenticated",
    "missing-scope",
    "host-not-allowed",
    "uri-too-long",
    "invalid-request",
    "headers-too-large",
    "internal-error",
    "store-busy",
    "store-unavailable",
)
_BODY_CALL = ("unreadable-request", "content-too-large", "unsupported-media-type")

_DESCRIPTION = """
Telemetry in, fresh temperatures out. Engines poll `temperatures` with `If-None-Match`; people and
programs look at revisions, reports, engines and events, and change what is served with
compare-and-set. Every error is an RFC 9457 problem whose `type` leads to a page about it.
"""
_TAGS = [
    {"name": "engines", "description": "What engines call: temperatures and telemetry."},
    {"name": "drafters", "description": "The units that have their own calibration."},
    {"name": "revisions", "description": "Immutable calibrations; promote and roll back."},
    {"name": "jobs", "description": "Recalibrations and reports, done by the worker."},
    {"name": "fleet", "description": "Who runs what, and what happened."},
    {"name": "service", "description": "Probes and documentation."},
]


def outcomes(
    success: Mapping[int, Mapping[str, Any]],
    *slugs: str,
    body: bool = False,
    public: bool = False,
) -> dict[int | str, dict[str, Any]]:
    """``responses`` of a call.

    Args:
        success: what it answers when all is well, by status.
        *slugs: problems of its own.
        body: whether it takes a JSON body.
        public: whether it neither asks for a token nor needs the database.
    """
    shared: Iterable[str] = _EVERY_CALL
    if public:
        shared = ("uri-too-long", "headers-too-large", "internal-error")
    found: dict[int | str, dict[str, Any]] = {code: dict(said) for code, said in success.items()}
    for slug in dict.fromkeys((*shared, *(_BODY_CALL if body else ()), *slugs)):
        kind = problem_type(slug)
        entry = found.setdefault(
            kind.status,
            {
                "description": kind.title,
                "content": {
                    MEDIA_TYPE: {
                        "schema": {"$ref": "#/components/schemas/Problem"},
                        "examples": {},
                    }
                },
            },
        )
        entry["content"][MEDIA_TYPE]["examples"][slug] = {
            "summary": kind.title,
            "description": kind.meaning,
            "value": {
                "type": kind.uri,
                "title": kind.title,
                "status": kind.status,
                "detail": kind.meaning,
                "request_id": "4f6c1b7e0d9a4c55",
            },
        }
    return found


def header(description: str, *, kind: str = "string") -> dict[str, Any]:
    """A response header."""
    return {"description": description, "schema": {"type": kind}}


def describe(model: type[Any], description: str, **headers: Any) -> dict[str, Any]:
    """A JSON answer: its model, what it means, and headers of note by name."""
    said: dict[str, Any] = {"model": model, "description": description}
    if headers:
        said["headers"] = headers
    return said


def install_openapi(app: FastAPI) -> None:
    """Make ``app`` describe itself completely; the document is made once, on demand."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _document(app)
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _document(app: FastAPI) -> dict[str, Any]:
    from fastapi.openapi.utils import get_openapi
    from pydantic.json_schema import models_json_schema

    from api.schemas import Problem, PublicationDocument

    document = get_openapi(
        title=app.title,
        version=app.version,
        summary="Calibration of speculative decoding's confidence, served to engines",
        description=_DESCRIPTION,
        routes=app.routes,
        tags=_TAGS,
        license_info={"name": "Apache-2.0", "identifier": "Apache-2.0"},
    )
    # Named in responses by reference only, so FastAPI does not know that they are used.
    models = [(model, "serialization") for model in (Problem, PublicationDocument)]
    _, extra = models_json_schema(models, ref_template="#/components/schemas/{model}")  # type: ignore[arg-type]
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    for name, schema in extra["$defs"].items():
        schemas.setdefault(name, schema)
    for item in document["paths"].values():
        for operation in item.values():
            for parameter in operation.get("parameters", ()):
                parameter["schema"] = _without_null(parameter["schema"])
    # FastAPI's own form of 422, which no call answers with.
    schemas.pop("HTTPValidationError", None)
    schemas.pop("ValidationError", None)
    return document


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """A parameter may be absent, but no address and no header can hold null."""
    choices = [choice for choice in schema.get("anyOf", ()) if choice != {"type": "null"}]
    if len(choices) != 1:
        return schema
    kept: dict[str, Any] = {name: value for name, value in schema.items() if name != "anyOf"}
    kept.update(choices[0])
    return kept
