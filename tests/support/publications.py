"""Drafters and publications put into a database directly, as other processes would."""

from __future__ import annotations

from collections.abc import Sequence

from calib.calibration import Calibration
from calib.calibration_key import CalibrationKey
from monitoring.published_document import document_maker
from monitoring.store import drafters, publications, revisions
from monitoring.store.database import Database
from monitoring.store.publications import Publication
from tests.support.service import KEY

__all__ = ["publish", "register"]


def register(database: Database, name: str = "drafter", *, gamma: int = 7) -> None:
    """Register a drafter."""
    key = CalibrationKey.from_dict({**KEY, "gamma": gamma})
    with database.write() as connection:
        drafters.register(connection, name, key, actor="test", document=document_maker())


def publish(
    database: Database, temperatures: Sequence[float], name: str = "drafter"
) -> Publication:
    """Store temperatures and promote them in one transaction."""
    with database.write() as connection:
        drafter = drafters.get(connection, name)
        calibration = Calibration.from_temperatures(
            temperatures, gamma=drafter.gamma, key=drafter.key
        )
        stored = revisions.add_revision(connection, name, calibration, provenance={}, actor="test")
        return publications.publish(
            connection,
            name,
            stored.number,
            expected_version=None,
            actor="test",
            reason="test",
            document=document_maker(),
        )
