"""The process that is killed: an engine that numbers orders and sends a row for each into a table of a lake.

The processes are forked from one that has imported what they need, and in which nothing else runs.
"""

import os
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec
import structlog

from connectors.lake.sink import LakeSink
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

NAME, QUEUE, TABLE = "bridge", "in", "orders"
MISFIT = 50
"""One order in so many gets a body that does not fit."""
LARGEST_SENT = 25
LOOK_S = 0.05


class Numbers(Monitor, persistent=True):
    """Gives each order the next number, and sends both."""

    last: int = 0
    numbers: StateTable[str, int]

    @on(Message)
    def order(self, order: Message) -> None:
        """Number one order, and send its row."""
        name = order.body.decode()
        self.last += 1
        self.numbers[name] = self.last
        number: Any = "no number" if self.last % MISFIT == 0 else self.last
        self.send(msgspec.json.encode({"order_name": name, "number": number}), to="rows")


def settings(directory: Path, form: str) -> EngineSettings:
    """The settings of the engine."""
    return EngineSettings(
        name=NAME,
        store=f"sqlite:///{directory}/engine.db",
        checkpoint=CheckpointSettings(interval=0.02),
        connections={
            "local": ConnectionSettings(type="embedded", options={"store": f"sqlite:///{directory}/broker.db"}),
            "lake": ConnectionSettings(type="lake", options={"path": str(directory / "lake"), "format": form}),
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
        ),
        senders=(
            SenderSettings(
                id="rows",
                connection="lake",
                destination=f"queue:{TABLE}",
                reliability=Reliability.EXACTLY_ONCE,
                max_batch_size=LARGEST_SENT,
                options={"schema": "order_name STRING, number BIGINT", "unique_id_column": "id"},
            ),
        ),
        monitors=(MonitorSettings(type="tests.connectors.lake_campaign.bridge:Numbers"),),
        connection_retry_interval=0.1,
        max_connection_retry_interval=0.1,
        status_interval=0.0,
    )


def live(directory: Path, form: str, kill: int, parent: Connection, *, is_control: bool) -> None:
    """Run the engine until the parent says so; tell the parent when the engine has begun.

    Args:
        directory: the place of the store, the broker and the lake.
        form: format of the table.
        kill: the number of the call that syncs or links a file at which the process kills itself; 0 for none; with a
            negative number the process kills itself behind that call.
        parent: tells and is told.
        is_control: whether each life has a source of its own.
    """
    os.dup2(os.open(directory / "bridge.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), sys.stderr.fileno())
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    if is_control:
        forget_the_source(LakeSink)
    armed = Arming(kill)
    armed.count_within(LakeSink, "send")
    armed.arm(os, "fsync", "link")
    with Engine(settings(directory, form)) as engine:
        parent.send("begun")
        while not parent.poll(LOOK_S):
            engine.raise_failure()
