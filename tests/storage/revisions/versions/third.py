"""A column with a value worked out from others."""

import sqlalchemy as sa
from alembic import op

from correlator.core.faults import point

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    op.add_column("state_log", sa.Column("doubled", sa.Integer))
    point("test.migrate.column")
    op.execute("UPDATE state_log SET doubled = number * 2")
    point("test.migrate.filled")
    op.drop_table("one")
