"""A monitor that does whatever a test wants with whatever value; it lives in a module since the store names it."""

import datetime as dt
import enum
import uuid
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from correlator import Monitor, StateTable, event, on
from correlator.core.expressions import match


class Colour(enum.Enum):
    """Keys of a table."""

    RED = "red"


@event
class Go:
    """Lets the monitor do what the test wants."""

    number: int = 0


@event
class Payload:
    """What a hostile program, or another handler, puts into an event."""

    number: int = 0
    text: str = ""
    price: Decimal = Decimal(0)
    items: list[int] = []


@event
class Never:
    """Nobody sends it."""

    number: int = 0
    price: Decimal = Decimal(0)


class Doing:
    """What the monitor does for `Go`; `None` for nothing."""

    action: Callable[[Any], None] | None = None


DOING = Doing()


class Spawned(Monitor, persistent=True):
    """Has attributes of several types."""

    number: int = 0
    items: list[int] = []
    text: str = ""


class Plain(Monitor):
    """Without lasting state."""

    number: int = 0


class Hostile(Monitor, persistent=True):
    """Has state of every kind; counts what it handled."""

    handled: int = 0
    text: str = ""
    ratio: float | None = None
    items: list[int] = []
    mapping: dict[str, int] = {}
    pair: tuple[int, str] = (0, "")
    moment: dt.datetime | None = None
    texts: StateTable[str, int]
    numbers: StateTable[int, int]
    blobs: StateTable[bytes, int]
    flags: StateTable[bool, int]
    days: StateTable[dt.date, int]
    ids: StateTable[uuid.UUID, int]
    colours: StateTable[Colour, int]
    pairs: StateTable[tuple[str, int], int]
    baskets: StateTable[str, list[int]]

    _payload = match(Payload)

    @on(Go)
    def go(self, go: Go) -> None:
        """Do it."""
        self.handled += 1
        if DOING.action is not None:
            DOING.action(self)

    @on(_payload.then(match(Never, price=_payload["price"])))
    def later(self, payload: Payload, never: Never) -> None:
        """An expression that keeps every payload."""

    def timer(self) -> None:
        """A timer."""

    def told(self, *_events: Any) -> None:
        """A listener."""


def local_event() -> Any:
    """An event of a class that nobody can import."""

    @event
    class Local:
        number: int = 0

    return Local


def local_monitor() -> Any:
    """A monitor of a class that nobody can import."""

    class Local(Monitor, persistent=True):
        number: int = 0

    return Local
