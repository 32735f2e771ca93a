"""Tables of a user's database: rows, refusals, repeats, other processes, and what can be wrong with a table."""

import math
import multiprocessing
import random
import re
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from decimal import Decimal
from functools import partial
from pathlib import Path

import msgspec
import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, event, make_url

from connectors.sql import SqlConnection
from connectors.sql.rows import Row
from connectors.sql.sink import SqlSink
from correlator import Reliability
from correlator.errors import ConfigError, ConnectionLost, SendRejected, UsageError
from correlator.events import Headers, Message, Outgoing
from correlator.settings import ConnectionSettings, SenderSettings
from correlator.testing.network import FaultProxy, NetworkFault, lost_reply, lost_request
from tests.connectors.tables import DATABASES, Dead, connecting, dying, execute, fresh, rows, sql_engine, sqlite_file
from tests.servers import PostgresServer

SOURCE = "host:17:4711:S01"
TABLE = "CREATE TABLE t (id INTEGER PRIMARY KEY, name VARCHAR(5) UNIQUE, amount INTEGER CHECK (amount >= 0))"
ONE_KEY = TABLE.replace(" UNIQUE", "")
COMMIT = re.compile(rb"(?:Q\x00\x00\x00\x0b|\x07\x00\x00\x00\x03)COMMIT")
"""COMMIT as clients of PostgreSQL and MySQL send it."""


@pytest.fixture(params=DATABASES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return fresh(request, tmp_path)


@pytest.fixture
def sinks(url: str) -> Iterator[Callable[..., SqlSink]]:
    """Makes connected sinks, and closes them."""
    with connecting(lambda **options: connection(url).sink(sender(**options))) as make:
        yield make


@pytest.fixture
def is_sqlite(url: str) -> bool:
    return url.startswith("sqlite")


@pytest.fixture
def is_mysql(url: str) -> bool:
    return url.startswith("mysql")


def connection(url: str) -> SqlConnection:
    return SqlConnection("tables", ConnectionSettings(type="sql", options={"database": url}))


def sender(reliability: Reliability = Reliability.EXACTLY_ONCE, table: str = "t", **options: object) -> SenderSettings:
    return SenderSettings(
        id="s", connection="tables", destination=f"queue:{table}", reliability=reliability, options=options
    )


def batch(bodies: Sequence[object], first: int = 1, source: str = SOURCE, table: str = "t") -> list[Outgoing]:
    encoded = [body if isinstance(body, bytes) else msgspec.json.encode(body) for body in bodies]
    return [Outgoing(at, source, f"queue:{table}", Message(body)) for at, body in enumerate(encoded, first)]


def ids(numbers: Sequence[int], first: int = 1, source: str = SOURCE) -> list[Outgoing]:
    return batch([{"id": number} for number in numbers], first, source)


def codes(results: Sequence[SendRejected | None]) -> list[str | None]:
    return [None if one is None else one.code for one in results]


def stored(url: str) -> list[object]:
    return [one for (one,) in rows(url, "SELECT id FROM t ORDER BY id")]


# --- settings ---


@pytest.mark.parametrize(
    ("options", "code", "text"),
    [
        ({}, "E1021", "'database' is missing"),
        ({"database": ""}, "E1022", "connections.c.database"),
        ({"database": 7}, "E1022", "connections.c.database"),
        ({"database": "sqlite://"}, "E1022", "connections.c.database"),
        ({"database": "oracle://me:secret@host/d"}, "E1022", "connections.c.database"),
        ({"database": "postgresql://me:secret@host:port/d"}, "E1022", "connections.c.database"),
        ({"databse": "sqlite:///x"}, "E1020", "Did you mean 'database'?"),
    ],
)
def test_options_of_connections(options: dict[str, object], code: str, text: str) -> None:
    with pytest.raises(ConfigError, match=code) as raised:
        SqlConnection("c", ConnectionSettings(type="sql", options=options))
    assert text in str(raised.value)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    ("options", "code", "text"),
    [
        ({"mode": "merge"}, "E1022", "insert, upsert, delete, statement"),
        ({"key_columns": ["id"]}, "E1022", "no meaning without mode"),
        ({"mode": "upsert", "key_columns": "id"}, "E1022", "not a list of columns"),
        ({"mode": "upsert", "key_columns": []}, "E1022", "not a list of columns"),
        ({"mode": "upsert", "key_columns": ["id", 1]}, "E1022", "not a name of a column"),
        ({"mode": "upsert", "key_columns": ["id", "id"]}, "E1022", "named twice"),
        ({"schema": ""}, "E1022", "senders.s.schema"),
        ({"statement": "DELETE FROM t WHERE id = :id"}, "E1022", "no meaning with mode: insert"),
        ({"mode": "statement", "schema": "x"}, "E1022", "no meaning with mode: statement"),
        ({"mode": "statement", "key_columns": ["x"]}, "E1022", "no meaning with mode: statement"),
        ({"extra_fields": "drop"}, "E1022", "refuse, ignore"),
        ({"missing_up_to": -1}, "E1022", "senders.s.missing_up_to"),
        ({"mod": "insert"}, "E1020", "Did you mean 'mode'?"),
    ],
)
def test_options_of_senders(options: dict[str, object], code: str, text: str) -> None:
    with pytest.raises(ConfigError, match=code) as raised:
        connection("sqlite:///never.db").sink(sender(**options))
    assert text in str(raised.value)
    assert not Path("never.db").exists()


@pytest.mark.parametrize(
    ("destination", "code"), [("t", "E1215"), ("topic:t", "E1216"), ("queue:", "E1215"), (None, "E1216")]
)
def test_destinations(destination: str | None, code: str) -> None:
    with pytest.raises(ConfigError, match=rf"{code} senders\.s\.destination"):
        connection("sqlite:///never.db").sink(SenderSettings(id="s", connection="c", destination=destination))


# --- modes ---


def test_a_missing_field_gets_the_default_and_null_is_null(url: str, sinks: Callable[..., SqlSink]) -> None:
    execute(url, "CREATE TABLE t (id INTEGER PRIMARY KEY, name VARCHAR(9) DEFAULT 'none', amount INTEGER DEFAULT 7)")
    bodies = [{"id": 1}, {"amount": 1, "id": 2}, {"id": 3, "name": None}, {"id": 4, "name": "x", "amount": 2}]
    assert codes(sinks().send(batch(bodies))) == [None] * 4
    found = rows(url, "SELECT id, name, amount FROM t ORDER BY id")
    assert found == [(1, "none", 7), (2, "none", 1), (3, None, 7), (4, "x", 2)]


def test_a_body_without_fields_is_a_row_of_defaults(url: str, sinks: Callable[..., SqlSink]) -> None:
    execute(url, "CREATE TABLE t (id INTEGER DEFAULT 5)")
    assert codes(sinks().send(batch([{}, {"id": 1}, {}, {}]))) == [None] * 4
    assert stored(url) == [1, 5, 5, 5]


def test_upsert_by_the_primary_key(url: str, sinks: Callable[..., SqlSink], is_mysql: bool) -> None:
    execute(url, ONE_KEY if is_mysql else TABLE, "INSERT INTO t VALUES (1, 'a', 1), (2, 'b', 2)")
    bodies = [
        {"id": 1, "amount": 10},  # the name stays
        {"id": 3, "name": "c"},
        {"id": 3, "name": "d", "amount": 30},  # twice in one batch: the later one counts
        {"id": 2},  # nothing to change
        {"name": "e"},  # no key
        {"id": 4, "name": "a", "amount": -1} if is_mysql else {"id": 4, "name": "a"},  # another unique column
    ]
    results = sinks(mode="upsert").send(batch(bodies))
    assert codes(results) == [None, None, None, None, "E8110", "E8110"]
    assert "missing required field `id`" in str(results[4])
    assert rows(url, "SELECT * FROM t ORDER BY id") == [(1, "a", 10), (2, "b", 2), (3, "d", 30)]


def test_upsert_by_other_columns(url: str, sinks: Callable[..., SqlSink]) -> None:
    execute(url, "CREATE TABLE t (id INTEGER, day DATE, n INTEGER)", "CREATE UNIQUE INDEX t_days ON t (day, id)")
    sink = sinks(mode="upsert", key_columns=["id", "day"])
    one = {"id": 1, "day": "2026-01-05", "n": 1}
    assert codes(sink.send(batch([one, {**one, "n": 2}, {**one, "id": 2}, {**one, "day": None}]))) == [
        None,
        None,
        None,
        "E8110",
    ]
    assert rows(url, "SELECT id, n FROM t ORDER BY id") == [(1, 2), (2, 1)]


def test_delete_by_key(url: str, sinks: Callable[..., SqlSink]) -> None:
    execute(url, TABLE, "INSERT INTO t VALUES (1, 'a', 1), (2, 'b', 2), (3, 'c', 3)")
    bodies = [{"id": 1}, {"id": 3, "name": "no matter"}, {"id": 9}, {"name": "b"}]
    assert codes(sinks(mode="delete").send(batch(bodies))) == [None, None, None, "E8110"]
    assert stored(url) == [2]


def test_a_foreign_key_is_a_constraint(url: str, sinks: Callable[..., SqlSink]) -> None:
    execute(
        url,
        "CREATE TABLE parent (id INTEGER PRIMARY KEY)",
        "INSERT INTO parent VALUES (1)",
        "CREATE TABLE t (id INTEGER REFERENCES parent (id))",
    )
    assert codes(sinks().send(ids([1, 2, 1]))) == [None, "E8110", None]
    assert stored(url) == [1, 1]


@pytest.mark.postgres
def test_a_deferred_constraint_names_its_row(postgres_server: PostgresServer) -> None:
    url = postgres_server.fresh_schema()
    execute(url, "CREATE TABLE t (id INTEGER UNIQUE DEFERRABLE INITIALLY DEFERRED)")
    sink = connection(url).sink(sender())
    sink.connect()
    assert codes(sink.send(ids([1, 1, 2]))) == [None, "E8110", None]
    sink.close()
    assert stored(url) == [1, 2]


@pytest.mark.postgres
def test_a_table_of_another_schema_and_hostile_names(postgres_server: PostgresServer) -> None:
    url = postgres_server.fresh_schema()
    name = "a'b; DROP TABLE x; --%s (:c0)"
    quoted = name.replace("%", "%%")
    execute(
        url,
        f'CREATE SCHEMA "{quoted}"',
        f'CREATE TABLE "{quoted}"."{quoted}" ("{quoted}" INTEGER PRIMARY KEY, "Select" TEXT)',
    )
    for first, options in enumerate(({}, {"mode": "upsert"}, {"mode": "upsert", "key_columns": [name]}), 1):
        sink = connection(url).sink(sender(table=name, schema=name, **options))
        sink.connect()
        results = sink.send(batch([{name: first // 3 + 1, "Select": f"{first}"}], first, table=name))
        assert codes(results) == [None]
        sink.close()
    assert rows(url, f'SELECT * FROM "{quoted}"."{quoted}" ORDER BY 1') == [(1, "2"), (2, "3")]
    sink = connection(url).sink(sender(table=name, schema=name, mode="delete"))
    sink.connect()
    sink.send(batch([{name: 1}], 4, table=name))
    sink.close()
    assert rows(url, f'SELECT "Select" FROM "{quoted}"."{quoted}"') == [("3",)]
    execute(url, f'DROP SCHEMA "{quoted}" CASCADE')


# --- statements ---


def test_a_statement_of_the_user(url: str, sinks: Callable[..., SqlSink], is_mysql: bool) -> None:
    execute(url, TABLE, "INSERT INTO t VALUES (1, 'a', 1), (2, 'b', 2)")
    statement = "UPDATE t SET amount = amount + :more /* :no */ WHERE name = :name AND name <> ':c'"
    sink = sinks(mode="statement", statement=statement)
    bodies = [{"name": "a", "more": 5}, {"name": "a", "more": "5"}, {"name": "none", "more": 1}, {"name": 7, "more": 1}]
    last = "E8110" if is_mysql else None  # it compares the number with all texts, and finds that one is no number
    assert codes(sink.send(batch(bodies))) == [None, None, None, last]
    assert codes(sinks(mode="statement", statement=statement).send(batch(bodies))) == [
        None,
        None,
        None,
        last,
    ]  # repeats
    assert rows(url, "SELECT id, amount FROM t ORDER BY id") == [(1, 11), (2, 2)]


def test_what_does_not_fit_a_statement_is_refused_alone(
    url: str, sinks: Callable[..., SqlSink], is_sqlite: bool, is_mysql: bool
) -> None:
    execute(url, TABLE)
    sink = sinks(mode="statement", statement="INSERT INTO t (id, name, amount) VALUES (:id, :name, :amount);")
    good = {"id": 1, "name": "a", "amount": 1}
    wrong = [
        {"id": 2, "name": "b"},
        {**good, "id": 2, "more": 1},
        {**good, "id": [2]},
        {**good, "id": 2**63},
        {**good, "name": "c"},  # the key is there
        {**good, "id": 2, "amount": -1},
        b"x",
    ]
    if not is_sqlite:
        wrong += [{**good, "id": "two"}]
    if not is_sqlite and not is_mysql:
        wrong += [{**good, "id": 2.5}, {**good, "id": 2, "name": "\0"}]
    last = {"id": "9" if is_sqlite else 9, "name": 7, "amount": None}
    results = sink.send(batch([good, *wrong, last]))
    assert codes(results) == [None, *["E8110"] * len(wrong), None]
    assert "missing required field `amount`" in str(results[1])
    assert rows(url, "SELECT * FROM t ORDER BY id") == [(1, "a", 1), (9, "7", None)]


@pytest.mark.parametrize("url", DATABASES[1:], indirect=True)
def test_a_view_may_refuse_a_row_of_a_statement(url: str, sinks: Callable[..., SqlSink]) -> None:
    execute(url, "CREATE TABLE t (id INTEGER)", "CREATE VIEW few AS SELECT id FROM t WHERE id < 5 WITH CHECK OPTION")
    sink = sinks(mode="statement", statement="INSERT INTO few VALUES (:id)")
    assert codes(sink.send(ids([1, 5, 2]))) == [None, "E8110", None]
    assert stored(url) == [1, 2]


def test_a_statement_may_ignore_fields(url: str, sinks: Callable[..., SqlSink]) -> None:
    execute(url, TABLE)
    sink = sinks(mode="statement", statement="INSERT INTO t (id) VALUES (:id)", extra_fields="ignore")
    assert codes(sink.send(batch([{"id": 1, "name": "x"}]))) == [None]


@pytest.mark.parametrize(
    "statement", ["DELETE FROM nowhere WHERE id = :id", "UPDATE t SET colour = :id", "INSERT INTO t VALUES (:id,)"]
)
def test_a_statement_that_the_database_does_not_accept(url: str, statement: str) -> None:
    execute(url, TABLE)
    settings = sender(mode="statement", statement=statement)
    with pytest.raises(ConnectionLost, match=r"E7041 senders\.s: the database does not accept the statement"):
        connection(url).sink(settings).connect()
    assert [one.code for one in connection(url).examine((), [settings])] == ["E7041"]


@pytest.mark.parametrize(
    ("statement", "text"),
    [
        (None, "'statement' is missing"),
        ("", "senders.s.statement"),
        ("DROP TABLE t", "INSERT, UPDATE, DELETE"),
        ("CREATE TABLE insert (id INTEGER)", "INSERT, UPDATE, DELETE"),
        ("SELECT :a", "INSERT, UPDATE, DELETE"),
        ("WITH x AS (SELECT :a) SELECT 1", "INSERT, UPDATE, DELETE"),
        ("COMMIT", "INSERT, UPDATE, DELETE"),
        ("DELETE FROM t", "has no parameter"),
        ("DELETE FROM t WHERE name = ':a' -- :b", "has no parameter"),
        ("DELETE FROM t WHERE id = :a; DROP TABLE t", "more than one statement"),
        ("INSERT OR ROLLBACK INTO t VALUES (:a)", "would roll back"),
        ("UPDATE t SET id = :a::int", "Write CAST(:a AS type)"),
    ],
)
def test_statements_that_are_refused(statement: str | None, text: str) -> None:
    options = {} if statement is None else {"statement": statement}
    with pytest.raises(ConfigError, match=r"E102[12] senders\.s") as raised:
        connection("sqlite:///never.db").sink(sender(mode="statement", **options))
    assert text in str(raised.value)


# --- values ---


def test_what_a_column_cannot_hold_is_refused_alone(
    url: str, sinks: Callable[..., SqlSink], is_sqlite: bool, is_mysql: bool
) -> None:
    time, number = ("DATETIME(6)", "FLOAT") if is_mysql else ("TIMESTAMP", "REAL")
    execute(
        url,
        f"CREATE TABLE t (id INTEGER PRIMARY KEY, name VARCHAR(3), amount NUMERIC(5,2), at {time}, day DATE,"
        f" done BOOLEAN, data JSON, ratio {number}, small SMALLINT)",
    )
    good = {
        "id": 1, "name": "abc", "amount": "123.45", "at": "2026-01-05T10:00:00.5", "day": "2026-01-05",
        "done": True, "data": {"a": [1, None]}, "ratio": 0.5, "small": 7,
    }  # fmt: skip
    wrong = [
        {"id": "1"},
        {"id": 2**63},
        {"id": 1.5},
        {"id": 2, "name": "abcd"},
        {"id": 2, "name": 5},
        {"id": 2, "amount": "1.005"},
        {"id": 2, "amount": 1000},
        {"id": 2, "amount": "NaN"},
        {"id": 2, "at": "2026-01-05T10:00:00Z"},
        {"id": 2, "at": "yesterday"},
        {"id": 2, "day": "2026-02-30"},
        {"id": 2, "done": 1000 if is_mysql else 1},
        {"id": 2, "ratio": "x"},
        {"id": 2, "other": 1},
        b"",
        b"[1]",
        b"\xff",
        b'{"id": 2, "name": "\\ud800"}',
        b'{"id": 2, "ratio": NaN}',
        b"[" * 100_000,
    ]
    if not is_sqlite:
        wrong += [{"id": 2, "small": 40_000}, {"id": 2**31}, {"id": 2, "ratio": 1e300}]
    if not is_sqlite and not is_mysql:
        wrong += [{"id": 2, "name": "\0"}]
    results = sinks().send(batch([good, *wrong, {"id": 3}]))
    assert codes(results) == [None, *["E8110"] * len(wrong), None]
    assert "`$.name`" in str(results[4])
    assert "`$.amount`" in str(results[6])
    assert stored(url) == [1, 3]
    found = rows(url, "SELECT name, amount, done, ratio, small FROM t WHERE id = 1")
    assert [(name, Decimal(str(amount)), *others) for name, amount, *others in found] == [
        ("abc", Decimal("123.45"), 1, 0.5, 7)
    ]


@pytest.mark.parametrize("url", DATABASES[:1], indirect=True)
def test_sqlite_stores_no_number_that_is_beyond_its_range(url: str, sinks: Callable[..., SqlSink]) -> None:
    execute(url, "CREATE TABLE t (id INTEGER PRIMARY KEY, amount NUMERIC)")
    amounts = [b"1e400", b"1e-400", b'"1E+999999"', b"-1e308", b"9.5e307", b"-1e-307", b"0e999", b"12.5"]
    results = sinks().send(batch([b'{"id": %d, "amount": %b}' % one for one in enumerate(amounts, 1)]))
    assert codes(results) == ["E8110"] * 4 + [None] * 4
    assert rows(url, "SELECT amount FROM t ORDER BY id") == [(9.5e307,), (-1e-307,), (0,), (12.5,)]


def test_json_that_is_nested_too_deeply_is_refused_alone(url: str, sinks: Callable[..., SqlSink]) -> None:
    """A body may be nested so deeply that Python can read it, but not write it again. It must not stop the sender."""
    execute(url, "CREATE TABLE t (id INTEGER PRIMARY KEY, data JSON)")
    depths = range(20, 1200, 5)  # each is near the limit of Python at some place, or beyond it, or is in order
    bodies = [b'{"id": %d, "data": %b}' % (depth, b"[" * depth + b"]" * depth) for depth in depths]
    results = codes(sinks().send(batch(bodies)))
    assert set(results) == {None, "E8110"}
    assert stored(url) == [depth for depth, code in zip(depths, results, strict=True) if code is None]
    assert results[0] is None
    assert results[-1] == "E8110"


def test_extra_fields_may_be_ignored(url: str, sinks: Callable[..., SqlSink]) -> None:
    execute(url, TABLE)
    assert codes(sinks(extra_fields="ignore").send(batch([{"id": 1, "other": 1}]))) == [None]
    assert stored(url) == [1]


def test_a_generated_column_is_no_column_of_a_sender(url: str, sinks: Callable[..., SqlSink]) -> None:
    execute(url, "CREATE TABLE t (id INTEGER PRIMARY KEY, twice INTEGER GENERATED ALWAYS AS (id * 2) STORED)")
    assert codes(sinks().send(batch([{"id": 1}, {"id": 2, "twice": 4}]))) == [None, "E8110"]
    assert rows(url, "SELECT * FROM t") == [(1, 2)]


@pytest.mark.postgres
def test_types_of_postgres(postgres_server: PostgresServer) -> None:
    url = postgres_server.fresh_schema()
    execute(
        url,
        "CREATE TYPE colour AS ENUM ('red', 'blue')",
        "CREATE DOMAIN positive AS INTEGER CHECK (VALUE > 0)",
        "CREATE TABLE t (id BIGINT GENERATED ALWAYS AS IDENTITY, u UUID, at TIMESTAMPTZ, data JSONB, raw BYTEA,"
        " colour colour, n positive, tags TEXT[], clock TIME, plain NUMERIC)",
    )
    sink = connection(url).sink(sender())
    sink.connect()
    good = {
        "u": "6f2b8f3e-5d0c-4f6a-9d39-0c8b8a4f0001",
        "at": "2026-01-05T10:00:00+01:00",
        "data": {"a": None},
        "raw": "AAE=",
        "colour": "blue",
        "n": 1,
        "clock": "10:00:00",
        "plain": "1e30",
    }
    wrong = [{"u": "x"}, {"at": "2026-01-05T10:00:00"}, {"colour": "green"}, {"n": 0}, {"tags": ["a"]}, {"id": 1}]
    wrong.append({"plain": "NaN"})
    results = sink.send(batch([good, *wrong, {"tags": None, "data": None}]))
    sink.close()
    assert codes(results) == [None, *["E8110"] * len(wrong), None]
    found = rows(
        url,
        "SELECT u::text, at = '2026-01-05 09:00:00Z', data->'a' = 'null', raw = '\\x0001', colour::text, n, plain"
        " FROM t ORDER BY id",
    )
    assert found[0] == (good["u"], True, True, True, "blue", 1, Decimal("1e30"))
    assert found[1] == (None,) * 7
    assert rows(url, "SELECT data IS NULL FROM t ORDER BY id") == [(False,), (True,)]


@settings(max_examples=25, suppress_health_check=list(HealthCheck))
@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "whole": st.integers(-(2**63), 2**63 - 1),
                "text": st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])),
                "amount": st.decimals("-9999999.99", "9999999.99", places=2),
                "ratio": st.floats(allow_nan=False, allow_infinity=False),
                "raw": st.binary(),
                "at": st.datetimes(),
                "day": st.dates(),
            }
        ),
        min_size=1,
        max_size=5,
    )
)
def test_values_come_out_as_they_went_in(open_table: tuple[str, SqlSink], values: list[dict[str, object]]) -> None:
    url, sink = open_table
    results = sink.send(batch([{"number": at, **value} for at, value in enumerate(values)], source=""))
    assert codes(results) == [None] * len(values)
    with sql_engine(url) as engine, engine.begin() as reader:
        query = "SELECT whole, text, amount, ratio, raw, at, day FROM t ORDER BY number"
        found = reader.exec_driver_sql(query).all()
        reader.exec_driver_sql("DELETE FROM t")
    for value, (whole, text, amount, ratio, raw, at, day) in zip(values, found, strict=True):
        assert (whole, text, ratio, bytes(raw)) == (value["whole"], value["text"], value["ratio"], value["raw"])
        assert Decimal(str(amount)) == value["amount"]
        assert str(at)[:19] == str(value["at"])[:19]
        assert str(day) == str(value["day"])


@pytest.fixture
def open_table(url: str) -> Iterator[tuple[str, SqlSink]]:
    types = {
        "sqlite": ("REAL", "BLOB", "TIMESTAMP"),
        "postgresql": ("DOUBLE PRECISION", "BYTEA", "TIMESTAMP"),
        "mysql": ("DOUBLE PRECISION", "BLOB", "DATETIME(6)"),
    }[url.partition(":")[0].partition("+")[0]]
    execute(
        url,
        f"CREATE TABLE t (number INTEGER, whole BIGINT, text TEXT, amount NUMERIC(9,2), ratio {types[0]},"
        f" raw {types[1]}, at {types[2]}, day DATE)",
    )
    sink = connection(url).sink(sender())
    sink.connect()
    yield url, sink
    sink.close()


# --- refusals ---


@pytest.mark.parametrize("bad", [1, 10, 100, 1000])
def test_each_bad_row_is_refused_alone(url: str, sinks: Callable[..., SqlSink], bad: int) -> None:
    """Few bad rows cost few statements, and many cost about one statement for each row."""
    execute(url, TABLE)
    wrong = set(random.Random(bad).sample(range(1, 1001), bad))
    sink, tries = sinks(), 0
    assert sink._connection is not None

    @event.listens_for(sink._connection, "before_cursor_execute")
    def count(*arguments: object) -> None:
        nonlocal tries
        tries += bool(re.match("INSERT INTO .?t\\b", str(arguments[2])))

    results = sink.send(batch([{"id": number, "amount": -1 if number in wrong else 1} for number in range(1, 1001)]))
    refused = [str(one) for one in results if one is not None]
    assert {at for at, result in enumerate(results, 1) if result} == wrong
    assert stored(url) == sorted(set(range(1, 1001)) - wrong)
    names = ("t_amount_check", "CHECK constraint", "CONSTRAINT `t.amount`", "'t_chk_1'")
    assert all(any(name in one for name in names) for one in refused)
    assert bad <= tries <= min(2 * bad * math.log2(1000) + 2, 1.25 * 1000)


def test_what_was_refused_stays_refused(url: str, sinks: Callable[..., SqlSink]) -> None:
    execute(url, TABLE)
    bodies = [{"id": 1}, {"id": 1}, {"id": "x"}, {"id": 2}]
    first = sinks().send(batch(bodies))
    execute(url, "DELETE FROM t")  # now the database would take the second one
    again = sinks().send([*batch(bodies), *ids([5, 5], 5)])
    assert codes(first) == [None, "E8110", "E8110", None]
    assert codes(again) == [None, "E8110", "E8110", None, None, "E8110"]
    assert list(map(str, first)) == list(map(str, again[:4]))
    assert stored(url) == [5]


def test_refusals_that_cannot_come_again_are_forgotten(url: str, sinks: Callable[..., SqlSink]) -> None:
    """Only a new life knows that the store of the engine has recorded what came before."""

    def refused() -> list[object]:
        return [number for (number,) in rows(url, "SELECT sequence FROM correlator_refused ORDER BY sequence")]

    execute(url, TABLE)
    sink = sinks()
    sink.send(batch([{"id": "x"}, {"id": "x"}, {"id": "x"}]))
    sink.send(ids([4], 4))
    sink.connect()
    sink.send(ids([5], 5))
    assert refused() == [1, 2, 3]
    assert codes(sinks().send([*batch([{"id": "x"}, {"id": 4}], 3), *ids([5, 6], 5)])) == ["E8110", None, None, None]
    assert refused() == [3]


def test_other_destinations_and_delays_are_refused(url: str, sinks: Callable[..., SqlSink]) -> None:
    execute(url, TABLE)
    late = Outgoing(2, SOURCE, "queue:t", Message(b'{"id": 2}', headers=Headers(delivery_delay_ms=5)))
    results = sinks().send([*batch([{"id": 1}], table="other"), late, *ids([3], 3)])
    assert codes(results) == ["E8104", "E8110", None]
    assert stored(url) == [3]


@pytest.mark.postgres
def test_a_trigger_may_refuse_a_row(postgres_server: PostgresServer) -> None:
    url = postgres_server.fresh_schema()
    execute(
        url,
        TABLE,
        "CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RAISE EXCEPTION 'not that one'; END$$",
        "CREATE TRIGGER no BEFORE INSERT ON t FOR EACH ROW WHEN (NEW.id = 2) EXECUTE FUNCTION no()",
    )
    sink = connection(url).sink(sender())
    sink.connect()
    results = sink.send(ids([1, 2, 3]))
    sink.close()
    assert codes(results) == [None, "E8110", None]
    assert "not that one" in str(results[1])


@pytest.mark.postgres
def test_a_deadlock_is_no_refusal(postgres_server: PostgresServer) -> None:
    url = postgres_server.fresh_schema()
    execute(url, TABLE, "INSERT INTO t VALUES (1, 'a', 1), (2, 'b', 1)")
    sink = connection(url).sink(sender(mode="upsert"))
    sink.connect()
    failed: list[BaseException] = []
    bodies = [{"id": 2, "amount": 5}, {"id": 1, "amount": 5}]

    def send() -> None:
        try:
            assert codes(sink.send(batch(bodies))) == [None, None]
        except ConnectionLost as error:
            failed.append(error)

    with psycopg.connect(url) as other:
        other.execute("SET deadlock_timeout = '1h'")  # the sink finds the deadlock
        other.execute("UPDATE t SET amount = 7 WHERE id = 1")
        thread = threading.Thread(target=send)
        thread.start()
        waiting = "SELECT 1 FROM pg_locks WHERE NOT granted"
        while not postgres_server.execute(waiting, url):
            pass
        other.execute("UPDATE t SET amount = 7 WHERE id = 2")
        thread.join()
        assert ["deadlock" in str(one) for one in failed] == [True]
        other.rollback()
    sink.connect()
    assert codes(sink.send(batch(bodies))) == [None, None]
    sink.close()
    assert rows(url, "SELECT amount FROM t") == [(5,), (5,)]


# --- once ---


def test_a_repeat_in_other_batches_is_written_once(url: str, sinks: Callable[..., SqlSink]) -> None:
    execute(url, "CREATE TABLE t (id INTEGER)")
    sinks().send(ids([1, 2, 3]))
    sink = sinks()
    assert codes(sink.send(ids([2], 2))) == [None]
    assert codes(sink.send(ids([3, 4, 5], 3))) == [None] * 3
    assert stored(url) == [1, 2, 3, 4, 5]


def test_a_zombie_writes_nothing(url: str, sinks: Callable[..., SqlSink]) -> None:
    execute(url, "CREATE TABLE t (id INTEGER)")
    old, new = sinks(), sinks()
    old.send(ids([1], 1))
    new.send(ids([1, 2, 3], 1))
    with pytest.raises(ConnectionLost, match=r"E7046 senders\.s: another process has written with source"):
        old.send(ids([2, 3, 4], 2))
    with pytest.raises(ConnectionLost, match="E7003"):
        old.send(ids([2, 3, 4], 2))
    assert stored(url) == [1, 2, 3]
    old.connect()
    assert codes(old.send(ids([2, 3, 4], 2))) == [None] * 3
    assert stored(url) == [1, 2, 3, 4]


def test_a_zombie_that_waits_for_the_row_writes_nothing(url: str, sinks: Callable[..., SqlSink]) -> None:
    """Both have read the same number; the second one waits while the first one has not committed."""
    execute(url, "CREATE TABLE t (id INTEGER)")
    old, new = sinks(), sinks()
    old.send(ids([1]))
    new.send(ids([1]))
    failed: list[BaseException] = []
    inside, go_on = threading.Event(), threading.Event()
    write = new._write

    def held(connection: Connection, part: Sequence[tuple[int, Row]]) -> Iterator[tuple[int, str]]:
        inside.set()
        assert go_on.wait(20)
        return write(connection, part)

    new._write = held  # type: ignore[method-assign]

    def zombie() -> None:
        try:
            old.send(ids([2, 3], 2))
        except ConnectionLost as error:
            failed.append(error)

    threads = [threading.Thread(target=new.send, args=(ids([2, 3], 2),)), threading.Thread(target=zombie)]
    threads[0].start()
    assert inside.wait(20)
    threads[1].start()
    go_on.set()
    for thread in threads:
        thread.join()
    assert [getattr(one, "code", "") for one in failed] == ["E7046"]
    assert stored(url) == [1, 2, 3]


def test_two_senders_write_to_one_table(url: str, sinks: Callable[..., SqlSink]) -> None:
    execute(url, "CREATE TABLE t (id INTEGER)")
    one, other = sinks(), sinks()
    for first in (1, 3):
        one.send(ids([first, first + 1], first, "one"))
        other.send(ids([10 + first, 11 + first], first, "other"))
    assert stored(url) == [1, 2, 3, 4, 11, 12, 13, 14]
    assert rows(url, "SELECT * FROM correlator_sender ORDER BY source") == [("one", 4), ("other", 4)]


def test_messages_of_sessions_have_no_source_and_leave_none(url: str, sinks: Callable[..., SqlSink]) -> None:
    execute(url, TABLE)
    sink = sinks(reliability=Reliability.BEST_EFFORT)
    results = sink.send([Outgoing(0, "", "queue:t", Message(b'{"id": %d}' % n)) for n in (1, 1, 2)])
    assert codes(results) == [None, "E8110", None]
    assert stored(url) == [1, 2]
    assert rows(url, "SELECT * FROM correlator_sender") == []


def test_a_restored_database_is_noticed(url: str, sinks: Callable[..., SqlSink]) -> None:
    execute(url, "CREATE TABLE t (id INTEGER)")
    sinks().send(ids([1, 2, 3]))
    execute(url, "UPDATE correlator_sender SET sequence = 1", "DELETE FROM t WHERE id > 1")
    with pytest.raises(ConnectionLost, match=r"E7043 senders\.s: .* lacks messages 2 to 3 .* set missing_up_to: 3"):
        sinks().send(ids([4], 4))
    assert codes(sinks(missing_up_to=3).send(ids([4], 4))) == [None]
    assert codes(sinks(reliability=Reliability.BEST_EFFORT).send(ids([9], 9))) == [None]
    assert stored(url) == [1, 4, 9]


# --- deaths ---


def test_a_death_behind_each_call_of_the_driver(
    url: str, sinks: Callable[..., SqlSink], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next life has each row once, and a reader sees none or all of the good rows."""
    execute(url, TABLE)
    bodies = [{"id": 1}, {"id": 3, "amount": 1}, {"id": 2, "amount": -1}]
    deaths = 0
    for call in range(1, 100):
        sink, left = sinks(), [call]
        assert sink._connection is not None
        with monkeypatch.context() as patched:
            for name in ("do_commit", "do_execute", "do_executemany"):
                patched.setattr(sink._connection.dialect, name, dying(sink._connection.dialect, name, left))
            try:
                sink.send(batch(bodies, source=f"life {call}"))
            except Dead:
                deaths += 1
        sink.close()
        assert stored(url) in ([], [1, 3])
        again = sinks()
        assert codes(again.send(batch(bodies, source=f"life {call}"))) == [None, None, "E8110"]
        assert codes(again.send(batch([{"id": 5}], 4, source=f"life {call}"))) == [None]
        again.close()
        assert stored(url) == [1, 3, 5]
        execute(url, "DELETE FROM t")
        if left[0] > 0:
            break
    assert deaths > 10
    assert {number for (number,) in rows(url, "SELECT sequence FROM correlator_refused")} == {3}


def test_a_reader_never_sees_half_a_batch(
    url: str, sinks: Callable[..., SqlSink], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looks from another connection behind each call of the driver, while the sender stands still."""
    execute(url, TABLE)
    sink = sinks()
    assert sink._connection is not None
    dialect = sink._connection.dialect
    session = sink._connection.connection.driver_connection
    assert session is not None
    looks: list[tuple[int, int]] = []

    def look(original: Callable[..., object], *arguments: object, **named: object) -> object:
        result = original(*arguments, **named)
        with closing(session.cursor()) as own:
            own.execute("SELECT id FROM t")
            looks.append((len(own.fetchall()), len(stored(url))))
        return result

    with monkeypatch.context() as patched:
        for name in ("do_commit", "do_execute", "do_executemany"):
            patched.setattr(dialect, name, partial(look, getattr(dialect, name)))
        assert codes(sink.send(batch([{"id": 1}, {"id": 2, "amount": 5}]))) == [None, None]
    assert {seen for _, seen in looks} == {0, 2}
    assert {own for own, seen in looks if seen == 0} == {0, 1, 2}  # it looked between the rows, too


@pytest.mark.parametrize("url", DATABASES[1:], indirect=True)
@pytest.mark.parametrize(("lost", "there"), [(lost_reply, [1, 2, 3]), (lost_request, [1])])
def test_a_commit_whose_answer_is_lost(
    url: str, lost: Callable[[re.Pattern[bytes]], NetworkFault], there: list[int]
) -> None:
    """The network cuts the connection between COMMIT and its answer, or before the server has got COMMIT."""
    execute(url, "CREATE TABLE t (id INTEGER)")
    port = make_url(url).port
    assert port is not None
    with FaultProxy(port) as proxy:
        through = url.replace(f":{port}/", f":{proxy.port}/")
        with connecting(lambda: connection(through).sink(sender())) as make:
            sink = make()
            sink.send(ids([1]))
            fault = proxy.inject(lost(COMMIT))
            with pytest.raises(ConnectionLost, match="E7003"):
                sink.send(ids([2, 3], 2))
            assert fault.wait(0)
            assert stored(url) == there
            sink.connect()
            assert codes(sink.send(ids([2, 3, 4], 2))) == [None] * 3
    assert stored(url) == [1, 2, 3, 4]


@pytest.mark.postgres
def test_a_session_that_the_server_ends(postgres_server: PostgresServer) -> None:
    url = postgres_server.fresh_database()
    execute(url, "CREATE TABLE t (id INTEGER)")
    sink = connection(url).sink(sender())
    sink.connect()
    sink.send(ids([1]))
    postgres_server.terminate_backends(url)
    with pytest.raises(ConnectionLost, match="E7003"):
        sink.send(ids([2], 2))
    sink.connect()
    assert codes(sink.send(ids([2], 2))) == [None]
    sink.close()
    assert stored(url) == [1, 2]


# --- what can be wrong with a table ---


def test_a_missing_table(url: str) -> None:
    with pytest.raises(ConnectionLost, match=r"E7010 senders\.s: the database has no table 't'"):
        connection(url).sink(sender()).connect()


def test_a_missing_file(tmp_path: Path) -> None:
    path = tmp_path / "none.db"
    with pytest.raises(ConnectionLost, match=r"E7010 senders\.s: there is no database"):
        connection(f"sqlite:///{path}").sink(sender()).connect()
    assert not path.exists()


def test_a_view(url: str) -> None:
    execute(url, "CREATE VIEW t AS SELECT 1 AS id")
    with pytest.raises(ConnectionLost, match=r"E7042 senders\.s: table 't' is a view"):
        connection(url).sink(sender()).connect()


@pytest.mark.parametrize(
    ("table", "keys", "text"),
    [
        ("CREATE TABLE t (id INTEGER)", None, "has no primary key"),
        (TABLE, ["number"], "has no column 'number'"),
        (TABLE, ["amount"], "may have several rows with equal amount"),
        (TABLE, ["id", "name"], "may have several rows with equal id, name"),
    ],
)
def test_keys_that_identify_no_row(url: str, table: str, keys: list[str] | None, text: str) -> None:
    execute(url, table)
    options = {} if keys is None else {"key_columns": keys}
    for mode in ("upsert", "delete"):
        with pytest.raises(ConnectionLost, match=rf"E7041 senders\.s: .*{text}"):
            connection(url).sink(sender(mode=mode, **options)).connect()


def test_a_partial_index_identifies_no_row(url: str, is_mysql: bool) -> None:
    if is_mysql:  # where an index may have the beginning of a text
        execute(url, "CREATE TABLE t (id VARCHAR(9))", "CREATE UNIQUE INDEX part_of_t ON t (id(3))")
    else:
        execute(url, "CREATE TABLE t (id INTEGER)", "CREATE UNIQUE INDEX part_of_t ON t (id) WHERE id > 5")
    with pytest.raises(ConnectionLost, match="E7041"):
        connection(url).sink(sender(mode="upsert", key_columns=["id"])).connect()


def test_a_table_that_changes_meanwhile(url: str, sinks: Callable[..., SqlSink]) -> None:
    execute(url, "CREATE TABLE t (id INTEGER)")
    sink = sinks()
    sink.send(ids([1]))
    execute(url, "ALTER TABLE t RENAME COLUMN id TO number")
    with pytest.raises(ConnectionLost, match="E7003"):
        sink.send(ids([2], 2))
    sink.connect()
    assert codes(sink.send(batch([{"number": 2}], 2))) == [None]


def test_doctor_changes_nothing(url: str) -> None:
    found = connection(url).examine((), [sender()])
    assert [one.code for one in found] == ["E7010"]
    execute(url, ONE_KEY)
    assert connection(url).examine((), [sender(), sender(mode="upsert")]) == []
    with pytest.raises(Exception, match="correlator_sender"):
        rows(url, "SELECT * FROM correlator_sender")


def test_an_unreachable_server_and_a_file_that_is_none(tmp_path: Path) -> None:
    away = "postgresql://me:secret@127.0.0.1:1/d"
    with pytest.raises(ConnectionLost, match=r"E7003 senders\.s: ") as lost:
        connection(away).sink(sender()).connect()
    assert "secret" not in str(lost.value)
    (found,) = connection(away).examine((), [sender()])
    assert "secret" not in str(found)
    (tmp_path / "text.db").write_text("no database, but a text that is long enough to be one" * 50)
    with pytest.raises(ConnectionLost, match="E7003 .*not a database"):
        connection(f"sqlite:///{tmp_path}/text.db").sink(sender()).connect()


def test_a_locked_database_is_no_refusal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("connectors.sql.database._BUSY_TIMEOUT_S", 0.0)
    url = sqlite_file(tmp_path)
    execute(url, "CREATE TABLE t (id INTEGER)")
    sink = connection(url).sink(sender())
    sink.connect()
    other = sqlite3.connect(tmp_path / "tables.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(ConnectionLost, match="E7003 .*locked"):
        sink.send(ids([1]))
    other.close()
    sink.connect()
    assert codes(sink.send(ids([1]))) == [None]
    sink.close()


def test_a_forked_child_does_not_use_the_connection(url: str, sinks: Callable[..., SqlSink]) -> None:
    execute(url, "CREATE TABLE t (id INTEGER)")
    sink = sinks()
    sink.send(ids([1]))
    child = multiprocessing.get_context("fork").Process(target=_in_child, args=(sink,))
    child.start()
    child.join()
    assert child.exitcode == 0
    assert codes(sink.send(ids([2], 2))) == [None]
    assert stored(url) == [1, 2]


def _in_child(sink: SqlSink) -> None:
    for call in (sink.connect, lambda: sink.send(ids([2], 2))):
        with pytest.raises(UsageError, match="E2050"):
            call()
    sink.close()
