"""Stores messages: every message enters a destination through `store`."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from sqlalchemy import Connection

from connectors.embedded import clients, destinations, expiring, limits, storing
from connectors.embedded.consumers import Lives
from connectors.embedded.destinations import Destination, Subscription
from connectors.embedded.limits import Crowded, Gatekeeper, Refusal, Verdict
from connectors.embedded.sql import Sql
from connectors.embedded.storing import Arrival, NewMessage
from correlator import tracing
from correlator.tracing import DeliveryEvent

MOST_LIVES = 100
"""Most sources of BEST_EFFORT senders that a destination remembers: such a sender has a new source after each start."""
_ONE_LIFE = "one life: "
_LAST_SEQUENCE = Sql(
    "SELECT last_sequence FROM broker_sender WHERE destination = :destination AND source = :source{lock}"
)
_FIRST_SEQUENCE = Sql(
    "INSERT INTO broker_sender (destination, source, last_sequence) VALUES (:destination, :source, 0)"
    " ON CONFLICT DO NOTHING"
)
_REMEMBER = Sql(
    "UPDATE broker_sender SET last_sequence = :sequence WHERE destination = :destination AND source = :source"
)
_COUNT_LIVES = Sql("SELECT count(*) FROM broker_sender WHERE destination = :destination AND source LIKE 'one life: %'")
_FORGET_LIVES = Sql(
    "DELETE FROM broker_sender WHERE destination = :destination AND source LIKE 'one life: %' AND source <> :source"
)


def of_one_life(source: str) -> str:
    """Return the stored name of a source that no later life of its sender uses, so that the broker may forget it."""
    return f"{_ONE_LIFE}{source}"


class NoSuchDestination(Exception):
    """A message is sent to a destination that does not exist, and that the send does not make."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(name)


@dataclass(frozen=True, slots=True)
class Terms:
    """How a sender sends.

    Attributes:
        lives: tells which temporary destinations have ended with their process.
        nearly_full: destinations that its transactions must lock for themselves (see `limits`); `store` updates this.
        lazy: whether the commit of the transaction need not wait for the disk.
        waits: whether it waits for room, whatever the limit behavior of a destination is.
        whole: whether all messages must be stored in this transaction.
        moves: whether the messages are moved, so that each must find a subscription that wants it.
        only: name of the subscriptions that get the messages; "" for all subscriptions.
        makes: whether a destination that does not exist is made.
        placed: the destinations of traced messages that were stored, by message id; `store` adds to it.
    """

    lives: Lives
    nearly_full: set[str]
    lazy: bool = False
    waits: bool = False
    whole: bool = False
    moves: bool = False
    only: str = ""
    makes: bool = True
    placed: dict[str, str] = field(default_factory=dict)

    def tell_stored(self) -> None:
        """Log that the traced messages are stored, after the commit."""
        for message_id, destination in self.placed.items():
            tracing.log(DeliveryEvent.STORED, message_id, destination)


def make_missing(connection: Connection, names: Collection[str]) -> None:
    """Make the destinations that are missing, before messages are stored in several.

    Storing takes a shared lock on its destination, and making a destination waits for the lock of the registry. In the
    other order this could become a deadlock with a transaction that deletes a destination.
    """
    if len(names) > 1:
        for name in sorted(names):
            if not destinations.is_temporary(name):
                destinations.ensure(connection, name)


def store(connection: Connection, name: str, entries: Sequence[NewMessage], terms: Terms) -> Verdict | None:
    """Store messages for each subscription of the destination that wants them, except for repeats.

    A message that no subscription wants is not stored.

    Args:
        connection: a connection in a transaction.
        name: the destination.
        entries: at least one message.
        terms: how the sender sends.

    Returns:
        The decision about the messages, if not all are stored.

    Raises:
        NoSuchDestination: the destination does not exist; it is a temporary one, or `terms` do not let it be made.
        Crowded: the transaction must be done again.
    """
    alone = name in terms.nearly_full
    drawn = storing.draw(connection, name, len(entries), lazy=terms.lazy, alone=alone)
    makes = terms.makes and not destinations.is_temporary(name)
    there = destinations.ensure(connection, name) if makes else destinations.find(connection, name)
    if there is None or clients.is_orphan(there, terms.lives):
        raise NoSuchDestination(name)
    if there.stops_producers:
        return Verdict(waiting=list(range(len(entries))))
    sources = _sources(connection, there.id, entries)
    fresh = _fresh(sources, entries)
    readers = [reader for reader in there.subscriptions if not terms.only or reader.name == terms.only]
    if terms.moves and (unwanted := _unwanted(readers, entries)):
        return Verdict(refused=unwanted)
    verdict = None
    if fresh and readers:
        new: Sequence[Arrival] = [
            Arrival(at, number, entries[at]) for number, at in zip(drawn.numbers, fresh, strict=False)
        ]
        verdict = _judge(connection, there, readers, new, drawn.rivals, terms) if there.has_limits else None
        if verdict is not None:
            new = verdict.admitted
            fresh = [at for at in fresh if at not in verdict.refused and at not in verdict.waiting]
        if new:
            for message_id in storing.append(connection, there, readers, new, drawn.sent_at):
                tracing.log(DeliveryEvent.PLACED, message_id, name)
                terms.placed[message_id] = name
    _remember(connection, there.id, sources, [entries[at] for at in fresh])
    return verdict


def _unwanted(readers: Sequence[Subscription], entries: Sequence[NewMessage]) -> dict[int, Refusal]:
    """Return the messages that no subscription wants."""
    return {
        at: Refusal(full=False, what="it has no subscription that wants the message")
        for at, entry in enumerate(entries)
        if not any(storing.wants(reader, 0, entry) for reader in readers)
    }


def _judge(
    connection: Connection,
    there: Destination,
    readers: Sequence[Subscription],
    new: Sequence[Arrival],
    rivals: int,
    terms: Terms,
) -> Verdict | None:
    """Let the limits decide; return `None` if all messages are admitted. Raises `Crowded`."""
    alone = not rivals or there.name in terms.nearly_full
    entries = [arrival.entry for arrival in new]
    if limits.fits_by_itself(there, entries):
        if limits.has_room(there, entries, rivals):
            terms.nearly_full.discard(there.name)
            return None
        if alone and limits.has_room(there, entries, 0):
            return None
    if not alone:
        terms.nearly_full.add(there.name)
        raise Crowded
    arrivals = [one for one in new if any(storing.wants(reader, one.number, one.entry) for reader in readers)]
    if expiring.end_of(connection, readers):
        there = destinations.find(connection, there.name) or there
    if terms.whole and there.lets_wait and limits.exceed(there, [arrival.entry for arrival in arrivals]):
        what = f"the transaction sends more than {there.name} may hold"
        return Verdict(refused={arrival.at: Refusal(full=True, what=what) for arrival in arrivals})
    return Gatekeeper(connection, there, readers, waits=terms.waits).admit(arrivals)


def _sources(connection: Connection, destination: int, entries: Sequence[NewMessage]) -> dict[str, int]:
    """Return the last stored sequences of the sources, and lock their rows."""
    # Sorted by name, so that two transactions never wait for each other's sources.
    sources = sorted({entry.source for entry in entries if entry.source})
    return {source: _last_sequence(connection, destination, source) for source in sources}


def _fresh(sources: Mapping[str, int], entries: Sequence[NewMessage]) -> list[int]:
    """Return the positions of the messages whose sequence is above the last one of their source."""
    last = dict(sources)
    fresh = []
    for at, entry in enumerate(entries):
        if entry.source:
            if entry.sequence <= last[entry.source]:
                continue
            last[entry.source] = entry.sequence
        fresh.append(at)
    return fresh


def _remember(
    connection: Connection, destination: int, sources: Mapping[str, int], stored: Sequence[NewMessage]
) -> None:
    last = {entry.source: entry.sequence for entry in stored if entry.source}  # the sequences ascend
    for source in sources:
        if source in last:
            _REMEMBER.run(connection, destination=destination, source=source, sequence=last[source])


def _last_sequence(connection: Connection, destination: int, source: str) -> int:
    """Return the last sequence of a source, and lock its row."""
    found = _LAST_SEQUENCE.one(connection, destination=destination, source=source)
    if found is not None:
        return int(found)
    _FIRST_SEQUENCE.run(connection, destination=destination, source=source)
    if source.startswith(_ONE_LIFE):
        _forget_other_lives(connection, destination, source)
    return int(_LAST_SEQUENCE.one(connection, destination=destination, source=source))


def _forget_other_lives(connection: Connection, destination: int, source: str) -> None:
    """Forget the other sources of BEST_EFFORT senders once there are many. Nearly all of these senders have ended.

    The source of a sender that still works is stored again with its next message.
    """
    if _COUNT_LIVES.one(connection, destination=destination) > MOST_LIVES:
        _FORGET_LIVES.run(connection, destination=destination, source=source)
