"""The duplicate detector of one domain: a finite memory of unique message ids (docs/rules.md, section A8).

Theory of operation. Every accepted id is an *entry* in exactly one place:

- the *source window*: the newest `per_source_window_size` ids of its source (rules A8.3, A8.5, A8.6);
- the *time queue*, shared by the domain: ids pushed out of a full source window, and the older entry of an id that
  was seen again (rules A8.14, A8.15). An entry leaves it when it is older than the newest one *in that queue* by more
  than `expiry_time` (rule Z5): an idle domain forgets nothing, and no clock is asked;
- *held*: expired, but the broker may still send it again since the acknowledgement of its batch is not certain
  (trap T16). It leaves when the acknowledgement is, or when a line is lost and the same id is held with a later
  batch of its receiver.

Look-up is by id over all sources of the domain (rule Z10). The order is plan, commit, apply: `plan` changes nothing, so
that a commit that fails leaves memory as the store is.

The store holds the ids of a batch as one segment, and the detector is a function of the segments: `restore` replays
them. What ends an entry always came after it, so replaying leaves it ended as long as that is still stored. Therefore
only the oldest segments are deleted, once all their entries have ended; and when three quarters of what is stored have
ended, all segments are cleaned in one transaction: each is replaced by its survivors, those that are held marked as
such. Storage stays below four times the living ids, and cleaning costs less than storing did.

Owner: the store writer's thread.
"""

import heapq
import itertools
import sys
from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Any

import msgspec

from correlator.core.commit import IdRun, IdSegment

MAX_SOURCES = 100_000
"""Sources with a window of their own; beyond it the least recent window moves to the time queue (trap T21)."""

SPARSE = 4
"""Ids stored for each living one before cleaning."""
SLACK = 10_000
"""Ended ids that may be stored beyond three quarters: cleaning is for many at once."""


class Place(IntEnum):
    """Where an entry is."""

    WINDOW = 0
    TIME_QUEUE = 1
    HELD = 2
    GONE = 3


_WINDOW, _TIME_QUEUE, _HELD, _GONE = Place  # an enum member costs a look-up at each use


class _Entry(msgspec.Struct, gc=False):
    id: str
    source: str
    digest: int
    time: float
    segment: int
    place: Place


class _Segment:
    """What the store holds under one number, how much of it is alive, and how many are stored as held."""

    __slots__ = ("batch", "entries", "held", "live", "marked", "pinned", "receiver")

    def __init__(self, receiver: str, batch: int, *, pinned: bool) -> None:
        self.receiver = receiver
        self.batch = batch
        self.pinned = pinned
        self.entries: list[_Entry] = []
        self.live = 0
        self.marked = 0
        self.held: list[_Entry] = []

    @property
    def clean(self) -> bool:
        """Whether what is stored is what lives."""
        return self.live == len(self.entries) and self.marked == len(self.held)


class _Window:
    """The ids of one source, oldest first; entries that moved away stay in the deque until they are passed."""

    __slots__ = ("live", "queue")

    def __init__(self) -> None:
        self.queue: deque[_Entry] = deque()
        self.live = 0


class Candidates(msgspec.Struct, frozen=True, gc=False):
    """Ids of one received batch, parallel lists; "" means no id, or no source."""

    receiver: str
    batch: int
    ids: list[str]
    sources: list[str]
    digests: list[int]


class Plan(msgspec.Struct, frozen=True, gc=False):
    """What the detector would do with a batch.

    Attributes:
        duplicates: positions of the messages to drop (they are acknowledged all the same).
        conflicts: those among them whose body differs from the one first seen (trap T19).
        segment: the ids to store; `None` when no message has an id.
        rewritten: earlier segments with only their survivors.
        forgotten: numbers of earlier segments without a survivor.
    """

    duplicates: list[int]
    conflicts: list[int]
    segment: IdSegment | None
    rewritten: list[IdSegment]
    forgotten: list[int]


class Sighting(msgspec.Struct, frozen=True, gc=False):
    """One acceptance of a unique id that the store still tells of.

    Attributes:
        time: engine time of receipt, seconds.
        receiver: who received it.
        batch: count of the receiver's batches.
        source: its source, "" for none.
        place: where it is.
        position: in its window, 1 for the next one to leave; 0 elsewhere.
        of: ids in that window; 0 elsewhere.
        newer: ids of its source that must come before it leaves the window; 0 elsewhere.
    """

    time: float
    receiver: str
    batch: int
    source: str
    place: Place
    position: int = 0
    of: int = 0
    newer: int = 0


class DuplicateDetector:
    """Remembers the unique ids of one domain.

    Args:
        domain: name of the domain.
        per_source_window_size: ids kept for each source; 0 keeps none by count.
        expiry_time: seconds; 0 keeps none by time.
    """

    def __init__(self, domain: str, per_source_window_size: int, expiry_time: float) -> None:
        self.domain = domain
        self._window_size = per_source_window_size
        self._expiry_time = expiry_time
        self._entries: dict[str, _Entry] = {}
        self._windows: OrderedDict[str, _Window] = OrderedDict()
        self._times: list[float] = []
        self._time_queue: dict[float, list[_Entry]] = {}
        self._newest = float("-inf")
        self._segments: dict[int, _Segment] = {}
        self._pinned: dict[int, None] = {}
        self._held: dict[str, list[_Entry]] = {}
        self._stored = 0
        self._living = 0
        self._last_number = 0
        self._last_batches: dict[str, int] = {}
        self._doubtful: dict[str, int] = {}

    def __len__(self) -> int:
        """Ids remembered."""
        return len(self._entries)

    def __contains__(self, unique_id: str) -> bool:
        """Whether a message with this id would be dropped."""
        return unique_id in self._entries

    def place(self, unique_id: str) -> Place:
        """Where the newest entry of an id is; `GONE` for one that is not remembered."""
        entry = self._entries.get(unique_id)
        return entry.place if entry else Place.GONE

    def sightings(self, unique_id: str) -> list[Sighting]:
        """What is known of an id, oldest first; for commands, since it looks at everything."""
        return [
            self._sighting(entry, segment)
            for segment in self._segments.values()
            for entry in segment.entries
            if entry.id == unique_id
        ]

    def _sighting(self, entry: _Entry, segment: _Segment) -> Sighting:
        found = Sighting(entry.time, segment.receiver, segment.batch, entry.source, entry.place)
        if entry.place is not _WINDOW:
            return found
        living = [one for one in self._windows[entry.source].queue if one.place is _WINDOW]
        at = next(position for position, one in enumerate(living, 1) if one is entry)
        newer = self._window_size - len(living) + at
        return msgspec.structs.replace(found, position=at, of=len(living), newer=newer)

    def last_batch(self, receiver: str) -> int:
        """The highest batch of a receiver that it has seen, 0 for none; any thread may ask."""
        return self._last_batches.get(receiver, 0)

    def plan(self, candidates: Candidates, now: float, after: Sequence[Plan] = ()) -> Plan:
        """Tell duplicates from new messages, changing nothing.

        Args:
            candidates: the batch.
            now: engine time of receipt, seconds.
            after: plans of the same transaction that are not applied yet, oldest first.
        """
        earlier = _ids_of(after)
        if self._all_new(candidates.ids, earlier):
            duplicates: list[int] = []
            conflicts: list[int] = []
        else:
            duplicates, conflicts = self._duplicates(candidates, earlier)
        rewritten, forgotten = ([], []) if after else self._reclaimable()
        return Plan(duplicates, conflicts, self._segment(candidates, now, len(after)), rewritten, forgotten)

    def apply(self, plan: Plan) -> None:
        """Remember what was planned, now that it is committed."""
        for segment in plan.rewritten:
            self._shrink(segment.number)
        for number in plan.forgotten:
            self._stored -= len(self._segments.pop(number).entries)
            self._pinned.pop(number, None)
        if plan.segment is not None:
            self._enter(plan.segment, pinned=True)

    def confirm(self, receiver: str, batch: int, *, after: int = 0) -> None:
        """The broker surely knows the batches of the receiver up to this one as acknowledged: unpin them.

        Args:
            receiver: whose they are.
            batch: the last of them.
            after: the last one before them.
        """
        for number in list(self._pinned):
            segment = self._segments[number]
            if segment.receiver == receiver and after < segment.batch <= batch:
                self._unpin(number, segment)

    def doubt(self, receiver: str, through: int) -> None:
        """All pinned batches of the receiver up to this one may come again, and will be unpinned together.

        So of an id that came with several of them the newest entry is enough. Otherwise a broker that gives the same
        messages at every connection, and never has their acknowledgement, would fill the store.

        Args:
            receiver: whose they are.
            through: the last of them.
        """
        if through <= self._doubtful.get(receiver, 0):
            return
        self._doubtful[receiver] = through
        newer: set[str] = set()
        for number in reversed(self._pinned):
            segment = self._segments[number]
            if segment.receiver == receiver and segment.batch <= through:
                for entry in segment.held:
                    if entry.id in newer:
                        self._let_go(entry, segment)
                segment.held = [entry for entry in segment.held if entry.place is _HELD]
                newer.update(entry.id for entry in segment.entries if entry.place is not _GONE)

    def restore(self, segments: Iterable[IdSegment], confirmed: Mapping[str, int]) -> None:
        """Rebuild from the store's segments in the order of their numbers; may be called for one after the other.

        Args:
            segments: segments of this domain.
            confirmed: for each receiver the last batch surely acknowledged; later ones are pinned.
        """
        for segment in segments:
            self._enter(segment, pinned=segment.batch > confirmed.get(segment.receiver, 0))

    def _all_new(self, ids: list[str], earlier: dict[str, int]) -> bool:
        distinct = set(ids)
        return (
            len(distinct) == len(ids)
            and self._entries.keys().isdisjoint(distinct)
            and (not earlier or earlier.keys().isdisjoint(distinct))
        )

    def _duplicates(self, candidates: Candidates, seen: dict[str, int]) -> tuple[list[int], list[int]]:
        duplicates, conflicts = [], []
        for position, unique_id in enumerate(candidates.ids):
            if not unique_id:
                continue
            digest = candidates.digests[position]
            known = seen.get(unique_id)
            if known is None and (entry := self._entries.get(unique_id)) is not None:
                known = entry.digest
            if known is None:
                seen[unique_id] = digest
                continue
            duplicates.append(position)
            if known != digest:
                conflicts.append(position)
        return duplicates, conflicts

    def _segment(self, candidates: Candidates, now: float, planned: int) -> IdSegment | None:
        ids, sources, digests = candidates.ids, candidates.sources, candidates.digests
        if "" in ids:
            having = [position for position, unique_id in enumerate(ids) if unique_id]
            ids = [ids[position] for position in having]
            sources = [sources[position] for position in having]
            digests = [digests[position] for position in having]
        if not ids:
            return None
        number = self._last_number + planned + 1
        run = IdRun(now, ids, sources, digests)
        return IdSegment(self.domain, number, candidates.receiver, candidates.batch, [run])

    def _reclaimable(self) -> tuple[list[IdSegment], list[int]]:
        """Segments to replace and numbers to delete in the next transaction."""
        if self._stored > SPARSE * self._living + SLACK:
            dirty = [number for number, segment in self._segments.items() if segment.live and not segment.clean]
            ended = [number for number, segment in self._segments.items() if not segment.live]
            return [self._survivors(number) for number in dirty], ended
        oldest = itertools.takewhile(lambda item: not item[1].live, self._segments.items())
        return [], [number for number, _ in oldest]

    def _survivors(self, number: int) -> IdSegment:
        segment = self._segments[number]
        runs: list[IdRun] = []
        for entry in segment.entries:
            if entry.place is _GONE:
                continue
            held = entry.place is _HELD
            if not runs or (runs[-1].time, runs[-1].held) != (entry.time, held):
                runs.append(IdRun(entry.time, [], [], [], held))
            runs[-1].ids.append(entry.id)
            runs[-1].sources.append(entry.source)
            runs[-1].digests.append(entry.digest)
        return IdSegment(self.domain, number, segment.receiver, segment.batch, runs)

    def _shrink(self, number: int) -> None:
        segment = self._segments[number]
        self._stored -= len(segment.entries) - segment.live
        segment.entries = [entry for entry in segment.entries if entry.place is not _GONE]
        segment.marked = len(segment.held)

    def _enter(self, stored: IdSegment, *, pinned: bool) -> None:
        number = stored.number
        segment = self._segments[number] = _Segment(stored.receiver, stored.batch, pinned=pinned)
        self._last_number = max(self._last_number, number)
        self._last_batches[stored.receiver] = max(self.last_batch(stored.receiver), stored.batch)
        if pinned:
            self._pinned[number] = None
        for run in stored.runs:
            made = self._enter_run(number, segment, run)
            if run.held:
                segment.marked += len(made)
                for entry in made:
                    self._entries[entry.id] = entry
                    self._forget(entry)
            else:
                self._enter_living(made, run)

    def _enter_run(self, number: int, segment: _Segment, run: IdRun) -> list[_Entry]:
        time = run.time
        names = {source: sys.intern(source) for source in dict.fromkeys(run.sources)}  # one string for all its ids
        made = [
            _Entry(unique_id, names[source], digest, time, number, _WINDOW)
            for unique_id, source, digest in zip(run.ids, run.sources, run.digests, strict=True)
        ]
        segment.entries.extend(made)
        segment.live += len(made)
        self._stored += len(made)
        self._living += len(made)
        return made

    def _enter_living(self, made: list[_Entry], run: IdRun) -> None:
        if self._all_new(run.ids, {}):
            self._entries.update(zip(run.ids, made, strict=True))
            self._enter_windows(made, run.sources)
        else:
            for entry in made:
                self._enter_repeated(entry)
        self._bound_sources()
        self._expire()

    def _enter_repeated(self, entry: _Entry) -> None:
        repeated = self._entries.get(entry.id)
        self._entries[entry.id] = entry
        if repeated is not None and repeated.place is _WINDOW:
            self._leave_window(repeated)
        self._enter_windows([entry], [entry.source])

    def _enter_windows(self, entries: list[_Entry], sources: list[str]) -> None:
        distinct = set(sources)
        if not self._window_size:
            for entry in entries:
                self._enter_time_queue(entry)
        elif len(distinct) == 1:
            self._enter_window(sources[0], entries)
        else:
            by_source: dict[str, list[_Entry]] = {}
            for entry in entries:
                by_source.setdefault(entry.source, []).append(entry)
            for source, of_source in by_source.items():
                self._enter_window(source, of_source)

    def _enter_window(self, source: str, entries: list[_Entry]) -> None:
        window = self._windows.get(source)
        if window is None:
            window = self._windows[source] = _Window()
        else:
            self._windows.move_to_end(source)
        window.queue.extend(entries)
        window.live += len(entries)
        if window.live > self._window_size:
            self._push_out_oldest(window)

    def _push_out_oldest(self, window: _Window) -> None:
        popleft, excess = window.queue.popleft, window.live - self._window_size
        window.live = self._window_size
        time, bucket = float("nan"), []
        while excess:
            oldest = popleft()
            if oldest.place is not _WINDOW:
                continue
            excess -= 1
            if oldest.time != time:
                time, bucket = oldest.time, self._bucket(oldest.time)
            oldest.place = _TIME_QUEUE
            bucket.append(oldest)

    def _leave_window(self, entry: _Entry) -> None:
        window = self._windows[entry.source]
        window.live -= 1
        self._enter_time_queue(entry)
        if not window.live:
            del self._windows[entry.source]
        elif len(window.queue) > 2 * window.live + 16:
            window.queue = deque(kept for kept in window.queue if kept.place is _WINDOW)

    def _enter_time_queue(self, entry: _Entry) -> None:
        entry.place = _TIME_QUEUE
        self._bucket(entry.time).append(entry)

    def _bucket(self, time: float) -> list[_Entry]:
        bucket = self._time_queue.get(time)
        if bucket is None:
            bucket = self._time_queue[time] = []
            heapq.heappush(self._times, time)
            self._newest = max(self._newest, time)
        return bucket

    def _expire(self) -> None:
        everything = not self._expiry_time
        oldest_kept = self._newest - self._expiry_time
        while self._times and (everything or self._times[0] < oldest_kept):
            for entry in self._time_queue.pop(heapq.heappop(self._times)):
                self._forget(entry)

    def _forget(self, entry: _Entry) -> None:
        segment = self._segments[entry.segment]
        if segment.pinned:
            entry.place = _HELD
            segment.held.append(entry)
            self._held.setdefault(entry.id, []).append(entry)
        else:
            self._end(entry, segment)

    def _end(self, entry: _Entry, segment: _Segment) -> None:
        entry.place = _GONE
        if self._entries.get(entry.id) is entry:
            self._look_up_held(entry.id)
        segment.live -= 1
        self._living -= 1

    def _look_up_held(self, unique_id: str) -> None:
        """The newest entry is gone; an older one may be held for another receiver, whose redelivery may still come."""
        held = self._held.get(unique_id)
        if held:
            self._entries[unique_id] = held[-1]
        else:
            del self._entries[unique_id]

    def _unpin(self, number: int, segment: _Segment) -> None:
        del self._pinned[number]
        segment.pinned = False
        held, segment.held = segment.held, []
        for entry in held:
            self._let_go(entry, segment)

    def _let_go(self, entry: _Entry, segment: _Segment) -> None:
        """It is held no more."""
        others = [other for other in self._held.pop(entry.id) if other is not entry]
        if others:
            self._held[entry.id] = others
        self._end(entry, segment)

    def _bound_sources(self) -> None:
        while len(self._windows) > MAX_SOURCES:
            _, window = self._windows.popitem(last=False)
            for entry in window.queue:
                if entry.place is _WINDOW:
                    self._enter_time_queue(entry)


def surely_acknowledged(
    segment: IdSegment, confirmed: Mapping[str, int], domains: Mapping[str, str]
) -> Mapping[str, int]:
    """What `restore` is to take as acknowledged.

    A receiver that is in the registry no more is not given these messages again, nor is one that has another domain
    there since its logical destination leads elsewhere.

    Args:
        segment: ids to restore.
        confirmed: for each receiver the last batch surely acknowledged.
        domains: of the receivers in the registry.
    """
    return confirmed if domains.get(segment.receiver) == segment.domain else {segment.receiver: segment.batch}


def _ids_of(plans: Sequence[Plan]) -> dict[str, int]:
    seen: dict[str, int] = {}
    for plan in plans:
        if plan.segment is not None:
            for run in plan.segment.runs:
                seen.update(zip(run.ids, run.digests, strict=True))
    return seen


def window_contents(detector: DuplicateDetector) -> dict[str, Any]:
    """The detector's content for comparison and display: ids by source window, and the time queue by time."""
    return {
        "windows": {
            source: [entry.id for entry in window.queue if entry.place is Place.WINDOW]
            for source, window in detector._windows.items()  # noqa: SLF001
        },
        "time_queue": {
            time: sorted(entry.id for entry in bucket)
            for time, bucket in detector._time_queue.items()  # noqa: SLF001
        },
    }
