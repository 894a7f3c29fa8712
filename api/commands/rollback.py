"""``dspark-calib rollback``: serve the champion before this one again."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from api.commands.promote import published_sentence
from api.service_calls import (
    DEFAULT_URL,
    ServiceCalls,
    ServiceToken,
    ServiceUrl,
    service_exit_codes,
)

__all__ = ["rollback"]


def rollback(
    drafter: Annotated[str, typer.Argument(help="Name of the drafter.")],
    reason: Annotated[str | None, typer.Option(help="Why; kept in the audit log.")] = None,
    url: ServiceUrl = DEFAULT_URL,
    token: ServiceToken = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")] = False,
) -> None:
    """Publish the previous champion; the publication number grows all the same."""
    with service_exit_codes(), ServiceCalls(url, token) as service:
        _, etag = service.drafter(drafter)
        body = {} if reason is None else {"reason": reason}
        answer = service.change(f"/v1/drafters/{drafter}/rollback", etag, body)
        typer.echo(json.dumps(answer) if as_json else published_sentence(drafter, answer))
