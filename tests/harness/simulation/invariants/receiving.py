"""Invariants of what monitors received. They use the ids in the state, and what monitors report of receivers."""

from collections import Counter
from collections.abc import Iterator

from correlator.reliability import Reliability
from correlator.testing.invariants.catalogue import further, invariant
from correlator.testing.invariants.facts import Facts
from tests.harness.simulation.invariants.told import condemned, monitor

BEST_EFFORT, AT_LEAST_ONCE = Reliability.BEST_EFFORT, Reliability.AT_LEAST_ONCE
EXACTLY_ONCE, APP_CONTROLLED = Reliability.EXACTLY_ONCE, Reliability.APP_CONTROLLED


@invariant("BE3", "without faults a BEST_EFFORT receiver delivers each message once and in order")
def best_effort_is_in_order(facts: Facts) -> Iterator[str]:
    """Check only runs without faults in which monitors report what they handle."""
    for name in facts.of_mode(BEST_EFFORT) if facts.setup.told else ():
        wanted = [
            one.id
            for one in facts.published_to.get(facts.setup.receivers[name].destination, [])
            if one.flaw != "mapping" and name not in one.unselected
        ]
        handled = [record.data for _, record in facts.history.of("handled")]
        if not facts.faulty and facts.rest is not None and handled != wanted:
            yield f"{name}: published {wanted}, handled {handled}"


@further("A2")
def everything_takes_effect(facts: Facts) -> Iterator[str]:
    """Check the ids in the state of the last checkpoint."""
    if not facts.at_rest:
        return
    for name in facts.of_mode(AT_LEAST_ONCE, EXACTLY_ONCE):
        effects = _effects(facts, name)
        if effects is None:
            continue
        for one in facts.published_to.get(facts.setup.receivers[name].destination, []):
            if one.flaw in ("mapping", "handler") or name in one.unselected:
                continue
            if one.id not in effects and one.id not in condemned(facts, "main"):
                yield f"{one.pid} came by {name} and had no effect"


@invariant("A3", "the effects are those of the messages in the committed receive log: none twice, no others")
def no_home_made_duplicates(facts: Facts) -> Iterator[str]:
    """Compare multisets of ids, for every monitor that handles the receiver's messages."""
    if not facts.at_rest:
        return
    for names, lists in _consumers(facts):
        rows = Counter(
            facts.published[pid].id
            for name in names
            for pid in (facts.streams[name].pids if name in facts.streams else ())
            if pid in facts.published
        )
        for label, handled, skips in lists:
            expected = rows
            if skips:
                flawed = {one.id for one in facts.published.values() if one.flaw == "handler"}
                expected = Counter({one: count for one, count in rows.items() if one not in flawed})
            expected = expected - condemned(facts, _context(label))
            found = Counter(handled)
            if found != expected:
                more, less = sorted((found - expected).elements()), sorted((expected - found).elements())
                yield f"{label}: too many {more}, missing {less}"


@further("A4")
def effects_keep_the_order(facts: Facts) -> Iterator[str]:
    """Check the first effect of each id, and only ids that no other receiver has received."""
    if not facts.at_rest:
        return
    for names, lists in _consumers(facts):
        streams = {name: list(dict.fromkeys(_ids(facts, name))) for name in names}
        for name, stream in streams.items():
            shared = {one for other, ids in streams.items() if other != name for one in ids}
            for label, handled, _ in lists:
                seen = set(handled) - set(condemned(facts, _context(label)))
                wanted = [one for one in stream if one in seen and one not in shared]
                own = set(wanted)
                found = list(dict.fromkeys(one for one in handled if one in own))
                if found != wanted:
                    yield f"{label}: {name} brought {wanted}, handled {found}"


@invariant("W1", "a receiver with flow control delivers no more messages than the application allows in this life")
def window_is_kept(facts: Facts) -> Iterator[str]:
    """Check the numbers of the stored messages, in runs in which monitors report the credit that they grant."""
    for name, stream in facts.streams.items() if facts.setup.told else ():
        setup = facts.setup.receivers.get(name)
        if setup is None or not setup.flow_control:
            continue
        granted = [(at, record.life, record.data) for at, record in facts.history.of("granted") if record.who == name]
        for at, life, received in stream.segments:
            through = max((number for when, where, number in granted if where == life and when < at), default=0)
            last = received.first + len(received.pids) - 1
            if received.pids and last > through:
                yield f"life {life}: {name} delivered up to {last}, allowed up to {through}"


@invariant("A6", "no receiver is open before on_conclude_recovery has returned on all monitors")
def receivers_open_last(facts: Facts) -> Iterator[str]:
    """Check what the life-cycle methods report."""
    for _, record in facts.history.of("hooks"):
        if record.data:
            yield f"life {record.life}: {list(record.data)} are open in {record.who}"


@invariant("C3", "while a receiver is suspended, it delivers nothing")
def nothing_while_suspended(facts: Facts) -> Iterator[str]:
    """Check the time from the notice to the call of the application, unless the connection was lost."""
    for name in facts.of_mode(APP_CONTROLLED):
        suspended: set[int] = set()
        for _, record in facts.about(name, "suspended", "resumed", "delivered", "returned"):
            if record.kind == "suspended":
                suspended.add(record.life)
            elif record.kind == "delivered":
                if record.life in suspended:
                    yield f"life {record.life}: {name} delivered {record.data} while suspended"
            else:
                suspended.discard(record.life)


@invariant("C6", "an acknowledgement from a persistent monitor, a second one, or one without a batch is refused")
def forbidden_acknowledgements(facts: Facts) -> Iterator[str]:
    """Check that each forbidden acknowledgement was refused: the monitors of the test application try all of them."""
    for _, record in facts.history.of("attempt"):
        if record.who.startswith("acknowledge") and not record.data:
            yield f"life {record.life}: {record.who} was allowed"


@invariant("X1", "when the application acknowledges an input, all outputs derived from this input are confirmed")
def outputs_before_acknowledgement(facts: Facts) -> Iterator[str]:
    """Check that at least one derived output of each acknowledged APP_CONTROLLED input was settled before."""
    if not facts.setup.told:
        return
    derived: dict[str, list[tuple[int, bytes]]] = {}
    for at, record in facts.history.of("derived"):
        derived.setdefault(record.data[0], []).append((at, record.data[1]))
    for name in facts.of_mode(APP_CONTROLLED):
        for at, record in facts.history.of("acknowledged"):
            for pid in record.data if record.who == name else ():
                one = facts.published[pid]
                if one.flaw == "mapping":
                    continue
                bodies = [body for place, body in derived.get(one.id, ()) if place < at]
                if not any(facts.settled_at("quick", body) < at for body in bodies):
                    yield f"{pid} was acknowledged in life {record.life}, its output is not at the broker"


def _effects(facts: Facts, receiver: str) -> set[str] | None:
    """Return the ids in the state of the monitors that handle the receiver's messages; `None` without such a one."""
    for names, lists in _consumers(facts):
        if receiver in names:
            return set(lists[0][1])
    return None


def _consumers(facts: Facts) -> Iterator[tuple[list[str], list[tuple[str, list[str], bool]]]]:
    """Yield receivers with the lists of ids that they feed; the flag tells that a failing handler leaves its id out."""
    ledger = monitor(facts, "Ledger")
    audit = monitor(facts, "Audit")
    if ledger is None or audit is None:
        return
    orders = facts.of_mode(EXACTLY_ONCE)
    yield orders, [("Ledger.handled", ledger["handled"], True), ("Audit.orders", audit["orders"], False)]
    yield facts.of_mode(AT_LEAST_ONCE), [("Ledger.readings", ledger["readings"], False)]


def _context(label: str) -> str:
    return "audit" if label.startswith("Audit") else "main"


def _ids(facts: Facts, receiver: str) -> list[str]:
    stream = facts.streams.get(receiver)
    return [facts.published[pid].id for pid in stream.pids if pid in facts.published] if stream else []
