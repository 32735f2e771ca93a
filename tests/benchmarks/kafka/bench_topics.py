"""From one topic to another: an engine, and the connector alone, against a raw loop, on the same broker.

The engine receives and sends EXACTLY_ONCE, with a monitor in between that sends on what comes, and a store in SQLite. The
connector alone has a source and a sink, and no store. The raw loop consumes a batch of messages, produces them in a
transaction with a callback for each, sends its offset into the transaction and commits it: this is how Kafka's own clients
move each message once. Then the source and the sink, each by itself, against a loop that only consumes (and takes value,
key and headers of each message), and one that only produces in transactions. Last Kafka Streams, exactly once, whose time
begins at its first commit. The time of the others goes from the first call, connecting included, until the last confirm.
All run in turn, several rounds; the ratio of each round is printed, and its median.

    python -m tests.benchmarks.kafka.bench_topics [--messages 50000] [--batch 1000] [--rounds 5] [--profile FORM]
"""

import argparse
import itertools
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any, NamedTuple

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
from tests.benchmarks.bench_engine import profile_threads
from tests.benchmarks.comparison import BODY, Result, Stopwatch, spread_of
from tests.benchmarks.kafka import kafka_streams
from tests.kafka_server import ANSWER_S, KafkaServer
from tests.servers import running

PATIENCE_S = 300.0
LOOK_EVERY_S = 0.005
FORMS = {"engine": "loop", "alone": "loop", "read": "bare read", "write": "bare write", "streams": "loop"}
"""What is measured, and against what."""
_names = (f"bench {number}" for number in itertools.count(1))


class Bridge(Monitor, persistent=True):
    """Sends on what comes."""

    bridged: int = 0

    @on(Message)
    def message(self, message: Message) -> None:
        self.bridged += 1
        self.send(message, to="out")


class Task(NamedTuple):
    """What all do: move so many messages from one topic to another, in batches."""

    server: KafkaServer
    source: str
    count: int
    batch: int

    def receiver(self) -> ReceiverSettings:
        """A receiver in a group of its own."""
        return ReceiverSettings(
            id=next(_names),
            connection="kafka",
            destination=f"topic:{self.source}",
            reliability=Reliability.EXACTLY_ONCE,
            max_batch_size=self.batch,
        )

    def sender(self, target: str) -> SenderSettings:
        """A sender."""
        return SenderSettings(
            id="out",
            connection="kafka",
            destination=f"topic:{target}",
            reliability=Reliability.EXACTLY_ONCE,
            max_batch_size=self.batch,
        )

    def run(self, form: str) -> Result:
        """One run of one of the forms, into a topic of its own."""
        return _RUNS[form](self, self.server.topic())


def engine(task: Task, target: str) -> Result:
    """The engine, from its start to the last confirm."""
    with tempfile.TemporaryDirectory() as directory:
        settings = EngineSettings(
            name="bench",
            store=f"sqlite:///{directory}/bench.db",
            checkpoint=CheckpointSettings(interval=0.05),
            connections={"kafka": ConnectionSettings(type="kafka", options=task.server.options)},
            receivers=(task.receiver(),),
            senders=(task.sender(target),),
            monitors=(MonitorSettings(type=f"{__name__}:Bridge"),),
            status_interval=0.0,
        )
        stopwatch = Stopwatch()
        with Engine(settings, connections={"kafka": task.server.connection()}) as running_engine:
            deadline = time.monotonic() + PATIENCE_S
            while running_engine.senders["out"].counters.sent < task.count:
                running_engine.raise_failure()
                assert time.monotonic() < deadline, "not all messages came"
                time.sleep(LOOK_EVERY_S)
            return stopwatch.result(task.count)


def alone(task: Task, target: str) -> Result:
    """A source and a sink in one thread."""
    connection = task.server.connection()
    reader, writer = connection.source(task.receiver()), connection.sink(task.sender(target))
    stopwatch = Stopwatch()
    with closing(reader), closing(writer):
        reader.connect()
        writer.connect()
        moved = 0
        while moved < task.count:
            chunk = reader.receive(task.batch, 1.0)
            assert not any(writer.send(outgoing(moved + 1, target, chunk.messages)))
            reader.acknowledge(chunk.tokens)
            moved += len(chunk.messages)
        return stopwatch.result(moved)


def read(task: Task, _target: str) -> Result:
    """A source."""
    reader = task.server.connection().source(task.receiver())
    stopwatch = Stopwatch()
    with closing(reader):
        reader.connect()
        moved = 0
        while moved < task.count:
            chunk = reader.receive(task.batch, 1.0)
            reader.acknowledge(chunk.tokens)
            moved += len(chunk.messages)
        return stopwatch.result(moved)


def write(task: Task, target: str) -> Result:
    """A sink."""
    messages = [Message(BODY, dict(properties_of(number))) for number in range(task.count)]
    writer = task.server.connection().sink(task.sender(target))
    stopwatch = Stopwatch()
    with closing(writer):
        writer.connect()
        for first in range(0, task.count, task.batch):
            assert not any(writer.send(outgoing(first + 1, target, messages[first : first + task.batch])))
        return stopwatch.result(task.count)


def loop(task: Task, target: str) -> Result:
    """The client library, from topic to topic."""
    stopwatch = Stopwatch()
    with closing(consumer_of(task)) as consumer:
        producer = producer_of(task)
        moved = 0
        while moved < task.count:
            records = consumer.consume(min(task.batch, task.count - moved), 1.0)
            if records:
                place = confluent.TopicPartition(task.source, 0, (records[-1].offset() or 0) + 1)
                contents = [(record.value(), record.key(), record.headers()) for record in records]
                transaction(producer, target, contents, place, consumer.consumer_group_metadata())
                moved += len(records)
        return stopwatch.result(moved)


def streams(task: Task, target: str) -> Result:
    """Kafka Streams, from topic to topic."""
    return kafka_streams.move(
        task.server, next(_names).replace(" ", "-"), (task.source, target), task.count, task.batch
    )


def bare_read(task: Task, _target: str) -> Result:
    """The client library, which consumes."""
    stopwatch = Stopwatch()
    with closing(consumer_of(task)) as consumer:
        moved = 0
        while moved < task.count:
            records = consumer.consume(min(task.batch, task.count - moved), 1.0)
            moved += len([(record.value(), record.key(), record.headers()) for record in records])
            if records:
                place = confluent.TopicPartition(task.source, 0, (records[-1].offset() or 0) + 1)
                consumer.commit(offsets=[place], asynchronous=True)
        return stopwatch.result(moved)


def bare_write(task: Task, target: str) -> Result:
    """The client library, which produces in transactions."""
    contents = [(BODY, None, dict(properties_of(number))) for number in range(task.count)]
    with closing(confluent.Consumer({"bootstrap.servers": task.server.servers, "group.id": next(_names)})) as consumer:
        group = consumer.consumer_group_metadata()
    stopwatch = Stopwatch()
    producer = producer_of(task)
    for first in range(0, task.count, task.batch):
        place = confluent.TopicPartition(target, 0, first)
        transaction(producer, target, contents[first : first + task.batch], place, group)
    return stopwatch.result(task.count)


_RUNS: dict[str, Callable[[Task, str], Result]] = {
    "engine": engine,
    "alone": alone,
    "loop": loop,
    "read": read,
    "bare read": bare_read,
    "write": write,
    "bare write": bare_write,
    "streams": streams,
}


def outgoing(first: int, target: str, messages: Sequence[Message]) -> list[Outgoing]:
    """Numbered messages of one sender."""
    return [Outgoing(number, target, f"topic:{target}", one) for number, one in enumerate(messages, first)]


def properties_of(number: int) -> dict[str, str]:
    """The properties, or headers, of a message."""
    return {"uniqueMessageId": f"{number}:bench", "messageSourceId": "bench"}


def consumer_of(task: Task) -> confluent.Consumer:
    """A consumer of the library in a group of its own."""
    mine = {"group.id": next(_names), "auto.offset.reset": "earliest", "enable.auto.commit": False}
    settings = {"bootstrap.servers": task.server.servers, **mine, "isolation.level": "read_committed"}
    consumer = confluent.Consumer(settings)
    consumer.subscribe([task.source])
    return consumer


def producer_of(task: Task) -> confluent.Producer:
    """A producer of the library with transactions.

    Without the first answers of the broker, the library begins half of all producers half a second later.
    """
    producer = confluent.Producer({"bootstrap.servers": task.server.servers, "transactional.id": next(_names)})
    for _ in range(2):
        producer.list_topics(task.source, ANSWER_S)
    producer.init_transactions(ANSWER_S)
    return producer


def transaction(
    producer: confluent.Producer,
    target: str,
    contents: Sequence[tuple[Any, Any, Any]],
    place: confluent.TopicPartition,
    group: object,
) -> None:
    """Produce values with keys and headers, with a callback for each, and commit an offset with them."""
    failures: list[confluent.KafkaError] = []

    def settle(error: confluent.KafkaError | None, _record: confluent.Message) -> None:
        if error is not None:
            failures.append(error)

    producer.begin_transaction()
    for value, key, headers in contents:
        producer.produce(target, value, key, headers=headers, on_delivery=settle)
    assert producer.flush(ANSWER_S) == 0
    producer.send_offsets_to_transaction([place], group, ANSWER_S)
    producer.commit_transaction(ANSWER_S)
    assert not failures


def in_thread(call: Callable[[], object]) -> None:
    """Make a call in a thread of its own."""
    thread = threading.Thread(target=call, name=call.__name__)
    thread.start()
    thread.join()


def main() -> None:
    """All on one broker."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--messages", type=int, default=50_000)
    parser.add_argument("--batch", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--profile", choices=_RUNS)
    options = parser.parse_args()
    with running(KafkaServer()) as server:
        task = Task(server, server.topic(), options.messages, options.batch)
        headers = [properties_of(number) for number in range(task.count)]
        for first in range(0, task.count, task.batch):
            server.publish(
                task.source, *[{"value": BODY, "headers": one} for one in headers[first : first + task.batch]]
            )
        if options.profile:
            profile_threads(lambda: in_thread(lambda: task.run(options.profile)))
            return
        ratios: dict[str, list[float]] = {form: [] for form in FORMS}
        for number in range(options.rounds):
            order = list(_RUNS) if number % 2 else list(reversed(_RUNS))
            results = {form: task.run(form) for form in order}
            print("  ".join(f"{form} {result}" for form, result in results.items()))
            for form, other in FORMS.items():
                ratios[form].append(results[form].rate / results[other].rate)
        for form, values in ratios.items():
            print(f"{form} to {FORMS[form]}: median of ratios {spread_of(values)}")


if __name__ == "__main__":
    main()
