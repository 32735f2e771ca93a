"""The process that is killed: an engine that numbers the orders of an outbox table, polled or captured ones, and sends a
row for each.

The processes are forked from one that has imported what they need, and in which nothing else runs.
"""

import os
import signal
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec
import sqlalchemy as sa
import structlog

from connectors.sql import replication
from connectors.sql.capture import CaptureSource
from connectors.sql.outbox import OutboxSource
from connectors.sql.polling import PolledSource
from connectors.sql.sink import SqlSink
from correlator import Engine, Message, Monitor, Reliability, StateTable, on
from correlator.errors import SendRejected
from correlator.events import Outgoing
from correlator.settings import (
    CheckpointSettings,
    ConnectionSettings,
    EngineSettings,
    MonitorSettings,
    ReceiverSettings,
    SenderSettings,
)
from tests.servers import database_of

NAME = "bridge"
SINK, SOURCE = "sink", "source"
MISFIT = 50
"""One order in so many gets a body that does not fit."""
LARGEST_RECEIVED, LARGEST_SENT = 40, 25
LOOK_S = 0.05
OUTBOX, POLLED, CAPTURE, SNAPSHOT = "outbox", "polled", "capture", "snapshot"
TRUNCATED = "truncated"
"""Name in the row that tells of a snapshot that has begun again."""
PUBLICATION, TABLE = "orders", "placed"
STATUS_S = 0.2


class Numbers(Monitor, persistent=True):
    """Gives each order the next number, and sends both."""

    last: int = 0
    numbers: StateTable[str, int]

    @on(Message)
    def order(self, order: Message) -> None:
        """Number one order, and send its row; or forget all, and send the number from which on this is so."""
        self.last += 1
        fits = self.last % MISFIT > 0
        if order.properties.get("operation") == "truncate":
            self.numbers.clear()
            name, fits = TRUNCATED, True
        else:
            is_row = order.body.startswith(b"{")
            name = msgspec.json.decode(order.body)["name"] if is_row else order.body.decode()
            self.numbers[name] = self.last
        number: Any = self.last if fits else "no number"
        self.send(msgspec.json.encode({"order_name": name, "number": number}), to="rows")


def settings(directory: Path, url: str, source: str, *, is_control: bool) -> EngineSettings:
    """The settings of the engine."""
    looks = "20ms" if source == POLLED or url.startswith("mysql") else "1s"  # where nothing wakes it
    options = {
        OUTBOX: {"poll_interval": looks},
        POLLED: {"poll_interval": looks, "order_column": "place"},
        CAPTURE: {"slot": database_of(url), "snapshot": "never"},
        SNAPSHOT: {"slot": database_of(url)},
    }
    destinations = {OUTBOX: "queue:outbox", POLLED: f"topic:{TABLE}"}
    return EngineSettings(
        name=NAME,
        store=f"sqlite:///{directory}/engine.db",
        checkpoint=CheckpointSettings(interval=0.02),
        connections={
            "tables": ConnectionSettings(type="sql", options={"database": url, "state": f"{directory}/state"})
        },
        receivers=(
            ReceiverSettings(
                id="orders",
                connection="tables",
                destination=destinations.get(source, f"topic:{PUBLICATION}"),
                reliability=Reliability.AT_LEAST_ONCE if is_control else Reliability.EXACTLY_ONCE,
                max_batch_size=LARGEST_RECEIVED,
                max_batch_interval_ms=5,
                options=options[source],
            ),
        ),
        senders=(
            SenderSettings(
                id="rows",
                connection="tables",
                destination="queue:orders",
                reliability=Reliability.EXACTLY_ONCE,
                max_batch_size=LARGEST_SENT,
            ),
        ),
        monitors=(MonitorSettings(type="tests.connectors.sql_campaign.bridge:Numbers"),),
        connection_retry_interval=0.1,
        max_connection_retry_interval=0.1,
        status_interval=0.0,
    )


def arm(kill: int, of: Collection[str]) -> None:
    """Let the process kill itself at a transaction in which the sink writes rows, or the source deletes some.

    A source that polls or captures has no transaction: in its place is the file with its position.

    Args:
        kill: the number of the transaction, 0 for none; positive: before its COMMIT, negative: behind it.
        of: whose transactions count: of the `SINK`, of the `SOURCE`.
    """
    seen = 0
    write, acknowledge = SqlSink._transaction, OutboxSource.acknowledge

    def met(whose: str) -> Callable[[int], None]:
        """Count a transaction; returns what kills the process before (1) or behind (-1) its COMMIT."""
        nonlocal seen
        if whose not in of:
            return lambda _: None
        number = seen = seen + 1

        def meets(side: int) -> None:
            if side * number == kill:
                os.kill(os.getpid(), signal.SIGKILL)

        return meets

    @contextmanager
    def writing(sink: SqlSink, connection: sa.Connection) -> Iterator[None]:
        meets = met(SINK)
        with write(sink, connection):
            yield
            meets(1)
        meets(-1)

    def acknowledging(source: OutboxSource, tokens: Sequence[int]) -> None:
        meets = met(SOURCE)
        meets(1)  # the messages are stored, and the rows are there
        acknowledge(source, tokens)
        meets(-1)

    def saving(save: Callable[[Any], None]) -> Callable[[Any], None]:
        def saved(source: Any) -> None:
            meets = met(SOURCE)
            meets(1)  # the messages are stored, and the position is before them
            save(source)
            meets(-1)  # and a server does not know

        return saved

    SqlSink._transaction = writing  # type: ignore[method-assign, assignment]
    CaptureSource._save = saving(CaptureSource._save)  # type: ignore[method-assign, assignment]
    PolledSource._save = saving(PolledSource._save)  # type: ignore[method-assign, assignment]
    OutboxSource.acknowledge = acknowledging  # type: ignore[method-assign, assignment]


def forget_the_source() -> None:
    """Give the messages of this life a source of its own."""
    send = SqlSink.send

    def renamed(sink: SqlSink, batch: Sequence[Outgoing]) -> Sequence[SendRejected | None]:
        sink._sends_again = False
        return send(sink, [msgspec.structs.replace(out, source=f"{out.source}:{os.getpid()}") for out in batch])

    SqlSink.send = renamed  # type: ignore[method-assign, assignment]


def live(
    directory: Path, url: str, source: str, kill: int, of: Collection[str], parent: Connection, *, is_control: bool
) -> None:
    """Run the engine until the parent says so; tell the parent when the engine has begun.

    Args:
        directory: the place of the store.
        url: the database.
        source: where the orders come from: `OUTBOX`, `POLLED`, `CAPTURE`, or `SNAPSHOT`, which captures, too.
        kill, of: see `arm`.
        parent: tells and is told.
        is_control: whether nothing recognises repeats.
    """
    os.dup2(os.open(directory / "bridge.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), sys.stderr.fileno())
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    if is_control:
        forget_the_source()
    arm(kill, of)
    replication.STATUS_S = STATUS_S
    with Engine(settings(directory, url, source, is_control=is_control)) as engine:
        parent.send("begun")
        while not parent.poll(LOOK_S):
            engine.raise_failure()
