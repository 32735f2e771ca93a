"""A client of RabbitMQ, with pika; arguments are port, user and password.

Singly it uses the blocking adapter, which waits for the confirm of each message. A batch is confirmed as a whole: the
next one leaves when the last confirm has come. RabbitMQ does not answer acknowledgements: receiving ends when it has
answered a later command, so it has read them all by then.
"""

import sys
from functools import partial
from typing import Any, NamedTuple

import pika
from pika.adapters.blocking_connection import BlockingChannel

from tests.benchmarks.rabbitmq.bench_client import Bare
from tests.benchmarks.service.clients import BODY, QUEUE, Answer, delay_ms, now, pause, serve, timed_body

PREFETCH = 1000
_PERSISTENT = pika.BasicProperties(delivery_mode=2)


class Server(NamedTuple):
    """Where it is."""

    port: int
    user: str
    password: str

    def connect(self) -> pika.BlockingConnection:
        """A connection of the blocking adapter."""
        credentials = pika.PlainCredentials(self.user, self.password)
        return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", self.port, credentials=credentials))


def declared(connection: pika.BlockingConnection) -> BlockingChannel:
    """A channel, with the queue."""
    channel = connection.channel()
    channel.queue_declare(QUEUE, durable=True)
    return channel


def produce(server: Server, count: int, batch: int) -> Answer:
    """The confirm of a message is waited for before the next one, or that of a batch before the next batch."""
    with server.connect() as connection:
        channel = declared(connection)
        if batch == 1:
            channel.confirm_delivery()
            begin = now()
            for _ in range(count):
                channel.basic_publish("", QUEUE, BODY, _PERSISTENT, mandatory=True)
            return begin, now()
    return _produce_batches(server, count, batch)


def _produce_batches(server: Server, count: int, batch: int) -> Answer:
    begin = end = 0

    def start(bare: Bare) -> None:
        bare.channel.confirm_delivery(lambda frame: confirmed(bare, frame.method), callback=lambda _: first(bare))

    def first(bare: Bare) -> None:
        nonlocal begin
        begin = now()
        publish(bare)

    def publish(bare: Bare) -> None:
        size = min(batch, count - bare.published)
        bare.published += size
        for _ in range(size):
            bare.channel.basic_publish("", QUEUE, BODY, _PERSISTENT, mandatory=True)

    def confirmed(bare: Bare, method: Any) -> None:
        nonlocal end
        assert isinstance(method, pika.spec.Basic.Ack)
        bare.done = max(bare.done, method.delivery_tag) if method.multiple else bare.done + 1
        if bare.done == count:
            end = now()
            bare.stop()
        elif bare.done == bare.published:
            publish(bare)

    Bare(server, count, start).run()
    return begin, end


def consume(server: Server, count: int, batch: int) -> Answer:
    """An acknowledgement for each message, or one for each batch."""
    with server.connect() as connection:
        channel = declared(connection)
        channel.basic_qos(prefetch_count=PREFETCH)
        begin = now()
        for number, (method, _, _) in enumerate(channel.consume(QUEUE), 1):
            assert method is not None
            if not number % batch or number == count:
                channel.basic_ack(method.delivery_tag, multiple=batch > 1)
            if number == count:
                break
        channel.cancel()
        return begin, now()


def pace(server: Server, count: int, gap_ms: int) -> Answer:
    """Single persistent messages."""
    with server.connect() as connection:
        channel = declared(connection)
        channel.confirm_delivery()
        for _ in range(count):
            pause(gap_ms)
            channel.basic_publish("", QUEUE, timed_body(), _PERSISTENT, mandatory=True)
    return (0,)


def delays(server: Server, count: int, _: int) -> Answer:
    """Each is acknowledged after its delay was taken."""
    found: list[float] = []
    with server.connect() as connection:
        channel = declared(connection)
        for method, _properties, body in channel.consume(QUEUE):
            assert method is not None
            found.append(delay_ms(body))
            channel.basic_ack(method.delivery_tag)
            if len(found) == count:
                break
        channel.cancel()
    return found


def main() -> None:
    """Serve one server."""
    port, user, password = sys.argv[1:]
    server = Server(int(port), user, password)
    commands = (produce, consume, pace, delays)
    serve({command.__name__: partial(command, server) for command in commands})


if __name__ == "__main__":
    main()
