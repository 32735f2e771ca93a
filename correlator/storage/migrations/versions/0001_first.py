"""The first schema."""

from typing import Any

import sqlalchemy as sa
from alembic import op

from correlator.storage.dialects import keep_uncompressed

revision = "0001"
down_revision = None

NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Make all tables in an empty database, in the transaction of `correlator.storage.migrate`."""
    _make_engine()
    _make_logs()
    _make_state()
    _make_records()
    for table in ("receive_log", "outbox", "accepted_ids", "state_log"):
        keep_uncompressed(op.get_bind(), table, "content")


def _content() -> list[sa.Column[Any]]:
    return [sa.Column("content", sa.LargeBinary, nullable=False), sa.Column("crc", NUMBER, nullable=False)]


def _key(name: str, kind: Any) -> sa.Column[Any]:
    return sa.Column(name, kind, primary_key=True, autoincrement=False)


def _text(name: str) -> sa.Column[Any]:
    return sa.Column(name, sa.Text, nullable=False)


def _number(name: str) -> sa.Column[Any]:
    return sa.Column(name, NUMBER, nullable=False)


def _make_engine() -> None:
    op.create_table(
        "engine",
        _key("id", NUMBER),
        _text("name"),
        _text("product"),
        _number("epoch"),
        _number("commit_number"),
        _number("dead_letters"),
    )
    op.create_table("checkpoint", _key("id", NUMBER), _number("number"), *_content())


def _make_logs() -> None:
    op.create_table("receive_log", _key("receiver", sa.Text), _key("first", NUMBER), _number("last"), *_content())
    op.create_table("receive_progress", _key("receiver", sa.Text), _number("confirmed_batch"), _number("consumed"))
    op.create_table("outbox", _key("sender", sa.Text), _key("first", NUMBER), _number("last"), *_content())


def _make_state() -> None:
    op.create_table(
        "accepted_ids",
        _key("domain", sa.Text),
        _key("number", NUMBER),
        _text("receiver"),
        _number("count"),
        *_content(),
    )
    op.create_table("state_log", _key("number", NUMBER), _number("count"), *_content())


def _make_records() -> None:
    op.create_table("dead_letter", _key("number", NUMBER), _text("kind"), _text("origin"), *_content())
    op.create_table(
        "endpoint",
        _key("id", sa.Text),
        _text("kind"),
        _text("reliability"),
        _text("connection"),
        _text("destination"),
        _text("domain"),
        *_content(),
    )
