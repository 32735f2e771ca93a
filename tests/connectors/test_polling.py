"""Tables that a receiver polls: rows in order, late commits, equal values, positions, and tables that do not fit."""

import json
import multiprocessing
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest

from connectors.sql import SqlConnection, polling, table_source
from connectors.sql.polled_dialects import Place
from connectors.sql.polling import Horizon, PolledSource
from connectors.sql.row_progress import RowProgress
from correlator.connector import Chunk, notes_of
from correlator.errors import ConfigError, ConnectionLost, UsageError
from correlator.events import CUT_FROM
from correlator.settings import ConnectionSettings, ReceiverSettings, SenderSettings
from tests.connectors.tables import DATABASES, connecting, execute, fresh, rows, sqlite_file
from tests.servers import PostgresServer

BY_ID = {"order_column": "id"}
LATE = {**BY_ID, "lag": "1ms"}
BY_TRANSACTION = {"order_column": "tx"}
WITH_TRANSACTION = (
    "CREATE TABLE t (id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name TEXT,"
    " tx xid8 NOT NULL DEFAULT pg_current_xact_id())"
)


class Clock:
    """Takes the place of the module `time`: the time passes where somebody sleeps, or at an order."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += max(seconds, 0.0)


@pytest.fixture(params=DATABASES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return fresh(request, tmp_path)


@pytest.fixture
def is_sqlite(url: str) -> bool:
    return url.startswith("sqlite")


@pytest.fixture
def is_mysql(url: str) -> bool:
    return url.startswith("mysql")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of sources; it stands still."""
    clock = Clock()
    for module in (polling, table_source):
        monkeypatch.setattr(module, "time", clock)
    return clock


@pytest.fixture
def sources(tmp_path: Path) -> Iterator[Callable[..., PolledSource]]:
    """Makes connected sources, and closes them."""
    with connecting(lambda url, **more: source_of(url, tmp_path, **more)) as make:
        yield make


def source_of(url: str, place: Path, **more: object) -> PolledSource:
    source = connection(url, place).source(receiver(**more))
    assert isinstance(source, PolledSource)
    return source


def connection(url: str, place: Path) -> SqlConnection:
    return SqlConnection(
        "tables", ConnectionSettings(type="sql", options={"database": url, "state": str(place / "state")})
    )


def receiver(table: str = "t", options: dict[str, object] = BY_ID, **more: object) -> ReceiverSettings:
    return ReceiverSettings(id="r", connection="tables", destination=f"topic:{table}", options=options, **more)


def values(chunk: Chunk, name: str = "id") -> list[object]:
    return [json.loads(message.body)[name] for message in chunk.messages]


def take(source: PolledSource, most: int = 100) -> list[object]:
    """The ids of what is there, which is acknowledged."""
    chunk = source.receive(most, 0.0)
    source.acknowledge(chunk.tokens)
    return values(chunk)


def settled(source: PolledSource, clock: Clock) -> list[object]:
    """The ids of what is there, once it has been there for long enough."""
    found = take(source)
    clock.now += 3600
    return found + take(source)


# --- settings ---


@pytest.mark.parametrize(
    ("options", "code", "text"),
    [
        ({}, "E1021", "neither 'order_column' nor 'slot' is set"),
        ({"order_column": ""}, "E1022", "receivers.r.order_column"),
        ({"order_column": "id", "key_column": "x"}, "E1020", "Did you mean 'key_columns'?"),
        ({"order_column": "id", "columns": {}}, "E1020", "receivers.r.columns"),
        ({"order_column": "id", "key_columns": []}, "E1022", "not a list of columns"),
        ({"order_column": "id", "lag": "0s"}, "E1022", "From 1ms to 1h"),
        ({"order_column": "id", "lag": "2h"}, "E1022", "From 1ms to 1h"),
        ({"order_column": "id", "start": "latest"}, "E1022", "first, next"),
        ({"order_column": "id", "poll_interval": "1ms"}, "E1022", "From 10ms to 1h"),
    ],
)
def test_options_of_receivers(options: dict[str, object], code: str, text: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=code) as raised:
        connection("sqlite:///never.db", tmp_path).source(receiver(options=options))
    assert text in str(raised.value)
    assert not list(tmp_path.iterdir())


def test_lint_warns_of_a_lag() -> None:
    (advice,) = SqlConnection.advice(receiver(options=LATE))
    assert (advice.code, advice.option) == ("W1230", "lag")
    assert list(SqlConnection.advice(receiver(options=BY_TRANSACTION))) == []
    assert list(SqlConnection.advice(SenderSettings(id="s", connection="c", options={"lag": 1}))) == []


def test_explain_names_what_a_lag_may_lose() -> None:
    tables = SqlConnection("c", ConnectionSettings(type="sql", options={"database": "postgresql://nowhere/x"}))
    found = [
        notes_of(tables, ReceiverSettings(id="r", connection="c", destination="topic:t", options=options))
        for options in ({"order_column": "at", "lag": "5s"}, {"order_column": "tx"})
    ]
    assert [list(one) for one in found] == [
        ["'r' loses a row that commits more than 5s after rows with higher values"],
        [],
    ]


def test_positions_need_a_place() -> None:
    with pytest.raises(ConfigError, match=r"E1021 connections\.c: 'state' is missing, which receivers\.r needs"):
        SqlConnection("c", ConnectionSettings(type="sql", options={"database": "sqlite:///x.db"})).source(receiver())
    with pytest.raises(ConfigError, match=r"E1022 connections\.c\.state"):
        SqlConnection("c", ConnectionSettings(type="sql", options={"database": "sqlite:///x.db", "state": 1}))


# --- rows ---


def test_a_row_is_a_json_object(
    url: str, is_sqlite: bool, is_mysql: bool, clock: Clock, sources: Callable[..., PolledSource]
) -> None:
    name = """it's "quoted" %s :id \\ """ + ("ü" if is_mysql else "🚚")  # MySQL has no name beyond 16 bits
    quoted = name.replace('"', '""') if is_sqlite else name.replace('"', '""').replace("%", "%%")
    kinds = ("BLOB", "x'00ff41'") if is_sqlite or is_mysql else ("BYTEA", "'\\x00ff41'")
    column = f"`{name.replace('%', '%%')}`" if is_mysql else f'"{quoted}"'
    execute(
        url,
        f"CREATE TABLE t (id INTEGER PRIMARY KEY, {column} TEXT, raw {kinds[0]}, ratio REAL, whole BIGINT)",
        f"INSERT INTO t VALUES (7, 'Grüße \"', {kinds[1]}, 0.5, 9007199254740993), (8, NULL, NULL, NULL, NULL)",
    )
    source = sources(url, options=LATE)
    assert not source.receive(10, 0.0).messages
    clock.now += 3600
    first, second = source.receive(10, 0.0).messages
    expected = {"id": 7, name: 'Grüße "', "raw": "AP9B", "ratio": 0.5, "whole": 9007199254740993}
    assert json.loads(first.body) == expected
    assert json.loads(second.body) == {"id": 8, name: None, "raw": None, "ratio": None, "whole": None}
    assert first.properties["messageSourceId"] == "t"
    assert str(first.properties["uniqueMessageId"]).startswith("[7]:" if is_sqlite or is_mysql else '["7"]:')
    assert first.headers is not None
    assert first.headers.message_id == first.properties["uniqueMessageId"]


def test_a_value_that_cannot_be_read_holds_up_nothing(tmp_path: Path, sources: Callable[..., PolledSource]) -> None:
    url = sqlite_file(tmp_path)
    execute(
        url,
        "CREATE TABLE t (id INTEGER PRIMARY KEY, v)",
        "INSERT INTO t VALUES (1, CAST(x'ff' AS TEXT)), (2, 9e999), (3, 'good')",
    )
    chunk = sources(url).receive(10, 0.0)
    assert values(chunk, "v") == ["\\xff", None, "good"]


@pytest.mark.postgres
def test_values_of_postgres(postgres_server: PostgresServer, sources: Callable[..., PolledSource]) -> None:
    url = postgres_server.fresh_schema()
    execute(
        url,
        WITH_TRANSACTION.replace("name TEXT", "n NUMERIC, at TIMESTAMPTZ, f FLOAT8, j JSONB, tags TEXT[]"),
        "INSERT INTO t (n, at, f, j, tags) VALUES (1.50, '2026-01-31 10:00+01', 'NaN', '{\"a\": 1}', '{x,y}'),"
        " ('NaN', 'infinity', '-Infinity', 'null', NULL)",
    )
    first, second = (json.loads(one.body) for one in sources(url, options=BY_TRANSACTION).receive(10, 0.0).messages)
    assert first["n"] == 1.5
    assert (first["at"], first["f"], first["j"], first["tags"]) == (
        "2026-01-31T09:00:00+00:00",
        "NaN",
        {"a": 1},
        ["x", "y"],
    )
    assert (second["n"], second["at"], second["f"], second["tags"]) == ("NaN", "infinity", "-Infinity", None)


def test_rows_with_equal_values(
    url: str, is_sqlite: bool, is_mysql: bool, clock: Clock, sources: Callable[..., PolledSource]
) -> None:
    """Thousands of rows of one time come in batches of 100, each once, over several lives."""
    number, kind, series = 10_000, "TIMESTAMPTZ", "SELECT i, '2026-01-31' FROM generate_series(1, 10000) AS i"
    if is_sqlite:
        kind = "TEXT"
        series = (
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 10000) SELECT i, 'now' FROM n"
        )
    elif is_mysql:
        number, kind = 2_600, "TIMESTAMP(6)"
        series = "VALUES " + ", ".join(f"({i}, '2026-01-31')" for i in range(1, number + 1))
    execute(
        url,
        f"CREATE TABLE t (id INTEGER PRIMARY KEY, at {kind} NOT NULL)",
        "CREATE INDEX t_at ON t (at, id)",
        f"INSERT INTO t {series}",
    )
    options = {"order_column": "at", "lag": "1s"}
    source, seen = sources(url, options=options), []
    for _ in range(number // 50):
        found = take(source)
        seen += found
        clock.now += 1
        if found and len(seen) % 2500 == 100:
            source.connect()
    assert seen == list(range(1, number + 1))
    assert settled(source, clock) == []


def test_chunks_are_bounded(tmp_path: Path, sources: Callable[..., PolledSource]) -> None:
    url = sqlite_file(tmp_path)
    execute(url, "CREATE TABLE t (id INTEGER PRIMARY KEY, v TEXT)")
    execute(url, *(f"INSERT INTO t VALUES ({number}, '{'x' * 20}')" for number in range(6)))
    source = sources(url, max_batch_bytes=80, max_batch_size=5, max_message_bytes=1000)
    held = source.receive(10, 0.0)
    assert len(held.messages) == 3
    assert [len(source.receive(10, 0.0).messages) for _ in range(2)] == [2, 0]
    source.acknowledge(held.tokens)
    assert len(source.receive(10, 0.0).messages) == 1
    source.close()
    (message,) = sources(url, max_message_bytes=10, max_batch_bytes=1).receive(10, 0.0).messages
    assert (len(message.body), message.properties[CUT_FROM]) == (11, 35)


# --- commits out of order ---


def by_transaction(
    server: PostgresServer, sources: Callable[..., PolledSource], **options: str
) -> tuple[str, PolledSource]:
    """A fresh table in the order of transactions, and its source."""
    url = server.fresh_schema()
    execute(url, WITH_TRANSACTION)
    return url, sources(url, options={**BY_TRANSACTION, **options})


@pytest.mark.postgres
def test_commits_out_of_order(postgres_server: PostgresServer, sources: Callable[..., PolledSource]) -> None:
    """Transactions begin one after the other and commit in another order. A poller behind the last id loses rows."""
    url, source = by_transaction(postgres_server, sources, poll_interval="10ms")
    chance = random.Random(7)
    naive: list[object] = []
    seen: list[object] = []
    with ExitStack() as stack:
        looking = stack.enter_context(psycopg.connect(url, autocommit=True))

        def look() -> None:
            last = naive[-1] if naive else 0
            naive.extend(one for (one,) in looking.execute("SELECT id FROM t WHERE id > %s ORDER BY id", (last,)))
            seen.extend(take(source))
            source.reject(())  # look again at the next call, although nothing tells of changes

        programs = [stack.enter_context(psycopg.connect(url)) for _ in range(12)]
        for program in programs:
            program.execute("INSERT INTO t (name) VALUES ('a'), ('b')")
        chance.shuffle(programs)
        for program in programs:
            program.commit()
            look()
        look()
    assert sorted(map(int, map(str, seen))) == list(range(1, 25))
    assert seen == [one for (one,) in rows(url, "SELECT id FROM t ORDER BY tx, id")]
    assert len(naive) < 24


@pytest.mark.postgres
def test_a_prepared_transaction_is_not_passed(
    postgres_server: PostgresServer, sources: Callable[..., PolledSource]
) -> None:
    """It belongs to no session, and may commit much later. A poller behind the last id would lose its row."""
    url, source = by_transaction(postgres_server, sources)
    with psycopg.connect(url) as program:
        program.execute("INSERT INTO t (name) VALUES ('prepared')")
        program.execute("PREPARE TRANSACTION 'polled'")
    try:
        execute(url, "INSERT INTO t (name) VALUES ('later')")
        assert rows(url, "SELECT id FROM t") == [(2,)]
        assert take(source) == []
    finally:  # it would hold up other tests, too
        with psycopg.connect(url, autocommit=True) as program:
            program.execute("COMMIT PREPARED 'polled'")
    source.reject(())
    assert take(source) == [1, 2]


@pytest.mark.postgres
def test_rows_of_other_programs_wait_for_an_open_transaction(
    postgres_server: PostgresServer, sources: Callable[..., PolledSource]
) -> None:
    url, source = by_transaction(postgres_server, sources)
    with psycopg.connect(url) as slow:
        slow.execute("INSERT INTO t (name) VALUES ('slow')")
        execute(url, "INSERT INTO t (name) VALUES ('fast')")
        assert take(source) == []
        slow.rollback()
    source.reject(())
    assert take(source) == [2]


def test_a_lag_gives_late_commits_time(url: str, clock: Clock, sources: Callable[..., PolledSource]) -> None:
    execute(url, "CREATE TABLE t (id INTEGER PRIMARY KEY)")
    source = sources(url, options={"order_column": "id", "lag": "10s", "poll_interval": "1s"})
    assert take(source) == []
    execute(url, "INSERT INTO t VALUES (5)")
    clock.now += 1
    assert take(source) == []
    clock.now += 9
    execute(url, "INSERT INTO t VALUES (3), (8)")  # its transaction began earlier
    assert take(source) == []
    clock.now += 1
    assert take(source) == [3, 5]
    clock.now += 9
    assert take(source) == [8]


def test_the_horizon_remembers_few_samples() -> None:
    horizon = Horizon(16.0)
    for second in range(1000):
        for part in range(10):
            now = second + part / 10
            horizon.sample(now, (second, part))
            reached = horizon.place(now)
            if now > 20:
                assert reached is not None
                assert now - 18 <= reached[0] + reached[1] / 10 <= now - 16
    assert len(horizon._samples) < 20


# --- positions ---


def test_a_position_outlives_the_source(tmp_path: Path, sources: Callable[..., PolledSource]) -> None:
    url = sqlite_file(tmp_path)
    execute(url, "CREATE TABLE t (id INTEGER PRIMARY KEY)", "INSERT INTO t VALUES (1), (2), (3), (4)")
    source = sources(url)
    chunk = source.receive(10, 0.0)
    source.acknowledge([chunk.tokens[0], chunk.tokens[2]])
    ids = [message.properties["uniqueMessageId"] for message in chunk.messages]
    source.close()
    source = sources(url)
    again = source.receive(10, 0.0)
    assert [message.properties["uniqueMessageId"] for message in again.messages] == [ids[1], ids[3]]
    source.acknowledge(chunk.tokens)  # of an earlier connection
    source.connect()
    assert take(source) == [2, 4]
    source.connect()
    assert take(source) == []
    (kept,) = (tmp_path / "state").glob("*.position")
    assert kept.stat().st_mode & 0o777 == 0o600
    assert json.loads(kept.read_text())["done"] == []


def test_a_place_of_any_value_of_sqlite_outlives_the_source(
    tmp_path: Path, sources: Callable[..., PolledSource]
) -> None:
    """The columns have no type: rows come in the order of SQLite, each once, with a restart behind each."""
    url = sqlite_file(tmp_path)
    kept = ("-9e999", "1", "1.5", "9e999", "''", "'9e999'", "'CAST(X'", "'X''00'''", "'Z'", "X''", "X'00'", "X'61ff'")
    unreadable = [f"CAST(X'{one}' AS TEXT)" for one in ("61ff", "ff", "ff00", "ff3061", "ff31")]
    execute(
        url,
        "CREATE TABLE t (k NOT NULL, n NOT NULL, id INTEGER, PRIMARY KEY (k, n))",
        *(f"INSERT INTO t VALUES ({one}, {one}, {number})" for number, one in enumerate([*kept, *unreadable])),
    )
    expected = [one for (one,) in rows(url, "SELECT id FROM t ORDER BY n")]
    source, ids = sources(url, options={"order_column": "n"}), set()
    for number in expected:
        chunk = source.receive(1, 0.0)
        ids.add(chunk.messages[0].properties["uniqueMessageId"])
        source.reject(chunk.tokens)
        assert take(source, 1) == values(chunk) == [number]
        source.connect()
    assert take(source) == []
    assert len(ids) == len(expected) == 17


@pytest.mark.postgres
def test_an_infinite_time_holds_up_nothing(
    postgres_server: PostgresServer, clock: Clock, sources: Callable[..., PolledSource]
) -> None:
    url = postgres_server.fresh_schema()
    execute(
        url,
        "CREATE TABLE t (id INTEGER PRIMARY KEY, at TIMESTAMPTZ NOT NULL)",
        "INSERT INTO t VALUES (1, '-infinity'), (2, '2026-01-31'), (3, 'infinity')",
    )
    assert settled(sources(url, options={**LATE, "order_column": "at"}), clock) == [1, 2, 3]


def test_each_subscription_has_a_position_and_one_reader(tmp_path: Path, sources: Callable[..., PolledSource]) -> None:
    url = sqlite_file(tmp_path)
    execute(url, "CREATE TABLE t (id INTEGER PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    assert take(sources(url)) == [1]
    with pytest.raises(ConnectionLost, match=r"E7012 receivers\.r"):
        sources(url)
    assert take(sources(url, durable_topic_subscription_name="other")) == [1]


def test_a_receiver_may_begin_with_later_rows(url: str, clock: Clock, sources: Callable[..., PolledSource]) -> None:
    execute(url, "CREATE TABLE t (id INTEGER PRIMARY KEY)", "INSERT INTO t VALUES (1), (2)")
    options = {**LATE, "start": "next"}
    source = sources(url, options=options)
    assert settled(source, clock) == []
    source.close()
    execute(url, "INSERT INTO t VALUES (3)")
    assert settled(sources(url, options=options), clock) == [3]


@pytest.mark.postgres
@pytest.mark.parametrize(
    "table", [WITH_TRANSACTION, "CREATE TABLE t (name TEXT, tx xid8 PRIMARY KEY DEFAULT pg_current_xact_id())"]
)
def test_later_rows_of_transactions(
    table: str, postgres_server: PostgresServer, sources: Callable[..., PolledSource]
) -> None:
    """Also if the number of the transaction is the only column that orders the rows."""
    url = postgres_server.fresh_schema()
    execute(url, table, "INSERT INTO t (name) VALUES ('a')")
    options = {**BY_TRANSACTION, "start": "next"}
    with psycopg.connect(url) as slow:
        slow.execute("INSERT INTO t (name) VALUES ('open')")
        source = sources(url, options=options)
        slow.commit()
    chunk = source.receive(100, 0.0)
    assert values(chunk, "name") == ["open"]
    source.acknowledge(chunk.tokens)
    source.connect()
    assert not source.receive(100, 0.0).messages


@pytest.mark.postgres
def test_a_table_that_was_made_anew(
    postgres_server: PostgresServer, tmp_path: Path, sources: Callable[..., PolledSource]
) -> None:
    url = postgres_server.fresh_schema()
    execute(url, WITH_TRANSACTION, "INSERT INTO t (name) VALUES ('a')")
    source = sources(url, options=BY_TRANSACTION)
    first = source.receive(10, 0.0)
    source.acknowledge(first.tokens)
    execute(url, "DROP TABLE t", WITH_TRANSACTION, "INSERT INTO t (name) VALUES ('b')")
    with pytest.raises(ConnectionLost, match=r"E7017 receivers\.r: the position in .* belongs to another table"):
        source.connect()
    for kept in (tmp_path / "state").glob("*.position"):
        kept.unlink()
    source.connect()
    second = source.receive(10, 0.0)
    assert values(second) == [1]
    assert first.messages[0].properties["uniqueMessageId"] != second.messages[0].properties["uniqueMessageId"]


@pytest.mark.postgres
def test_a_table_of_this_name_in_another_schema(
    postgres_server: PostgresServer, sources: Callable[..., PolledSource]
) -> None:
    """Also if no option names the schema: it is the first one of the search path that has the table."""
    url = postgres_server.fresh_schema()
    execute(url, WITH_TRANSACTION, "INSERT INTO t (name) VALUES ('a')")
    source = sources(url, options=BY_TRANSACTION)
    assert values(source.receive(10, 0.0)) == [1]
    (schema,) = rows(url, "SELECT current_schema()")[0]
    execute(
        url,
        f'CREATE SCHEMA "{schema}_2"',
        f'ALTER TABLE t SET SCHEMA "{schema}_2"',
        WITH_TRANSACTION,
    )
    with pytest.raises(ConnectionLost, match="E7017 .* was made anew or lies in another schema, or the database was"):
        source.connect()
    execute(url, f'DROP SCHEMA "{schema}_2" CASCADE')


def test_a_position_that_does_not_fit(tmp_path: Path, sources: Callable[..., PolledSource]) -> None:
    url = sqlite_file(tmp_path)
    execute(url, "CREATE TABLE t (id INTEGER PRIMARY KEY, n INTEGER NOT NULL)", "INSERT INTO t VALUES (1, 1)")
    source = sources(url)
    assert take(source) == [1]
    source.close()
    with pytest.raises(ConnectionLost, match="E7017 .* belongs to the order id"):
        sources(url, options={"order_column": "n"})
    (tmp_path / "tables.db").rename(tmp_path / "old.db")
    (tmp_path / "tables.db").write_bytes((tmp_path / "old.db").read_bytes())
    with pytest.raises(ConnectionLost, match="E7017 .* belongs to another table"):
        source.connect()
    (kept,) = (tmp_path / "state").glob("*.position")
    kept.write_text("{}")
    with pytest.raises(ConnectionLost, match="E7017 .* is damaged"):
        source.connect()


def test_rows_that_were_given_back_and_are_gone(tmp_path: Path, sources: Callable[..., PolledSource]) -> None:
    url = sqlite_file(tmp_path)
    execute(url, "CREATE TABLE t (id INTEGER PRIMARY KEY)", "INSERT INTO t VALUES (1), (2), (3), (4)")
    source = sources(url)
    chunk = source.receive(4, 0.0)
    source.reject([chunk.tokens[0], chunk.tokens[1], chunk.tokens[3]])
    execute(url, "DELETE FROM t WHERE id IN (1, 4)")
    again = source.receive(10, 0.0)
    assert values(again) == [2]
    execute(url, "INSERT INTO t VALUES (9)")
    assert take(source) == [9]
    source.acknowledge([*again.tokens, chunk.tokens[2]])
    (kept,) = (tmp_path / "state").glob("*.position")
    assert json.loads(kept.read_text())["place"] == [9]


def test_progress_gives_each_row_until_it_is_acknowledged() -> None:
    """Random lives: rows are taken, acknowledged and given back in any order, and lives end at any time."""
    chance = random.Random(5)
    for _ in range(200):
        table = [(number,) for number in range(30)]
        place: Place = ()
        done: list[Place] = []
        acknowledged: set[Place] = set()
        for _life in range(4):
            progress, held = RowProgress(place, done), {}
            for _step in range(chance.randint(0, 12)):
                after = progress.before_returned
                if after is not None:
                    rows = [one for one in table if one > after and progress.is_returned(one)]
                else:
                    rows = [one for one in table if one > progress.end][: chance.randint(1, 5)]
                    rows = [one for one, is_fresh in zip(rows, progress.read(rows), strict=True) if is_fresh]
                assert acknowledged.isdisjoint(rows)
                held.update(zip(progress.hold(rows), rows, strict=True))
                tokens = chance.sample(list(held), chance.randint(0, len(held)))
                settled = [held.pop(token) for token in tokens]
                if chance.random() < 0.7:
                    progress.acknowledge(tokens)
                    acknowledged.update(settled)
                else:
                    progress.reject(tokens)
            place, done = progress.place, list(progress.done)
            assert {one for one in table if one <= place} | set(done) == acknowledged


# --- what can be wrong with a table ---


@pytest.mark.parametrize(
    ("statement", "options", "code", "text"),
    [
        ("SELECT 1", LATE, "E7010", "no table 't'"),
        ("CREATE TABLE t (id INTEGER PRIMARY KEY)", {**LATE, "order_column": "at"}, "E7041", "no column 'at'"),
        ("CREATE TABLE t (id INTEGER NOT NULL)", LATE, "E7041", "has no primary key"),
        ("CREATE TABLE t (id INTEGER PRIMARY KEY)", {**LATE, "key_columns": ["k"]}, "E7041", "no column 'k'"),
        (
            "CREATE TABLE t (id INTEGER PRIMARY KEY, at DATE)",
            {**LATE, "order_column": "at"},
            "E7041",
            "may have null in column 'at'",
        ),
    ],
)
def test_what_cannot_be_polled(
    url: str, tmp_path: Path, statement: str, options: dict[str, object], code: str, text: str
) -> None:
    execute(url, statement)
    with pytest.raises(ConnectionLost, match=rf"{code} receivers\.r: .*{text}"):
        source_of(url, tmp_path, options=options).connect()
    assert [one.code for one in connection(url, tmp_path).examine([receiver(options=options)], ())] == [code]


@pytest.mark.postgres
def test_postgres_needs_a_lag_or_transactions(postgres_server: PostgresServer, tmp_path: Path) -> None:
    url = postgres_server.fresh_schema()
    execute(url, "CREATE TABLE t (id INTEGER PRIMARY KEY)")
    with pytest.raises(ConnectionLost, match="E7041 .*PostgreSQL needs 'lag', or a column of the type xid8"):
        source_of(url, tmp_path, options={"order_column": "id"}).connect()


def test_a_view_may_be_polled(url: str, clock: Clock, sources: Callable[..., PolledSource]) -> None:
    execute(
        url,
        "CREATE TABLE base (id INTEGER PRIMARY KEY, n INTEGER)",
        "INSERT INTO base VALUES (1, 3), (2, NULL), (3, 1)",
        "CREATE VIEW t AS SELECT id, n, COALESCE(n, 2) AS place FROM base",
    )
    options = {"order_column": "place", "key_columns": ["id"], "lag": "1s"}
    assert settled(sources(url, options=options), clock) == [3, 2, 1]


@pytest.mark.postgres
def test_a_table_of_another_schema(postgres_server: PostgresServer, sources: Callable[..., PolledSource]) -> None:
    url = postgres_server.fresh_schema()
    execute(url, "CREATE SCHEMA polled", WITH_TRANSACTION.replace("TABLE t", "TABLE polled.t"))
    execute(url, "INSERT INTO polled.t (name) VALUES ('a')")
    assert take(sources(url, options={**BY_TRANSACTION, "schema": "polled"})) == [1]
    execute(url, "DROP SCHEMA polled CASCADE")


def test_a_forked_child_does_not_use_the_connection(tmp_path: Path, sources: Callable[..., PolledSource]) -> None:
    url = sqlite_file(tmp_path)
    execute(url, "CREATE TABLE t (id INTEGER PRIMARY KEY)", "INSERT INTO t VALUES (1), (2)")
    source = sources(url)
    held = source.receive(1, 0.0)
    child = multiprocessing.get_context("fork").Process(target=_in_child, args=(source, held))
    child.start()
    child.join()
    assert child.exitcode == 0
    source.acknowledge(held.tokens)
    assert take(source) == [2]


def _in_child(source: PolledSource, held: Chunk) -> None:
    for call in (source.connect, lambda: source.receive(1, 0.0), lambda: source.acknowledge(held.tokens)):
        with pytest.raises(UsageError, match="E2050"):
            call()
    source.close()
