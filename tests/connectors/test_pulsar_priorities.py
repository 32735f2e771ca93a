"""Priorities that change the order, over a real broker: the partition of a message, and the order (rule S4.5)."""

import contextlib
import os
from collections import Counter, defaultdict, deque

import pytest
from pulsar import Client, FileLogger, InitialPosition, LoggerLevel

from connectors.messaging import ConnectionFactory
from connectors.pulsar import PulsarConnection, source
from correlator.events import Headers, Message, Outgoing
from correlator.settings import ReceiverSettings, SenderSettings
from correlator.testing.contract import PATIENCE_S, bodies, outgoing, take, tokens
from correlator.testing.network import FaultProxy
from tests.connectors.rabbit import lost, lost_by, opened
from tests.connectors.test_messaging import receive
from tests.connectors.test_pulsar_selectors import ODD, received
from tests.pulsar_server import NAMESPACE, PulsarServer

pytestmark = pytest.mark.pulsar

PRIORITIES = range(10)
ADVERTISED = {"jms.priority": "enabled"}


def partitioned(pulsar: PulsarServer, partitions, namespace=NAMESPACE):
    """Make a topic with `partitions` partitions; returns its name."""
    topic = pulsar.name()
    pulsar.request("PUT", f"{pulsar.path(topic, namespace)}/partitions", partitions)
    return topic


def receiver(destination, **settings):
    return ReceiverSettings(id="r", connection="pulsar", destination=destination, **settings)


def send(connection, destination, messages, first=1):
    settings = SenderSettings(id="s", connection="pulsar", destination=destination)
    with opened(connection.sink(settings)) as sink:
        assert not any(sink.send(outgoing(destination, messages, "life", first)))


def of_priority(priority, body=b"", key=None, **properties):
    return Message(body or b"%d" % priority, properties, key, headers=Headers(priority=priority))


def each(times):
    """`times` messages of each priority, the lowest priority first."""
    return [of_priority(priority) for priority in PRIORITIES for _ in range(times)]


@contextlib.contextmanager
def raw_consumer(pulsar: PulsarServer, topic, namespace=NAMESPACE):
    client = Client(pulsar.url, logger=FileLogger(LoggerLevel.Error, os.devnull))
    try:
        name = f"persistent://{namespace}/{topic}"
        yield client.subscribe(name, "looks", initial_position=InitialPosition.Earliest)
    finally:
        client.close()


def contents(pulsar: PulsarServer, topic, count, namespace=NAMESPACE):
    """Partition and body of `count` messages; the messages of each partition are in order."""
    with raw_consumer(pulsar, topic, namespace) as consumer:
        messages = [consumer.receive(round(PATIENCE_S * 1000)) for _ in range(count)]
        return [(message.message_id().partition(), message.data()) for message in messages]


@pytest.fixture
def all_here(monkeypatch):
    """Keep the first consumer of a source waiting until `count` messages wait in the client."""

    receives = source._received

    def wait_for(count):
        here, missing, first = deque(), count, None

        def take_one(consumer, wait_ms):
            nonlocal missing, first
            first = first or consumer
            if consumer is not first:
                return receives(consumer, wait_ms)
            while missing:
                here.append(consumer.receive(round(PATIENCE_S * 1000)))
                missing -= 1
            return here.popleft() if here else receives(consumer, wait_ms)

        monkeypatch.setattr(source, "_received", take_one)

    return wait_for


# --- senders ---


@pytest.mark.parametrize(
    ("mapping", "partitions", "expected"),
    [
        ("linear", 20, [{2 * priority, 2 * priority + 1} for priority in PRIORITIES]),
        ("linear", 10, [{priority} for priority in PRIORITIES]),
        ("linear", 3, [{0}] * 4 + [{1}] + [{2}] * 5),
        ("non-linear", 20, [set(range(5))] * 4 + [set(range(5, 15))] + [set(range(15, 20))] * 5),
        ("non-linear", 4, [{0}] * 4 + [{1, 2}] + [{3}] * 5),
    ],
)
def test_s4_5_a_message_goes_to_a_partition_of_its_priority(pulsar: PulsarServer, mapping, partitions, expected):
    topic = partitioned(pulsar, partitions)
    send(pulsar.connection(priority_mapping=mapping), f"topic:{topic}", each(50))
    found = defaultdict(set)
    for partition, body in contents(pulsar, topic, 500):
        found[int(body)].add(partition)
    assert [found[priority] for priority in PRIORITIES] == expected


def test_s4_5_a_key_stays_in_order_within_its_priority(pulsar: PulsarServer):
    topic = partitioned(pulsar, 20)
    keys = [f"key {number % 5}" for number in range(100)]
    messages = [of_priority(number // 50 * 9, b"%d" % number, key) for number, key in enumerate(keys)]
    send(pulsar.connection(priority_mapping="non-linear"), f"topic:{topic}", messages)
    found = defaultdict(list)
    for partition, body in contents(pulsar, topic, 100):
        found[keys[int(body)], int(body) // 50].append((partition, int(body)))
    assert len(found) == 10
    for placed in found.values():
        assert len({partition for partition, _ in placed}) == 1
        assert placed == sorted(placed)
    assert len({placed[0][0] for placed in found.values()}) > 2


def test_s4_5_without_a_priority_it_is_the_default(pulsar: PulsarServer):
    topic = partitioned(pulsar, 10)
    send(pulsar.connection(priority_mapping="linear"), f"topic:{topic}", [b"1", b"2", of_priority(4), of_priority(99)])
    assert sorted(partition for partition, _ in contents(pulsar, topic, 4)) == [4, 4, 4, 9]


def test_s4_5_what_is_sent_again_after_a_crash_is_stored_once(pulsar: PulsarServer):
    """Each partition knows its own repeats only. With and without a key a repeat goes to the same partition."""
    namespace = pulsar.namespace(deduplication=True)
    topic = partitioned(pulsar, 20, namespace)
    messages = [of_priority(n % 10, b"%d" % n, f"key {n % 7}" if n % 2 else None) for n in range(200)]
    for count in (120, 200):
        connection = pulsar.connection(namespace=namespace, deduplication=True, priority_mapping="linear")
        send(connection, f"topic:{topic}", messages[:count])
    with opened(connection.source(receiver(f"topic:{topic}"))) as one:
        assert len(received(one, 200)[0]) == 200
    placed = contents(pulsar, topic, 200, namespace)
    assert sorted(int(body) for _, body in placed) == list(range(200))
    assert all(partition // 2 == int(body) % 10 for partition, body in placed)


def test_s4_5_what_was_under_way_when_the_connection_ended_is_stored_once(pulsar: PulsarServer):
    """A batch fails at its last message. Another process, which knows nothing of that, sends the batch again."""
    namespace = pulsar.namespace(deduplication=True)
    topic = partitioned(pulsar, 20, namespace)
    connection = pulsar.connection(namespace=namespace, deduplication=True, priority_mapping="linear")
    messages = [of_priority(n % 10, b"%d" % n, f"key {n % 7}" if n % 2 else None) for n in range(2000)]
    batch = outgoing(f"topic:{topic}", messages, "life")
    last = Outgoing(2001, "life", f"topic:persistent://public/{pulsar.name()}/nowhere", Message(b""))
    with opened(connection.sink(SenderSettings(id="s", connection="pulsar"))) as sink:
        assert lost(lambda: sink.send([*batch, last])).code == "E7010"
        assert 0 < len(sink._confirmed) <= 2000
    send(connection, f"topic:{topic}", messages)
    with opened(connection.source(receiver(f"topic:{topic}"))) as one:
        found, _ = received(one, 2000)
    assert Counter(int(message.body) for message in found) == Counter(range(2000))


# --- receivers ---


@pytest.mark.parametrize("mapping", ["linear", "non-linear"])
def test_s4_5_the_highest_priority_is_handed_out_first(pulsar: PulsarServer, all_here, mapping):
    destination = f"queue:{partitioned(pulsar, 20)}"
    connection = pulsar.connection(priority_mapping=mapping)
    messages = [of_priority(n // 10, b"%d" % n, "key") for n in range(100)]
    send(connection, destination, messages)
    all_here(100)
    with opened(connection.source(receiver(destination))) as one:
        chunks = [one.receive(30, PATIENCE_S) for _ in range(4)]
        one.acknowledge(tokens(chunks))
    assert [int(body) for body in bodies(chunks)] == sorted(range(100), key=lambda n: (-(n // 10), n))


def test_s4_5_also_of_a_topic_without_partitions_and_of_several(pulsar: PulsarServer, all_here):
    connection = pulsar.connection(priority_mapping="linear")
    topics = [pulsar.name(), partitioned(pulsar, 3)]
    for topic in topics:
        send(connection, f"topic:{topic}", each(2))
    all_here(40)
    with opened(connection.source(receiver(f"topic:multi:{','.join(topics)}"))) as one:
        found = [int(body) for body in bodies(take(one, 40))]
    assert found == sorted(found, reverse=True)


def test_s2_6_what_only_one_consumer_gets_comes_again_in_the_order_in_which_it_was_handed_out(
    pulsar: PulsarServer, all_here
):
    destination = f"topic:{partitioned(pulsar, 20)}"
    connection = pulsar.connection(priority_mapping="linear")
    with opened(connection.source(receiver(destination))) as one:
        send(connection, destination, each(1))
        all_here(10)
        chunks = [one.receive(2, PATIENCE_S) for _ in range(3)]
        one.reject(tokens(reversed(chunks)))
        again = take(one, 10)
    assert bodies(chunks) == [b"9", b"8", b"7", b"6", b"5", b"4"]
    assert bodies(again) == [b"%d" % priority for priority in reversed(PRIORITIES)]


def test_s4_5_a_session_gets_the_highest_first(pulsar: PulsarServer, all_here):
    """The session asks for one message at a time, while one message of each partition waits for it."""
    factory = ConnectionFactory(PulsarConnection, {**pulsar.options, "priority_mapping": "linear"})
    destination = f"queue:{partitioned(pulsar, 20)}"
    with factory.create_connection() as connection:
        session = connection.create_session()
        producer = session.create_producer(destination)
        for message in each(2):
            producer.send(message)
        all_here(20)
        found = [int(message.body) for message in receive(session.create_consumer(destination), 20)]
    assert found == sorted(found, reverse=True)


def test_s4_5_what_waits_is_bounded_and_comes_again(pulsar: PulsarServer, all_here):
    """Given a source that holds many messages and returned few, when it ends, then another one gets all others."""
    topic = pulsar.name()
    connection = pulsar.connection(priority_mapping="linear")
    send(connection, f"queue:{topic}", each(5))
    all_here(50)
    with opened(connection.source(receiver(f"queue:{topic}", max_batch_size=20))) as one:
        chunks = [one.receive(1, PATIENCE_S) for _ in range(3)]  # of 20 and of 2 that would wait in the client
        assert bodies(chunks) == [b"4", b"4", b"3"]
        one.acknowledge(tokens(chunks[:2]))
        chunks = [one.receive(1, PATIENCE_S) for _ in range(3)]  # two have come in the place of these
        assert bodies(chunks) == [b"4", b"4", b"3"]
    with opened(connection.source(receiver(f"queue:{topic}"))) as other:
        again, _ = received(other, 48)
    assert Counter(message.body for message in again) == {b"%d" % n: 3 if n == 4 else 5 for n in PRIORITIES}


def test_s4_5_what_waits_comes_again_after_the_connection_was_lost(pulsar: PulsarServer, all_here):
    destination = f"queue:{partitioned(pulsar, 10)}"
    send(pulsar.connection(), destination, each(2))
    with FaultProxy(pulsar.port) as proxy:
        through = pulsar.connection(service_url=f"pulsar://127.0.0.1:{proxy.port}", priority_mapping="linear")
        all_here(20)
        with opened(through.source(receiver(destination))) as one:
            assert bodies(take(one, 3)) == [b"9", b"9", b"8"]
            proxy.refuse()
            proxy.cut()
            lost_by(one)
            proxy.accept()
            one.connect()
            again, _ = received(one, 20)
    assert Counter(message.body for message in again) == {b"%d" % n: 2 for n in PRIORITIES}


def test_s4_5_each_message_is_acknowledged_by_itself_and_selected_before_it_waits(pulsar: PulsarServer, all_here):
    topic = pulsar.name()
    connection = pulsar.connection(priority_mapping="linear")
    messages = [of_priority(n % 10, b"%d" % n, odd=n % 20 >= 10) for n in range(40)]
    send(connection, f"queue:{topic}", messages)
    all_here(40)
    rejecting = {"acknowledge_rejected_messages": True}
    with opened(connection.source(receiver(f"queue:{topic}", selector=ODD, options=rejecting))) as one:
        chunks = [one.receive(1, PATIENCE_S) for _ in range(20)]
        assert [int(body) for body in bodies(chunks)] == [n for p in range(9, -1, -1) for n in (10 + p, 30 + p)]
        one.acknowledge(tokens(chunks[::2]))
        one.reject(tokens(chunks[3:4]))
    with opened(connection.source(receiver(f"queue:{topic}"))) as other:
        again, _ = received(other, 10)
    assert sorted(int(one.body) for one in again) == list(range(30, 40))


def test_s4_5_a_consumer_without_the_option_gets_everything(pulsar: PulsarServer):
    topic = partitioned(pulsar, 20)
    send(pulsar.connection(priority_mapping="linear"), f"queue:{topic}", each(10))
    with opened(pulsar.connection().source(receiver(f"queue:{topic}"))) as one:
        messages, _ = received(one, 100)
    assert sorted(message.headers.priority for message in messages) == [p for p in PRIORITIES for _ in range(10)]


def test_s4_5_without_the_option_nothing_is_overtaken(pulsar: PulsarServer, all_here):
    destination = f"queue:{pulsar.name()}"
    send(pulsar.connection(), destination, each(2))
    all_here(20)
    with opened(pulsar.connection().source(receiver(destination))) as one:
        assert bodies(take(one, 20)) == [message.body for message in each(2)]


# --- what is advertised ---


@pytest.mark.parametrize("mapping", ["linear", "non-linear", None])
def test_s4_5_producers_and_consumers_say_so(pulsar: PulsarServer, mapping):
    topic = pulsar.name()
    connection = pulsar.connection(**({"priority_mapping": mapping} if mapping else {}))
    sink = connection.sink(SenderSettings(id="s", connection="pulsar", destination=f"queue:{topic}"))
    with opened(sink), opened(connection.source(receiver(f"queue:{topic}"))):
        stats = pulsar.stats(topic)
    (publisher,), (consumer,) = stats["publishers"], stats["subscriptions"]["jms-queue"]["consumers"]
    assert publisher["metadata"] == ({**ADVERTISED, "jms.priorityMapping": mapping} if mapping else {})
    assert consumer["metadata"] == (ADVERTISED if mapping else {})
