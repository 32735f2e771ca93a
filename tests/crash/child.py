"""The process that is killed: an engine over a real database, between two embedded brokers.

It runs until everything that was published is handled, sent and confirmed, then ends with status 0. When it is told to,
it kills itself at the n-th passing of a named fault point.
"""

import os
import signal
import threading
from dataclasses import dataclass
from multiprocessing.connection import Connection

import structlog

from correlator import Engine, Monitor, StateTable, event, on
from correlator.core import faults
from correlator.errors import StoreError
from correlator.reliability import Reliability
from correlator.settings import (
    CheckpointSettings,
    ConnectionSettings,
    EngineSettings,
    MonitorSettings,
    ReceiverSettings,
    SenderSettings,
)

PATIENCE_S = 120.0
LOOK_FOR_FAILURE_S = 0.1
_finished = threading.Event()
_expected = [0]  # set by the child's job; not state: it differs from life to life


@event
class Order:
    id: str


class Total(Monitor, persistent=True):
    """Counts every id, and sends its place in the order of all."""

    handled: int = 0
    counts: StateTable[str, int]

    def onload(self) -> None:
        self._look()

    def on_conclude_recovery(self) -> None:
        self._look()

    @on(Order)
    def order(self, order: Order) -> None:
        self.handled += 1
        self.counts[order.id] = self.counts.get(order.id, 0) + 1
        body = f"{self.handled}:{order.id}".encode()
        self.send(body, to="exact")
        self.send(body, to="steady")
        self._look()

    def _look(self) -> None:
        if self.handled >= _expected[0]:
            _finished.set()


@dataclass(frozen=True, kw_only=True)
class Job:
    """What a child is told.

    Attributes:
        store: URL of the engine's store.
        broker: URL of the embedded broker's database.
        expected: orders after which it is done.
        point: fault point at which it kills itself, "" for none.
        hit: at which passing.
    """

    store: str
    broker: str
    expected: int
    point: str = ""
    hit: int = 1


def settings_of(job: Job) -> EngineSettings:
    """Small batches and frequent checkpoints, so that a kill finds something under way."""

    def sender(name: str, reliability: Reliability) -> SenderSettings:
        return SenderSettings(
            id=name, connection="local", destination=f"queue:{name}", reliability=reliability, max_batch_size=7
        )

    return EngineSettings(
        name="crash",
        store=job.store,
        checkpoint=CheckpointSettings(interval=0.01),
        connections={"local": ConnectionSettings(type="embedded", options={"store": job.broker})},
        receivers=(
            ReceiverSettings(
                id="orders",
                connection="local",
                destination="queue:orders",
                reliability=Reliability.EXACTLY_ONCE,
                event=f"{__name__}:Order",
                max_batch_size=5,
                max_batch_interval_ms=2,
            ),
        ),
        senders=(sender("exact", Reliability.EXACTLY_ONCE), sender("steady", Reliability.AT_LEAST_ONCE)),
        monitors=(MonitorSettings(type=f"{__name__}:Total"),),
        connection_retry_interval=0.05,
        max_connection_retry_interval=0.05,
    )


def run(job: Job, parent: Connection) -> None:
    """The whole life of a child.

    It tells when it has started, or why the store refuses that; its status is then that of the error, 1 for a failure
    later.
    """
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    _expected[0] = job.expected
    if job.point:
        faults.install(_killer(job))
    engine = Engine(settings_of(job))
    try:
        engine.start()
    except StoreError as refused:
        parent.send_bytes(str(refused).encode())
        raise SystemExit(refused.exit_status) from refused
    parent.send_bytes(b"started")
    try:
        _wait_until_finished(engine)
    finally:
        engine.stop()
    engine.raise_failure()


def _wait_until_finished(engine: Engine) -> None:
    """Raises what stopped the engine before it was done."""
    for _ in range(int(PATIENCE_S / LOOK_FOR_FAILURE_S)):
        if _finished.wait(LOOK_FOR_FAILURE_S):
            return
        engine.raise_failure()
    raise TimeoutError("not everything was handled in time")


def _killer(job: Job):
    left = job.hit

    def at(name: str) -> None:
        nonlocal left
        if name == job.point:
            left -= 1
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)

    return at
