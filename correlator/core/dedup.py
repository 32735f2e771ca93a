"""The duplicate detector of one domain: a finite memory of unique message ids (docs/rules.md, section A8).

How it works. Every accepted id is an *entry* in exactly one place:

- the *source window*: the newest `per_source_window_size` ids of a source (rules A8.3, A8.5, A8.6);
- the *time queue*, which the sources of a domain share: ids that a newer id pushed out of a full source window, and the
  older entry of an id that was received again (rules A8.14, A8.15). An entry leaves the queue when it is more than
  `expiry_time` older than the newest entry *of the queue* (rule Z5). So an idle domain forgets nothing, and no clock is
  needed;
- *held*: the entry has expired, but the broker may redeliver its message, since nobody knows whether the broker has the
  acknowledgement of the batch (trap T16). The entry leaves when the broker certainly has the acknowledgement, or when a
  connection is lost and the same id is held with a later batch of its receiver.

The detector looks for an id among all sources of the domain (rule Z10). The order is plan, commit, apply: `plan`
changes nothing, so after a failed commit memory is the same as the store.

The store holds the ids of a batch as one segment, and the detector is a function of the segments: `restore` replays
them. The segment that ended an entry is always newer than the entry, so a replay ends the entry again as long as the
newer segment is stored. Therefore segments are deleted from the oldest on, once all their entries have ended. When
three quarters of the stored ids have ended, one transaction replaces every segment by its surviving entries, and marks
those that are held. This transaction is a *compaction*. So the store holds at most four times the living ids, and a
compaction costs less than it cost to store the ids.

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
"""How many sources have windows. When a further source comes, the ids of the least recently used window move to the
time queue (trap T21)."""

SPARSE = 4
"""A compaction begins when the store holds more than this many ids for each living id."""
SLACK = 10_000
"""Ended ids that the store may hold beyond this ratio, so that a compaction frees enough to be worth its
transaction."""


class EntryPlace(IntEnum):
    """Where the entry of an id is."""

    WINDOW = 0
    TIME_QUEUE = 1
    HELD = 2
    GONE = 3


_WINDOW, _TIME_QUEUE, _HELD, _GONE = EntryPlace  # as globals, since each access to an enum member costs a look-up


class _Entry(msgspec.Struct, gc=False):
    id: str
    source: str
    digest: int
    time: float
    segment: int
    place: EntryPlace


class _Segment:
    """A segment of the store: how many of its entries are alive, and how many are stored as held."""

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
        """Whether the store holds exactly the living entries of the segment."""
        return self.live == len(self.entries) and self.marked == len(self.held)


class _Window:
    """The ids of one source, oldest first. An entry that has moved away stays in the deque until its turn."""

    __slots__ = ("live", "queue")

    def __init__(self) -> None:
        self.queue: deque[_Entry] = deque()
        self.live = 0


class Candidates(msgspec.Struct, frozen=True, gc=False):
    """The ids of one received batch, in parallel lists; "" stands for no id or no source."""

    receiver: str
    batch: int
    ids: Sequence[str]
    sources: Sequence[str]
    digests: Sequence[int]


class DetectionPlan(msgspec.Struct, frozen=True, gc=False):
    """What the detector stores and remembers of a batch once the plan is committed.

    Attributes:
        duplicates: positions of the messages to drop, which are acknowledged like the others.
        conflicts: positions of duplicates whose body differs from the body that was received first (trap T19).
        segment: the ids to store; `None` when no message has an id.
        rewritten: earlier segments, reduced to their surviving entries.
        forgotten: numbers of earlier segments without a surviving entry.
    """

    duplicates: list[int]
    conflicts: list[int]
    segment: IdSegment | None
    rewritten: list[IdSegment]
    forgotten: list[int]


class Sighting(msgspec.Struct, frozen=True, gc=False):
    """One acceptance of a unique id that the store still holds.

    Attributes:
        time: engine time of receipt in seconds.
        receiver: the receiver that accepted it.
        batch: number of the batch within the receiver.
        source: source of the id; "" for none.
        place: where its entry is.
        position: position of the entry in its window, 1 for the entry that leaves next; 0 outside of a window.
        of: number of ids in that window; 0 outside of a window.
        newer: how many further ids of the source will push the entry out of its window; 0 outside of a window.
    """

    time: float
    receiver: str
    batch: int
    source: str
    place: EntryPlace
    position: int = 0
    of: int = 0
    newer: int = 0


class DuplicateDetector:
    """Remembers the unique ids of one domain.

    Args:
        domain: name of the domain.
        per_source_window_size: number of ids to keep for each source; 0 keeps no id by count.
        expiry_time: seconds for which the time queue keeps an id; 0 keeps no id by time.
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
        """Number of ids that the detector remembers."""
        return len(self._entries)

    def __contains__(self, unique_id: str) -> bool:
        """Whether a message with this id would be dropped."""
        return unique_id in self._entries

    def place(self, unique_id: str) -> EntryPlace:
        """Where the newest entry of an id is; `GONE` for an unknown id."""
        entry = self._entries.get(unique_id)
        return entry.place if entry else EntryPlace.GONE

    def sightings(self, unique_id: str) -> list[Sighting]:
        """All acceptances of an id, oldest first. Searches all entries, so it is for commands only."""
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
        """The highest number of a batch of a receiver with ids, 0 for none. Any thread may call it."""
        return self._last_batches.get(receiver, 0)

    def plan(self, candidates: Candidates, now: float, after: Sequence[DetectionPlan] = ()) -> DetectionPlan:
        """Recognise duplicates, and plan what to store; changes nothing.

        Args:
            candidates: the batch.
            now: engine time of receipt in seconds.
            after: earlier plans of the same transaction, which are not applied yet, oldest first.
        """
        earlier = _ids_of(after)
        duplicates: list[int] = []
        conflicts: list[int] = []
        digests = candidates.digests
        if not self._all_new(candidates.ids, earlier):
            duplicates, conflicts, digests = self._duplicates(candidates, earlier)
        rewritten, forgotten = ([], []) if after else self._reclaimable()
        segment = self._segment(candidates, digests, now, len(after))
        return DetectionPlan(duplicates, conflicts, segment, rewritten, forgotten)

    def apply(self, plan: DetectionPlan) -> None:
        """Remember the ids of a plan that is committed."""
        for segment in plan.rewritten:
            self._shrink(segment.number)
        for number in plan.forgotten:
            self._stored -= len(self._segments.pop(number).entries)
            self._pinned.pop(number, None)
        if plan.segment is not None:
            self._enter(plan.segment, pinned=True, all_new=not plan.duplicates)

    def confirm(self, receiver: str, batch: int, *, after: int = 0) -> None:
        """Unpin batches of a receiver: the broker certainly has their acknowledgements.

        Args:
            receiver: the receiver.
            batch: number of the last batch to unpin.
            after: number of the batch after which they begin; batches up to this number stay as they are.
        """
        for number in list(self._pinned):
            segment = self._segments[number]
            if segment.receiver == receiver and after < segment.batch <= batch:
                self._unpin(number, segment)

    def doubt(self, receiver: str, through: int) -> None:
        """Treat the pinned batches of a receiver as one: a lost connection has left all of them in doubt together.

        They will be unpinned together. So if several of these batches contain an id, its newest entry is enough. If the
        detector kept all entries, a broker that delivers the same messages at every connection, and never gets their
        acknowledgement, would fill the store.

        Args:
            receiver: the receiver.
            through: number of the last batch in doubt.
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
        """Rebuild the detector from stored segments, in the order of their numbers, by one call or by several.

        Args:
            segments: segments of this domain.
            confirmed: for each receiver, the last batch that is certainly acknowledged; ids of later batches are
                pinned.
        """
        for segment in segments:
            self._enter(segment, pinned=segment.batch > confirmed.get(segment.receiver, 0))

    def _all_new(self, ids: Sequence[str], earlier: dict[str, int]) -> bool:
        distinct = set(ids)
        return (
            len(distinct) == len(ids)
            and self._entries.keys().isdisjoint(distinct)
            and (not earlier or earlier.keys().isdisjoint(distinct))
        )

    def _duplicates(self, candidates: Candidates, seen: dict[str, int]) -> tuple[list[int], list[int], list[int]]:
        """Positions of duplicates and conflicts, and the digests to store. For a conflict, the digest of the first body
        is stored.
        """
        duplicates, conflicts, digests = [], [], list(candidates.digests)
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
                digests[position] = known
        return duplicates, conflicts, digests

    def _segment(self, candidates: Candidates, digests: Sequence[int], now: float, planned: int) -> IdSegment | None:
        ids, sources = candidates.ids, candidates.sources
        if "" in ids:
            having = [position for position, unique_id in enumerate(ids) if unique_id]
            ids = [ids[position] for position in having]
            sources = [sources[position] for position in having]
            digests = [digests[position] for position in having]
        if not ids:
            return None
        number = self._last_number + planned + 1
        run = IdRun(now, list(ids), list(sources), list(digests))
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

    def _enter(self, stored: IdSegment, *, pinned: bool, all_new: bool = False) -> None:
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
                self._enter_living(made, run, all_new=all_new or self._all_new(run.ids, {}))

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

    def _enter_living(self, made: list[_Entry], run: IdRun, *, all_new: bool) -> None:
        if all_new:
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
        """Look for an older entry after the newest entry of an id has ended.

        The older entry may be held for a redelivery to another receiver.
        """
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
        """End an entry that is held."""
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
    """Return the last acknowledged batch of each receiver, for the `restore` of one segment.

    If the messages of the segment cannot be redelivered, the whole segment counts as acknowledged. This is so if the
    registry no longer has the receiver, or has another domain for it because its logical destination leads elsewhere.

    Args:
        segment: ids to restore.
        confirmed: for each receiver, the last batch that is certainly acknowledged.
        domains: the domains of the receivers in the registry.
    """
    return confirmed if domains.get(segment.receiver) == segment.domain else {segment.receiver: segment.batch}


def _ids_of(plans: Sequence[DetectionPlan]) -> dict[str, int]:
    seen: dict[str, int] = {}
    for plan in plans:
        if plan.segment is not None:
            for run in plan.segment.runs:
                seen.update(zip(run.ids, run.digests, strict=True))
    return seen


def window_contents(detector: DuplicateDetector) -> dict[str, Any]:
    """Return the ids of a detector, for comparison and display: by source window, and by time in the time queue."""
    return {
        "windows": {
            source: [entry.id for entry in window.queue if entry.place is EntryPlace.WINDOW]
            for source, window in detector._windows.items()  # noqa: SLF001
        },
        "time_queue": {
            time: sorted(entry.id for entry in bucket)
            for time, bucket in detector._time_queue.items()  # noqa: SLF001
        },
    }
