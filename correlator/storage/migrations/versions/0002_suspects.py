"""Adds the table of the messages that a start is handling, so that a message that ends the process is found."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Add the table of the messages that a start is about to handle."""
    op.create_table(
        "suspect",
        sa.Column("context", sa.Text, primary_key=True),
        sa.Column("receiver", sa.Text, primary_key=True),
        sa.Column("first", NUMBER, primary_key=True, autoincrement=False),
        sa.Column("last", NUMBER, primary_key=True, autoincrement=False),
        sa.Column("deaths", NUMBER, nullable=False),
    )
