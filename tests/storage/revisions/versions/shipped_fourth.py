"""The fourth schema, as shipped."""

import importlib

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    importlib.import_module("correlator.storage.migrations.versions.0004_progress_checked").upgrade()
