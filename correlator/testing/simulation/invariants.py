"""The invariants of RELIABILITY 2: each has an id, a sentence and a function from a history to what contradicts it.

`violations` asks all of them. They know nothing of the engine: only what the broker, the disk and the application told.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from correlator.testing.simulation.facts import Facts
from correlator.testing.simulation.history import History

Check = Callable[[Facts], Iterator[str]]


class Invariant(NamedTuple):
    """One invariant."""

    id: str
    sentence: str
    check: Check


class Violation(NamedTuple):
    """What contradicts an invariant."""

    id: str
    sentence: str
    what: str

    def __str__(self) -> str:
        return f"{self.id} violated ({self.sentence}): {self.what}"


CATALOGUE: dict[str, Invariant] = {}


def invariant(name: str, sentence: str) -> Callable[[Check], Check]:
    """Enter a function into the catalogue."""

    def enter(check: Check) -> Check:
        assert name not in CATALOGUE, name
        CATALOGUE[name] = Invariant(name, sentence, check)
        return check

    return enter


def violations(history: History, only: str | None = None) -> list[Violation]:
    """Everything in the history that contradicts an invariant, in the order of the catalogue; at most 3 of each."""
    facts = Facts(history)
    found: list[Violation] = []
    for one in CATALOGUE.values():
        if only in (None, one.id):
            for count, what in enumerate(one.check(facts)):
                if count == 3:
                    break
                found.append(Violation(one.id, one.sentence, what))
    return found
