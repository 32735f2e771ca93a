"""Invariants of messages that end the process (trap T26)."""

from collections import Counter
from collections.abc import Iterator

from correlator.core.commit import Suspect
from correlator.testing.invariants.catalogue import invariant
from correlator.testing.invariants.facts import Facts
from correlator.testing.invariants.history import POISONED, Condemned


@invariant(
    "P1",
    "a message that ends the process becomes one dead letter, and its context neither keeps nor handles the message",
)
def poison_is_condemned(facts: Facts) -> Iterator[str]:
    """Check each number of the receive log that such a message has."""
    if not facts.at_rest:
        return
    letters = [record for _, record in facts.history.of("condemned") if record.who == "main"]
    condemned = Counter((record.data.receiver, record.data.number) for record in letters)
    for receiver, number, one_id in _poison(facts):
        if condemned[receiver, number] != 1:
            yield f"{one_id}, number {number} of {receiver}: {condemned[receiver, number]} dead letters"


@invariant(
    "P2",
    "a message is quarantined only after two starts died: one that noted it among others, then one that noted it alone",
)
def condemned_for_a_reason(facts: Facts) -> Iterator[str]:
    """Check the deaths before each quarantine.

    If somebody kills the engine from outside at these two moments, an innocent message is quarantined, too: nobody can
    tell the difference. Pipelines handle waiting messages after recovery, and note these messages until they have
    handled them.
    """
    pipelines = {one for _, record in facts.history.of("configured") for one in record.data.pipelines}
    began = {record.life for _, record in facts.history.of("began")}
    noted: dict[str, tuple[Suspect, ...]] = {}
    deaths: list[Suspect] = []
    events = [*facts.history.of("noted"), *facts.history.of("died"), *facts.history.of("condemned")]
    for _, record in sorted(events, key=lambda event: event[0]):
        if record.kind == "noted":
            contexts, suspects = record.data
            noted |= {name: tuple(one for one in suspects if one.context == name) for name in contexts}
        elif record.kind == "died":
            of_start = record.life not in began
            deaths.extend(one for name, ones in noted.items() if of_start or name in pipelines for one in ones)
        else:
            covering = [one for one in deaths if _covers(one, record.who, record.data)]
            if len(covering) < 2 or covering[-1].first != covering[-1].last:
                yield f"{record.data} in context {record.who}: noted at deaths {covering}"


@invariant("P3", "where nobody kills from outside, only messages that end the process are quarantined")
def innocents_go_free(facts: Facts) -> Iterator[str]:
    """Check only runs in which a message caused every death."""
    places = [record.who for _, record in facts.history.of("died")]
    if all(place.startswith(POISONED) or place == "zombie" for place in places):
        guilty = {("main", receiver, number) for receiver, number, _ in _poison(facts)}
        for _, record in facts.history.of("condemned"):
            if (record.who, record.data.receiver, record.data.number) not in guilty:
                yield f"{record.data} in context {record.who}"


def _poison(facts: Facts) -> Iterator[tuple[str, int, str]]:
    """Yield receiver, number and id of every message in the receive log that ends the process."""
    for receiver, stream in facts.streams.items():
        for number, pid in enumerate(stream.pids, 1):
            if pid in facts.published and facts.published[pid].flaw == "kills":
                yield receiver, number, facts.published[pid].id


def _covers(suspect: Suspect, context: str, condemned: Condemned) -> bool:
    same = (suspect.context, suspect.receiver) == (context, condemned.receiver)
    return same and suspect.first <= condemned.number <= suspect.last
