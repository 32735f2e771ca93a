"""The second schema, as shipped."""

import importlib

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    importlib.import_module("correlator.storage.migrations.versions.0002_suspects").upgrade()
