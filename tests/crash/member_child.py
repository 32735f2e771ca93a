"""A member as a process: it runs its part of the shares until SIGTERM, between embedded queues on PostgreSQL."""

import contextlib
import faulthandler
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection

import structlog

from correlator import Member, Monitor, StateTable, event, on
from correlator.core import faults
from correlator.reliability import Reliability
from correlator.settings import (
    CheckpointSettings,
    ConnectionSettings,
    EngineSettings,
    MonitorSettings,
    ReceiverSettings,
    SenderSettings,
    ShareSettings,
)

EXACTLY_ONCE = Reliability.EXACTLY_ONCE


@event
class Order:
    id: int


class Total(Monitor, persistent=True):
    """Counts every id, and sends its place in the order of all."""

    handled: int = 0
    counts: StateTable[int, int]

    @on(Order)
    def order(self, order: Order) -> None:
        self.handled += 1
        self.counts[order.id] = self.counts.get(order.id, 0) + 1
        self.send(f"{self.handled}:{order.id}".encode(), to="out")


@dataclass(frozen=True, kw_only=True)
class Job:
    """What a member is told.

    Attributes:
        store: URL of the database of the stores.
        broker: URL of the embedded broker.
        shares: how many.
        lease: in seconds.
        reliability: of the receivers; with AT_LEAST_ONCE the campaign must find orders that are counted twice.
    """

    store: str
    broker: str
    shares: int
    lease: float
    reliability: Reliability = EXACTLY_ONCE


def settings_of(job: Job) -> EngineSettings:
    """Small batches and frequent checkpoints, so that a kill finds something under way."""
    return EngineSettings(
        name="orders",
        store=job.store,
        shares=ShareSettings(count=job.shares, lease=job.lease),
        checkpoint=CheckpointSettings(interval=0.02),
        connections={"local": ConnectionSettings(type="embedded", options={"store": job.broker})},
        receivers=(
            ReceiverSettings(
                id="in",
                connection="local",
                destination="queue:in-${share}",
                reliability=job.reliability,
                event=f"{__name__}:Order",
                max_batch_size=5,
                max_batch_interval_ms=2,
            ),
        ),
        senders=(
            SenderSettings(
                id="out",
                connection="local",
                destination="queue:out-${share}",
                reliability=EXACTLY_ONCE,
                max_batch_size=7,
            ),
        ),
        monitors=(MonitorSettings(type=f"{__name__}:Total"),),
        connection_retry_interval=0.05,
        max_connection_retry_interval=0.05,
        stop_timeout=10.0,
        status_interval=0,
    )


def run(job: Job, parent: Connection) -> None:
    """The whole life of a member; tells when it has joined, and is struck by signals as the parent tells."""
    faulthandler.enable()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    threading.Thread(target=_follow, args=(parent,), daemon=True).start()
    with Member(settings_of(job)) as member:
        parent.send_bytes(b"joined")
        member.run_forever()


def _follow(parent: Connection) -> None:
    """Send this process a signal when a thread passes the next fault point, as `SIGNAL POINT` tells."""
    with contextlib.suppress(EOFError, OSError):
        while True:
            number, point = parent.recv_bytes().decode().split()
            faults.install(_striker(int(number), point))


def _striker(number: int, point: str) -> Callable[[str], None]:
    def at(name: str) -> None:
        if name == point:
            faults.install(None)
            os.kill(os.getpid(), number)

    return at
