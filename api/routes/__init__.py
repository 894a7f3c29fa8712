"""The calls of the service, one module per subject, in the order in which paths are tried."""

from __future__ import annotations

from importlib import import_module

from fastapi import APIRouter

__all__ = ["ROUTE_MODULES", "routers"]

ROUTE_MODULES = (
    "telemetry",
    "drafters",
    "revisions",
    "recalibrations",
    "reports",
    "drift",
    "engines",
    "events",
    "silences",
    "cost_tables",
    "health",
    "metrics",
    "problem_pages",
)
"""Modules of this package with a ``router``; ``temperatures`` adds itself in front."""


def routers() -> list[APIRouter]:
    """The routers, loaded now; the dashboard's last, beside the API's paths."""
    modules = [*(f"{__name__}.{name}" for name in ROUTE_MODULES), "api.dashboard.router"]
    return [import_module(name).router for name in modules]
