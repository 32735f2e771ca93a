"""From one topic to another: an engine, and the connector alone, against a raw loop, on the same broker.

The engine receives and sends EXACTLY_ONCE, with a monitor in between that sends on what comes, and a store in SQLite. The
connector alone has a source and a sink, and no store. The raw loop consumes a thousand messages, produces them in a
transaction with a callback for each, sends its offset into the transaction and commits it: this is how Kafka's own clients
move each message once. All run in turn, several rounds; the ratio of each round is printed, and its median.

    python -m tests.benchmarks.kafka.bench_topics [--messages 50000] [--rounds 5] [--profile]
"""

import argparse
import cProfile
import itertools
import pstats
import statistics
import tempfile
import threading
from collections.abc import Callable
from typing import Any, ClassVar

import confluent_kafka as confluent

from correlator import Engine, Message, Monitor, Reliability, on
from correlator.events import Outgoing
from correlator.settings import (
    CheckpointSettings,
    ConnectionSettings,
    EngineSettings,
    MonitorSettings,
    ReceiverSettings,
    SenderSettings,
)
from tests.benchmarks.comparison import BODY, Result, Stopwatch
from tests.kafka_server import ANSWER_S, KafkaServer
from tests.servers import running

BATCH = 1000
PATIENCE_S = 300.0
_names = (f"bench {number}" for number in itertools.count(1))


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


def ends(source: str, target: str) -> tuple[ReceiverSettings, SenderSettings]:
    """A receiver in a group of its own, and a sender."""
    receiver = ReceiverSettings(
        id=next(_names),
        connection="kafka",
        destination=f"topic:{source}",
        reliability=Reliability.EXACTLY_ONCE,
        max_batch_size=BATCH,
    )
    sender = SenderSettings(
        id="out",
        connection="kafka",
        destination=f"topic:{target}",
        reliability=Reliability.EXACTLY_ONCE,
        max_batch_size=BATCH,
    )
    return receiver, sender


def engine(server: KafkaServer, source: str, target: str, count: int) -> Result:
    """The engine, from its start to its end, which waits for the last confirm."""
    receiver, sender = ends(source, target)
    with tempfile.TemporaryDirectory() as directory:
        settings = EngineSettings(
            name="bench",
            store=f"sqlite:///{directory}/bench.db",
            checkpoint=CheckpointSettings(interval=0.05),
            connections={"kafka": ConnectionSettings(type="kafka", options=server.options)},
            receivers=(receiver,),
            senders=(sender,),
            monitors=(MonitorSettings(type=f"{__name__}:Bridge"),),
            status_interval=0.0,
        )
        Bridge.all_came = threading.Event()
        Bridge.wanted = count
        stopwatch = Stopwatch()
        with Engine(settings, connections={"kafka": server.connection()}):
            assert Bridge.all_came.wait(PATIENCE_S)
        return stopwatch.result(count)


def alone(server: KafkaServer, source: str, target: str, count: int) -> Result:
    """A source and a sink in one thread."""
    receiver, sender = ends(source, target)
    reader, writer = server.connection().source(receiver), server.connection().sink(sender)
    stopwatch = Stopwatch()
    reader.connect()
    writer.connect()
    moved = 0
    while moved < count:
        chunk = reader.receive(BATCH, 1.0)
        batch = [Outgoing(moved + at, target, f"topic:{target}", one) for at, one in enumerate(chunk.messages, 1)]
        assert not any(writer.send(batch))
        reader.acknowledge(chunk.tokens)
        moved += len(batch)
    result = stopwatch.result(count)
    reader.close()
    writer.close()
    return result


def raw(server: KafkaServer, source: str, target: str, count: int) -> Result:
    """The loop of the client library."""
    common: dict[str, Any] = {"bootstrap.servers": server.servers}
    mine = {"group.id": next(_names), "auto.offset.reset": "earliest", "enable.auto.commit": False}
    stopwatch = Stopwatch()
    consumer = confluent.Consumer({**common, **mine, "isolation.level": "read_committed"})
    producer = confluent.Producer({**common, "transactional.id": next(_names)})
    consumer.subscribe([source])
    producer.init_transactions(ANSWER_S)
    moved = 0
    failures: list[confluent.KafkaError] = []

    def settle(error: confluent.KafkaError | None, _record: confluent.Message) -> None:
        if error is not None:
            failures.append(error)

    while moved < count:
        records = consumer.consume(min(BATCH, count - moved), 1.0)
        if not records:
            continue
        producer.begin_transaction()
        for record in records:
            producer.produce(target, record.value(), record.key(), headers=record.headers(), on_delivery=settle)
        assert producer.flush(ANSWER_S) == 0
        place = confluent.TopicPartition(source, 0, (records[-1].offset() or 0) + 1)
        producer.send_offsets_to_transaction([place], consumer.consumer_group_metadata(), ANSWER_S)
        producer.commit_transaction(ANSWER_S)
        moved += len(records)
    result = stopwatch.result(count)
    assert not failures
    consumer.close()
    return result


def main() -> None:
    """All on one broker."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--messages", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    count = options.messages
    with running(KafkaServer()) as server:
        source = server.topic()
        headers = [{"uniqueMessageId": f"{number}:bench", "messageSourceId": "bench"} for number in range(count)]
        for first in range(0, count, BATCH):
            server.publish(source, *[{"value": BODY, "headers": one} for one in headers[first : first + BATCH]])
        forms: dict[str, Callable[[str], Result]] = {
            "engine": lambda target: engine(server, source, target, count),
            "alone": lambda target: alone(server, source, target, count),
            "raw": lambda target: raw(server, source, target, count),
        }
        if options.profile:
            profiler = cProfile.Profile()
            profiler.runcall(forms["alone"], server.topic())
            pstats.Stats(profiler).sort_stats("tottime").print_stats(25)
            return
        ratios: dict[str, list[float]] = {"engine": [], "alone": []}
        for number in range(options.rounds):
            order = list(forms) if number % 2 else list(reversed(forms))
            results = {form: forms[form](server.topic()) for form in order}
            for form, values in ratios.items():
                values.append(results[form].rate / results["raw"].rate)
            shown = "  ".join(f"{form} {result}" for form, result in results.items())
            print(f"{shown}  engine to raw {ratios['engine'][-1]:.2f}, alone to raw {ratios['alone'][-1]:.2f}")
        for form, values in ratios.items():
            median = statistics.median(values)
            print(f"{form} to raw: median of ratios {median:.2f} ({min(values):.2f} to {max(values):.2f})")


if __name__ == "__main__":
    main()
