"""The MLflow mirror as a process of its own: only it loads MLflow, only it waits for the server.

The worker starts it and ends it. It may be killed at any moment: what it was telling is told again.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import sys
import threading
import uuid
import warnings
from typing import TYPE_CHECKING, Final

from api.logs import configure_logs
from api.settings import Settings
from api.worker_supervisor import WorkerSupervisor
from calib.errors import ConfigurationError
from monitoring.mlflow_mirror.names import AliasNames
from monitoring.mlflow_mirror.tracking_place import TrackingPlace, bound_calls, is_installed
from monitoring.store.database import Database
from monitoring.store.errors import StoreError

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from monitoring.mlflow_mirror.mirror import Teller

__all__ = ["main", "start_mirror"]

_log = logging.getLogger(__name__)

_NICENESS: Final = 2  # beside the worker, which is nice itself: nobody waits for a mirror
_OVERRUN_CODE: Final = 75  # try again, as sysexits.h has it


def start_mirror(settings: Settings, database: Database) -> WorkerSupervisor | None:
    """Start the mirror beside this process; None where nothing is to be mirrored.

    Switches the writing of outbox entries on or off with it, so that they do not pile up where
    nobody will ever read them. On again, all revisions are made up for.

    Args:
        settings: of the service.
        database: migrated.
    """
    place = _place(settings)
    try:
        changed = database.run(lambda connection: _switch(connection, place is not None))
    except StoreError as error:
        _log.warning("the database failed: %s", error)
        changed = False
    if place is None:
        if changed:
            _log.info("nothing is mirrored to MLflow from now on")
        return None
    _log.info("mirroring to %s", place.shown)
    supervisor = WorkerSupervisor(settings, module="api.tracking_process", name="mirror")
    supervisor.start()
    return supervisor


def main() -> None:
    """Read settings from standard input and mirror until it ends, or on SIGTERM."""
    os.nice(_NICENESS)
    settings = Settings(**json.loads(sys.stdin.buffer.readline()))
    configure_logs(settings.log_level, settings.log_format)
    threading.Thread(target=_leave_with_parent, name="parent", daemon=True).start()
    place = _place(settings)
    if place is not None:
        bound_calls(settings.tracking_timeout_seconds)
        warnings.simplefilter("ignore")  # MLflow's and its libraries' own, for their authors
        _mirror(settings, place)


def _mirror(settings: Settings, place: TrackingPlace) -> None:
    from monitoring.mlflow_mirror.mirror import Mirror

    database = Database.open(settings.database_url)

    def connect() -> Teller:
        # Here: an outbox without entries costs neither the memory nor the start of MLflow.
        from monitoring.mlflow_mirror.delivery import Delivery
        from monitoring.mlflow_mirror.tracking_server import TrackingServer

        aliases = AliasNames.from_text(settings.tracking_aliases)
        return Delivery(database, TrackingServer(place), aliases)

    owner = f"mirror-{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    Mirror(database, connect, owner, on_overrun=_overrun).run(threading.Event())


def _place(settings: Settings) -> TrackingPlace | None:
    if not is_installed():
        _log.info("MLflow is not installed: nothing is mirrored")
        return None
    try:
        return settings.tracking_place()
    except ConfigurationError as error:
        _log.error("nothing is mirrored: %s", error)
        return None


def _switch(connection: Connection, on: bool) -> bool:
    from monitoring.store.tracking_outbox import set_enabled

    return set_enabled(connection, on)


def _leave_with_parent() -> None:
    # Not sys.stdin: a thread inside its lock would stand in the way of the interpreter's end.
    while os.read(0, 4096):
        pass
    os._exit(0)


def _overrun() -> None:
    _log.error("the tracking server took longer than the lease of an entry; starting afresh")
    logging.shutdown()
    os._exit(_OVERRUN_CODE)


if __name__ == "__main__":
    main()
