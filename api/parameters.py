"""Parameters that several calls share."""

from __future__ import annotations

from typing import Annotated, Any, Final

from fastapi import Header, Path, Query

__all__ = ["IF_MATCH", "Before", "DrafterName", "IfMatch", "IfNoneMatch", "Limit"]

_LARGEST = 2**31 - 1

DrafterName = Annotated[
    str,
    Path(
        pattern=r"^[a-z0-9][a-z0-9._-]*$",
        max_length=128,
        description="slug of the drafter",
        examples=["target-8b-dspark"],
    ),
]
IfMatch = Annotated[
    str | None,
    Header(
        alias="If-Match",
        description="ETag of `GET /v1/drafters/{drafter}`: the change is made only if nothing has "
        "changed since; 412 when it has.",
    ),
]
# Read by the calls themselves: FastAPI would answer 422 where it is missing.
IF_MATCH: Final[dict[str, Any]] = {
    "parameters": [
        {
            "name": "If-Match",
            "in": "header",
            "required": True,
            "description": "ETag of `GET /v1/drafters/{drafter}`: the change is made only if "
            "nothing has changed since. Without it: 428; when it is old: 412.",
            "schema": {"type": "string"},
            "example": '"9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"',
        }
    ]
}
"""OpenAPI of the calls that cannot do without If-Match."""
IfNoneMatch = Annotated[
    str | None,
    Header(alias="If-None-Match", description="ETag of what the caller has; 304 when it is new."),
]
Before = Annotated[
    int | None,
    Query(ge=0, le=_LARGEST, description="only what has a smaller number: `next_before` of a page"),
]
Limit = Annotated[int, Query(ge=1, le=500, description="entries of the page at most")]
