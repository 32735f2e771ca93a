"""Invariants of the receive modes."""

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from correlator.connector import Order
from correlator.reliability import Reliability
from correlator.testing.invariants.catalogue import invariant
from correlator.testing.invariants.facts import NEVER, Facts
from correlator.testing.invariants.history import Published

BEST_EFFORT, AT_LEAST_ONCE = Reliability.BEST_EFFORT, Reliability.AT_LEAST_ONCE
EXACTLY_ONCE, APP_CONTROLLED = Reliability.EXACTLY_ONCE, Reliability.APP_CONTROLLED


@invariant("BE1", "a BEST_EFFORT or APP_CONTROLLED receiver writes nothing to the store but dead letters")
def best_effort_stores_nothing(facts: Facts) -> Iterator[str]:
    """Check that its commits contain no message and no id."""
    for name in facts.of_mode(BEST_EFFORT, APP_CONTROLLED):
        for _, life, received in facts.streams[name].segments if name in facts.streams else ():
            if received.pids or received.ids:
                yield f"life {life}: {name} stored {received.pids or received.ids}"


@invariant("A1", "no acknowledgement before the message is durable")
def durable_before_acknowledged(facts: Facts) -> Iterator[str]:
    """Check that the message is in a receive row, is a dead letter, or repeats an id that is in a receive row."""
    stored = facts.of_mode(AT_LEAST_ONCE, EXACTLY_ONCE)
    for at, record in facts.history.of("acknowledged"):
        if record.who not in stored:
            continue
        domain = facts.setup.receivers[record.who].domain
        for pid in record.data:
            if facts.durable_at.get((record.who, pid), NEVER) < at or facts.published[pid].left_out_by(record.who):
                continue
            uid = facts.published[pid].uid if domain else ""
            if not uid or facts.accepted_ids.get((domain, uid), [NEVER])[0] > at:
                yield f"{pid} was acknowledged by {record.who} in life {record.life}, and is nowhere"


@invariant("A2", "every published message takes effect at least once, or is definitively failed")
def nothing_is_lost(facts: Facts) -> Iterator[str]:
    """Check at rest that a receiver of each message's destination has stored it, a repeat of it, or its dead letter."""
    if not facts.at_rest:
        return
    for name in facts.of_mode(AT_LEAST_ONCE, EXACTLY_ONCE):
        facts_of, there = facts.setup.receivers[name], facts.beside(name)
        for one in facts.published_to.get(facts_of.destination, []):
            stored = any((other, one.pid) in facts.durable_at for other in there)
            repeats = one.uid and (facts_of.domain, one.uid) in facts.accepted_ids
            if not (stored or repeats or one.left_out_by(name)):
                yield f"{one.pid} came by {name} and is nowhere"


@invariant("A7", "a message that its receiver's selector does not match is never stored")
def unselected_is_not_stored(facts: Facts) -> Iterator[str]:
    """Check only what is stored. G7 checks that the message is acknowledged, as every delivered message is."""
    for name in facts.of_mode(AT_LEAST_ONCE, EXACTLY_ONCE):
        for pid in facts.streams[name].pids if name in facts.streams else ():
            if pid in facts.published and name in facts.published[pid].unselected:
                yield f"{name} stored {pid}, which its selector does not match"


@invariant(
    "A4",
    "messages take effect in the order in which their receiver stored them, which is the order of publication if the "
    "broker keeps it",
)
def order_is_kept(facts: Facts) -> Iterator[str]:
    """Check that each stream is in the order of publication, without faults or if the broker keeps a position."""
    if not facts.at_rest:
        return
    for name in facts.of_mode(AT_LEAST_ONCE, EXACTLY_ONCE):
        if facts.faulty and facts.setup.receivers[name].order is not Order.POSITION:
            continue
        destination = facts.setup.receivers[name].destination
        places = {one.pid: place for place, one in enumerate(facts.published_to.get(destination, []))}
        stored = facts.streams[name].pids if name in facts.streams else ()
        order = [places[pid] for pid in dict.fromkeys(stored) if pid in places]
        if order != sorted(order):
            yield f"{name} took messages out of the broker's order: {order}"


@invariant("A5", "no receiver holds more unacknowledged messages than its batch size")
def batches_are_bounded(facts: Facts) -> Iterator[str]:
    """Count a message once, also if the broker delivered it twice."""
    for receiver, life, held in _held(facts):
        if receiver in facts.setup.receivers and len(held) > facts.setup.receivers[receiver].max_batch_size:
            yield f"{receiver} in life {life} held {sorted(held)}"


@invariant("N1", "numbers of the receive log are contiguous and never used again")
def numbers_are_contiguous(facts: Facts) -> Iterator[str]:
    """Check each receiver over all lives; the numbers of a receiver that was removed may begin anew."""
    for name, stream in facts.streams.items():
        if name not in facts.setup.receivers:
            continue
        expected = 1
        for _, life, received in stream.segments:
            if received.pids and received.first != expected:
                yield f"{name} in life {life}: a batch begins with {received.first}, not {expected}"
                return
            expected += len(received.pids)


@invariant(
    "E1", "an id is accepted again only outside the windows of its domain, and when its acknowledgement is not in doubt"
)
def once(facts: Facts) -> Iterator[str]:
    """Check each second acceptance of an id against the windows.

    A pinned id protects only the receiver whose acknowledgement is in doubt. If another receiver of the same queue gets
    the message meanwhile, and holds it while the first one goes on, only the windows protect it.
    """
    for domain, names in _domains(facts).items():
        yield from _second_acceptances(facts, domain, names)


class _Seen(NamedTuple):
    """The last acceptance of an id: place among the ids of its source, engine time, message, receiver,
    place of commit.
    """

    place: int
    time: float
    pid: str
    receiver: str
    at: int


def _second_acceptances(facts: Facts, domain: str, names: list[str]) -> Iterator[str]:
    setup = facts.setup
    commits = sorted(
        ((*segment, name) for name in names if name in facts.streams for segment in facts.streams[name].segments),
        key=lambda segment: segment[0],
    )
    seen: dict[str, _Seen] = {}
    order: dict[str, list[str]] = {}
    sources = {one.uid: one.source for one in facts.published.values() if one.uid}
    for at, life, received, name in commits:
        for pid in received.taken:
            one = facts.published.get(pid)
            if one is None or not one.uid or one.uid not in seen:
                continue
            last = seen[one.uid]
            newer = len(set(order[one.source][last.place + 1 :]) - {one.uid})
            recent = setup.expiry > 0 and received.time - last.time <= setup.expiry
            mine = (last.pid, last.receiver) == (pid, name)
            if newer < setup.window or recent or (mine and _in_doubt(facts, pid, name, last.at, at)):
                yield (
                    f"'{one.uid}' ({pid}, before {last.pid}) was accepted again in domain {domain} in life {life}: "
                    f"{newer} newer ids of its source, {received.time - last.time:.2f} s later"
                )
        by_uid = {facts.published[pid].uid: pid for pid in received.taken if pid in facts.published}
        for uid in received.ids:
            of_source = order.setdefault(sources.get(uid, ""), [])
            of_source.append(uid)
            pid = by_uid.get(uid, seen[uid].pid if uid in seen else "")
            seen[uid] = _Seen(len(of_source) - 1, received.time, pid, name, at)


def _in_doubt(facts: Facts, pid: str, receiver: str, first: int, second: int) -> bool:
    """Return whether, between the two acceptances, the broker got no acknowledgement and gave the message to nobody
    else.

    An engine that was paused and overtaken counts as somebody else: the broker redelivers what it holds when its
    connection ends.
    """
    began = facts.history.of("began")
    between = [
        record.who
        for kind in ("delivered", "acknowledged")
        for at, record in facts.history.of(kind)
        if first < at < second and pid in record.data and (kind == "acknowledged" or record.who != receiver)
    ]
    overtaken = any(
        first < at < second and pid in record.data and any(p < at and r.life > record.life for p, r in began)
        for at, record in facts.history.of("returned")
    )
    return not between and not overtaken


@invariant("E2", "a message whose id was not accepted before in its domain is never dropped")
def no_false_positive(facts: Facts) -> Iterator[str]:
    """Check that an id without a message is written only if this commit or an earlier one accepted it."""
    for domain, names in _domains(facts).items():
        accepted = facts.accepted_ids
        for name in names:
            for at, life, received in facts.streams[name].segments if name in facts.streams else ():
                for uid in received.ids:
                    if not accepted.get((domain, uid), []) or accepted[domain, uid][0] > at:
                        yield f"'{uid}' was dropped by {name} in life {life}, and was never accepted in {domain}"


@invariant("E3", "a message without id is never dropped")
def without_id_never_dropped(facts: Facts) -> Iterator[str]:
    """Check that each acknowledged message without an id is stored itself."""
    for at, record in facts.history.of("acknowledged"):
        if facts.setup.receivers.get(record.who) and facts.setup.receivers[record.who].domain:
            for pid in record.data:
                one = facts.published[pid]
                dropped = not one.uid and facts.durable_at.get((record.who, pid), NEVER) > at
                if dropped and not one.left_out_by(record.who):
                    yield f"{pid} has no id and was dropped by {record.who}"


@invariant("E4", "domains do not affect one another")
def domains_are_apart(facts: Facts) -> Iterator[str]:
    """Check that an id acknowledged in one domain was accepted in that domain, and not in another one only."""
    for at, record in facts.history.of("acknowledged"):
        facts_of = facts.setup.receivers.get(record.who)
        if facts_of is None or not facts_of.domain:
            continue
        for pid in record.data:
            uid = facts.published[pid].uid
            durable = facts.durable_at.get((record.who, pid), NEVER) < at
            if not uid or durable or facts.published[pid].left_out_by(record.who):
                continue
            own = facts.accepted_ids.get((facts_of.domain, uid), [NEVER])[0]
            others = [d for (d, u), places in facts.accepted_ids.items() if u == uid and places[0] < at]
            if own > at and others:
                yield f"{pid} was dropped in {facts_of.domain} since {others[0]} knows '{uid}'"


@invariant("E5", "a dropped duplicate is acknowledged all the same")
def duplicates_are_acknowledged(facts: Facts) -> Iterator[str]:
    """Check that at rest the broker has an acknowledgement of every delivered message."""
    if not facts.at_rest:
        return
    acknowledged = {(record.who, pid) for _, record in facts.history.of("acknowledged") for pid in record.data}
    for domain, names in _domains(facts).items():
        for _, record in facts.history.of("delivered"):
            if record.who in names:
                for pid in record.data:
                    if not any((name, pid) in acknowledged for name in names):
                        yield f"{pid} was delivered in {domain} and never acknowledged"


@invariant("E6", "an id and its message are in one commit, and the ids in memory are those in the store")
def ids_and_messages_together(facts: Facts) -> Iterator[str]:
    """Check that the commit of a message with an id also writes the id.

    This includes messages that cannot be mapped, and repeats. Also check that a start reads back the ids that were
    known.
    """
    for name in facts.of_mode(EXACTLY_ONCE):
        for _, life, received in facts.streams[name].segments if name in facts.streams else ():
            for pid in received.taken:
                uid = facts.published[pid].uid if pid in facts.published else ""
                if uid and uid not in received.ids:
                    yield f"life {life}: {name} stored {pid} without its id '{uid}'"
    yield from _acknowledged_without_id(facts)
    for domain, (before, after) in (facts.rest.memory if facts.rest else {}).items():
        if lost := sorted(set(before) - set(after)):
            yield f"{domain}: {lost} were remembered, and are not after a start"


def _acknowledged_without_id(facts: Facts) -> Iterator[str]:
    """Yield acknowledged messages whose id was not written by the commit of their batch; duplicates,
    too (rule A8.14).
    """
    written: dict[tuple[str, int], set[str]] = {}
    records = sorted([*facts.history.of("received"), *facts.history.of("acknowledged")], key=lambda event: event[0])
    for _, record in records:
        if record.who not in facts.setup.receivers or not facts.setup.receivers[record.who].domain:
            continue
        mine = written.setdefault((record.who, record.life), set())
        if record.kind == "received":
            mine.update(record.data.ids)
            continue
        for pid in record.data:
            one = facts.published[pid]
            if one.uid and not one.left_out_by(record.who) and one.uid not in mine:
                yield f"life {record.life}: {record.who} acknowledged {pid}, its id '{one.uid}' was not written (again)"
        mine.clear()


@invariant(
    "E7",
    "memory holds ids of the windows and of unacknowledged messages only, the store at most four times as many plus a "
    "fixed number",
)
def ids_are_bounded(facts: Facts) -> Iterator[str]:
    """Check the counts at the end of the run."""
    for domain, (remembered, bound, stored) in (facts.rest.ids if facts.rest else {}).items():
        if remembered > bound:
            yield f"{domain} remembers {remembered} ids, allowed are {bound}"
        if stored > 4 * bound + 16:
            yield f"{domain} stores {stored} ids for {bound} living ones"


@invariant("E8", "a duplicate inside one batch is dropped")
def once_in_a_batch(facts: Facts) -> Iterator[str]:
    """Check that no commit contains two messages with one id."""
    for name in facts.of_mode(EXACTLY_ONCE):
        for _, life, received in facts.streams[name].segments if name in facts.streams else ():
            uids = Counter(facts.published[pid].uid for pid in received.taken if pid in facts.published)
            twice = [uid for uid, count in uids.items() if uid and count > 1]
            if twice:
                yield f"life {life}: {name} stored {twice} twice in one batch"


@invariant("E9", "an id whose message the broker may redeliver is kept, however many other ids come")
def doubtful_is_kept(facts: Facts) -> Iterator[str]:
    """Check the records made after each step: a receiver stored the message, and its broker has no acknowledgement."""
    for at, record in facts.history.of("forgotten"):
        for receiver, pid, uid in record.data:
            yield f"life {record.life}: {receiver} may get {pid} again, and no pin keeps '{uid}' (record {at})"
    for at, record in facts.history.of("uncounted"):
        for receiver, awaited, lost in record.data:
            yield f"life {record.life}: {receiver} awaits {awaited} messages, {lost} may be redelivered (record {at})"


@invariant("C1", "an APP_CONTROLLED batch is acknowledged only after the application has acknowledged it")
def acknowledged_by_the_application(facts: Facts) -> Iterator[str]:
    """Check that a life has no more acknowledgements than calls of the application.

    A batch that contains only dead letters needs no call.
    """
    for name in facts.of_mode(APP_CONTROLLED):
        calls: Counter[int] = Counter()
        for _, record in facts.about(name, "resumed", "acknowledged"):
            if record.kind == "resumed":
                calls[record.life] += 1
            elif any(_counts(facts.published[pid], name) for pid in record.data):
                calls[record.life] -= 1
                if calls[record.life] < 0:
                    yield f"life {record.life}: {name} acknowledged {record.data} unasked"


def _counts(one: Published, receiver: str) -> bool:
    """Return whether the receiver must take the message and can map it."""
    return one.flaw != "mapping" and not one.left_out_by(receiver)


@invariant("C2", "the call of the application acknowledges exactly the suspended batch")
def exactly_that_batch(facts: Facts) -> Iterator[str]:
    """Check that the acknowledged messages are those that were held; none are of an older connection (invariant C5)."""
    silent = any(record.who == "ack.silent" for _, record in facts.history.of("fault"))
    for name in facts.of_mode(APP_CONTROLLED):
        held: dict[int, list[str]] = {}
        for _, record in facts.about(name, "delivered", "acknowledged", "returned", "died"):
            mine = held.setdefault(record.life, [])
            if record.kind == "delivered":
                mine.extend(pid for pid in record.data if pid not in mine)
            elif record.kind == "acknowledged":
                if set(record.data) - set(mine):
                    yield f"life {record.life}: {record.data} acknowledged, held were {mine}"
                elif record.data and set(mine) - set(record.data) and not silent:
                    yield f"life {record.life}: of {mine} only {record.data} were acknowledged"
                mine.clear()
            elif record.kind == "returned":
                mine.clear()


@invariant("C4", "a message that was not acknowledged is redelivered")
def unacknowledged_comes_again(facts: Facts) -> Iterator[str]:
    """Check that at rest every APP_CONTROLLED message is acknowledged, so that the life that
    acknowledged it handled it.
    """
    if not facts.at_rest:
        return
    for name in facts.of_mode(APP_CONTROLLED):
        there = facts.beside(name)
        acknowledged = {
            pid for _, record in facts.history.of("acknowledged") if record.who in there for pid in record.data
        }
        for one in facts.published_to.get(facts.setup.receivers[name].destination, []):
            if one.pid not in acknowledged:
                yield f"{one.pid} was never acknowledged"


@invariant(
    "C7", "an APP_CONTROLLED message that cannot be mapped is a committed dead letter before its acknowledgement"
)
def unmapped_are_kept(facts: Facts) -> Iterator[str]:
    """Check only runs with a store."""
    if not facts.of_mode(AT_LEAST_ONCE, EXACTLY_ONCE):
        return
    for name in facts.of_mode(APP_CONTROLLED):
        for at, record in facts.history.of("acknowledged"):
            for pid in record.data if record.who == name else ():
                if facts.published[pid].given_up_by(name) and facts.durable_at.get((name, pid), NEVER) > at:
                    yield f"{pid} was acknowledged and has no dead letter"


def _domains(facts: Facts) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name in facts.of_mode(EXACTLY_ONCE):
        found.setdefault(facts.setup.receivers[name].domain, []).append(name)
    return found


def _held(facts: Facts) -> Iterator[tuple[str, int, set[str]]]:
    """Yield what each receiver held after each delivery."""
    held: dict[tuple[str, int], set[str]] = {}
    records = [event for kind in ("delivered", "acknowledged", "returned") for event in facts.history.of(kind)]
    for _, record in sorted(records, key=lambda event: event[0]):
        mine = held.setdefault((record.who, record.life), set())
        if record.kind == "delivered":
            mine.update(record.data)
            yield record.who, record.life, mine
        else:
            mine.difference_update(record.data)
