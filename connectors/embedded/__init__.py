"""The embedded broker: a message service over SQLite or PostgreSQL that needs no server of its own."""

from connectors.embedded.connection import EmbeddedConnection

__all__ = ["EmbeddedConnection"]
