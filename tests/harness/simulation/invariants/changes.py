"""Invariants of configurations that change between two lives: nothing is lost, doubled or misled by a change."""

from collections import Counter
from collections.abc import Iterator

import msgspec

from correlator.testing.invariants.catalogue import invariant
from correlator.testing.invariants.facts import NEVER, Facts
from tests.harness.simulation.changes import Bill, Parts
from tests.harness.simulation.invariants.told import condemned, monitor

TAKES_ORDERS = ("orders", "orders_too", "others")


@invariant(
    "K1", "a pipeline handles every message that its receivers took in while they delivered to it, once and in order"
)
def pipelines_handle_what_was_theirs(facts: Facts) -> Iterator[str]:
    """By the configuration of the life that committed a message, and the bills that checkpoints have released.

    A message that became a dead letter since a start could not map it may have been handled before.
    """
    configured = _configured(facts)
    if not configured or not facts.at_rest:
        return
    condemned = {(one.who, one.data.receiver, one.data.number) for _, one in facts.history.of("condemned")}
    unmapped = {(one.who, one.data.number) for _, one in facts.history.of("unmapped")}
    handled = {(bill.pipeline, bill.receiver, bill.number) for _, bill in _bills(facts)}
    expected: dict[tuple[str, str], list[str]] = {}
    for receiver in ("left", "right", "direct"):
        for _, life, received in facts.streams[receiver].segments if receiver in facts.streams else ():
            for pipeline in configured[life].routes.get(receiver, ()):
                theirs = [
                    pid
                    for number, pid in enumerate(received.pids, received.first)
                    if (pipeline, receiver, number) not in condemned
                    if (receiver, number) not in unmapped or (pipeline, receiver, number) in handled
                ]
                expected.setdefault((pipeline, receiver), []).extend(theirs)
    found: dict[tuple[str, str], list[str]] = {}
    for _, bill in _bills(facts):
        found.setdefault((bill.pipeline, bill.receiver), []).append(bill.pid)
    for key in dict.fromkeys([*expected, *found]):
        if expected.get(key, []) != found.get(key, []):
            yield f"{key[0]} was to handle of {key[1]} {expected.get(key, [])}, and handled {found.get(key, [])}"


@invariant("K2", "in a default domain, a message is a duplicate only of one that came from the same destination")
def duplicates_are_of_one_destination(facts: Facts) -> Iterator[str]:
    """What is acknowledged is durable, or its id was accepted before where it was published."""
    place = {one.pid: name for name, ones in facts.published_to.items() for one in ones}
    accepted: dict[tuple[str, str], int] = {}
    readers = ("left", "direct")
    for name in readers if _configured(facts) else ():
        stream = facts.streams.get(name)
        for pid, at in zip(stream.pids, stream.at, strict=True) if stream else ():
            key = (place[pid], facts.published[pid].uid)
            accepted[key] = min(at, accepted.get(key, NEVER))
    for at, record in facts.history.of("acknowledged") if accepted else ():
        for pid in record.data if record.who in readers else ():
            if accepted.get((place[pid], facts.published[pid].uid), NEVER) > at:
                yield f"{pid} was acknowledged by {record.who} in life {record.life}, and is nowhere"


@invariant("K3", "a stored send goes where its logical destination led when it was stored")
def sends_stay_where_they_were_stored_for(facts: Facts) -> Iterator[str]:
    """By the configuration of the life whose checkpoint released it."""
    configured = _configured(facts)
    led: dict[int, str] = {}
    for _, life, checkpoint in facts.checkpoints if configured else ():
        first, bodies = checkpoint.outbound.get("bills", (0, ()))
        led.update({first + offset: configured[life].bills for offset in range(len(bodies))})
    for _, life, sent in facts.accepted.get("bills", ()) if configured else ():
        if sent.destination != led.get(sent.sequence):
            yield f"bill {sent.sequence} went to {sent.destination} in life {life}, not to {led.get(sent.sequence)}"


@invariant("K6", "a keyed step goes on with the state of its own definition, until somebody discards it")
def keyed_steps_go_on(facts: Facts) -> Iterator[str]:
    """By the totals on the bills; each begins again only after a life that was told to discard them."""
    configured = _configured(facts)
    last: dict[str, tuple[int, Bill]] = {}
    for life, bill in _bills(facts):
        before_life, before = last.get(bill.pipeline, (0, None))
        last[bill.pipeline] = (life, bill)
        discarded = any(bill.pipeline in configured[one].discards for one in configured if before_life < one <= life)
        goes_on = before is not None and (bill.total, bill.version) == (before.total + 1, before.version)
        begins = bill.total == 1 and (before is None or discarded)
        if not goes_on and not begins:
            yield f"{bill} in life {life} follows {before}"


@invariant("K5", "a context of monitors gets the messages that came in while it was configured, and no earlier ones")
def contexts_are_given_what_was_theirs(facts: Facts) -> Iterator[str]:
    """A persistent monitor has it once in its state; one without lasting state heard it at least once."""
    configured = _configured(facts)
    if not configured or not facts.at_rest:
        return
    sound = {one.pid: one.id for one in facts.published.values() if one.flaw not in ("mapping", "kills")}
    rows = [
        (life, sound[pid])
        for name in TAKES_ORDERS
        for _, life, received in (facts.streams[name].segments if name in facts.streams else ())
        for pid in received.pids
        if pid in sound
    ]
    counter = monitor(facts, "Counter")
    if counter is not None:
        counted = counter["orders"]
        assert isinstance(counted, list)
        where = {one.counting for one in configured.values()} - {""}
        theirs = Counter(one for life, one in rows if configured[life].counting)
        for context in where:
            theirs -= condemned(facts, context)  # one copy each: a message without an id may have come several times
        if Counter(one for one in counted if one in sound.values()) != theirs:
            yield f"the counter was to count {sorted(theirs.elements())}, and counted {sorted(counted)}"
    heard = {record.data for _, record in facts.history.of("heard")}
    heard |= {one for context in {one.passing for one in configured.values()} for one in condemned(facts, context)}
    never = {one for life, one in rows if configured[life].passing} - heard
    strange = {record.data for _, record in facts.history.of("heard")} & set(sound.values()) - {
        one for life, one in rows if configured[life].passing
    }
    if never or strange:
        yield f"the passer-by never heard {sorted(never)}, and heard what came before it was there: {sorted(strange)}"


@invariant("K7", "a stored message that no longer maps is one dead letter, and no pipeline handles it afterwards")
def unmapped_are_letters_once(facts: Facts) -> Iterator[str]:
    """By the checkpoint that holds the dead letter, and the bills that this checkpoint and later ones have released."""
    told: dict[tuple[str, int], int] = {}
    for _, record in facts.history.of("unmapped") if _configured(facts) else ():
        if (record.who, record.data.number) in told:
            yield f"message {record.data.number} of {record.who} is a dead letter again in life {record.life}"
        told.setdefault((record.who, record.data.number), record.data.checkpoint)
    for _, life, checkpoint in facts.checkpoints if told else ():
        for body in checkpoint.outbound.get("bills", (0, ()))[1]:
            bill = msgspec.json.decode(body, type=Bill)
            if told.get((bill.receiver, bill.number), checkpoint.number + 1) <= checkpoint.number:
                yield f"{bill} in life {life} is about a message that was a dead letter before"


def _bills(facts: Facts) -> Iterator[tuple[int, Bill]]:
    """What pipelines have sent, in order, each with the life that committed it."""
    for _, life, checkpoint in facts.checkpoints if _configured(facts) else ():
        for body in checkpoint.outbound.get("bills", (0, ()))[1]:
            yield life, msgspec.json.decode(body, type=Bill)


def _configured(facts: Facts) -> dict[int, Parts]:
    """The configuration of each life; empty in runs in which it never changes."""
    return {record.life: record.data for _, record in facts.history.of("configured")}
