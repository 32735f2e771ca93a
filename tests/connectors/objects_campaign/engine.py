"""The process that is killed: an engine that numbers orders, writes objects of them, and reads these objects.

The processes are forked from one that has imported what they need, and in which nothing else runs.
"""

import os
import sys
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import botocore.httpsession
import msgspec
import structlog

from connectors.objects.sink import ObjectsSink
from connectors.objects.source import ObjectsSource
from correlator import Engine, Message, Monitor, Reliability, StateTable, on
from correlator.settings import (
    CheckpointSettings,
    ConnectionSettings,
    EngineSettings,
    MonitorSettings,
    ReceiverSettings,
    SenderSettings,
)
from tests.connectors.campaign.arming import Arming, forget_the_source

NAME, QUEUE, FOLDER, READER = "objects", "in", "orders", "reader"
MISFIT = 50
"""One order in so many gets a body that does not fit."""
LARGEST_SENT = 25
LOOK_S = 0.05
READ = "read "
"""Before the name of an order that was read."""


class Setting(NamedTuple):
    """How a round works.

    Attributes:
        directory: place of the store, the broker and the positions.
        options: of the connection of the objects.
        ending: of the objects.
        after: what becomes of objects that were read.
        control: "", or `sender` or `receiver`, whose protection is switched off.
    """

    directory: Path
    options: Mapping[str, Any]
    ending: str
    after: str
    control: str


class Orders(Monitor, persistent=True):
    """Gives each order the next number, sends both, and counts what it reads."""

    last: int = 0
    orders: StateTable[str, int]

    @on(Message)
    def order(self, order: Message) -> None:
        """Number one order and send it, or count one that was read."""
        if order.receiver == READER:
            read = READ + msgspec.json.decode(order.body)["order_name"]
            self.orders[read] = self.orders.get(read, 0) + 1
            return
        name = order.body.decode()
        self.last += 1
        self.orders[name] = self.last
        fits = self.last % MISFIT != 0
        body = msgspec.json.encode({"order_name": name, "number": self.last})
        self.send(body if fits else body[:-1], to="objects")


def settings(setting: Setting) -> EngineSettings:
    """The settings of the engine."""
    directory, destination = setting.directory, f"queue:{FOLDER}/*{setting.ending}"
    schema = {"schema": "order_name STRING, number BIGINT"} if setting.ending == ".parquet" else {}
    reading = Reliability.AT_LEAST_ONCE if setting.control == "receiver" else Reliability.EXACTLY_ONCE
    return EngineSettings(
        name=NAME,
        store=f"sqlite:///{directory}/engine.db",
        checkpoint=CheckpointSettings(interval=0.02),
        connections={
            "local": ConnectionSettings(type="embedded", options={"store": f"sqlite:///{directory}/broker.db"}),
            "objects": ConnectionSettings(type="objects", options=dict(setting.options)),
        },
        receivers=(
            ReceiverSettings(
                id="orders",
                connection="local",
                destination=f"queue:{QUEUE}",
                reliability=Reliability.EXACTLY_ONCE,
                max_batch_size=50,
                max_batch_interval_ms=5,
            ),
            ReceiverSettings(
                id=READER,
                connection="objects",
                destination=destination,
                reliability=reading,
                max_batch_size=10,
                options={"poll_interval": "20ms", "after": setting.after},
            ),
        ),
        senders=(
            SenderSettings(
                id="objects",
                connection="objects",
                destination=destination,
                reliability=Reliability.EXACTLY_ONCE,
                max_batch_size=LARGEST_SENT,
                options=schema,
            ),
        ),
        monitors=(MonitorSettings(type=f"{Orders.__module__}:Orders"),),
        connection_retry_interval=0.1,
        max_connection_retry_interval=0.1,
        status_interval=0.0,
    )


def arm(setting: Setting, kill: int) -> None:
    """Let the process kill itself at a call by which the sink or the source of objects changes something; see `Arming`.

    In the control of the receiver only its acknowledgements count.
    """
    armed = Arming(kill)
    armed.count_within(ObjectsSource, "acknowledge")
    if setting.control != "receiver":
        armed.count_within(ObjectsSink, "send")
        armed.count_within(ObjectsSource, "receive")
    armed.arm(os, "fsync", "fdatasync", "link", "rename", "unlink", "replace")
    armed.arm(botocore.httpsession.URLLib3Session, "send")


def live(setting: Setting, kill: int, parent: Connection) -> None:
    """Run the engine until the parent says so; tell the parent when the engine has begun.

    Args:
        setting: how the round works.
        kill: see `arm`.
        parent: tells and is told.
    """
    log = os.open(setting.directory / "engine.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, sys.stderr.fileno())
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    if setting.control == "sender":
        forget_the_source(ObjectsSink)
    arm(setting, kill)
    with Engine(settings(setting)) as engine:
        parent.send("begun")
        while not parent.poll(LOOK_S):
            engine.raise_failure()
