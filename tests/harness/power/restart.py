"""Runs an engine on the image after a power cut: it must come to rest, and neither lose nor contradict facts."""

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.harness.power.facts import Mark, Opened, PowerFacts, Sent
from tests.harness.power.judge import ImageViolation, some
from tests.harness.power.reading import ImageContent, read
from tests.harness.power.workload import RecordedLife


def restart(directory: Path, facts: PowerFacts, found: ImageContent, rng: random.Random) -> Iterator[ImageViolation]:
    """Run an engine on the image in `directory` until it has nothing left to do; yield the violations.

    Args:
        directory: the directory of the image, which the engine changes.
        facts: the facts at the moment of the cut; the broker delivers the messages that were not acknowledged then.
        found: the content of the image, as `reading` found it.
        rng: the source of the random order of steps.
    """
    marks: list[Mark] = []
    try:
        rested = RecordedLife(directory, "after", rng, marks.append).run(facts.waiting)
        after = read(directory)
    except Exception as error:  # noqa: BLE001  # every exception is a finding
        yield ImageViolation("G8", f"an engine does not go on: {type(error).__name__} {error}")
        return
    began = next((mark.checkpoint, mark.digest) for mark in marks if isinstance(mark, Opened))
    if began != (found.checkpoint, found.digest):
        yield ImageViolation("G1", f"an engine begins at checkpoint {began[0]}, the store holds {found.checkpoint}")
    if not rested:
        yield ImageViolation("G7", "an engine does not come to rest")
    names = {str(message.properties["id"]) for _, message in facts.published.values()}
    if names - after.counted - after.dead:
        yield ImageViolation("A2", f"never handled: {some(names - after.counted - after.dead)}")
    yield from contradictions(facts, [mark for mark in marks if isinstance(mark, Sent)])


def contradictions(facts: PowerFacts, sends: Sequence[Sent]) -> Iterator[ImageViolation]:
    """Yield the sends after the cut that contradict the sends before it."""
    numbers = {sender: set(bodies) for sender, sources in facts.sent.items() for bodies in sources.values()}
    for one in sends:
        before = facts.sent.get(one.sender, {})
        if before and one.source not in before:
            yield ImageViolation("S9", f"{one.sender} had sent as {', '.join(before)}, and goes on as {one.source}")
        body = before.get(one.source, {}).get(one.sequence, one.body)
        if body != one.body:
            yield ImageViolation("S9", f"{one.sender} had sent {body!r} as {one.sequence}, and now {one.body!r}")
        numbers.setdefault(one.sender, set()).add(one.sequence)
    for sender, given in numbers.items():
        if given != set(range(1, len(given) + 1)):
            yield ImageViolation("S3", f"{sender} left out a number below {max(given)}")
