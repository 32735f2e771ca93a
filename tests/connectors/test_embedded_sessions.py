"""Sessions over the embedded broker, with either database."""

import threading
import time

import pytest

from connectors.embedded import EmbeddedConnection
from connectors.messaging import AcknowledgeMode, ConnectionFactory
from correlator.events import Message
from tests.connectors.embedded import DEAD, QUEUE, Broker, address, bodies_of, message, wait_until


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def broker(request, tmp_path):
    broker = Broker(address(request, tmp_path))
    yield broker
    broker.close()


@pytest.fixture
def connection(broker):
    with ConnectionFactory(EmbeddedConnection, {"store": broker.store}).create_connection() as connection:
        yield connection


# --- messages that expire while they are at hand ---


@pytest.mark.parametrize("mode", [AcknowledgeMode.AUTO, AcknowledgeMode.CLIENT, AcknowledgeMode.TRANSACTED])
def test_what_expires_at_hand_is_dead_like_what_expires_in_the_queue(broker, connection, mode):
    broker.send("first", message("late", time_to_live_ms=300), message("late, too", time_to_live_ms=300), "last")
    session = connection.create_session(mode)
    consumer = session.create_consumer(QUEUE)
    assert consumer.receive(timeout_s=5).body == b"first"
    wait_until(lambda: bodies_of(broker, QUEUE) in (["first", "last"], ["last"]))
    assert consumer.receive(timeout_s=5).body == b"last"
    assert consumer.receive(timeout_s=0) is None
    assert bodies_of(broker, DEAD) == ["late", "late, too"]
    dead = broker.connection.browse(DEAD, 9)[0]
    assert (dead.properties["correlator_dmq_undelivered_reason"], dead.headers.delivery_count) == ("EXPIRED", 1)
    if mode is AcknowledgeMode.CLIENT:
        session.acknowledge()
    if mode is AcknowledgeMode.TRANSACTED:
        session.commit()
    assert broker.tally() == (2, 0)


@pytest.mark.parametrize("hours", [-1, 1])
def test_the_clock_of_the_client_does_not_matter(broker, connection, monkeypatch, hours):
    """The test gives the client another clock than the database (`sql` reads that of SQLite in nanoseconds)."""
    right = time.time
    monkeypatch.setattr(time, "time", lambda: right() + hours * 3600)
    broker.send("first", message("late", time_to_live_ms=300), message("lives", time_to_live_ms=600_000))
    session = connection.create_session()
    assert [m.body for m in session.create_browser(QUEUE).enumerate()][-1:] == [b"lives"]
    consumer = session.create_consumer(QUEUE)
    assert consumer.receive(timeout_s=5).body == b"first"
    wait_until(lambda: bodies_of(broker, QUEUE) == ["lives"])
    assert consumer.receive(timeout_s=5).body == b"lives"
    assert consumer.receive(timeout_s=0) is None
    assert bodies_of(broker, DEAD) == ["late"]


def test_the_time_to_live_of_a_message_that_waits_for_room_has_begun(broker, connection):
    broker.connection.create(QUEUE, {"max_num_msgs": 1, "limit_behavior": "FLOW_CONTROL"})
    broker.send("first")
    producer = connection.create_session().create_producer(QUEUE)
    sending = threading.Thread(target=producer.send, args=(Message(b"late"),), kwargs={"time_to_live_ms": 200})
    sending.start()
    broker.send(message("sent later, and lives longer", time_to_live_ms=1000), destination="queue:clock")
    wait_until(lambda: bodies_of(broker, "queue:clock") == [])
    consumer = connection.create_session().create_consumer(QUEUE)
    assert consumer.receive(timeout_s=5).body == b"first"
    sending.join(20)
    assert not sending.is_alive()
    assert consumer.receive(timeout_s=0) is None
    assert bodies_of(broker, DEAD) == ["late"]
