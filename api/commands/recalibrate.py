"""``dspark-calib recalibrate``: order a recalibration from a running service and wait for it."""

from __future__ import annotations

import json
import time
from enum import StrEnum
from typing import Annotated, Any, Final

import typer

from api.boundary import REFUSED
from api.service_calls import (
    DEFAULT_URL,
    ServiceCalls,
    ServiceToken,
    ServiceUrl,
    service_exit_codes,
)
from calib.errors import CalibrationError

__all__ = ["Method", "Promotion", "Source", "recalibrate", "result_lines"]

_PAUSES: Final = (0.1, 0.2, 0.5, 1.0, 2.0)  # seconds between looks, the last one from then on


class Method(StrEnum):
    """How served numbers are fitted."""

    AUTO = "auto"
    STS = "sts"
    TEMPERATURE = "temperature"
    AFFINE = "affine"
    SURVIVAL = "survival"
    SEGMENTS = "segments"


class Promotion(StrEnum):
    """What may publish the result."""

    GATE = "gate"
    GUARD = "guard"
    NEVER = "never"


class Source(StrEnum):
    """What is fitted on."""

    ROWS = "rows"
    SKETCHES = "sketches"


def recalibrate(
    drafter: Annotated[str, typer.Argument(help="Name of the drafter.")],
    method: Annotated[
        Method, typer.Option(help="How numbers are fitted; auto takes the best on held-out rows.")
    ] = Method.AUTO,
    rows: Annotated[int | None, typer.Option(min=1, help="Newest rows to fit on.")] = None,
    from_batch: Annotated[
        int | None, typer.Option(min=0, help="Oldest telemetry batch to read.")
    ] = None,
    through_batch: Annotated[
        int | None, typer.Option(min=0, help="Newest telemetry batch to read.")
    ] = None,
    minimum_rows: Annotated[
        int | None, typer.Option(min=1, help="Rows a position needs to be published.")
    ] = None,
    reason: Annotated[str | None, typer.Option(help="Why; kept with the revision.")] = None,
    promote: Annotated[
        Promotion, typer.Option(help="What may publish the result.")
    ] = Promotion.GATE,
    source: Annotated[
        Source, typer.Option(help="Stored rows, or what the closed loop has counted by hour.")
    ] = Source.ROWS,
    hours: Annotated[
        int | None, typer.Option(min=1, help="Hours of sketches, back from the newest row.")
    ] = None,
    half_life_hours: Annotated[
        float | None, typer.Option(help="Age at which a sketched row counts half.")
    ] = None,
    wait: Annotated[
        float, typer.Option(min=0.0, help="Seconds to wait for the result; 0 does not wait.")
    ] = 600.0,
    url: ServiceUrl = DEFAULT_URL,
    token: ServiceToken = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the job as JSON.")] = False,
) -> None:
    """Fit on stored telemetry and make the result the challenger; exit code 1 where refused."""
    chosen = {"method": method, "promote": promote, "source": source}
    asked: dict[str, Any] = {name: word.value for name, word in chosen.items()}
    window = {"from_batch": from_batch, "through_batch": through_batch}
    optional = {
        "rows": rows,
        "minimum_rows": minimum_rows,
        "reason": reason,
        "hours": hours,
        "half_life_hours": half_life_hours,
        "window": {name: value for name, value in window.items() if value is not None} or None,
    }
    asked |= {name: value for name, value in optional.items() if value is not None}
    with service_exit_codes(), ServiceCalls(url, token) as service:
        answer = service.call("POST", f"/v1/drafters/{drafter}/recalibrations", body=asked)
        job = answer.json()
        if wait > 0.0:
            job = _finished(service, answer.headers["Location"], wait)
        if as_json:
            typer.echo(json.dumps(job))
        else:
            for line in result_lines(job):
                typer.echo(line)
        if job["status"] in ("refused", "failed"):
            raise typer.Exit(REFUSED)


def _finished(service: ServiceCalls, location: str, wait: float) -> dict[str, Any]:
    """The job once it is over.

    Raises:
        CalibrationError: it is not over in time.
    """
    ends = time.monotonic() + wait
    look = 0
    while True:
        job: dict[str, Any] = service.call("GET", location).json()
        if job["status"] not in ("queued", "running"):
            return job
        pause = _PAUSES[min(look, len(_PAUSES) - 1)]
        if time.monotonic() + pause > ends:
            state = f"job {job['id']} is {job['status']} after {wait:g} seconds"
            raise CalibrationError(f"{state}; look again at {location}")
        time.sleep(pause)
        look += 1


def result_lines(job: dict[str, Any]) -> list[str]:
    """What came of the job, in words."""
    if job["status"] in ("queued", "running"):
        return [f"Job {job['id']} of {job['drafter']} is {job['status']}."]
    if job["status"] == "failed":
        return [f"Failed: {(job['error'] or {}).get('reason', 'see the log of the worker')}"]
    result = job["result"]
    lines = list(result["summary"])
    if job["status"] == "refused":
        return [*lines, f"Refused ({result['refusal']}): {result['reason']}."]
    lines.append(f"Method {result['method']}: {result['reason']}.")
    if result.get("publication") is not None:
        return [*lines, f"Revision {result['revision']} is served: {result['publication']}."]
    return [*lines, f"Revision {result['revision']} is the challenger."]
