"""From one stream to another: an engine against a raw rstream loop, on the same server.

The engine receives and sends EXACTLY_ONCE, with a monitor in between that sends on what comes, and a store in SQLite. The
raw loop reads a thousand messages, publishes them under its name, waits for their confirms and stores its offset; it
keeps no state and tells no repeats apart. It runs in two forms: `bytes` sends on the entries as they are, `messages`
decodes and encodes them with the codec of rstream, as whoever looks at a message must. All run in turn, several rounds;
the ratio of each round is printed, and its median.

    python -m tests.benchmarks.rabbitmq.bench_streams [--messages 50000] [--rounds 5] [--profile]
"""

import argparse
import asyncio
import cProfile
import pstats
import tempfile
import threading
from collections.abc import Callable
from typing import Any, ClassVar

from rstream import AMQPMessage, Consumer, Producer, RawMessage, amqp_decoder

from correlator import Engine, Message, Monitor, on
from correlator.events import Outgoing
from correlator.settings import SenderSettings
from tests.benchmarks.comparison import BODY, Result, Stopwatch, spread_of
from tests.connectors.rabbit import forwarding
from tests.rabbit_server import RabbitServer

BATCH = 1000
PATIENCE_S = 300.0


class Bridge(Monitor, persistent=True):
    """Sends on what comes."""

    all_came: ClassVar[threading.Event]
    wanted: ClassVar[int]
    bridged: int = 0

    @on(Message)
    def message(self, message: Message) -> None:
        self.bridged += 1
        self.send(message, to="out")
        if self.bridged == self.wanted:
            self.all_came.set()


def fill(server: RabbitServer, stream: str, count: int) -> None:
    """Messages as a sender writes them."""
    destination = f"queue:{stream}"
    sink = server.stream_connection().sink(SenderSettings(id="f", connection="r", destination=destination))
    sink.connect()
    for first in range(1, count + 1, BATCH):
        batch = [
            Outgoing(
                number,
                "bench",
                destination,
                Message(BODY, {"uniqueMessageId": f"{number}:bench", "messageSourceId": "bench"}),
            )
            for number in range(first, min(first + BATCH, count + 1))
        ]
        assert not any(sink.send(batch))
    sink.close()


def raw(server: RabbitServer, source: str, target: str, count: int, *, decoded: bool) -> Result:
    """The loop in rstream."""
    return asyncio.run(_raw(server, source, target, count, decoded=decoded))


async def _raw(server: RabbitServer, source: str, target: str, count: int, *, decoded: bool) -> Result:
    where: dict[str, Any] = {
        "host": "127.0.0.1",
        "port": server.stream_port,
        "username": server.user,
        "password": server.password,
    }
    waiting: asyncio.Queue[tuple[Any, int]] = asyncio.Queue(10 * BATCH)
    confirmed = asyncio.Event()
    unconfirmed = 0

    async def received(message: Any, context: Any) -> None:
        await waiting.put((message, context.offset))

    def confirm(status: Any) -> None:
        nonlocal unconfirmed
        assert status.is_confirmed
        unconfirmed -= 1
        if not unconfirmed:
            confirmed.set()

    async with Producer(**where) as producer:
        await producer.create_stream(target)
        consumer = Consumer(**where)
        await consumer.start()
        stopwatch = Stopwatch()
        await consumer.subscribe(source, received, decoder=amqp_decoder if decoded else None)
        for first in range(0, count, BATCH):
            batch: list[Any] = []
            for number in range(first + 1, min(first + BATCH, count) + 1):
                message, offset = await waiting.get()
                if decoded:
                    properties = message.application_properties
                    again = AMQPMessage(None, None, None, message.properties, properties, message.body)
                    again.publishing_id = number
                    batch.append(again)
                else:
                    batch.append(RawMessage(message, number))
            unconfirmed = len(batch)
            confirmed.clear()
            await producer.send_batch(target, batch, publisher_name="raw", on_publish_confirm=confirm)
            await confirmed.wait()
            await consumer.store_offset(source, "raw", offset)
        result = stopwatch.result(count)
        await consumer.close()
    return result


def engine(server: RabbitServer, source: str, target: str, count: int) -> Result:
    """The engine, from its start to its end, which waits for the last confirm."""
    with tempfile.TemporaryDirectory() as directory:
        settings = forwarding(
            "bench",
            f"sqlite:///{directory}/bench.db",
            f"{__name__}:Bridge",
            source,
            target,
            receiver_id=f"to {target}",  # the server keeps the offset under this name
            batch=5000,
            sent=5000,
        )
        Bridge.all_came = threading.Event()
        Bridge.wanted = count
        stopwatch = Stopwatch()
        with Engine(settings, connections={"rabbit": server.stream_connection()}):
            assert Bridge.all_came.wait(PATIENCE_S)
        return stopwatch.result(count)


def main() -> None:
    """All on one server."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--messages", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    count, server = options.messages, RabbitServer()
    try:
        server.start()
        source = "numbers"
        fill(server, source, count)
        if options.profile:
            profiler = cProfile.Profile()
            profiler.runcall(engine, server, source, "profiled", count)
            pstats.Stats(profiler).sort_stats("tottime").print_stats(25)
            return
        forms: dict[str, Callable[[str], Result]] = {
            "engine": lambda target: engine(server, source, target, count),
            "bytes": lambda target: raw(server, source, target, count, decoded=False),
            "messages": lambda target: raw(server, source, target, count, decoded=True),
        }
        ratios: dict[str, list[float]] = {"bytes": [], "messages": []}
        for number in range(options.rounds):
            order = list(forms) if number % 2 else list(reversed(forms))
            results = {form: forms[form](f"{form} {number}") for form in order}
            for form, values in ratios.items():
                values.append(results["engine"].rate / results[form].rate)
            shown = "  ".join(f"{form} {result}" for form, result in results.items())
            print(f"{shown}  engine to bytes {ratios['bytes'][-1]:.2f}, to messages {ratios['messages'][-1]:.2f}")
        for form, values in ratios.items():
            print(f"engine to {form}: median of ratios {spread_of(values)}")
    finally:
        server.close()


if __name__ == "__main__":
    main()
