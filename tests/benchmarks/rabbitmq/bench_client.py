"""The connector against bare pika, on the same server: publishing with confirms, and consuming with acknowledgements.

Bare pika is a loop in callbacks of its fastest adapter, with the same window of confirms, the same prefetch count and the
same cumulative acknowledgements, which makes nothing of what it receives. Both run in turn, several rounds; the ratio of
each round is printed, and its median. The server takes most of the time: so the processor time that the client needs for
a message is told, too.

    python -m tests.benchmarks.rabbitmq.bench_client [--messages 30000] [--rounds 5] [--queue-type quorum] [--profile]
"""

import argparse
import cProfile
import pstats
from collections.abc import Callable
from typing import Any

import pika
from pika import spec

from connectors.rabbitmq import RabbitConnection
from connectors.rabbitmq.confirms import MOST_OUTSTANDING
from correlator.events import Message, Outgoing
from correlator.settings import ReceiverSettings, SenderSettings
from tests.benchmarks.comparison import BODY, Result, Stopwatch, compare
from tests.rabbit_server import RabbitServer

PREFETCH = 1000


class Bare:
    """A connection of pika with one channel, that runs until its callbacks stop it."""

    def __init__(self, server: RabbitServer, count: int, begin: Callable[["Bare"], None]) -> None:
        self.count = count
        self.done = 0
        self.published = 0
        self.channel: Any = None
        self._begin = begin
        credentials = pika.PlainCredentials(server.user, server.password)
        parameters = pika.ConnectionParameters("127.0.0.1", server.port, credentials=credentials)
        self.connection = pika.SelectConnection(
            parameters,
            on_open_callback=lambda connection: connection.channel(on_open_callback=self._opened),
            on_close_callback=lambda connection, _: connection.ioloop.stop(),
        )

    def _opened(self, channel: Any) -> None:
        self.channel = channel
        self._stopwatch = Stopwatch()
        self._begin(self)

    def run(self) -> Result:
        """What it took."""
        self.connection.ioloop.start()
        self.connection.ioloop.close()
        return self.result

    def stop(self) -> None:
        """All is done."""
        self.result = self._stopwatch.result(self.count)
        self.connection.close()


def bare_publish(server: RabbitServer, queue: str, count: int) -> Result:
    """Keep the window of confirms full."""

    def begin(bare: Bare) -> None:
        bare.channel.confirm_delivery(lambda notice: confirmed(bare, notice.method), callback=lambda _: publish(bare))

    def publish(bare: Bare) -> None:
        while bare.published < bare.count and bare.published - bare.done < MOST_OUTSTANDING:
            bare.published += 1
            number = bare.published
            properties = pika.BasicProperties(
                delivery_mode=2,
                message_id=f"ID:{number}:bench",
                headers={"uniqueMessageId": f"{number}:bench", "messageSourceId": "bench"},
            )
            bare.channel.basic_publish("", queue, BODY, properties, mandatory=True)

    def confirmed(bare: Bare, method: Any) -> None:
        assert isinstance(method, spec.Basic.Ack)
        bare.done = max(bare.done, method.delivery_tag) if method.multiple else bare.done + 1
        if bare.done == bare.count:
            bare.stop()
        else:
            publish(bare)

    return Bare(server, count, begin).run()


def bare_consume(server: RabbitServer, queue: str, count: int) -> Result:
    """Acknowledge whenever the prefetch count is used up, as a receiver's batch does."""

    def begin(bare: Bare) -> None:
        bare.channel.basic_qos(prefetch_count=PREFETCH)
        bare.channel.basic_consume(queue, lambda channel, method, *_: received(bare, channel, method))

    def received(bare: Bare, channel: Any, method: Any) -> None:
        bare.done += 1
        if not bare.done % PREFETCH:
            channel.basic_ack(method.delivery_tag, multiple=True)
        if bare.done == bare.count:
            bare.stop()

    return Bare(server, count, begin).run()


def publish(connection: RabbitConnection, queue: str, count: int, batch_size: int) -> Result:
    """By the sink, batch after batch."""
    destination = f"queue:{queue}"
    sink = connection.sink(SenderSettings(id="s", connection="r", destination=destination, reliability="EXACTLY_ONCE"))
    sink.connect()
    batches = [
        [
            Outgoing(
                number,
                "bench",
                destination,
                Message(BODY, {"uniqueMessageId": f"{number}:bench", "messageSourceId": "bench"}),
            )
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


def consume(connection: RabbitConnection, queue: str, count: int) -> Result:
    """By the source, batch after batch, each message decoded."""
    settings = ReceiverSettings(id="r", connection="r", destination=f"queue:{queue}", max_batch_size=PREFETCH)
    source = connection.source(settings)
    source.connect()
    stopwatch = Stopwatch()
    for _ in range(0, count, PREFETCH):
        tokens, missing = [], PREFETCH
        while missing:
            chunk = source.receive(missing, 10.0)
            assert chunk.messages
            tokens.extend(chunk.tokens)
            missing -= len(chunk.messages)
        source.acknowledge(tokens)
    result = stopwatch.result(count)
    source.close()
    return result


def main() -> None:
    """All comparisons on one server."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--messages", type=int, default=30_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--queue-type", default="classic")
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    server, count = RabbitServer(), options.messages // PREFETCH * PREFETCH
    try:
        server.start()
        connection = server.connection(queue_type=options.queue_type)
        queue = server.queue()
        publish(connection, queue, 1000, 1000)
        consume(connection, queue, 1000)
        if options.profile:
            profiler = cProfile.Profile()
            profiler.runcall(publish, connection, queue, count, 5000)
            profiler.runcall(consume, connection, queue, count)
            pstats.Stats(profiler).sort_stats("tottime").print_stats(25)
            return

        def empty() -> None:
            with server.channel() as channel:
                channel.queue_purge(queue)

        def fill() -> None:
            empty()
            bare_publish(server, queue, count)

        for batch in (500, 5000):
            compare(
                f"publish, batches of {batch}",
                options.rounds,
                lambda: bare_publish(server, queue, count),
                lambda batch=batch: publish(connection, queue, count, batch),
                before=empty,
            )
        compare(
            f"consume, batches of {PREFETCH}",
            options.rounds,
            lambda: bare_consume(server, queue, count),
            lambda: consume(connection, queue, count),
            before=fill,
        )
    finally:
        server.close()


if __name__ == "__main__":
    main()
