"""Receivers of several topics: of a list of topics, and of topics that match a pattern (rule S1.8)."""

import time

import pytest

from correlator.errors import ConnectionLost
from correlator.events import Message, Outgoing
from correlator.settings import ReceiverSettings, SenderSettings
from correlator.testing.contract import PATIENCE_S, bodies, take, tokens
from tests.connectors.rabbit import opened
from tests.pulsar_server import PulsarServer

pytestmark = pytest.mark.pulsar


def receiver(destination, **options):
    return ReceiverSettings(id="r", connection="pulsar", destination=destination, options=options)


def send(connection, topic, *contents):
    destination = f"topic:{topic}"
    batch = [Outgoing(at, "", destination, Message(content)) for at, content in enumerate(contents, 1)]
    with opened(connection.sink(SenderSettings(id="s", connection="pulsar", destination=destination))) as sink:
        assert not any(sink.send(batch))


def drained(pulsar, topic, namespace, subscription):
    deadline = time.monotonic() + PATIENCE_S
    while pulsar.subscriptions(topic, namespace)[subscription]["msgBacklog"]:
        assert time.monotonic() < deadline


@pytest.mark.parametrize(
    ("virtual", "subscription"),
    [
        ("topic:multi:a,b,c", "r"),
        ("queue:multi:a,b,c", "jms-queue"),
        ("queue:multi:a,b,persistent://{namespace}/c:mine", "mine"),
        ("topic:regex:[abc]", "r"),
        ("queue:regex:persistent://{namespace}/[a-c]", "jms-queue"),
    ],
)
def test_s1_8_all_of_several_topics(pulsar: PulsarServer, virtual, subscription):
    """Each message can be acknowledged and given back alone."""
    namespace = pulsar.namespace()
    connection = pulsar.connection(namespace=namespace)
    topics = ["a", "b", "c"]
    for topic in topics:
        send(connection, topic, *(f"{topic}{number}".encode() for number in range(3)))
    send(connection, "other", b"x")
    with opened(connection.source(receiver(virtual.format(namespace=namespace)))) as source:
        chunks = [take(source, 1)[0] for _ in range(9)]
        assert sorted(bodies(chunks)) == [f"{topic}{number}".encode() for topic in topics for number in range(3)]
        source.reject(tokens(chunks[4:5]))
        again = take(source, 1)
        assert bodies(again) == bodies(chunks[4:5])
        source.acknowledge(tokens(chunks[:4] + chunks[5:] + again))
        for topic in topics:
            drained(pulsar, topic, namespace, subscription)


def found(source):
    """The body of the next message. While a consumer subscribes to a topic that it has found, it may not be connected."""
    while True:
        try:
            return bodies(take(source, 1))
        except ConnectionLost:
            source.connect()


def test_s1_8_a_topic_that_is_made_later_is_found(pulsar: PulsarServer):
    namespace = pulsar.namespace()
    connection = pulsar.connection(namespace=namespace)
    settings = receiver("queue:regex:orders-.*", pattern_auto_discovery_period="1s")
    with opened(connection.source(settings)) as source:
        assert not source.receive(10, 0).messages
        send(connection, "orders-eu", b"1")
        assert found(source) == [b"1"]
        send(connection, "orders-us", b"2")
        assert found(source) == [b"2"]
