"""Finds ids that an engine forgot although a broker may redeliver their messages."""
# ruff: noqa: SLF001

from dataclasses import dataclass

from correlator.core.acknowledgements import Sure
from correlator.core.dedup import DuplicateDetector, EntryPlace
from correlator.runtime.engine import Engine
from correlator.testing.invariants.history import History, ReceivedBatch, Record


@dataclass(slots=True)
class _Doubt:
    """A message that a broker has delivered and has no acknowledgement of, and whose id is stored.

    Attributes:
        receiver: the receiver to which the broker delivered it.
        life: the life in which its id was stored.
        uid: its unique id.
        returned: whether its connection was lost since then.
    """

    receiver: str
    life: int
    uid: str
    returned: bool = False


class Doubts:
    """Follows a history and finds ids that may be redelivered.

    An engine may forget an id, as docs/guarantees.md says, if the broker has delivered its message to another receiver
    meanwhile, or if the engine that holds it was paused and another one has taken over.

    Args:
        history: the history, to which the run still adds records.
    """

    def __init__(self, history: History) -> None:
        self._history = history
        self._read = 0
        self._domains = {name: facts.domain for name, facts in history.setup.receivers.items() if facts.domain}
        self._uids: dict[str, str] = {}
        self._places: dict[str, int] = {}
        self._repeats = False
        self._held: dict[str, dict[str, int]] = {name: {} for name in self._domains}
        self._open: dict[tuple[str, str], _Doubt] = {}

    def forgotten(self, engine: Engine) -> list[tuple[str, str, str]]:
        """Return (receiver, pid, unique id) of messages that may be redelivered and that only the
        windows protect; each once.
        """
        self._follow()
        writer = engine.writer
        if not self._open or writer is None or writer._unknown is not None:  # it is not known yet what is stored
            return []
        kept: dict[str, set[str]] = {}
        lost = []
        for key, doubt in list(self._open.items()):
            receiver = engine.receivers.get(doubt.receiver)
            if receiver is None or receiver.intake.domain is None:
                continue
            if receiver.intake.domain not in kept:
                kept[receiver.intake.domain] = _kept(engine, writer.domains.detector(receiver.intake.domain))
            if doubt.uid not in kept[receiver.intake.domain]:
                lost.append((doubt.receiver, key[1], doubt.uid))
                del self._open[key]
        return lost

    def uncounted(self, engine: Engine) -> list[tuple[str, int, int]]:
        """Return (receiver, awaited, lost) of receivers that end a doubt too early: `lost` messages may come before its
        end.

        A receiver waits for the messages that it and its neighbours have lost, up to the last one that it has lost
        itself. If a broker delivers one message twice at once, they cannot be counted. Call this after `forgotten`.
        """
        found = []
        for name, domain in self._domains.items() if self._open and not self._repeats else ():
            receiver = engine.receivers.get(name)
            if receiver is None or receiver._source._subscription is None:  # type: ignore[attr-defined]
                continue
            awaited = receiver.intake.redeliveries.awaited
            if awaited is None:
                continue
            lost = [(self._places[pid], doubt) for (its, pid), doubt in self._open.items() if its == domain]
            lost = [(place, doubt) for place, doubt in lost if doubt.returned]
            last = max((place for place, doubt in lost if doubt.receiver == name), default=-1)
            before = sum(place <= last for place, _ in lost)
            if before > awaited:
                found.append((name, awaited, before))
        return found

    def _follow(self) -> None:
        records = self._history.records
        for at in range(self._read, len(records)):
            record = records[at]
            if record.kind == "published":
                for one in record.data:
                    self._uids[one.pid], self._places[one.pid] = one.uid, len(self._places)
            elif record.kind == "fault":
                self._repeats = self._repeats or record.who == "receive.repeat"
            elif record.kind == "began":
                self._overtaken(record.life)
            elif record.who in self._domains:
                self._moved(record)
        self._read = len(records)

    def _moved(self, record: Record) -> None:
        if record.kind == "delivered":
            self._held[record.who].update(dict.fromkeys(record.data, record.life))
            for key, doubt in self._keyed(record):
                if doubt.receiver != record.who:
                    del self._open[key]
        elif record.kind == "received":
            self._stored(record.who, record.life, record.data)
        elif record.kind in ("returned", "acknowledged"):
            self._given_up(record)

    def _given_up(self, record: Record) -> None:
        """Note that the receiver no longer holds these messages: the broker has them back, or has their
        acknowledgement.
        """
        for pid in record.data:
            self._held[record.who].pop(pid, None)
        for key, doubt in self._keyed(record):
            if record.kind == "returned":
                doubt.returned = True
            else:
                del self._open[key]

    def _keyed(self, record: Record) -> list[tuple[tuple[str, str], _Doubt]]:
        keys = [(self._domains[record.who], pid) for pid in dict.fromkeys(record.data)]  # a chunk may contain one twice
        return [(key, self._open[key]) for key in keys if key in self._open]

    def _stored(self, receiver: str, life: int, received: ReceivedBatch) -> None:
        """Note that a batch was stored with its ids, including those of repeats, for all that the
        receiver holds in this life.
        """
        for pid, holder in self._held[receiver].items():
            uid = self._uids.get(pid, "")
            if holder == life and uid in received.ids:
                self._open[self._domains[receiver], pid] = _Doubt(receiver, life, uid)

    def _overtaken(self, life: int) -> None:
        """Forget the doubts of a paused engine when another one begins: nobody knows when its messages
        are redelivered.
        """
        for key, doubt in list(self._open.items()):
            if not doubt.returned and doubt.life < life:
                del self._open[key]


def _kept(engine: Engine, detector: DuplicateDetector) -> set[str]:
    """Return the ids of pinned batches that no receiver takes for certainly acknowledged; no window
    removes these ids.
    """
    kept: set[str] = set()
    for number in detector._pinned:
        segment = detector._segments[number]
        receiver = engine.receivers.get(segment.receiver)
        if receiver is None or not _is_sure(receiver.intake.redeliveries.sure, segment.batch):
            kept.update(entry.id for entry in segment.entries if entry.place is not EntryPlace.GONE)
    return kept


def _is_sure(sure: Sure, batch: int) -> bool:
    return batch <= sure.through or sure.doubtful_through < batch <= sure.beyond
