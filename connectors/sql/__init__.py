"""Tables of a user's database as destinations: each message changes a row, once, in SQLite, PostgreSQL or MySQL."""

from connectors.sql.connection import SqlConnection

__all__ = ["SqlConnection"]
