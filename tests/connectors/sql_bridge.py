"""The process that is killed: an engine that sends a row for each line of a file into a table of a user's database."""

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

import msgspec
import sqlalchemy as sa

from connectors.sql.sink import SqlSink
from correlator import Engine, Message, Monitor, Reliability, on
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

LOOK_S = 0.02


class Relay(Monitor):
    """Sends each message on."""

    @on(Message)
    def message(self, message: Message) -> None:
        self.send(message.body, to="rows")


def settings(directory: Path, url: str) -> EngineSettings:
    """The settings of the engine."""
    return EngineSettings(
        name="bridge",
        store=f"sqlite:///{directory}/engine.db",
        checkpoint=CheckpointSettings(interval=0.01),
        connections={
            "files": ConnectionSettings(type="file", options={"path": str(directory)}),
            "tables": ConnectionSettings(type="sql", options={"database": url}),
        },
        receivers=(
            ReceiverSettings(
                id="lines",
                connection="files",
                destination="queue:lines.jsonl",
                reliability=Reliability.EXACTLY_ONCE,
                max_batch_size=20,
            ),
        ),
        senders=(
            SenderSettings(
                id="rows",
                connection="tables",
                destination="queue:t",
                reliability=Reliability.EXACTLY_ONCE,
                max_batch_size=5,
            ),
        ),
        monitors=(MonitorSettings(type="tests.connectors.sql_bridge:Relay"),),
        connection_retry_interval=0.1,
        status_interval=0.0,
    )


def arm(*, behind: bool) -> None:
    """Let the process kill itself at its second transaction that writes rows, before or behind the COMMIT."""
    original = SqlSink._transaction
    seen: list[None] = []

    @contextmanager
    def killing(sink: SqlSink, connection: sa.Connection) -> Iterator[None]:
        seen.append(None)
        with original(sink, connection):
            yield
            if len(seen) == 2 and not behind:
                os.kill(os.getpid(), signal.SIGKILL)
        if len(seen) == 2:
            os.kill(os.getpid(), signal.SIGKILL)

    SqlSink._transaction = killing  # type: ignore[method-assign]


def forget_the_source() -> None:
    """Send without a source, so that the database has no number of the sender."""
    original = SqlSink.send

    def nameless(sink: SqlSink, batch: Sequence[Outgoing]) -> Sequence[SendRejected | None]:
        sink._sends_again = False
        return original(sink, [msgspec.structs.replace(out, source="") for out in batch])

    SqlSink.send = nameless  # type: ignore[method-assign]


def live(directory: Path, url: str, parent: Connection, *, behind: bool | None, is_control: bool) -> None:
    """Run the engine until it kills itself, or until the parent says so.

    Args:
        directory: the place of the store and of the file.
        url: the database with the table.
        parent: tells when to end.
        behind: where the process kills itself; `None` for nowhere.
        is_control: whether the sink knows no source.
    """
    if is_control:
        forget_the_source()
    if behind is not None:
        arm(behind=behind)
    with Engine(settings(directory, url)) as engine:
        while not parent.poll(LOOK_S):
            engine.raise_failure()
