"""Reads messages without a group: the last ones of a source in a topic, and those of an open transaction."""

import time
from collections.abc import Iterator
from collections.abc import Set as AbstractSet

import confluent_kafka as kafka

from connectors.kafka.broker import KafkaBroker
from connectors.kafka.cluster import Topic
from connectors.kafka.content import headers_of
from connectors.kafka.failures import Complaints, lost, timed_out, translated
from connectors.kafka.log import LOG

_GROUP = "correlator-reader"
"""Name of a group, which consumers must have; this one commits nothing."""
_LOOK_S = 0.2


def last_numbers(where: str, broker: KafkaBroker, topic: Topic, source: str, first: int, most: int) -> AbstractSet[int]:
    """Return the numbers below `first + most` of a source's messages among the last ones of a topic.

    A sink has at most `most` unconfirmed messages, and each may be alone in its transaction, whose end takes an offset,
    too. So this reads twice as many offsets of each partition, up to the present end.

    Args:
        where: the sender, for errors.
        broker: the cluster.
        topic: the topic.
        source: the source id, with which the unique ids of its messages end.
        first: the number of the first message that the sender has not seen confirmed.
        most: how many messages the sender may have sent from `first` on.

    Raises `ConnectionLost`.
    """
    complaints = Complaints()
    consumer = kafka.Consumer(
        broker.of_consumer(_GROUP) | {"error_cb": complaints, "fetch.wait.max.ms": 10}, logger=LOG
    )
    try:
        with translated(where, broker, complaints):
            ends = {}
            for partition in range(topic.partitions):
                place = kafka.TopicPartition(topic.name, partition)
                low, high = consumer.get_watermark_offsets(place, broker.timeout_s)
                if high > low:
                    ends[partition] = high
                    place.offset = max(low, high - 2 * most)
                    consumer.incremental_assign([place])
            numbers = (_number(record, source) for record in _records(where, broker, consumer, topic.name, ends))
            return {number for number in numbers if 0 < number < first + most}
    finally:
        consumer.close()


def first_after(where: str, broker: KafkaBroker, place: kafka.TopicPartition) -> kafka.Message | None:
    """Return the first record from a place on, even of an open transaction; `None` if there is none. Raises
    `ConnectionLost`.
    """
    consumer = kafka.Consumer(broker.of_consumer(_GROUP) | {"isolation.level": "read_uncommitted"}, logger=LOG)
    try:
        with translated(where, broker):
            consumer.assign([place])
            record = consumer.poll(broker.timeout_s)
        return None if record is None or record.error() is not None else record
    finally:
        consumer.close()


def _records(
    where: str, broker: KafkaBroker, consumer: kafka.Consumer, topic: str, ends: dict[int, int]
) -> Iterator[kafka.Message]:
    """Yield the records up to these offsets."""
    deadline = time.monotonic() + broker.timeout_s
    while ends:
        record = consumer.poll(_LOOK_S)
        if record is not None and (error := record.error()) is not None:
            raise lost(where, error, broker)
        if record is not None:
            deadline = time.monotonic() + broker.timeout_s
            yield record
            if (record.offset() or 0) + 1 < ends.get(record.partition() or 0, 0):
                continue
        elif time.monotonic() > deadline:
            raise timed_out(f"the end of topic '{topic}' cannot be read; an open transaction may hold it back")
        places = consumer.position([kafka.TopicPartition(topic, partition) for partition in ends])
        ends = {place.partition: ends[place.partition] for place in places if place.offset < ends[place.partition]}


def _number(record: kafka.Message, source: str) -> int:
    """Return the number of a message if any header is a unique id of the source; else 0."""
    ending = f":{source}".encode()
    for _, value in headers_of(record):
        if value is not None and value.endswith(ending):
            number = value.removesuffix(ending)
            if number.isdigit():
                return int(number)
    return 0
