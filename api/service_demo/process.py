"""The demo's process: ``python -m api.service_demo.process``, a child of the service it shows."""

from __future__ import annotations

import logging
import os
import signal
import threading
from types import FrameType
from typing import Annotated, NoReturn

import typer

from api.boundary import exit_codes
from api.service_calls import ServiceCalls, ServiceToken
from api.service_demo.replay import shipped_key
from api.service_demo.story import Story
from calib.shipped import shipped_telemetry

__all__ = ["main", "run"]


def run(
    url: Annotated[str, typer.Option(help="Address of the service.")],
    database: Annotated[str, typer.Option(help="Where it keeps things, in words.")],
    then_exits: Annotated[
        bool, typer.Option("--then-exits", help="Leave after the story.")
    ] = False,
    tracking: Annotated[
        str | None, typer.Option(help="What shows the mirrored runs, in words.")
    ] = None,
    token: ServiceToken = None,
) -> None:
    """Tell the story to a running service."""
    stop = threading.Event()
    _leave_on_signals(stop)
    # Polls that end because everything ends are no news here.
    logging.getLogger("dspark_calib_client").setLevel(logging.ERROR)
    threading.Thread(target=_leave_with_parent, args=(stop,), daemon=True).start()
    with exit_codes(), ServiceCalls(url, token) as service:
        story = Story(
            service,
            url,
            database,
            telemetry=shipped_telemetry(),
            key=shipped_key(),
            token=token,
            tracking=tracking,
        )
        try:
            story.tell()
            if not then_exits:
                story.keep_polling(stop)
        finally:
            story.close()


def main() -> None:
    """Entry point of the child process of ``serve --demo``."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(run)
    app()


def _leave_on_signals(stop: threading.Event) -> None:
    def leave(number: int, frame: FrameType | None) -> NoReturn:
        stop.set()
        raise SystemExit(0)

    signal.signal(signal.SIGTERM, leave)
    signal.signal(signal.SIGINT, leave)


def _leave_with_parent(stop: threading.Event) -> None:
    """End when the service that started this process is gone, however it went."""
    # Not sys.stdin: a thread inside its lock would stand in the way of the interpreter's end.
    while os.read(0, 4096):
        pass
    if not stop.is_set():
        os.kill(os.getpid(), signal.SIGTERM)  # a thread cannot raise it for the main one


if __name__ == "__main__":
    main()
