"""Invariants of the send modes."""

from collections.abc import Iterator, Sequence

from correlator.reliability import Reliability
from correlator.testing.invariants.catalogue import invariant
from correlator.testing.invariants.facts import NEVER, Facts

BEST_EFFORT = Reliability.BEST_EFFORT


@invariant("S1", "no send leaves before the checkpoint that holds it is committed, and each leaves as it was stored")
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
    if not facts.at_rest:
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
        if facts.at_rest:
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
    """Check only runs with such a broker."""
    for sender in facts.setup.senders if facts.setup.deduplicating else ():
        seen: set[tuple[str, int]] = set()
        for _, life, one in facts.accepted[sender]:
            send = (one.source, one.sequence)
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
        if facts.at_rest:
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
