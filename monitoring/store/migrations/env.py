"""Alembic's entry point: :mod:`monitoring.store.migrate` hands over the connection to use."""

from __future__ import annotations

from alembic import context

from monitoring.store.tables import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
with context.begin_transaction():
    context.run_migrations()
