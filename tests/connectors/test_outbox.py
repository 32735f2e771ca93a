"""Outbox tables: rows in order, each once; late commits; the one reader; wake-ups; rows and tables that do not fit."""

import dataclasses
import json
import multiprocessing
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from connectors.sql import SqlConnection, examination, waking
from connectors.sql.outbox import OutboxSource
from correlator import Engine, Reliability
from correlator.cli.main import execute as command
from correlator.connector import Chunk
from correlator.errors import ConfigError, ConnectionLost, RecoveryRefused, UsageError
from correlator.events import CUT_FROM, UNREADABLE
from correlator.settings import ConnectionSettings, EngineSettings, ReceiverSettings
from tests.connectors.tables import DATABASES, Dead, connecting, dying, execute, fresh, rows, sqlite_file
from tests.mysql_server import IS_MARIADB
from tests.servers import PostgresServer
from tests.waiting import wait_until

AN_HOUR = "1h"
PATIENCE_S = 30.0


@pytest.fixture(params=DATABASES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return fresh(request, tmp_path)


@pytest.fixture
def outbox(url: str) -> str:
    """The address of a database with an outbox table."""
    connection(url).create_outbox(receiver())
    return url


@pytest.fixture
def sources() -> Iterator[Callable[..., OutboxSource]]:
    """Makes connected sources, and closes them."""

    def outbox(url: str, **more: object) -> OutboxSource:
        if url.startswith("mysql"):  # nothing wakes it
            more = {"options": {"poll_interval": "10ms"}, **more}
        return connection(url).source(receiver(**more))

    with connecting(outbox) as make:
        yield make


@pytest.fixture
def is_sqlite(url: str) -> bool:
    return url.startswith("sqlite")


@pytest.fixture
def is_mysql(url: str) -> bool:
    return url.startswith("mysql")


def begin_keys_again(url: str) -> None:
    """Empty the outbox table: the next row gets the first key."""
    if url.startswith("sqlite"):
        execute(url, "DELETE FROM outbox", "DELETE FROM sqlite_sequence")
    else:
        execute(url, "TRUNCATE outbox" if url.startswith("mysql") else "TRUNCATE outbox RESTART IDENTITY")


def connection(url: str) -> SqlConnection:
    return SqlConnection("tables", ConnectionSettings(type="sql", options={"database": url}))


def receiver(table: str = "outbox", options: dict[str, object] | None = None, **more: object) -> ReceiverSettings:
    return ReceiverSettings(id="r", connection="tables", destination=f"queue:{table}", options=options or {}, **more)


def insert(url: str, *bodies: str, table: str = "outbox") -> None:
    """What a program of a user does, in one transaction."""
    execute(url, *(f"INSERT INTO {table} (body) VALUES ('{body}')" for body in bodies))


def bodies(chunk: Chunk) -> list[str]:
    return [message.body.decode() for message in chunk.messages]


def take(source: OutboxSource, most: int = 100) -> list[str]:
    """Take what is there and acknowledge it."""
    chunk = source.receive(most, 0.0)
    source.acknowledge(chunk.tokens)
    return bodies(chunk)


def unique_ids(chunk: Chunk) -> list[object]:
    return [message.properties["uniqueMessageId"] for message in chunk.messages]


# --- settings ---


@pytest.mark.parametrize(
    ("options", "code", "text"),
    [
        ({"colums": {}}, "E1020", "Did you mean 'columns'?"),
        ({"columns": ["id"]}, "E1022", "not a mapping"),
        ({"columns": {"boby": "x"}}, "E1020", "Did you mean 'body'?"),
        ({"columns": {"body": 1}}, "E1022", "receivers.r.columns.body"),
        ({"columns": {"body": ""}}, "E1022", "not a name of a column"),
        ({"columns": {"body": "a\0b"}}, "E1022", "not a name of a column"),
        ({"columns": {"body": "id"}}, "E1022", "'id' has two roles"),
        ({"columns": {"unique_id": "x", "body": "x"}}, "E1022", "'x' has two roles"),
        ({"schema": 1}, "E1022", "receivers.r.schema"),
        ({"poll_interval": "1ms"}, "E1022", "From 10ms to 1h"),
        ({"poll_interval": 5}, "E1022", "receivers.r.poll_interval"),
        ({"mode": "insert"}, "E1020", "receivers.r.mode"),
    ],
)
def test_options_of_receivers(options: dict[str, object], code: str, text: str) -> None:
    with pytest.raises(ConfigError, match=code) as raised:
        connection("sqlite:///never.db").source(receiver(options=options))
    assert text in str(raised.value)
    assert not Path("never.db").exists()


def engine_of(tmp_path: Path, *receivers: ReceiverSettings) -> Engine:
    made = {"tables": ConnectionSettings(type="sql", options={"database": f"sqlite:///{tmp_path}/shop.db"})}
    return Engine(EngineSettings(name="e", store=f"sqlite:///{tmp_path}/e.db", connections=made, receivers=receivers))


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ({}, {"schema": "sales"}, "outbox to sales.outbox"),
        ({"schema": "sales"}, {}, "sales.outbox to outbox"),
        ({"schema": "sales"}, {"schema": "old"}, "sales.outbox to old.outbox"),
    ],
)
def test_a1_11_a_receiver_does_not_silently_read_a_table_of_another_schema(
    tmp_path: Path, before: dict[str, object], after: dict[str, object], says: str
) -> None:
    """Nobody would read the rows that wait in the old table."""
    once = Reliability.EXACTLY_ONCE
    with engine_of(tmp_path, receiver(options=before, reliability=once)):
        pass
    told = f"^E4302 receiver 'r': subscription changed from {says}. .*dup_detection_domain_id: 'tables:queue:outbox'"
    with pytest.raises(RecoveryRefused, match=told):
        engine_of(tmp_path, receiver(options=after, reliability=once)).start()
    moved = receiver(options=after, reliability=once, dup_detection_domain_id="tables:queue:outbox")
    with engine_of(tmp_path, moved):
        pass


def test_a_schema_that_is_written_out_is_no_other_table(tmp_path: Path) -> None:
    once = Reliability.EXACTLY_ONCE
    lives: list[dict[str, object]] = [{}, {"schema": "main"}, {"schema": "main"}, {}, {}]
    for options in lives:
        with engine_of(tmp_path, receiver(options=options, reliability=once)):
            pass


@pytest.mark.postgres
def test_postgres_says_whether_two_schemas_have_one_table(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """The search path decides in which schema a table is; a table that is not there is in none."""
    server: PostgresServer = request.getfixturevalue("postgres_server")
    url = server.fresh_schema()
    ((name,),) = rows(url, "SELECT current_schema()")
    made, plain, written = connection(url), receiver(), receiver(options={"schema": name})
    assert not made.is_same_place(plain, written)
    made.create_outbox(plain)
    assert made.is_same_place(plain, written)
    assert made.is_same_place(written, plain)
    assert not made.is_same_place(plain, receiver(options={"schema": "public"}))
    assert not connection("postgresql://nobody:x@127.0.0.1:1/none").is_same_place(plain, written)


@pytest.mark.postgres
def test_a_schema_of_postgres_that_is_written_out_is_no_other_table(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    server: PostgresServer = request.getfixturevalue("postgres_server")
    url = server.fresh_schema()
    ((name,),) = rows(url, "SELECT current_schema()")
    connection(url).create_outbox(receiver())
    made = {"tables": ConnectionSettings(type="sql", options={"database": url})}
    lives: list[dict[str, object]] = [{}, {"schema": name}, {"schema": name}, {}]
    for options in lives:
        taking = receiver(options=options, reliability=Reliability.EXACTLY_ONCE)
        store = f"sqlite:///{tmp_path}/e.db"
        with Engine(EngineSettings(name="e", store=store, connections=made, receivers=(taking,))):
            pass


def test_receivers_of_tables_in_two_schemas_do_not_take_rows_of_each_other_for_repeats(tmp_path: Path) -> None:
    one = receiver(options={"schema": "sales"}, reliability=Reliability.EXACTLY_ONCE)
    other = dataclasses.replace(one, id="other", options={"schema": "returns"})
    with pytest.raises(ConfigError, match="E1225 receiver 'other': shares its ids with receiver 'r'"):
        engine_of(tmp_path, one, other).start()
    with engine_of(tmp_path, one, dataclasses.replace(other, dup_detection_domain_id="returns")):
        pass


# --- rows ---


def test_a_row_is_a_message(outbox: str, sources: Callable[..., OutboxSource], is_mysql: bool) -> None:
    created = "2026-01-31 13:00:00.125" if is_mysql else "2026-01-31 10:00:00.125Z"  # the server is three hours ahead
    properties = json.dumps({"region": "EU", "n": 1, "done": True, "ratio": 0.5, "none": None})
    execute(
        outbox,
        f"INSERT INTO outbox (body, properties, created) VALUES ('Grüße', '{properties}', '{created}')",
        "INSERT INTO outbox (body, properties) VALUES ('', 'null')",
    )
    source = sources(outbox)
    chunk = source.receive(10, 0.0)
    first, second = chunk.messages
    assert first.body == "Grüße".encode()
    assert second.body == b""
    (unique, own) = [str(one) for (one,) in rows(outbox, "SELECT unique_id FROM outbox ORDER BY id")]
    assert unique != own
    assert first.headers is not None
    assert (first.headers.message_id, first.headers.timestamp) == (unique, 1769853600125)
    ids = {"uniqueMessageId": unique, "messageSourceId": "outbox"}
    assert first.properties == {"region": "EU", "n": 1, "done": True, "ratio": 0.5, "none": None, **ids}
    assert second.properties == {"uniqueMessageId": own, "messageSourceId": "outbox"}
    source.acknowledge(chunk.tokens)
    assert rows(outbox, "SELECT * FROM outbox") == []


def test_the_user_may_give_the_ids(outbox: str, sources: Callable[..., OutboxSource]) -> None:
    execute(
        outbox,
        """INSERT INTO outbox (body, properties) VALUES ('a', '{"uniqueMessageId": "a-1", "messageSourceId": "a"}')""",
    )
    (message,) = sources(outbox).receive(10, 0.0).messages
    assert message.properties == {"uniqueMessageId": "a-1", "messageSourceId": "a"}


def test_ids_are_there_only_where_they_are_wanted(outbox: str, sources: Callable[..., OutboxSource]) -> None:
    insert(outbox, "a")
    (message,) = sources(outbox, unique_message_id="${body.number}", message_source_id="x").receive(10, 0.0).messages
    assert message.properties == {}


def test_rows_that_were_given_back_come_in_their_place(outbox: str, sources: Callable[..., OutboxSource]) -> None:
    insert(outbox, "a", "b", "c", "d")
    source = sources(outbox)
    chunk = source.receive(3, 0.0)
    source.reject(chunk.tokens[:1])
    assert bodies(source.receive(10, 0.0)) == ["a", "d"]
    source.acknowledge(chunk.tokens)  # the first one is given back: it is not settled by its old token
    assert [body for (body,) in rows(outbox, "SELECT body FROM outbox ORDER BY id")] == ["a", "d"]


def test_new_messages_never_pass_for_repeats(url: str, sources: Callable[..., OutboxSource]) -> None:
    """A new table, an emptied one, and a file of SQLite whose last rows were deleted begin again with the same keys."""
    seen: list[object] = []
    source = None
    for life in range(3):
        if life < 2:
            if life:
                execute(url, "DROP TABLE outbox")
            connection(url).create_outbox(receiver())
        else:
            begin_keys_again(url)
        insert(url, "a")
        assert rows(url, "SELECT id FROM outbox") == [(1,)]
        if source is not None:
            source.close()
        source = sources(url)
        chunk = source.receive(10, 0.0)
        seen += unique_ids(chunk)
        source.acknowledge(chunk.tokens)
    assert len(set(seen)) == 3


def test_an_acknowledgement_deletes_the_rows_that_were_read(outbox: str, sources: Callable[..., OutboxSource]) -> None:
    """Not the rows that have got the same keys meanwhile."""
    insert(outbox, "a", "b")
    source = sources(outbox)
    chunk = source.receive(10, 0.0)
    begin_keys_again(outbox)
    insert(outbox, "c", "d")
    source.acknowledge(chunk.tokens)
    assert rows(outbox, "SELECT id, body FROM outbox ORDER BY id") == [(1, "c"), (2, "d")]
    assert take(source) == ["c", "d"]


@pytest.mark.postgres
def test_a_row_that_commits_late_is_not_lost(
    postgres_server: PostgresServer, sources: Callable[..., OutboxSource]
) -> None:
    """Its key is lower than those that were read. A reader that goes on behind the last key never sees it."""
    url = postgres_server.fresh_schema()
    connection(url).create_outbox(receiver())
    source = sources(url)
    with psycopg.connect(url) as slow, psycopg.connect(url) as slower:
        slow.execute("INSERT INTO outbox (body) VALUES ('slow')")
        slower.execute("INSERT INTO outbox (body) VALUES ('slower')")
        insert(url, "fast")
        chunk = source.receive(10, 0.0)
        assert bodies(chunk) == ["fast"]
        slow.commit()
        last = rows(url, "SELECT max(id) FROM outbox")[0][0]
        assert rows(url, f"SELECT body FROM outbox WHERE id > {last}") == []  # the control
        assert take(source) == ["slow"]
        source.acknowledge(chunk.tokens)
        slower.commit()
        assert take(source) == ["slower"]


def test_a_chunk_is_bounded(outbox: str, sources: Callable[..., OutboxSource]) -> None:
    insert(outbox, "1" * 40, "2" * 40, "3" * 40, "4" * 40)
    source = sources(outbox, max_batch_bytes=100, max_batch_size=3)
    assert [len(take(source)) for _ in range(3)] == [3, 1, 0]
    insert(outbox, "1" * 200, "2", "3", "4", "5")
    assert len(source.receive(10, PATIENCE_S).messages) == 1
    assert [len(source.receive(10, 0.0).messages) for _ in range(2)] == [2, 0]


def test_a_row_that_cannot_be_read_holds_up_nothing(
    outbox: str, is_sqlite: bool, is_mysql: bool, sources: Callable[..., OutboxSource]
) -> None:
    whole = "[1]" if is_mysql and not IS_MARIADB else 2**70  # MySQL makes such a number one with a fraction
    wrong = ["[1]", '{"a": [1]}', f'{{"a": {whole}}}', '{"a": NaN}' if is_sqlite else '{"a": {}}']
    for text in wrong:
        execute(outbox, f"INSERT INTO outbox (body, properties) VALUES ('x', '{text}')")
    if is_sqlite:
        execute(outbox, "INSERT INTO outbox (body, created) VALUES (CAST(x'ff00' AS TEXT), 'yesterday')")
        execute(outbox, "INSERT INTO outbox (body, unique_id) VALUES (17, CAST(x'ff' AS TEXT))")
    elif is_mysql:
        execute(outbox, "ALTER TABLE outbox MODIFY created DATETIME", "INSERT INTO outbox (body) VALUES ('y'), ('z')")
    else:
        execute(outbox, "INSERT INTO outbox (body, created) VALUES ('y', 'infinity'), ('z', '-infinity')")
    insert(outbox, "good")
    messages = sources(outbox).receive(100, 0.0).messages
    assert [UNREADABLE in message.properties for message in messages] == [True] * 4 + [False] * 3
    assert all("uniqueMessageId" in message.properties for message in messages)
    read = [message.body for message in messages[4:]]
    assert read == ([b"\xff\0", b"17", b"good"] if is_sqlite else [b"y", b"z", b"good"])
    assert messages[4].headers is not None
    assert messages[4].headers.timestamp is None


def test_a_large_row_is_cut(outbox: str, sources: Callable[..., OutboxSource]) -> None:
    insert(outbox, "a" * 1000, "b" * 11, "c" * 10)
    execute(outbox, f"""INSERT INTO outbox (body, properties) VALUES ('d', '{{"p": "{"q" * 1000}"}}')""")
    messages = sources(outbox, max_message_bytes=10).receive(10, 0.0).messages
    assert [len(message.body) for message in messages] == [11, 11, 10, 1]
    assert [message.properties.get(CUT_FROM) for message in messages] == [1000, None, None, None]
    assert len(str(messages[3].properties)) < 500


# --- the table ---


def test_a_table_with_other_names_and_types(
    url: str, is_sqlite: bool, is_mysql: bool, sources: Callable[..., OutboxSource]
) -> None:
    name = 'an "outbox"; DROP TABLE x; --%s (:a)'
    columns = {"id": 'a "number" %s', "body": "pay:load", "properties": "select", "created": "at", "unique_id": "event"}
    options = {"columns": columns}
    connection(url).create_outbox(receiver(name, options))
    connection(url).create_outbox(receiver(name, options))  # it is there already
    mark = "`" if is_mysql else '"'
    escaped = name.replace(mark, mark * 2) if is_sqlite else name.replace(mark, mark * 2).replace("%", "%%")
    table = f"{mark}{escaped}{mark}"
    execute(url, f"INSERT INTO {table} ({mark}pay:load{mark}) VALUES ('a')")
    source = sources(url, table=name, options=options)
    assert take(source) == ["a"]
    assert rows(url, f"SELECT * FROM {table}") == []


@pytest.mark.postgres
@pytest.mark.parametrize(
    ("kind", "value", "body"),
    [("BYTEA", "'\\x00ff'", b"\0\xff"), ("JSON", """'{"b":  1}'""", b'{"b":  1}'), ("JSONB", "'[1]'", b"[1]")],
)
def test_bodies_of_other_types(
    postgres_server: PostgresServer, sources: Callable[..., OutboxSource], kind: str, value: str, body: bytes
) -> None:
    url = postgres_server.fresh_schema()
    execute(
        url,
        "CREATE SCHEMA other",
        f"CREATE TABLE other.o (id INTEGER PRIMARY KEY, body {kind}, unique_id TEXT NOT NULL, created DATE)",
        f"INSERT INTO other.o VALUES (1, {value}, 'u', '2026-01-31'), (2, NULL, 'v', NULL)",
    )
    source = sources(url, table="o", options={"schema": "other"})
    first, second = source.receive(10, 0.0).messages
    assert (first.body, second.body) == (body, b"")
    assert first.headers is not None
    assert (first.headers.message_id, first.headers.timestamp) == ("u", 1769817600000)
    execute(url, "DROP SCHEMA other CASCADE")


@pytest.mark.parametrize(
    ("statement", "options", "code", "text"),
    [
        ("SELECT 1", {}, "E7010", "no table 'outbox'"),
        ("CREATE VIEW outbox AS SELECT 1 AS id", {}, "E7042", "is a view"),
        ("CREATE TABLE outbox (id INTEGER PRIMARY KEY, body TEXT)", {}, "E7041", "no column 'unique_id'"),
        ("CREATE TABLE outbox (id INTEGER PRIMARY KEY, unique_id TEXT NOT NULL)", {}, "E7041", "no column 'body'"),
        (
            "CREATE TABLE outbox (id INTEGER PRIMARY KEY, body TEXT, unique_id TEXT NOT NULL)",
            {"columns": {"created": "at"}},
            "E7041",
            "no column 'at'",
        ),
        (
            "CREATE TABLE outbox (id INTEGER PRIMARY KEY, body TEXT, unique_id TEXT)",
            {},
            "E7041",
            "null in column 'unique_id'",
        ),
        (
            "CREATE TABLE outbox (id INTEGER, body TEXT, unique_id TEXT NOT NULL)",
            {},
            "E7041",
            "null in column 'id'",
        ),
        (
            "CREATE TABLE outbox (id VARCHAR(9) PRIMARY KEY NOT NULL, body TEXT, unique_id TEXT NOT NULL)",
            {},
            "E7041",
            "holds whole numbers",
        ),
    ],
)
def test_what_cannot_be_an_outbox(url: str, statement: str, options: dict[str, object], code: str, text: str) -> None:
    execute(url, statement)
    settings = receiver(options=options)
    with pytest.raises(ConnectionLost, match=rf"{code} receivers\.r: .*{text}"):
        connection(url).source(settings).connect()
    assert [one.code for one in connection(url).examine([settings], ())] == [code]
    if code != "E7010":
        with pytest.raises(ConnectionLost, match=code):
            connection(url).create_outbox(settings)


def test_a_missing_file(tmp_path: Path) -> None:
    path = tmp_path / "none.db"
    for call in (
        connection(f"sqlite:///{path}").source(receiver()).connect,
        lambda: connection(f"sqlite:///{path}").create_outbox(receiver()),
    ):
        with pytest.raises(ConnectionLost, match=r"E7010 receivers\.r: there is no database"):
            call()
    assert not path.exists()


@pytest.mark.postgres
def test_a_time_of_another_type_and_a_user_without_rights(postgres_server: PostgresServer) -> None:
    url = postgres_server.fresh_database()
    execute(url, "CREATE TABLE outbox (id INTEGER PRIMARY KEY, body TEXT, unique_id TEXT NOT NULL, created TEXT)")
    source = connection(url).source(receiver())
    source.connect()
    execute(url, "INSERT INTO outbox VALUES (1, 'a', 'u', 'yesterday')")
    assert take(source) == ["a"]
    source.close()
    named = receiver(options={"columns": {"created": "created"}})
    with pytest.raises(ConnectionLost, match="E7041 .*holds times or dates"):
        connection(url).source(named).connect()
    execute(url, "CREATE ROLE reader LOGIN PASSWORD 'reader'", "GRANT SELECT ON outbox TO reader")
    weak = url.replace(f"{postgres_server.user}:{postgres_server.password}@", "reader:reader@")
    with pytest.raises(ConnectionLost, match="E7007 .*may not delete rows"):
        connection(weak).source(receiver()).connect()
    execute(url, "DROP OWNED BY reader", "DROP ROLE reader")


# --- the one reader ---


def test_one_receiver_reads_a_table_at_a_time(outbox: str, sources: Callable[..., OutboxSource]) -> None:
    insert(outbox, "a", "b")
    one = sources(outbox)
    held = one.receive(1, 0.0)
    with pytest.raises(ConnectionLost, match=r"E7009 receivers\.r: another receiver reads the outbox table \(\S"):
        sources(outbox)
    connection(outbox).create_outbox(receiver("other"))
    other = sources(outbox, table="other")
    other.close()
    one.acknowledge(held.tokens)
    one.connect()  # again, in its own place
    one.close()
    assert take(sources(outbox)) == ["b"]


def test_one_file_has_one_reader_whatever_its_path(tmp_path: Path, sources: Callable[..., OutboxSource]) -> None:
    url = sqlite_file(tmp_path)
    connection(url).create_outbox(receiver())
    sources(url)
    link = tmp_path / "link.db"
    link.symlink_to(tmp_path / "tables.db")
    with pytest.raises(ConnectionLost, match="E7009"):
        sources(f"sqlite:///{link}")


def test_a_forked_child_does_not_use_the_connection(outbox: str, sources: Callable[..., OutboxSource]) -> None:
    insert(outbox, "a", "b")
    source = sources(outbox)
    held = source.receive(1, 0.0)
    child = multiprocessing.get_context("fork").Process(target=_in_child, args=(source, held))
    child.start()
    child.join()
    assert child.exitcode == 0
    source.acknowledge(held.tokens)
    assert take(source) == ["b"]


def _in_child(source: OutboxSource, held: Chunk) -> None:
    calls = (source.connect, lambda: source.receive(1, 0.0), lambda: source.acknowledge(held.tokens))
    for call in calls:
        with pytest.raises(UsageError, match="E2050"):
            call()
    source.close()


# --- waking ---


def test_a_commit_wakes_the_receiver(outbox: str, sources: Callable[..., OutboxSource], is_mysql: bool) -> None:
    source = sources(outbox, options={"poll_interval": "10ms" if is_mysql else AN_HOUR})  # nothing wakes it in MySQL
    assert take(source) == []
    for body in ("a", "b"):
        program = threading.Timer(0.1, insert, (outbox, body))
        program.start()
        chunk = source.receive(10, PATIENCE_S)
        program.join()
        assert bodies(chunk) == [body]
        source.acknowledge(chunk.tokens)
    insert(outbox, "c")
    chunk = source.receive(1, PATIENCE_S)  # a wake-up counts, too, if it has come between two calls
    assert bodies(chunk) == ["c"]
    assert take(source) == []
    insert(outbox, "d")
    source.acknowledge(chunk.tokens)  # or together with the answer to another statement
    assert bodies(source.receive(10, PATIENCE_S)) == ["d"]


@pytest.mark.postgres
def test_a_table_without_trigger_is_polled(
    postgres_server: PostgresServer, sources: Callable[..., OutboxSource]
) -> None:
    url = postgres_server.fresh_schema()
    connection(url).create_outbox(receiver())
    execute(url, "DROP TRIGGER correlator_outbox ON outbox")
    source = sources(url, options={"poll_interval": "10ms"})
    assert take(source) == []
    program = threading.Timer(0.1, insert, (url, "a"))
    program.start()
    assert bodies(source.receive(10, PATIENCE_S)) == ["a"]
    program.join()


@pytest.mark.postgres
def test_a_session_that_the_server_ends(postgres_server: PostgresServer, sources: Callable[..., OutboxSource]) -> None:
    """Also while the source waits for notices; what was not acknowledged comes again, in order."""
    url = postgres_server.fresh_database()
    connection(url).create_outbox(receiver())
    source = sources(url, options={"poll_interval": AN_HOUR})
    insert(url, "a", "b", "c")
    held = source.receive(2, 0.0)
    postgres_server.terminate_backends(url)
    with pytest.raises(ConnectionLost, match="E7003"):
        source.acknowledge(held.tokens)
    source.connect()
    assert take(source, 1) == ["a"]
    assert take(source) == ["b", "c"]
    assert take(source) == []
    end = threading.Timer(0.1, postgres_server.terminate_backends, (url,))
    end.start()
    with pytest.raises(ConnectionLost, match="E7003"):
        source.receive(10, PATIENCE_S)
    end.join()
    insert(url, "d")
    source.connect()
    assert take(source) == ["d"]


@pytest.mark.postgres
def test_a_receiver_that_reads_no_notices_is_ended(
    postgres_server: PostgresServer, sources: Callable[..., OutboxSource], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that is paused: the server keeps notices for a session that lives, until COMMIT fails for all programs."""
    monkeypatch.setattr(waking, "_NOTICES_LOST_READER", "SET tcp_user_timeout = '1s'")
    url = postgres_server.fresh_database()
    connection(url).create_outbox(receiver())
    source = sources(url)
    ((oid,),) = rows(url, "SELECT 'outbox'::regclass::oid::bigint")
    flood = f"SELECT pg_notify('correlator_outbox_{oid}', repeat('x', 7900) || i) FROM generate_series(1, 1000) AS i"
    with psycopg.connect(url, autocommit=True) as program:
        others = (
            f"SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND pid <> {program.info.backend_pid}"
        )

        def is_ended() -> bool:
            program.execute(flood)
            return not program.execute(others).fetchall()

        wait_until(is_ended)
    with pytest.raises(ConnectionLost, match="E7003"):
        source.receive(1, 0.0)


def test_a_writer_of_sqlite_is_not_held_up(tmp_path: Path, sources: Callable[..., OutboxSource]) -> None:
    url = sqlite_file(tmp_path)
    connection(url).create_outbox(receiver())
    insert(url, "a")
    source = sources(url)
    with closing(sqlite3.connect(tmp_path / "tables.db", isolation_level=None)) as program:
        program.execute("BEGIN IMMEDIATE")
        program.execute("INSERT INTO outbox (body) VALUES ('b')")
        held = source.receive(10, 0.0)
        assert bodies(held) == ["a"]
        program.execute("COMMIT")
    source.acknowledge(held.tokens)
    assert take(source) == ["b"]


# --- deaths ---


def test_a_death_behind_each_call_of_the_driver(
    outbox: str, sources: Callable[..., OutboxSource], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next life gets all rows or none of them, with the same ids."""
    deaths = 0
    for call in range(1, 100):
        insert(outbox, "a", "b")
        source, left = sources(outbox), [call]
        assert source._connection is not None
        first: list[object] = []
        with monkeypatch.context() as patched:
            for name in ("do_commit", "do_execute", "do_executemany"):
                patched.setattr(source._connection.dialect, name, dying(source._connection.dialect, name, left))
            try:
                chunk = source.receive(10, 0.0)
                first = unique_ids(chunk)
                source.acknowledge(chunk.tokens)
            except Dead:
                deaths += 1
        source.close()
        again = sources(outbox)
        chunk = again.receive(10, 0.0)
        assert unique_ids(chunk) in ([], first or unique_ids(chunk))
        assert bodies(chunk) in ([], ["a", "b"])
        again.acknowledge(chunk.tokens)
        again.close()
        if left[0] > 0:
            break
    assert deaths > 3
    assert rows(outbox, "SELECT * FROM outbox") == []


# --- browsing and doctor ---


def test_browsing_takes_nothing(outbox: str, sources: Callable[..., OutboxSource]) -> None:
    insert(outbox, "a", "b", "c")
    source = sources(outbox)
    held = source.receive(1, 0.0)
    shown = connection(outbox).browse("queue:outbox", 2, {"poll_interval": "1s", "mode": "insert"})
    assert [message.body for message in shown] == [b"a", b"b"]
    source.acknowledge(held.tokens)
    assert take(source) == ["b", "c"]
    for destination, code in (("topic:outbox", "E2110"), ("queue:none", "E2027")):
        with pytest.raises(UsageError, match=code):
            connection(outbox).browse(destination, 1)
    execute(outbox, "CREATE TABLE other (id INTEGER PRIMARY KEY)")
    with pytest.raises(ConnectionLost, match=r"E7041 connections\.tables"):
        connection(outbox).browse("queue:other", 1)


def test_doctor_tells_what_waits_and_changes_nothing(outbox: str) -> None:
    assert connection(outbox).examine([receiver()], ()) == []
    insert(outbox, "a", "b")
    (found,) = connection(outbox).examine([receiver()], ())
    assert str(found).startswith("I7053 receivers.r: 2 rows wait in the outbox table, the oldest for ")
    assert len(rows(outbox, "SELECT * FROM outbox")) == 2


@pytest.mark.postgres
def test_doctor_finds_what_slows_a_receiver_down(
    postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = postgres_server.fresh_schema()
    connection(url).create_outbox(receiver())
    execute(url, "ALTER TABLE outbox DISABLE TRIGGER correlator_outbox", "CREATE TABLE other (id INTEGER)")
    execute(url, "CREATE TABLE polled (tx xid8 NOT NULL DEFAULT pg_current_xact_id(), id INTEGER PRIMARY KEY)")
    polled = ReceiverSettings(id="p", connection="tables", destination="topic:polled", options={"order_column": "tx"})
    assert [one.code for one in connection(url).examine([receiver(), polled], ())] == ["W7051"]
    monkeypatch.setattr(examination, "LONG_S", 0)
    with psycopg.connect(url, application_name="slow program") as program:
        program.execute("INSERT INTO other VALUES (1)")
        found = connection(url).examine([receiver(), polled], ())
    assert [one.code for one in found] == ["W7051", "W7052", "W7052"]
    assert "'slow program'" in str(found[1])


# --- the command ---

FILE = """
version: 1
name: shop
store: sqlite:///engine.db
connections:
  shop: {type: sql, database: "URL"}
  files: {type: file, path: "."}
receivers:
  - {id: orders, connection: shop, destination: orders_out, reliability: AT_LEAST_ONCE, unhandled: ignore}
  - {id: lines, connection: files, destination: "queue:lines.jsonl", unhandled: ignore}
destinations: {orders_out: "queue:outbox"}
monitors:
  - {type: "correlator:Monitor"}
"""


def test_the_command_makes_the_table(
    url: str,
    is_sqlite: bool,
    is_mysql: bool,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    sources: Callable[..., OutboxSource],
) -> None:
    file = tmp_path / "shop.yaml"
    file.write_text(FILE.replace("URL", url))
    file.chmod(0o600)
    assert command(["outbox", "create", str(file), "orders", "--sql"]) == 0
    printed = capsys.readouterr().out
    with pytest.raises(Exception, match="outbox"):
        rows(url, "SELECT * FROM outbox")
    if is_sqlite:
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as raw:
            raw.executescript(printed)
    elif is_mysql:
        execute(url, printed)
    else:
        with psycopg.connect(url) as session:
            session.execute(printed)
    insert(url, "a")
    assert take(sources(url)) == ["a"]
    execute(url, "DROP TABLE outbox")
    for _ in range(2):
        assert command(["outbox", "create", str(file), "orders"]) == 0
        assert capsys.readouterr().out == "queue:outbox is an outbox table\n"
    insert(url, "b")
    for name, code, text in (("orderss", "E2017", "Did you mean 'orders'"), ("lines", "E2018", "has no outbox tables")):
        assert command(["outbox", "create", str(file), name]) == 2
        error = capsys.readouterr().err
        assert code in error
        assert text in error
