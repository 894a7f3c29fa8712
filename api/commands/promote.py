"""``dspark-calib promote``: make a revision the champion of a running service."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from api.service_calls import (
    DEFAULT_URL,
    ServiceCalls,
    ServiceToken,
    ServiceUrl,
    service_exit_codes,
)
from calib.errors import ConfigurationError

__all__ = ["promote"]


def promote(
    drafter: Annotated[str, typer.Argument(help="Name of the drafter.")],
    revision: Annotated[
        int | None,
        typer.Argument(min=0, help="Number of the revision; the challenger when left out."),
    ] = None,
    reason: Annotated[str | None, typer.Option(help="Why; kept in the audit log.")] = None,
    url: ServiceUrl = DEFAULT_URL,
    token: ServiceToken = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")] = False,
) -> None:
    """Publish a revision: engines get it with their next poll."""
    with service_exit_codes(), ServiceCalls(url, token) as service:
        state, etag = service.drafter(drafter)
        chosen = state["aliases"]["challenger"] if revision is None else revision
        if chosen is None:
            raise ConfigurationError(
                "revision", None, f"{drafter} has no challenger: name the revision to publish"
            )
        path = f"/v1/drafters/{drafter}/revisions/{chosen}/promote"
        answer = service.change(path, etag, _body(reason))
        typer.echo(json.dumps(answer) if as_json else published_sentence(drafter, answer))


def published_sentence(drafter: str, answer: dict[str, Any]) -> str:
    """What a promotion or rollback has done, in words."""
    return (
        f"Revision {answer['revision']} of {drafter} is served as publication "
        f"{answer['publication']}; before it was revision {answer['replaced']}."
    )


def _body(reason: str | None) -> dict[str, Any]:
    return {} if reason is None else {"reason": reason}
