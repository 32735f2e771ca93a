"""Where each key of state lies among the store's state segments, and which segments to clean.

State is a log: a checkpoint appends what changed, so that its cost follows the change and not the size of the state
(rows updated in place cost six times as much at 1,000,000 keys as at 10,000: each touches its own page). The oldest
segments are cleaned, a few at each checkpoint, while more than half of what is stored is superseded: their living
entries are appended again and the segments dropped, so that storage stays below about twice the living state.

A deletion is an entry without a value. It may be dropped with its segment once that is the oldest: no earlier version
can be left. Plan, commit, apply, as everywhere. Owner: the store writer's thread.
"""

from collections.abc import Iterable, Sequence

import msgspec

from correlator.core.commit import StateEntry, StateSegment
from correlator.core.pieces import pieces

SEGMENT_ENTRIES = 1000
"""Most entries of one segment: bounds what cleaning reads at once."""


class StatePlan(msgspec.Struct, frozen=True, gc=False):
    """Segments to write and numbers to drop in one transaction."""

    segments: list[StateSegment]
    dropped: list[int]


def put(values: dict[str, dict[bytes, bytes]], entry: StateEntry) -> None:
    """Let an entry take place in values by owner and key."""
    owned = values.setdefault(entry.owner, {})
    if entry.value is None:
        owned.pop(entry.key, None)
    else:
        owned[entry.key] = entry.value


class StateLog:
    """The index of the state log."""

    def __init__(self) -> None:
        self._where: dict[str, dict[bytes, int]] = {}
        self._stored: dict[int, int] = {}
        self._total_stored = 0
        self._living = 0
        self._last_number = 0

    @property
    def stored(self) -> int:
        """Entries that the store holds, superseded ones included."""
        return self._total_stored

    @property
    def living(self) -> int:
        """Keys that have a value."""
        return self._living

    def restore(self, segments: Iterable[StateSegment]) -> dict[str, dict[bytes, bytes]]:
        """Build the index from all segments in the order of their numbers; returns the living values by owner."""
        values: dict[str, dict[bytes, bytes]] = {}
        for segment in segments:
            self._enter(segment)
            for entry in segment.entries:
                put(values, entry)
        return values

    def to_clean(self, changed: int) -> list[int]:
        """Numbers of the segments whose content `plan` needs, oldest first, for a checkpoint of `changed` entries."""
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
        """What to write for the changes (at most one per key), together with what still lives of cleaned segments."""
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
        """The plan is committed."""
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
