"""The index of the state log, which knows for each key the segment that holds its value; and the compaction of the log.

State is a log: a checkpoint appends the changed entries, so its cost depends on the changes and not on the size of the
state (rows updated in place cost six times as much with 1,000,000 keys as with 10,000: each row touches a page of its
own). While more than half of the stored entries are superseded, each checkpoint compacts a few of the oldest segments:
it appends their living entries again and drops the segments. So the log stays below about twice the living state.

A deletion is an entry without a value. It can be dropped together with its segment if this segment is the oldest one,
because no earlier segment can hold a value of the key. The order of the calls is plan, commit, apply. The thread of the
store writer makes them.
"""

from collections.abc import Iterable, Sequence

import msgspec

from correlator.core.commit import StateEntry, StateSegment
from correlator.core.pieces import pieces

SEGMENT_ENTRIES = 1000
"""How many entries a segment has at most; this limits how much compaction reads at once."""


class StatePlan(msgspec.Struct, frozen=True, gc=False):
    """The segments that one transaction writes, and the numbers of the segments that it drops."""

    segments: list[StateSegment]
    dropped: list[int]


def put(values: dict[str, dict[bytes, bytes]], entry: StateEntry) -> None:
    """Apply an entry to `values`, which has the values by owner and key."""
    owned = values.setdefault(entry.owner, {})
    if entry.value is None:
        owned.pop(entry.key, None)
    else:
        owned[entry.key] = entry.value


class StateLog:
    """The index of one state log. Owner: the thread of the store writer."""

    def __init__(self) -> None:
        self._where: dict[str, dict[bytes, int]] = {}
        self._stored: dict[int, int] = {}
        self._total_stored = 0
        self._living = 0
        self._last_number = 0

    @property
    def stored(self) -> int:
        """The number of entries in the store, including superseded ones."""
        return self._total_stored

    @property
    def living(self) -> int:
        """The number of keys that have a value."""
        return self._living

    def restore(self, segments: Iterable[StateSegment]) -> dict[str, dict[bytes, bytes]]:
        """Build the index from all segments in the order of their numbers; returns the values by owner and key."""
        values: dict[str, dict[bytes, bytes]] = {}
        for segment in segments:
            self._enter(segment)
            for entry in segment.entries:
                put(values, entry)
        return values

    def to_clean(self, changed: int) -> list[int]:
        """The segments that a checkpoint of `changed` entries compacts, oldest first; `plan` needs their content."""
        numbers: list[int] = []
        budget = 3 * changed + SEGMENT_ENTRIES
        excess = self._total_stored - 2 * self._living - SEGMENT_ENTRIES
        for number, stored in self._stored.items():
            if budget <= 0 or excess <= 0:
                break
            numbers.append(number)
            budget -= stored
            excess -= stored
        return numbers

    def plan(self, changes: Sequence[StateEntry], cleaned: Sequence[StateSegment]) -> StatePlan:
        """Plan the segments for the changes, at most one entry for each key, and for the living entries of compacted
        segments.

        Args:
            changes: the changed entries.
            cleaned: the segments that `to_clean` has named.
        """
        entries = list(changes)
        if cleaned:
            changed = {(entry.owner, entry.key) for entry in changes}
            for segment in cleaned:
                entries.extend(
                    entry
                    for entry in segment.entries
                    if self._where.get(entry.owner, {}).get(entry.key) == segment.number
                    and (entry.owner, entry.key) not in changed
                )
        sizes = [len(entry.key) + len(entry.value or b"") for entry in entries]
        chunks = pieces(entries, sizes, SEGMENT_ENTRIES)
        segments = [StateSegment(self._last_number + 1 + index, list(chunk)) for index, chunk in enumerate(chunks)]
        return StatePlan(segments, [segment.number for segment in cleaned])

    def apply(self, plan: StatePlan) -> None:
        """Update the index; called after the commit of the plan."""
        for segment in plan.segments:
            self._enter(segment)
        for number in plan.dropped:
            self._total_stored -= self._stored.pop(number)

    def _enter(self, segment: StateSegment) -> None:
        number = segment.number
        self._stored[number] = len(segment.entries)
        self._total_stored += len(segment.entries)
        self._last_number = max(self._last_number, number)
        for entry in segment.entries:
            where = self._where.get(entry.owner)
            if where is None:
                where = self._where[entry.owner] = {}
            self._living -= entry.key in where
            if entry.value is None:
                where.pop(entry.key, None)
                if not where:
                    del self._where[entry.owner]
            else:
                where[entry.key] = number
                self._living += 1
