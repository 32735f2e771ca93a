"""What `correlator doctor` finds in the database of an embedded broker."""

import sqlite3
from contextlib import closing

import psycopg
import pytest

from connectors.embedded import examination
from connectors.embedded.database import raw_sqlite
from connectors.embedded.link import open_link, sqlite_path
from correlator.cli.main import execute
from tests.connectors.embedded import QUEUE, TOPIC, Broker, message
from tests.servers import PostgresServer

FILE = """
name: shop
connections:
  local: {{type: embedded, store: "{store}"}}
receivers: [{{id: orders, connection: local, destination: "queue:work", unhandled: ignore}}]
"""
REPEATABLE = "BEGIN ISOLATION LEVEL REPEATABLE READ"
MIB = 2**20


def findings(broker):
    return [str(one) for one in broker.connection.examine([], [])]


@pytest.fixture
def impatient(monkeypatch):
    """Let each open transaction count as long."""
    monkeypatch.setattr(examination, "LONG_S", 0)


@pytest.fixture
def at_server(postgres_store):
    broker = Broker(postgres_store)
    broker.send("a")
    yield broker
    broker.close()


def test_a_broker_in_use_has_no_findings(broker):
    source = broker.source(broker.session(), QUEUE)
    broker.send("a")
    assert source.receive(1, 0.0).messages
    assert findings(broker) == []


def test_a_broker_that_is_not_there_yet_has_no_findings_and_is_not_made(tmp_path, postgres_store):
    missing = Broker(f"sqlite:///{tmp_path}/missing.db")
    assert findings(missing) == findings(Broker(postgres_store)) == []
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_cannot_be_reached_is_an_error():
    (found,) = findings(Broker("postgresql://shop@127.0.0.1:1/shop"))
    assert found.startswith("E7003 connections.c: the broker's database failed")


@pytest.mark.postgres
@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    "statements",
    [[REPEATABLE, "SELECT count(*) FROM broker_content"], ["BEGIN", "UPDATE broker_store SET starts = starts"]],
    ids=["snapshot", "writer"],
)
def test_a_long_transaction_is_named(at_server, statements):
    with closing(psycopg.connect(at_server.store, autocommit=True, application_name="report")) as program:
        for statement in statements:
            program.execute(statement)
        (found,) = findings(at_server)
        assert found.startswith(
            f"W7571 connections.c: session {program.info.backend_pid} ('report', idle in transaction)"
            " has had a transaction open for "
        )
        assert f"pg_terminate_backend({program.info.backend_pid})" in found
        program.execute("COMMIT")
        assert findings(at_server) == []


@pytest.mark.postgres
@pytest.mark.usefixtures("impatient")
def test_a_transaction_without_a_snapshot_keeps_nothing(at_server):
    with closing(psycopg.connect(at_server.store, autocommit=True)) as program:
        program.execute("BEGIN")
        program.execute("SELECT count(*) FROM broker_content")
        assert findings(at_server) == []


@pytest.mark.postgres
@pytest.mark.usefixtures("impatient")
def test_a_transaction_in_another_database_keeps_nothing(at_server, postgres_server: PostgresServer):
    with closing(psycopg.connect(postgres_server.fresh_database(), autocommit=True)) as program:
        program.execute(REPEATABLE)
        program.execute("SELECT 1")
        assert findings(at_server) == []


@pytest.mark.postgres
def test_a_short_transaction_is_no_finding(at_server):
    with closing(psycopg.connect(at_server.store, autocommit=True)) as program:
        program.execute(REPEATABLE)
        program.execute("SELECT count(*) FROM broker_content")
        assert findings(at_server) == []


@pytest.fixture
def on_file(tmp_path, monkeypatch):
    """A broker in a file, with a limit of the write-ahead log that is soon reached."""
    monkeypatch.setattr(examination, "LARGEST_IDLE_WAL", 8 * MIB)
    broker = Broker(f"sqlite:///{tmp_path}/broker.db")
    broker.plain(TOPIC, durable_topic_subscription_name="all")
    yield broker
    broker.close()


def fill(broker):
    for _ in range(10):
        broker.send(message("x" * MIB), destination=TOPIC)


def test_a_long_reader_of_the_file_is_found_by_the_size_of_the_log(on_file):
    fill(on_file)
    assert findings(on_file) == []
    with closing(sqlite3.connect(sqlite_path(on_file.store), isolation_level=None)) as program:
        program.execute("BEGIN")
        program.execute("SELECT count(*) FROM broker_content").fetchall()
        fill(on_file)
        (found,) = findings(on_file)
    assert found.startswith("W7572 connections.c: the write-ahead log broker.db-wal has ")
    link = open_link(on_file.store)
    raw_sqlite(link.connection).execute("PRAGMA wal_checkpoint(TRUNCATE)")
    link.close()
    assert findings(on_file) == []


def test_the_command_examines_the_broker(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shop.yaml").write_text(FILE.format(store=f"sqlite:///{tmp_path}/broker.db"))
    assert execute(["doctor", "shop.yaml"]) == 0
    assert capsys.readouterr().out == "examined: local; nothing to examine: none\n"
