"""Changes that a receiver captures from PostgreSQL: streams, acknowledgements, snapshots, and slots that do not fit."""

import itertools
import json
import math
import multiprocessing
import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from connectors.sql import SqlConnection, capture, examination, replication
from connectors.sql.capture import CaptureSource
from connectors.sql.pgoutput import lsn_of
from correlator.connector import Chunk, notes_of
from correlator.errors import ConfigError, ConnectionLost, UsageError
from correlator.events import CUT_FROM, Message
from correlator.settings import ConnectionSettings, ReceiverSettings
from tests.connectors.tables import execute, rows
from tests.servers import PostgresServer, running
from tests.waiting import wait_until

_numbers = itertools.count(1)
STREAM = {"slot": "s", "snapshot": "never"}
SNAPSHOT = {"slot": "s"}


class Shop:
    """A database with a table `t` and a publication of it, and the receivers that capture its changes."""

    def __init__(self, server: PostgresServer, place: Path) -> None:
        self.server = server
        self.url = server.fresh_schema()
        self.place = place
        self.name = f"p{os.getpid()}_{next(_numbers)}"
        self.made: list[CaptureSource] = []
        self.execute(
            "CREATE TABLE t (id INTEGER PRIMARY KEY, name TEXT)", f'CREATE PUBLICATION "{self.name}" FOR TABLE t'
        )

    def execute(self, *statements: str) -> None:
        """Run statements, each in a transaction of its own."""
        for statement in statements:
            execute(self.url, statement)

    def receiver(self, options: dict[str, str] = STREAM, **more: object) -> ReceiverSettings:
        own = {**options, "slot": self.name}
        return ReceiverSettings(id="r", connection="c", destination=f"topic:{self.name}", options=own, **more)

    def connection(self, url: str = "") -> SqlConnection:
        options = {"database": url or self.url, "state": str(self.place / "state")}
        return SqlConnection("c", ConnectionSettings(type="sql", options=options))

    def source(self, options: dict[str, str] = STREAM, url: str = "", **more: object) -> CaptureSource:
        """A source that is not connected."""
        source = self.connection(url).source(self.receiver(options, **more))
        assert isinstance(source, CaptureSource)
        self.made.append(source)
        return source

    def connected(self, options: dict[str, str] = STREAM, **more: object) -> CaptureSource:
        source = self.source(options, **more)
        source.connect()
        return source

    @property
    def position(self) -> Path:
        return self.place / "state" / f"{self.name}.r.capture"

    @property
    def flushed(self) -> int:
        """Where the slot stands."""
        query = f"SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = '{self.name}'"
        return lsn_of(rows(self.url, query)[0][0])

    def wait_sent(self) -> None:
        """Wait until the server has sent all changes to the receiver."""
        ((end,),) = rows(self.url, "SELECT pg_current_wal_lsn()::text")
        sent = (
            "SELECT 1 FROM pg_stat_replication r JOIN pg_replication_slots s ON s.active_pid = r.pid"
            f" WHERE slot_name = '{self.name}' AND sent_lsn >= '{end}'"
        )
        wait_until(lambda: rows(self.url, sent))

    def close(self) -> None:
        for source in self.made:
            source.close()
        self.execute(f'DROP PUBLICATION IF EXISTS "{self.name}"')
        self.drop_slot()

    def drop_slot(self) -> None:
        """Drop the slot, as soon as nobody reads it."""
        drop = f"SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = '{self.name}'"
        wait_until(lambda: not rows(self.url, f"{_ACTIVE} AND slot_name = '{self.name}'"))
        self.execute(drop)


_ACTIVE = "SELECT 1 FROM pg_replication_slots WHERE active"


@pytest.fixture
def shop(postgres_server: PostgresServer, tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(postgres_server, tmp_path)
    yield shop
    shop.close()


@pytest.fixture(scope="module")
def own_server() -> Iterator[PostgresServer]:
    """A server that tests may harm."""
    with running(PostgresServer(settings=["wal_level=logical"])) as server:
        yield server


@pytest.fixture
def own_shop(own_server: PostgresServer, tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(own_server, tmp_path)
    yield shop
    shop.close()


pytestmark = pytest.mark.postgres


def gathered(source: CaptureSource, count: int, most: int = 100) -> Chunk:
    """The next messages, so many, with their tokens."""
    messages: list[Message] = []
    tokens: list[int] = []
    while len(messages) < count:
        chunk = source.receive(min(most, count - len(messages)), 10.0)
        assert chunk.messages, f"{len(messages)} messages have come"
        messages += chunk.messages
        tokens += chunk.tokens
    return Chunk(messages, tokens)


def take(source: CaptureSource, count: int, *, acknowledge: bool = True) -> list[Message]:
    """The next messages, so many."""
    chunk = gathered(source, count)
    if acknowledge:
        source.acknowledge(chunk.tokens)
    return list(chunk.messages)


def told(message: Message) -> tuple[object, object]:
    """What has happened, and to what."""
    return message.properties["operation"], json.loads(message.body)


def ids(messages: list[Message]) -> list[object]:
    return [json.loads(one.body)["id"] for one in messages]


# --- settings ---


@pytest.mark.parametrize(
    ("options", "code", "text"),
    [
        ({"slot": ""}, "E1022", r"receivers\.r\.slot"),
        ({"slot": "No Slot"}, "E1022", "small letters, digits and underscores"),
        ({"slot": "s", "snapshot": "always"}, "E1022", "first, never"),
        ({"slot": "s", "order_column": "id"}, "E1020", r"receivers\.r\.order_column"),
    ],
)
def test_settings_that_are_refused(tmp_path: Path, options: dict[str, object], code: str, text: str) -> None:
    settings = ConnectionSettings(type="sql", options={"database": "postgresql://nowhere/x", "state": str(tmp_path)})
    receiver = ReceiverSettings(id="r", connection="c", destination="topic:p", options=options)
    with pytest.raises(ConfigError, match=f"{code} .*{text}"):
        SqlConnection("c", settings).source(receiver)


def test_the_exception_from_the_guarantee() -> None:
    connection = SqlConnection("c", ConnectionSettings(type="sql", options={"database": "postgresql://nowhere/x"}))
    found = [
        notes_of(connection, ReceiverSettings(id="r", connection="c", destination="topic:p", options=options))
        for options in (SNAPSHOT, STREAM, {"order_column": "id"})
    ]
    assert [len(one) for one in found] == [1, 0, 0]
    assert "begins again" in found[0][0]


def test_what_capturing_needs(tmp_path: Path) -> None:
    receiver = ReceiverSettings(id="r", connection="c", destination="topic:p", options={"slot": "s"})
    for database in ("sqlite:///x.db", "mysql://nowhere/x"):
        options = {"database": database, "state": str(tmp_path)}
        with pytest.raises(ConfigError, match=r"E1022 receivers\.r\.slot: this database has no replication slots"):
            SqlConnection("c", ConnectionSettings(type="sql", options=options)).source(receiver)
    options = {"database": "postgresql://nowhere/x"}
    with pytest.raises(ConfigError, match=r"E1021 connections\.c: 'state' is missing, which receivers\.r needs"):
        SqlConnection("c", ConnectionSettings(type="sql", options=options)).source(receiver)
    connection = SqlConnection("c", ConnectionSettings(type="sql", options={**options, "state": str(tmp_path)}))
    connection.source(receiver)
    connection.source(receiver)
    other = ReceiverSettings(id="q", connection="c", destination="topic:p", options={"slot": "s"})
    with pytest.raises(ConfigError, match=r"E1022 receivers\.q\.slot: the receiver of subscription 'r' reads slot 's'"):
        connection.source(other)


# --- stream and acknowledgements ---


def test_changes_come_in_the_order_of_commits(shop: Shop) -> None:
    source = shop.connected()
    with psycopg.connect(shop.url) as first, psycopg.connect(shop.url) as second:
        first.execute("INSERT INTO t VALUES (1, 'late')")
        second.execute("INSERT INTO t VALUES (2, 'early')")
        second.execute("INSERT INTO t VALUES (3, 'rolled back')")
        second.execute("DELETE FROM t WHERE id = 3")
        second.commit()
        first.execute("UPDATE t SET name = 'x' WHERE id = 1")
    found = take(source, 5)
    assert [told(one) for one in found] == [
        ("insert", {"id": 2, "name": "early"}),
        ("insert", {"id": 3, "name": "rolled back"}),
        ("delete", {"id": 3}),
        ("insert", {"id": 1, "name": "late"}),
        ("update", {"id": 1, "name": "x"}),
    ]
    names = [str(one.properties["uniqueMessageId"]) for one in found]
    assert len(set(names)) == 5
    assert [name.rpartition(":")[2] for name in names] == ["1", "2", "3", "1", "2"]
    assert found[0].properties["messageSourceId"] == shop.name
    assert found[0].headers is not None
    assert found[0].headers.message_id == names[0]
    assert found[0].headers.timestamp is not None


def test_a_restart_goes_on_behind_what_is_acknowledged(shop: Shop) -> None:
    source = shop.connected()
    shop.execute("INSERT INTO t VALUES (1)", "INSERT INTO t VALUES (2), (3), (4)", "INSERT INTO t VALUES (5)")
    before = take(source, 5, acknowledge=False)
    source.close()
    source = shop.connected()
    again = gathered(source, 5)
    assert again.messages == before
    start = shop.flushed
    source.acknowledge(again.tokens[1:3])  # 2 and 3
    assert shop.flushed == start
    source.close()
    source = shop.connected()
    assert ids(take(source, 3, acknowledge=False)) == [1, 4, 5]
    source.close()
    source = shop.connected()
    assert ids(take(source, 2)) == [1, 4]
    wait_until(lambda: shop.flushed > start)
    source.close()
    assert ids(take(shop.connected(), 1)) == [5]


def test_the_slot_moves_at_the_end_of_a_transaction_only(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large transaction is taken in parts, and held by nobody as a whole."""
    monkeypatch.setattr(replication, "STATUS_S", 0.0)
    source = shop.connected(max_batch_size=50)
    start = shop.flushed
    shop.execute("INSERT INTO t SELECT i, repeat('x', 100) FROM generate_series(1, 500) AS i")
    assert ids(take(source, 50, acknowledge=False)) == list(range(1, 51))
    assert not source.receive(10, 0.0).messages  # it holds as many as it may
    source.close()
    source = shop.connected(max_batch_size=50)
    for first in range(1, 451, 50):
        assert ids(take(source, 50)) == list(range(first, first + 50))
    assert shop.flushed == start
    source.close()
    source = shop.connected(max_batch_size=50)
    assert ids(take(source, 50)) == list(range(451, 501))
    wait_until(lambda: (source.receive(1, 0.05), shop.flushed > start)[1])
    assert len(source._messages) == len(source._progress.rows) == 0


def test_the_server_is_told_after_the_position_is_kept(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    source = shop.connected()
    shop.execute("INSERT INTO t VALUES (1)")
    shop.wait_sent()
    held = source.receive(10, 0.0)
    stands = shop.flushed

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("correlator.durable.replace", full)
    with pytest.raises(ConnectionLost, match="No space left"):
        source.acknowledge(held.tokens)
    monkeypatch.undo()
    assert shop.flushed == stands
    assert take(shop.connected(), 1) == list(held.messages)


def test_chunks_are_bounded(shop: Shop) -> None:
    source = shop.connected(max_batch_bytes=100, max_message_bytes=60)
    shop.execute("INSERT INTO t VALUES (1, repeat('x', 40)), (2, repeat('x', 40)), (3, repeat('x', 400))")
    shop.wait_sent()
    assert len(source.receive(10, 0.0).messages) == 2
    (large,) = take(source, 1)
    assert (len(large.body), large.properties[CUT_FROM]) == (61, 418)


def test_old_rows_count_as_bodies(shop: Shop) -> None:
    shop.execute(
        "ALTER TABLE t REPLICA IDENTITY FULL", "INSERT INTO t SELECT i, repeat('x', 60) FROM generate_series(1, 3) i"
    )
    shop.execute("INSERT INTO t VALUES (9, repeat('ü', 90))")
    source = shop.connected(max_batch_bytes=100, max_message_bytes=200)
    shop.execute("UPDATE t SET name = 'y' WHERE id < 4", "UPDATE t SET name = 'y' WHERE id = 9")
    shop.wait_sent()
    chunk = source.receive(10, 0.0)
    assert ids(list(chunk.messages)) == [1, 2]
    third = source.receive(1, 0.0)
    source.reject([*chunk.tokens, *third.tokens])
    again = source.receive(10, 0.0)
    assert again.messages == chunk.messages
    source.acknowledge(again.tokens)
    assert ids(take(source, 1)) == [3]
    (large,) = take(source, 1)
    assert (len(large.body), large.properties[CUT_FROM], large.properties.get("old")) == (201, 217, None)
    assert large.body.startswith('{"id":9,"name":"y"}{"id":9,"name":"üü'.encode())


def test_what_is_given_back_comes_first(shop: Shop) -> None:
    source = shop.connected()
    shop.execute("INSERT INTO t VALUES (1), (2), (3), (4)")
    chunk = gathered(source, 3)
    source.reject(chunk.tokens[:2])
    again = source.receive(10, 0.0)
    assert list(again.messages) == list(chunk.messages[:2])
    source.acknowledge([*again.tokens, chunk.tokens[2]])
    assert ids(take(source, 1)) == [4]


def test_a_quiet_table_does_not_hold_the_log(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tables write. What waits for an acknowledgement holds the slot nevertheless."""
    monkeypatch.setattr(replication, "STATUS_S", 0.0)
    source = shop.connected()
    shop.execute("CREATE TABLE other AS SELECT 1 AS n", "INSERT INTO other VALUES (2)")
    (end,) = (lsn_of(one) for (one,) in rows(shop.url, "SELECT pg_current_wal_lsn()::text"))
    wait_until(lambda: (source.receive(1, 0.02), shop.flushed >= end)[1])
    shop.execute("INSERT INTO t VALUES (1)")
    (held,) = take(source, 1, acknowledge=False)
    shop.execute("INSERT INTO other VALUES (3)")
    shop.wait_sent()
    for _ in range(10):
        source.receive(1, 0.0)
    source.close()
    commit = str(held.properties["uniqueMessageId"]).split(":")[2]
    assert shop.flushed <= lsn_of(commit)
    assert take(shop.connected(), 1) == [held]


def test_a_shutdown_of_the_server_does_not_wait_for_a_receiver(own_shop: Shop) -> None:
    """The server waits until its readers have all: a receiver with nothing to acknowledge says so when it is asked."""
    shop = own_shop
    source = shop.connected()
    source.receive(1, 0.0)
    ended = threading.Event()
    found: list[str] = []

    def read() -> None:
        while not ended.is_set():
            try:
                source.receive(1, 0.05)
            except ConnectionLost as error:
                found.append(error.code)
                return

    thread = threading.Thread(target=read)
    thread.start()
    try:
        shop.server.stop()
    finally:
        shop.server.start()
        ended.set()
        thread.join()
    assert found == ["E7003"]
    source.connect()
    shop.execute("INSERT INTO t VALUES (1)")
    assert ids(take(source, 1)) == [1]


def test_a_session_that_the_server_ends(shop: Shop) -> None:
    """The server does so with a receiver that has taken nothing for long. When it goes on, nothing is lost."""
    source = shop.connected()
    shop.execute("INSERT INTO t VALUES (1), (2)")
    held = gathered(source, 2)
    source.acknowledge(held.tokens[:1])
    slot = f"FROM pg_replication_slots WHERE slot_name = '{shop.name}' AND active"
    shop.execute(f"SELECT pg_terminate_backend(active_pid, 5000) {slot}")
    with pytest.raises(ConnectionLost, match="E7003"):
        wait_until(lambda: source.receive(1, 0.05).messages)
    source.connect()
    shop.execute("INSERT INTO t VALUES (3)")
    assert ids(take(source, 2)) == [2, 3]


# --- what is told of a change ---


def test_large_values_that_did_not_change_are_not_null(shop: Shop) -> None:
    shop.execute("ALTER TABLE t ALTER name SET STORAGE EXTERNAL", "INSERT INTO t VALUES (1, repeat('x', 9000))")
    source = shop.connected()
    shop.execute("ALTER TABLE t ADD n INTEGER", "UPDATE t SET n = 5")
    (change,) = take(source, 1)
    assert told(change) == ("update", {"id": 1, "n": 5})
    assert change.properties["unchanged"] == '["name"]'
    shop.execute("ALTER TABLE t REPLICA IDENTITY FULL", "UPDATE t SET n = 6")
    (whole,) = take(source, 1)
    assert told(whole) == ("update", {"id": 1, "name": "x" * 9000, "n": 6})
    assert "unchanged" not in whole.properties
    assert json.loads(str(whole.properties["old"]))["n"] == 5


def test_keys_truncations_and_columns_that_change(shop: Shop) -> None:
    shop.execute("CREATE TABLE u (k TEXT PRIMARY KEY)", f'ALTER PUBLICATION "{shop.name}" ADD TABLE u')
    source = shop.connected()
    shop.execute("INSERT INTO t VALUES (1, 'a')", "UPDATE t SET id = 2", "TRUNCATE t, u", "ALTER TABLE t DROP name")
    shop.execute("INSERT INTO t VALUES (3)")
    inserted, moved, first, second, dropped = take(source, 5)
    assert told(moved) == ("update", {"id": 2, "name": "a"})
    assert moved.properties["old"] == '{"id":1}'
    assert {(one.properties["operation"], one.properties["table"]) for one in (first, second)} == {
        ("truncate", "t"),
        ("truncate", "u"),
    }
    assert told(first) == ("truncate", {})
    assert len({one.properties["uniqueMessageId"] for one in (first, second)}) == 2
    assert told(dropped) == ("insert", {"id": 3})
    assert inserted.properties["layout"] == moved.properties["layout"] != dropped.properties["layout"]


# --- snapshot ---


def test_settings_of_the_user_do_not_change_what_comes(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """A text of bytes in another format is an error: it could be the one of other bytes."""
    shop.execute("ALTER TABLE t ADD raw BYTEA", "INSERT INTO t VALUES (1, 'a', '00ff41')")
    url = f"{shop.url}%20-cbytea_output%3Descape%20-cidle_session_timeout%3D60000"
    source = shop.source(SNAPSHOT, url)
    with monkeypatch.context() as patch:
        patch.setattr(capture, "SESSION", "SELECT 1")
        source.connect()
        with pytest.raises(ConnectionLost, match="E7003 .*the snapshot cannot be read: .* not in the hex format"):
            source.receive(1, 10.0)
    source.connect()
    assert source._replication is not None
    assert source._replication._session.execute("SHOW idle_session_timeout").fetchone() == ("0",)
    shop.execute("INSERT INTO t VALUES (2, 'b', '00ff41')")
    found = [json.loads(one.body) for one in take(source, 2)[1:] + take(source, 1)]
    assert [one["raw"] for one in found] == ["MDBmZjQx", "MDBmZjQx"]


def test_the_rows_that_are_there_come_first(shop: Shop) -> None:
    shop.execute("INSERT INTO t SELECT i, 'x' || E'\\t' || i FROM generate_series(1, 20) AS i")
    source = shop.connected(SNAPSHOT, max_batch_size=8)
    shop.execute("INSERT INTO t VALUES (21)", "DELETE FROM t WHERE id = 1")
    found = [one for _ in range(2) for one in take(source, 8)] + take(source, 4) + take(source, 2)
    assert [told(one) for one in found[:20]] == [
        ("snapshot", {"id": number, "name": f"x\t{number}"}) for number in range(1, 21)
    ]
    assert [told(one) for one in found[20:]] == [("insert", {"id": 21, "name": None}), ("delete", {"id": 1})]
    assert len({one.properties["uniqueMessageId"] for one in found}) == 22
    assert found[0].properties["layout"] == found[20].properties["layout"]
    source.close()
    source = shop.connected(SNAPSHOT)
    shop.execute("INSERT INTO t VALUES (22)")
    assert ids(take(source, 1)) == [22]


def test_an_interrupted_snapshot_begins_again(shop: Shop) -> None:
    """A row that has come and was deleted meanwhile is not forgotten: the new snapshot tells to begin anew."""
    shop.execute("INSERT INTO t VALUES (1), (2), (3)")
    source = shop.connected(SNAPSHOT)
    first = take(source, 2)
    source.close()
    shop.execute("DELETE FROM t WHERE id = 1")
    source = shop.connected(SNAPSHOT)
    begin, *again = take(source, 3)
    assert told(begin) == ("truncate", {})
    assert [told(one)[0] for one in again] == ["snapshot", "snapshot"]
    assert ids(again) == [2, 3]
    names = {one.properties["uniqueMessageId"] for one in (*first, begin, *again)}
    assert len(names) == 5
    shop.execute("INSERT INTO t VALUES (4)")
    assert ids(take(source, 1)) == [4]


@pytest.mark.parametrize("phase", ["noted", "made", "taken", "read", "acknowledged", "begun"])
def test_a_death_in_each_phase_of_a_snapshot(shop: Shop, monkeypatch: pytest.MonkeyPatch, phase: str) -> None:
    """Whenever the process dies, the next life has all rows of the table, and goes on behind them."""

    class Dead(BaseException):
        pass

    def dies(owner: object, name: str, *, behind: bool = True) -> None:
        original = getattr(owner, name)

        def dying(*arguments: object, **named: object) -> object:
            if behind:
                original(*arguments, **named)
            raise Dead

        monkeypatch.setattr(owner, name, dying)

    shop.execute("INSERT INTO t VALUES (1), (2)")
    places = {
        "noted": lambda: dies(capture, "Replication", behind=False),
        "made": lambda: dies(replication.Replication, "create"),
        "taken": lambda: dies(capture, "tables_of"),
        "read": lambda: dies(capture._Snapshot, "take"),
        "acknowledged": lambda: dies(CaptureSource, "_save", behind=False),
        "begun": lambda: dies(replication.Replication, "begin"),
    }
    places[phase]()
    seen: dict[object, object] = {}

    def apply(messages: list[Message]) -> None:
        for one in messages:
            operation, row = told(one)
            if operation == "truncate":
                seen.clear()
            else:
                assert isinstance(row, dict)
                seen[row["id"]] = operation

    source = shop.source(SNAPSHOT)
    with pytest.raises(Dead):
        source.connect()
        apply(take(source, 2))
        take(source, 1)
    source.close()
    monkeypatch.undo()
    shop.execute("INSERT INTO t VALUES (3)")
    source = shop.connected(SNAPSHOT)
    while len(seen) < 3:
        apply(take(source, 1))
    assert seen[1] == seen[2] == "snapshot"
    assert json.loads(shop.position.read_bytes())["slot"] == shop.name


def test_a_snapshot_has_what_the_publication_has(shop: Shop) -> None:
    """Columns, conditions, partitions, several tables and generated columns, as in the changes."""
    shop.execute(
        "CREATE TABLE u (id INTEGER PRIMARY KEY, secret TEXT, twice INTEGER GENERATED ALWAYS AS (id * 2) STORED)",
        "CREATE TABLE v (id INTEGER) PARTITION BY RANGE (id)",
        "CREATE TABLE v1 PARTITION OF v FOR VALUES FROM (0) TO (10)",
        'CREATE TABLE "odd "" name" ("a, b" JSONB, raw BYTEA, at TIMESTAMPTZ)',
        f'DROP PUBLICATION "{shop.name}"',
        f'CREATE PUBLICATION "{shop.name}" FOR TABLE t WHERE (id > 1), u (id), v, "odd "" name"'
        " WITH (publish = 'insert', publish_via_partition_root = true)",
    )
    inserts = (
        "INSERT INTO t VALUES (1), (2)",
        "INSERT INTO u VALUES (5, 's')",
        "INSERT INTO v VALUES (7)",
        """INSERT INTO "odd "" name" VALUES ('{"x": "\\t"}', '\\x00', '2026-01-31 10:00+01')""",
    )
    shop.execute(*inserts)
    source = shop.connected(SNAPSHOT)
    first = take(source, 4)
    shop.execute(*(one.replace("(1), (2)", "(0), (3)").replace("(5, 's'", "(6, 's'") for one in inserts))
    second = take(source, 4)
    bodies = {one.properties["table"]: json.loads(one.body) for one in first}
    assert bodies == {
        "t": {"id": 2, "name": None},
        "u": {"id": 5},
        "v": {"id": 7},
        'odd " name': {"a, b": {"x": "\t"}, "raw": "AA==", "at": "2026-01-31T09:00:00+00:00"},
    }
    after = {one.properties["table"]: json.loads(one.body) for one in second}
    assert after == {**bodies, "t": {"id": 3, "name": None}, "u": {"id": 6}}
    assert {one.properties["layout"] for one in first} == {one.properties["layout"] for one in second}


# --- slots that do not fit ---


def failure(shop: Shop, code: str, options: dict[str, str] = STREAM, **more: object) -> str:
    """The error with which a source does not connect, or reads."""
    source = shop.source(options, **more)
    with pytest.raises(ConnectionLost) as raised:
        source.connect()
        for _ in range(20):
            source.receive(1, 0.5)
    source.close()
    assert raised.value.code == code, str(raised.value)
    return str(raised.value)


def begun(shop: Shop) -> None:
    """Let a receiver acknowledge a change."""
    source = shop.connected()
    shop.execute("INSERT INTO t VALUES (1)")
    shop.wait_sent()
    source.acknowledge(source.receive(10, 0.0).tokens)  # with the end of the transaction
    end = source._progress.flushed
    wait_until(lambda: shop.flushed == end)
    source.close()


def test_two_readers(shop: Shop) -> None:
    shop.connected()
    failure(shop, "E7012")
    reader = shop.connection().source(shop.receiver(durable_topic_subscription_name="another"))
    shop.made[0].receive(1, 0.0)
    with pytest.raises(ConnectionLost, match=r"E7607 .*another session reads replication slot '.*' \(.*process \d+\)"):
        reader.connect()
    reader.close()


def test_a_slot_that_is_gone_is_not_made_anew(shop: Shop) -> None:
    begun(shop)
    shop.drop_slot()
    text = failure(shop, "E7601")
    assert len(re.findall(r" [0-9A-F]+/[0-9A-F]+", text)) == 2, text
    assert not rows(shop.url, f"SELECT 1 FROM pg_replication_slots WHERE slot_name = '{shop.name}'")
    shop.position.unlink()
    shop.execute("INSERT INTO t VALUES (2)")
    assert ids(take(shop.connected(SNAPSHOT), 2)) == [1, 2]


def test_a_slot_that_another_reader_has_moved(shop: Shop) -> None:
    begun(shop)
    shop.execute("INSERT INTO t VALUES (2)")
    shop.execute(f"SELECT pg_replication_slot_advance('{shop.name}', pg_current_wal_lsn())")
    assert "another reader has moved it" in failure(shop, "E7604")


def test_a_server_that_was_restored(shop: Shop) -> None:
    begun(shop)
    position = json.loads(shop.position.read_bytes())
    shop.position.write_text(json.dumps({**position, "flushed": 2**60}))
    assert "the server was restored" in failure(shop, "E7605")


@pytest.mark.parametrize("field", ["system", "database", "slot"])
def test_a_position_of_another_slot(shop: Shop, field: str) -> None:
    begun(shop)
    position = json.loads(shop.position.read_bytes())
    shop.position.write_text(json.dumps({**position, field: "7"}))
    assert shop.name in failure(shop, "E7603")
    shop.position.write_text("{")
    assert "is damaged" in failure(shop, "E7017")


def test_a_slot_without_a_position(shop: Shop) -> None:
    """It may belong to another receiver. A receiver that takes no snapshot goes on where the slot stands."""
    begun(shop)
    shop.position.unlink()
    shop.execute("INSERT INTO t VALUES (2)")
    assert "set snapshot: never" in failure(shop, "E7606", SNAPSHOT)
    assert not shop.position.exists()
    assert ids(take(shop.connected(), 1)) == [2]


def test_a_slot_whose_log_was_removed(own_shop: Shop) -> None:
    shop = own_shop

    def codes() -> list[str]:
        return [one.code for one in shop.connection().examine([shop.receiver()], ())]

    begun(shop)
    shop.server.execute("ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'")
    try:
        shop.server.execute("SELECT pg_reload_conf()")
        for number in (2, 3, 4):
            shop.execute(f"INSERT INTO t VALUES ({number})", "SELECT pg_switch_wal()")
        wait_until(lambda: codes() == ["I7622", "W7623"])
        shop.server.execute("CHECKPOINT")
        assert codes() == ["E7602"]
        assert "has lost its log" in failure(shop, "E7602")
    finally:
        shop.server.execute("ALTER SYSTEM RESET max_slot_wal_keep_size")
        shop.server.execute("SELECT pg_reload_conf()")


def test_a_server_whose_log_does_not_hold_changes(tmp_path: Path) -> None:
    with running(PostgresServer()) as server:
        shop = Shop(server, tmp_path)
        told = r"E7600 receivers\.r: the server has wal_level = replica, .* Set wal_level = logical and restart"
        for options in (STREAM, SNAPSHOT):
            with pytest.raises(ConnectionLost, match=told):
                shop.connected(options)
        (found,) = shop.connection().examine([shop.receiver()], ())
        assert re.match(told, str(found))
        assert not shop.position.exists()
        shop.close()


def test_a_slot_of_another_kind(shop: Shop) -> None:
    shop.execute(f"SELECT pg_create_logical_replication_slot('{shop.name}', 'test_decoding')")
    assert "plugin test_decoding" in failure(shop, "E7608")


def test_publications(shop: Shop) -> None:
    begun(shop)
    shop.execute(f'DROP PUBLICATION "{shop.name}"', "INSERT INTO t VALUES (2)")
    assert "CREATE PUBLICATION" in failure(shop, "E7010")
    shop.execute(f'CREATE PUBLICATION "{shop.name}" FOR TABLE t')
    assert "Never drop a publication" in failure(shop, "E7609")


def test_the_name_of_a_publication_is_only_a_name(shop: Shop) -> None:
    name = f"""{shop.name} it's "quoted" \\ ü, 'p'); DROP"""
    quoted = '"' + name.replace('"', '""') + '"'
    shop.execute(f"CREATE PUBLICATION {quoted} FOR TABLE t")
    options = {"slot": shop.name, "snapshot": "never"}
    receiver = ReceiverSettings(id="r", connection="c", destination=f"topic:{name}", options=options)
    source = shop.connection().source(receiver)
    assert isinstance(source, CaptureSource)
    shop.made.append(source)
    source.connect()
    shop.execute("INSERT INTO t VALUES (1)")
    (message,) = take(source, 1)
    assert message.properties["messageSourceId"] == name
    shop.execute(f"DROP PUBLICATION {quoted}")


def test_a_server_that_says_nothing(own_shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """A frozen server does not answer a question, and counts as lost; one that answers does not."""
    shop = own_shop
    source = shop.connected()
    source.receive(1, 0.0)

    class Clock:
        now = 1000.0

        def monotonic(self) -> float:
            return self.now

        def time_ns(self) -> int:
            return int(self.now * 10**9)

    clock = Clock()
    monkeypatch.setattr(replication, "time", clock)
    monkeypatch.setattr(replication, "_END_S", 0.0)
    source.connect()
    for _ in range(5):
        clock.now += 30
        wait_until(lambda: (source.receive(1, 0.02), source._replication._asked is None)[1])
    with shop.server.frozen():  # its wal_sender_timeout is 60 s
        clock.now += 10
        source.receive(1, 0.0)
        clock.now += 109
        source.receive(1, 0.0)
        clock.now += 1
        with pytest.raises(ConnectionLost, match="E7003 .*the server has sent nothing for 120 s"):
            source.receive(1, 0.0)
        monkeypatch.undo()


def test_how_long_a_server_may_be_silent(shop: Shop) -> None:
    assert [replication.silence_s(one) for one in (10_000, 20_000, 0)] == [30.0, 40.0, math.inf]
    source = shop.source(url=f"{shop.url}%20-cwal_sender_timeout%3D0")
    source.connect()
    assert source._replication is not None
    assert source._replication._silent_s == math.inf
    parameters = source._replication._session.info.get_parameters()
    assert (parameters["keepalives_idle"], parameters["tcp_user_timeout"]) == ("10", "30000")


def test_a_slot_is_made_when_older_transactions_have_ended(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replication, "_CREATE_S", 0.05)
    with psycopg.connect(shop.url) as open_transaction:
        open_transaction.execute("INSERT INTO t VALUES (1)")
        failure(shop, "E7611", SNAPSHOT)
    monkeypatch.undo()
    assert ids(take(shop.connected(SNAPSHOT), 2)[1:]) == [1]


def test_a_forked_child_does_not_use_the_connection(shop: Shop) -> None:
    source = shop.connected()
    shop.execute("INSERT INTO t VALUES (1), (2)")
    held = source.receive(1, 10.0)
    child = multiprocessing.get_context("fork").Process(target=_in_child, args=(source, held))
    child.start()
    child.join()
    assert child.exitcode == 0
    source.acknowledge(held.tokens)
    assert ids(take(source, 1)) == [2]


def _in_child(source: CaptureSource, held: Chunk) -> None:
    for call in (source.connect, lambda: source.receive(1, 0.0), lambda: source.acknowledge(held.tokens)):
        with pytest.raises(UsageError, match="E2050"):
            call()
    source.close()


# --- doctor ---


def test_doctor(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    def found(options: dict[str, str] = STREAM) -> dict[str, str]:
        return {one.code: str(one) for one in shop.connection().examine([shop.receiver(options)], ())}

    assert set(found()) == {"W7621"}
    with psycopg.connect(shop.url) as long, monkeypatch.context() as patch:
        long.execute("INSERT INTO t VALUES (0)")
        patch.setattr(examination, "LONG_S", 0)
        assert "cannot make a slot" in found()["W7052"]
    begun(shop)
    shop.execute(
        "CREATE TABLE keyless (n INTEGER)",
        f'ALTER PUBLICATION "{shop.name}" ADD TABLE keyless',
        "INSERT INTO t SELECT i, repeat('x', 1000) FROM generate_series(2, 3000) AS i",
    )
    told_of = found()
    assert set(told_of) == {"W7620", "W7621", "I7622"}
    assert "keyless" in told_of["W7620"]
    assert 3 < float(told_of["I7622"].partition(" MiB")[0].rpartition(" ")[2]) < 8
    shop.execute(f'DROP PUBLICATION "{shop.name}"')
    assert set(found()) == {"E7010"}
    shop.execute(f'CREATE PUBLICATION "{shop.name}"')
    assert set(found()) == {"W7624", "W7621", "I7622"}
