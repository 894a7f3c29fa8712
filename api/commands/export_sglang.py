"""``dspark-calib export sglang``: the file of ``--speculative-dspark-confidence-sts-path``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from api.service_calls import (
    DEFAULT_URL,
    ServiceCalls,
    ServiceToken,
    ServiceUrl,
    service_exit_codes,
)

if TYPE_CHECKING:
    from calib.calibration import Calibration

__all__ = ["calibration_of_document", "export_sglang"]

_STS = "application/vnd.sglang.dspark-sts+json"


def export_sglang(
    source: Annotated[
        str,
        typer.Argument(
            help="A drafter of the service, or a file: calibration.json, report.json, a revision, "
            "a polled answer or an STS file.",
            metavar="DRAFTER|FILE",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="File to write, in one step.")],
    gamma: Annotated[
        int | None,
        typer.Option(min=1, help="Block size of the engine; a longer calibration is cut to it."),
    ] = None,
    revision: Annotated[
        int | None, typer.Option(min=0, help="This revision of the drafter, not its champion.")
    ] = None,
    identity: Annotated[
        bool, typer.Option("--identity", help="Ones only, as the plugin and collecting need.")
    ] = False,
    url: ServiceUrl = DEFAULT_URL,
    token: ServiceToken = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was written.")] = False,
) -> None:
    """Write temperatures as the JSON that SGLang loads at its start."""
    with service_exit_codes():
        from calib.atomic_files import write_bytes_atomically
        from calib.errors import ConfigurationError
        from calib.formats.sglang_sts import parse_sts, sts_bytes

        if Path(source).is_file():
            if revision is not None:
                raise ConfigurationError("--revision", revision, "a file holds one revision")
            data = _of_file(Path(source), gamma)
        else:
            if "/" in source or source.endswith(".json"):
                raise FileNotFoundError(2, "no such file", source)
            data = _of_service(source, gamma, revision, url, token)
        if identity:
            count = len(parse_sts(data, gamma, source=source).temperatures)
            data = sts_bytes([1.0] * count, dataset=source, extra={"revision": 0})
        # Read back as the engine will, before its file is touched.
        written = parse_sts(data, gamma, source=source)
        write_bytes_atomically(out, data.rstrip(b"\n") + b"\n")
        numbers = ", ".join(f"{value:g}" for value in written.temperatures)
        said = {"file": str(out), "temperatures": list(written.temperatures)}
        line = f"{out}: gamma {len(written.temperatures)}, temperatures {numbers}"
        typer.echo(json.dumps(said) if as_json else line)


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
