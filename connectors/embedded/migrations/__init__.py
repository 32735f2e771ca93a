"""The revisions of the schema of the embedded broker, run by Alembic."""
