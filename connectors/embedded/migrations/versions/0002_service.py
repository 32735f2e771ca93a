"""Content once for each message, clients, kinds of subscriptions, prepared transactions, one space of numbers."""

from typing import Any

import msgspec
import sqlalchemy as sa
from alembic import op

from correlator.storage.dialects import keep_uncompressed

revision = "0002"
down_revision = "0001"

NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
FIRST_TABLES = ("destination", "subscription", "consumer", "sender")
PAGE = 100


def upgrade() -> None:
    """Replace the tables of the first revision by those of the message service, and move all messages into them."""
    connection = op.get_bind()
    old = {name: _rows(connection, f"broker_{name}") for name in FIRST_TABLES}
    for name in reversed(FIRST_TABLES):
        op.drop_table(f"broker_{name}")
    _make_destinations()
    _make_messages()
    _make_users()
    _make_transactions()
    _insert("broker_destination", [_destination(row) for row in old["destination"]])
    _insert("broker_subscription", [_subscription(row) for row in old["subscription"]])
    _insert("broker_consumer", [_consumer(row) for row in old["consumer"]])
    _insert("broker_sender", [dict(row) for row in old["sender"]])
    last = _move_messages(connection)
    op.drop_table("broker_message")
    _insert("broker_store", [{"id": 1, "last_number": last, "starts": 0}])
    op.execute("UPDATE broker_schema SET version = 2")  # programs from before the revisions refuse the broker
    if connection.dialect.name == "postgresql":
        _tune_postgres(last)
    _make_dead_message_queue()


def _rows(connection: sa.Connection, table: str) -> list[Any]:
    return list(connection.execute(sa.select("*").select_from(sa.table(table))).mappings())


def _insert(name: str, rows: list[dict[str, Any]]) -> None:
    if rows:
        table = sa.table(name, *(sa.column(column) for column in rows[0]))
        op.get_bind().execute(table.insert(), rows)


def _destination(row: Any) -> dict[str, Any]:
    return {"id": row["id"], "name": row["name"], "auto_created": 1}


def _subscription(row: Any) -> dict[str, Any]:
    kind = {"client_id": "", "durable": 1, "shared": 1, "suspect_through": 0}
    return {"id": row["id"], "destination": row["destination"], "name": row["name"], **kind}


def _consumer(row: Any) -> dict[str, Any]:
    nobody = {"client": 0, "pid": 0, "host": "", "boot": "", "cancelled": 0}
    return {"id": row["id"], "subscription": row["subscription"], **nobody}


def _key(name: str, kind: Any = NUMBER, **more: Any) -> sa.Column[Any]:
    return sa.Column(name, kind, primary_key=True, autoincrement=False, **more)


def _number(name: str, **more: Any) -> sa.Column[Any]:
    return sa.Column(name, NUMBER, nullable=False, **more)


def _text(name: str) -> sa.Column[Any]:
    return sa.Column(name, sa.Text, nullable=False)


def _make_destinations() -> None:
    op.create_table("broker_store", _key("id"), _number("last_number"), _number("starts"))
    op.create_table(
        "broker_destination",
        sa.Column("id", NUMBER, primary_key=True),
        sa.Column("name", sa.Text, nullable=False, unique=True),
        sa.Column("client", NUMBER),
        _number("auto_created"),
        *(
            sa.Column(name, NUMBER, nullable=False, server_default=sa.text(str(default)))
            for name, default in {
                "max_num_msgs": -1,
                "max_total_msg_bytes": -1,
                "max_per_msg_bytes": -1,
                "max_num_producers": 100,
                "max_num_active_consumers": -1,
                "max_num_backup_consumers": 0,
                "consumer_flow_limit": 1000,
                "consumer_flow_threshold_percent": 50,
                "use_dmq": 1,
                "max_num_deliveries": -1,
                "redelivery_delay_ms": 0,
                "dropped": 0,
            }.items()
        ),
        sa.Column("limit_behavior", sa.Text, nullable=False, server_default="REJECT_NEWEST"),
        sa.Column("paused", sa.Text),
        sa.Column("unused_since", NUMBER),
        sa.Column("unused_changes", NUMBER),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "broker_subscription",
        sa.Column("id", NUMBER, primary_key=True),
        sa.Column("destination", NUMBER, sa.ForeignKey("broker_destination.id"), nullable=False),
        _text("client_id"),
        _text("name"),
        _number("durable"),
        _number("shared"),
        sa.Column("selector", sa.Text),
        _number("suspect_through"),
        sa.UniqueConstraint("destination", "client_id", "name"),
        sqlite_autoincrement=True,
    )


def _make_messages() -> None:
    op.create_table(
        "broker_content",
        _key("number"),
        _number("destination"),
        _text("message_id"),
        _number("sent_at"),
        _number("persistent"),
        _number("refs_left"),
        sa.Column("content", sa.LargeBinary, nullable=False),
    )
    op.create_index(
        "broker_content_passing",
        "broker_content",
        ["number"],
        sqlite_where=sa.text("persistent = 0"),
        postgresql_where=sa.text("persistent = 0"),
    )
    op.create_table(
        "broker_delivery",
        _key("subscription"),
        _key("number"),
        _number("rank"),
        _number("state"),
        _number("consumer"),
        _number("deliveries"),
        _number("suspect"),
        _number("due"),
        _number("expires"),
        _number("size"),
        sqlite_with_rowid=False,
    )
    _index("ready", ["subscription", "rank", "number"], "state = 0")
    _index("held", ["consumer"], "consumer > 0")
    _index("due", ["subscription", "due"], "state = 2")
    _index("expiry", ["expires"], "expires > 0")
    op.create_table(
        "broker_tally",
        sa.Column("id", NUMBER, primary_key=True),
        _number("destination"),
        _number("messages"),
        _number("bytes"),
        sa.Column("changes", NUMBER, nullable=False, server_default="1"),
    )
    op.create_index("broker_tally_of", "broker_tally", ["destination"], unique=op.get_bind().dialect.name == "sqlite")
    keep_uncompressed(op.get_bind(), "broker_content", "content")


def _index(name: str, columns: list[str], where: str) -> None:
    condition = sa.text(where)
    op.create_index(
        f"broker_delivery_{name}", "broker_delivery", columns, sqlite_where=condition, postgresql_where=condition
    )


def _make_users() -> None:
    op.create_table(
        "broker_client",
        sa.Column("id", NUMBER, primary_key=True),
        sa.Column("client_id", sa.Text, unique=True),
        _number("pid"),
        _text("host"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "broker_consumer",
        sa.Column("id", NUMBER, primary_key=True),
        sa.Column("subscription", NUMBER, sa.ForeignKey("broker_subscription.id"), nullable=False),
        _number("client"),
        _number("pid"),
        _text("host"),
        _text("boot"),
        _number("cancelled"),
        sqlite_autoincrement=True,
    )
    op.create_index("broker_consumer_of", "broker_consumer", ["subscription"])
    op.create_table(
        "broker_producer",
        sa.Column("id", NUMBER, primary_key=True),
        _number("destination"),
        _number("client"),
        sqlite_autoincrement=True,
    )
    op.create_index("broker_producer_of", "broker_producer", ["destination"])
    op.create_table(
        "broker_sender",
        sa.Column("destination", NUMBER, sa.ForeignKey("broker_destination.id"), primary_key=True),
        sa.Column("source", sa.Text, primary_key=True),
        _number("last_sequence"),
        sqlite_with_rowid=False,
    )


def _make_transactions() -> None:
    op.create_table(
        "broker_tx",
        sa.Column("id", NUMBER, primary_key=True),
        sa.Column("name", sa.Text, nullable=False, unique=True),
        _text("state"),
        _number("at"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "broker_tx_send",
        _key("tx"),
        _key("position"),
        _text("destination"),
        _text("message_id"),
        sa.Column("content", sa.LargeBinary, nullable=False),
    )


def _move_messages(connection: sa.Connection) -> int:
    """Move the messages in pages, oldest first within each destination; returns the last number."""
    destinations = {row.id: row.name for row in connection.execute(sa.text("SELECT id, name FROM broker_destination"))}
    numbers = sa.text(
        "SELECT DISTINCT m.number FROM broker_message m JOIN broker_subscription s ON s.id = m.subscription"
        " WHERE s.destination = :destination AND m.number > :above ORDER BY m.number LIMIT :page"
    )
    last = 0
    for destination, name in destinations.items():
        above = 0
        while page := (
            connection.execute(numbers, {"destination": destination, "above": above, "page": PAGE}).scalars().all()
        ):
            new = {number: last + at for at, number in enumerate(page, 1)}
            _move_page(connection, destination, name, new)
            above, last = page[-1], last + len(page)
    op.execute(
        "INSERT INTO broker_tally (destination, messages, bytes)"
        " SELECT destination, count(*), sum(length(content)) FROM broker_content GROUP BY destination"
    )
    return last


def _move_page(connection: sa.Connection, destination: int, name: str, new: dict[int, int]) -> None:
    """Move the messages whose new numbers are given by their old ones."""
    copies = sa.text(
        "SELECT m.subscription, m.number, m.consumer, m.deliveries, m.sent_at, m.content"
        " FROM broker_message m JOIN broker_subscription s ON s.id = m.subscription"
        " WHERE s.destination = :destination AND m.number BETWEEN :first AND :last"
    )
    span = {"destination": destination, "first": min(new), "last": max(new)}
    contents: dict[int, dict[str, Any]] = {}
    deliveries = []
    for copy in connection.execute(copies, span):
        number, content = new[copy.number], bytes(copy.content)
        message = {
            "number": number,
            "destination": destination,
            "message_id": f"{name}:{copy.number}",
            "sent_at": copy.sent_at,
            "persistent": 1,
            "refs_left": 0,
            "content": content,
        }
        contents.setdefault(number, message)["refs_left"] += 1
        deliveries.append(_delivery(copy, number, content))
    _insert("broker_content", list(contents.values()))
    _insert("broker_delivery", deliveries)


def _delivery(copy: Any, number: int, content: bytes) -> dict[str, Any]:
    priority, lives_ms = _priority_and_life(content)
    return {
        "subscription": copy.subscription,
        "number": number,
        "rank": 9 - priority,
        "state": 1 if copy.consumer else 0,
        "consumer": copy.consumer,
        # The versions before counted a delivery when it began. Now it counts when it ends.
        "deliveries": copy.deliveries - 1 if copy.consumer else copy.deliveries,
        "suspect": 0,
        "due": 0,
        "expires": copy.sent_at + lives_ms if lives_ms else 0,
        "size": len(content),
    }


def _priority_and_life(content: bytes) -> tuple[int, int]:
    """Priority and time to live of an encoded message; the defaults if it cannot be decoded."""
    try:
        headers = msgspec.msgpack.decode(content)[4]
        priority, lives_ms = headers[4], headers[6]
    except (msgspec.MsgspecError, TypeError, IndexError, KeyError, ValueError):
        return 4, 0
    if type(priority) is not int:
        priority = 4
    if type(lives_ms) is not int or not 0 <= lives_ms <= 2**53:
        lives_ms = 0
    return min(max(priority, 0), 9), lives_ms


def _make_dead_message_queue() -> None:
    op.execute(
        "INSERT INTO broker_destination (name, auto_created, limit_behavior)"
        " VALUES ('queue:mq.sys.dmq', 0, 'REMOVE_OLDEST') ON CONFLICT DO NOTHING"
    )
    op.execute(
        "INSERT INTO broker_subscription (destination, client_id, name, durable, shared, suspect_through)"
        " SELECT id, '', '', 1, 1, 0 FROM broker_destination WHERE name = 'queue:mq.sys.dmq' ON CONFLICT DO NOTHING"
    )


def _tune_postgres(last: int) -> None:
    # A crash recovery empties it.
    op.create_table("broker_boot", sa.Column("token", sa.Text, primary_key=True), prefixes=["UNLOGGED"])
    op.execute(sa.schema.CreateSequence(sa.Sequence("broker_number", start=last + 1, cache=1)))
    # Ids were given by hand.
    op.execute("SELECT setval('broker_destination_id_seq', max(id)) FROM broker_destination HAVING max(id) > 0")
    op.execute("SELECT setval('broker_subscription_id_seq', max(id)) FROM broker_subscription HAVING max(id) > 0")
    op.execute("SELECT setval('broker_consumer_id_seq', max(id)) FROM broker_consumer HAVING max(id) > 0")
    for name in ("content", "delivery", "tally"):
        op.execute(
            f"ALTER TABLE broker_{name} SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,"
            " autovacuum_vacuum_cost_delay = 0)"
        )
    op.execute("ALTER TABLE broker_delivery SET (fillfactor = 80)")
