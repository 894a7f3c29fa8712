"""``dspark-calib replay``: recorded telemetry through the whole closed loop.

In memory and at once, or with ``--into`` into a running service, as engines would send it.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from api.replay_stream import StreamOptions
from api.service_calls import service_exit_codes

if TYPE_CHECKING:
    from monitoring.loop_settings import LoopSettings
    from monitoring.replay import ReplayResult
    from monitoring.replay_errors import Interval, ServedChange
    from monitoring.replay_shifts import Stream

__all__ = ["LoopOptions", "replay", "run_replay", "send_replay"]


@dataclasses.dataclass(frozen=True)
class LoopOptions:
    """How the loop in memory works and is shown; a service has settings of its own for it.

    Attributes:
        batch_rows: rows of a fold.
        act_threshold: A of the act level in rows; None for the usual.
        method: of the loop's fits.
        refit_rows: rows after which an unasked refit is due.
        as_json: whether the result is printed as JSON instead of tables.
    """

    batch_rows: int = 256
    act_threshold: float | None = None
    method: str = "auto"
    refit_rows: int = 20_000
    as_json: bool = False

    def settings(self) -> LoopSettings:
        """Settings of the loop.

        Raises:
            ConfigurationError: a method or threshold that there is not.
        """
        from monitoring.detectors.levels import ACT_THRESHOLD
        from monitoring.loop_settings import LoopSettings
        from monitoring.recalibration_options import RecalibrationOptions

        chosen = RecalibrationOptions.from_mapping({"method": self.method}).method
        return LoopSettings(
            act_threshold=ACT_THRESHOLD if self.act_threshold is None else self.act_threshold,
            fit_method=chosen,
            early_fit_method="survival" if chosen == "auto" else chosen,
            refit_rows=self.refit_rows,
            refit_seconds=0.0,
        )

    def refuse_changes(self) -> None:
        """Refuse what a service would not heed.

        Raises:
            ConfigurationError: naming the first option that is not at its default.
        """
        from calib.errors import ConfigurationError

        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value != field.default:
                remedy = "leave it out with --into: the service has settings of its own"
                raise ConfigurationError(field.name, value, remedy)


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
        int | None,
        typer.Option(min=1, help="Block size; needed for .pt shards, checked against the others."),
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
    ] = StreamOptions.baseline_rows,
    batch_rows: Annotated[
        int, typer.Option(min=1, help="Rows of a fold.")
    ] = LoopOptions.batch_rows,
    act_threshold: Annotated[
        float | None, typer.Option(help="A of the act level: mean rows to a false alarm.")
    ] = LoopOptions.act_threshold,
    method: Annotated[str, typer.Option(help="Method of the loop's fits.")] = LoopOptions.method,
    refit_rows: Annotated[
        int, typer.Option(min=1, help="Rows after which an unasked refit is due.")
    ] = LoopOptions.refit_rows,
    seed: Annotated[
        int, typer.Option(help="Shuffles the requests before they are played; 0 leaves them.")
    ] = 0,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the result as JSON instead of tables.")
    ] = LoopOptions.as_json,
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
    with service_exit_codes():
        stream = StreamOptions(
            telemetry=tuple(telemetry or [_shipped()]),
            gamma=gamma,
            order=order,
            swap=swap,
            announced=announced,
            scale_logits=scale_logits,
            baseline_rows=baseline_rows,
            seed=seed,
        )
        loop = LoopOptions(batch_rows, act_threshold, method, refit_rows, as_json)
        if into is None:
            run_replay(stream, loop)
        else:
            loop.refuse_changes()
            send_replay(stream, into, drafter, rate, token)


def run_replay(stream_options: StreamOptions, loop_options: LoopOptions) -> None:
    """Read, build the stream, replay and print.

    Raises:
        CalibrationError: bad input, typed.
        OSError: a file that cannot be read.
    """
    # Here, not above: --help must not wait for NumPy and SciPy.
    from rich.console import Console

    from monitoring.replay import Replay, ReplayOptions
    from monitoring.replay_errors import served_changes

    settings = loop_options.settings()
    with Console(stderr=True).status("reading telemetry") as progress:
        stream = stream_options.read()
        progress.update(f"replaying {len(stream.records):,} rows")
        options = ReplayOptions(
            batch_rows=loop_options.batch_rows, baseline_rows=stream_options.baseline_rows
        )
        result = Replay(stream.records, stream.stretches, settings=settings, options=options).run()
        progress.update("judging what was served")
        changes = served_changes(stream.records, result)
    if loop_options.as_json:
        _print_json(stream, result, changes, settings.to_dict())
    else:
        _print_tables(stream, result, changes)


def send_replay(
    options: StreamOptions, into: str, drafter: str | None, rate: float, token: str | None
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

    if options.announced:
        remedy = "a new key is a new drafter: replay the other recording by itself"
        raise ConfigurationError("announced", True, remedy)
    stream = options.read()
    # Polls that end because everything ends are no news here.
    logging.getLogger("dspark_calib_client").setLevel(logging.ERROR)
    with ServiceCalls(into, token) as service:
        LiveReplay(
            service,
            into.rstrip("/"),
            stream,
            drafter or drafter_for(options.telemetry),
            key_for(options.telemetry, stream.records.gamma),
            options.baseline_rows,
            rate,
            Teller(),
            token,
        ).run()


def _shipped() -> str:
    from calib.shipped import shipped_telemetry

    return str(shipped_telemetry())


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
            "row",
            "from",
            "to",
            "judged",
            "on",
            "ECE before",
            "ECE after",
            "difference",
            box=None,
        )
        for change in changes:
            errors.add_row(
                f"{change.row:,}",
                f"revision {change.before}",
                f"revision {change.after}",
                "slopes" if change.form == "affine" else change.form,
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
