"""The process that is killed: an engine that numbers orders of a topic and sends each on to another topic.

The processes are forked from one that has imported what they need, and in which nothing else runs.
"""

import os
import signal
import sys
import threading
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import confluent_kafka
import msgspec
import structlog

from connectors.kafka import sink
from connectors.kafka.producer import KafkaProducer
from correlator import Engine, Message, Monitor, Reliability, StateTable, on
from correlator.settings import (
    CheckpointSettings,
    ConnectionSettings,
    EngineSettings,
    MonitorSettings,
    ReceiverSettings,
    SenderSettings,
)

NAME = "bridge"
PLACES = ("init", "begin", "produce", "flush", "offsets", "commit", "committing", "committed")
"""Where a producer may die: before each of its calls, within a commit, and behind it."""
LARGEST_SENT = 20
LOOK_S = 0.02
_SESSION_MS = 1500


class Death(NamedTuple):
    """Where the process kills itself: at a place of its transaction with this number, and within a commit after a delay."""

    place: str
    transaction: int = 1
    delay_s: float = 0.0


class Numbers(Monitor, persistent=True):
    """Gives each order the next number, and sends both."""

    last: int = 0
    numbers: StateTable[str, int]

    @on(Message)
    def order(self, order: Message) -> None:
        """Number one order, and send it on."""
        name = order.body.decode()
        self.last += 1
        self.numbers[name] = self.last
        self.send(msgspec.json.encode({"order": name, "number": self.last}), to="out")


def settings(directory: Path, servers: str, topics: tuple[str, str]) -> EngineSettings:
    """The settings of the engine."""
    options: Mapping[str, Any] = {
        "bootstrap_servers": servers,
        "timeout_s": 5,
        "client": {"session.timeout.ms": _SESSION_MS, "heartbeat.interval.ms": _SESSION_MS // 3},
    }
    return EngineSettings(
        name=NAME,
        store=f"sqlite:///{directory}/engine.db",
        checkpoint=CheckpointSettings(interval=0.02),
        connections={"kafka": ConnectionSettings(type="kafka", options=options)},
        receivers=(
            ReceiverSettings(
                id=topics[0],
                connection="kafka",
                destination=f"topic:{topics[0]}",
                reliability=Reliability.EXACTLY_ONCE,
                max_batch_size=50,
                max_batch_interval_ms=5,
            ),
        ),
        senders=(
            SenderSettings(
                id="out",
                connection="kafka",
                destination=f"topic:{topics[1]}",
                reliability=Reliability.EXACTLY_ONCE,
                max_batch_size=LARGEST_SENT,
            ),
        ),
        monitors=(MonitorSettings(type="tests.connectors.kafka_campaign.bridge:Numbers"),),
        connection_retry_interval=0.1,
        max_connection_retry_interval=0.1,
        status_interval=0.0,
    )


def arm(death: Death) -> None:
    """Let producers of this process kill it."""
    begun = 0

    def at(place: str) -> None:
        if place == death.place and (place == "init" or begun == death.transaction):
            os.kill(os.getpid(), signal.SIGKILL)

    class Dying(confluent_kafka.Producer):
        def init_transactions(self, *arguments: Any) -> None:
            at("init")
            super().init_transactions(*arguments)

        def begin_transaction(self) -> None:
            nonlocal begun
            begun += 1
            self._produced = 0
            at("begin")
            super().begin_transaction()

        def produce(self, *arguments: Any, **options: Any) -> None:
            self._produced += 1
            if self._produced > 1:
                at("produce")
            super().produce(*arguments, **options)

        def flush(self, *arguments: Any) -> int:
            at("flush")
            return super().flush(*arguments)

        def send_offsets_to_transaction(self, *arguments: Any) -> None:
            at("offsets")
            super().send_offsets_to_transaction(*arguments)

        def commit_transaction(self, *arguments: Any) -> None:
            at("commit")
            if death.place == "committing" and begun == death.transaction:
                threading.Timer(death.delay_s, os.kill, (os.getpid(), signal.SIGKILL)).start()
            super().commit_transaction(*arguments)
            at("committed")

    confluent_kafka.Producer = Dying  # type: ignore[misc]


def forget_the_number() -> None:
    """Let the sink know nothing of what the topic has."""
    mock.patch.object(KafkaProducer, "numbers", return_value={}).start()
    mock.patch.object(sink, "last_numbers", return_value=frozenset()).start()


def live(
    directory: Path,
    servers: str,
    topics: tuple[str, str],
    death: Death | None,
    parent: Connection,
    *,
    is_control: bool,
) -> None:
    """Run the engine until it kills itself, or until the parent says so.

    Args:
        directory: the place of the store.
        servers: the broker.
        topics: where orders come from, and where they go.
        death: where the process kills itself; `None` for nowhere.
        parent: tells and is told.
        is_control: whether the sink does not read its number.
    """
    os.dup2(os.open(directory / "bridge.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), sys.stderr.fileno())
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    if is_control:
        forget_the_number()
    if death is not None:
        arm(death)
    with Engine(settings(directory, servers, topics)) as engine:
        parent.send("begun")
        while not parent.poll(LOOK_S):
            engine.raise_failure()
