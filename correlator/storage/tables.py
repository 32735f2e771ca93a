"""The tables of a store. All messages, ids or changes of state that one transaction stores are in one row, a *segment*.

`content` is the MessagePack of a value of `correlator.core.commit`. `crc` is the CRC-32 of these bytes, and is checked
whenever the row is read. Other columns repeat parts of the content for statements and readers; if they differ, the
content counts. A suspect is small and has columns only: its `crc` is the CRC-32 of the bytes that its value would have.

The engine assigns all numbers and the database generates none, so no number is used twice.
"""

from sqlalchemy import Column, LargeBinary, MetaData, Table, Text

from correlator.storage.dialects import Number

metadata = MetaData()


def _content() -> list[Column[object]]:
    return [Column("content", LargeBinary, nullable=False), Column("crc", Number, nullable=False)]


engine = Table(  # one row, which every transaction checks and changes (fencing)
    "engine",
    metadata,
    Column("id", Number, primary_key=True, autoincrement=False),
    Column("name", Text, nullable=False),
    Column("product", Text, nullable=False),
    Column("epoch", Number, nullable=False),
    Column("commit_number", Number, nullable=False),
    Column("dead_letters", Number, nullable=False),  # the last number of a dead letter
)

checkpoint = Table(  # the last checkpoint, one row: contexts and senders at the cut
    "checkpoint",
    metadata,
    Column("id", Number, primary_key=True, autoincrement=False),
    Column("number", Number, nullable=False),
    *_content(),
)

receive_log = Table(
    "receive_log",
    metadata,
    Column("receiver", Text, primary_key=True),
    Column("first", Number, primary_key=True, autoincrement=False),
    Column("last", Number, nullable=False),
    *_content(),
)

receive_progress = Table(  # each number has a CRC of its own, since different transactions raise them
    "receive_progress",
    metadata,
    Column("receiver", Text, primary_key=True),
    Column("confirmed_batch", Number, nullable=False),
    Column("confirmed_crc", Number, nullable=False),
    Column("consumed", Number, nullable=False),
    Column("consumed_crc", Number, nullable=False),
)

accepted_ids = Table(
    "accepted_ids",
    metadata,
    Column("domain", Text, primary_key=True),
    Column("number", Number, primary_key=True, autoincrement=False),
    Column("receiver", Text, nullable=False),
    Column("count", Number, nullable=False),
    *_content(),
)

state_log = Table(
    "state_log",
    metadata,
    Column("number", Number, primary_key=True, autoincrement=False),
    Column("count", Number, nullable=False),
    *_content(),
)

outbox = Table(
    "outbox",
    metadata,
    Column("sender", Text, primary_key=True),
    Column("first", Number, primary_key=True, autoincrement=False),
    Column("last", Number, nullable=False),
    *_content(),
)

dead_letter = Table(
    "dead_letter",
    metadata,
    Column("number", Number, primary_key=True, autoincrement=False),
    Column("kind", Text, nullable=False),
    Column("origin", Text, nullable=False),
    *_content(),
)

endpoint = Table(
    "endpoint",
    metadata,
    Column("id", Text, primary_key=True),
    Column("kind", Text, nullable=False),
    Column("reliability", Text, nullable=False),
    Column("connection", Text, nullable=False),
    Column("destination", Text, nullable=False),
    Column("domain", Text, nullable=False),
    *_content(),
)

suspect = Table(  # messages that a start is handling: one of them may have ended the process
    "suspect",
    metadata,
    Column("context", Text, primary_key=True),
    Column("receiver", Text, primary_key=True),
    Column("first", Number, primary_key=True, autoincrement=False),
    Column("last", Number, primary_key=True, autoincrement=False),
    Column("deaths", Number, nullable=False),
    Column("crc", Number, nullable=False),
)
