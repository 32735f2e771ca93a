"""MySQL and MariaDB behind the connector `sql`: what is different there. The server has careless defaults."""

import re
import socket
import sys
import threading
from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from datetime import datetime
from decimal import Decimal
from pathlib import Path

import msgspec
import pytest

from connectors.sql import SqlConnection, mysql, mysql_session
from connectors.sql.database import open_database
from connectors.sql.mysql import parse
from connectors.sql.outbox import OutboxSource
from connectors.sql.sink import SqlSink
from correlator.cli.main import execute as command
from correlator.errors import ConfigError, ConnectionLost, SendRejected, StoreError
from correlator.events import Message, Outgoing
from correlator.settings import ConnectionSettings, ReceiverSettings, SenderSettings
from tests.connectors.tables import connecting, execute, rows
from tests.mysql_server import IS_MARIADB, MysqlServer
from tests.waiting import wait_until

pytestmark = pytest.mark.mysql
TABLE = "CREATE TABLE t (id INTEGER PRIMARY KEY, name VARCHAR(5), amount INTEGER)"
UUID = "UUID" if IS_MARIADB else "CHAR(36)"


@pytest.fixture
def url(mysql_server: MysqlServer) -> str:
    return mysql_server.fresh_database()


@pytest.fixture
def sinks(url: str) -> Iterator[Callable[..., SqlSink]]:
    """Makes connected sinks, and closes them."""
    with connecting(lambda **options: connection(url).sink(sender(**options))) as make:
        yield make


@pytest.fixture
def sources(url: str) -> Iterator[Callable[..., OutboxSource]]:
    """Makes connected sources of an outbox table, and closes them."""

    def outbox(**options: object) -> OutboxSource:
        source = connection(url).source(receiver(**options))
        assert isinstance(source, OutboxSource)
        return source

    with connecting(outbox) as make:
        yield make


def connection(url: str) -> SqlConnection:
    return SqlConnection("tables", ConnectionSettings(type="sql", options={"database": url}))


def sender(table: str = "t", **options: object) -> SenderSettings:
    return SenderSettings(
        id="s", connection="tables", destination=f"queue:{table}", reliability="EXACTLY_ONCE", options=options
    )


def receiver(table: str = "outbox", **options: object) -> ReceiverSettings:
    return ReceiverSettings(id="r", connection="tables", destination=f"queue:{table}", options=options)


def batch(*bodies: object, first: int = 1, source: str = "a:1", table: str = "t") -> list[Outgoing]:
    return [
        Outgoing(at, source, f"queue:{table}", Message(msgspec.json.encode(body)))
        for at, body in enumerate(bodies, first)
    ]


def codes(results: object) -> list[str | None]:
    assert isinstance(results, list)
    return [one.code if isinstance(one, SendRejected) else None for one in results]


def take(source: OutboxSource) -> list[str]:
    chunk = source.receive(100, 0.0)
    source.acknowledge(chunk.tokens)
    return [message.body.decode() for message in chunk.messages]


# --- addresses ---


@pytest.mark.parametrize("scheme", ["mysql", "mysql+pymysql", "mariadb", "mariadb+pymysql"])
def test_addresses(scheme: str) -> None:
    read = parse("c", f"{scheme}://me:p%40ss@db.example.com:3307/shop?ssl_ca=/ca.pem")
    assert (read.drivername, read.host, read.port, read.password) == ("mysql+pymysql", "db.example.com", 3307, "p@ss")


@pytest.mark.parametrize(
    ("rest", "text"),
    [
        ("host:port/d", "is not the address"),
        ("host", "names no host or no database"),
        ("host/", "names no host or no database"),
        ("/d", "names no host or no database"),
        ("host/d?charset=latin1", "unknown parameter 'charset'"),
        ("host/d?local_infile=1", "unknown parameter 'local_infile'"),
        ("host/d?ssl_ca=a&ssl_ca=b", "needs one value for ssl_ca"),
        ("host/d?ssl_disabled=1", "wrong value for ssl_disabled"),
        ("host/d?ssl_disabled=true&ssl_ca=a", "disables TLS"),
        ("host/d?ssl_key=a", "without ssl_cert"),
    ],
)
def test_addresses_that_are_refused(rest: str, text: str) -> None:
    with pytest.raises(ConfigError, match=r"E1022 connections\.c\.database") as raised:
        SqlConnection("c", ConnectionSettings(type="sql", options={"database": f"mysql://me:secret@{rest}"}))
    assert text in str(raised.value)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("table", ["🚚", "a ", "x" * 65])
def test_names_that_no_table_can_have(table: str) -> None:
    tables = connection("mysql://me@127.0.0.1/d")
    polled = ReceiverSettings(id="r", connection="t", destination=f"topic:{table}", options={"order_column": "id"})
    for make in (
        lambda: tables.sink(sender(table=table)),
        lambda: tables.source(receiver(table=table)),
        lambda: tables.source(polled),
        lambda: tables.outbox_statements(receiver(table=table)),
    ):
        with pytest.raises(
            ConfigError, match=r"E1216 (senders\.s|receivers\.r)\.destination: .* not a name of a table in MySQL"
        ):
            make()
    tables.sink(sender(table=table, mode="statement", statement="DELETE FROM t WHERE id = :id"))


FILE = """
version: 1
name: shop
store: sqlite:///engine.db
connections:
  shop: {type: sql, database: "URL"}
receivers:
  - {id: orders, connection: shop, destination: "queue:outbox", reliability: AT_LEAST_ONCE, unhandled: ignore}
senders:
  - {id: rows, connection: shop, destination: "queue:t", reliability: EXACTLY_ONCE}
monitors:
  - {type: "correlator:Monitor"}
"""


def test_commands_know_the_address_and_do_not_show_the_password(
    mysql_server: MysqlServer, url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "shop.yaml"
    file.write_text(FILE.replace("sqlite:///", f"sqlite:///{tmp_path}/").replace("URL", url))
    file.chmod(0o600)
    statuses = [command([name, str(file)]) for name in ("lint", "explain", "plan", "doctor")]
    shown = "".join(capsys.readouterr())
    assert statuses[:3] == [0, 0, 0]
    assert "E7010 receivers.orders: the database has no table 'outbox'" in shown
    assert mysql_server.password not in shown
    execute(url, TABLE)
    assert command(["outbox", "create", str(file), "orders"]) == 0
    assert command(["doctor", str(file)]) == 0
    file.write_text(file.read_text().replace("ssl_disabled", "charset"))
    assert command(["lint", str(file)]) == 2
    shown = "".join(capsys.readouterr())
    assert "connections.shop.database: has the unknown parameter 'charset'" in shown
    assert mysql_server.password not in shown


def test_the_examples_of_the_page(url: str, sinks: Callable[..., SqlSink]) -> None:
    """Its address is one, and the tables that it shows are those that a sender needs."""
    page = (Path(__file__).parents[2] / "docs" / "tables.md").read_text()
    (address,) = re.findall(r'database: "(mysql:[^"]+)"', page)
    assert parse("c", address.replace("${SHOP_PASSWORD}", "secret")).query == {"ssl_ca": "/etc/ssl/db-authority.pem"}
    (statements,) = re.findall(r"In MySQL and MariaDB:\n\n```sql\n(.*?)```", page, re.DOTALL)
    own = [one for one in statements.split(";") if one.strip()]
    execute(url, *own, TABLE)
    made = rows(url, "SHOW CREATE TABLE correlator_sender") + rows(url, "SHOW CREATE TABLE correlator_refused")
    assert codes(sinks().send(batch({"id": 1}, {"id": 1}))) == [None, "E8110"]
    execute(url, "DROP TABLE correlator_sender", "DROP TABLE correlator_refused")
    sinks()
    again = rows(url, "SHOW CREATE TABLE correlator_sender") + rows(url, "SHOW CREATE TABLE correlator_refused")
    assert [re.sub(r"DEFAULT (NULL|CHARSET=\S+ COLLATE=\S+)", "", text) for _, text in made] == [
        re.sub(r"DEFAULT (NULL|CHARSET=\S+ COLLATE=\S+)", "", text) for _, text in again
    ]


# --- sessions ---


def test_a_session_does_not_depend_on_the_defaults_of_the_server(url: str) -> None:
    with closing(open_database("s", mysql.parse("c", url))) as session, session.begin():
        mode, zone = session.exec_driver_sql("SELECT @@sql_mode, @@time_zone").one()
        _, level = session.exec_driver_sql("SHOW VARIABLES LIKE 't%%_isolation'").first()
    assert "STRICT_ALL_TABLES" in mode
    assert (zone, level) == ("+00:00", "REPEATABLE-READ")


def test_a_server_on_another_machine_shows_who_it_is(mysql_server: MysqlServer) -> None:
    away, here = "mysql://me@db.example.com/d", "mysql://me@127.0.0.1/d"
    context = mysql._tls("s", parse("c", away))["ssl"]
    assert (context.check_hostname, context.verify_mode.name) == (True, "CERT_REQUIRED")
    assert mysql._tls("s", parse("c", here)) == {}
    assert mysql._tls("s", parse("c", f"{away}?ssl_disabled=true")) == {"ssl_disabled": True}
    with pytest.raises(ConnectionLost, match="E7016 s: the files for TLS cannot be used: .*No such file"):
        mysql._tls("s", parse("c", f"{here}?ssl_ca=/nowhere/ca.pem"))
    files = mysql_server.directory
    query = "SHOW STATUS LIKE 'Ssl_version'"
    for parameters in ("", f"ssl_ca={files}/ca.pem"):  # on this machine TLS is used if the server has it
        with closing(open_database("s", parse("c", mysql_server.url("mysql", parameters)))) as session:
            assert "TLS" in session.exec_driver_sql(query).one()[1]
    with pytest.raises(ConnectionLost, match="E7016 s: no TLS with 127.0.0.1: .*certificate verify failed"):
        open_database("s", parse("c", mysql_server.url("mysql", f"ssl_ca={files}/another.pem")))


def test_who_cannot_log_in(mysql_server: MysqlServer) -> None:
    url = mysql_server.fresh_database()
    wrong = url.replace(mysql_server.password, "secret")
    with pytest.raises(ConnectionLost, match=r"E7003 senders\.s: .*Access denied") as lost:
        connection(wrong).sink(sender()).connect()
    (found,) = connection(wrong).examine((), [sender()])
    assert "secret" not in f"{lost.value} {found}"
    mysql_server.execute("CREATE USER '会员' IDENTIFIED BY 'пароль'", "GRANT ALL ON *.* TO '会员'")
    execute(url, TABLE)
    other = url.replace(f"{mysql_server.user}:{mysql_server.password}@", "会员:пароль@")
    sink = connection(other).sink(sender())
    sink.connect()
    sink.close()
    mysql_server.execute("DROP USER '会员'")


def test_something_else_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    for answer in (b"HTTP/1.1 400 Bad Request\r\n\r\n", b"SSH-2.0-OpenSSH\r\n", b"\x05\0\0\0\x0a5.5\0", b""):
        with socket.create_server(("127.0.0.1", 0)) as listener:

            def talk(answer: bytes = answer, listener: socket.socket = listener) -> None:
                with listener.accept()[0] as accepted:
                    accepted.sendall(answer)

            thread = threading.Thread(target=talk)
            thread.start()
            url = f"mysql://me:secret@127.0.0.1:{listener.getsockname()[1]}/d"
            with pytest.raises(ConnectionLost, match=r"E7003 senders\.s") as lost:
                connection(url).sink(sender()).connect()
            thread.join()
            assert "secret" not in str(lost.value)


def test_a_missing_driver_and_an_old_server(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    execute(url, TABLE)
    with monkeypatch.context() as patched:
        patched.setattr(mysql, "_OLDEST", {"MariaDB": (99, 1), "MySQL": (99, 1)})
        with pytest.raises(ConnectionLost, match=r"E7643 senders\.s: (MariaDB|MySQL) \S+ is too old\. 99\.1 or newer"):
            connection(url).sink(sender()).connect()
    monkeypatch.setitem(sys.modules, "pymysql", None)
    with pytest.raises(StoreError, match=r"E7642 s: .* need the package 'pymysql'.*correlator\[mysql\]"):
        open_database("s", parse("c", url))
    with pytest.raises(ConnectionLost, match="correlator.mysql"):
        connection(url).sink(sender()).connect()


def test_a_session_that_the_server_ends(mysql_server: MysqlServer) -> None:
    url = mysql_server.fresh_database()
    execute(url, TABLE)
    sink = connection(url).sink(sender())
    sink.connect()
    sink.send(batch({"id": 1}))
    mysql_server.kill_sessions(url)
    with pytest.raises(ConnectionLost, match="E7003"):
        sink.send(batch({"id": 2}, first=2))
    sink.connect()
    assert codes(sink.send(batch({"id": 2}, first=2))) == [None]
    sink.close()
    assert rows(url, "SELECT id FROM t") == [(1,), (2,)]


def test_a_frozen_server(mysql_server: MysqlServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the server still does when it goes on counts, too: the number says how far it came."""
    url = mysql_server.fresh_database()
    execute(url, TABLE)
    monkeypatch.setattr(mysql_session, "_ANSWER_TIMEOUT_S", 0.5)
    sink = connection(url).sink(sender())
    sink.connect()
    sink.send(batch({"id": 1}))
    with mysql_server.frozen(), pytest.raises(ConnectionLost, match="E7003 .*Lost connection"):
        sink.send(batch({"id": 2}, first=2))
    monkeypatch.setattr(mysql_session, "_ANSWER_TIMEOUT_S", 30)
    sink.connect()
    assert codes(sink.send(batch({"id": 2}, {"id": 3}, first=2))) == [None, None]
    sink.close()
    assert rows(url, "SELECT id FROM t") == [(1,), (2,), (3,)]


# --- tables ---


def test_only_tables_that_know_transactions(url: str, sinks: Callable[..., SqlSink]) -> None:
    execute(url, f"{TABLE} ENGINE = MyISAM")
    with pytest.raises(ConnectionLost, match=r"E7640 senders\.s: table 't' has the engine MyISAM"):
        connection(url).sink(sender()).connect()
    statement = "UPDATE t SET amount = :amount WHERE id = :id"
    written = sender(mode="statement", statement=statement)
    with pytest.raises(ConnectionLost, match=r"E7640 senders\.s: the statement names table 't'"):
        connection(url).sink(written).connect()
    assert [one.code for one in connection(url).examine((), [sender(), written])] == ["E7640", "E7640"]
    execute(url, "ALTER TABLE t ENGINE = InnoDB", "CREATE TABLE id (amount INTEGER) ENGINE = MyISAM")
    sinks(mode="statement", statement=statement)  # a table that has the name of a column
    execute(url, "ALTER TABLE correlator_sender ENGINE = MEMORY")
    with pytest.raises(ConnectionLost, match="E7640 .*table 'correlator_sender' has the engine MEMORY"):
        connection(url).sink(sender()).connect()
    execute(url, "CREATE TABLE outbox (id INTEGER PRIMARY KEY, body TEXT, unique_id TEXT NOT NULL) ENGINE = MyISAM")
    with pytest.raises(ConnectionLost, match=r"E7640 receivers\.r"):
        connection(url).source(receiver()).connect()


@pytest.mark.parametrize(
    ("table", "shown"),
    [
        ("CREATE TABLE t (id INTEGER PRIMARY KEY, name VARCHAR(9) UNIQUE)", "name"),
        ("CREATE TABLE t (id INTEGER PRIMARY KEY, name VARCHAR(9), UNIQUE (name(3)))", "an expression"),
        ("CREATE TABLE t (id INTEGER PRIMARY KEY, name VARCHAR(9), UNIQUE (id, name))", "id, name"),
    ],
)
def test_another_unique_key_and_upsert(url: str, sinks: Callable[..., SqlSink], table: str, shown: str) -> None:
    """MySQL would change the row that has equal values there."""
    execute(url, table)
    with pytest.raises(ConnectionLost, match=rf"E7641 senders\.s: table 't' has another unique key, {shown}: "):
        connection(url).sink(sender(mode="upsert")).connect()
    for mode in ("insert", "delete"):
        sinks(mode=mode)


def test_hostile_names(url: str, sinks: Callable[..., SqlSink]) -> None:
    name = "a'; DROP TABLE x; --%s (:c0) VALUES"
    mark = name.replace("%", "%%")
    execute(url, f"CREATE TABLE `{mark}``` (`{mark}` INTEGER PRIMARY KEY, `Select` TEXT, `a``b` INTEGER)")
    for first, mode in enumerate(("insert", "upsert", "delete"), 1):
        bodies = [{name: 1, "Select": mode}, {name: first, "Select": "x"}]
        sink = sinks(table=f"{name}`", mode=mode)
        codes(sink.send(batch(*bodies, first=2 * first - 1, table=f"{name}`")))
    assert rows(url, f"SELECT * FROM `{mark}```") == [(2, "x", None)]
    assert codes(sinks(table=f"{name}`").send(batch({"a`b": 1}, first=7, table=f"{name}`"))) == ["E8110"]


def test_a_table_of_another_database(mysql_server: MysqlServer, sinks: Callable[..., SqlSink]) -> None:
    other = mysql_server.fresh_database()
    execute(other, TABLE)
    schema = other.rpartition("/")[2].partition("?")[0]
    assert codes(sinks(schema=schema, mode="upsert").send(batch({"id": 1}))) == [None]
    assert rows(other, "SELECT id FROM t") == [(1,)]


def test_sources_that_differ_in_case_only(url: str, sinks: Callable[..., SqlSink]) -> None:
    execute(url, "CREATE TABLE t (id INTEGER)")
    sink = sinks()
    sink.send(batch({"id": 1}, source="host:S01"))
    assert codes(sink.send(batch({"id": 2}, source="HOST:S01"))) == [None]
    assert rows(url, "SELECT id FROM t") == [(1,), (2,)]


def test_doctor_tells_of_a_server_that_confirms_early(mysql_server: MysqlServer) -> None:
    url = mysql_server.fresh_database()
    execute(url, TABLE)
    mysql_server.execute("SET GLOBAL innodb_flush_log_at_trx_commit = 2")
    try:
        (found,) = connection(url).examine((), [sender()])
    finally:
        mysql_server.execute("SET GLOBAL innodb_flush_log_at_trx_commit = 1")
    assert found.code == "W7645"
    assert connection(url).examine((), [sender()]) == []


# --- values ---


def test_types(url: str, sinks: Callable[..., SqlSink]) -> None:
    execute(
        url,
        "CREATE TABLE t (id BIGINT AUTO_INCREMENT PRIMARY KEY, at TIMESTAMP(6) NULL, flag BOOLEAN, small TINYINT,"
        f" large BIGINT UNSIGNED, colour ENUM('red', 'blue'), sizes SET('s', 'm', 'l'), data JSON, u {UUID},"
        " raw VARBINARY(4), clock TIME(6), price DECIMAL(30,10), ratio FLOAT, taken YEAR, doc LONGTEXT)",
    )
    good = {
        "at": "2026-01-05T10:00:00.125+01:00",
        "flag": True,
        "small": -128,
        "large": 2**64 - 1,
        "colour": "blue",
        "sizes": "s,l",
        "data": {"a": [1, None, "ü"]},
        "u": "6f2b8f3e-5d0c-4f6a-9d39-0c8b8a4f0001",
        "raw": "AAE=",
        "clock": "10:00:00.5",
        "price": "12345678901234567890.0000000001",
        "ratio": 0.5,
        "doc": "{",
    }
    wrong = [
        {"at": "2026-01-05T10:00:00"},
        {"at": "0001-01-01T00:00:00+05:00"},
        {"at": "1900-01-01T00:00:00Z"},
        {"flag": "yes"},
        {"small": 128},
        {"large": -1},
        {"large": 2**64},
        {"colour": "green"},
        {"sizes": "s,xl"},
        {"raw": "AAECAwQ="},
        {"price": "1e20"},
        {"price": "0.00000000001"},
        {"ratio": 1e300},
        {"taken": 2026},
    ]
    results = sinks().send(batch(good, *wrong, {"data": None, "flag": 0, "taken": None}))
    assert codes(results) == [None, *["E8110"] * len(wrong), None]
    query = (
        "SELECT unix_timestamp(at), flag, small, large, colour, sizes, json_value(data, '$.a[2]'), u, raw, clock,"
        " price, ratio, doc FROM t ORDER BY id"
    )
    first, second = rows(url, query)
    (at, *others) = first
    assert at == Decimal(str(datetime.fromisoformat(good["at"]).timestamp()))
    assert others[:6] == [1, -128, 2**64 - 1, "blue", "s,l", "ü"]
    assert [str(others[6]), others[7], str(others[8])] == [good["u"], b"\0\1", "10:00:00.500000"]
    assert others[9:] == [Decimal(good["price"]), 0.5, "{"]
    assert second[1] == 0
    assert rows(url, "SELECT data IS NULL FROM t ORDER BY id") == [(0,), (1,)]


def test_nothing_is_cut_without_an_error(url: str, sinks: Callable[..., SqlSink]) -> None:
    """The server would do so by its own mode."""
    execute(url, "CREATE TABLE t (id INTEGER, note TINYTEXT, n INTEGER NOT NULL)")
    sink = sinks()
    results = sink.send(batch({"id": 1, "note": "x" * 256, "n": 1}, {"id": 2}, {"id": 3, "n": 1}))
    assert codes(results) == ["E8110", "E8110", None]
    assert "Data too long for column 'note'" in str(results[0])
    assert "doesn't have a default value" in str(results[1])
    statement = "INSERT INTO t (id, note, n) VALUES (:id, 'a\\', :n)"  # a backslash means itself
    written = sinks(mode="statement", statement=statement)
    results = written.send(batch({"id": 4, "n": "many"}, {"id": 5, "n": 2**40}, {"id": 6, "n": 2}, source="b"))
    assert codes(results) == ["E8110", "E8110", None]
    assert rows(url, "SELECT id, note FROM t ORDER BY id") == [(3, None), (6, "a\\")]


def test_numbers_of_a_statement_are_exact(url: str, sinks: Callable[..., SqlSink]) -> None:
    execute(url, "CREATE TABLE t (id INTEGER, cents BIGINT)", f"INSERT INTO t VALUES (1, {2**62 + 1})")
    sink = sinks(mode="statement", statement="UPDATE t SET `cents` = cents + :more WHERE id = :id -- `:no`")
    assert codes(sink.send(batch({"id": 1, "more": 2**61 + 1}))) == [None]
    assert rows(url, "SELECT cents FROM t") == [(2**62 + 2**61 + 2,)]
    assert codes(sink.send(batch({"id": 1, "more": -(2**62) - 2**61 - 0.4}, first=2))) == [None]
    assert rows(url, "SELECT cents FROM t") == [(0,)]  # rounded, as the page says


def test_decimals_as_keys(url: str, sinks: Callable[..., SqlSink]) -> None:
    """As texts or floating point numbers, these would be equal."""
    execute(url, "CREATE TABLE t (price DECIMAL(30,10) PRIMARY KEY, n INTEGER)")
    one, other = "12345678901234567890.0000000001", "12345678901234567890.0000000002"
    sinks(mode="upsert").send(batch({"price": one, "n": 1}, {"price": other, "n": 2}, {"price": one, "n": 3}))
    assert rows(url, "SELECT n FROM t ORDER BY price") == [(3,), (2,)]
    sinks(mode="delete").send(batch({"price": one}, source="b"))
    assert rows(url, "SELECT n FROM t") == [(2,)]


def test_a_row_that_is_longer_than_the_server_takes(url: str, sinks: Callable[..., SqlSink]) -> None:
    """The server would end the session at each try."""
    execute(url, "CREATE TABLE t (id INTEGER PRIMARY KEY, doc LONGTEXT)")
    for mode in ("insert", "upsert"):
        execute(url, "DELETE FROM t")
        bodies = [{"id": 1, "doc": "x" * 500_000}, {"id": 2, "doc": "x" * 1_100_000}, {"id": 3, "doc": "x" * 700_000}]
        results = sinks(mode=mode).send(batch(*bodies, source=mode))
        assert codes(results) == [None, "E8110", None]
        assert "more than max_allowed_packet" in str(results[1])
        assert rows(url, "SELECT id FROM t") == [(1,), (3,)]


# --- refusals and what is none ---


def test_a_trigger_may_refuse_a_row(url: str, sinks: Callable[..., SqlSink]) -> None:
    execute(
        url,
        TABLE,
        "CREATE TRIGGER no BEFORE INSERT ON t FOR EACH ROW"
        " IF NEW.id = 2 THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'not that one'; END IF",
    )
    results = sinks().send(batch({"id": 1}, {"id": 2}, {"id": 3}))
    assert codes(results) == [None, "E8110", None]
    assert "the database refuses the row: not that one" in str(results[1])


def test_a_deadlock_is_no_refusal(mysql_server: MysqlServer) -> None:
    url = mysql_server.fresh_database()
    execute(url, TABLE, "INSERT INTO t VALUES (1, 'a', 1), (2, 'b', 1)", "CREATE TABLE heavy (id INTEGER)")
    sink = connection(url).sink(sender(mode="upsert"))
    sink.connect()
    failed: list[BaseException] = []
    bodies = [{"id": 2, "amount": 5}, {"id": 1, "amount": 5}]

    def send() -> None:
        try:
            assert codes(sink.send(batch(*bodies))) == [None, None]
        except ConnectionLost as error:
            failed.append(error)

    with closing(open_database("other", parse("c", url))) as other, other.begin() as transaction:
        # the server ends the transaction that has changed fewer rows
        other.exec_driver_sql(f"INSERT INTO heavy VALUES {', '.join(f'({n})' for n in range(100))}")
        other.exec_driver_sql("UPDATE t SET amount = 7 WHERE id = 1")
        thread = threading.Thread(target=send)
        thread.start()
        waiting = "SELECT 1 FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'"
        wait_until(lambda: mysql_server.execute(waiting), every_s=0.15)  # the server looks each 0.1 s
        other.exec_driver_sql("UPDATE t SET amount = 7 WHERE id = 2")
        thread.join()
        transaction.rollback()
    assert ["Deadlock found" in str(one) for one in failed] == [True]
    sink.connect()
    assert codes(sink.send(batch(*bodies))) == [None, None]
    sink.close()
    assert rows(url, "SELECT amount FROM t") == [(5,), (5,)]


def test_a_lock_that_lasts_is_no_refusal(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    execute(url, TABLE, "INSERT INTO t VALUES (1, 'a', 1)")
    monkeypatch.setattr(mysql, "_SETTINGS", mysql._SETTINGS.replace("timeout = 20", "timeout = 1"))
    sink = connection(url).sink(sender(mode="upsert"))
    sink.connect()
    with closing(open_database("other", parse("c", url))) as other, other.begin():
        other.exec_driver_sql("UPDATE t SET amount = 7 WHERE id = 1")
        with pytest.raises(ConnectionLost, match="E7003 .*Lock wait timeout exceeded"):
            sink.send(batch({"id": 1, "amount": 5}))
    sink.connect()
    assert codes(sink.send(batch({"id": 1, "amount": 5}))) == [None]
    sink.close()


# --- outbox tables ---


def test_a_row_that_commits_late_is_not_lost(url: str, sources: Callable[..., OutboxSource]) -> None:
    connection(url).create_outbox(receiver())
    source = sources()
    with closing(open_database("slow", parse("c", url))) as slow:
        with slow.begin():
            slow.exec_driver_sql("INSERT INTO outbox (body) VALUES ('slow')")
            execute(url, "INSERT INTO outbox (body) VALUES ('fast')")
            chunk = source.receive(10, 0.0)
            assert [message.body for message in chunk.messages] == [b"fast"]
            source.acknowledge(chunk.tokens)  # locks no row of others, and waits for none
        with slow.begin() as transaction:
            slow.exec_driver_sql("INSERT INTO outbox (body) VALUES ('never')")
            assert take(source) == ["slow"]
            transaction.rollback()
    source._next_look = 0.0
    assert take(source) == []


@pytest.mark.parametrize(
    ("kind", "value", "body"),
    [
        ("LONGBLOB", "x'00ff'", b"\0\xff"),
        ("VARBINARY(9)", "x'00ff'", b"\0\xff"),
        ("JSON", """'{"b": 1}'""", b'{"b": 1}'),
        ("VARCHAR(9) CHARACTER SET latin1", "'ü'", "ü".encode()),
        ("INTEGER", "17", b"17"),
    ],
)
def test_bodies_of_other_types(
    url: str, sources: Callable[..., OutboxSource], kind: str, value: str, body: bytes
) -> None:
    execute(
        url,
        f"CREATE TABLE o (number INTEGER PRIMARY KEY, body {kind}, unique_id BINARY(2) NOT NULL, created DATE)",
        f"INSERT INTO o VALUES (1, {value}, 'u1', '2026-01-31'), (2, NULL, x'ff00', NULL)",
    )
    source = sources(table="o", columns={"id": "number"})
    chunk = source.receive(10, 0.0)
    first, second = chunk.messages
    assert (first.body, second.body) == (body, b"")
    assert first.headers is not None
    assert (first.headers.message_id, first.headers.timestamp) == ("u1", 1769817600000)
    source.acknowledge(chunk.tokens)
    assert rows(url, "SELECT * FROM o") == []


def test_the_lock_of_a_reader_ends_with_its_session(
    mysql_server: MysqlServer, sources: Callable[..., OutboxSource], url: str
) -> None:
    connection(url).create_outbox(receiver())
    one = sources()
    with pytest.raises(ConnectionLost, match=r"E7009 .*\(connection \d+\)"):
        sources()
    mysql_server.kill_sessions(url)
    other = sources()
    with pytest.raises(ConnectionLost, match="E7003"):
        one.receive(1, 0.0)
    with pytest.raises(ConnectionLost, match="E7009"):
        one.connect()
    execute(url, "INSERT INTO outbox (body) VALUES ('a')")
    assert take(other) == ["a"]


def test_a_user_who_may_not_delete(mysql_server: MysqlServer) -> None:
    url = mysql_server.fresh_database()
    connection(url).create_outbox(receiver())
    database = url.rpartition("/")[2].partition("?")[0]
    mysql_server.execute("CREATE USER reader IDENTIFIED BY 'reader'", f"GRANT SELECT ON {database}.outbox TO reader")
    weak = url.replace(f"{mysql_server.user}:{mysql_server.password}@", "reader:reader@")
    with pytest.raises(ConnectionLost, match=r"E7007 receivers\.r: the user may not delete rows of table 'outbox'"):
        connection(weak).source(receiver()).connect()
    mysql_server.execute("DROP USER reader")


# --- polled tables ---


def test_values_of_a_polled_table(url: str, tmp_path: Path) -> None:
    execute(
        url,
        "CREATE TABLE t (id INTEGER PRIMARY KEY, at TIMESTAMP(3) NULL, day DATE, due DATETIME, flag BOOLEAN, bits BIT(9),"
        " taken YEAR, data JSON, price DECIMAL(30,10), ratio DOUBLE, name VARCHAR(9) CHARACTER SET latin1,"
        f" colour ENUM('red', 'blue'), raw BLOB, u {UUID}, large BIGINT UNSIGNED)",
        "INSERT INTO t VALUES (1, '2026-01-31 13:00:00.125', '2026-01-31', '2026-01-31 10:00:00', TRUE, b'101', 2026,"
        """ '{"a": [1]}', 12345678901234567890.0000000001, 0.5, 'ü"', 'red', x'00ff', uuid(), 18446744073709551615),"""
        " (2, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, repeat('x', 100), NULL, NULL)",
    )
    first, second = (msgspec.json.decode(body) for body in polled(url, tmp_path, "id"))
    assert len(first.pop("u")) == 36
    assert first == {
        "id": 1,
        "at": "2026-01-31T10:00:00.125+00:00",  # the server is three hours ahead
        "day": "2026-01-31",
        "due": "2026-01-31T10:00:00",
        "flag": 1,
        "bits": 5,
        "taken": 2026,
        "data": {"a": [1]},
        "price": 12345678901234567890.0000000001,
        "ratio": 0.5,
        "name": 'ü"',
        "colour": "red",
        "raw": "AP8=",
        "large": 2**64 - 1,
    }
    assert second.pop("raw") == b64encode(b"x" * 100).decode()
    assert {*second.values()} == {2, None}


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("BIGINT UNSIGNED", ["9007199254740992", "9007199254740993", "18446744073709551615"]),
        ("DECIMAL(30,10)", ["-1", "12345678901234567890.0000000001", "12345678901234567890.0000000002"]),
        ("DATETIME(6)", ["'2026-01-31 10:00:00'", "'2026-01-31 10:00:00.000001'", "'2026-01-31 10:00:00.1'"]),
        ("TIMESTAMP(6)", ["'2026-10-25 02:30:00'", "'2026-10-25 02:30:00.000001'", "'2026-10-25 03:30:00'"]),
        ("DATE", ["'2026-01-30'", "'2026-01-31'", "'2026-02-01'"]),
        ("VARCHAR(9)", ["'a'", "'B'", "'ü'"]),
        ("VARCHAR(9) CHARACTER SET latin1 COLLATE latin1_bin", ["'B'", "'a'", "'ü'"]),
        ("BINARY(2)", ["x'0000'", "x'00ff'", "x'ff00'"]),
        (UUID, [f"'6f2b8f3e-5d0c-4f6a-9d39-0c8b8a4f000{n}'" for n in "123"]),
    ],
)
def test_places_in_the_order(url: str, tmp_path: Path, kind: str, values: list[str]) -> None:
    """Each value orders rows, with equal ones by the key, and is a place of which the next life goes on."""
    execute(url, f"CREATE TABLE t (k {kind} NOT NULL, n {kind} NOT NULL, PRIMARY KEY (n, k))")
    every = [f"({one}, {other})" for one in values for other in values]
    execute(url, f"INSERT INTO t VALUES {', '.join(reversed(every))}")
    execute(
        url, "ALTER TABLE t ADD COLUMN place INTEGER", "SET @n = 0", "UPDATE t SET place = (@n := @n + 1) ORDER BY k, n"
    )
    found = [msgspec.json.decode(body)["place"] for body in polled(url, tmp_path, "k", ["n"], at_a_time=1)]
    assert found == list(range(1, 10))


@pytest.mark.parametrize("kind", ["DOUBLE", "ENUM('a', 'b')", "SET('a', 'b')", "JSON", "YEAR", "POINT"])
@pytest.mark.filterwarnings("ignore:Did not recognize type")
def test_types_that_order_no_rows(url: str, tmp_path: Path, kind: str) -> None:
    execute(url, f"CREATE TABLE t (id INTEGER PRIMARY KEY, k {kind} NOT NULL)")
    with pytest.raises(ConnectionLost, match=r"E7041 receivers\.r: column 'k' of table 't' has the type"):
        polled(url, tmp_path, "k")


def test_polling_needs_a_lag(url: str, tmp_path: Path) -> None:
    execute(url, "CREATE TABLE t (id INTEGER PRIMARY KEY)")
    with pytest.raises(ConnectionLost, match="E7041 .*MySQL needs 'lag'"):
        polled(url, tmp_path, "id", lag=None)


def polled(
    url: str, place: Path, order: str, keys: Sequence[str] = (), *, lag: str | None = "1ms", at_a_time: int = 100
) -> list[bytes]:
    """The bodies of all rows; each chunk in a life of its own."""
    options = {"order_column": order, **({"key_columns": [*keys]} if keys else {}), **({"lag": lag} if lag else {})}
    settings = ReceiverSettings(id="r", connection="tables", destination="topic:t", options=options)
    tables = SqlConnection("tables", ConnectionSettings(type="sql", options={"database": url, "state": str(place)}))
    bodies: list[bytes] = []
    while not bodies or len(bodies) < rows(url, "SELECT count(*) FROM t")[0][0]:
        with closing(tables.source(settings)) as source:
            source.connect()
            source.receive(1, 0.0)  # from now on the lag passes
            chunk = source.receive(at_a_time, 30.0)
            source.acknowledge(chunk.tokens)
        assert chunk.messages
        bodies += [message.body for message in chunk.messages]
    return bodies
