"""The tables of the versions that had no revisions."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Make the tables of the versions that had no revisions, in an empty database."""
    op.create_table("broker_schema", sa.Column("version", sa.Integer, primary_key=True, autoincrement=False))
    op.create_table(
        "broker_destination",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("name", sa.Text, nullable=False, unique=True),
        sa.Column("last_number", sa.BigInteger, nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "broker_subscription",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("destination", sa.Integer, sa.ForeignKey("broker_destination.id"), nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.UniqueConstraint("destination", "name"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "broker_message",
        sa.Column("subscription", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("consumer", sa.Integer, nullable=False),
        sa.Column("claim", sa.BigInteger, nullable=False),
        sa.Column("deliveries", sa.Integer, nullable=False),
        sa.Column("sent_at", sa.BigInteger, nullable=False),
        sa.Column("size", sa.Integer, nullable=False),
        sa.Column("content", sa.LargeBinary, nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "broker_consumer",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("subscription", sa.Integer, sa.ForeignKey("broker_subscription.id"), nullable=False),
        sa.Column("claimed_through", sa.BigInteger, nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "broker_sender",
        sa.Column("destination", sa.Integer, sa.ForeignKey("broker_destination.id"), primary_key=True),
        sa.Column("source", sa.Text, primary_key=True),
        sa.Column("last_sequence", sa.BigInteger, nullable=False),
        sqlite_with_rowid=False,
    )
    op.execute("INSERT INTO broker_schema (version) VALUES (1)")
