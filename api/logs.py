"""Structured logs: one JSON object, or one readable line, per event, on standard error.

What other libraries log through the standard library takes the same way. Nothing logs bodies,
tokens or addresses with passwords.
"""

from __future__ import annotations

import logging
import sys
from typing import Any

import structlog

__all__ = ["configure_logs"]

_QUIET = {"uvicorn.access": logging.CRITICAL, "alembic": logging.WARNING}


def configure_logs(level: str, form: str) -> None:
    """Set up structlog and the standard library's logging for this process.

    Args:
        level: least severity: ``debug``, ``info``, ``warning`` or ``error``.
        form: ``json`` for collectors, ``console`` for people.
    """
    number = logging.getLevelNamesMapping()[level.upper()]
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    structlog.configure(
        processors=[
            *shared,
            structlog.stdlib.PositionalArgumentsFormatter(),
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                *_renderers(form),
            ],
        )
    )
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(number)
    for name, least in _QUIET.items():
        logging.getLogger(name).setLevel(max(number, least))


def _renderers(form: str) -> list[Any]:
    if form == "json":
        return [
            structlog.processors.format_exc_info,  # as text: other forms show local variables
            structlog.processors.JSONRenderer(),
        ]
    plain = structlog.dev.plain_traceback
    return [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=plain)]
