"""The status of connections, receivers and senders, and the events that report a change to monitors (rule A9.4)."""

import threading
from collections.abc import Callable
from typing import Any, NamedTuple

from correlator.events import ConnectionStatus, PartStatus, ReceiverStatus, SenderStatus
from correlator.runtime.clock import Clock
from correlator.settings import ReceiverSettings, SenderSettings

Part = ReceiverSettings | SenderSettings
_CONNECTED = (PartStatus.OK, PartStatus.DESTINATION_NOT_FOUND, PartStatus.BLOCKED, PartStatus.FATAL_ERROR)


class Condition(NamedTuple):
    """A status, the time since which it lasts, and errors.

    Attributes:
        status: the status.
        error: the text of the error that has caused it; "" if there is no error.
        since: when it began, in seconds since the epoch; 0 before the first report.
        last_error: the text of the last error, even if it is over; "" if there was none.
        last_error_at: when this error was reported, in seconds since the epoch.
    """

    status: PartStatus
    error: str = ""
    since: float = 0.0
    last_error: str = ""
    last_error_at: float = 0.0

    def then(self, status: PartStatus, error: str, at: float) -> "Condition":
        """The condition that follows at this moment."""
        last = (error, at) if error else (self.last_error, self.last_error_at)
        return Condition(status, error, at, *last)


CONNECTING = Condition(PartStatus.CONNECTING)


class Statuses:
    """The conditions of all parts. Each part reports its own condition, from its own thread; a lock keeps the changes
    in order.

    A connection is `ERROR` while one of its parts is `ERROR`. If none is, it is `OK` as soon as one of its parts has
    connected.

    Args:
        deliver: gives an event to the monitors. Called for each change while the lock is held, so it must not wait.
        clock: the time of day.
        told: reports a change for the timeline, as `Timeline.add`.
    """

    def __init__(self, deliver: Callable[[Any], None], clock: Clock, told: Callable[..., None]) -> None:
        self._deliver = deliver
        self._told = told
        self._clock = clock
        self._lock = threading.Lock()
        self._parts: dict[str, tuple[Part, Condition]] = {}
        self._connections: dict[str, Condition] = {}

    def of_part(self, part_id: str) -> Condition:
        """The condition of a receiver or sender; `CONNECTING` if it has not reported any."""
        known = self._parts.get(part_id)
        return CONNECTING if known is None else known[1]

    def of_connections(self) -> dict[str, Condition]:
        """The conditions of all connections that parts use or have used, by name."""
        return dict(self._connections)

    def tell(self, part: Part, status: PartStatus, error: str = "") -> None:
        """Note the status of a part; monitors get an event if the status has changed."""
        with self._lock:
            before = self._parts.get(part.id)
            if before is None or before[1].status is not status:
                condition = CONNECTING if before is None else before[1]
                self._parts[part.id] = (part, condition.then(status, error, self._clock.wall()))
                self._tell(part, status, error)

    def dead_letters(self, part: Part, count: int, reason: str) -> None:
        """Report that messages of a part became dead letters, with the reason of the first one."""
        self._told("dead_letters", **_named(part), count=count, reason=reason)

    def removed(self, part_id: str) -> None:
        """Forget a part that was removed; monitors get an event with the status `REMOVED`."""
        with self._lock:
            known = self._parts.pop(part_id, None)
            if known is not None:
                self._tell(known[0], PartStatus.REMOVED, "")

    def _tell(self, part: Part, status: PartStatus, error: str) -> None:
        if isinstance(part, ReceiverSettings):
            self._deliver(ReceiverStatus(receiver=part.id, status=status, error=error))
        else:
            self._deliver(SenderStatus(sender=part.id, status=status, error=error))
        self._told("status", **_named(part), status=status.value, error=error)
        self._tell_connection(part.connection)

    def _tell_connection(self, name: str) -> None:
        parts = [condition for part, condition in self._parts.values() if part.connection == name]
        before = self._connections.get(name)
        now = _joined(parts) if parts else before
        if now is not None and (before is None or now.status is not before.status):
            self._connections[name] = (before or CONNECTING).then(now.status, now.error, self._clock.wall())
            self._deliver(ConnectionStatus(connection=name, status=now.status, error=now.error))
            self._told("status", connection=name, status=now.status.value, error=now.error)


def _named(part: Part) -> dict[str, str]:
    return {"receiver" if isinstance(part, ReceiverSettings) else "sender": part.id}


def _joined(parts: list[Condition]) -> Condition:
    """Return the condition of a connection from the conditions of its parts, of which there is at least one."""
    for condition in parts:
        if condition.status is PartStatus.ERROR:
            return condition
    if any(condition.status in _CONNECTED for condition in parts):
        return Condition(PartStatus.OK)
    return CONNECTING
