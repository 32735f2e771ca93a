"""The entry point of Alembic: runs the revisions on the connection that the store has already opened and locked."""

from alembic import context

from correlator.storage import migrate

context.configure(**migrate.settings(context.config.attributes["database"]))
context.run_migrations()
