"""Rules Q2 to Q19 and S5 (docs/rules.md) over the embedded broker, RabbitMQ and Pulsar.

Where a broker cannot do what a rule says, the session refuses, or the exception is part of the rule; the table of
docs/session-support.md says so.
"""

import asyncio
import contextlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from queue import SimpleQueue

import pytest

from connectors.embedded import EmbeddedConnection
from connectors.embedded.link import open_link
from connectors.messaging import ConnectionFactory
from connectors.messaging.asynchronous import AsyncConnection
from connectors.pulsar import PulsarConnection
from connectors.rabbitmq import RabbitConnection
from correlator.errors import ConfigError, ConnectionLost, SendRejected, UsageError
from correlator.events import Headers, Message
from correlator.settings import ConnectionSettings, SenderSettings
from correlator.testing.contract import PATIENCE_S
from correlator.testing.service import ServiceBroker
from tests.connectors.test_messaging import (
    AUTO,
    CLIENT,
    DUPS_OK,
    INDIVIDUAL,
    NO_ACKNOWLEDGE,
    TRANSACTED,
    bodies,
    numbered,
    receive,
    rest,
    send,
)
from tests.connectors.test_messaging_asynchronous import cancelled, ran
from tests.connectors.test_messaging_service import until
from tests.connectors.test_pulsar_priorities import all_here, partitioned  # noqa: F401  # a fixture
from tests.pulsar_server import PulsarServer
from tests.rabbit_server import RabbitServer

SHORTLY_S = 0.3
"""How long a test watches that something does not happen."""


class Embedded:
    """The embedded broker in a SQLite file."""

    kind, connector, is_service = "embedded", EmbeddedConnection, True
    keeps_what_a_killed_consumer_leaves = False
    refuses_late_answers = delays = selects = True
    from_now_on = {}
    survives_restart = ("persistent",)

    def __init__(self, path) -> None:
        self.options = {"store": f"sqlite:///{path}/broker.db"}
        self._names = iter(f"q{number}" for number in range(100))

    def queue(self) -> str:
        return f"queue:{next(self._names)}"

    def topic(self) -> str:
        return f"topic:{next(self._names)}"

    def subscriptions(self, topic) -> list[str]:
        """The names of the subscriptions that the broker has of a topic."""
        session = self._connection().attach(None).session()
        with (
            contextlib.closing(session),
            contextlib.closing(session.sink(SenderSettings(id="s", connection="c"))) as sink,
        ):
            sink.connect()  # whoever connects strikes off the consumers of killed processes
        return [one.subscription for one in self._connection().administration().subscriptions(topic)]

    def left_of_temporary(self, topic) -> list[str]:
        """What the broker has of a temporary topic that has ended."""
        destinations = self._connection().administration().destinations()
        return [one.destination for one in destinations if one.destination == topic]

    def _connection(self) -> EmbeddedConnection:
        return EmbeddedConnection("c", ConnectionSettings(type="embedded", options=self.options))

    @contextlib.contextmanager
    def holding(self) -> Iterator[None]:
        """Nobody else can write."""
        link = open_link(self.options["store"])
        with link.transaction():
            yield
        link.close()

    def restart(self) -> None:
        """The broker starts anew with the next connection, since no process has it open."""

    @contextlib.contextmanager
    def losing(self, connection) -> Iterator[None]:
        """The connections of all sessions are lost, as when a database ends them; at the end the broker is there."""
        for session in connection._sessions:
            session._link.service._access.close()
        yield

    def by_priority(self):
        """A queue, and the options of those who use it in the order of priorities."""
        return self.queue(), {}, {}

    def one_active(self):
        """A place with one active consumer and one backup, with the arguments of both and of their producer."""
        queue = self.queue()
        self._connection().create(queue, {"max_num_active_consumers": 1, "max_num_backup_consumers": 1})
        return queue, {}, {}

    def acknowledged(self, queue, left) -> None:
        """Acknowledgements are surely done."""

    def dead(self, session):
        """Let a message end undelivered; returns it, and what it must say of that."""
        queue = self.queue()
        session.create_producer(queue).send(Message(b"late"), time_to_live_ms=1)
        asking, dead = session.create_consumer(queue), session.create_consumer("queue:mq.sys.dmq")
        began_ms = time.time() * 1000
        while (message := dead.receive(0)) is None:
            assert asking.receive(0.005) is None
        assert began_ms - 1000 < message.properties["correlator_dmq_undelivered_timestamp_ms"] < time.time() * 1000 + 1
        return message, {"correlator_dmq_undelivered_reason": "EXPIRED", "correlator_dmq_destination": queue}


class Rabbit:
    """RabbitMQ."""

    kind, connector, is_service = "rabbit", RabbitConnection, False
    keeps_what_a_killed_consumer_leaves = delays = selects = False
    refuses_late_answers = True
    from_now_on = {}
    survives_restart = ("persistent",)

    def __init__(self, server: RabbitServer) -> None:
        self._server = server
        self.options = server.options
        self.holding = server.frozen

    def queue(self) -> str:
        return f"queue:{self._server.queue()}"

    def topic(self) -> str:
        return f"topic:{self._server.queue()}"

    def subscriptions(self, topic) -> list[str]:
        start = f"{topic.removeprefix('topic:')}:"
        return [name.removeprefix(start) for name in self._server.queues() if name.startswith(start)]

    def left_of_temporary(self, topic) -> list[str]:
        """Queues of durable subscriptions are left: they end after a day."""
        return [name for name in self.subscriptions(topic) if name != "news"]

    def restart(self) -> None:
        self._server.write_definitions()
        self._server.restart()

    @contextlib.contextmanager
    def losing(self, connection) -> Iterator[None]:
        self._server.close_connections()
        yield

    def by_priority(self):
        options = {"arguments": {"x-max-priority": 9}}
        return self.queue(), {}, options

    def one_active(self):
        options = {"options": {"arguments": {"x-single-active-consumer": True}}}
        return self.queue(), options, options

    def acknowledged(self, queue, left) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while self._server.queues()[queue.removeprefix("queue:")] != left:
            assert time.monotonic() < deadline, self._server.queues()

    def dead(self, session):
        queue, dead = self.queue(), self.queue()
        session.create_consumer(dead).close()
        arguments = {
            "x-message-ttl": 1,
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": dead.removeprefix("queue:"),
        }
        began_ms = time.time() * 1000
        session.create_producer(queue, options={"arguments": arguments}).send(Message(b"late"))
        (message,) = receive(session.create_consumer(dead), 1)
        (death,) = json.loads(message.properties["x-death"])
        assert began_ms - 2000 < death["time"] < time.time() * 1000 + 1  # in whole seconds
        return message, {"x-first-death-reason": "expired", "x-first-death-queue": queue.removeprefix("queue:")}


class Pulsar:
    """Pulsar."""

    kind, connector, is_service = "pulsar", PulsarConnection, False
    keeps_what_a_killed_consumer_leaves = True
    refuses_late_answers = False
    from_now_on = {"initial_position": "latest"}
    delays = selects = True
    survives_restart = ("persistent", "not persistent")

    def __init__(self, server: PulsarServer) -> None:
        self._server = server
        self.options = {**server.options, "web_service_url": f"http://127.0.0.1:{server.web_port}"}
        self.holding = server.frozen
        self.restart = server.restart

    @contextlib.contextmanager
    def losing(self, connection) -> Iterator[None]:
        self._server.stop()
        try:
            yield
        finally:
            self._server.start()

    def queue(self) -> str:
        return f"queue:{self._server.name()}"

    def topic(self) -> str:
        return f"topic:{self._server.name()}"

    def subscriptions(self, topic) -> list[str]:
        return list(self._server.subscriptions(topic.removeprefix("topic:")))

    def left_of_temporary(self, topic) -> list[str]:
        names = self._server.request("GET", "persistent/public/default")
        return [name for name in names if name.endswith(f"/{topic.removeprefix('topic:')}")]

    def by_priority(self):
        return f"queue:{partitioned(self._server, 20)}", {"priority_mapping": "linear"}, {}

    def one_active(self):
        consumers = {"subscription": "s", "options": {"subscription_type": "failover"}}
        return f"topic:{self._server.name()}", consumers, {}

    def acknowledged(self, queue, left) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while self._backlog(queue) != left:
            assert time.monotonic() < deadline, self._backlog(queue)

    def _backlog(self, queue):
        return self._server.subscriptions(queue.removeprefix("queue:"))["jms-queue"]["msgBacklog"]

    def dead(self, session):
        queue, dead = self.queue(), self.queue()
        policy = {"max_redeliver_count": 1, "dead_letter_topic": dead.removeprefix("queue:")}
        policy["initial_subscription_name"] = "jms-queue"
        options = {"dead_letter_policy": policy, "negative_ack_delay": "100ms"}
        consumer = session.create_consumer(queue, options=options)
        send(session, queue, [Message(b"late")])
        for _ in range(2):
            receive(consumer, 1)
            session.recover()
        assert consumer.receive(SHORTLY_S) is None
        (message,) = receive(session.create_consumer(dead), 1)
        return message, {"REAL_TOPIC": f"persistent://public/default/{queue.removeprefix('queue:')}"}


@pytest.fixture(
    params=[
        "embedded",
        pytest.param("rabbit", marks=pytest.mark.rabbitmq),
        pytest.param("pulsar", marks=pytest.mark.pulsar),
    ]
)
def broker(request, tmp_path):
    if request.param == "embedded":
        return Embedded(tmp_path)
    server = request.getfixturevalue(request.param)
    return Rabbit(server) if request.param == "rabbit" else Pulsar(server)


@pytest.fixture
def factory(broker):
    return ConnectionFactory(broker.connector, broker.options)


@pytest.fixture
def connection(factory):
    with factory.create_connection() as connection:
        yield connection


@pytest.fixture
def session(connection):
    return connection.create_session()


def only_services(broker, refusal, call):
    """Make a call, or expect its refusal if the broker is no message service; returns whether it was done."""
    if broker.is_service:
        call()
        return True
    with pytest.raises((ConfigError, UsageError), match=refusal):
        call()
    return False


@contextlib.contextmanager
def in_thread(call):
    """Run a call in a thread within the block; yields the event of its end."""
    done = threading.Event()
    thread = threading.Thread(target=lambda: (call(), done.set()))
    thread.start()
    yield done
    thread.join(PATIENCE_S)
    assert done.is_set()


# --- sending: rules Q2 to Q4 ---


def test_q2_a_persistent_send_returns_when_the_broker_has_the_message(broker, session):
    producer = session.create_producer(broker.queue())
    with contextlib.ExitStack() as ends:
        with broker.holding():
            done = ends.enter_context(in_thread(lambda: producer.send(Message(b"x"))))
            assert not done.wait(SHORTLY_S)
        assert done.wait(PATIENCE_S)


def test_q3_a_send_that_is_not_persistent_does_not_wait_and_keeps_its_place(broker, session):
    queue = broker.queue()
    first, second = session.create_producer(queue), session.create_producer(queue)

    def sends():
        for message in numbered(100):
            first.send(message, persistent=False)

    with broker.holding(), in_thread(sends) as done:
        assert done.wait(PATIENCE_S)
    second.send(Message(b"persistent"))
    expected = [*bodies(numbered(100)), "persistent"]
    assert bodies(receive(session.create_consumer(queue, flow_limit=200), 101)) == expected


def test_q3_a_persistent_message_waits_for_those_before_it(broker, session):
    queue, completes = broker.queue(), threading.Event()
    first, second = session.create_producer(queue), session.create_producer(queue)
    first.send_async(Message(b"1"), lambda *_: completes.wait(PATIENCE_S))
    first.send(Message(b"2"), persistent=False)
    with in_thread(lambda: second.send(Message(b"3"))) as done:
        assert not done.wait(SHORTLY_S)
        completes.set()
        assert done.wait(PATIENCE_S)
    assert bodies(receive(session.create_consumer(queue, flow_limit=200), 3)) == ["1", "2", "3"]


def test_q3_with_ack_on_non_persistent_every_send_waits(broker):
    with ConnectionFactory(
        broker.connector, broker.options, ack_on_non_persistent=True
    ).create_connection() as connection:
        producer = connection.create_session().create_producer(broker.queue())
        with contextlib.ExitStack() as ends:
            with broker.holding():
                done = ends.enter_context(in_thread(lambda: producer.send(Message(b"x"), persistent=False)))
                assert not done.wait(SHORTLY_S)
            assert done.wait(PATIENCE_S)


def test_q3_a_message_that_is_lost_in_the_background_is_logged_and_with_acks_raised(caplog):
    service = ServiceBroker()
    factory = ConnectionFactory(service.connection)
    with factory.create_connection() as connection:
        producer = connection.create_session().create_producer("queue:q")
        assert producer.send(Message(b"1", destination="nonsense"), persistent=False).startswith("ID:")
        producer.send(Message(b"2"), persistent=False)
    (told,) = caplog.messages
    assert told.startswith("producer of queue:q: a message that is not persistent was lost: E8104")
    assert service.waiting("queue:q") == 1
    factory.ack_on_non_persistent = True
    with factory.create_connection() as connection:
        producer = connection.create_session().create_producer("queue:q")
        with pytest.raises(SendRejected, match="^E8104"):
            producer.send(Message(b"1", destination="nonsense"), persistent=False)


@pytest.mark.parametrize("acks", [False, True])
def test_q3_a_full_embedded_queue_drops_and_with_acks_refuses_what_is_not_persistent(tmp_path, acks):
    broker = Embedded(tmp_path)
    queue = broker.queue()
    administered = EmbeddedConnection("c", ConnectionSettings(type="embedded", options=broker.options))
    administered.create(queue, {"max_num_msgs": 1})
    with ConnectionFactory(EmbeddedConnection, broker.options, ack_on_non_persistent=acks).create_connection() as one:
        session = one.create_session()
        producer = session.create_producer(queue)
        producer.send(Message(b"1"))
        refuses = pytest.raises(SendRejected, match="^E8108") if acks else contextlib.nullcontext()
        with refuses:
            producer.send(Message(b"2"), persistent=False)
        producer.close()
        assert bodies(session.create_browser(queue).enumerate()) == ["1"]


def test_q4_only_persistent_messages_survive_a_restart(broker, factory):
    queue = broker.queue()
    with factory.create_connection() as connection:
        session = connection.create_session()
        session.create_consumer(queue).close()
        producer = session.create_producer(queue)
        producer.send(Message(b"persistent"))
        producer.send(Message(b"not persistent"), persistent=False)
        producer.close()
    broker.restart()
    with factory.create_connection() as connection:
        found = [body for body, _ in rest(connection.create_session(), queue)]
    assert tuple(found) == broker.survives_restart


def test_s4_1_an_expired_message_is_not_received(broker, session):
    queue = broker.queue()
    consumer, producer = session.create_consumer(queue), session.create_producer(queue)
    consumer.close()
    producer.send(Message(b"late"), time_to_live_ms=1)
    sent_ms = time.time() * 1000
    producer.send(Message(b"in time"), time_to_live_ms=3_600_000)
    until(lambda: time.time() * 1000 > sent_ms + 10)
    consumer = session.create_consumer(queue)
    assert bodies(receive(consumer, 1)) == ["in time"]
    assert consumer.receive(SHORTLY_S) is None


def test_s4_4_a_delayed_message_comes_later_or_is_refused(broker, session):
    queue = broker.queue()
    consumer, producer = session.create_consumer(queue), session.create_producer(queue)
    began = time.monotonic()
    if not broker.delays:
        with pytest.raises(SendRejected, match="RabbitMQ cannot delay a message"):
            producer.send(Message(b"x"), delivery_delay_ms=1500)
        return
    producer.send(Message(b"x"), delivery_delay_ms=1500)
    (message,) = receive(consumer, 1)
    assert time.monotonic() - began >= 1.4
    assert message.headers.delivery_time >= message.headers.timestamp + 1500


# --- consumers: rules Q5 to Q8 ---


def test_r2_a_selector_of_a_queue_leaves_the_rest_to_others_or_is_refused(broker, connection, session):
    queue = broker.queue()
    send(session, queue, numbered(4))
    if not broker.selects:
        with pytest.raises(ConfigError, match="^E1220 .*cannot leave unselected messages in a queue"):
            session.create_consumer(queue, "n > 2")
        return
    with connection.create_session() as other:
        assert sorted(bodies(receive(other.create_consumer(queue, "n > 2"), 2))) == ["3", "4"]
    assert sorted(body for body, _ in rest(session, queue)) == ["1", "2"]


def test_s1_5_a_selector_of_a_subscription_leaves_out_what_does_not_match(broker, session):
    topic = broker.topic()
    consumer = session.create_shared_durable_consumer(topic, "news", "n > 4")
    send(session, topic, numbered(5))
    assert bodies(receive(consumer, 1)) == ["5"]
    assert consumer.receive(SHORTLY_S) is None


def received_by(consumers, count):
    """The numbers of so many messages, by consumer; the consumers take turns."""
    found = [[] for _ in consumers]
    deadline = time.monotonic() + PATIENCE_S
    while sum(map(len, found)) < count:
        assert time.monotonic() < deadline
        for consumer, numbers in zip(consumers, found, strict=True):
            if (message := consumer.receive(0.05)) is not None:
                numbers.append(int(message.body))
    return found


def test_q5_each_message_of_a_queue_goes_to_one_consumer_in_the_order_of_arrival(broker, connection, session):
    queue = broker.queue()
    consumers = [connection.create_session(CLIENT).create_consumer(queue, flow_limit=10) for _ in range(2)]
    send(session, queue, numbered(10))
    shares = received_by(consumers, 10)
    assert sorted(shares[0] + shares[1]) == list(range(1, 11))
    assert shares == [sorted(share) for share in shares]


def test_q5_the_highest_priority_comes_first(broker, request):
    request.getfixturevalue("all_here")(3)  # in the client of Pulsar, which orders what it has
    queue, of_connection, of_ends = broker.by_priority()
    options = {**broker.options, **of_connection}
    with ConnectionFactory(broker.connector, options).create_connection() as connection:
        session = connection.create_session()
        session.create_consumer(queue, options=of_ends).close()
        producer = session.create_producer(queue, options=of_ends)
        for body, priority in [(b"a", 4), (b"b", 9), (b"c", 0)]:
            producer.send(Message(body), priority=priority)
        consumer = session.create_consumer(queue, options=of_ends)
        assert bodies(receive(consumer, 3)) == ["b", "a", "c"]


def test_q6_the_backup_follows_when_the_active_consumer_ends(broker, connection, session):
    destination, of_consumers, of_producer = broker.one_active()
    sessions = [connection.create_session(CLIENT) for _ in range(2)]
    consumers = [one.create_consumer(destination, **of_consumers) for one in sessions]
    if broker.is_service:
        with pytest.raises(UsageError, match="^E7514"):
            session.create_consumer(destination)
    producer = session.create_producer(destination, **of_producer)
    for message in numbered(3):
        producer.send(message)
    got = received_by(consumers, 2)
    active = 0 if got[0] else 1
    assert got[active] == [1, 2]
    assert consumers[1 - active].receive(SHORTLY_S) is None
    sessions[active].close()
    assert bodies(receive(consumers[1 - active], 3)) == ["1", "2", "3"]


@pytest.mark.parametrize("given", [True, False])
def test_q7_there_is_one_broker_and_no_preference_for_near_consumers(tmp_path, given):
    broker = EmbeddedConnection("c", ConnectionSettings(type="embedded", options=Embedded(tmp_path).options))
    with pytest.raises(UsageError, match="^E7523 queue:q: there is no property 'local_delivery_preferred'"):
        broker.create("queue:q", {"local_delivery_preferred": given})


def test_q8_a_topic_gives_to_all_subscriptions_and_keeps_for_those_without_consumers(broker, connection):
    session, topic = connection.create_session(), broker.topic()
    there = session.create_shared_durable_consumer(topic, "there")
    session.create_shared_durable_consumer(topic, "away").close()
    send(session, topic, numbered(2))
    assert bodies(receive(there, 2)) == ["1", "2"]
    assert bodies(receive(session.create_shared_durable_consumer(topic, "away"), 2)) == ["1", "2"]


KINDS = {"durable": "create_shared_durable_consumer", "not durable": "create_shared_consumer"}


@pytest.mark.parametrize("kind", KINDS)
def test_q8_consumers_of_a_shared_subscription_get_each_message_once(broker, factory, connection, kind):
    topic = broker.topic()
    with factory.create_connection() as other:
        consumers = [
            getattr(one.create_session(), KINDS[kind])(topic, "news", flow_limit=1) for one in (connection, other)
        ]
        session = connection.create_session()
        send(session, topic, numbered(20))
        shares = received_by(consumers, 20)
        assert all(shares)
        assert sorted(shares[0] + shares[1]) == list(range(1, 21))
        assert [consumer.receive(SHORTLY_S) for consumer in consumers] == [None, None]
        consumers[0].close()
        send(session, topic, numbered(1, first=21))
        assert bodies(receive(consumers[1], 1)) == ["21"]
    assert len(broker.subscriptions(topic)) == (1 if kind == "durable" else 0)
    send(session, topic, numbered(1, first=22))
    again = getattr(session, KINDS[kind])(topic, "news")
    send(session, topic, numbered(1, first=23))
    expected = ["22", "23"] if kind == "durable" else ["23"]
    assert bodies(receive(again, len(expected))) == expected


def test_q8_a_durable_subscription_that_is_not_shared_has_one_consumer_and_keeps_messages(broker):
    topic = broker.topic()
    arguments = {"client_id": "desk"} if broker.is_service else {}
    with ConnectionFactory(broker.connector, broker.options, **arguments).create_connection() as connection:
        session, other = connection.create_session(CLIENT), connection.create_session()
        consumer = session.create_durable_consumer(topic, "news")
        for create in (other.create_durable_consumer, other.create_shared_durable_consumer):
            with pytest.raises(UsageError, match=f"^E7516 .*{topic}"):
                create(topic, "news")
        send(other, topic, numbered(2))
        session.acknowledge(receive(consumer, 1)[0])
        consumer.close()
        send(other, topic, numbered(1, first=3))
        assert bodies(receive(other.create_durable_consumer(topic, "news"), 2)) == ["2", "3"]
    assert len(broker.subscriptions(topic)) == 1


def test_q8_a_consumer_without_a_subscription_gets_all_that_is_sent_while_it_lives(broker, connection, session):
    topic = broker.topic()
    kept = connection.create_session(CLIENT).create_shared_durable_consumer(topic, "kept")
    send(session, topic, numbered(1))
    receive(kept, 1)
    first, second = session.create_consumer(topic), session.create_consumer(topic, "n = 3")
    send(session, topic, numbered(2, first=2))
    assert bodies(receive(first, 2)) == ["2", "3"]
    assert bodies(receive(second, 1)) == ["3"]
    first.close()
    second.close()
    assert len(broker.subscriptions(topic)) == 1


@pytest.mark.kill9
def test_q8_what_a_killed_consumer_without_a_subscription_leaves_can_be_removed(broker, session):
    topic = broker.topic()
    with Program(broker, topic, AUTO, 1) as program:
        program.receive(0)
        send(session, topic, numbered(1))
        assert program.receive(1) == ["1"]
    until(lambda: len(broker.subscriptions(topic)) == (1 if broker.keeps_what_a_killed_consumer_leaves else 0))
    for name in broker.subscriptions(topic):
        assert name.endswith(":nondurable")
        until(lambda name=name: unsubscribed(session, topic, name))
    assert broker.subscriptions(topic) == []


def unsubscribed(session, topic, name):
    """Delete a subscription; returns whether the broker has noticed that nobody uses it any more."""
    try:
        session.unsubscribe(topic, name)
    except UsageError as error:
        if error.code != "E7513":
            raise
        return False
    return True


def test_q8_a_client_id_is_that_of_one_connection_or_refused(broker, factory):
    with contextlib.ExitStack() as ends:

        def attach():
            ends.enter_context(factory.create_connection(client_id="desk"))

        if only_services(broker, "^E7545", attach):
            with pytest.raises(UsageError, match="^E7515"):
                attach()


def test_s1_5_two_selectors_on_one_subscription_are_refused(broker, connection, session):
    topic = broker.topic()
    consumer = session.create_shared_durable_consumer(topic, "news", "n = 1")
    for selector in ("n = 2", None):
        with pytest.raises(UsageError, match=f"^E7517 .*{topic}"):
            connection.create_session().create_shared_durable_consumer(topic, "news", selector)
    connection.create_session().create_shared_durable_consumer(topic, "other", "n = 2")
    send(session, topic, numbered(2))
    assert bodies(receive(consumer, 1)) == ["1"]
    consumer.close()
    if broker.is_service:  # others do not know the selector of a subscription without consumers
        with pytest.raises(UsageError, match="^E7517 .*unsubscribe first"):
            session.create_shared_durable_consumer(topic, "news", "n = 2")
    session.unsubscribe(topic, "news")
    again = session.create_shared_durable_consumer(topic, "news", "n = 2")
    send(session, topic, numbered(2))
    assert bodies(receive(again, 1)) == ["2"]


def test_s1_4_a_subscription_is_deleted_with_its_messages_unless_it_is_in_use(broker, session):
    topic = broker.topic()
    consumer = session.create_shared_durable_consumer(topic, "news")
    with pytest.raises(UsageError, match=f"^E7513 {topic}"):
        session.unsubscribe(topic, "news")
    consumer.close()
    send(session, topic, numbered(1))
    session.unsubscribe(topic, "news")
    with pytest.raises(UsageError, match=f"^E7512 {topic}: it has no subscription 'news'"):
        session.unsubscribe(topic, "news")
    again = session.create_shared_durable_consumer(topic, "news", options=broker.from_now_on)
    send(session, topic, numbered(1, first=2))
    assert bodies(receive(again, 1)) == ["2"]


# --- temporary destinations and questions: rule S1.9 ---


def test_s1_9_a_temporary_queue_belongs_to_its_connection_and_ends_with_it(broker, factory, session):
    with factory.create_connection() as connection:
        own = connection.create_session()
        queue, deleted = own.create_temporary_queue(), own.create_temporary_queue()
        send(session, queue, [Message(b"before it has a consumer")])
        with pytest.raises(UsageError, match="^E7521 .*another connection"):
            session.create_consumer(queue)
        consumer = own.create_consumer(queue)
        assert bodies(receive(consumer, 1)) == ["before it has a consumer"]
        with pytest.raises(UsageError, match=f"^E7513 {queue}"):
            own.delete_temporary(queue)
        own.delete_temporary(deleted)
        with pytest.raises(UsageError, match=f"^E7512 {deleted}"):
            own.delete_temporary(deleted)
    for ended in (queue, deleted):
        with pytest.raises(SendRejected) if broker.refuses_late_answers else contextlib.nullcontext():
            send(session, ended, [Message(b"late")])


def test_s1_9_a_temporary_topic_belongs_to_its_connection_and_ends_with_it(broker, factory, session):
    with factory.create_connection() as connection:
        own = connection.create_session()
        topic = own.create_temporary_topic()
        with pytest.raises(UsageError, match="^E7521 .*another connection"):
            session.create_consumer(topic)
        consumers = [own.create_consumer(topic), own.create_shared_durable_consumer(topic, "news")]
        send(session, topic, numbered(1))
        assert [bodies(receive(consumer, 1)) for consumer in consumers] == [["1"], ["1"]]
        assert broker.left_of_temporary(topic) != []
    until(lambda: broker.left_of_temporary(topic) == [])


@pytest.mark.parametrize("mode", [AUTO, CLIENT, INDIVIDUAL, DUPS_OK, NO_ACKNOWLEDGE])
def test_a_question_is_answered(broker, factory, connection, mode):
    questions = broker.queue()
    with factory.create_connection() as answers:
        session = answers.create_session()
        asked = session.create_consumer(questions)

        def answer():
            for _ in range(2):
                question = asked.receive(PATIENCE_S)
                headers = Headers(correlation_id=question.headers.correlation_id)
                replies = session.create_producer(question.headers.reply_to)
                replies.send(Message(b"of another", headers=Headers(correlation_id="another")))
                replies.send(Message(b"re: " + question.body, headers=headers))
                replies.close()

        asks = connection.create_session(mode)
        with in_thread(answer):
            for body in (b"1", b"2"):
                assert asks.request(questions, Message(body), PATIENCE_S).body == b"re: " + body
        unheard = broker.queue()
        session.create_consumer(unheard).close()
        assert asks.request(unheard, Message(b"3"), 0.01) is None


# --- waits, lost connections and asyncio: rule S5.1 ---


@pytest.mark.parametrize("ends", ["stop", "connection", "session", "consumer"])
def test_s5_1_a_wait_is_ended_by_another_thread(broker, factory, ends):
    connection = factory.create_connection()
    session = connection.create_session()
    consumer = session.create_consumer(broker.queue())
    result = SimpleQueue()
    closes = {"connection": connection.close, "session": session.close, "consumer": consumer.close}
    with in_thread(lambda: result.put(consumer.receive())) as done:
        if ends == "stop":  # it may come before the wait
            until(lambda: connection.stop() or done.is_set())
        else:
            done.wait(SHORTLY_S)  # so that it waits
            closes[ends]()
        assert result.get(timeout=PATIENCE_S) is None
    if ends == "stop":
        assert consumer.receive(0) is None
    else:
        with pytest.raises(UsageError, match="^E7501"):
            consumer.receive(0)
    connection.close()


def test_s5_1_an_exception_listener_is_told_of_a_lost_connection_and_the_listener_goes_on(broker, connection):
    told, found, queue = SimpleQueue(), SimpleQueue(), broker.queue()
    connection.set_exception_listener(told.put)
    connection.create_session().create_consumer(queue).set_listener(found.put)
    connection.start()
    send(connection.create_session(), queue, numbered(1))
    assert found.get(timeout=PATIENCE_S).body == b"1"
    with broker.losing(connection):
        error = told.get(timeout=PATIENCE_S)
    assert isinstance(error, ConnectionLost), error
    connection.create_session().create_producer(queue).send(Message(b"2"))
    bodies_found = [found.get(timeout=PATIENCE_S).body]
    if bodies_found == [b"1"]:  # its acknowledgement was lost
        bodies_found.append(found.get(timeout=PATIENCE_S).body)
    assert bodies_found[-1] == b"2"


def test_asyncio_messages_are_sent_and_received_while_the_loop_goes_on(broker, factory):
    queue = broker.queue()

    async def program():
        async with await AsyncConnection.connect(factory) as connection:
            receiving, sending = await connection.create_session(), await connection.create_session()
            consumer, producer = await receiving.create_consumer(queue), await sending.create_producer(queue)
            waiting = asyncio.create_task(consumer.receive())
            ids = await asyncio.gather(*[producer.send(message) for message in numbered(3)])
            assert all(one.startswith("ID:") for one in ids)
            return bodies([await waiting, await consumer.receive(PATIENCE_S), await consumer.receive(PATIENCE_S)])

    assert ran(program()) == ["1", "2", "3"]


@pytest.mark.parametrize("mode", [AUTO, CLIENT])
def test_asyncio_a_cancelled_receive_loses_nothing(broker, factory, mode):
    queue = broker.queue()

    async def program():
        found = []
        async with await AsyncConnection.connect(factory) as connection:
            sender = await (await connection.create_session()).create_producer(queue)
            session = await connection.create_session(mode)
            consumer = await session.create_consumer(queue)
            for message in numbered(20):
                found += await cancelled(consumer, sender, message)
            for message in found:
                await session.acknowledge(message)
            await session.close()
            last = await (await connection.create_session()).create_consumer(queue)
            while len(found) < 20:
                found.append(await last.receive(PATIENCE_S))
            assert await last.receive(SHORTLY_S) is None
        return bodies(found)

    assert sorted(ran(program()), key=int) == bodies(numbered(20))


def test_asyncio_closing_ends_what_waits(broker, factory):
    async def program():
        connection = await AsyncConnection.connect(factory)
        consumer = await (await connection.create_session()).create_consumer(broker.queue())
        waiting = asyncio.create_task(consumer.receive())
        assert await asyncio.wait([waiting], timeout=SHORTLY_S) == (set(), {waiting})
        await connection.close()
        assert await waiting is None

    ran(program())


# --- a program that is killed: rules Q11 and Q12 ---


class Program:
    """A process with a session that consumes a queue."""

    def __init__(self, broker, queue, mode, flow_limit) -> None:
        module = [sys.executable, "-m", "tests.connectors.session_worker"]
        arguments = [broker.kind, json.dumps(broker.options), queue, mode, str(flow_limit)]
        self._process = subprocess.Popen(
            [*module, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def receive(self, count):
        self._process.stdin.write(f"{count}\n")
        self._process.stdin.flush()
        return self._process.stdout.readline().split()

    def __enter__(self):
        return self

    def __exit__(self, *_) -> None:
        self._process.kill()
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()


@pytest.mark.kill9
def test_q11_at_most_the_last_ten_messages_come_again_after_a_kill(broker, session):
    queue = broker.queue()
    send(session, queue, numbered(17))
    with Program(broker, queue, DUPS_OK, 20) as program:
        assert program.receive(10) == bodies(numbered(10))
        broker.acknowledged(queue, 7)
        assert program.receive(7) == bodies(numbered(7, first=11))
    assert [body for body, _ in rest(session, queue)] == bodies(numbered(7, first=11))


@pytest.mark.kill9
def test_q12_what_no_acknowledge_has_fetched_is_lost_with_a_kill(broker, session):
    queue = broker.queue()
    send(session, queue, numbered(3))
    with Program(broker, queue, NO_ACKNOWLEDGE, 1) as program:
        assert program.receive(2) == ["1", "2"]
        broker.acknowledged(queue, 1)
    assert [body for body, _ in rest(session, queue)] == ["3"]


# --- transactions: rules Q13 to Q15, S5.3 and S5.4 ---


def test_q13_s5_4_a_commit_is_one_transaction_or_refused(broker, connection, session):
    queue, out = broker.queue(), broker.queue()
    send(session, queue, numbered(2))
    made = []
    if not only_services(broker, "^E7509", lambda: made.append(connection.create_session(TRANSACTED))):
        return
    (transacted,) = made
    receive(transacted.create_consumer(queue), 1)
    transacted.create_producer(out).send(Message(b"x"))
    assert rest(session, out) == []
    transacted.commit()
    transacted.close()
    assert [body for body, _ in rest(session, queue)] == ["2"]
    assert [body for body, _ in rest(session, out)] == ["x"]


def test_s5_3_with_emulate_transactions_a_commit_is_real_where_the_broker_has_transactions(broker):
    queue, out = broker.queue(), broker.queue()
    factory = ConnectionFactory(broker.connector, broker.options, emulate_transactions=True)
    with factory.create_connection() as connection:
        outside, session = connection.create_session(), connection.create_session(TRANSACTED)
        send(outside, queue, numbered(3))
        consumer, producer = session.create_consumer(queue), session.create_producer(out)
        receive(consumer, 2)
        producer.send(Message(b"1"))
        session.rollback()
        taken = bodies(receive(consumer, 2))
        producer.send(Message(b"2"))
        at_once = [] if broker.is_service else ["1", "2"]
        assert [body for body, _ in rest(outside, out)] == at_once
        session.commit()
        session.close()
        assert sorted([*taken, *(body for body, _ in rest(outside, queue))]) == ["1", "2", "3"]
        assert [body for body, _ in rest(outside, out)] == (["2"] if broker.is_service else [])


def test_s5_3_a_closed_consumer_without_a_subscription_leaves_nothing_to_a_transaction_that_is_emulated(broker):
    topic = broker.topic()
    factory = ConnectionFactory(broker.connector, broker.options, emulate_transactions=not broker.is_service)
    with factory.create_connection() as connection:
        outside, session = connection.create_session(), connection.create_session(TRANSACTED)
        consumer = session.create_consumer(topic)
        send(outside, topic, numbered(1))
        receive(consumer, 1)
        consumer.close()
        until(lambda: len(broker.subscriptions(topic)) == (1 if broker.is_service else 0))
        session.commit()
        until(lambda: broker.subscriptions(topic) == [])


def test_q14_a_prepared_transaction_survives_a_start_and_one_that_is_not_prepared_is_rolled_back(broker):
    queue, out = broker.queue(), broker.queue()
    factory = ConnectionFactory(broker.connector, broker.options, emulate_transactions=not broker.is_service)
    with factory.create_connection() as connection:
        send(connection.create_session(), queue, numbered(2))
        first, second = (connection.create_session(TRANSACTED) for _ in range(2))
        consumers = [one.create_consumer(queue, flow_limit=1) for one in (first, second)]
        receive(consumers[0], 1)
        if broker.is_service:
            first.create_producer(out).send(Message(b"prepared"))
        if not only_services(broker, "^E7543", lambda: first.prepare("name")):
            return
        receive(consumers[1], 1)
        second.create_producer(out).send(Message(b"not prepared"))
    broker.restart()
    with factory.create_connection() as connection:
        session = connection.create_session()
        assert rest(session, queue) == [("2", True)]
        session.resolve("name", commit=True)
        assert rest(session, queue) == []
        assert [body for body, _ in rest(session, out)] == ["prepared"]


def test_q15_two_brokers_need_a_coordinator_which_prepares_on_both(tmp_path):
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    factories = [ConnectionFactory(EmbeddedConnection, Embedded(tmp_path / name).options) for name in ("here", "there")]
    for factory in factories:
        with factory.create_connection() as connection:
            session = connection.create_session(TRANSACTED)
            session.create_producer("queue:q").send(Message(b"x"))
            session.prepare("both")
    for factory in factories:  # the program has ended, and its coordinator has decided
        with factory.create_connection() as connection:
            session = connection.create_session()
            assert rest(session, "queue:q") == []
            session.resolve("both", commit=True)
            assert [body for body, _ in rest(session, "queue:q")] == ["x"]


# --- the end of messages: rules Q16 and Q18; what a consumer holds: rule Q19 ---


def test_q16_a_message_stays_until_each_subscription_has_acknowledged_it(broker, connection):
    topic = broker.topic()
    sessions = [connection.create_session(CLIENT) for _ in range(2)]
    consumers = [one.create_consumer(topic, subscription=name) for one, name in zip(sessions, "ab", strict=True)]
    send(connection.create_session(), topic, numbered(1))
    receive(consumers[0], 1)
    sessions[0].acknowledge()
    receive(consumers[1], 1)
    sessions[1].close()  # without an acknowledgement
    other = connection.create_session()
    assert bodies(receive(other.create_consumer(topic, subscription="b"), 1)) == ["1"]
    consumers[0].close()
    first = other.create_consumer(topic, subscription="a")
    assert first.receive(SHORTLY_S) is None


def test_q18_a_message_that_ends_undelivered_can_be_read_with_its_reason(broker, connection):
    message, says = broker.dead(connection.create_session(CLIENT))
    assert message.body == b"late"
    assert {name: message.properties.get(name) for name in says} == says


def test_q19_a_consumer_holds_as_many_messages_as_its_flow_limit_and_others_get_the_rest(broker, connection, session):
    queue = broker.queue()
    send(session, queue, numbered(30))
    first, second = (connection.create_session(INDIVIDUAL).create_consumer(queue, flow_limit=10) for _ in range(2))
    held = receive(first, 10)
    with pytest.raises(UsageError, match="^E7502"):
        first.receive(0)
    assert len(set(bodies(held + receive(second, 10)))) == 20


def test_q19_without_prefetch_another_consumer_gets_the_next_message_or_it_is_refused(broker, connection, session):
    queue = broker.queue()
    send(session, queue, numbered(2))
    made = []

    def make():
        made.append(connection.create_session(CLIENT).create_consumer(queue, prefetch=False))

    if only_services(broker, "^E7541", make):
        assert bodies(receive(made[0], 1)) == ["1"]
        assert bodies(receive(session.create_consumer(queue), 1)) == ["2"]


# --- several programs: rule S5 ---


def test_s5_5_user_and_password_belong_to_the_factory(factory):
    with pytest.raises(TypeError):
        factory.create_connection("user", "password")


def test_q9_auto_acknowledges_each_message_before_the_program_dies(broker, session):
    queue = broker.queue()
    send(session, queue, numbered(3))
    with Program(broker, queue, AUTO, 1) as program:
        assert program.receive(2) == ["1", "2"]
        broker.acknowledged(queue, 1)
    assert [body for body, _ in rest(session, queue)] == ["3"]
