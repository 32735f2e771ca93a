"""The process that forks engines, one for each line of its input, and tells how each ended.

An engine here dies by a real SIGKILL, sent to itself at the n-th pass of a named fault point: no handler runs, nothing
is flushed, locks are the kernel's business. Threads may be told to wait for one another at such points, so that a
death falls into one state of the engine and into no other.
"""

import json
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Literal

import msgspec
import structlog

from connectors.embedded import EmbeddedConnection
from correlator import Engine, Reliability
from correlator.core import faults
from correlator.runtime.contexts import MonitorThread
from correlator.settings import (
    CheckpointSettings,
    ConnectionSettings,
    EngineSettings,
    MonitorSettings,
    ReceiverSettings,
    SenderSettings,
)

CONNECTION = "files"
OUT, LETTERS = "queue:out", "queue:letters"


class Order(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What an engine is to do.

    Attributes:
        store: its store; "" for an engine without persistence.
        broker: store of the embedded broker.
        wanted: inputs whose output is in `queue:out`: as many end the run in good order.
        drained: whether the run goes on until `queue:in` is empty, too.
        receive: mode of the static receiver `in`; "" for none.
        send: mode of the static sender `out`.
        batch: max_batch_size of the receiver.
        add: ids of receivers (BEST_EFFORT) that code adds.
        kill: fault point to die at; "" lives to the end.
        hit: which pass of it.
        hold: at `POINT:PASS` a thread waits until all of these passes have been; `EVER` never comes, and whoever waits
            for the pass to die at waits for ever too.
        monitor: the monitor.
        audit: another one, in the context `audit`.
        input_log: where inputs are recorded.
        on_error: of both.
        letters: whether dead letters go to `queue:letters`.
        event: what bodies become; "" leaves messages as they are.
        patience: after so many seconds without them the run has failed.
    """

    store: str
    broker: str
    wanted: int
    drained: bool = False
    receive: str = "EXACTLY_ONCE"
    send: str = "EXACTLY_ONCE"
    batch: int = 10
    interval: float = 0.01
    add: list[str] = []
    kill: str = ""
    hit: int = 1
    hold: dict[str, list[str]] = {}
    monitor: str = "tests.runtime.flows:Forwards"
    audit: str = ""
    input_log: str = ""
    on_error: Literal["stop", "dead_letter"] = "stop"
    letters: bool = False
    event: str = ""
    patience: float = 120.0


def main() -> None:
    """Fork an engine for each order."""
    for line in sys.stdin:
        order = msgspec.json.decode(line, type=Order)
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reading)
            _be_an_engine(order, writing)
        os.close(writing)
        with os.fdopen(reading) as pipe:
            told = pipe.read()
        _, status = os.waitpid(pid, 0)
        killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        code = None if killed else os.waitstatus_to_exitcode(status)
        sys.stdout.write(json.dumps({"killed": killed, "exit": code, **(json.loads(told) if told else {})}) + "\n")
        sys.stdout.flush()


class _Schedule:
    """What threads do at fault points: they count, wait for one another, and die."""

    def __init__(self, order: Order) -> None:
        self.hits: Counter[str] = Counter()
        self.before_death: Callable[[], None] = lambda: None
        self._order = order
        self._changed = threading.Condition()

    def passed(self, name: str) -> None:
        """A thread is at this point."""
        with self._changed:
            self.hits[name] += 1
            hit = self.hits[name]
            self._changed.notify_all()
            awaited = self._order.hold.get(f"{name}:{hit}", ())
            self._changed.wait_for(lambda: all(self._was(one) for one in awaited), self._order.patience)
        if (name, hit) == (self._order.kill, self._order.hit):
            self.before_death()
            os.kill(os.getpid(), signal.SIGKILL)

    def _was(self, which: str) -> bool:
        name, _, number = which.partition(":")
        hit = int(number or 1)
        dying = name == self._order.kill and hit >= self._order.hit
        return self.hits[name] >= hit and not dying


def _be_an_engine(order: Order, writing: int) -> None:
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    _announce_cuts()
    schedule = _Schedule(order)
    told: dict[str, Any] = {}
    status = 0
    try:
        _run(order, schedule)
    except BaseException as error:  # noqa: BLE001  # the parent is told, whatever it is
        told["error"] = f"{type(error).__name__}: {error}"
        status = getattr(error, "exit_status", 70)
    told["points"] = schedule.hits
    with os.fdopen(writing, "w") as pipe:
        json.dump(told, pipe)
    os._exit(status)


def _announce_cuts() -> None:
    """A context that was asked to stop before its next event passes a point that the engine does not have."""
    request_cut = MonitorThread.request_cut

    def announced(thread: MonitorThread, *, requested: bool) -> None:
        request_cut(thread, requested=requested)
        if requested:
            faults.point("app.cut_requested")

    MonitorThread.request_cut = announced


def _run(order: Order, schedule: _Schedule) -> None:
    faults.install(schedule.passed)
    made = Engine(_settings(order))
    schedule.before_death = lambda: _write_input_log(made)
    with made as engine:
        for name in order.add:
            engine.add_receiver(ReceiverSettings(id=name, connection=CONNECTION, destination=f"queue:{name}"))
        deadline = time.monotonic() + order.patience
        while (left := _inputs_that_left(order)) < order.wanted or (
            order.drained and _broker(order).browse("queue:in", 1)
        ):
            engine.raise_failure()
            if time.monotonic() > deadline:
                raise TimeoutError(f"{left} of {order.wanted} inputs left in {order.patience} s: {engine.status()}")
            engine._supervisor.wait(0.01)
    engine.raise_failure()


def _write_input_log(engine: Engine) -> None:
    """A thread of its own writes it, and might lack the last records, as docs/input-log.md says.

    The log stays open: until the process is gone, other threads may still commit checkpoints, which it must have.
    """
    recording = engine.parts.recording
    if recording is not None and recording._log is not None:
        recording.flush()


def _inputs_that_left(order: Order) -> int:
    """How many different inputs have an output, what stands behind the number in `NUMBER:BODY`, or became a letter."""
    left = [one for queue in (OUT, LETTERS) for one in _broker(order).browse(queue, 1_000_000)]
    return len({one.body.rpartition(b":")[2] for one in left})


def _broker(order: Order) -> EmbeddedConnection:
    return EmbeddedConnection(CONNECTION, ConnectionSettings(type="embedded", options={"store": order.broker}))


def _settings(order: Order) -> EngineSettings:
    receivers = [
        ReceiverSettings(
            id="in",
            connection=CONNECTION,
            destination="queue:in",
            reliability=Reliability(mode),
            max_batch_size=order.batch,
            max_batch_interval_ms=0,
            event=order.event or None,
        )
        for mode in [order.receive]
        if mode
    ]
    return EngineSettings(
        name="child",
        store=order.store or None,
        checkpoint=CheckpointSettings(interval=order.interval),
        connections={CONNECTION: ConnectionSettings(type="embedded", options={"store": order.broker})},
        receivers=tuple(receivers),
        senders=(_sender(OUT, order), *([_sender(LETTERS, order)] if order.letters else ())),
        dead_letter_sender="letters" if order.letters else None,
        monitors=tuple(
            MonitorSettings(type=name, context=context, on_error=order.on_error)
            for context, name in (("main", order.monitor), ("audit", order.audit))
            if name
        ),
        input_log=order.input_log or None,
        connection_retry_interval=0.02,
        max_connection_retry_interval=0.02,
        stop_timeout=10.0,
    )


def _sender(destination: str, order: Order) -> SenderSettings:
    name = destination.partition(":")[2]
    return SenderSettings(id=name, connection=CONNECTION, destination=destination, reliability=Reliability(order.send))


if __name__ == "__main__":
    main()
