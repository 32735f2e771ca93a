"""The tables of the embedded broker. Only `ledger` has SQL for them.

Each subscription has a row of its own for a message; a queue has exactly one subscription, named "". A row with
`consumer` 0 waits. Any other row is held by that consumer, until it is deleted (acknowledged) or set back to 0. The
transaction that stores messages numbers them, under a lock on the destination. So numbers follow the order of commits,
and are never used again.
"""

from sqlalchemy import BigInteger, Column, ForeignKey, Integer, LargeBinary, MetaData, Table, Text, UniqueConstraint

SCHEMA_VERSION = 1

metadata = MetaData()

schema = Table("broker_schema", metadata, Column("version", Integer, primary_key=True, autoincrement=False))

destinations = Table(
    "broker_destination",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("name", Text, nullable=False, unique=True),
    Column("last_number", BigInteger, nullable=False),
    sqlite_autoincrement=True,
)

subscriptions = Table(
    "broker_subscription",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("destination", ForeignKey("broker_destination.id"), nullable=False),
    Column("name", Text, nullable=False),
    UniqueConstraint("destination", "name"),
    sqlite_autoincrement=True,
)

messages = Table(
    "broker_message",
    metadata,
    Column("subscription", Integer, primary_key=True, autoincrement=False),
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("consumer", Integer, nullable=False),
    Column("claim", BigInteger, nullable=False),
    Column("deliveries", Integer, nullable=False),
    Column("sent_at", BigInteger, nullable=False),
    Column("size", Integer, nullable=False),
    Column("content", LargeBinary, nullable=False),
    sqlite_with_rowid=False,
)

consumers = Table(
    "broker_consumer",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("subscription", ForeignKey("broker_subscription.id"), nullable=False),
    Column("claimed_through", BigInteger, nullable=False),
    sqlite_autoincrement=True,
)

senders = Table(
    "broker_sender",
    metadata,
    Column("destination", ForeignKey("broker_destination.id"), primary_key=True),
    Column("source", Text, primary_key=True),
    Column("last_sequence", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)
