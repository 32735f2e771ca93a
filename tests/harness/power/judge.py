"""Compares a store after a power cut with the facts that were visible before it, and names the violated invariants."""

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from tests.harness.power.facts import PowerFacts
from tests.harness.power.reading import ImageContent


class ImageViolation(NamedTuple):
    """An invariant, and what contradicts it."""

    id: str
    what: str

    def __str__(self) -> str:
        return f"{self.id}: {self.what}"


def violations(facts: PowerFacts, found: ImageContent) -> Iterator[ImageViolation]:
    """Yield every fact from before the cut that the store contradicts."""
    if found.refusal:
        yield ImageViolation("G8", found.refusal)
    lost = facts.owed - found.counted - found.waiting - found.dead
    if lost:
        yield ImageViolation("A1", f"acknowledged and lost: {some(lost)}")
    if found.checkpoint < facts.reported:
        yield ImageViolation("G1", f"checkpoint {facts.reported} was reported, {found.checkpoint} is there")
    if found.checkpoint and found.digest not in facts.digests[found.checkpoint]:
        yield ImageViolation("G1", f"checkpoint {found.checkpoint} has a digest that nobody announced")
    for sender, sources in facts.sent.items():
        for source, bodies in sources.items():
            yield from _of_sender(found, sender, source, bodies)


def _of_sender(found: ImageContent, sender: str, source: str, bodies: dict[int, bytes]) -> Iterator[ImageViolation]:
    cut, outbox = found.senders.get(sender), found.outbox.get(sender, {})
    if cut is None or max(bodies) >= cut.next_sequence:
        yield ImageViolation("S1", f"{sender} has sent {max(bodies)}, {cut.next_sequence if cut else 1} would be next")
        return
    if cut.source != source:
        yield ImageViolation("S9", f"{sender} has sent as {source}, and goes on as {cut.source}")
    for number, body in outbox.items():
        if bodies.get(number, body) != body:
            yield ImageViolation("S9", f"{sender} has sent {bodies[number]!r} as {number}, {body!r} would follow")
    gone = set(range(cut.confirmed_through + 1, cut.next_sequence)) - outbox.keys()
    if gone:
        yield ImageViolation("S2", f"{sender} has still to send {sorted(gone)[:5]}, which is gone")


def some(names: AbstractSet[str]) -> str:
    """Return a few of many names, as text."""
    return ", ".join(sorted(names)[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
