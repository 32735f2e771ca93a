"""The embedded broker: browsing, its file, its consumers."""

import sqlite3
import stat
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from connectors.embedded import EmbeddedConnection
from connectors.embedded.link import SqliteLink
from correlator.core.mapping import ReceiveMapping
from correlator.errors import ConnectionLost, UsageError
from correlator.events import LONGEST_LIFE_MS, Headers, Message, Outgoing
from correlator.settings import ConnectionSettings, ReceiverSettings, SenderSettings
from correlator.testing.contract import bodies, take


@pytest.fixture
def connection(tmp_path: Path) -> EmbeddedConnection:
    return EmbeddedConnection(
        "c", ConnectionSettings(type="embedded", options={"store": f"sqlite:///{tmp_path}/broker.db"})
    )


def connected_sink(connection):
    sink = connection.sink(SenderSettings(id="s", connection="c", destination="queue:a"))
    sink.connect()
    return sink


def connected_source(connection, **settings):
    source = connection.source(ReceiverSettings(id="r", connection="c", destination="queue:a", **settings))
    source.connect()
    return source


def send(connection, *contents, destination="queue:a"):
    sink = connected_sink(connection)
    messages = [content if isinstance(content, Message) else Message(content) for content in contents]
    results = sink.send([Outgoing(n, "", destination, message) for n, message in enumerate(messages, 1)])
    sink.close()
    return results


def test_browsing_takes_nothing(connection) -> None:
    send(connection, b"1", b"2", b"3")
    source = connected_source(connection)
    held = take(source, 1)
    assert [m.body for m in connection.browse("queue:a", 2)] == [b"1", b"2"]
    assert [m.body for m in connection.browse("queue:a", 10)] == [b"1", b"2", b"3"]
    source.acknowledge(held[0].tokens)
    assert [m.body for m in connection.browse("queue:a", 10)] == [b"2", b"3"]
    source.close()
    assert connection.browse("queue:nobody knows", 10) == []


def test_only_queues_can_be_browsed(connection) -> None:
    with pytest.raises(UsageError, match="only queues"):
        connection.browse("topic:a", 1)


def test_browsing_makes_no_file(connection, tmp_path) -> None:
    with pytest.raises(ConnectionLost):
        connection.browse("queue:a", 1)
    assert list(tmp_path.iterdir()) == []


def test_headers_of_the_broker(connection) -> None:
    forged = Headers(message_id="forged", timestamp=1, redelivered=True, delivery_count=9, time_to_live_ms=1000)
    send(connection, Message(b"x", {}, None, None, forged))
    (message,) = connection.browse("queue:a", 1)
    headers = message.headers
    assert headers.message_id.startswith("ID:")
    assert headers.timestamp > 1_600_000_000_000
    assert headers.expiration == headers.timestamp + 1000
    assert not headers.redelivered
    assert message.destination is None  # so that it can be sent on as it came


@pytest.mark.parametrize("life", [LONGEST_LIFE_MS + 1, 2**63, 2**64 - 1])
def test_101_a_life_beyond_the_longest_is_the_longest_and_can_be_stored_again(connection, life) -> None:
    send(connection, Message(b"x", headers=Headers(time_to_live_ms=life)))
    (message,) = connection.browse("queue:a", 1)
    assert message.headers.expiration == message.headers.timestamp + LONGEST_LIFE_MS
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=Message) == message


@pytest.mark.parametrize(
    "message",
    [Message(b"x", {"n": 2**64}), Message(b"x", {"t": "\ud800"}), Message(b"x", {}, "\ud800")],
    ids=["number beyond 64 bits", "half a surrogate", "key with half a surrogate"],
)
def test_what_cannot_be_stored_is_refused(connection, message) -> None:
    results = send(connection, b"before", message, b"after")
    assert [result and result.code for result in results] == [None, "E8110", None]
    assert [m.body for m in connection.browse("queue:a", 9)] == [b"before", b"after"]


WRONGLY_TYPED = {
    "body": Message("text"),
    "property name": Message(b"x", {1: 2}),
    "no properties": Message(b"x", None),
    "key": Message(b"x", {}, 5),
    "header": Message(b"x", headers=Headers(priority="high")),
    "list as a property": Message(b"x", {"a": [1]}),
    "mapping as a property": Message(b"x", {"a": {"b": 1}}),
    "time as a property": Message(b"x", {"a": datetime(2026, 1, 31, tzinfo=UTC)}),
}


@pytest.mark.parametrize("message", WRONGLY_TYPED.values(), ids=WRONGLY_TYPED)
def test_what_no_receiver_could_read_is_refused(connection, message) -> None:
    results = send(connection, b"before", message, b"after")
    assert [result and result.code for result in results] == [None, "E8110", None]
    assert [m.body for m in connection.browse("queue:a", 9)] == [b"before", b"after"]


UNREADABLE = {"empty": b"", "no MessagePack": b"\xc1", "another type": msgspec.msgpack.encode(["text"]), "cut": b"\x95"}


@pytest.mark.parametrize("content", UNREADABLE.values(), ids=UNREADABLE)
def test_stored_content_that_is_no_message_comes_as_a_body(connection, tmp_path, content) -> None:
    """It then becomes a dead letter, and the messages around it are handled."""
    send(connection, b"1", b"2", b"3")
    database = sqlite3.connect(tmp_path / "broker.db")
    with database:
        database.execute("UPDATE broker_content SET content = ? WHERE number = 2", (content,))
    database.close()
    source = connected_source(connection)
    (chunk,) = take(source, 3)
    assert [m.body for m in chunk.messages] == [b"1", content, b"3"]
    assert chunk.messages[1].headers.message_id.startswith("ID:")
    source.acknowledge(chunk.tokens)
    source.close()
    mapping = ReceiveMapping("r", int, "", "", deduplicated=False, max_message_bytes=1000)
    mapped = mapping.map(chunk.messages, 0.0)
    assert mapped.events == [1, 3]
    assert [letter.reason[:5] for letter in mapped.dead_letters] == ["E5101"]


@pytest.mark.parametrize("destination", ["", "a", "queue:", "queue:a\0b", "queue:\ud800", "topic:\n"])
def test_t52_destinations_that_are_refused(connection, destination) -> None:
    (result,) = send(connection, b"x", destination=destination)
    assert result.code == "E8104"


def test_bytes_bound_a_claim(connection) -> None:
    send(connection, *(b"x" * 1000 for _ in range(10)), b"y" * 100_000)
    source = connected_source(connection, max_batch_bytes=3500)
    sizes = []
    while (chunk := source.receive(100, 0.0)).messages:
        sizes.append(len(chunk.messages))
        source.acknowledge(chunk.tokens)
    source.close()
    assert sizes == [3, 3, 3, 1, 1]


def test_a_file_of_another_application_is_not_touched(connection, tmp_path) -> None:
    path = tmp_path / "broker.db"
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE theirs (x)")
    other.close()
    before = path.read_bytes()
    with pytest.raises(ConnectionLost, match="E3003"):
        connected_sink(connection)
    assert path.read_bytes() == before


def test_a_file_that_is_no_database(connection, tmp_path) -> None:
    (tmp_path / "broker.db").write_bytes(b"PK\3\4" * 1000)
    with pytest.raises(ConnectionLost, match="not a database"):
        connected_sink(connection)


def test_a_missing_directory_is_made(tmp_path) -> None:
    store = f"sqlite:///{tmp_path}/none/broker.db"
    connection = EmbeddedConnection("c", ConnectionSettings(type="embedded", options={"store": store}))
    connected_sink(connection)
    assert stat.S_IMODE((tmp_path / "none").stat().st_mode) == 0o700


@pytest.mark.parametrize("end", [connected_source, connected_sink])
def test_a_broker_that_is_gone_is_not_replaced_by_an_empty_one(connection, tmp_path, end) -> None:
    """Its disk may be unmounted: what comes back later must not be hidden by what was written meanwhile."""
    one = end(connection)
    send(connection, b"1")
    away = tmp_path / "away"
    away.mkdir()
    files = [file for file in tmp_path.glob("broker.db*") if file.is_file()]
    for file in files:
        file.rename(away / file.name)
    for _ in range(2):
        with pytest.raises(ConnectionLost, match=r"E7003 .*/broker.db: the broker's file is gone. Put it back"):
            one.connect()
    assert not (tmp_path / "broker.db").exists()
    for file in files:
        (away / file.name).rename(file)
    one.connect()
    one.close()
    assert [message.body for message in connection.browse("queue:a", 10)] == [b"1"]


def test_commits_are_durable(connection, tmp_path) -> None:
    link = SqliteLink(f"sqlite:///{tmp_path}/broker.db")
    assert link.connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2
    link.connection.rollback()
    link.close()


def test_commits_are_durable_after_a_claim_that_was_not(connection) -> None:
    send(connection, b"1")
    source = connected_source(connection)
    take(source, 1)
    link = source._link
    assert link.connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2
    link.connection.rollback()
    source.close()


def test_a_waiting_source_hears_of_another_process(connection, tmp_path) -> None:
    """A connection that wakes no waiting source of this process stands for another process."""
    send(connection, b"1")
    source = connected_source(connection)
    source.acknowledge(take(source, 1)[0].tokens)
    connection._store = connection._store.replace("broker.db", "./broker.db")
    send(connection, b"2")
    assert bodies([source.receive(1, 5.0)]) == [b"2"]
    source.close()


def test_t59_the_files_of_the_broker_are_private(tmp_path):
    connection = EmbeddedConnection(
        "local", ConnectionSettings(type="embedded", options={"store": f"sqlite:///{tmp_path}/b.db"})
    )
    sink = connection.sink(SenderSettings(id="s", connection="local", destination="queue:q"))
    sink.connect()
    assert sink.send([Outgoing(1, "src", "queue:q", Message(b"x"))]) == [None]
    sink.close()
    connection.close()
    shared = [path.name for path in tmp_path.iterdir() if path.is_file() and path.stat().st_mode & 0o077]
    assert shared == []
