"""Monitors and events of the tests of the running engine; they live in a module since the store names them."""

import os
import threading
from collections.abc import Callable
from typing import Any

from correlator import (
    ConnectionStatus,
    Message,
    Monitor,
    ReceiverStatus,
    ReceivingSuspended,
    SenderFlushed,
    SenderStatus,
    StateTable,
    event,
    on,
)
from correlator.core import faults
from correlator.core.batch_context import Effects

FAN_OUT = 110
"""Events that `FansOut` causes with one message."""


@event
class Order:
    """What a JSON body becomes."""

    id: int
    text: str = ""


@event
class Note:
    """What contexts send to each other."""

    text: str


def _nothing(monitor: Any, event: Any) -> None:
    """What a script does unless a test says otherwise."""


class Script:
    """What monitors do in this test; a test sets the functions, a fixture resets them."""

    def __init__(self) -> None:
        self.message: Callable[[Any, Message], None] = _nothing
        self.order: Callable[[Any, Order], None] = _nothing
        self.note: Callable[[Any, Note], None] = _nothing
        self.suspended: Callable[[Any, ReceivingSuspended], None] = _nothing
        self.flushed: Callable[[Any, SenderFlushed], None] = _nothing
        self.status: Callable[[Any, Any], None] = _nothing
        self.hook: Callable[[Any, str], None] = _nothing
        self.heard: list[tuple[str, str]] = []
        self.changed = threading.Condition()

    def hear(self, monitor: Monitor, what: str) -> None:
        """Remember what a monitor was called for."""
        with self.changed:
            self.heard.append((type(monitor).__name__, what))
            self.changed.notify_all()

    def of(self, name: str) -> list[str]:
        """What the monitors of a class heard."""
        with self.changed:
            return [what for who, what in self.heard if who == name]


SCRIPT = Script()


class Hears(Monitor):
    """A monitor without persistence that hears everything."""

    def onload(self) -> None:
        SCRIPT.hook(self, "onload")

    def on_begin_recovery(self) -> None:
        SCRIPT.hook(self, "on_begin_recovery")

    def on_conclude_recovery(self) -> None:
        SCRIPT.hook(self, "on_conclude_recovery")

    @on(Message)
    def message(self, message: Message) -> None:
        SCRIPT.hear(self, message.body.decode())
        SCRIPT.message(self, message)

    @on(Order)
    def order(self, order: Order) -> None:
        SCRIPT.hear(self, f"order {order.id}")
        SCRIPT.order(self, order)

    @on(Note)
    def note(self, note: Note) -> None:
        SCRIPT.hear(self, f"note {note.text}")
        SCRIPT.note(self, note)

    @on(ReceivingSuspended)
    def suspended(self, notice: ReceivingSuspended) -> None:
        SCRIPT.hear(self, f"suspended {notice.receiver}")
        SCRIPT.suspended(self, notice)

    @on(SenderFlushed)
    def flushed(self, notice: SenderFlushed) -> None:
        SCRIPT.hear(self, f"flushed {notice.request_id} failed {notice.failed}")
        SCRIPT.flushed(self, notice)


class AlsoHears(Hears):
    """Another one, for a second context."""


class Watches(Monitor):
    """Hears how connections, receivers and senders are."""

    @on(ConnectionStatus)
    def connection(self, told: ConnectionStatus) -> None:
        self._hear(told.connection, told)

    @on(ReceiverStatus)
    def receiver(self, told: ReceiverStatus) -> None:
        self._hear(told.receiver, told)

    @on(SenderStatus)
    def sender(self, told: SenderStatus) -> None:
        self._hear(told.sender, told)

    def _hear(self, part: str, told: Any) -> None:
        SCRIPT.status(self, told)
        SCRIPT.hear(self, f"{part} {told.status}")


class Keeps(Monitor, persistent=True):
    """Keeps every body that it was given, and counts."""

    count: int = 0
    bodies: list[str] = []
    by_body: StateTable[str, int]

    def onload(self) -> None:
        SCRIPT.hook(self, "onload")

    def on_begin_recovery(self) -> None:
        SCRIPT.hook(self, "on_begin_recovery")

    def on_conclude_recovery(self) -> None:
        SCRIPT.hook(self, "on_conclude_recovery")

    @on(Message)
    def message(self, message: Message) -> None:
        body = message.body.decode()
        self.count += 1
        self.bodies.append(body)
        self.by_body[body] = self.by_body.get(body, 0) + 1
        SCRIPT.hear(self, body)
        SCRIPT.message(self, message)

    @on(Order)
    def order(self, order: Order) -> None:
        self.count += 1
        SCRIPT.hear(self, f"order {order.id}")
        SCRIPT.order(self, order)

    @on(Note)
    def note(self, note: Note) -> None:
        self.bodies.append(f"note {note.text}")
        SCRIPT.hear(self, f"note {note.text}")


class AlsoKeeps(Keeps, persistent=True):
    """Another one, for a second context."""


class Forwards(Monitor, persistent=True):
    """Numbers what comes in and sends it on to `out`: state and output must always agree."""

    count: int = 0

    @on(Message)
    def message(self, message: Message) -> None:
        self.count += 1
        self.send(b"%d:%s" % (self.count, message.body), to="out")


class ForwardsSlowly(Forwards):
    """Passes a fault point of its own with each message: a schedule may keep it there."""

    @on(Message)
    def message(self, message: Message) -> None:
        super().message(message)
        faults.point("app.message")


class FailsOnThirds(Forwards):
    """Fails on m3, m6, m9 and so on."""

    @on(Message)
    def message(self, message: Message) -> None:
        if int(message.body[1:]) % 3 == 0:
            raise ValueError("a third")
        super().message(message)


class FansOut(Forwards):
    """Causes many events in the context `audit` with each message."""

    @on(Message)
    def message(self, message: Message) -> None:
        super().message(message)
        for _ in range(FAN_OUT):
            self.send(Note(text="n"), to="channel:audit")


class Tallies(Monitor, persistent=True):
    """Counts what comes from another context."""

    count: int = 0

    @on(Note)
    def note(self, note: Note) -> None:
        self.count += 1


class FlushesThenAcknowledges(Monitor):
    """Sends on what comes in, and acknowledges a batch when the broker has all of that."""

    @on(Message)
    def message(self, message: Message) -> None:
        self.send(b"0:" + message.body, to="out")

    @on(ReceivingSuspended)
    def suspended(self, notice: ReceivingSuspended) -> None:
        self.request_flush("out")

    @on(SenderFlushed)
    def flushed(self, notice: SenderFlushed) -> None:
        self.acknowledge_and_resume("in")


class Aborts(Forwards):
    """Ends the process at one message."""

    @on(Message)
    def message(self, message: Message) -> None:
        if message.body == b"m17":
            os.abort()
        super().message(message)


class Idles:
    """A pipeline that takes the receiver `in` and does nothing."""

    name = "pipe"
    receivers = ("in",)
    senders = ()
    max_rows = 100
    max_bytes = 1_000_000
    planned_s = 0.0
    steps = ()

    def open(self):
        """Start nothing."""

    def process(self, batch, state, engine_time):
        """Have no effect."""
        return Effects()

    def conclude(self, state, engine_time):
        """Have no effect."""
        return Effects()

    def close(self):
        """Hold nothing."""
