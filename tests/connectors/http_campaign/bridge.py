"""The process that is killed: an engine that takes orders from clients, numbers them, and sends each to a service.

The processes are forked from one that has imported what they need, and in which nothing else runs.
"""

import itertools
import os
import signal
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal

import structlog

from connectors.http.lane import Lane
from connectors.http.source import HttpSource
from correlator import Engine, Message, Monitor, Reliability, StateTable, on
from correlator.settings import (
    CheckpointSettings,
    ConnectionSettings,
    EngineSettings,
    MonitorSettings,
    ReceiverSettings,
    SenderSettings,
)

LOOK_S = 0.02
Place = Literal["before the answer", "behind the answer", "before a call", "behind a call"]
PLACES: tuple[Place, ...] = ("before the answer", "behind the answer", "before a call", "behind a call")
"""Where a process kills itself: around the answers to clients, which are stored then, and around calls of the service."""


class Numbers(Monitor, persistent=True):
    """Gives each order the next number, and sends both."""

    last: int = 0
    numbers: StateTable[str, int]

    @on(Message)
    def order(self, order: Message) -> None:
        """Number one order, and send it."""
        self.last += 1
        self.numbers[order.body.decode()] = self.last
        self.send(order.body, to="calls")


def settings(directory: Path, port: int, url: str, *, is_control: bool) -> EngineSettings:
    """The settings of the engine."""
    mode = Reliability.AT_LEAST_ONCE if is_control else Reliability.EXACTLY_ONCE
    return EngineSettings(
        name="bridge",
        store=f"sqlite:///{directory}/engine.db",
        checkpoint=CheckpointSettings(interval=0.01),
        connections={"web": ConnectionSettings(type="http", options={"port": port, "url": url})},
        receivers=(
            ReceiverSettings(
                id="orders",
                connection="web",
                destination="queue:orders",
                reliability=mode,
                max_batch_interval_ms=0,
            ),
        ),
        senders=(
            SenderSettings(
                id="calls",
                connection="web",
                destination="queue:numbers",
                reliability=mode,
                options={"concurrency": 4},
            ),
        ),
        monitors=(MonitorSettings(type="tests.connectors.http_campaign.bridge:Numbers"),),
        connection_retry_interval=0.05,
        max_connection_retry_interval=0.05,
        status_interval=0.0,
    )


def arm(place: Place, number: int) -> None:
    """Let the process kill itself at the call with this number."""
    owner, name = (HttpSource, "acknowledge") if "answer" in place else (Lane, "post")
    call: Callable[..., Any] = getattr(owner, name)
    calls = itertools.count(1)

    def armed(*arguments: Any) -> Any:
        is_it = next(calls) == number
        if is_it and place.startswith("before"):
            os.kill(os.getpid(), signal.SIGKILL)
        result = call(*arguments)
        if is_it:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, name, armed)


def live(
    directory: Path, port: int, url: str, kill: tuple[Place, int] | None, parent: Connection, *, is_control: bool
) -> None:
    """Run the engine until it kills itself, or until the parent says so.

    Args:
        directory: the place of the store.
        port: where clients send orders.
        url: the service.
        kill: where the process kills itself.
        parent: tells when to end.
        is_control: whether there are no keys.
    """
    os.dup2(os.open(directory / "bridge.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), sys.stderr.fileno())
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    if kill is not None:
        arm(*kill)
    with Engine(settings(directory, port, url, is_control=is_control)) as engine:
        while not parent.poll(LOOK_S):
            engine.raise_failure()
