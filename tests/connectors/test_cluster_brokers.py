"""What the campaign of a cluster sees of its brokers: each message once, and a repeat where the broker has to drop it."""

import contextlib

import pytest

from correlator.events import Message, Outgoing
from correlator.settings import SenderSettings
from tests.connectors.rabbit import opened
from tests.harness.cluster.brokers import ITEMS, LINKS, ServerBroker, on_pulsar, on_rabbitmq
from tests.waiting import wait_until


def send(broker: ServerBroker, *numbers: int, source: str = "life") -> None:
    """Send messages with these numbers as an EXACTLY_ONCE sender does: a repeat has the same id and the same bytes."""
    settings = SenderSettings(id="s", connection="world", destination=LINKS, reliability="EXACTLY_ONCE")
    stamp = {"messageSourceId": "life"}
    messages = [
        Outgoing(at, source, LINKS, Message(b"%d" % number, {**stamp, "uniqueMessageId": f"{number}:life"}))
        for at, number in enumerate(numbers, 1)
    ]
    with opened(broker._connection.sink(settings)) as sink:
        assert sink.send(messages) == [None] * len(messages)


@pytest.mark.rabbitmq
def test_rabbitmq_has_repeats_and_a_consumer_drops_them(rabbit):
    with contextlib.closing(on_rabbitmq(rabbit)) as broker:
        broker.publish([Message(b"item")])
        send(broker, 1, 2, 3, 2)
        wait_until(lambda: broker.come == 3)
        assert broker.links() == [b"1", b"2", b"3"]
    with rabbit.channel() as channel:
        assert channel.queue_delete("items").method.message_count == 1
        channel.queue_delete("links")


@pytest.mark.pulsar
def test_pulsar_drops_repeats_and_one_that_it_stores_is_seen(pulsar):
    with contextlib.closing(on_pulsar(pulsar)) as broker:
        broker.publish([Message(b"item")])
        for _ in range(2):
            send(broker, 1, 2, 3)
        send(broker, 2, source="another")
        wait_until(lambda: broker.come == 3)
        assert broker.links() == [b"1", b"2", b"3", b"2"]
        with opened(broker._source(ITEMS, {})) as source:
            assert [message.body for message in source.receive(10, 5.0).messages] == [b"item"]
