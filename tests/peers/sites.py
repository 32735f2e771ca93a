"""Where the peers work: fresh queues, topics or directories for each run, on brokers that can be killed."""

import contextlib
import functools
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import confluent_kafka as kafka
import msgspec

from connectors.kafka.log import LOG
from correlator import Message
from tests.benchmarks.rabbitmq.bench_shovel import Queues, shovel
from tests.connectors.rabbit import opened, outgoing, sender
from tests.kafka_server import ANSWER_S, KafkaServer
from tests.rabbit_server import RabbitServer
from tests.servers import running


class Servers(contextlib.ExitStack):
    """The brokers of a campaign; each starts when it is first needed, and ends with the block."""

    @functools.cached_property
    def rabbit(self) -> RabbitServer:
        """A RabbitMQ server."""
        return self.enter_context(running(RabbitServer()))

    @functools.cached_property
    def kafka(self) -> KafkaServer:
        """A Kafka broker."""
        return self.enter_context(running(KafkaServer()))

    @property
    def versions(self) -> dict[str, str]:
        """The versions of those that have run."""
        found = {}
        if "rabbit" in vars(self):
            found["RabbitMQ"] = self.rabbit.control("version").strip()
        if "kafka" in vars(self):
            found["Kafka"] = self.kafka.version
        return found


class Order(msgspec.Struct):
    """An order, as its JSON has it."""

    order: int
    customer: str


class Site(Protocol):
    """The place of a run.

    Attributes:
        broker: address of the broker.
        source: where orders come from.
        target: where results go.
    """

    broker: str
    source: str
    target: str

    def publish(self, orders: Sequence[Order]) -> None:
        """Put orders into the source, and wait until they are safe there."""

    def count(self) -> int:
        """The number of all results so far."""

    def results(self) -> list[bytes]:
        """All results, in their order. Only behind the last kill of the broker."""

    def left(self) -> int | None:
        """The number of orders that wait in the source while no peer runs; `None` if it does not know."""

    def await_durable(self) -> None:
        """Wait until source and target survive a kill of the broker."""

    def kill(self) -> None:
        """Kill the broker, and start it again."""

    def close(self) -> None:
        """End what belongs to this place alone."""


def plain(order: Order) -> Message:
    """An order as JSON."""
    return Message(msgspec.json.encode(order), {"amqp_content_type": "application/json"})


class RabbitSite:
    """Two durable queues of RabbitMQ.

    Args:
        servers: of the campaign.
        message_of: makes the message of an order.
    """

    def __init__(self, servers: Servers, _directory: Path, message_of: Callable[[Order], Message] = plain) -> None:
        server = self._server = servers.rabbit
        self._message_of = message_of
        self._stack = contextlib.ExitStack()
        self._results: list[bytes] = []
        self.broker = f"amqp://{server.user}:{server.password}@127.0.0.1:{server.port}"
        self.source, self.target = server.queue(), server.queue()
        self._connect()
        for queue in (self.source, self.target):
            self._channel.queue_declare(queue, durable=True)

    def publish(self, orders: Sequence[Order]) -> None:
        """See `Site`."""
        with opened(self._server.connection().sink(sender(self.source))) as sink:
            refused = sink.send(outgoing(self.source, *map(self._message_of, orders)))
        assert not any(refused)

    def count(self) -> int:
        """See `Site`."""
        return len(self._results) + self._ready(self.target)

    def results(self) -> list[bytes]:
        """See `Site`."""
        if number := self._ready(self.target):
            taken = list(itertools.islice(self._channel.consume(self.target), number))
            self._results += [body for _, _, body in taken]
            self._channel.basic_ack(taken[-1][0].delivery_tag, multiple=True)
            self._channel.cancel()
        return self._results

    def left(self) -> int | None:
        """See `Site`."""
        return self._ready(self.source)

    def await_durable(self) -> None:
        """See `Site`."""
        self._server.write_definitions()

    def kill(self) -> None:
        """See `Site`."""
        self._stack.close()
        self._server.restart()
        self._connect()

    def close(self) -> None:
        """See `Site`."""
        for queue in (self.source, self.target):
            self._channel.queue_delete(queue)
        self._stack.close()

    def _connect(self) -> None:
        self._channel = self._stack.enter_context(self._server.channel())

    def _ready(self, queue: str) -> int:
        return int(self._channel.queue_declare(queue, passive=True).method.message_count)


class ShovelSite(RabbitSite):
    """Two queues, and a shovel of the server from one to the other.

    It acknowledges what the target has confirmed (`on-confirm`, the default), and both queues are of the same server
    (https://www.rabbitmq.com/docs/shovel, https://www.rabbitmq.com/docs/shovel-dynamic). The documentation promises
    that this mode loses nothing, also when the connection is lost; it keeps no state and recognises no repeats.
    """

    def __init__(self, servers: Servers, directory: Path) -> None:
        super().__init__(servers, directory)
        self._shovels = contextlib.ExitStack()
        self._shovels.enter_context(self._server.plugin("rabbitmq_shovel"))
        self._shovels.enter_context(shovel(Queues(self._server, "classic", self.source, self.target, 0), "amqp://"))

    def close(self) -> None:
        """See `Site`."""
        self._shovels.close()
        super().close()


class FileSite(RabbitSite):
    """A directory of files with orders, and a queue of RabbitMQ for results."""

    def __init__(self, servers: Servers, directory: Path) -> None:
        super().__init__(servers, directory)
        self._orders = directory / "orders"
        self._orders.mkdir()
        self._queue, self.source = self.source, str(self._orders)

    def publish(self, orders: Sequence[Order]) -> None:
        """See `Site`."""
        name = f"{orders[0].order:09}.json"
        made = self._orders.with_name(name)
        made.write_bytes(b"".join(msgspec.json.encode(order) + b"\n" for order in orders))
        made.rename(self._orders / name)

    def left(self) -> int | None:
        """A directory does not know what was read."""
        return None

    def close(self) -> None:
        """See `Site`."""
        self.source = self._queue
        super().close()


class KafkaSite:
    """Two topics of Kafka with one partition each."""

    def __init__(self, servers: Servers, _directory: Path) -> None:
        self._server = servers.kafka
        self.broker = self._server.servers
        self.source, self.target = self._server.topic(), self._server.topic()
        self._looking = kafka.Consumer({"bootstrap.servers": self.broker, "group.id": "driver"}, logger=LOG)

    def publish(self, orders: Sequence[Order]) -> None:
        """See `Site`."""
        self._server.publish(self.source, *({"value": msgspec.json.encode(order)} for order in orders))

    def count(self) -> int:
        """See `Site`."""
        return int(self._looking.get_watermark_offsets(kafka.TopicPartition(self.target, 0), ANSWER_S)[1])

    def results(self) -> list[bytes]:
        """See `Site`."""
        return [record.value() or b"" for record in self._server.records(self.target)]

    def left(self) -> int | None:
        """A topic does not know what was read."""
        return None

    def await_durable(self) -> None:
        """A topic survives when the broker knows it."""

    def kill(self) -> None:
        """See `Site`."""
        self._server.restart()

    def close(self) -> None:
        """See `Site`."""
        self._looking.close()
