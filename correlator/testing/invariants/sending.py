"""Invariants of the send modes and of flush notices."""

from collections.abc import Iterator, Sequence
from typing import Any

from correlator.reliability import Reliability
from correlator.testing.invariants.catalogue import invariant
from correlator.testing.invariants.facts import NEVER, Facts

BEST_EFFORT = Reliability.BEST_EFFORT


@invariant("S1", "nothing leaves before the checkpoint that caused it is committed, and it leaves as it was stored")
def nothing_early(facts: Facts) -> Iterator[str]:
    """Check all messages that reached the broker, whether it stored or refused them."""
    for sender in facts.stored_senders():
        for at, life, one in (*facts.accepted[sender], *facts.refused[sender]):
            place, body = facts.released.get((sender, one.sequence), (NEVER, b""))
            if place > at:
                yield f"life {life}: {sender} sent number {one.sequence} ({one.body!r}) before its checkpoint"
            elif body != one.body:
                yield f"life {life}: {sender} sent {one.body!r} as number {one.sequence}, stored is {body!r}"


@invariant("S2", "every released send is accepted at least once, or definitively refused")
def nothing_is_lost(facts: Facts) -> Iterator[str]:
    """Check at rest; a lost connection does not excuse a missing send."""
    if facts.rest is None or not facts.rest.reached:
        return
    for (sender, number), (_, body) in facts.released.items():
        if facts.settled_at(sender, body) == NEVER:
            yield f"{sender}: number {number} ({body!r}) never arrived"


@invariant("S3", "numbers that were accepted or definitively failed are 1 to the last, without a gap")
def numbers_are_contiguous(facts: Facts) -> Iterator[str]:
    """Check the numbers over all lives, and the counters of the checkpoints."""
    for sender in facts.stored_senders():
        expected = 1
        for _, life, checkpoint in facts.checkpoints:
            first, bodies = checkpoint.outbound.get(sender, (expected, ()))
            if first != expected:
                yield f"life {life}: {sender} gave number {first}, next was {expected}"
                return
            expected += len(bodies)
            if checkpoint.next_sequence.get(sender, ("", expected))[1] != expected:
                yield f"life {life}: {sender} counts {checkpoint.next_sequence[sender][1]}, next is {expected}"
                return
        if facts.rest is not None and facts.rest.reached:
            settled = {one.sequence for _, _, one in (*facts.accepted[sender], *facts.refused[sender])}
            if settled != set(range(1, expected)):
                yield f"{sender}: numbers 1 to {expected - 1} were given, the broker saw {sorted(settled)}"


@invariant("S4", "one number of one source has one body and destination for ever")
def identity(facts: Facts) -> Iterator[str]:
    """Check every sender. Also check that the id on a message consists of its number and its source."""
    for sender, mode in facts.setup.senders.items():
        bodies: dict[tuple[str, int], tuple[bytes, str]] = {}
        sources: set[str] = set()
        for _, life, one in (*facts.accepted[sender], *facts.refused[sender]):
            known = bodies.setdefault((one.source, one.sequence), (one.body, one.destination))
            sources.add(one.source)
            if known != (one.body, one.destination):
                yield f"life {life}: {sender} sent {one.sequence}:{one.source} as {known[0]!r} and {one.body!r}"
            stamped = mode is not Reliability.AT_LEAST_ONCE and sender not in facts.setup.renamed
            if stamped and one.unique_id != f"{one.sequence}:{one.source}":
                yield f"life {life}: {sender} stamped '{one.unique_id}' on {one.sequence}:{one.source}"
        if mode is not BEST_EFFORT and len(sources) > 1:
            yield f"{sender} used the sources {sorted(sources)}"


@invariant("S5", "the broker accepts the messages of a sender for the first time in the order of their numbers")
def order(facts: Facts) -> Iterator[str]:
    """Check all messages but those that the broker refused before: the sender tries them again after later ones."""
    for sender in facts.setup.senders:
        refused = {(one.source, one.sequence) for _, _, one in facts.refused[sender]}
        last: dict[tuple[str, str], int] = {}
        seen: set[tuple[str, int]] = set()
        for _, life, one in facts.accepted[sender]:
            key = (one.source, one.sequence)
            if key in seen or key in refused:
                continue
            seen.add(key)
            if one.sequence < last.get((one.source, one.destination), 0):
                yield f"life {life}: {sender} sent {one.sequence} after {last[one.source, one.destination]}"
            last[one.source, one.destination] = one.sequence


@invariant("S6", "where the broker deduplicates by source and number, each send is stored once")
def stored_once(facts: Facts) -> Iterator[str]:
    """Only with such a broker. Where all bodies differ, one that comes again under another number is found too."""
    for sender in facts.setup.senders if facts.setup.deduplicating else ():
        seen: set[Any] = set()
        for _, life, one in facts.accepted[sender]:
            send = one.body if facts.setup.told else (one.source, one.sequence)
            if send in seen:
                yield f"life {life}: {sender} stored {one.body!r} twice"
            seen.add(send)


@invariant("S7", "a row of the outbox is deleted only after its confirm or its definitive failure")
def deleted_after_confirm(facts: Facts) -> Iterator[str]:
    """Check that a confirmed send was accepted, or is a stored dead letter after the broker refused this very send."""
    for sender in facts.setup.senders:
        refused = {f"{one.sequence}:{one.source}" for _, _, one in facts.refused[sender]}
        for origin, one in facts.dead_sends:
            if origin == sender and one not in refused:
                yield f"{sender}: {one} is a dead letter, and was never refused"
    for sender in facts.stored_senders():
        done = 0
        for at, life, checkpoint in facts.checkpoints:
            through = checkpoint.confirmed.get(sender, done)
            for number in range(done + 1, through + 1):
                _, body = facts.released.get((sender, number), (NEVER, b""))
                if facts.settled_at(sender, body) > at:
                    yield f"life {life}: checkpoint {checkpoint.number} deletes {number} of {sender}, unconfirmed"
            if through < done:
                yield f"life {life}: {sender} was confirmed through {done}, now {through}"
            done = max(done, through)
            yield from _kept(facts, sender, through)
        if facts.rest is not None and facts.rest.reached:
            yield from _kept(facts, sender, done)


def _kept(facts: Facts, sender: str, through: int) -> Iterator[str]:
    """Yield sends that were given up without a dead letter in this checkpoint or an earlier one (rule Z7)."""
    for number in range(1, through + 1):
        _, body = facts.released.get((sender, number), (NEVER, b""))
        if facts.accepted_at.get((sender, body), NEVER) == NEVER and not _is_dead(facts, sender, number):
            yield f"{sender}: number {number} was given up without a dead letter"


def _is_dead(facts: Facts, sender: str, number: int) -> bool:
    return any(origin == sender and one.startswith(f"{number}:") for origin, one in facts.dead_sends)


@invariant("S8", "a send that the broker has taken leaves again in the same life only when its confirm was lost")
def confirmed_once(facts: Facts) -> Iterator[str]:
    """Check that a refusal in the middle of a flight does not make the sender send the other messages again."""
    faults = [at for at, record in facts.history.of("fault") if record.who != "send.refused"]
    for sender in facts.setup.senders:
        places = sorted({at for at, _, _ in (*facts.accepted[sender], *facts.refused[sender])})
        taken: dict[tuple[int, str, int], int] = {}
        for at, life, one in facts.accepted[sender]:
            key = (life, one.source, one.sequence)
            if key in taken and not _disturbed(facts, faults, places, taken[key], at):
                yield f"life {life}: {sender} sent number {one.sequence} again, and no confirm was lost"
            taken[key] = at


def _disturbed(facts: Facts, faults: Sequence[int], places: Sequence[int], first: int, second: int) -> bool:
    """Return whether any fault struck from the call that sent it first to the second one.

    The faults of a call stand before it in the history.
    """
    earlier = facts.before(places, first)
    begin = places[earlier - 1] if earlier else -1
    return facts.before(faults, second) > facts.before(faults, begin)


@invariant(
    "S9", "a reliable sender sends exactly what the state of the last checkpoint says that it sent, number by number"
)
def one_lineage(facts: Facts) -> Iterator[str]:
    """The ledger keeps what it sent in its state: the broker saw exactly that, number by number."""
    ledger: Any = facts.monitor("Ledger")
    if ledger is None:
        return
    for sender, kept in (("exact", ledger["sent"]), ("steady", ledger["steady"])):
        for _, life, one in facts.accepted.get(sender, []):
            stored = kept[one.sequence - 1].encode() if one.sequence <= len(kept) else None
            if stored != one.body:
                yield f"life {life}: {sender} sent {one.body!r} as number {one.sequence}, the lineage holds {stored!r}"
        if facts.rest is not None and facts.rest.reached:
            numbers = {one.sequence for _, _, one in (*facts.accepted.get(sender, []), *facts.refused.get(sender, []))}
            if len(numbers) != len(kept):
                yield f"{sender}: the lineage holds {len(kept)} sends, the broker saw {len(numbers)}"


@invariant("B1", "BEST_EFFORT sends of a handler that returned arrive without any checkpoint, unless the engine dies")
def leave_at_once(facts: Facts) -> Iterator[str]:
    """Sends of the last life arrive."""
    if facts.rest is None or not facts.rest.reached or not facts.lives:
        return
    last = max((record.life for _, record in facts.history.of("sent")), default=0)
    for _, record in facts.history.of("sent"):
        context, body = record.data
        promised = record.life == last and last not in facts.died and context == "relay"
        if promised and facts.settled_at(record.who, body) == NEVER:
            yield f"{body!r} was sent in the last life and never arrived"


@invariant("B2", "a BEST_EFFORT sender has a new source in each life")
def new_source_in_each_life(facts: Facts) -> Iterator[str]:
    """Check that each source belongs to one life, so that no id is used for two bodies."""
    for sender, mode in facts.setup.senders.items():
        lives: dict[str, int] = {}
        for _, life, one in facts.accepted[sender] if mode is BEST_EFFORT else ():
            if lives.setdefault(one.source, life) != life:
                yield f"{sender}: source {one.source} of life {lives[one.source]} was used in life {life}"


@invariant("B3", "BEST_EFFORT sends never enter the store")
def best_effort_stores_nothing(facts: Facts) -> Iterator[str]:
    """Check that no checkpoint of any life has released a send of a BEST_EFFORT sender."""
    for sender, number in facts.released:
        if facts.setup.senders.get(sender) is BEST_EFFORT:
            yield f"number {number} of {sender} was stored"


@invariant("F1", "a flush notice means that every earlier send of the context is confirmed or definitively failed")
def flushed_means_confirmed(facts: Facts) -> Iterator[str]:
    """Check each flush notice against the sends of the same life, sender and context before its request.

    Each of these sends must have been settled, confirmed or given up, when the notice came.
    """
    sends: dict[tuple[int, str, str], list[tuple[int, bytes]]] = {}
    for at, record in facts.history.of("sent"):
        sends.setdefault((record.life, record.who, record.data[0]), []).append((at, record.data[1]))
    requested: dict[tuple[int, str, int], int] = {}
    for at, record in facts.history.of("flush"):
        requested[record.life, record.who, record.data[1]] = at
    for at, record in facts.history.of("flushed"):
        context, request, _ = record.data
        asked = requested.get((record.life, record.who, request), 0)
        for place, body in sends.get((record.life, record.who, context), ()):
            if place < asked and facts.settled_at(record.who, body) > at:
                yield f"life {record.life}: flush {request} was notified, {body!r} is not at the broker"


@invariant("F2", "one notice for each request of this life, none for a request of an earlier life")
def one_notice(facts: Facts) -> Iterator[str]:
    """Each notice has its request, once."""
    requested = {(record.life, record.who, record.data[1]) for _, record in facts.history.of("flush")}
    notified: set[tuple[int, str, int]] = set()
    for _, record in facts.history.of("flushed"):
        key = (record.life, record.who, record.data[1])
        if key not in requested:
            yield f"life {record.life}: flush {key[2]} of {key[1]} was notified, and not requested in this life"
        if key in notified:
            yield f"life {record.life}: flush {key[2]} of {key[1]} was notified twice"
        notified.add(key)


@invariant("F3", "notices of a sender come in the order of the requests")
def notices_in_order(facts: Facts) -> Iterator[str]:
    """Check that the request numbers of the flush notices of a sender grow within each life."""
    last: dict[tuple[int, str], int] = {}
    for _, record in facts.history.of("flushed"):
        key = (record.life, record.who)
        if record.data[1] < last.get(key, 0):
            yield f"life {record.life}: flush {record.data[1]} was notified after {last[key]}"
        last[key] = record.data[1]


@invariant(
    "F4",
    "once the broker is back, each request of the life that still runs gets its notice; no life notifies a request"
    " before an earlier one",
)
def every_flush_completes(facts: Facts) -> Iterator[str]:
    """At the end, also where something else keeps the run from its rest; and in any life in the order of requests."""
    yield from _passed_over(facts)
    if facts.rest is None:
        return
    notified = {(record.life, record.who, record.data[1]) for _, record in facts.history.of("flushed")}
    for _, record in facts.history.of("flush"):
        if record.life not in facts.died and (record.life, record.who, record.data[1]) not in notified:
            yield f"life {record.life}: flush {record.data[1]} of {record.who} was never notified"


def _passed_over(facts: Facts) -> Iterator[str]:
    """A request that a lost connection has dropped is found by the notice of the next one.

    An engine that was overtaken goes on, but not with the step in which it was stopped: what that was about to notify
    is lost in the simulation alone.
    """
    waiting: dict[tuple[int, str, str], list[int]] = {}
    records = sorted([*facts.history.of("flush"), *facts.history.of("flushed")], key=lambda event: event[0])
    for at, record in records:
        if at > facts.died.get(record.life, NEVER):
            continue
        context, request = record.data[:2]
        requests = waiting.setdefault((record.life, record.who, context), [])
        if record.kind == "flush":
            requests.append(request)
        elif request in requests:
            for passed in requests[: requests.index(request)]:
                yield f"life {record.life}: flush {passed} of {record.who} was passed over by flush {request}"
            del requests[: requests.index(request) + 1]


@invariant("F6", "a flush with nothing outstanding is notified, even if nothing is sent afterwards")
def nothing_outstanding(facts: Facts) -> Iterator[str]:
    """Asked of the last life, where all earlier sends had settled when the flush was requested."""
    if facts.rest is None or not facts.rest.reached:
        return
    notified = {(record.life, record.who, record.data[1]) for _, record in facts.history.of("flushed")}
    sends = [(at, record.life, record.who, record.data[1]) for at, record in facts.history.of("sent")]
    for at, record in facts.history.of("flush"):
        mine = [(place, body) for place, life, who, body in sends if (life, who) == (record.life, record.who)]
        waits = any(place < at and facts.settled_at(record.who, body) > at for place, body in mine)
        if not waits and record.life not in facts.died and (record.life, record.who, record.data[1]) not in notified:
            yield f"life {record.life}: flush {record.data[1]} had nothing to wait for, and was never notified"


@invariant("F5", "request_flush in a persistent monitor is refused")
def no_flush_in_persistent_monitors(facts: Facts) -> Iterator[str]:
    """Check that `request_flush` was refused whenever the persistent monitors of the test application tried it."""
    for _, record in facts.history.of("attempt"):
        if record.who.startswith("request_flush") and not record.data:
            yield f"life {record.life}: {record.who} was allowed"
