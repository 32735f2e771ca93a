"""Engines that share a consumer group of Kafka, each with a store of its own."""

from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest
import structlog

from connectors.kafka.source import KafkaSource
from correlator import Engine, Message, Monitor, Reliability, StateTable, on
from correlator.settings import (
    CheckpointSettings,
    ConnectionSettings,
    EngineSettings,
    MonitorSettings,
    ReceiverSettings,
)
from tests.connectors.campaign.verdict import counts_in
from tests.kafka_server import KafkaServer
from tests.waiting import wait_until

pytestmark = pytest.mark.kafka

QUICK = {"session.timeout.ms": 6000, "heartbeat.interval.ms": 100}


class Counts(Monitor, persistent=True):
    """Counts how often it has handled each message."""

    counts: StateTable[str, int]

    @on(Message)
    def count(self, message: Message) -> None:
        """Count one message."""
        name = message.body.decode()
        self.counts[name] = self.counts.get(name, 0) + 1


def in_group(topic: str, group: str) -> ReceiverSettings:
    """A receiver of a topic in a group."""
    return ReceiverSettings(
        id="in",
        connection="kafka",
        destination=f"topic:{topic}",
        durable_topic_subscription_name=group,
        reliability=Reliability.EXACTLY_ONCE,
        max_batch_size=20,
        max_batch_interval_ms=5,
    )


def engine(kafka: KafkaServer, directory: Path, name: str, receiver: ReceiverSettings, **client: object) -> Engine:
    """An engine that counts what its receiver gets."""
    options = {**kafka.options, "timeout_s": 5, "client": {**QUICK, **client}}
    return Engine(
        EngineSettings(
            name=name,
            store=store_of(directory, name),
            checkpoint=CheckpointSettings(interval=0.02),
            connections={"kafka": ConnectionSettings(type="kafka", options=options)},
            receivers=(receiver,),
            monitors=(MonitorSettings(type="tests.connectors.test_kafka_engines:Counts"),),
            connection_retry_interval=0.1,
            max_connection_retry_interval=0.1,
        )
    )


def store_of(directory: Path, name: str) -> str:
    """The store of an engine."""
    return f"sqlite:///{directory}/{name}.db"


def test_three_engines_that_come_and_go_lose_nothing_and_none_counts_a_message_twice(
    kafka: KafkaServer, tmp_path: Path
) -> None:
    topic, group = kafka.topic(6), "coming-and-going"
    names, portion = ("one", "two", "three"), 400
    receiver = in_group(topic, group)
    running: dict[str, ExitStack] = {}
    published = 0

    def publish() -> None:
        nonlocal published
        numbers = range(published, published + portion)
        kafka.publish(topic, *[{"value": b"%d" % number, "partition": number % 6} for number in numbers])
        published += portion

    def acknowledged() -> int:
        return sum(kafka.offsets(group).values())

    with ExitStack() as every:
        for name in ("one", "two", "three", "one", "two", "one", "three", "two"):
            publish()
            if name in running:
                running.pop(name).close()
            else:
                running[name] = every.enter_context(ExitStack())
                running[name].enter_context(engine(kafka, tmp_path, name, receiver))
            begun = acknowledged()
            wait_until(lambda: acknowledged() > begun or acknowledged() == published)  # noqa: B023  # called at once
        wait_until(lambda: acknowledged() == published)
    counts = [counts_in(store_of(tmp_path, name), name) for name in names]
    assert [Counter(one.values()).keys() - {1} for one in counts] == [set()] * 3, "counted twice by one engine"
    assert set().union(*counts) == {str(number) for number in range(published)}
    assert all(counts)


def test_a_paused_receiver_that_has_left_its_group_goes_on(kafka: KafkaServer, tmp_path: Path) -> None:
    topic, group = kafka.topic(2), "paused"
    receiver = in_group(topic, group)

    def publish(*numbers: int) -> None:
        kafka.publish(topic, *[{"value": b"%d" % number, "partition": number % 2} for number in numbers])

    client = {"session.timeout.ms": 1000, "max.poll.interval.ms": 1000}
    with structlog.testing.capture_logs() as log, engine(kafka, tmp_path, "paused", receiver, **client) as counting:
        publish(*range(10))
        wait_until(lambda: sum(kafka.offsets(group).values()) == 10)
        counting.pause("in")
        other = kafka.connection(client=QUICK).source(receiver)
        assert isinstance(other, KafkaSource)
        other.connect()
        wait_until(lambda: not other.receive(1, 0.1).messages and other._member and len(other._member.assigned) == 2)
        publish(*range(10, 20))
        wait_until(lambda: other.receive(10, 0.1).messages)  # and does not acknowledge them
        other.close()
        counting.resume("in")
        wait_until(lambda: sum(kafka.offsets(group).values()) == 20)
    assert counts_in(store_of(tmp_path, "paused"), "paused") == {str(number): 1 for number in range(20)}
    lost = [str(line["error"]) for line in log if line["event"] == "no connection; trying again"]
    assert [line.partition(" ")[0] for line in lost] == ["E7019"]
