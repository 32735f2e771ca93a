"""Adds a CRC-32 to each number of the progress of receivers; from a wrong number, a start would lose messages."""

import zlib

import msgspec
import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"

NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Add a digest (CRC-32) to each number in the table `receive_progress`; the rows that are there stay."""
    connection = op.get_bind()
    rows = connection.execute(sa.text("SELECT receiver, confirmed_batch, consumed FROM receive_progress")).all()
    op.drop_table("receive_progress")
    progress = op.create_table(
        "receive_progress",
        sa.Column("receiver", sa.Text, primary_key=True),
        sa.Column("confirmed_batch", NUMBER, nullable=False),
        sa.Column("confirmed_crc", NUMBER, nullable=False),
        sa.Column("consumed", NUMBER, nullable=False),
        sa.Column("consumed_crc", NUMBER, nullable=False),
    )
    for receiver, confirmed, consumed in rows:
        row = {
            "receiver": receiver,
            "confirmed_batch": confirmed,
            "confirmed_crc": _crc(receiver, "confirmed_batch", confirmed),
            "consumed": consumed,
            "consumed_crc": _crc(receiver, "consumed", consumed),
        }
        connection.execute(progress.insert().values(row))


def _crc(receiver: str, name: str, number: int) -> int:
    return zlib.crc32(msgspec.msgpack.encode([receiver, name, number]))
