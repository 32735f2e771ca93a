"""The rules of sessions (docs/rules.md, sections R and Q) over every broker, and tests that need a broker in memory."""

import copy
import dataclasses
import math
import os
import re
import sys
import time
import weakref
from collections import OrderedDict
from queue import SimpleQueue

import pytest

from connectors import kinds
from connectors.embedded import EmbeddedConnection
from connectors.file import FileConnection
from connectors.messaging import AcknowledgeMode, ConnectionFactory
from connectors.pulsar import PulsarConnection
from connectors.rabbitmq import RabbitConnection
from correlator.connector import Features
from correlator.errors import ConfigError, ConnectionLost, SendRejected, UsageError
from correlator.events import Headers, Message
from correlator.testing.contract import PATIENCE_S
from correlator.testing.memory import Faults, MemoryBroker
from correlator.testing.service import ServiceBroker

AUTO, CLIENT, CUMULATIVE, INDIVIDUAL, DUPS_OK, NO_ACKNOWLEDGE, TRANSACTED = AcknowledgeMode


class World:
    """A broker of the tests: it makes factories, and names of queues that were never used."""

    def __init__(self, connector, options=None, *, own_references=0, queues=None) -> None:
        self.own_references = own_references
        self._connector = connector
        self._options = options or {}
        self._queues = queues or iter(f"q{number}" for number in range(100)).__next__

    def factory(self, **settings):
        return ConnectionFactory(self._connector, self._options, **settings)

    def queue(self):
        return f"queue:{self._queues()}"


BROKERS = [
    "memory",
    "service",
    "embedded",
    pytest.param("rabbit", marks=pytest.mark.rabbitmq),
    pytest.param("pulsar", marks=pytest.mark.pulsar),
]


def world_over(broker, request):
    """The world of one of `BROKERS`."""
    if broker == "memory":
        return World(MemoryBroker().connection, own_references=1)
    if broker == "service":
        return World(ServiceBroker().connection)
    if broker == "embedded":
        return World(EmbeddedConnection, {"store": f"sqlite:///{request.getfixturevalue('tmp_path')}/broker.db"})
    server = request.getfixturevalue(broker)
    if broker == "rabbit":
        return World(RabbitConnection, server.options, queues=server.queue)
    return World(PulsarConnection, server.options, queues=server.name)


def numbered(count, first=1):
    return [Message(str(number).encode(), {"n": number}) for number in range(first, first + count)]


def bodies(messages):
    return [message.body.decode() for message in messages]


def send(session, destination, messages):
    producer = session.create_producer(destination)
    for message in messages:
        producer.send(message)
    producer.close()


def receive(consumer, count):
    """Receive `count` messages, however long they take."""
    messages = [consumer.receive(PATIENCE_S) for _ in range(count)]
    assert None not in messages
    return messages


def rest(session, destination):
    """The remaining messages of a queue as (body, redelivered), in order."""
    send(session, destination, [Message(b"end")])
    consumer = session.create_consumer(destination)
    found = []
    while (message := consumer.receive(PATIENCE_S)).body != b"end":
        found.append((message.body.decode(), message.headers is not None and message.headers.redelivered))
    consumer.close()
    return found


def exit_code_of_child(run):
    """Fork, run a function in the child, and return 0 if it raises nothing."""
    pid = os.fork()
    if not pid:
        code = 1
        try:
            run()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


class OverEveryBroker:
    """The tests that hold over every broker."""

    @pytest.fixture
    def world(self):
        raise NotImplementedError

    @pytest.fixture
    def connection(self, world):
        with world.factory().create_connection() as connection:
            yield connection

    @pytest.fixture
    def session(self, connection):
        return connection.create_session()

    # --- browsers ---

    def test_r1_a_browser_takes_nothing(self, world, session):
        queue = world.queue()
        send(session, queue, numbered(10))
        assert bodies(session.create_browser(queue).enumerate()) == bodies(numbered(10))
        assert [body for body, _ in rest(session, queue)] == bodies(numbered(10))

    def test_r1_an_empty_queue_shows_nothing(self, world, session):
        queue = world.queue()
        session.create_consumer(queue).close()
        assert list(session.create_browser(queue).enumerate()) == []

    def test_r1_topics_cannot_be_browsed(self, session):
        with pytest.raises(UsageError, match="^E2110 browser of topic:news: only queues can be browsed"):
            session.create_browser("topic:news")

    def test_r2_a_selector_chooses(self, world, session):
        queue = world.queue()
        send(session, queue, numbered(6))
        assert bodies(session.create_browser(queue, "n > 4 OR n = 1").enumerate()) == ["1", "5", "6"]
        assert bodies(session.create_browser(queue, " ").enumerate()) == bodies(numbered(6))
        assert [body for body, _ in rest(session, queue)] == bodies(numbered(6))

    def test_r3_what_happens_later_changes_no_snapshot(self, world, session):
        queue = world.queue()
        lives_ms = 2000
        until = int(time.time() * 1000) + lives_ms
        shortly = Message(b"0", {}, None, None, Headers(time_to_live_ms=lives_ms, expiration=until))
        send(session, queue, [shortly, *numbered(3)])
        looking = session.create_browser(queue)
        snapshot = looking.enumerate()

        deadline = time.monotonic() + PATIENCE_S
        while "0" in bodies(looking.enumerate()):  # expiry
            assert time.monotonic() < deadline
        assert [body for body, _ in rest(session, queue)] == ["1", "2", "3"]  # removal
        send(session, queue, numbered(1, first=4))  # arrival
        assert bodies(snapshot) == ["0", "1", "2", "3"]
        assert bodies(looking.enumerate()) == ["4"]

    def test_r4_a_new_call_takes_a_new_snapshot(self, world, session):
        queue = world.queue()
        send(session, queue, numbered(2))
        looking = session.create_browser(queue)
        first = looking.enumerate()
        assert next(first).body == b"1"
        assert iter(first) is first
        send(session, queue, numbered(1, first=3))
        assert bodies(looking.enumerate()) == ["1", "2", "3"]
        assert bodies(first) == ["2"]
        assert bodies(first) == []

    def test_r5_selector_and_destination_are_fixed(self, world, session):
        queue = world.queue()
        looking = session.create_browser(queue, "n = 1")
        for name in ("destination", "selector"):
            with pytest.raises(AttributeError):
                setattr(looking, name, "queue:other")
        assert (looking.destination, looking.selector) == (queue, "n = 1")
        assert session.create_browser(queue).selector is None

    @pytest.mark.parametrize("closes", ["session", "connection"])
    def test_r6_a_snapshot_outlives_session_and_connection_and_the_browser_does_not(self, world, connection, closes):
        queue = world.queue()
        session = connection.create_session()
        send(session, queue, numbered(3))
        looking = session.create_browser(queue)
        snapshot = looking.enumerate()
        next(snapshot)
        {"session": session, "connection": connection}[closes].close()
        assert bodies(snapshot) == ["2", "3"]
        with pytest.raises(UsageError, match="^E7501 session: it is closed"):
            looking.enumerate()

    def test_r6_closing_a_browser_has_no_effect(self, world, session):
        queue = world.queue()
        send(session, queue, numbered(3))
        looking = session.create_browser(queue)
        snapshot = looking.enumerate()
        looking.close()
        assert bodies(snapshot) == bodies(looking.enumerate()) == ["1", "2", "3"]

    def test_r7_without_other_readers_the_order_stays(self, world, connection):
        queue = world.queue()
        session = connection.create_session()
        send(session, queue, numbered(100))
        with world.factory(queue_browser_read_max=40).create_connection() as limited:
            assert bodies(limited.create_session().create_browser(queue).enumerate()) == bodies(numbered(40))
        for _ in range(2):
            assert bodies(session.create_browser(queue).enumerate()) == bodies(numbered(100))
        assert [body for body, _ in rest(session, queue)] == bodies(numbered(100))

    def test_r7_what_another_session_holds_may_be_missing_and_all_else_is_shown(self, world, connection):
        queue = world.queue()
        session = connection.create_session()
        send(session, queue, numbered(5))
        held = connection.create_session().create_consumer(
            queue, flow_limit=1
        )  # acknowledges 1, and may be sent 2 ahead
        receive(held, 1)
        assert bodies(session.create_browser(queue).enumerate())[-3:] == ["3", "4", "5"]
        held.close()
        assert [body for body, _ in rest(session, queue)] == ["2", "3", "4", "5"]

    def test_r8_a_message_that_was_read_is_not_referred_to(self, world, session):
        queue = world.queue()
        send(session, queue, numbered(2))
        snapshot = session.create_browser(queue).enumerate()
        message = next(snapshot)
        assert sys.getrefcount(message) == 2 + world.own_references  # the name here, and the argument

    @pytest.mark.parametrize("most", [10, 49, 50])
    def test_r9_the_limit_counts_what_is_examined(self, world, session, most):
        queue = world.queue()
        send(session, queue, numbered(100))
        with world.factory(queue_browser_read_max=most).create_connection() as limited:
            other = limited.create_session()
            assert bodies(other.create_browser(queue).enumerate()) == bodies(numbered(most))
            assert bodies(other.create_browser(queue, "n = 50").enumerate()) == (["50"] if most == 50 else [])

    @pytest.mark.parametrize("most", [0, -1])
    def test_r9_zero_and_less_is_no_limit(self, world, session, most):
        queue = world.queue()
        send(session, queue, numbered(20))
        with world.factory(queue_browser_read_max=most).create_connection() as unlimited:
            assert bodies(unlimited.create_session().create_browser(queue).enumerate()) == bodies(numbered(20))

    def test_r9_a_connection_keeps_the_limit_that_it_was_created_with(self, world, session):
        queue = world.queue()
        send(session, queue, numbered(5))
        factory = world.factory(queue_browser_read_max=2)
        with factory.create_connection() as before:
            factory.queue_browser_read_max = 3
            with factory.create_connection() as after:
                limits = before.queue_browser_read_max, after.queue_browser_read_max
                shown = [len(list(one.create_session().create_browser(queue).enumerate())) for one in (before, after)]
        assert limits == (2, 3)
        assert shown == [2, 3]

    # --- acknowledging ---

    def test_q9_auto_acknowledges_what_was_received(self, world, connection, session):
        queue = world.queue()
        send(session, queue, numbered(5))
        other = connection.create_session()
        assert bodies(receive(other.create_consumer(queue), 3)) == ["1", "2", "3"]
        other.close()
        assert [body for body, _ in rest(session, queue)] == ["4", "5"]
        assert other.acknowledge_mode is AUTO

    def test_r11_everything_before_the_message_is_acknowledged_and_nothing_behind_it(self, world, connection, session):
        queue = world.queue()
        send(session, queue, numbered(5))
        other = connection.create_session(CUMULATIVE)
        messages = receive(other.create_consumer(queue), 5)
        other.acknowledge(messages[2])
        other.acknowledge(messages[0])  # is done already
        other.close()
        assert rest(session, queue) == [("4", True), ("5", True)]

    def test_r11_over_all_consumers_of_the_session(self, world, connection, session):
        queues = [world.queue(), world.queue()]
        for queue in queues:
            send(session, queue, numbered(3))
        other, bystander = connection.create_session(CUMULATIVE), connection.create_session(CUMULATIVE)
        untouched = world.queue()
        send(session, untouched, numbered(1))
        receive(bystander.create_consumer(untouched), 1)
        first, second = [other.create_consumer(queue) for queue in queues]
        received = [receive(one, 1)[0] for one in (first, second, first, second, second)]
        other.acknowledge(received[2])
        other.close()
        bystander.close()
        assert [body for body, _ in rest(session, queues[0])] == ["3"]
        assert [body for body, _ in rest(session, queues[1])] == ["2", "3"]
        assert rest(session, untouched) == [("1", True)]

    def test_r12_individually_only_the_message_is_acknowledged(self, world, connection, session):
        queue = world.queue()
        send(session, queue, numbered(5))
        other = connection.create_session(INDIVIDUAL)
        messages = receive(other.create_consumer(queue), 5)
        other.acknowledge(messages[2])
        other.acknowledge(messages[4])
        other.close()
        assert rest(session, queue) == [("1", True), ("2", True), ("4", True)]

    def test_r12_the_mode_is_still_client(self, connection):
        assert connection.create_session(INDIVIDUAL).acknowledge_mode is CLIENT
        assert connection.create_session(CUMULATIVE).acknowledge_mode is CLIENT
        assert connection.create_session(CLIENT).acknowledge_mode is CLIENT

    def test_q10_client_acknowledges_all_that_the_session_has_received(self, world, connection, session):
        queues = [world.queue(), world.queue()]
        for queue in queues:
            send(session, queue, numbered(3))
        other = connection.create_session(CLIENT)
        first, second = [other.create_consumer(queue) for queue in queues]
        received = [receive(one, 1)[0] for one in (first, second, first)]
        other.acknowledge(received[0])
        receive(second, 1)
        other.acknowledge(received[0])  # is done already: this says nothing about the later one
        other.close()
        assert [body for body, _ in rest(session, queues[0])] == ["3"]
        assert rest(session, queues[1])[0] == ("2", True)

    def test_q10_closing_a_consumer_loses_no_duty_of_its_session(self, world, connection, session):
        queue = world.queue()
        send(session, queue, numbered(2))
        other = connection.create_session(CLIENT)
        consumer = other.create_consumer(queue)
        (message,) = receive(consumer, 1)
        consumer.close()
        other.acknowledge(message)
        other.close()
        assert [body for body, _ in rest(session, queue)] == ["2"]

    @pytest.mark.parametrize("ends", ["session", "connection", "stop", "consumer"])
    def test_q11_dups_ok_acknowledges_what_is_left_in_the_end(self, world, session, ends):
        queue = world.queue()
        send(session, queue, numbered(4))
        with world.factory().create_connection() as connection:
            other = connection.create_session(DUPS_OK)
            consumer = other.create_consumer(queue, flow_limit=3)
            receive(consumer, 3)
            closes = {"session": other.close, "connection": connection.close, "consumer": consumer.close}
            closes.get(ends, connection.stop)()
        assert [body for body, _ in rest(session, queue)] == ["4"]

    def test_q12_no_acknowledge_is_done_before_the_program_gets_it(self, world, connection, session):
        queue = world.queue()
        send(session, queue, numbered(3))
        other = connection.create_session(NO_ACKNOWLEDGE)
        assert bodies(receive(other.create_consumer(queue, flow_limit=1), 2)) == ["1", "2"]
        other.recover()  # has nothing to give back
        other.close()
        assert [body for body, _ in rest(session, queue)] == ["3"]

    @pytest.mark.parametrize("mode", [CUMULATIVE, INDIVIDUAL])
    def test_q17_what_is_recovered_comes_again_and_says_so(self, world, connection, session, mode):
        queue = world.queue()
        send(session, queue, numbered(4))
        other = connection.create_session(mode)
        consumer = other.create_consumer(queue)
        messages = receive(consumer, 4)
        other.acknowledge(messages[0])
        other.recover()
        other.acknowledge(messages[1])  # came before: this object stands for nothing any more
        again = receive(consumer, 3)
        assert bodies(again) == ["2", "3", "4"]
        assert all(message.headers.redelivered for message in again)
        other.acknowledge(again[-1])
        other.close()
        assert rest(session, queue) == ([] if mode is CUMULATIVE else [("2", True), ("3", True)])

    def test_s2_6_recover_begins_again_with_the_oldest_that_is_not_acknowledged(self, world, connection, session):
        queue = world.queue()
        send(session, queue, numbered(5))
        other = connection.create_session(CLIENT)
        consumer = other.create_consumer(queue)
        receive(consumer, 5)
        for _ in range(2):
            other.recover()
            again = receive(consumer, 5)
            assert [(message.body, message.headers.redelivered) for message in again] == [
                (message.body, True) for message in numbered(5)
            ]
        other.acknowledge(again[-1])
        other.close()
        assert rest(session, queue) == []

    def test_q17_what_a_closed_session_held_comes_again_and_says_so(self, world, connection, session):
        queue = world.queue()
        send(session, queue, numbered(2))
        with connection.create_session(CLIENT) as other:
            receive(other.create_consumer(queue), 2)
        assert rest(session, queue) == [("1", True), ("2", True)]

    # --- sending and receiving ---

    def test_nothing_comes_from_an_empty_queue(self, world, session):
        consumer = session.create_consumer(world.queue())
        assert consumer.receive(0) is None
        assert consumer.receive(0.01) is None

    def test_r13_a_foreign_message_arrives(self, world, session):
        queue = world.queue()
        bodies_ = ["Grüße", {"n": 1, "text": "ü"}, [1, "ü", None], b"\xff"]
        send(session, queue, [Foreign(body, {"n": 1, "text": "ü"}) for body in bodies_])
        text, entries, stream, raw = receive(session.create_consumer(queue), 4)
        found = [kinds.text_of(text), kinds.map_of(entries), kinds.stream_of(stream), raw.body]
        assert found == bodies_
        assert all(one.properties["n"] == 1 and one.properties["text"] == "ü" for one in (text, entries, stream, raw))
        assert kinds.kind_of(raw) == "bytes"

    def test_a_topic_keeps_messages_for_a_subscription(self, world, connection):
        topic = world.queue().replace("queue:", "topic:")
        session = connection.create_session(CLIENT)
        consumer = session.create_consumer(topic, "n <> 2", subscription="reader")
        send(session, topic, numbered(3))
        messages = receive(consumer, 2)
        assert bodies(messages) == ["1", "3"]
        session.acknowledge(messages[-1])
        consumer.close()
        send(session, topic, numbered(1, first=4))
        assert bodies(receive(session.create_consumer(topic, "n <> 2", subscription="reader"), 1)) == ["4"]

    def test_s4_2_what_its_own_connection_sends_is_not_received(self, world, connection, session):
        """Two sessions of the connection send, before and after it consumes, and so does another connection."""
        topic = world.queue().replace("queue:", "topic:")
        for name in ("foreign", "all"):
            session.create_consumer(topic, subscription=name).close()
        with world.factory().create_connection() as stranger:
            send(session, topic, numbered(2))
            send(stranger.create_session(), topic, numbered(1, first=3))
            foreign = session.create_consumer(topic, subscription="foreign", no_local=True)
            assert bodies(receive(foreign, 1)) == ["3"]
            send(connection.create_session(), topic, numbered(1, first=4))
            send(stranger.create_session(), topic, numbered(2, first=5))
        with connection.create_session(CLIENT) as other:
            everything = receive(other.create_consumer(topic, subscription="all"), 6)
        assert bodies(receive(foreign, 2)) == ["5", "6"]
        assert [message.properties for message in everything] == [{"n": number} for number in range(1, 7)]
        foreign.close()
        last = session.create_consumer(topic, subscription="foreign")  # what was left out is acknowledged
        send(session, topic, numbered(1, first=7))
        assert bodies(receive(last, 1)) == ["7"]

    def test_s4_2_what_is_sent_on_is_that_of_who_sends_it_on(self, world, connection, session):
        first, second = (world.queue().replace("queue:", "topic:") for _ in range(2))
        here = session.create_consumer(second, "n = 1", subscription="here", no_local=True)
        with world.factory().create_connection() as stranger:
            passing = stranger.create_session()
            there = passing.create_consumer(first, subscription="there", no_local=True)
            send(session, first, numbered(2))
            send(passing, second, receive(there, 2))
        assert [(message.body, message.properties) for message in receive(here, 1)] == [(b"1", {"n": 1})]

    def test_s4_2_listeners_do_not_get_it_either(self, world, connection):
        topic = world.queue().replace("queue:", "topic:")
        found = SimpleQueue()
        listening = connection.create_session()
        listening.create_consumer(topic, subscription="reader", no_local=True).set_listener(found.put)
        connection.start()
        send(connection.create_session(), topic, numbered(2))
        with world.factory().create_connection() as stranger:
            send(stranger.create_session(), topic, numbered(1, first=3))
        assert found.get(timeout=PATIENCE_S).body == b"3"

    def test_s4_2_what_goes_to_a_queue_is_for_all(self, session):
        with pytest.raises(ConfigError, match="^E1220 consumer of queue:q.no_local: .* Topics have it.$"):
            session.create_consumer("queue:q", no_local=True)


class Foreign:
    """A message of another library."""

    def __init__(self, body, properties, key=None, headers=None) -> None:
        self.body = body
        self.properties = properties
        self.key = key
        self.headers = headers


class TestOverMemory(OverEveryBroker):
    @pytest.fixture
    def world(self, request):
        return world_over("memory", request)


class TestOverService(OverEveryBroker):
    @pytest.fixture
    def world(self, request):
        return world_over("service", request)


class TestOverEmbedded(OverEveryBroker):
    @pytest.fixture
    def world(self, request):
        return world_over("embedded", request)

    def test_a_queue_is_selected_from_and_the_rest_stays(self, world, connection, session):
        queue = world.queue()
        send(session, queue, numbered(4))
        with connection.create_session() as other:
            selective = other.create_consumer(queue, "n > 2")
            assert bodies(receive(selective, 2)) == ["3", "4"]
            assert selective.receive(0) is None
        assert [body for body, _ in rest(session, queue)] == ["1", "2"]

    def test_what_has_expired_is_left_out_and_done(self, world, session):
        queue = world.queue()
        shortly = Message(b"late", {}, None, None, Headers(time_to_live_ms=1))
        send(session, queue, [shortly, *numbered(1)])
        deadline = time.monotonic() + PATIENCE_S
        looking = session.create_browser(queue)
        while "late" in bodies(looking.enumerate()):
            assert time.monotonic() < deadline
        assert bodies(receive(session.create_consumer(queue), 1)) == ["1"]
        assert rest(session, queue) == []


@pytest.mark.parametrize("broker", BROKERS[:3])
def test_s2_6_what_is_recovered_comes_before_all_that_was_not_received(broker, request):
    """This holds for brokers that send no messages ahead."""
    world = world_over(broker, request)
    with world.factory().create_connection() as connection:
        queue, session = world.queue(), connection.create_session(CLIENT)
        send(session, queue, numbered(8))
        consumer = session.create_consumer(queue)
        receive(consumer, 5)
        session.recover()
        assert bodies(receive(consumer, 8)) == bodies(numbered(8))


# --- rule R8: weak references, which only a subclass of messages has ---


class Watched(Message, frozen=True, gc=True, weakref=True):
    pass


class Connector:
    """A connector that is its own connection, source and sink; counts the calls of `close`."""

    features = Features()

    def __init__(self) -> None:
        self.closes = 0

    def __call__(self, name, settings):
        return self

    def source(self, receiver):
        return self

    def sink(self, sender):
        return self

    def connect(self) -> None:
        pass

    def close(self) -> None:
        self.closes += 1


class Showing(Connector):
    """A connection whose first `browse` shows these messages; it counts the calls."""

    def __init__(self, messages) -> None:
        super().__init__()
        self.messages = messages
        self.browses = 0

    def browse(self, destination, limit):
        self.browses += 1
        shown, self.messages = self.messages, []
        return shown


class ReadsAhead(Connector):
    """Notes how many messages each of its sources may read ahead."""

    def __init__(self) -> None:
        super().__init__()
        self.limits = []

    def source(self, receiver):
        self.limits.append(receiver.max_batch_size)
        return self


@pytest.mark.parametrize(
    ("mode", "of_factory", "of_consumer", "limit"),
    [
        (AUTO, None, None, 1),
        (NO_ACKNOWLEDGE, None, None, 1),
        (CLIENT, None, None, 1000),
        (AUTO, 50, None, 50),
        (NO_ACKNOWLEDGE, 50, None, 50),
        (AUTO, 50, 7, 7),
        (CLIENT, 50, None, 50),
        (AUTO, None, 7, 7),
    ],
)
def test_q19_a_connector_reads_as_far_ahead_as_consumer_or_factory_say(mode, of_factory, of_consumer, limit):
    connector = ReadsAhead()
    session = ConnectionFactory(connector, flow_limit=of_factory).create_connection().create_session(mode)
    session.create_consumer("queue:q", flow_limit=of_consumer)
    assert connector.limits == [limit]


def watched(count):
    messages = [Watched(str(number).encode(), {"n": number}) for number in range(1, count + 1)]
    return messages, [weakref.ref(message) for message in messages]


def test_r8_the_memory_of_a_message_that_was_read_is_given_back():
    messages, references = watched(3)
    session = ConnectionFactory(Showing(messages)).create_connection().create_session()
    del messages
    snapshot = session.create_browser("queue:q").enumerate()
    assert next(snapshot).body == b"1"
    assert [reference() is None for reference in references] == [True, False, False]
    assert next(snapshot).body == b"2"
    assert [reference() is None for reference in references] == [True, True, False]
    del snapshot
    assert references[2]() is None


def test_r2_the_selector_is_applied_when_the_snapshot_is_taken():
    messages, references = watched(3)
    connector = Showing(messages)
    session = ConnectionFactory(connector).create_connection().create_session()
    del messages
    looking = session.create_browser("queue:q", "n = 2")
    assert connector.browses == 0
    snapshot = looking.enumerate()
    assert connector.browses == 1
    assert [reference() is None for reference in references] == [True, False, True]
    assert bodies(snapshot) == ["2"]
    assert connector.browses == 1


def test_r2_a_selector_that_cannot_be_read_is_refused_at_once(memory):
    with pytest.raises(ConfigError, match="^E6003 browser of queue:q.selector"):
        memory.session().create_browser("queue:q", "n = ")


# --- rule R10 ---


@pytest.mark.parametrize(
    ("value", "limit"), [(None, 0), ("", 0), ("abc", 0), ("1.5", 0), ("7", 7), ("-3", -3), ("0", 0)]
)
def test_r10_the_limit_comes_from_the_environment(monkeypatch, value, limit):
    if value is None:
        monkeypatch.delenv("CORRELATOR_QUEUE_BROWSER_READ_MAX", raising=False)
    else:
        monkeypatch.setenv("CORRELATOR_QUEUE_BROWSER_READ_MAX", value)
    assert ConnectionFactory(Showing([])).queue_browser_read_max == limit
    assert ConnectionFactory(Showing([])).create_connection().queue_browser_read_max == limit
    assert ConnectionFactory(Showing([]), queue_browser_read_max=5).queue_browser_read_max == 5


def test_r10_a_copy_of_a_factory_keeps_its_limit(monkeypatch):
    monkeypatch.setenv("CORRELATOR_QUEUE_BROWSER_READ_MAX", "7")
    factory = ConnectionFactory(Showing([]))
    monkeypatch.setenv("CORRELATOR_QUEUE_BROWSER_READ_MAX", "8")
    fields = {field.name: getattr(factory, field.name) for field in dataclasses.fields(factory)}
    copies = [copy.copy(factory), dataclasses.replace(factory, options={}), ConnectionFactory(**fields)]
    assert [one.queue_browser_read_max for one in copies] == [7, 7, 7]


def test_a_factory_does_not_show_its_options():
    assert "secret" not in repr(ConnectionFactory(Showing([]), {"password": "secret"}))


def test_s5_5_a_factory_has_one_pair_of_user_and_password_and_another_pair_is_refused():
    with pytest.raises(TypeError):
        ConnectionFactory(Showing([]), {"user": "a", "password": "b"}).create_connection("c", "d")
    with pytest.raises(TypeError):
        ConnectionFactory(Showing([]), {"user": "a", "password": "b"}).create_connection(user="c", password="d")


# --- rule R13 ---


class Recorder:
    """A connector whose sink keeps the messages that it gets."""

    features = Features()

    def __init__(self) -> None:
        self.outgoing = []

    def __call__(self, name, settings):
        return self

    def sink(self, sender):
        return self

    def connect(self) -> None:
        pass

    def send(self, batch):
        self.outgoing += batch
        return [None] * len(batch)

    def close(self) -> None:
        pass


def as_sent(message):
    recorder = Recorder()
    with ConnectionFactory(recorder).create_connection() as connection:
        connection.create_session().create_producer("queue:q").send(message)
    (outgoing,) = recorder.outgoing
    return outgoing


def test_r13_a_native_message_is_not_copied():
    message = Message(b"x", {"n": 1}, "key", None, Headers(reply_to="queue:answers"))
    assert as_sent(message).message is message


def test_s4_2_what_goes_to_a_topic_tells_its_connection():
    message = Message(b"x", {"n": 1}, "key", "topic:t", Headers(type="t"))
    first = as_sent(message).message
    again = as_sent(first).message  # by another connection
    names = [one.properties.pop("correlator_connection") for one in (first, again)]
    assert names[0] != names[1]
    assert first == again == message


def test_s4_2_properties_that_are_none_are_for_the_connector_to_refuse():
    message = Message(b"x", None, destination="topic:t")
    assert as_sent(message).message is message


def test_r13_a_message_may_name_another_destination():
    assert as_sent(Message(b"x")).destination == "queue:q"
    assert as_sent(Message(b"x", destination="queue:other")).destination == "queue:other"


class Unpackable:
    """A message of another library whose body cannot be unpacked."""

    @property
    def body(self):
        raise ImportError("no such class")

    properties = {"n": 1}


LOOP = []
LOOP.append(LOOP)


@pytest.mark.parametrize(
    ("body", "bytes_"),
    [
        (b"x", b"x"),
        (bytearray(b"x"), b"x"),
        (memoryview(b"x"), b"x"),
        (None, b""),
        (object(), b""),
        (LOOP, b""),
        ("\ud800", b""),
    ],
)
def test_r13_bodies_are_converted_and_what_cannot_be_is_ignored(body, bytes_):
    assert as_sent(Foreign(body, {"n": 1})).message == Message(bytes_, {"n": 1})


@pytest.mark.parametrize(
    ("body", "make"),
    [
        ("Grüße", kinds.text_message),
        ("", kinds.text_message),
        ({"a": 1, "b": None, "c": b"\xff"}, kinds.map_message),
        (OrderedDict(a=1), kinds.map_message),
        ({}, kinds.map_message),
        ([1, "b", True], kinds.stream_message),
        ((), kinds.stream_message),
        ({"a": [1]}, kinds.data_message),
        ({1: "a"}, kinds.data_message),
        ([{"a": 1}], kinds.data_message),
        (5, kinds.data_message),
    ],
)
def test_r13_texts_maps_and_streams_are_of_their_kind_and_other_data_is_json(body, make):
    assert as_sent(Foreign(body, {"n": 1})).message == make(body, {"n": 1})


def test_r13_a_body_that_cannot_be_unpacked_is_ignored():
    assert as_sent(Unpackable()).message == Message(b"", {"n": 1})


@pytest.mark.parametrize("message", [Unpackable(), Foreign(object(), {}), Foreign(LOOP, {}), Foreign("\ud800", {})])
def test_r13_the_log_tells_of_a_body_that_is_left_out(message, caplog):
    as_sent(message)
    (warning,) = caplog.records
    assert warning.levelname == "WARNING"
    assert re.fullmatch(
        r"producer of queue:q: the body of a \w+ cannot be (read|converted), so .* without it: .+", warning.getMessage()
    )


@pytest.mark.parametrize("body", [None, b"", "", {}])
def test_r13_the_log_says_nothing_about_an_empty_body(body, caplog):
    as_sent(Foreign(body, {}))
    assert not caplog.records


def test_r13_properties_are_converted_and_what_cannot_be_is_ignored():
    kept = {"none": None, "yes": True, "n": -1, "f": 0.5, "s": "ü", "b": b"\xff", "mode": CLIENT}
    ignored = {"object": object(), "list": [1], "large": 2**70, "half": "\ud800", 5: "five", (1, 2): "pair"}
    message = as_sent(Foreign(b"", {**kept, **ignored})).message
    assert message.properties == {**kept, "mode": "CLIENT"}
    assert type(message.properties["mode"]) is str
    assert as_sent(Foreign(b"", "no mapping")).message == Message(b"")


def test_r13_headers_are_read_but_for_reply_to():
    headers = Headers(
        correlation_id="c",
        type="t",
        priority=7,
        persistent=False,
        time_to_live_ms=1000,
        reply_to="queue:answers",
        message_id="forged",
    )
    sent = as_sent(Foreign(b"", {}, "key", headers)).message
    wanted = Headers(correlation_id="c", type="t", priority=7, persistent=False, time_to_live_ms=1000)
    assert sent == Message(b"", {}, "key", None, wanted)


def test_r13_keys_and_headers_of_other_types_are_ignored():
    class OddHeaders:
        correlation_id = 5
        priority = "high"
        type = object()

    assert as_sent(Foreign(b"", {}, 5, OddHeaders())).message == Message(b"")


@pytest.mark.parametrize("no_message", ["text", b"bytes", 5, None, {"body": b"x"}])
def test_r13_what_has_no_body_or_no_properties_is_no_message(no_message):
    with pytest.raises(UsageError, match=f"^E7504 send: a {type(no_message).__name__} has no 'body'"):
        as_sent(no_message)


@pytest.mark.parametrize(("part", "kind"), [("headers", "Headers"), ("destination", "str")])
def test_a_message_whose_headers_or_destination_have_a_wrong_type_is_refused(part, kind):
    with pytest.raises(UsageError, match=f"^E7504 send: the {part} of the message: '?5'? is not of the type {kind}"):
        as_sent(Message(b"", **{part: 5}))


# --- a broker that fails, refuses, and does not select ---


class Memory:
    """A broker in memory and a connection to it."""

    def __init__(self, **settings) -> None:
        self.broker = MemoryBroker(**settings)
        self.connection = ConnectionFactory(self.broker.connection).create_connection()

    def session(self, mode=AUTO):
        return self.connection.create_session(mode)

    def left(self, destination):
        """The messages that wait or that consumers hold."""
        return self.broker.waiting(destination), self.broker.unacknowledged(destination)


@pytest.fixture
def memory():
    return Memory()


def test_a_lost_connection_is_told_and_the_next_call_connects_anew(memory):
    session = memory.session(CLIENT)
    consumer = session.create_consumer("queue:q")
    memory.broker.publish("queue:q", numbered(3))
    old = receive(consumer, 2)
    memory.broker.down = True
    with pytest.raises(ConnectionLost):
        consumer.receive(0)
    session.acknowledge(old[1])  # is forgotten: it comes again, and nobody need be told
    memory.broker.down = False
    again = receive(consumer, 3)
    assert bodies(again) == ["1", "2", "3"]
    session.acknowledge(again[2])
    assert memory.left("queue:q") == (0, 0)


class CutsFirstAcknowledgement(Faults):
    def __init__(self) -> None:
        self.cut = False

    def before_acknowledge(self, receiver, messages):
        if not self.cut:
            self.cut = True
            raise ConnectionLost("E7001", receiver, "the test cuts it")


def test_a_lost_connection_is_found_by_acknowledging_and_keeps_nothing_from_other_consumers():
    memory = Memory(faults=CutsFirstAcknowledgement())
    session = memory.session(CLIENT)
    first, second = session.create_consumer("queue:first"), session.create_consumer("queue:second")
    for queue in ("queue:first", "queue:second"):
        memory.broker.publish(queue, numbered(2))
    received = [receive(one, 1)[0] for one in (first, second, first, second)]
    with pytest.raises(ConnectionLost):
        session.acknowledge(received[3])
    assert memory.left("queue:second") == (0, 0)
    assert bodies(receive(first, 2)) == ["1", "2"]


def test_q9_auto_returns_a_message_twice_rather_than_never():
    memory = Memory(faults=CutsFirstAcknowledgement())
    consumer = memory.session().create_consumer("queue:q")
    memory.broker.publish("queue:q", numbered(2))
    messages = receive(consumer, 3)
    assert bodies(messages) == ["1", "1", "2"]
    assert messages[1].headers.redelivered


class Refuses(Faults):
    def refused(self, sender, batch):
        return {0: "full"} if batch[0].message.body == b"refused" else {}


def test_a_refused_message_is_raised_and_the_producer_goes_on():
    memory = Memory(faults=Refuses())
    producer = memory.session().create_producer("queue:q")
    with pytest.raises(SendRejected, match="^E8102"):
        producer.send(Message(b"refused"))
    producer.send(Message(b"taken"))
    assert bodies(memory.broker.received("queue:q")) == ["taken"]


def test_a_producer_that_lost_its_connection_connects_anew(memory):
    producer = memory.session().create_producer("queue:q")
    memory.broker.down = True
    for _ in range(2):
        with pytest.raises(ConnectionLost):
            producer.send(Message(b"x"))
    memory.broker.down = False
    producer.send(Message(b"x"))
    assert bodies(memory.broker.received("queue:q")) == ["x"]


class Keeps(Connector):
    """Its sink keeps all messages and loses its connection at every other one; its source loses it at once."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = []

    def send(self, batch):
        self.sent += batch
        if len(self.sent) % 2:
            raise ConnectionLost("E7001", "here", "the line is cut")
        return [None]

    def receive(self, max_messages, timeout_s):
        raise ConnectionLost("E7001", "here", "the line is cut")


def test_a_message_that_is_sent_again_keeps_its_number_and_another_one_has_its_own():
    """Brokers identify messages by the number: a new message with an old number would count as a repeat."""
    connector = Keeps()
    producer = ConnectionFactory(connector).create_connection().create_session().create_producer("queue:q")
    first, second, third = numbered(3)
    with pytest.raises(ConnectionLost):
        producer.send(first)
    producer.send(first)
    with pytest.raises(ConnectionLost):
        producer.send(second)
    producer.send(third)
    assert [(one.sequence, one.message.body) for one in connector.sent] == [(1, b"1"), (1, b"1"), (2, b"2"), (3, b"3")]


def test_a_message_that_was_changed_before_it_is_sent_again_goes_as_it_is_now():
    connector, message = Keeps(), Foreign("1", {})
    producer = ConnectionFactory(connector).create_connection().create_session().create_producer("queue:q")
    with pytest.raises(ConnectionLost):
        producer.send(message)
    message.body = "2"
    producer.send(message)
    with pytest.raises(ConnectionLost):
        producer.send(message)
    producer.send(message)
    assert [(one.sequence, one.message.body) for one in connector.sent] == [(1, b"1"), (2, b"2"), (3, b"2"), (3, b"2")]


def test_a_consumer_that_lost_its_connection_lets_go_of_it():
    """Otherwise the broker would keep the messages that it has sent ahead for this consumer."""
    connector = Keeps()
    consumer = ConnectionFactory(connector).create_connection().create_session().create_consumer("queue:q")
    with pytest.raises(ConnectionLost):
        consumer.receive(0)
    assert connector.closes == 1


def test_what_cannot_be_connected_is_not_made(memory):
    session = memory.session()
    memory.broker.down = True
    for create in (session.create_consumer, session.create_producer):
        with pytest.raises(ConnectionLost):
            create("queue:q")
    memory.broker.down = False
    assert session.create_consumer("queue:q").receive(0) is None


def test_what_cannot_be_connected_is_let_go():
    connector = Unreachable()
    session = ConnectionFactory(connector).create_connection().create_session()
    for create in (session.create_consumer, session.create_producer):
        before = connector.closes
        with pytest.raises(ConnectionLost):
            create("queue:q")
        assert connector.closes > before


class Unreachable(Connector):
    """A connector whose source and sink cannot connect."""

    def connect(self) -> None:
        raise ConnectionLost("E7001", "here", "nobody is there")


def test_one_object_given_twice_is_two_deliveries(memory):
    twin = Message(b"twin")
    memory.broker.publish("queue:q", [twin, twin])
    session = memory.session(INDIVIDUAL)
    first, second = receive(session.create_consumer("queue:q"), 2)
    session.acknowledge(first)
    assert memory.left("queue:q") == (0, 1)
    session.acknowledge(second)
    assert memory.left("queue:q") == (0, 0)


def test_q19_a_consumer_holds_a_limited_number_of_messages(memory):
    session = memory.session(INDIVIDUAL)
    consumer = session.create_consumer("queue:q")
    memory.broker.publish("queue:q", numbered(1001))
    messages = receive(consumer, 1000)
    with pytest.raises(UsageError, match="^E7502 consumer of queue:q: 1000 of its messages are not acknowledged"):
        consumer.receive(0)
    session.acknowledge(messages[0])
    assert bodies(receive(consumer, 1)) == ["1001"]
    session.recover()
    assert bodies(receive(consumer, 1)) == ["2"]


def test_a_lost_connection_shows_nothing_and_the_next_snapshot_is_another(memory):
    memory.broker.publish("queue:q", numbered(3))
    looking = memory.session().create_browser("queue:q")
    memory.broker.down = True
    with pytest.raises(ConnectionLost, match="^E7001"):
        looking.enumerate()
    memory.broker.down = False
    assert bodies(looking.enumerate()) == ["1", "2", "3"]


def test_a_file_is_consumed_and_cannot_be_browsed(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"n": 1}\n{"n": 2}\n')
    factory = ConnectionFactory(FileConnection, {"path": str(tmp_path)})
    with factory.create_connection() as connection:
        session = connection.create_session(INDIVIDUAL)
        consumer = session.create_consumer("queue:a.jsonl", subscription="reader")
        first, _ = receive(consumer, 2)
        assert consumer.receive(math.inf) is None  # the end of the file
        session.acknowledge(first)
        session.close()
        session = connection.create_session()
        assert bodies(receive(session.create_consumer("queue:a.jsonl", subscription="reader"), 1)) == ['{"n": 2}']
        with pytest.raises(UsageError, match="^E2014 browser of queue:a.jsonl: its connector cannot show messages"):
            session.create_browser("queue:a.jsonl")


# --- what is refused ---


def test_a_selector_on_a_queue_needs_a_broker_that_selects():
    session = Memory(features=Features()).session()
    with pytest.raises(ConfigError, match="^E1220 consumer of queue:q.selector: this broker cannot leave"):
        session.create_consumer("queue:q", "n = 1")
    session.create_consumer("queue:q", " ")
    session.create_consumer("topic:t", "n = 1", subscription="s")


@pytest.mark.parametrize(
    ("shares", "destination", "subscription", "code"),
    [
        (True, "queue:q", "s", "E1222"),
        (True, "topic:t", None, "E7503"),
        (False, "queue:q", None, "E7503"),
        (True, "q", None, "E1215"),
    ],
)
def test_a_subscription_is_named_where_the_broker_keeps_something_for_one_reader(
    shares, destination, subscription, code
):
    session = Memory(features=Features(shares=shares)).session()
    with pytest.raises((ConfigError, UsageError), match=f"^{code} consumer of {destination}"):
        session.create_consumer(destination, subscription=subscription)


def test_what_is_no_destination_is_refused(memory):
    session = memory.session()
    for create in (session.create_producer, session.create_browser, session.create_consumer):
        for wrong in ("q", None, 5):  # `None`: the `reply_to` of a question that wants no answer
            with pytest.raises(ConfigError, match="^E1215"):
                create(wrong)


@pytest.mark.parametrize("closes", ["itself", "session", "connection"])
def test_what_is_closed_refuses_every_call(memory, closes):
    session = memory.session(CLIENT)
    consumer, producer = session.create_consumer("queue:q"), session.create_producer("queue:q")
    memory.broker.publish("queue:q", numbered(1))
    (message,) = receive(consumer, 1)
    calls = {"consumer": lambda: consumer.receive(0), "producer": lambda: producer.send(message)}
    closing = {"itself": [consumer, producer], "session": [session], "connection": [memory.connection]}[closes]
    if closes != "itself":
        calls |= {
            "session": lambda: session.acknowledge(message),
            "session again": session.recover,
            "session for consumers": lambda: session.create_consumer("queue:q"),
            "session for producers": lambda: session.create_producer("queue:q"),
            "session for browsers": lambda: session.create_browser("queue:q"),
        }
    if closes == "connection":
        calls["connection"] = memory.connection.create_session
    for _ in range(2):
        for one in closing:
            one.close()
    # What the program got of a closed consumer stays with the session.
    assert memory.left("queue:q") == ((0, 1) if closes == "itself" else (1, 0))
    for name, call in calls.items():
        with pytest.raises(UsageError, match=f"^E7501 {name.split()[0]}.*: it is closed. Make a new one.$"):
            call()


def test_a_connection_goes_on_when_a_session_is_closed(memory):
    memory.session().close()
    assert memory.session().create_consumer("queue:q").receive(0) is None
