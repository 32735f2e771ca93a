"""The way of one message, step by step (rule Q1), and nothing about its neighbours."""

import logging
from queue import SimpleQueue

import pytest

from connectors.embedded import EmbeddedConnection
from connectors.messaging import ConnectionFactory
from correlator.errors import ConnectionLost, SendRejected
from correlator.events import Headers, Message
from correlator.settings import ConnectionSettings, SenderSettings
from correlator.testing.contract import PATIENCE_S, outgoing
from correlator.testing.memory import MemoryBroker
from correlator.testing.service import ServiceBroker
from correlator.tracing import TRACE
from tests.connectors.rabbit import opened
from tests.connectors.test_messaging import (
    AUTO,
    BROKERS,
    CLIENT,
    INDIVIDUAL,
    NO_ACKNOWLEDGE,
    TRANSACTED,
    numbered,
    receive,
    send,
    world_over,
)

QUEUE = "queue:q"
TEN_STEPS = [
    "sent",
    "placed",
    "stored",
    "confirmed",
    "routed",
    "dispatched",
    "delivered",
    "acknowledged",
    "removed",
    "settled",
]
OF_SESSIONS = [step for step in TEN_STEPS if step not in ("placed", "stored", "routed", "removed")]


class Trace:
    """What was logged about traced messages."""

    def __init__(self, caplog) -> None:
        self._caplog = caplog

    def steps(self, message_id, destination=None):
        """The events of a message, in order."""
        found = [record for record in self._records() if record.args["message_id"] == message_id]
        assert [record.created for record in found] == sorted(record.created for record in found)
        return [one.args["event"] for one in found if destination in (None, one.args["destination"])]

    def ids(self):
        """The ids of all traced messages."""
        return {record.args["message_id"] for record in self._records()}

    def _records(self):
        return [record for record in self._caplog.records if record.name == "correlator.trace"]


@pytest.fixture
def trace(caplog):
    caplog.set_level(logging.INFO, "correlator.trace")
    return Trace(caplog)


@pytest.fixture
def connection(tmp_path, request):
    with world_over("embedded", request).factory().create_connection() as connection:
        yield connection


@pytest.mark.parametrize("broker", BROKERS)
def test_q1_the_steps_of_a_message_in_order_and_none_of_its_neighbours(broker, request, trace):
    world = world_over(broker, request)
    with world.factory().create_connection() as connection:
        session, queue = connection.create_session(CLIENT), world.queue()
        producer = session.create_producer(queue)
        producer.send(Message(b"1"))
        traced = producer.send(Message(b"2"), trace=True)
        producer.send(Message(b"3"))
        messages = receive(session.create_consumer(queue), 3)
        session.acknowledge(messages[-1])
    carried = "" if broker == "memory" else traced  # it has no message ids of its own, and gives none to consumers
    assert trace.ids() == {traced, carried}
    found = trace.steps(traced) + (trace.steps("") if broker == "memory" else [])
    assert found == (TEN_STEPS if broker == "embedded" else OF_SESSIONS)
    assert [message.properties.get(TRACE) for message in messages] == [None, True, None]


def test_q1_an_id_that_breaks_the_line_forges_no_step(trace, caplog):
    """Any program can send a message with such an id."""
    broker = MemoryBroker()
    forged = Headers(message_id="ID:1\nevent=dead message_id=ID:2")
    broker.publish(QUEUE, [Message(b"1", {TRACE: True}, headers=forged)])
    with ConnectionFactory(broker.connection).create_connection() as connection:
        receive(connection.create_session().create_consumer(QUEUE), 1)
    assert trace.ids() == {r"'ID:1\nevent=dead message_id=ID:2'"}
    assert not any("\n" in line for line in caplog.messages)


def test_q1_nothing_is_logged_at_another_level(connection, caplog):
    caplog.set_level(logging.WARNING, "correlator.trace")
    session = connection.create_session()
    session.create_producer(QUEUE).send(Message(b"1"), trace=True)
    receive(session.create_consumer(QUEUE), 1)
    assert caplog.records == []


@pytest.mark.parametrize("mode", [AUTO, NO_ACKNOWLEDGE])
def test_q1_a_message_that_is_acknowledged_before_the_program_gets_it(connection, trace, mode):
    session = connection.create_session(mode)
    traced = session.create_producer(QUEUE).send(Message(b"1"), trace=True)
    receive(session.create_consumer(QUEUE), 1)
    assert trace.steps(traced) == [step for step in TEN_STEPS if step != "delivered"] + ["delivered"]


def test_q1_a_listener_gets_a_message_before_it_is_acknowledged(connection, trace):
    done, session = SimpleQueue(), connection.create_session()
    session.create_consumer(QUEUE).set_listener(done.put)
    traced = connection.create_session().create_producer(QUEUE).send_async(Message(b"1"), print, trace=True)
    connection.start()
    done.get(timeout=PATIENCE_S)
    connection.stop()
    connection.close()
    steps = trace.steps(traced)
    assert sorted(steps) == sorted(TEN_STEPS)
    assert [step for step in steps if step != "confirmed"] == [step for step in TEN_STEPS if step != "confirmed"]


def test_q1_a_transaction_sends_and_acknowledges_at_its_commit(connection, trace):
    session = connection.create_session(TRANSACTED)
    first = session.create_producer(QUEUE).send(Message(b"1"), trace=True)
    assert trace.steps(first) == []
    session.commit()
    (message,) = receive(session.create_consumer(QUEUE), 1)
    session.create_producer("queue:on").send(message)
    assert trace.steps(first) == TEN_STEPS[:7]
    session.commit()
    assert trace.steps(first) == TEN_STEPS
    (other,) = trace.ids() - {first}  # the message that was sent on has the mark, too
    assert trace.steps(other) == TEN_STEPS[:4]


def test_q1_a_message_that_comes_again_says_so(connection, trace):
    session = connection.create_session(CLIENT)
    producer = session.create_producer(QUEUE)
    traced = producer.send(Message(b"1"), trace=True)
    ahead = producer.send(Message(b"2"), trace=True)
    consumer = session.create_consumer(QUEUE)
    receive(consumer, 1)
    session.recover()
    again = ["dispatched", "delivered", "returned"]
    assert trace.steps(traced) == [*TEN_STEPS[:5], *again]
    assert trace.steps(ahead) == [*TEN_STEPS[:6], "returned"]
    receive(consumer, 2)
    session.close()
    assert trace.steps(traced)[8:] == ["routed", *again]


def test_q1_a_message_that_is_refused_says_so(connection, trace):
    producer = connection.create_session().create_producer(QUEUE)
    with pytest.raises(SendRejected):
        producer.send(Message(b"1", destination="queue:mq.sys.dmq"), trace=True)
    (refused,) = trace.ids()
    assert trace.steps(refused) == ["sent", "failed"]


@pytest.mark.parametrize("mode", [AUTO, TRANSACTED])
def test_q1_a_message_whose_broker_is_lost_says_so(trace, mode):
    broker = ServiceBroker()
    connection = ConnectionFactory(broker.connection).create_connection()
    session = connection.create_session(mode)
    producer = session.create_producer(QUEUE)
    broker.down = True
    with pytest.raises(ConnectionLost):
        producer.send(Message(b"1"), trace=True)
        session.commit()
    (lost,) = trace.ids()
    assert trace.steps(lost) == ["sent", "failed"]
    broker.down = False
    connection.close()


def test_q1_a_rolled_back_commit_returns_what_it_had_received(trace):
    broker = ServiceBroker()
    with ConnectionFactory(broker.connection).create_connection() as connection:
        received = connection.create_session().create_producer(QUEUE).send(Message(b"1"), trace=True)
        session = connection.create_session(TRANSACTED)
        receive(session.create_consumer(QUEUE), 1)
        session.create_producer(QUEUE).send(Message(b"2", destination="nonsense"))
        with pytest.raises(SendRejected):
            session.commit()
    steps = trace.steps(received)
    assert steps == [*[step for step in OF_SESSIONS if step != "settled"], "returned"]


def test_q1_each_subscription_has_its_own_steps_and_an_unwanted_message_is_not_placed(connection, trace):
    session = connection.create_session(INDIVIDUAL)
    producer = session.create_producer("topic:t")
    unwanted = producer.send(Message(b"0"), trace=True)
    assert trace.steps(unwanted) == ["sent", "confirmed"]
    consumers = [session.create_consumer("topic:t", subscription=name) for name in "ab"]
    traced = producer.send(Message(b"1"), trace=True)
    for consumer in consumers:
        session.acknowledge(*receive(consumer, 1))
    assert trace.steps(traced) == [*TEN_STEPS, *TEN_STEPS[4:]]


def test_q1_a_dead_message_says_so_and_can_be_followed_further(connection, trace):
    session = connection.create_session(CLIENT)
    traced = session.create_producer(QUEUE).send(Message(b"1"), time_to_live_ms=1, trace=True)
    consumer = session.create_consumer("queue:mq.sys.dmq")
    asking = connection.create_session().create_consumer(QUEUE)
    while consumer.receive(0) is None:
        assert asking.receive(0.005) is None
    assert trace.steps(traced, QUEUE) == [*TEN_STEPS[:4], "dead"]
    assert trace.steps(traced, "queue:mq.sys.dmq") == ["routed", "dispatched", "delivered"]


def test_q1_an_engine_logs_the_steps_of_the_broker(tmp_path, trace):
    broker = EmbeddedConnection(
        "c", ConnectionSettings(type="embedded", options={"store": f"sqlite:///{tmp_path}/b.db"})
    )
    with opened(broker.sink(SenderSettings(id="s", connection="c"))) as sink:
        assert sink.send(outgoing(QUEUE, [Message(b"1", {TRACE: True})])) == [None]
    assert [trace.steps(one) for one in trace.ids()] == [["placed", "stored"]]


def test_q1_tracing_changes_no_message_that_is_not_traced(trace):
    broker = MemoryBroker()
    with ConnectionFactory(broker.connection).create_connection() as connection:
        send(connection.create_session(), QUEUE, numbered(2))
    assert trace.ids() == set()
    assert [message.properties for message in broker.received(QUEUE)] == [{"n": 1}, {"n": 2}]
