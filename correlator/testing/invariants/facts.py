"""Indexes over a history, for the invariants: who published which message, which commit accepted it, what is left."""

import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from correlator.reliability import Reliability
from correlator.testing.invariants.history import (
    Checkpointed,
    History,
    Kind,
    Published,
    ReceivedBatch,
    Record,
    Rest,
    Sent,
    Setup,
)

MAX_TRIES = 3
"""Refusals of one send after which it may be given up (the default of `SenderSettings.max_tries`)."""
NEVER = 10**12


@dataclass(slots=True)
class Stream:
    """What one receiver has committed in all lives.

    Attributes:
        pids: messages of the receive log in the order of their numbers.
        at: for each message, the place of its commit in the history.
        segments: (place, life, Received) of each commit.
    """

    pids: list[str] = field(default_factory=list)
    at: list[int] = field(default_factory=list)
    segments: list[tuple[int, int, ReceivedBatch]] = field(default_factory=list)


class Facts:
    """A history with indexes. All invariants of a run share one.

    Args:
        history: the complete history of a run.
    """

    def __init__(self, history: History) -> None:
        self.history = history
        self.setup: Setup = history.setup

    @cached_property
    def published(self) -> dict[str, Published]:
        """Every message of the test, by its `pid`, which is unique for each message even if it repeats another one."""
        return {one.pid: one for _, record in self.history.of("published") for one in record.data}

    @cached_property
    def published_to(self) -> dict[str, list[Published]]:
        """Messages by destination, in the order of publication."""
        found: dict[str, list[Published]] = {}
        for _, record in self.history.of("published"):
            found.setdefault(record.who, []).extend(record.data)
        return found

    @cached_property
    def streams(self) -> dict[str, Stream]:
        """The messages that each receiver has committed to the store, over all lives, by receiver."""
        found: dict[str, Stream] = {}
        for at, record in self.history.of("received"):
            stream = found.setdefault(record.who, Stream())
            stream.segments.append((at, record.life, record.data))
            stream.pids.extend(record.data.pids)
            stream.at.extend([at] * len(record.data.pids))
        return found

    @cached_property
    def durable_at(self) -> dict[tuple[str, str], int]:
        """(receiver, pid) → place of the first commit that contains the message or its dead letter."""
        found: dict[tuple[str, str], int] = {}
        for at, record in self.history.of("received"):
            for pid in record.data.taken:
                found.setdefault((record.who, pid), at)
        return found

    @cached_property
    def accepted_ids(self) -> dict[tuple[str, str], list[int]]:
        """(domain, uid) → places of the commits that accepted a message with this id."""
        found: dict[tuple[str, str], list[int]] = {}
        for name, stream in self.streams.items():
            facts = self.setup.receivers.get(name)
            if facts is None or not facts.domain:
                continue
            for at, _, received in stream.segments:
                for pid in received.taken:
                    if pid in self.published and (uid := self.published[pid].uid):
                        found.setdefault((facts.domain, uid), []).append(at)
        for places in found.values():
            places.sort()
        return found

    @cached_property
    def checkpoints(self) -> list[tuple[int, int, Checkpointed]]:
        """(place, life, checkpoint) of every checkpoint, in order."""
        return [(at, record.life, record.data) for at, record in self.history.of("checkpoint")]

    @cached_property
    def released(self) -> dict[tuple[str, int], tuple[int, bytes]]:
        """(sender, sequence) → place of the checkpoint that releases it, and its body."""
        found: dict[tuple[str, int], tuple[int, bytes]] = {}
        for at, _, checkpoint in self.checkpoints:
            for sender, (first, bodies) in checkpoint.outbound.items():
                for offset, body in enumerate(bodies):
                    found.setdefault((sender, first + offset), (at, body))
        return found

    @cached_property
    def accepted(self) -> dict[str, list[tuple[int, int, Sent]]]:
        """(place, life, message) of everything that the broker stored, by sender."""
        return self._sends("accepted")

    @cached_property
    def refused(self) -> dict[str, list[tuple[int, int, Sent]]]:
        """(place, life, message) of everything that the broker refused, by sender."""
        return self._sends("refused")

    def _sends(self, kind: str) -> dict[str, list[tuple[int, int, Sent]]]:
        found: dict[str, list[tuple[int, int, Sent]]] = {name: [] for name in self.setup.senders}
        for at, record in self.history.of(kind):  # type: ignore[arg-type]
            found.setdefault(record.who, []).extend((at, record.life, one) for one in record.data)
        return found

    @cached_property
    def accepted_at(self) -> dict[tuple[str, bytes], int]:
        """(sender, body) → place where the broker first stored it."""
        found: dict[tuple[str, bytes], int] = {}
        for sender, sends in self.accepted.items():
            for at, _, one in sends:
                found.setdefault((sender, one.body), at)
        return found

    @cached_property
    def given_up_at(self) -> dict[tuple[str, bytes], int]:
        """(sender, body) → place of the refusal after which the send may be given up."""
        counts: dict[tuple[str, bytes], int] = {}
        found: dict[tuple[str, bytes], int] = {}
        for sender, sends in self.refused.items():
            for at, _, one in sends:
                key = (sender, one.body)
                counts[key] = counts.get(key, 0) + 1
                if counts[key] >= self.setup.tries.get(sender, MAX_TRIES):
                    found.setdefault(key, at)
        return found

    def settled_at(self, sender: str, body: bytes) -> int:
        """Return the place where the broker stored the send or the sender could give it up; `NEVER` if
        neither happened.
        """
        key = (sender, body)
        return min(self.accepted_at.get(key, NEVER), self.given_up_at.get(key, NEVER))

    @cached_property
    def dead_sends(self) -> set[tuple[str, str]]:
        """(sender, unique id) of every send that a committed checkpoint holds as a dead letter."""
        return {
            (origin, unique_id)
            for _, _, checkpoint in self.checkpoints
            for kind, origin, unique_id, _ in checkpoint.dead
            if kind == "send"
        }

    @cached_property
    def died(self) -> dict[int, int]:
        """Life → place of its first death: an overtaken engine goes on after its death, and dies again."""
        places: dict[int, int] = {}
        for at, record in self.history.of("died"):
            places.setdefault(record.life, at)
        return places

    @cached_property
    def rest(self) -> Rest | None:
        """The state at the end of the run; `None` if the run did not get there."""
        records = self.history.of("rest")
        return records[-1][1].data if records else None

    @cached_property
    def at_rest(self) -> bool:
        """Whether the run came to rest in time. Only then must everything have arrived that was under way."""
        return self.rest is not None and self.rest.reached

    @cached_property
    def faulty(self) -> bool:
        """Whether any fault struck, or any engine died."""
        return bool(self.history.of("fault")) or any(life > 1 for life in self.lives)

    def about(self, receiver: str, *kinds: Kind) -> Iterator[tuple[int, Record]]:
        """The records of these kinds that concern a receiver, in order, with their places in the history."""
        records = [event for kind in kinds for event in self.history.of(kind)]
        for event in sorted(records, key=lambda event: event[0]):
            if event[1].who == receiver:
                yield event

    @cached_property
    def lives(self) -> list[int]:
        """The numbers of all lives in which an engine did something."""
        return sorted({record.life for record in self.history.records if record.life})

    def beside(self, receiver: str) -> list[str]:
        """Return the receivers that share out the messages of the same queue, including this receiver."""
        its = self.setup.receivers.get(receiver)
        if its is None or its.alone:  # a dynamic receiver is no part of the set-up
            return [receiver]
        return [name for name, other in self.setup.receivers.items() if other.destination == its.destination]

    def before(self, places: Sequence[int], at: int) -> int:
        """Return how many of the sorted places are before `at`."""
        return bisect.bisect_left(places, at)

    def of_mode(self, *modes: Reliability) -> list[str]:
        """Return the receivers with one of these modes."""
        return self.setup.of_mode(*modes)

    def stored_senders(self) -> list[str]:
        """Return the senders whose sends are stored until they are confirmed: all but those in mode BEST_EFFORT."""
        return [name for name, mode in self.setup.senders.items() if mode is not Reliability.BEST_EFFORT]
