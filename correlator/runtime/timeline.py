"""The timeline: the last changes of state of an engine, such as a lost connection or a checkpoint, for those who follow
them (docs/control.md).
"""

import secrets
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

MOST_ENTRIES = 1000
"""A reader that lags behind by more than this number of entries misses some, and the answer says so."""
_LONGEST_TEXT = 500


class TimelineEntry(NamedTuple):
    """One change.

    Attributes:
        id: names the entry: the life of the engine and the number of the entry in it, `LIFE.NUMBER`.
        time: when it happened, in seconds since the epoch.
        name: what happened, such as `checkpoint`; docs/control.md lists the names.
        values: the part to which it happened, and further values.
    """

    id: str
    time: float
    name: str
    values: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """The entry as values that JSON has."""
        return {"id": self.id, "time": self.time, "event": self.name, **self.values}


class News(NamedTuple):
    """What a reader gets.

    Attributes:
        entries: the entries after the place that the reader has named, oldest first.
        missed: whether entries between this place and `entries` are lost, or the place belongs to another life.
        after: the place from which the reader reads on.
        open: whether more entries may come.
    """

    entries: Sequence[TimelineEntry]
    missed: bool
    after: str
    open: bool


class Timeline:
    """The last `MOST_ENTRIES` entries of one life. Any thread may use it; nobody ever waits for a reader.

    Args:
        wall: the time of day, in seconds since the epoch.
    """

    def __init__(self, wall: Callable[[], float]) -> None:
        self._wall = wall
        self._life = secrets.token_hex(4)
        self._count = 0
        self._entries: deque[TimelineEntry] = deque(maxlen=MOST_ENTRIES)
        self._open = True
        self._changed = threading.Condition()

    def add(self, name: str, **values: Any) -> None:
        """Add an entry. A long text is cut."""
        short = {key: value[:_LONGEST_TEXT] if isinstance(value, str) else value for key, value in values.items()}
        with self._changed:
            self._count += 1
            self._entries.append(TimelineEntry(self._place(self._count), self._wall(), name, short))
            self._changed.notify_all()

    def close(self) -> None:
        """Let readers know that no further entry comes."""
        with self._changed:
            self._open = False
            self._changed.notify_all()

    def read(self, after: str | None, most: int, wait_s: float = 0.0) -> News:
        """Return the entries after a place; for an unknown place or `None`, all entries that are left.

        Args:
            after: `id` of the last entry that the reader has, or `after` of the `News` that it has read before.
            most: largest number of entries.
            wait_s: how long to wait for an entry if there is none yet.
        """
        with self._changed:
            seen = self._number(after)
            self._changed.wait_for(lambda: self._count > (seen or 0) or not self._open, wait_s)
            first = self._count - len(self._entries) + 1
            missed = after is not None and (seen is None or seen + 1 < first)
            begin = max((seen or 0) + 1, first)
            entries = [self._entries[number - first] for number in range(begin, min(self._count + 1, begin + most))]
            through = begin - 1 + len(entries)
            return News(entries, missed, self._place(through), self._open or through < self._count)

    def _place(self, number: int) -> str:
        return f"{self._life}.{number}"

    def _number(self, place: str | None) -> int | None:
        """The number of a place in this life; `None` for any other text."""
        life, _, digits = (place or "").partition(".")
        known = life == self._life and digits.isascii() and digits.isdigit() and len(digits) < 20
        return min(int(digits), self._count) if known else None
