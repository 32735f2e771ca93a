"""The connector against Pulsar's bare client, on the same broker: publishing with confirms, consuming with acknowledgements.

The bare client does what its documentation shows: `send_async` with its default settings, waiting only when a thousand
messages are not confirmed, and `receive` and `acknowledge` for each message. The messages have 256 bytes and the
properties of an EXACTLY_ONCE sender, no others where the bare client sends them; once it also sends those four that make
a message of it to JMS, which the connector always does. It makes nothing of what it receives.
Both run in turn, several rounds; the ratio of each round is printed, and its median. Broker and client share the
processor: so the processor time that the client needs for a message is told, too.

    python -m tests.benchmarks.pulsar.bench_client [--messages 30000] [--rounds 5] [--profile]
"""

import argparse
import cProfile
import os
import pstats
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pulsar

from connectors.pulsar import PulsarConnection
from connectors.pulsar.destinations import QUEUE_SUBSCRIPTION
from connectors.pulsar.flight import MOST_OUTSTANDING
from correlator import Reliability
from correlator.events import Message, Outgoing
from correlator.settings import ReceiverSettings, SenderSettings
from tests.benchmarks.comparison import BODY, Result, Stopwatch, compare
from tests.pulsar_server import NAMESPACE, PulsarServer
from tests.servers import running

BATCH = 1000
PATIENCE_S = 600.0
NOWHERE = pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull)


@contextmanager
def bare_client(server: PulsarServer) -> Iterator[pulsar.Client]:
    """A client with its default settings."""
    client = pulsar.Client(server.url, logger=NOWHERE)
    try:
        yield client
    finally:
        client.close()


def topic_of(name: str, namespace: str = NAMESPACE) -> str:
    """The full name."""
    return f"persistent://{namespace}/{name}"


def properties_of(number: int) -> dict[str, str]:
    """What an EXACTLY_ONCE sender puts into a message."""
    return {"uniqueMessageId": f"{number}:bench", "messageSourceId": "bench"}


def properties_of_jms(number: int) -> dict[str, str]:
    """These, and what the connector puts into it."""
    return {
        **properties_of(number),
        "JMSMessageId": f"ID:{number}:bench",
        "JMSConnectionID": "0123456789abcdef0123456789abcdef",
        "JMSDeliveryTime": "1790000000000",
        "JMSPulsarMessageType": "bytes",
    }


class Confirms:
    """Those of so many messages, told by the client's threads."""

    def __init__(self, count: int) -> None:
        self._left = count
        self._all = threading.Event()

    def one(self, result: Any, _: object) -> None:
        """One of them."""
        assert result == pulsar.Result.Ok
        self._left -= 1
        if not self._left:
            self._all.set()

    def wait(self) -> None:
        """For the last one."""
        assert self._all.wait(PATIENCE_S), f"{self._left} messages are not confirmed"


def bare_publish(
    server: PulsarServer, name: str, count: int, properties: Callable[[int], dict[str, str]] = properties_of
) -> Result:
    """As fast as the client takes them."""
    with bare_client(server) as client:
        producer = client.create_producer(
            topic_of(name), max_pending_messages=MOST_OUTSTANDING, block_if_queue_full=True
        )
        confirms = Confirms(count)
        stopwatch = Stopwatch()
        for number in range(count):
            producer.send_async(BODY, confirms.one, properties=properties(number))
        confirms.wait()
        return stopwatch.result(count)


def bare_consume(server: PulsarServer, name: str, count: int) -> Result:
    """One after the other."""
    with bare_client(server) as client:
        consumer = client.subscribe(topic_of(name), QUEUE_SUBSCRIPTION, consumer_type=pulsar.ConsumerType.Shared)
        stopwatch = Stopwatch()
        for _ in range(count):
            message = consumer.receive(10_000)
            assert message.data()
            consumer.acknowledge(message)
        return stopwatch.result(count)


def publish(connection: PulsarConnection, name: str, count: int, batch_size: int) -> Result:
    """By the sink, batch after batch."""
    destination = f"queue:{name}"
    sink = connection.sink(
        SenderSettings(id="s", connection="p", destination=destination, reliability=Reliability.EXACTLY_ONCE)
    )
    sink.connect()
    batches = [
        [
            Outgoing(number, "bench", destination, Message(BODY, dict(properties_of(number))))
            for number in range(first, min(first + batch_size, count))
        ]
        for first in range(0, count, batch_size)
    ]
    stopwatch = Stopwatch()
    for batch in batches:
        assert not any(sink.send(batch))
    result = stopwatch.result(count)
    sink.close()
    return result


def consume(connection: PulsarConnection, name: str, count: int, batch_size: int) -> Result:
    """By the source, batch after batch, each message decoded."""
    settings = ReceiverSettings(id="r", connection="p", destination=f"queue:{name}", max_batch_size=batch_size)
    source = connection.source(settings)
    source.connect()
    stopwatch = Stopwatch()
    left = count
    while left:
        chunk = source.receive(min(left, batch_size), 10.0)
        assert chunk.messages
        source.acknowledge(chunk.tokens)
        left -= len(chunk.messages)
    result = stopwatch.result(count)
    source.close()
    return result


def main() -> None:
    """All comparisons on one broker."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--messages", type=int, default=30_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    count = options.messages
    with running(PulsarServer()) as server:
        connection = server.connection()

        def filled() -> str:
            name = server.name()
            publish(connection, name, count, 5000)
            return name

        name = filled()
        consume(connection, name, count, BATCH)
        bare_publish(server, name, count)
        bare_consume(server, name, count)
        if options.profile:
            profiler = cProfile.Profile()
            profiler.runcall(publish, connection, name, count, 5000)
            profiler.runcall(consume, connection, name, count, BATCH)
            pstats.Stats(profiler).sort_stats("tottime").print_stats(30)
            return

        def bare_publishing(properties: Callable[[int], dict[str, str]]) -> Result:
            return bare_publish(server, server.name(), count, properties)

        def publishing(batch: int) -> Result:
            return publish(connection, server.name(), count, batch)

        def bare_consuming() -> Result:
            return bare_consume(server, filled(), count)

        def consuming(batch: int) -> Result:
            return consume(connection, filled(), count, batch)

        for batch in (500, 5000):
            for what, properties in (("", properties_of), (", the same properties", properties_of_jms)):
                title = f"publish, batches of {batch}{what}"
                compare(title, options.rounds, partial(bare_publishing, properties), partial(publishing, batch))
        for batch in (1000, 5000):
            compare(f"consume, batches of {batch}", options.rounds, bare_consuming, partial(consuming, batch))


if __name__ == "__main__":
    main()
