"""``dspark-calib import sglang``: collected shards and step records as telemetry."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from api.boundary import exit_codes
from api.commands.number_list import number_list

if TYPE_CHECKING:
    from calib.records import AcceptanceRecords

__all__ = ["import_sglang"]

_SHARDS = (".pt", ".pth")


class VerifyMode(StrEnum):
    """``SGLANG_RAGGED_VERIFY_MODE`` of the engine that collected shards."""

    CAP_ACCEPT = "cap-accept"
    COMPACT_ALL = "compact-all"
    COMPACT = "compact"


class Rule(StrEnum):
    """Rule that decided acceptance of every row."""

    REJECTION = "rejection"
    GREEDY = "greedy"
    BLOCK = "block"


def import_sglang(
    paths: Annotated[
        list[Path],
        typer.Argument(
            help="Shards (.pt) of SGLANG_DSPARK_STS_COLLECT_PATH, or JSON of GET /server_info.",
            metavar="PATH…",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Parquet file to write.")],
    gamma: Annotated[int, typer.Option(min=1, help="Block size the engine ran.")],
    mode: Annotated[
        VerifyMode | None,
        typer.Option(
            help="Shards only: how blocks were verified; compact-all is compact mode without an "
            "SPS table, which verifies everything."
        ),
    ] = None,
    temperatures: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Step records only: STS file the engine ran with.", exists=True
        ),
    ] = None,
    identity: Annotated[
        bool, typer.Option("--identity", help="Step records only: it ran without an STS file.")
    ] = False,
    stop_ids: Annotated[
        str, typer.Option(help="Step records only: tokens that end a text, such as 2,151645.")
    ] = "",
    acceptance_rule: Annotated[
        Rule | None, typer.Option(help="Step records only: one rule for all rows, if it was one.")
    ] = None,
    engine: Annotated[str, typer.Option(help="Name written into the rows.")] = "sglang",
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> None:
    """Read what SGLang recorded by itself, and write it as telemetry."""
    with exit_codes():
        from calib.errors import ConfigurationError
        from calib.formats.arrow import write_parquet

        shards = [path for path in paths if path.suffix in _SHARDS]
        if shards and len(shards) != len(paths):
            raise ConfigurationError("PATH", str(paths[0]), "give shards or JSON, not both at once")
        if shards:
            _refuse_given("--temperatures", temperatures, "shards hold raw logits")
            records, summary = _from_shards(shards, gamma, mode, engine)
        else:
            _refuse_given("--mode", mode, "step records state their mode")
            stops = number_list(int, "--stop-ids", stop_ids, "2,151645") if stop_ids else ()
            applied, revision = _applied(temperatures, identity, gamma)
            rule = None if acceptance_rule is None else acceptance_rule.value
            records, summary = _from_dumps(paths, gamma, applied, revision, stops, rule, engine)
        write_parquet(records, out)
        _say({"file": str(out), "rows": len(records), "gamma": gamma, **summary}, as_json)


def _from_shards(
    shards: list[Path], gamma: int, mode: VerifyMode | None, engine: str
) -> tuple[AcceptanceRecords, dict[str, Any]]:
    from calib.errors import ConfigurationError, FitRefusedError
    from calib.formats.sglang_shards import NOTE_ALL_VERIFIED, read_shards
    from calib.records import AcceptanceRecords

    read = read_shards(shards, gamma)
    unknown = NOTE_ALL_VERIFIED in read.notes
    if unknown and mode is None:
        remedy = "give cap-accept, compact-all or compact: shards do not say what was verified"
        raise ConfigurationError("--mode", None, remedy)
    if unknown and mode is VerifyMode.COMPACT:
        raise FitRefusedError(
            "trimmed_shards",
            "compact mode fills trimmed positions with zeros, and its collector then counts them "
            "as rejected; collect with cap-accept, or take step records",
        )
    rows = len(read.records)
    # The collector compares with the target's largest logit whatever the request sampled with.
    columns = read.records.columns() | {
        "acceptance_rule": ["greedy"] * rows,
        "engine": [engine] * rows,
        "propensity": [1.0 if unknown else None] * rows,
    }
    notes = [note for note in read.notes if note != NOTE_ALL_VERIFIED]
    summary = {"files": len(read.files), "notes": notes}
    return AcceptanceRecords.from_columns(gamma, columns), summary


def _from_dumps(
    paths: list[Path],
    gamma: int,
    applied: tuple[float, ...],
    revision: int,
    stops: tuple[int, ...],
    rule: str | None,
    engine: str,
) -> tuple[AcceptanceRecords, dict[str, Any]]:
    from calib.formats.sglang_info_record import read_info_records

    read = read_info_records(
        paths,
        gamma,
        applied,
        engine=engine,
        revision=revision,
        stop_ids=stops,
        acceptance_rule=rule,
    )
    return read.records, {
        "files": len(paths),
        "duplicates": read.duplicates,
        "after_stop": read.after_stop,
        "saturated_confidences": read.saturated,
        "notes": list(read.notes),
    }


def _applied(path: Path | None, identity: bool, gamma: int) -> tuple[tuple[float, ...], int]:
    """The temperatures that ran and their revision, as stated by the caller."""
    from calib.errors import ConfigurationError
    from calib.formats.sglang_sts import read_sts

    if (path is None) != identity:
        remedy = "confidences are recorded after the temperatures: give one of the two"
        raise ConfigurationError("--temperatures / --identity", path, remedy)
    if path is None:
        return (1.0,) * gamma, 0
    numbers = read_sts(path, gamma).temperatures
    found = json.loads(path.read_bytes()).get("revision")
    return numbers, found if isinstance(found, int) and not isinstance(found, bool) else -1


def _refuse_given(option: str, value: object, reason: str) -> None:
    from calib.errors import ConfigurationError

    if value is not None:
        raise ConfigurationError(option, str(value), f"leave it out: {reason}")


def _say(summary: dict[str, Any], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(summary, ensure_ascii=False))
        return
    for note in summary["notes"]:
        typer.echo(f"Note: {note}.")
    for name in ("duplicates", "after_stop", "saturated_confidences"):
        if summary.get(name):
            typer.echo(f"{name.replace('_', ' ')}: {summary[name]}")
    typer.echo(f"{summary['rows']} rows: {summary['file']}")
