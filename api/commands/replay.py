"""``dspark-calib replay``: recorded telemetry through the whole closed loop.

In memory and at once, or with ``--into`` into a running service, as engines would send it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from api.service_calls import service_exit_codes

if TYPE_CHECKING:
    from monitoring.replay import ReplayResult
    from monitoring.replay_errors import Interval, ServedChange
    from monitoring.replay_shifts import Stream

__all__ = ["replay", "run_replay", "send_replay"]

# What decides the stream; the rest is the loop's own affair, which a service has settings for.
_OF_A_STREAM = (
    *("telemetry", "gamma", "order", "swap", "announced"),
    *("scale_logits", "baseline_rows", "seed"),
)
_OF_THE_LOOP = ("batch_rows", "act_threshold", "method", "refit_rows", "as_json")


def replay(
    telemetry: Annotated[
        list[str] | None,
        typer.Argument(
            help="Parquet, Arrow or JSON-lines telemetry, or SGLang's .pt shards; the shipped "
            "telemetry when left out.",
            metavar="FILE…",
        ),
    ] = None,
    gamma: Annotated[
        int | None, typer.Option(min=1, help="Block size; needed for .pt shards and JSON lines.")
    ] = None,
    order: Annotated[
        str | None,
        typer.Option(
            help="Play one slice after another, as in domain=math,chat,code.",
            metavar="COLUMN=VALUE,…",
        ),
    ] = None,
    swap: Annotated[
        Path | None, typer.Option(help="Telemetry of another drafter that takes over at the end.")
    ] = None,
    announced: Annotated[
        bool,
        typer.Option(
            "--announced/--unannounced",
            help="Whether the swap comes with a new calibration key: a new baseline at identity.",
        ),
    ] = False,
    scale_logits: Annotated[
        str | None,
        typer.Option(help="Multiply logits from a row on (synthetic).", metavar="FACTOR@ROW"),
    ] = None,
    baseline_rows: Annotated[
        int,
        typer.Option(
            min=0, help="Fit a first champion on so many rows and promote it by hand; 0: none."
        ),
    ] = 4000,
    batch_rows: Annotated[int, typer.Option(min=1, help="Rows of a fold.")] = 256,
    act_threshold: Annotated[
        float | None, typer.Option(help="A of the act level: mean rows to a false alarm.")
    ] = None,
    method: Annotated[str, typer.Option(help="Method of the loop's fits.")] = "auto",
    refit_rows: Annotated[
        int, typer.Option(min=1, help="Rows after which an unasked refit is due.")
    ] = 20_000,
    seed: Annotated[
        int, typer.Option(help="Shuffles the requests before they are played; 0 leaves them.")
    ] = 0,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the result as JSON instead of tables.")
    ] = False,
    into: Annotated[
        str | None,
        typer.Option(
            help="Send the rows to the service at this address instead, as engines would, and "
            "tell what it makes of them.",
            metavar="URL",
        ),
    ] = None,
    drafter: Annotated[
        str | None,
        typer.Option(
            help="With --into: register or go on with this drafter, not a name of its own."
        ),
    ] = None,
    rate: Annotated[
        float, typer.Option(min=1.0, max=100_000.0, help="With --into: rows a second.")
    ] = 500.0,
    token: Annotated[
        str | None,
        typer.Option(
            envvar="DSPARK_CALIB_TOKEN",
            show_envvar=True,
            help="With --into: a token with the scopes operate, read:temperatures and "
            "write:telemetry.",
        ),
    ] = None,
) -> None:
    """Stream recorded telemetry through the whole loop and print what happened when."""
    options = dict(locals())
    target = {name: options.pop(name) for name in ("into", "drafter", "rate", "token")}
    with service_exit_codes():
        options["telemetry"] = telemetry or [_shipped()]
        if into is None:
            run_replay(**options)
        else:
            _leave_the_loop_alone(options)
            send_replay(**{name: options[name] for name in _OF_A_STREAM}, **target)


def run_replay(
    telemetry: list[str],
    gamma: int | None,
    order: str | None,
    swap: Path | None,
    announced: bool,
    scale_logits: str | None,
    baseline_rows: int,
    batch_rows: int,
    act_threshold: float | None,
    method: str,
    refit_rows: int,
    seed: int,
    as_json: bool,
) -> None:
    """Read, build the stream, replay and print; arguments are those of the command.

    Raises:
        CalibrationError: bad input, typed.
        OSError: a file that cannot be read.
    """
    # Here, not above: --help must not wait for NumPy and SciPy.
    from rich.console import Console

    from monitoring.detectors.levels import ACT_THRESHOLD
    from monitoring.loop_settings import LoopSettings
    from monitoring.recalibration_options import RecalibrationOptions
    from monitoring.replay import Replay, ReplayOptions
    from monitoring.replay_errors import served_changes

    chosen = RecalibrationOptions.from_mapping({"method": method}).method
    settings = LoopSettings(
        act_threshold=ACT_THRESHOLD if act_threshold is None else act_threshold,
        fit_method=chosen,
        early_fit_method="survival" if chosen == "auto" else chosen,
        refit_rows=refit_rows,
        refit_seconds=0.0,
    )
    with Console(stderr=True).status("reading telemetry") as progress:
        stream = _stream(telemetry, gamma, order, swap, announced, scale_logits, seed)
        progress.update(f"replaying {len(stream.records):,} rows")
        options = ReplayOptions(batch_rows=batch_rows, baseline_rows=baseline_rows)
        result = Replay(stream.records, stream.stretches, settings=settings, options=options).run()
        progress.update("judging what was served")
        changes = served_changes(stream.records, result)
    if as_json:
        _print_json(stream, result, changes, settings.to_dict())
    else:
        _print_tables(stream, result, changes)


def send_replay(
    telemetry: list[str],
    gamma: int | None,
    order: str | None,
    swap: Path | None,
    announced: bool,
    scale_logits: str | None,
    baseline_rows: int,
    seed: int,
    into: str,
    drafter: str | None,
    rate: float,
    token: str | None,
) -> None:
    """Send the stream to a service and follow it; arguments are those of the command.

    Raises:
        CalibrationError: bad input, typed, or a service that refuses.
        OSError: a file that cannot be read.
    """
    import logging

    from api.service_calls import ServiceCalls
    from api.service_demo.live_replay import LiveReplay, drafter_for, key_for
    from api.service_demo.teller import Teller
    from calib.errors import ConfigurationError

    if announced:
        remedy = "a new key is a new drafter: replay the other recording by itself"
        raise ConfigurationError("announced", True, remedy)
    stream = _stream(telemetry, gamma, order, swap, announced, scale_logits, seed)
    # Polls that end because everything ends are no news here.
    logging.getLogger("dspark_calib_client").setLevel(logging.ERROR)
    with ServiceCalls(into, token) as service:
        LiveReplay(
            service,
            into.rstrip("/"),
            stream,
            drafter or drafter_for(telemetry),
            key_for(telemetry, stream.records.gamma),
            baseline_rows,
            rate,
            Teller(),
            token,
        ).run()


def _leave_the_loop_alone(options: dict[str, Any]) -> None:
    from inspect import signature

    from calib.errors import ConfigurationError

    usual = signature(replay).parameters
    for name in _OF_THE_LOOP:
        if options[name] != usual[name].default:
            remedy = "leave it out with --into: the service has settings of its own"
            raise ConfigurationError(name, options[name], remedy)


def _shipped() -> str:
    from calib.shipped import shipped_telemetry

    return str(shipped_telemetry())


def _stream(
    telemetry: list[str],
    gamma: int | None,
    order: str | None,
    swap: Path | None,
    announced: bool,
    scale_logits: str | None,
    seed: int,
) -> Stream:
    from api.telemetry_input import read_telemetry
    from calib.errors import ConfigurationError
    from monitoring.replay_shifts import Stream, shuffled

    records = read_telemetry(telemetry, gamma).records
    stream = Stream.of(shuffled(records, seed) if seed else records)
    if order is not None:
        column, equals, values = order.partition("=")
        if not equals or not values:
            raise ConfigurationError("order", order, "give COLUMN=VALUE,VALUE")
        stream = stream.ordered(column.strip(), [value.strip() for value in values.split(",")])
    if swap is not None:
        other = read_telemetry([str(swap)], records.gamma).records
        stream = stream.then(other, f"swap to {swap.name}", announced=announced)
    if scale_logits is not None:
        factor, at, row = scale_logits.partition("@")
        try:
            stream = stream.scaled(float(factor), int(row) if at else len(stream.records) // 2)
        except ValueError as error:
            raise ConfigurationError("scale_logits", scale_logits, "give FACTOR@ROW") from error
    return stream


def _print_json(
    stream: Stream,
    result: ReplayResult,
    changes: tuple[ServedChange, ...],
    settings: dict[str, Any],
) -> None:
    import json

    from monitoring.replay_report import replay_document

    document = replay_document(stream, result, changes, settings)
    typer.echo(json.dumps(document, allow_nan=False, ensure_ascii=False))


def _print_tables(stream: Stream, result: ReplayResult, changes: tuple[ServedChange, ...]) -> None:
    from rich.table import Table

    from api.output import console

    screen = console()
    for note in stream.synthetic:
        screen.print(f"Synthetic: {note}.", highlight=False)
    table = Table("row", "phase", "what", "", box=None)
    for happening in result.happenings:
        table.add_row(
            f"{happening.row:,}",
            happening.stretch,
            happening.kind.replace("_", " "),
            happening.text,
        )
    screen.print(table)
    if changes:
        errors = Table(
            "row", "from", "to", "judged on", "ECE before", "ECE after", "difference", box=None
        )
        for change in changes:
            errors.add_row(
                f"{change.row:,}",
                f"revision {change.before}",
                f"revision {change.after}",
                f"{change.rows:,} rows",
                *(
                    _shown(each)
                    for each in (change.ece_before, change.ece_after, change.difference)
                ),
            )
        screen.print()
        screen.print("Survival ECE, mean over positions, on the rows after each change:")
        screen.print(errors)
    pace = result.rows / result.seconds if result.seconds else 0.0
    screen.print(
        f"{result.rows:,} rows in {result.seconds:.1f} s ({pace:,.0f} rows a second; the folds "
        f"alone took {result.fold_seconds:.1f} CPU seconds).",
        highlight=False,
    )


def _shown(interval: Interval) -> str:
    if interval.value is None:
        return "no rows"
    value = f"{100 * interval.value:.2f} %"
    if interval.low is None or interval.high is None:
        return value
    return f"{value} [{100 * interval.low:.2f}, {100 * interval.high:.2f}]"
