"""Alembic's entry: runs the revisions on the connection of the process that opens the broker."""

from alembic import context

from connectors.embedded import schema

context.configure(**schema.settings(context.config.attributes["connection"]))
context.run_migrations()
