"""Invariants of parts that come and go (rules A1.5, A1.16 and A1.17): what they held is handled or sent before."""

from collections import Counter
from collections.abc import Iterator

from correlator.testing.invariants.catalogue import invariant
from correlator.testing.invariants.facts import NEVER, Facts
from tests.harness.simulation.churn import RECEIVER, SENDER, SOURCE
from tests.harness.simulation.invariants.told import condemned, monitor


@invariant("D1", "every message that a dynamic receiver acknowledged takes effect, and no other one does")
def coming_and_going_loses_nothing(facts: Facts) -> Iterator[str]:
    """By the ids in the state of the ledger."""
    ledger = monitor(facts, "Ledger")
    if not facts.at_rest or ledger is None:
        return
    published = {one.id for one in facts.published_to.get(SOURCE, [])}
    found = ledger["extras"]
    assert isinstance(found, list)
    dead = condemned(facts, "main")
    missing, invented = published - {*found, *dead}, set(found) - published
    if missing or invented:
        yield f"missing {sorted(missing)}, from nowhere {sorted(invented)}"
    rows = Counter(facts.streams[RECEIVER.id].pids if RECEIVER.id in facts.streams else ()) - dead
    if Counter(found) != rows:  # the id of such a message is its pid
        yield f"committed {sorted(rows.elements())}, handled {sorted(found)}"


@invariant("D2", "every message for a dynamic sender reaches the broker or is definitively failed")
def going_sends_everything(facts: Facts) -> Iterator[str]:
    """By what the ledger remembers to have sent."""
    ledger = monitor(facts, "Ledger")
    if not facts.at_rest or ledger is None:
        return
    sent = ledger["aside"]
    assert isinstance(sent, list)
    for text in sent:
        if facts.settled_at(SENDER.id, text.encode()) == NEVER:
            yield f"{text} was sent to {SENDER.id} and is nowhere"


@invariant("D3", "a dynamic receiver acknowledges no message before it is durable")
def coming_and_going_acknowledges_what_is_durable(facts: Facts) -> Iterator[str]:
    """In a receive row of its own; a repeat is one of a message that is."""
    for at, record in facts.history.of("acknowledged") if facts.setup.told else ():
        if record.who == RECEIVER.id:
            for pid in record.data:
                if facts.durable_at.get((record.who, pid), NEVER) > at:
                    yield f"{pid} was acknowledged in life {record.life}, and is nowhere"
