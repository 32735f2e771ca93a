"""Promises of the embedded broker that a crash or another process would break only by chance."""

import contextlib
import subprocess
import sys
import time
from pathlib import Path

import pytest

from connectors.embedded import EmbeddedConnection, clients, database, destinations, storing
from connectors.embedded.content import encode
from connectors.embedded.link import open_link
from connectors.embedded.storing import Arrival, NewMessage
from connectors.messaging import AcknowledgeMode, ConnectionFactory
from correlator.events import Message
from correlator.processes import LockFile
from tests.connectors.embedded import (
    DEAD,
    QUEUE,
    Broker,
    bodies,
    bodies_of,
    message,
    wait_until,
)

HOUR_S = 3600
WRONG_CLOCK = """
import sys, time

clock, clock_ns = time.time, time.time_ns
wrong_s, wrong_ns = int(sys.argv[2]), int(sys.argv[3]) * 10**9
time.time, time.time_ns = lambda: clock() + wrong_s, lambda: clock_ns() + wrong_ns

from connectors.embedded import EmbeddedConnection
from connectors.messaging import ConnectionFactory
from correlator.events import Message

with ConnectionFactory(EmbeddedConnection, {"store": sys.argv[1]}).create_connection() as connection:
    session = connection.create_session()
    producer = session.create_producer("queue:work")
    producer.send(Message(b"late"), time_to_live_ms=100)
    producer.send(Message(b"later"), delivery_delay_ms=600_000)
    producer.send(Message(b"soon"), delivery_delay_ms=200, priority=0)
    producer.send(Message(b"lives"), time_to_live_ms=600_000)
    print("sent", flush=True)
    sys.stdin.readline()
    consumer = session.create_consumer("queue:work")
    print(*(consumer.receive(timeout_s=20).body.decode() for _ in range(2)), consumer.receive(timeout_s=0))
"""
"""A program whose clocks are wrong by so many seconds. It sends four messages; when it is told to, it receives two."""


@pytest.fixture
def server(postgres):
    broker = Broker(postgres())
    yield broker
    broker.close()


@contextlib.contextmanager
def at_commits(do):
    """Call a function before each commit."""

    commit = database.commit

    def call(raw):
        do()
        commit(raw)

    database.commit = call
    try:
        yield
    finally:
        database.commit = commit


def factory(broker, client_id=None):
    return ConnectionFactory(EmbeddedConnection, {"store": broker.store}, client_id=client_id)


def test_messages_of_two_senders_come_in_the_order_of_sending(broker):
    with factory(broker).create_connection() as connection:
        producers = [connection.create_session().create_producer(QUEUE) for _ in range(2)]
        for number in range(12):
            producers[number % 2].send(Message(b"%d" % number))
    assert [int(body) for body in bodies(broker.plain().receive(99, 0.0))] == list(range(12))


@pytest.mark.postgres
@pytest.mark.parametrize("hours", [-1, 1])
def test_times_are_those_of_the_server(server, monkeypatch, hours):
    clock, clock_ns = time.time, time.time_ns
    monkeypatch.setattr(time, "time", lambda: clock() + hours * HOUR_S)
    monkeypatch.setattr(time, "time_ns", lambda: clock_ns() + hours * HOUR_S * 10**9)
    server.send(message("later", delivery_delay_ms=600_000), "now")
    source = server.plain()
    assert bodies(source.receive(9, 0.0)) == ["now"]
    server.send(message("soon", delivery_delay_ms=300))
    assert wait_until(lambda: bodies(source.receive(9, 0.1))) == ["soon"]
    assert bodies(source.receive(9, 0.0)) == []


@pytest.mark.parametrize("hours", [-1, 1])
def test_a_program_whose_clock_is_wrong_gets_what_lives_and_is_due(broker, hours):
    """With SQLite the clock of the database is that of the program in nanoseconds (`sql`): that one is right."""
    of_program, of_database = hours * HOUR_S, hours * HOUR_S if broker.store.startswith("postgresql") else 0
    command = [sys.executable, "-c", WRONG_CLOCK, broker.store, str(of_program), str(of_database)]
    program = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert program.stdout.readline() == "sent\n"
        wait_until(lambda: "late" not in bodies_of(broker, QUEUE))
        assert program.communicate("\n", timeout=60)[0] == "lives soon None\n"
    finally:
        program.kill()
        program.communicate()
    (dead,), (later,) = broker.connection.browse(DEAD, 9), broker.connection.browse(QUEUE, 9)
    assert (dead.body, later.body) == (b"late", b"later")
    died_at = dead.properties["correlator_dmq_undelivered_timestamp_ms"]
    for at in (died_at, dead.headers.timestamp, later.headers.timestamp, later.headers.delivery_time - 600_000):
        assert abs(at / 1000 - time.time()) < HOUR_S / 2


def test_a_writer_keeps_its_turn_until_it_has_committed(tmp_path):
    broker = Broker(f"sqlite:///{tmp_path}/broker.db")
    broker.send("a")
    gate = Path(f"{tmp_path}/broker.db.gate")
    free = []

    def try_it():
        other = LockFile(gate)
        free.append(other.try_lock())
        other.close()

    source = broker.plain()
    with at_commits(try_it):
        broker.send("b")
        free.clear()
        source.acknowledge(source.receive(1, 0.0).tokens)
    assert free
    # Looks do not write, so they need no turn: the claim and the acknowledgement are the ones that do.
    assert free.count(False) == 2
    broker.close()


def test_a_client_id_is_free_when_its_consumers_have_ended(broker, monkeypatch):
    left = []
    remove = clients.remove

    def counted(connection, client):
        query = f"SELECT count(*) FROM broker_consumer WHERE client = {client}"
        left.append(connection.exec_driver_sql(query).scalar_one())
        return remove(connection, client)

    monkeypatch.setattr(clients, "remove", counted)
    with factory(broker, "desk").create_connection() as connection:
        connection.create_session().create_durable_consumer("topic:news", "mine")
        assert broker.count("SELECT count(*) FROM broker_consumer") == 1
    assert left == [0]


def test_a_transaction_acknowledges_what_a_closed_consumer_got(broker):
    broker.send("a", "b")
    with factory(broker).create_connection() as connection:
        session = connection.create_session(AcknowledgeMode.TRANSACTED)
        consumer = session.create_consumer(QUEUE)
        assert consumer.receive(5.0).body == b"a"
        consumer.close()
        session.commit()
    assert bodies(broker.plain().receive(9, 0.0)) == ["b"]


@pytest.mark.postgres
def test_a_message_that_is_committed_late_is_not_passed_over(server):
    """A sender draws its number first, and commits last; a consumer with a selector looks in between."""
    server.send(message("first", {"n": 1}))
    source = server.plain(selector="n > 0")
    source.acknowledge(source.receive(9, 0.0).tokens)
    slow = open_link(server.store)
    try:
        with slow.transaction() as connection:
            drawn = storing.draw(connection, QUEUE, 1)
            server.send(message("second", {"n": 2}))
            assert bodies(source.receive(9, 0.0)) == ["second"]
            for _ in range(3):
                source._next_look = 0.0
                assert bodies(source.receive(9, 0.0)) == []
            there = destinations.find(connection, QUEUE)
            content = encode(message("late", {"n": 3}))
            arrival = Arrival(0, drawn.numbers[0], NewMessage("", 0, "ID:late", content))
            storing.append(
                connection, there, destinations.subscriptions(connection, there.id), [arrival], drawn.sent_at
            )
    finally:
        slow.close()
    assert wait_until(lambda: bodies(source.receive(9, 0.1))) == ["late"]
