"""The first schema, as shipped."""

import importlib

revision = "0001"
down_revision = None


def upgrade() -> None:
    importlib.import_module("correlator.storage.migrations.versions.0001_first").upgrade()
