"""A context of one monitor that listens to expressions, and how it dies and comes back."""

from typing import Any

import msgspec

from correlator.core.commit import StateEntry
from correlator.core.context import Context
from correlator.core.instances import StoredMonitor, restore_monitor, waiting_owner
from correlator.core.monitor import Monitor
from correlator.core.queue import Run
from correlator.core.routes import Routes
from correlator.errors import CorrelatorError
from correlator.events import event
from correlator.runtime.names import resolve


@event
class A:
    n: int = 0


@event
class B:
    n: int = 0


@event
class C:
    n: int = 0


@event
class Order:
    id: int
    customer: str = "x"
    lines: list[int] = []


@event
class Payment:
    order: int
    customer: str = "x"


class Listening:
    """One context over what its cuts have stored.

    Args:
        monitor: lives in it.
        wall: what the local calendar shows at engine time 0.
    """

    def __init__(self, monitor: Monitor, on_error: str = "stop", wall: float = 0.0) -> None:
        self.state: dict[str, dict[bytes, bytes]] = {}
        self.now = 0.0
        self.wall = wall
        self.failures: list[str] = []
        self.context = self._context()
        self.monitor = monitor
        self.context.load(monitor, on_error)
        self.context.call_one(monitor, "onload")

    def _context(self) -> Context:
        routes = Routes()
        context = Context("main", routes, resolve, self._failed, self.now, self.wall)
        routes.subscribe("main", context.queue)
        return context

    def _failed(self, policy: str, error: CorrelatorError, about: str) -> None:
        self.failures.append(error.code)

    def hear(self, *events: Any) -> None:
        """Handle events now."""
        for one in events:
            self.context.queue.deliver(Run("", 0, (), (one,), stored=True))
        self.work()

    def work(self) -> None:
        self.context.work(1000, self.now, wall_time=self.wall)

    def pass_time(self, seconds: float, wall: float | None = None) -> None:
        """Let time pass; the calendar moves as far unless another distance is given."""
        self.now += seconds
        self.wall += seconds if wall is None else wall
        self.work()

    def cut(self) -> list[StateEntry]:
        """Store what changed; returns it."""
        entries = self.context.take_state()
        for entry in entries:
            owned = self.state.setdefault(entry.owner, {})
            owned.pop(entry.key, None)
            if entry.value is not None:
                owned[entry.key] = entry.value
        return entries

    def restart(self, cls: type[Monitor] | None = None) -> None:
        """Die after a cut and come back, perhaps as another class."""
        cls = cls or type(self.monitor)
        self.cut()
        cut = self.context.cut()
        self.context = self._context()
        for key, data in self.state[f"monitor:{cls.state_name}"].items():
            number, stored = key.decode(), msgspec.msgpack.decode(data, type=StoredMonitor)
            self.monitor = restore_monitor(cls, number, stored, self.state)
            waiting = self.state.get(waiting_owner(cls, number), {})
            self.context.load(self.monitor, stored.on_error, number, stored, waiting)
        self.context.restore(cut, [], self.now)

    def waiting(self) -> list[bytes]:
        """Keys of the listeners and attempts that the store holds."""
        self.cut()
        return sorted(key for owner, kept in self.state.items() if owner.startswith("waiting:") for key in kept)
