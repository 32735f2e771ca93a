"""From one topic to another: an engine against a loop of Pulsar's bare client, on the same broker.

The engine receives and sends EXACTLY_ONCE, with a monitor in between that sends on what comes, and a store in SQLite; the
broker drops repeats, in both namespaces. The bare loop receives, sends with `send_async`, and acknowledges what is
confirmed; it keeps no state and tells no repeats apart. The first topic is filled beforehand; the time goes from the
start until the last confirm, connecting included. Both run in turn, several rounds; the ratio of each round is printed,
and its median. What arrived is held against what was published: each message once, in order.

    python -m tests.benchmarks.pulsar.bench_bridge [--messages 50000] [--rounds 5] [--profile]
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pulsar

from connectors.pulsar.destinations import QUEUE_SUBSCRIPTION
from connectors.pulsar.flight import MOST_OUTSTANDING
from correlator import Engine, Message, Monitor, Reliability, on
from correlator.events import Outgoing
from correlator.settings import CheckpointSettings, EngineSettings, MonitorSettings, ReceiverSettings, SenderSettings
from tests.benchmarks.bench_engine import profile_threads
from tests.benchmarks.comparison import Result, Stopwatch, compare
from tests.benchmarks.pulsar.bench_client import PATIENCE_S, Confirms, bare_client, properties_of, topic_of
from tests.connectors.rabbit import opened
from tests.pulsar_server import PulsarServer
from tests.servers import running

BATCH = 5000
LOOK_EVERY_S = 0.005
SOURCE, TARGET = "source", "target"


class Bridge(Monitor, persistent=True):
    """Sends on what comes."""

    bridged: int = 0

    @on(Message)
    def message(self, message: Message) -> None:
        """Count it and send it on."""
        self.bridged += 1
        self.send(message, to="out")


@dataclass(frozen=True)
class Topics:
    """The two topics of one run, in a namespace of their own, and how many messages go from the one to the other."""

    server: PulsarServer
    namespace: str
    count: int

    @property
    def options(self) -> dict[str, Any]:
        """Of a connection."""
        return {"namespace": self.namespace, "deduplication": True}

    def fill(self) -> None:
        """Publish what is to be moved, and make the target."""
        destination = f"queue:{SOURCE}"
        settings = SenderSettings(id="f", connection="p", destination=destination)
        with opened(self.server.connection(**self.options).sink(settings)) as sink:
            for first in range(1, self.count + 1, BATCH):
                numbers = range(first, min(first + BATCH, self.count + 1))
                assert not any(sink.send([Outgoing(one, "bench", destination, numbered(one)) for one in numbers]))
        with opened(
            self.server.connection(**self.options).sink(
                SenderSettings(id="t", connection="p", destination=f"queue:{TARGET}")
            )
        ):
            pass

    def check(self) -> None:
        """Each message is in the target once, in order."""
        with bare_client(self.server) as client:
            reader = client.create_reader(topic_of(TARGET, self.namespace), pulsar.MessageId.earliest)
            for number in range(1, self.count + 1):
                body = reader.read_next(10_000).data()
                assert body == b"%0256d" % number, f"not number {number}: {body!r}"
            assert not reader.has_message_available(), "more than was published"


def numbered(number: int) -> Message:
    """A message of 256 bytes."""
    return Message(b"%0256d" % number, dict(properties_of(number)))


def run_bare(topics: Topics) -> Result:
    """One run of the loop."""
    stopwatch = Stopwatch()
    with bare_client(topics.server) as client:
        consumer = client.subscribe(
            topic_of(SOURCE, topics.namespace), QUEUE_SUBSCRIPTION, consumer_type=pulsar.ConsumerType.Shared
        )
        producer = client.create_producer(
            topic_of(TARGET, topics.namespace), max_pending_messages=MOST_OUTSTANDING, block_if_queue_full=True
        )
        confirms = Confirms(topics.count)

        def confirmed(message: pulsar.Message, result: Any, sent: object) -> None:
            consumer.acknowledge(message)
            confirms.one(result, sent)

        for _ in range(topics.count):
            message = consumer.receive(10_000)
            producer.send_async(message.data(), partial(confirmed, message), properties=message.properties())
        confirms.wait()
        return stopwatch.result(topics.count)


def run_engine(topics: Topics, batch: int, interval: float) -> Result:
    """One run of the engine."""
    with tempfile.TemporaryDirectory() as directory:
        chosen = settings(f"sqlite:///{directory}/bench.db", batch, interval)
        connections = {"pulsar": topics.server.connection(**topics.options)}
        stopwatch = Stopwatch()
        with Engine(chosen, connections=connections) as engine:
            deadline = time.monotonic() + PATIENCE_S
            while engine.senders["out"].counters.sent < topics.count:
                engine.raise_failure()
                assert time.monotonic() < deadline, "not all messages came"
                time.sleep(LOOK_EVERY_S)
            return stopwatch.result(topics.count)


def settings(store: str, batch: int, interval: float) -> EngineSettings:
    """Of the engine."""
    mode = Reliability.EXACTLY_ONCE
    receiver = ReceiverSettings(
        id="in", connection="pulsar", destination=f"queue:{SOURCE}", reliability=mode, max_batch_size=batch
    )
    sender = SenderSettings(
        id="out", connection="pulsar", destination=f"queue:{TARGET}", reliability=mode, max_batch_size=batch
    )
    return EngineSettings(
        name="bench",
        store=store,
        receivers=(receiver,),
        senders=(sender,),
        monitors=(MonitorSettings(type=f"{__name__}:Bridge"),),
        checkpoint=CheckpointSettings(interval=interval),
        status_interval=0.0,
    )


def main() -> None:
    """Both in turn on one broker."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--messages", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch", type=int, default=BATCH, help="max_batch_size of receiver and sender")
    parser.add_argument("--interval", type=float, default=0.2, help="seconds between checkpoints")
    parser.add_argument("--profile", action="store_true", help="the engine alone, the processor time of each thread")
    options = parser.parse_args()
    with running(PulsarServer()) as server:

        def moved(run: Callable[[Topics], Result], count: int = options.messages) -> Result:
            topics = Topics(server, server.namespace(deduplication=True), count)
            topics.fill()
            result = run(topics)
            topics.check()
            return result

        def engine(topics: Topics) -> Result:
            return run_engine(topics, options.batch, options.interval)

        moved(engine, BATCH)
        moved(run_bare, BATCH)
        if options.profile:
            moved(engine)
            profile_threads(lambda: moved(engine))
            return
        compare("topic to topic", options.rounds, lambda: moved(run_bare), lambda: moved(engine), wanted=0.5)


if __name__ == "__main__":
    main()
