"""Adds a CRC-32 to the rows about messages that a start is handling; every other row has one already."""

import zlib

import msgspec
import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Add a digest (CRC-32) to each row of the table `suspect`; the rows that are there stay."""
    connection = op.get_bind()
    noted = sa.text('SELECT context, receiver, "first", "last", deaths FROM suspect')
    rows = connection.execute(noted).mappings().all()
    op.drop_table("suspect")
    suspect = op.create_table(
        "suspect",
        sa.Column("context", sa.Text, primary_key=True),
        sa.Column("receiver", sa.Text, primary_key=True),
        sa.Column("first", NUMBER, primary_key=True, autoincrement=False),
        sa.Column("last", NUMBER, primary_key=True, autoincrement=False),
        sa.Column("deaths", NUMBER, nullable=False),
        sa.Column("crc", NUMBER, nullable=False),
    )
    for row in rows:
        crc = zlib.crc32(msgspec.msgpack.encode(list(row.values())))
        connection.execute(suspect.insert().values({**row, "crc": crc}))
