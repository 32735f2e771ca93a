"""Subscriptions of a real broker: names, types, where they begin, messages that are given back, and limits."""

import time
from pathlib import Path

import pytest

from connectors.pulsar import sink as sinks
from correlator.events import Headers, Message, Outgoing
from correlator.settings import ReceiverSettings, SenderSettings
from correlator.testing.contract import PATIENCE_S, bodies, take, tokens
from tests.connectors.rabbit import codes, lost, opened
from tests.pulsar_server import PulsarServer
from tests.waiting import wait_until

pytestmark = pytest.mark.pulsar


def receiver(destination, name="r", **options):
    settings = {
        key: options.pop(key)
        for key in ("max_batch_size", "max_batch_bytes", "durable_topic_subscription_name")
        if key in options
    }
    return ReceiverSettings(id=name, connection="pulsar", destination=destination, options=options, **settings)


def sender(destination, **options):
    return SenderSettings(id="s", connection="pulsar", destination=destination, options=options)


def outgoing(destination, *contents, source="", first=1):
    return [Outgoing(number, source, destination, Message(body)) for number, body in enumerate(contents, first)]


def send(connection, destination, *contents, **numbers):
    with opened(connection.sink(sender(destination))) as sink:
        assert not any(sink.send(outgoing(destination, *contents, **numbers)))


def read(connection, destination, wanted, name="r", acknowledge=True, **options):
    """Read exactly `wanted` messages."""
    with opened(connection.source(receiver(destination, name, **options))) as source:
        chunks = take(source, wanted)
        if acknowledge:
            source.acknowledge(tokens(chunks))
        assert not source.receive(10, 0.2).messages
    return bodies(chunks)


# --- names, types, beginnings ---


def test_s1_1_the_client_id_begins_the_name_of_a_subscription(pulsar: PulsarServer):
    topic = pulsar.name()
    named = {"durable_topic_subscription_name": "s"}
    with (
        opened(pulsar.connection(client_id="c1").source(receiver(f"topic:{topic}", **named))),
        opened(pulsar.connection().source(receiver(f"topic:{topic}", **named))),
    ):
        assert sorted(pulsar.subscriptions(topic)) == ["c1_s", "s"]


def test_s1_3_a_name_on_two_topics_is_two_subscriptions(pulsar: PulsarServer):
    one, other = f"topic:{pulsar.name()}", f"topic:{pulsar.name()}"
    connection = pulsar.connection()
    send(connection, one, b"1")
    send(connection, other, b"a", b"b")
    assert read(connection, one, 1) == [b"1"]
    assert read(connection, other, 2) == [b"a", b"b"]


def test_s1_7_a_queue_is_one_subscription_of_all_and_a_topic_has_one_for_each(pulsar: PulsarServer):
    topic = pulsar.name()
    connection = pulsar.connection()
    with (
        opened(connection.source(receiver(f"queue:{topic}", "one"))),
        opened(connection.source(receiver(f"queue:{topic}", "two"))),
        opened(connection.source(receiver(f"topic:{topic}", "three"))),
        opened(connection.source(receiver(f"topic:{topic}", "four", subscription_type="failover"))),
    ):
        there = {
            name: (one["type"], len(one["consumers"]), one["durable"])
            for name, one in pulsar.subscriptions(topic).items()
        }
    assert there == {
        "jms-queue": ("Shared", 2, True),
        "three": ("Exclusive", 1, True),
        "four": ("Failover", 1, True),
    }


def test_a_queue_may_have_another_subscription_and_type(pulsar: PulsarServer):
    topic = pulsar.name()
    options = {"queue_subscription": "mine", "subscription_type": "key_shared"}
    with opened(pulsar.connection().source(receiver(f"queue:{topic}", **options))):
        ((name, one),) = pulsar.subscriptions(topic).items()
    assert (name, one["type"]) == ("mine", "Key_Shared")


@pytest.mark.parametrize(
    ("options", "its_type"), [({}, "Exclusive"), ({"subscription_type": "shared"}, "Shared")], ids=["usual", "shared"]
)
def test_s1_10_a_receiver_of_a_topic_is_alone_unless_its_subscription_is_shared(
    pulsar: PulsarServer, options, its_type
):
    topic = pulsar.name()
    with opened(pulsar.connection().source(receiver(f"topic:{topic}", **options))):
        (one,) = pulsar.subscriptions(topic).values()
    assert one["type"] == its_type


def test_s1_11_what_was_published_before_comes_unless_the_latest_is_asked_for(pulsar: PulsarServer):
    """Trap T37: what nobody has subscribed to may be gone."""
    destination = f"topic:{pulsar.name()}"
    connection = pulsar.connection()
    send(connection, destination, b"before")
    assert read(connection, destination, 1, "earliest") == [b"before"]
    assert read(connection, destination, 0, "latest", initial_position="latest") == []


def test_a_queue_keeps_what_nobody_has_subscribed_yet(pulsar: PulsarServer):
    """Without a subscription the broker would delete the message when it begins a new ledger, as after a restart."""
    topic = pulsar.name()
    send(pulsar.connection(), f"queue:{topic}", b"1")
    assert pulsar.subscriptions(topic)["jms-queue"]["msgBacklog"] == 1


def test_a_destination_may_name_its_namespace(pulsar: PulsarServer):
    namespace = pulsar.namespace()
    send(pulsar.connection(), f"queue:persistent://{namespace}/q", b"1")
    assert read(pulsar.connection(namespace=namespace), "queue:q", 1) == [b"1"]


def test_s1_6_a_subscription_that_the_broker_does_not_make(pulsar: PulsarServer):
    namespace = pulsar.namespace()
    connection = pulsar.connection(namespace=namespace, timeout_s=2)
    send(connection, "topic:t", b"1")
    allowed = f"namespaces/{namespace}/autoSubscriptionCreation"
    pulsar.request("POST", allowed, {"allowAutoSubscriptionCreation": False})
    source = connection.source(receiver("topic:t"))
    error = lost(source.connect)
    assert error.code == "E7023"
    assert "allowAutoSubscriptionCreation" in error.todo
    pulsar.request("PUT", f"{pulsar.path('t', namespace)}/subscription/r", {"ledgerId": -1, "entryId": -1})
    with opened(source):
        assert bodies(take(source, 1)) == [b"1"]


def test_179_an_exclusive_subscription_that_is_in_use(pulsar: PulsarServer):
    destination = f"topic:{pulsar.name()}"
    connection = pulsar.connection()
    with opened(connection.source(receiver(destination))):
        error = lost(connection.source(receiver(destination)).connect)
    assert error.code == "E7009"
    assert "in use" in str(error)


# --- receiving ---


@pytest.mark.parametrize("kind", ["queue", "topic"])
def test_what_was_given_back_comes_again_and_nothing_else(pulsar: PulsarServer, kind):
    destination = f"{kind}:{pulsar.name()}"
    connection = pulsar.connection()
    send(connection, destination, *(b"%d" % number for number in range(6)))
    with opened(connection.source(receiver(destination))) as source:
        first, second, third = (take(source, 2) for _ in range(3))
        source.reject(tokens(second))
        again = take(source, 2)
        assert sorted(bodies(again)) == [b"2", b"3"]
        assert all(message.headers.redelivered for chunk in again for message in chunk.messages)
        source.acknowledge(tokens(first + third + again))
        assert not source.receive(10, 0.2).messages
    assert read(connection, destination, 0) == []


def test_the_broker_knows_how_many_may_be_under_way(pulsar: PulsarServer):
    """There are no more than the source has returned, and a few that wait in the client."""
    topic = pulsar.name()
    connection = pulsar.connection()
    send(connection, f"queue:{topic}", *[b"x"] * 300)
    with opened(connection.source(receiver(f"queue:{topic}", max_batch_size=100))) as source:
        assert len(bodies(take(source, 100))) == 100
        assert not source.receive(10, 0.2).messages
        assert 100 <= pulsar.subscriptions(topic)["jms-queue"]["unackedMessages"] <= 110


def test_a_chunk_is_bounded_by_its_bytes(pulsar: PulsarServer):
    destination = f"queue:{pulsar.name()}"
    connection = pulsar.connection()
    send(connection, destination, *[b"x" * 1000] * 10)
    with opened(connection.source(receiver(destination, max_batch_bytes=3000))) as source:
        assert len(source.receive(10, PATIENCE_S).messages) <= 3


def test_what_a_message_tells_about_itself(pulsar: PulsarServer):
    destination = f"queue:{pulsar.name()}"
    connection = pulsar.connection()
    send(connection, destination, b"1", source="life", first=7)
    with opened(connection.source(receiver(destination))) as source:
        ((message,),) = (chunk.messages for chunk in take(source, 1))
    headers = message.headers or Headers()
    assert headers.message_id == "ID:7:life"
    assert (headers.redelivered, headers.delivery_count) == (False, 1)
    assert headers.timestamp


# --- sending ---


def test_partitions_hold_the_order_of_a_key_and_drop_repeats(pulsar: PulsarServer):
    namespace = pulsar.namespace(deduplication=True)
    pulsar.request("PUT", f"{pulsar.path('parts', namespace)}/partitions", 3)
    connection = pulsar.connection(namespace=namespace, deduplication=True)
    batch = [
        Outgoing(number, "life", "queue:parts", Message(b"%d" % number, {}, f"key {number % 5}"))
        for number in range(1, 61)
    ]
    for _ in range(2):
        with opened(connection.sink(sender("queue:parts"))) as sink:
            assert not any(sink.send(batch))
    with opened(connection.source(receiver("queue:parts"))) as source:
        messages = [message for chunk in take(source, 60) for message in chunk.messages]
        assert not source.receive(10, 0.2).messages
    for key in {message.key for message in messages}:
        numbers = [int(message.body) for message in messages if message.key == key]
        assert numbers == sorted(numbers)
    assert sorted(int(message.body) for message in messages) == list(range(1, 61))


def test_a_message_that_is_too_large_is_refused_alone(pulsar: PulsarServer):
    namespace = pulsar.namespace(deduplication=True)
    connection = pulsar.connection(namespace=namespace, deduplication=True)
    batch = outgoing("queue:q", b"1", b"x" * 6_000_000, b"3", source="life")
    with opened(connection.sink(sender("queue:q"))) as sink:
        results = sink.send(batch)
        assert codes(results) == [None, "E8106", None]
        assert results[1].where == "message 2:life"
        assert codes(sink.send(batch[1:2])) == ["E8106"]
    assert read(connection, "queue:q", 2) == [b"1", b"3"]


def test_179_a_topic_that_is_terminated_refuses_messages_and_others_go_on(pulsar: PulsarServer):
    topic, other = pulsar.name(), pulsar.name()
    connection = pulsar.connection()
    with opened(connection.sink(sender(f"queue:{topic}"))) as sink:
        assert codes(sink.send(outgoing(f"queue:{topic}", b"1"))) == [None]
        pulsar.request("POST", f"{pulsar.path(topic)}/terminate")
        assert lost(lambda: sink.send(outgoing(f"queue:{topic}", b"2"))).code == "E7025"
        sink.connect()
        batch = outgoing(f"queue:{topic}", b"2", b"3")
        batch[1] = outgoing(f"queue:{other}", b"other")[0]
        assert codes(sink.send(batch)) == ["E8102", None]
    assert read(connection, f"queue:{other}", 1) == [b"other"]


def test_179_a_topic_whose_schema_does_not_fit_refuses_messages(pulsar: PulsarServer):
    namespace = pulsar.namespace()
    pulsar.request("POST", f"namespaces/{namespace}/schemaValidationEnforced", True)
    schema = {"type": "STRING", "schema": "", "properties": {}}
    pulsar.request("POST", f"schemas/{namespace}/q/schema", schema)
    connection = pulsar.connection(namespace=namespace)
    with opened(connection.sink(sender(None))) as sink:
        assert codes(sink.send(outgoing("queue:q", b"1"))) == ["E8102"]


def test_messages_to_what_is_not_there(pulsar: PulsarServer):
    with opened(pulsar.connection().sink(sender(None))) as sink:
        missing = "queue:persistent://public/nowhere/q"
        assert codes(sink.send(outgoing(missing, b"1", b"2"))) == ["E8101", "E8101"]
        assert codes(sink.send(outgoing("nonsense", b"1"))) == ["E8104"]


def test_numbers_begin_at_1_where_repeats_are_dropped(pulsar: PulsarServer):
    namespace = pulsar.namespace(deduplication=True)
    connection = pulsar.connection(namespace=namespace, deduplication=True)
    with opened(connection.sink(sender("queue:q"))) as sink:
        assert codes(sink.send(outgoing("queue:q", b"0", b"1", source="life", first=0))) == ["E8105", None]


def test_s5_6_a_sink_has_a_bounded_number_of_producers(pulsar: PulsarServer, monkeypatch):
    monkeypatch.setattr(sinks, "MOST_PRODUCERS", 2)
    names = [pulsar.name() for _ in range(5)]
    with opened(pulsar.connection().sink(sender(None))) as sink:
        for name in names:
            assert codes(sink.send(outgoing(f"queue:{name}", b"1"))) == [None]
        assert sum(len(pulsar.stats(name)["publishers"]) for name in names) == 2


def test_what_is_there_does_not_wait_for_more(pulsar: PulsarServer):
    destination = f"queue:{pulsar.name()}"
    send(pulsar.connection(), destination, b"1")
    with opened(pulsar.connection().source(receiver(destination))) as source:
        begun = time.monotonic()
        assert bodies([source.receive(10, PATIENCE_S)]) == [b"1"]
        assert time.monotonic() - begun < PATIENCE_S


def test_clients_leave_no_threads(pulsar: PulsarServer):
    """This includes the client's own threads, which Python does not know. They end a moment after `close`."""
    connection = pulsar.connection()
    destination = f"queue:{pulsar.name()}"
    send(connection, destination, b"1")
    read(connection, destination, 1)

    def in_use():
        return [len(list(Path("/proc/self", one).iterdir())) for one in ("task", "fd")]

    before = in_use()
    for _ in range(3):
        send(connection, destination, b"1")
        read(connection, destination, 1)
    wait_until(lambda: all(now <= then for now, then in zip(in_use(), before, strict=True)))
