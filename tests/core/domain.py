"""A duplicate detector beside the store that it would have, and a model of both in plain Python."""

from dataclasses import dataclass, field
from itertools import count

from correlator.core.commit import IdSegment
from correlator.core.dedup import Candidates, DetectionPlan, DuplicateDetector


class Domain:
    """A detector with the segments that a store would hold: what was committed, and nothing else."""

    def __init__(self, window: int = 2000, expiry: float = 120.0) -> None:
        self.window = window
        self.expiry = expiry
        self.detector = DuplicateDetector("d", window, expiry)
        self.stored: dict[int, IdSegment] = {}
        self.batches: dict[str, int] = {}
        self.confirmed: dict[str, int] = {}

    def receive(
        self, *ids: str, source: str = "s", at: float = 0.0, receiver: str = "r", confirm: bool = True
    ) -> list[str]:
        """Receive a batch of one source; returns the ids of the messages that would reach monitors."""
        return self.receive_pairs([(one, source) for one in ids], at=at, receiver=receiver, confirm=confirm)

    def receive_pairs(
        self, pairs: list[tuple[str, str]], *, at: float, receiver: str = "r", confirm: bool = True
    ) -> list[str]:
        """Receive a batch of (id, source)."""
        plan = self.plan(pairs, at=at, receiver=receiver)
        self.commit(plan)
        if confirm:
            self.confirm(receiver)
        return [unique_id for position, (unique_id, _) in enumerate(pairs) if position not in plan.duplicates]

    def plan(
        self,
        pairs: list[tuple[str, str]],
        *,
        at: float = 0.0,
        receiver: str = "r",
        after: tuple[DetectionPlan, ...] = (),
    ) -> DetectionPlan:
        """The plan for the next batch of a receiver."""
        self.batches[receiver] = batch = self.batches.get(receiver, 0) + 1
        ids, sources = [one for one, _ in pairs], [source for _, source in pairs]
        candidates = Candidates(receiver, batch, ids, sources, [hash_of(one) for one in ids])
        return self.detector.plan(candidates, at, after)

    def commit(self, plan: DetectionPlan) -> None:
        """What the store writer does: one transaction, then `apply`."""
        for segment in (*plan.rewritten, *([plan.segment] if plan.segment else [])):
            self.stored[segment.number] = segment
        for number in plan.forgotten:
            del self.stored[number]
        self.detector.apply(plan)

    def confirm(self, receiver: str = "r") -> None:
        """The broker surely has the acknowledgement of the receiver's last batch."""
        self.confirmed[receiver] = self.batches.get(receiver, 0)
        self.detector.confirm(receiver, self.confirmed[receiver])

    def lose(self, receiver: str = "r") -> None:
        """The receiver's line was lost."""
        self.detector.doubt(receiver, self.batches.get(receiver, 0))

    def restored(self) -> DuplicateDetector:
        """The detector that a restart would make of the store."""
        detector = DuplicateDetector("d", self.window, self.expiry)
        detector.restore([self.stored[number] for number in sorted(self.stored)], self.confirmed)
        return detector

    @property
    def stored_ids(self) -> int:
        """Ids that the store holds, dead ones included."""
        return sum(len(run.ids) for segment in self.stored.values() for run in segment.runs)


def hash_of(unique_id: str) -> int:
    """The digest of the only body that an id has here."""
    return sum(unique_id.encode())


@dataclass
class Entry:
    """An accepted id of the model."""

    id: str
    source: str
    time: float
    receiver: str
    batch: int
    order: int


@dataclass
class Model:
    """The rules of section A8 of docs/rules.md as plainly as they can be written: lists, and a search through them."""

    window: int
    expiry: float
    windows: dict[str, list[Entry]] = field(default_factory=dict)
    time_queue: list[Entry] = field(default_factory=list)
    held: list[Entry] = field(default_factory=list)
    confirmed: dict[str, int] = field(default_factory=dict)
    orders: count = field(default_factory=count)

    def entries(self) -> list[Entry]:
        """Everything remembered."""
        return [*(entry for window in self.windows.values() for entry in window), *self.time_queue, *self.held]

    def knows(self, unique_id: str) -> bool:
        """Whether a message with the id would be dropped."""
        return any(entry.id == unique_id for entry in self.entries())

    def receive(self, pairs: list[tuple[str, str]], at: float, receiver: str, batch: int) -> list[int]:
        """Positions of the duplicates; all ids of the batch are remembered anew."""
        seen: set[str] = set()
        duplicates = []
        for position, (unique_id, _) in enumerate(pairs):
            if unique_id and (unique_id in seen or self.knows(unique_id)):
                duplicates.append(position)
            seen.add(unique_id)
        for unique_id, source in pairs:
            if unique_id:
                self._enter(Entry(unique_id, source, at, receiver, batch, next(self.orders)))
        self._expire()
        return duplicates

    def confirm(self, receiver: str, batch: int) -> None:
        """Nothing is held for these batches any more."""
        self.confirmed[receiver] = batch
        self.held = [entry for entry in self.held if not self._sure(entry)]

    def lose(self, receiver: str) -> None:
        """All that is held for the receiver may come again: of each id the entries of its newest batch are kept."""
        unsure = [entry for entry in self.entries() if entry.receiver == receiver and not self._sure(entry)]
        newest: dict[str, int] = {}
        for entry in unsure:
            newest[entry.id] = max(newest.get(entry.id, 0), entry.batch)
        self.held = [entry for entry in self.held if entry.receiver != receiver or entry.batch == newest[entry.id]]

    def _enter(self, entry: Entry) -> None:
        for window in self.windows.values():
            for older in [older for older in window if older.id == entry.id]:
                window.remove(older)
                self.time_queue.append(older)
        if not self.window:
            self.time_queue.append(entry)
            return
        window = self.windows.setdefault(entry.source, [])
        window.append(entry)
        if len(window) > self.window:
            self.time_queue.append(window.pop(0))

    def _expire(self) -> None:
        newest = max((entry.time for entry in self.time_queue), default=0.0)
        expired = [entry for entry in self.time_queue if not self.expiry or entry.time < newest - self.expiry]
        self.time_queue = [entry for entry in self.time_queue if entry not in expired]
        self.held.extend(entry for entry in expired if not self._sure(entry))

    def _sure(self, entry: Entry) -> bool:
        return entry.batch <= self.confirmed.get(entry.receiver, 0)
