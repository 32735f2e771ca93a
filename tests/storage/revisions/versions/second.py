"""Two tables, and a point to die at between them."""

import sqlalchemy as sa
from alembic import op

from correlator.core.faults import point

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    point("test.migrate.begin")
    op.create_table("one", sa.Column("id", sa.Integer, primary_key=True))
    point("test.migrate.between")
    op.create_table("two", sa.Column("id", sa.Integer, primary_key=True))
    point("test.migrate.end")
