"""The embedded broker on PostgreSQL waits once for the server where no decision of the program is needed."""

import contextlib
import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from unittest.mock import Mock

import psycopg
import pytest

from connectors.embedded import EmbeddedConnection, claiming, destinations, notices, starting
from connectors.embedded.link import open_link
from connectors.messaging import AcknowledgeMode, ConnectionFactory
from correlator.errors import ConnectionLost
from correlator.events import Message
from correlator.settings import SenderSettings
from correlator.storage.postgres import session_of
from correlator.storage.session import CommitWarned
from tests.connectors.embedded import (
    QUEUE,
    Broker,
    bodies,
    bodies_of,
    connected,
    kill,
    message,
    outgoing,
    wait_until,
)

pytestmark = pytest.mark.postgres
TELLS = """
    CREATE FUNCTION tells() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN RAISE INFO '%%', current_setting('synchronous_commit'); RETURN NULL; END $$;
    CREATE CONSTRAINT TRIGGER tells AFTER INSERT ON broker_content DEFERRABLE INITIALLY DEFERRED
        FOR EACH ROW EXECUTE FUNCTION tells()
"""
"""Tells, as a transaction commits, whether it will wait for the disk."""


@pytest.fixture
def broker(postgres):
    broker = Broker(postgres())
    yield broker
    broker.close()


@pytest.fixture
def sender(broker):
    return connected(broker.session().sink(SenderSettings(id="s", connection="c", destination=None)))


@contextlib.contextmanager
def counted(connection, file):
    """Yields a list that gets how often the server was waited for in the block."""
    trips = []
    with file.open("w+b") as trace:
        session = session_of(connection)
        session.pgconn.trace(trace.fileno())
        yield trips
        session.pgconn.untrace()
        trace.seek(0)
        trips.append(trace.read().count(b"ReadyForQuery"))


def test_a_send_and_an_acknowledgement_take_one_round_trip_each(broker, tmp_path, monkeypatch):
    monkeypatch.setattr(notices, "_QUIET_S", 1e9)  # senders ask once whether another process waits
    with ConnectionFactory(EmbeddedConnection, {"store": broker.store}).create_connection() as connection:
        session = connection.create_session(AcknowledgeMode.CLIENT)
        producer, consumer = session.create_producer(QUEUE), session.create_consumer(QUEUE)
        producer.send(Message(b"first"))
        assert consumer.receive(5).body == b"first"
        session.acknowledge()
        link = producer._sink._link.connection
        with counted(link, tmp_path / "send") as send:
            producer.send(Message(b"second"))
        with counted(link, tmp_path / "receive") as receive:
            assert consumer.receive(5).body == b"second"
        with counted(link, tmp_path / "acknowledge") as acknowledge:
            session.acknowledge()
    assert (send, receive, acknowledge) == ([1], [1], [1])
    assert broker.tally() == (0, 0)


def test_a_look_that_finds_nothing_takes_four_round_trips(broker, tmp_path):
    source = broker.source(broker.session())
    assert not source.receive(1, 0.0).messages
    source._next_check = source._next_look = 0.0
    with counted(source._link.connection, tmp_path / "look") as look:
        assert not source.receive(1, 0.0).messages
    assert look == [4]  # the other consumers, a claim, a suspect, the next message that is due
    source._next_look = source._next_check = 1e-9  # the time has come, and nothing has rung
    with counted(source._link.connection, tmp_path / "glance") as glance:
        assert not source.receive(1, 0.0).messages
    assert glance == [1]


@pytest.mark.parametrize("what", ["a message", "a delayed message", "a message of a dead consumer"])
def test_a_glance_finds_what_nobody_has_rung_for(broker, monkeypatch, what):
    monkeypatch.setattr("connectors.embedded.access.Access.ring", lambda *_: None)
    other = broker.source(broker.session())
    source = broker.source(broker.session())
    assert not source.receive(1, 0.0).messages
    broker.send(message("a", delivery_delay_ms=3000) if what == "a delayed message" else "a")
    if what == "a message of a dead consumer":
        assert bodies(other.receive(1, 0.0)) == ["a"]
        kill(other)
    monkeypatch.setattr(claiming, "claim_alone", claim := Mock(wraps=claiming.claim_alone))
    source._next_look = 1e-9
    if what == "a delayed message":
        assert not source.receive(1, 0.0).messages
        assert not claim.called
    assert bodies(source.receive(1, 20.0)) == ["a"]


def test_a_look_for_the_dead_takes_as_many_round_trips_for_each_number_of_consumers(broker, tmp_path):
    link = open_link(broker.store)
    for number in (1, 5):
        for _ in range(number):
            broker.source(broker.session())
        with counted(link.connection, tmp_path / f"{number}") as look, link.reading() as connection:
            assert not starting.finds_dead(connection, link)
        assert look == [5]
    dead = broker.source(broker.session())
    kill(dead)
    with link.reading() as connection:
        assert starting.finds_dead(connection, link)
    link.close()


def test_an_acknowledgement_of_several_messages_is_for_all_or_none(broker):
    broker.send("a", "b", "c")
    source = broker.plain()
    tokens = source.receive(3, 0.0).tokens
    link = open_link(broker.store)
    with link.transaction() as connection:
        connection.exec_driver_sql(
            "UPDATE broker_delivery SET state = 0, consumer = 0 WHERE number = (SELECT max(number) FROM broker_content)"
        )
    link.close()
    with pytest.raises(ConnectionLost, match="E7021"):
        source.acknowledge(tokens)
    assert bodies_of(broker, QUEUE) == ["a", "b", "c"]
    assert broker.tally() == (3, 0)


def test_the_tally_is_folded_among_single_sends_and_acknowledgements(broker, sender, monkeypatch):
    monkeypatch.setattr("connectors.embedded.tally.FOLDED", 4)
    source = broker.plain()
    for number in range(60):
        sender.send(outgoing(f"{number}"))
        source.acknowledge(source.receive(1, 0.0).tokens)
    assert broker.tally() == (0, 0)
    assert broker.count("SELECT count(*) FROM broker_tally") < 30
    assert broker.count("SELECT sum(changes) FROM broker_tally") == 120


def test_a_warning_of_a_statement_that_commits_by_itself_is_an_error(broker):
    link = open_link(broker.store)
    session = session_of(link.connection)
    with pytest.raises(CommitWarned, match="not on the standby"), session.alone():
        session.execute("DO $$ BEGIN RAISE WARNING 'not on the standby'; END $$")
    assert not session.autocommit
    link.close()


ECHO = """
    CREATE FUNCTION echo(a text, b bytea, c bigint, d boolean, e bigint[]) RETURNS boolean LANGUAGE plpgsql AS $$
    BEGIN RAISE INFO '%', json_build_array(a, encode(b, 'hex'), c, d, e); RETURN d; END $$
"""


@pytest.mark.parametrize("answer", [True, False])
def test_a_call_gives_a_function_its_arguments_and_returns_its_answer(broker, answer):
    told = []
    with closing(open_link(broker.store)) as link:
        session = session_of(link.connection)
        with session.alone():
            session.execute(ECHO)
        session.add_notice_handler(lambda notice: told.append(notice.message_primary))
        for number in (1, -(2**62)):
            assert session.call("echo", "\u00e4\\'", b"\0\xff", number, answer, [number, 3]) is answer
    assert [*map(json.loads, told)] == [["\u00e4\\'", "00ff", n, answer, [n, 3]] for n in (1, -(2**62))]


def test_a_call_that_fails_has_done_nothing_and_the_session_goes_on(broker):
    with closing(open_link(broker.store)) as link:
        session = session_of(link.connection)
        with session.alone():
            session.execute("CREATE FUNCTION fails(a text) RETURNS boolean LANGUAGE sql AS 'SELECT a::boolean'")
        with pytest.raises(psycopg.DataError, match="invalid input syntax for type boolean"):
            session.call("fails", "perhaps")
        with pytest.raises(psycopg.DataError, match="0x00"):  # not cut off
            session.call("fails", "true\0")
        with pytest.raises(psycopg.errors.UndefinedFunction):
            session.call("is_missing", 1)
        with link.transaction(), pytest.raises(psycopg.ProgrammingError, match="fails was called in a transaction"):
            session.execute("SELECT 1")
            session.call("fails", "true")
        assert session.call("fails", "true")


def test_a_call_outlives_the_deallocation_of_all_statements(broker, sender):
    """The driver deallocates all statements after a rollback."""
    sender.send(outgoing("first"))
    session = session_of(sender._link.connection)
    with session.alone():
        session.execute("DEALLOCATE ALL")
    assert sender.send(outgoing("second")) == [None]
    assert sender.send(outgoing("third")) == [None]
    assert broker.count() == 3


def test_a_call_whose_commit_brings_a_warning_is_an_error(broker):
    with closing(open_link(broker.store)) as link:
        session = session_of(link.connection)
        with session.alone():
            session.execute(
                "CREATE FUNCTION warns(a bigint) RETURNS boolean LANGUAGE plpgsql AS $$"
                " BEGIN RAISE WARNING 'not on the standby'; RETURN true; END $$"
            )
        with pytest.raises(CommitWarned, match="not on the standby"):
            session.call("warns", 1)


def test_a_server_that_is_gone_is_a_lost_connection_and_nothing_else(broker, sender):
    sender.send(outgoing("first"))
    link = open_link(broker.store)
    with link.transaction() as connection:
        pid = session_of(sender._link.connection).info.backend_pid
        connection.exec_driver_sql("SELECT pg_terminate_backend(%s, 10000)", (pid,))
    link.close()
    with pytest.raises(ConnectionLost, match="E7003"):
        sender.send(outgoing("second"))
    sender.connect()
    assert sender.send(outgoing("third")) == [None]
    assert bodies(broker.plain().receive(9, 0.0)) == ["first", "third"]


def test_a_send_waits_for_whoever_deletes_the_queue(broker, sender):
    sender.send(outgoing("a"))
    link = open_link(broker.store)
    with ThreadPoolExecutor(1) as threads:
        with link.transaction() as connection:
            destinations.lock_against_sends(connection, QUEUE)
            sending = threads.submit(sender.send, outgoing("b"))
            waits = (
                "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
                " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
            )
            wait_until(lambda: connection.exec_driver_sql(waits).scalar_one() == 1)
            assert broker.count() == 1
        assert sending.result(20) == [None]
    link.close()
    assert broker.count() == 2


@pytest.mark.parametrize("persistent", [True, False])
def test_the_commit_of_a_persistent_message_alone_waits_for_the_disk(broker, sender, persistent):
    sender.send(outgoing("first"))
    synced = "SELECT current_setting('synchronous_commit')"
    link = sender._link.connection
    told = []
    with link.begin():
        link.exec_driver_sql(TELLS)
    session_of(link).add_notice_handler(lambda notice: told.append(notice.message_primary))
    sender.send(outgoing(message("x", persistent=persistent)))
    assert told == ["on" if persistent else "off"]
    with link.begin():
        assert link.exec_driver_sql(synced).scalar_one() == "on"
