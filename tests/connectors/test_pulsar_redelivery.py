"""Redelivery: when, how often, with which marks, and the topic of dead letters (rules S2.1 to S2.3, S2.7)."""

import itertools
import time

import pytest

from connectors.pulsar.redelivery import RedeliveryBackoff
from connectors.pulsar.unsettled import MOST_REMEMBERED, Arrival, PulsarPosition, Unsettled
from correlator.events import Message, Outgoing
from correlator.settings import ReceiverSettings, SenderSettings
from correlator.testing.contract import PATIENCE_S, bodies, take, tokens
from tests.connectors.rabbit import opened
from tests.pulsar_server import PulsarServer

QUIET_S = 0.3


def receiver(destination, name="r", **options):
    return ReceiverSettings(id=name, connection="pulsar", destination=destination, max_batch_size=10, options=options)


def send(connection, destination, *contents):
    batch = [Outgoing(at, "", destination, Message(content)) for at, content in enumerate(contents, 1)]
    with opened(connection.sink(SenderSettings(id="s", connection="pulsar", destination=destination))) as sink:
        assert not any(sink.send(batch))


def given_back(source, count):
    """Take one message and give it back, `count` times; returns the time and the headers of each delivery."""
    deliveries = []
    for _ in range(count):
        (chunk,) = take(source, 1)
        deliveries.append((time.monotonic(), chunk.messages[0].headers))
        source.reject(chunk.tokens)
    return deliveries


def nothing_more(source, pulsar, topic):
    """Wait until the subscription is empty; checks that the source gets no message meanwhile."""
    deadline = time.monotonic() + PATIENCE_S
    while pulsar.subscriptions(topic)["jms-queue"]["msgBacklog"]:
        assert time.monotonic() < deadline
        assert not source.receive(10, QUIET_S).messages


def given_by_the_broker(pulsar, topic, count):
    """Wait until the broker has sent `count` messages to the only consumer, which asks for one when one is taken."""
    deadline = time.monotonic() + PATIENCE_S
    while pulsar.subscriptions(topic)["jms-queue"]["consumers"][0]["unackedMessages"] < count:
        assert time.monotonic() < deadline


# --- over a real broker ---


@pytest.mark.pulsar
def test_s2_1_what_comes_too_often_goes_to_another_topic(pulsar: PulsarServer):
    topic, dead = pulsar.name(), pulsar.name()
    connection = pulsar.connection()
    send(connection, f"queue:{topic}", b"poison")
    policy = {"max_redeliver_count": 1, "dead_letter_topic": dead, "initial_subscription_name": "jms-queue"}
    with opened(connection.source(receiver(f"queue:{topic}", dead_letter_policy=policy))) as source:
        given_back(source, 2)
        nothing_more(source, pulsar, topic)
    assert pulsar.subscriptions(dead)["jms-queue"]["msgBacklog"] == 1  # kept, though nobody has taken from it
    with opened(connection.source(receiver(f"queue:{dead}"))) as source:
        assert bodies(take(source, 1)) == [b"poison"]


@pytest.mark.pulsar
def test_s2_1_the_topic_has_a_name_by_default(pulsar: PulsarServer):
    topic = pulsar.name()
    connection = pulsar.connection()
    send(connection, f"queue:{topic}", b"poison")
    with opened(connection.source(receiver(f"queue:{topic}", dead_letter_policy={"max_redeliver_count": 1}))) as source:
        given_back(source, 2)
        nothing_more(source, pulsar, topic)
    with opened(connection.source(receiver(f"queue:{topic}-jms-queue-DLQ"))) as source:
        assert bodies(take(source, 1)) == [b"poison"]


@pytest.mark.pulsar
def test_s2_3_what_is_given_back_stays_away_longer_each_time(pulsar: PulsarServer):
    destination = f"queue:{pulsar.name()}"
    connection = pulsar.connection()
    send(connection, destination, b"1")
    backoff = {"min_delay": "100ms", "max_delay": "700ms", "multiplier": 3}
    with opened(connection.source(receiver(destination, negative_ack_delay=backoff))) as source:
        times = [when for when, _ in given_back(source, 5)]
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    wanted = [0.1, 0.3, 0.7, 0.7]
    assert all(least <= gap < PATIENCE_S for least, gap in zip(wanted, gaps, strict=True)), gaps
    assert gaps[3] < 2.5, "it grows beyond max_delay: this would be 2.7 s"


@pytest.mark.pulsar
def test_s2_3_one_delay_for_all_times(pulsar: PulsarServer):
    destination = f"queue:{pulsar.name()}"
    connection = pulsar.connection()
    send(connection, destination, b"1")
    with opened(connection.source(receiver(destination, negative_ack_delay="400ms"))) as source:
        times = [when for when, _ in given_back(source, 3)]
    assert all(later - earlier >= 0.4 for earlier, later in itertools.pairwise(times))


@pytest.mark.pulsar
def test_s2_7_deliveries_are_counted(pulsar: PulsarServer):
    destination = f"queue:{pulsar.name()}"
    connection = pulsar.connection()
    send(connection, destination, b"1")
    with opened(connection.source(receiver(destination))) as source:
        told = [(headers.redelivered, headers.delivery_count) for _, headers in given_back(source, 3)]
    assert told == [(False, 1), (True, 2), (True, 3)]


@pytest.mark.pulsar
def test_s2_2_what_is_held_too_long_comes_to_another_consumer(pulsar: PulsarServer):
    """The first consumer may still acknowledge it. It has no room for more: its second message waits in its client."""
    topic = pulsar.name()
    destination = f"queue:{topic}"
    connection = pulsar.connection(ack_timeout="10s")
    send(connection, destination, b"1", b"2", b"3")
    with opened(connection.source(receiver(destination, "holds"))) as holder:
        held = take(holder, 1)
        given_by_the_broker(pulsar, topic, 2)
        begun = time.monotonic()
        with opened(pulsar.connection().source(receiver(destination, "other"))) as other:
            again = take(other, 2)
            assert time.monotonic() - begun > 9
            assert bodies(again) == [b"3", b"1"]
            assert again[-1].messages[-1].headers.delivery_count == 2
            other.acknowledge(tokens(again))
            holder.acknowledge(tokens(held))
            rest = take(holder, 1)
            assert bodies(rest) == [b"2"]
            holder.acknowledge(tokens(rest))
            assert not holder.receive(10, QUIET_S).messages


# --- pure ---


def test_s2_3_a_backoff_grows_and_has_an_end():
    backoff = RedeliveryBackoff(min_delay_s=0.1, max_delay_s=5, multiplier=10)
    assert [backoff.delay_s(count) for count in (0, 1, 2, 10**9)] == [0.1, 1.0, 5.0, 5.0]
    assert RedeliveryBackoff(min_delay_s=1, max_delay_s=1, multiplier=1).delay_s(7) == 1


def at(entry, batch_index=-1):
    return PulsarPosition(1, entry, batch_index, -1)


def unsettled(*positions, taken_back=False):
    made = Unsettled(taken_back=taken_back)
    for position in positions:
        assert made.arrived(position, f"first {position}") is Arrival.NEW
    return made


def test_what_comes_again_and_was_not_given_back_is_unexpected():
    assert unsettled(at(1)).arrived(at(1), "again") is Arrival.UNEXPECTED
    assert unsettled(at(1)).arrived(at(2), "other") is Arrival.NEW


def test_what_the_broker_takes_back_is_still_held_under_another_name():
    one = unsettled(at(1), taken_back=True)
    assert one.arrived(at(1), "again") is Arrival.STILL_HELD
    assert one.acknowledged(at(1)) == "again"


def test_what_was_acknowledged_may_come_again_where_it_has_an_entry_to_itself():
    """The broker may not have the acknowledgement."""
    one = unsettled(at(1))
    one.acknowledged(at(1))
    assert one.arrived(at(1), "again") is Arrival.NEW


def test_an_entry_that_is_given_back_comes_again_as_a_whole():
    one = unsettled(at(1, 0), at(1, 1), at(1, 2), at(2, 0))
    one.acknowledged(at(1, 0))
    one.given_back(at(1, 1), 0)
    assert list(one.leaving(0)) == [f"first {at(1, 1)}"]
    assert one.arrived(at(1, 0), "again") is Arrival.DONE
    assert one.arrived(at(1, 1), "again") is Arrival.NEW
    assert one.arrived(at(1, 2), "again") is Arrival.STILL_HELD
    assert one.acknowledged(at(1, 2)) == "again"
    assert one.arrived(at(2, 0), "again") is Arrival.UNEXPECTED


def test_what_is_given_back_leaves_when_its_time_has_come():
    one = unsettled(at(1), at(2), at(3))
    assert one.next_due() is None
    for position, due in ((at(1), 30), (at(2), 10), (at(3), 20)):
        one.given_back(position, due)
    assert one.next_due() == 10
    assert list(one.leaving(9)) == []
    assert list(one.leaving(20)) == [f"first {at(2)}", f"first {at(3)}"]
    assert one.next_due() == 30


def test_what_comes_again_by_itself_does_not_leave():
    one = unsettled(at(1))
    one.given_back(at(1), 10)
    assert one.arrived(at(1), "again") is Arrival.NEW
    assert list(one.leaving(10)) == []
    assert one.acknowledged(at(1)) == "again"


def test_what_is_remembered_is_bounded_and_what_comes_again_counts_as_new():
    one = unsettled(*(at(1, index) for index in range(MOST_REMEMBERED + 2)))
    for index in range(MOST_REMEMBERED):
        one.acknowledged(at(1, index))
    assert one.arrived(at(1, 0), "again") is Arrival.DONE
    for index in range(MOST_REMEMBERED, MOST_REMEMBERED + 2):
        one.acknowledged(at(1, index))
    assert one.arrived(at(1, 0), "again") is Arrival.DONE
    assert one.arrived(at(1, 1), "again") is Arrival.NEW
