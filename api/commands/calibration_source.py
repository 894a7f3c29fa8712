"""Where an export takes its numbers from: the service, or any JSON that holds them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from api.service_calls import ServiceCalls

if TYPE_CHECKING:
    from calib.calibration import Calibration

__all__ = [
    "SourceArgument",
    "SourceRevision",
    "calibration_of_document",
    "sts_of_source",
    "temperatures_shown",
]

SourceArgument = Annotated[
    str,
    typer.Argument(
        help="A drafter of the service, or a file: calibration.json, report.json, a revision, "
        "a polled answer or an STS file.",
        metavar="DRAFTER|FILE",
    ),
]
SourceRevision = Annotated[
    int | None, typer.Option(min=0, help="This revision of the drafter, not its champion.")
]

_STS = "application/vnd.sglang.dspark-sts+json"


def sts_of_source(
    source: str, gamma: int | None, revision: int | None, url: str, token: str | None
) -> bytes:
    """Temperatures of a drafter or of a file as SGLang's JSON, with where they come from.

    Args:
        source: a drafter of the service, or a file, see :func:`calibration_of_document`.
        gamma: block size of the engine; a longer calibration is cut to it, None leaves it.
        revision: of the drafter; None takes what the service serves.
        url: address of the service.
        token: for it.

    Raises:
        ConfigurationError: a revision of a file.
        OSError: no such file.
        ServiceProblemError: the service or the drafter cannot be reached.
    """
    from calib.errors import ConfigurationError

    if Path(source).is_file():
        if revision is not None:
            raise ConfigurationError("--revision", revision, "a file holds one revision")
        return _of_file(Path(source), gamma)
    if "/" in source or source.endswith(".json"):
        raise FileNotFoundError(2, "no such file", source)
    return _of_service(source, gamma, revision, url, token)


def _of_service(
    drafter: str, gamma: int | None, revision: int | None, url: str, token: str | None
) -> bytes:
    with ServiceCalls(url, token) as service:
        found, _ = service.drafter(drafter)
        own = int(found["key"]["gamma"])
        wanted = own if gamma is None else gamma
        place = f"/v1/drafters/{drafter}"
        if revision is None:
            answer = service.call(
                "GET",
                f"{place}/temperatures",
                parameters={"gamma": str(wanted)},
                headers={"Accept": _STS},
            )
            return answer.content
        document = service.call("GET", f"{place}/revisions/{revision}").json()
        return _of_document(document, wanted, drafter)


def _of_file(path: Path, gamma: int | None) -> bytes:
    from calib.canonical_json import parse_json_object

    return _of_document(parse_json_object(path.read_bytes(), str(path)), gamma, str(path))


def _of_document(document: dict[str, Any], gamma: int | None, source: str) -> bytes:
    from calib.formats.sglang_sts import sts_bytes

    calibration = calibration_of_document(document, source)
    own = calibration if gamma is None else calibration.prefix(gamma)
    provenance = {
        name: document[name]
        for name in ("drafter", "revision", "publication")
        if isinstance(document.get(name), str | int)
    }
    status = document.get("status")
    status = status if isinstance(status, str) else str(own.status)
    # A file without a revision of its own is told apart from identity, which is revision 0.
    provenance.setdefault("revision", 0 if set(own.temperatures) == {1.0} else -1)
    rows = document.get("num_samples", 0)
    return sts_bytes(
        own.temperatures,
        dataset=str(document.get("dataset") or document.get("drafter") or source),
        num_samples=rows if isinstance(rows, int) else 0,
        extra={"gamma": own.gamma, "status": status, **provenance},
    )


def calibration_of_document(document: dict[str, Any], source: str) -> Calibration:
    """The calibration in any JSON that this project or SGLang writes.

    Args:
        document: ``calibration.json``, a fit's ``report.json``, a revision or a polled answer of
            the service, or an STS file.
        source: where it comes from, for error messages.

    Raises:
        FormatError: none of these, or a fit that was refused.
        CalibrationValueError: numbers out of range.
    """
    from calib.calibration import Calibration
    from calib.canonical_json import canonical_json
    from calib.errors import FormatError
    from calib.formats.sglang_sts import parse_sts

    inner = document.get("calibration")
    if isinstance(inner, dict):
        if document.get("refusal"):
            remedy = "use a fit that was not refused"
            raise FormatError(source, f"refused: {document['refusal']}", remedy)
        return Calibration.from_json(canonical_json(inner))
    if str(document.get("format", "")).startswith("dspark-calib/calibration"):
        return Calibration.from_json(canonical_json(document))
    temperatures = parse_sts(canonical_json(document), source=source).temperatures
    return Calibration.from_temperatures(temperatures, gamma=len(temperatures))


def temperatures_shown(temperatures: Sequence[float]) -> str:
    """The numbers of an exported file, in words where they change nothing."""
    numbers = ", ".join(f"{value:g}" for value in temperatures)
    if any(value != 1.0 for value in temperatures):
        return numbers
    return (
        f"{numbers}. That is raw confidence: the file changes nothing. Slopes and intercepts, "
        "where there are any, do not fit into it"
    )
