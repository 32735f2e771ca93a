"""Invariants of what monitors sent and flushed."""

from collections.abc import Iterator

from correlator.testing.invariants.catalogue import further, invariant
from correlator.testing.invariants.facts import NEVER, Facts
from tests.harness.simulation.invariants.told import monitor


@further("S6")
def bodies_are_stored_once(facts: Facts) -> Iterator[str]:
    """Check that no body was stored twice. All bodies differ, so this finds a repeat under another number, too."""
    for sender in facts.setup.senders if facts.setup.deduplicating and facts.setup.told else ():
        seen: set[bytes] = set()
        for _, life, one in facts.accepted[sender]:
            if one.body in seen:
                yield f"life {life}: {sender} stored {one.body!r} twice"
            seen.add(one.body)


@invariant(
    "S9", "a reliable sender sends exactly what the state of the last checkpoint says that it sent, number by number"
)
def one_lineage(facts: Facts) -> Iterator[str]:
    """Compare what the monitor `Ledger` has in its state with what the broker saw, number by number."""
    ledger = monitor(facts, "Ledger")
    if ledger is None:
        return
    for sender, kept in (("exact", ledger["sent"]), ("steady", ledger["steady"])):
        for _, life, one in facts.accepted.get(sender, []):
            stored = kept[one.sequence - 1].encode() if one.sequence <= len(kept) else None
            if stored != one.body:
                yield f"life {life}: {sender} sent {one.body!r} as number {one.sequence}, the lineage holds {stored!r}"
        if facts.at_rest:
            numbers = {one.sequence for _, _, one in (*facts.accepted.get(sender, []), *facts.refused.get(sender, []))}
            if len(numbers) != len(kept):
                yield f"{sender}: the lineage holds {len(kept)} sends, the broker saw {len(numbers)}"


@invariant("B1", "BEST_EFFORT sends of a handler that returned arrive without any checkpoint, unless the engine dies")
def leave_at_once(facts: Facts) -> Iterator[str]:
    """Check that the sends of the last life have arrived."""
    if not facts.at_rest or not facts.lives:
        return
    last = max((record.life for _, record in facts.history.of("sent")), default=0)
    for _, record in facts.history.of("sent"):
        context, body = record.data
        promised = record.life == last and last not in facts.died and context == "relay"
        if promised and facts.settled_at(record.who, body) == NEVER:
            yield f"{body!r} was sent in the last life and never arrived"


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
    """Check that each notice has a request of its life, and that each request has at most one notice."""
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
    """Check at the end, even if the run does not come to rest, and in each life the order of the requests."""
    yield from _passed_over(facts)
    if facts.rest is None:
        return
    notified = {(record.life, record.who, record.data[1]) for _, record in facts.history.of("flushed")}
    for _, record in facts.history.of("flush"):
        if record.life not in facts.died and (record.life, record.who, record.data[1]) not in notified:
            yield f"life {record.life}: flush {record.data[1]} of {record.who} was never notified"


def _passed_over(facts: Facts) -> Iterator[str]:
    """Yield requests that were passed over: a later request of the same life got its notice first.

    An overtaken engine goes on, but not with the step in which it was stopped: in the simulation, and only there, the
    notices of that step are lost.
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
    """Check the last life, if all earlier sends had settled when the flush was requested."""
    if not facts.at_rest:
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
