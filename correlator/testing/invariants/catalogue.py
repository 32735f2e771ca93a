"""What an invariant is: an id, a sentence, a function from a history to what contradicts it; and the list of all."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from correlator.testing.invariants.facts import Facts

Check = Callable[[Facts], Iterator[str]]


class Invariant(NamedTuple):
    """One invariant."""

    id: str
    sentence: str
    check: Check


class Violation(NamedTuple):
    """What contradicts an invariant, or what a test asserts.

    Attributes:
        id: of the invariant, or `TEST`.
        sentence: the invariant, or the kind of error that was raised.
        what: what contradicts it.
    """

    id: str
    sentence: str
    what: str

    def __str__(self) -> str:
        return f"{self.id} violated ({self.sentence}): {self.what}"


class InvariantViolated(AssertionError):
    """`World.check` found this."""

    def __init__(self, violation: Violation) -> None:
        super().__init__(str(violation))
        self.violation = violation


CATALOGUE: dict[str, Invariant] = {}


def invariant(name: str, sentence: str) -> Callable[[Check], Check]:
    """Enter a function into the catalogue."""

    def enter(check: Check) -> Check:
        assert name not in CATALOGUE, name
        CATALOGUE[name] = Invariant(name, sentence, check)
        return check

    return enter
