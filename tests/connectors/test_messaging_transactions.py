"""Emulated transactions (rules S5.3, S5.4): their effects, and their limits."""

import pytest

from connectors.messaging import ConnectionFactory
from correlator.errors import ConnectionLost, UsageError
from correlator.events import Message
from correlator.testing.memory import Faults, MemoryBroker
from tests.connectors.test_messaging import (
    AUTO,
    BROKERS,
    CLIENT,
    INDIVIDUAL,
    TRANSACTED,
    CutsFirstAcknowledgement,
    Memory,
    bodies,
    numbered,
    receive,
    rest,
    send,
    world_over,
)
from tests.connectors.test_messaging_completions import Completed
from tests.connectors.test_messaging_listeners import Inbox


@pytest.fixture(params=[broker for broker in BROKERS if broker not in ("service", "embedded")])
def world(request):
    return world_over(request.param, request)


@pytest.fixture
def connection(world):
    with world.factory(emulate_transactions=True).create_connection() as connection:
        yield connection


class Transactional:
    """A broker in memory, and a connection that emulates transactions."""

    def __init__(self, faults=None) -> None:
        self.broker = MemoryBroker(faults=faults or Faults())
        factory = ConnectionFactory(self.broker.connection, emulate_transactions=True)
        self.connection = factory.create_connection()
        self.session = self.connection.create_session(TRANSACTED)

    left = Memory.left


def test_s5_3_a_commit_acknowledges_and_sends_went_at_once(world, connection):
    taken, given = world.queue(), world.queue()
    outside, session = connection.create_session(), connection.create_session(TRANSACTED)
    send(outside, taken, numbered(3))
    consumer, producer = session.create_consumer(taken), session.create_producer(given)
    receive(consumer, 2)
    producer.send(Message(b"at once"))
    assert bodies(receive(outside.create_consumer(given), 1)) == ["at once"]
    session.commit()
    receive(consumer, 1)
    session.close()
    assert [body for body, _ in rest(outside, taken)] == ["3"]


def test_s5_3_a_rollback_gives_back_and_does_not_unsend(world, connection):
    taken, given = world.queue(), world.queue()
    outside, session = connection.create_session(), connection.create_session(TRANSACTED)
    send(outside, taken, numbered(3))
    consumer, producer = session.create_consumer(taken), session.create_producer(given)
    first = receive(consumer, 3)
    producer.send(Message(b"stays sent"))
    session.acknowledge(first[2])  # says nothing here
    session.rollback()
    assert bodies(receive(consumer, 3)) == bodies(first) == ["1", "2", "3"]
    session.commit()
    session.close()
    assert rest(outside, taken) == []
    assert [body for body, _ in rest(outside, given)] == ["stays sent"]


def test_over_all_consumers_of_the_session_and_none_of_another():
    memory = Transactional()
    session, other = memory.session, memory.connection.create_session(TRANSACTED)
    for queue in ("queue:a", "queue:b", "queue:c"):
        memory.broker.publish(queue, numbered(2))
    for queue in ("queue:a", "queue:b"):
        receive(session.create_consumer(queue), 2)
    receive(other.create_consumer("queue:c"), 2)
    session.commit()
    assert [memory.left(queue) for queue in ("queue:a", "queue:b", "queue:c")] == [(0, 0), (0, 0), (0, 2)]
    assert session.acknowledge_mode is TRANSACTED


@pytest.mark.parametrize("ends", ["commit", "rollback"])
def test_the_end_of_a_transaction_waits_for_completions(ends):
    memory, completed = Transactional(), Completed()
    producer = memory.session.create_producer("queue:q")
    for message in numbered(250):
        producer.send_async(message, completed)
    getattr(memory.session, ends)()
    assert completed.errors == [None] * 250
    memory.connection.close()


def test_what_is_not_committed_comes_again():
    memory = Transactional()
    memory.broker.publish("queue:q", numbered(2))
    receive(memory.session.create_consumer("queue:q"), 2)
    memory.session.close()
    assert memory.left("queue:q") == (2, 0)


def test_a_commit_that_fails_has_sent_everything_and_what_was_received_comes_again():
    """Emulated transactions are not atomic; the documentation says so."""
    memory = Transactional(CutsFirstAcknowledgement())
    memory.broker.publish("queue:q", numbered(1))
    consumer = memory.session.create_consumer("queue:q")
    receive(consumer, 1)
    memory.session.create_producer("queue:out").send(Message(b"sent"))
    with pytest.raises(ConnectionLost):
        memory.session.commit()
    assert bodies(memory.broker.received("queue:out")) == ["sent"]
    assert bodies(receive(consumer, 1)) == ["1"]


def test_a_listener_commits_and_rolls_back():
    memory = Transactional()

    def listener(message):
        if message.headers and message.headers.redelivered:
            memory.session.commit()
        else:
            memory.session.rollback()

    inbox = Inbox(listener)
    memory.session.create_consumer("queue:q").set_listener(inbox)
    memory.broker.publish("queue:q", numbered(2))
    memory.connection.start()
    assert bodies(inbox.take(4)) == ["1", "1", "2", "2"]
    memory.connection.close()
    assert memory.left("queue:q") == (0, 0)


@pytest.mark.parametrize("mode", [AUTO, CLIENT, INDIVIDUAL])
def test_other_modes_have_no_transactions_and_a_transaction_is_not_recovered(mode):
    memory = Transactional()
    other = memory.connection.create_session(mode)
    for call in (other.commit, other.rollback):
        with pytest.raises(UsageError, match=f"^E7508 session: there is no transaction in mode {mode}. Mode TRANS"):
            call()
    with pytest.raises(UsageError, match="^E7508 session: a transaction is not recovered. Roll it back"):
        memory.session.recover()


def test_a_closed_session_ends_no_transaction():
    memory = Transactional()
    memory.session.close()
    for call in (memory.session.commit, memory.session.rollback):
        with pytest.raises(UsageError, match="^E7501"):
            call()


def test_s5_4_transactions_are_refused_unless_imitated_ones_are_asked_for():
    connection = ConnectionFactory(MemoryBroker().connection).create_connection()
    with pytest.raises(
        UsageError, match="^E7509 .*Pulsar's client.*emulate_transactions=True.* not atomic. Let an engine"
    ):
        connection.create_session(TRANSACTED)
