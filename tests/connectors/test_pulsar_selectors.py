"""Selectors over a real broker, which has none, and the fate of unselected messages (rules S4.1, S4.3, S2.4)."""

import contextlib
import os
import time

import pytest
from pulsar import Client, FileLogger, LoggerLevel

from correlator import Engine, Message, Monitor, on
from correlator.events import Outgoing
from correlator.settings import EngineSettings, MonitorSettings, ReceiverSettings, SenderSettings
from correlator.testing.contract import PATIENCE_S, bodies, take, tokens
from tests.connectors.rabbit import Seen, opened
from tests.pulsar_server import PulsarServer

pytestmark = pytest.mark.pulsar
ODD = "odd = TRUE"
QUIET_S = 0.3


def receiver(destination, selector, max_batch_size=1000, **options):
    return ReceiverSettings(
        id="r",
        connection="pulsar",
        destination=destination,
        selector=selector,
        max_batch_size=max_batch_size,
        options=options,
    )


def send(connection, destination, count):
    messages = [Message(b"%d" % number, {"odd": number % 2 == 1}) for number in range(count)]
    with opened(connection.sink(SenderSettings(id="s", connection="pulsar", destination=destination))) as sink:
        assert not any(sink.send([Outgoing(at, "", destination, message) for at, message in enumerate(messages)]))


def received(source, count):
    """Receive `count` messages and check that no more come; returns them and the number of unselected ones."""
    messages, unselected = [], 0
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        chunk = source.receive(1000, QUIET_S)
        unselected += chunk.unselected
        if not chunk.messages and len(messages) >= count:
            break
        messages += chunk.messages
        source.acknowledge(chunk.tokens)
    return messages, unselected


def bodies_of(messages):
    return [message.body for message in messages]


def drained(pulsar, topic, subscription, backlog):
    """Wait until the broker has processed the acknowledgements: until its backlog is `backlog`."""
    deadline = time.monotonic() + PATIENCE_S
    while (left := pulsar.subscriptions(topic)[subscription]["msgBacklog"]) != backlog:
        assert time.monotonic() < deadline, f"{left} and not {backlog}"


# --- what becomes of the rest ---


@pytest.mark.parametrize("kind", ["queue", "topic"])
def test_s4_3_where_others_share_the_subscription_it_is_left_to_them(pulsar: PulsarServer, kind):
    topic = pulsar.name()
    destination, subscription = f"{kind}:{topic}", {"queue": "jms-queue", "topic": "r"}[kind]
    connection = pulsar.connection()
    send(connection, destination, 10)
    with opened(connection.source(receiver(destination, ODD, subscription_type="shared"))) as source:
        messages, unselected = received(source, 5)
        assert bodies_of(messages) == [b"1", b"3", b"5", b"7", b"9"]
        assert unselected >= 5
        drained(pulsar, topic, subscription, 5)
    with opened(connection.source(receiver(destination, None, subscription_type="shared"))) as other:
        rest = take(other, 5)
        assert sorted(bodies(rest)) == [b"0", b"2", b"4", b"6", b"8"]
        other.acknowledge(tokens(rest))
        drained(pulsar, topic, subscription, 0)


@pytest.mark.parametrize(
    "options",
    [
        {"acknowledge_rejected_messages": True},
        {"subscription_type": "exclusive"},
        {"subscription_type": "failover"},
        {"subscription_type": "key_shared", "acknowledge_rejected_messages": True},
    ],
)
def test_s4_3_where_there_are_no_others_it_is_acknowledged(pulsar: PulsarServer, options):
    topic = pulsar.name()
    connection = pulsar.connection()
    send(connection, f"queue:{topic}", 10)
    with opened(connection.source(receiver(f"queue:{topic}", ODD, **options))) as source:
        messages, unselected = received(source, 5)
        assert bodies_of(messages) == [b"1", b"3", b"5", b"7", b"9"]
        assert unselected == 5
        drained(pulsar, topic, "jms-queue", 0)


def test_a_lone_consumer_does_not_turn_the_rest_round_and_round(pulsar: PulsarServer):
    """Each time a message stays away for longer: here 0.1 s, and then 10 s."""
    destination = f"queue:{pulsar.name()}"
    connection = pulsar.connection()
    send(connection, destination, 20)
    seldom = {"min_delay": "100ms", "max_delay": "1h", "multiplier": 100}
    with opened(connection.source(receiver(destination, "odd IS NULL", negative_ack_delay=seldom))) as source:
        unselected = 0
        deadline = time.monotonic() + PATIENCE_S
        while unselected < 40:
            assert time.monotonic() < deadline
            unselected += source.receive(1000, QUIET_S).unselected
        assert source.receive(1000, 1.0).unselected == 0


def test_a_call_returns_where_nothing_is_selected(pulsar: PulsarServer, monkeypatch):
    monkeypatch.setattr("connectors.pulsar.source.MOST_LEFT_OUT", 7)
    destination = f"queue:{pulsar.name()}"
    connection = pulsar.connection()
    send(connection, destination, 20)
    with opened(connection.source(receiver(destination, "odd IS NULL"))) as source:
        chunk = source.receive(1000, PATIENCE_S)
        assert (chunk.messages, chunk.unselected) == ((), 7)


# --- what a producer has packed into one entry ---


@contextlib.contextmanager
def packing(pulsar: PulsarServer, topic):
    """A function that sends `count` messages in one entry."""
    client = Client(pulsar.url, logger=FileLogger(LoggerLevel.Error, os.devnull))
    producer = client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=60_000)

    def send_packed(count):
        for number in range(count):
            content = {"odd": "true" if number % 2 else "false", "odd_jsmtype": "boolean"}
            producer.send_async(b"%d" % number, None, properties=content)
        producer.flush()

    try:
        yield send_packed
    finally:
        client.close()


def test_s2_5_what_is_selected_comes_once_although_the_broker_gives_whole_entries_again(pulsar: PulsarServer):
    topic = pulsar.name()
    destination = f"queue:{topic}"
    connection = pulsar.connection()
    with (
        opened(connection.source(receiver(destination, ODD, negative_ack_delay="100ms"))) as source,
        packing(pulsar, topic) as send_packed,
    ):
        send_packed(10)
        messages, unselected = received(source, 5)
        assert bodies_of(messages) == [b"1", b"3", b"5", b"7", b"9"]
        deadline = time.monotonic() + PATIENCE_S
        while unselected < 20:  # the entry has come four times
            assert time.monotonic() < deadline
            again, more = received(source, 0)
            assert again == []
            unselected += more


def test_what_is_held_while_its_entry_comes_again_is_acknowledged_by_the_name_that_it_has_now(pulsar: PulsarServer):
    """The broker deletes an entry when all messages of one delivery of it are acknowledged."""
    topic = pulsar.name()
    with (
        opened(pulsar.connection().source(receiver(f"queue:{topic}", None))) as source,
        packing(pulsar, topic) as send_packed,
    ):
        send_packed(4)
        chunks = [take(source, 1) for _ in range(4)]
        source.acknowledge(tokens(chunks[3]))
        source.reject(tokens(chunks[1]))
        again = take(source, 1)
        assert bodies(again) == [b"1"]
        source.acknowledge(tokens(again))
        assert not source.receive(10, QUIET_S).messages
        source.acknowledge(tokens(chunks[0] + chunks[2]))
        drained(pulsar, topic, "jms-queue", 0)


# --- engines ---

seen = Seen()


class Hears(Monitor):
    @on(Message)
    def one(self, message: Message) -> None:
        seen.add(message.body)


@pytest.mark.parametrize("kind", ["queue", "topic"])
def test_s2_4_an_engine_counts_what_it_leaves_out(pulsar: PulsarServer, kind):
    destination = f"{kind}:{pulsar.name()}"
    send(pulsar.connection(), destination, 10)
    seen.counts.clear()
    selective = receiver(destination, ODD, **({"acknowledge_rejected_messages": True} if kind == "queue" else {}))
    settings = EngineSettings(
        name="selects", receivers=(selective,), monitors=(MonitorSettings(type=f"{__name__}:Hears"),)
    )
    with Engine(settings, connections={"pulsar": pulsar.connection()}) as engine:
        seen.wait_for(5)
        deadline = time.monotonic() + PATIENCE_S
        while (counters := engine.status().receivers["r"][1]).unselected < 5:
            assert time.monotonic() < deadline
    assert set(seen.counts) == {b"1", b"3", b"5", b"7", b"9"}
    assert (counters.unselected, counters.delivered) == (5, 5)
