"""How far consumers of sessions fetch ahead, by the properties of a destination of the embedded broker."""

import pytest

from connectors.embedded import EmbeddedConnection
from connectors.messaging import AcknowledgeMode, ConnectionFactory
from correlator.connector import Place
from tests.connectors.embedded import QUEUE, TOPIC
from tests.connectors.test_messaging import bodies, receive

COUNT = 20


@pytest.fixture
def connection(broker):
    with ConnectionFactory(EmbeddedConnection, {"store": broker.store}).create_connection() as connection:
        yield connection


def filled(broker, destination=QUEUE, count=COUNT, **properties):
    if destination == QUEUE:
        broker.connection.create(destination, properties)
    broker.send(*map(str, range(count)), destination=destination)


def held(broker, destination=QUEUE):
    admin = broker.connection.administration()
    return sum(one.held for one in admin.consumers(destination))


def held_after_each(broker, consumer, count, destination=QUEUE):
    """How many messages the consumer has at hand after each of so many calls, which acknowledge what they return."""
    found = []
    for _ in range(count):
        receive(consumer, 1)
        found.append(held(broker, destination))
    return found


@pytest.mark.parametrize(("of_destination", "of_consumer"), [(4, 10), (10, 4), (4, 4), (-1, 4)])
def test_the_lower_of_both_limits_counts(broker, connection, of_destination, of_consumer):
    filled(broker, consumer_flow_limit=of_destination)
    consumer = connection.create_session().create_consumer(QUEUE, flow_limit=of_consumer)
    assert held_after_each(broker, consumer, 5) == [3, 2, 1, 3, 2]


def test_by_default_a_destination_allows_1000(broker, connection):
    filled(broker, count=1100)
    consumer = connection.create_session().create_consumer(QUEUE, flow_limit=2000)
    assert held_after_each(broker, consumer, 1) == [999]


def test_a_destination_without_a_limit_allows_more_than_the_default(broker, connection):
    filled(broker, count=1100, consumer_flow_limit=-1)
    consumer = connection.create_session().create_consumer(QUEUE, flow_limit=2000)
    assert held_after_each(broker, consumer, 1) == [1099]


@pytest.mark.parametrize(
    ("percent", "expected"),
    [(0, [3, 2, 1, 0, 3]), (26, [3, 2, 1, 3, 2]), (25, [3, 2, 1, 0, 3]), (75, [3, 2, 3, 2, 3]), (100, [3] * 5)],
)
def test_the_threshold_says_when_the_next_messages_are_fetched(broker, connection, percent, expected):
    filled(broker, consumer_flow_limit=4, consumer_flow_threshold_percent=percent)
    assert held_after_each(broker, connection.create_session().create_consumer(QUEUE), 5) == expected


def test_the_limit_of_a_destination_does_not_count_what_the_program_has_received(broker, connection):
    filled(broker, consumer_flow_limit=2)
    consumer = connection.create_session(AcknowledgeMode.CLIENT).create_consumer(QUEUE, flow_limit=10)
    received = receive(consumer, 9)
    assert bodies(received) == [str(number) for number in range(9)]
    assert held(broker) == 10  # its own limit counts both


def test_without_prefetch_nothing_is_fetched_ahead_whatever_the_destination_says(broker, connection):
    filled(broker, consumer_flow_limit=4, consumer_flow_threshold_percent=100)
    consumer = connection.create_session().create_consumer(QUEUE, prefetch=False)
    assert held_after_each(broker, consumer, 3) == [0, 0, 0]


def test_a_change_counts_for_later_consumers(broker, connection):
    filled(broker, consumer_flow_limit=4)
    first = connection.create_session().create_consumer(QUEUE)
    broker.connection.update(QUEUE, {"consumer_flow_limit": 2})
    assert held_after_each(broker, first, 1) == [3]
    first.close()
    assert held_after_each(broker, connection.create_session().create_consumer(QUEUE), 1) == [1]


def test_a_topic_has_the_limit_for_each_of_its_consumers(broker, connection):
    admin = broker.connection.administration()
    admin.create(TOPIC, {"consumer_flow_limit": "3"})
    admin.subscribe(Place(TOPIC, "all"), shared=True, selector=None)
    consumers = [
        connection.create_session().create_shared_durable_consumer(TOPIC, "all"),
        connection.create_session().create_consumer(TOPIC),
    ]
    filled(broker, TOPIC)
    for consumer in consumers:
        receive(consumer, 1)
    assert [one.held for one in admin.consumers(TOPIC)] == [2, 2]
