"""The database of the service: one repository a module, SQLite or PostgreSQL underneath.

Every repository is a module of functions that take an open connection, so that several of them can
share one transaction. Transactions come from :class:`monitoring.store.database.Database`.
"""
