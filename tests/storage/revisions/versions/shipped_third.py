"""The third schema, as shipped."""

import importlib

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    importlib.import_module("correlator.storage.migrations.versions.0003_suspects_checked").upgrade()
