"""What an invariant is: an id, a sentence, functions from a history to what contradicts it; and the list of all."""

import itertools
from collections.abc import Callable, Iterator
from typing import NamedTuple

from correlator.testing.invariants.facts import Facts

Check = Callable[[Facts], Iterator[str]]


class Invariant(NamedTuple):
    """An invariant of docs/hazards.md.

    Attributes:
        id: a letter and a number, such as `G3`.
        sentence: what must hold for every history.
        checks: each yields a text for each contradiction that it finds in a history.
    """

    id: str
    sentence: str
    checks: tuple[Check, ...]

    def contradictions(self, facts: Facts) -> Iterator[str]:
        """What its checks find, in the order in which they were entered."""
        return itertools.chain.from_iterable(check(facts) for check in self.checks)


class Violation(NamedTuple):
    """What contradicts an invariant, or what a test asserts.

    Attributes:
        id: id of the invariant, or `TEST`.
        sentence: the invariant, or the kind of error that was raised.
        what: the contradiction that was found.
    """

    id: str
    sentence: str
    what: str

    def __str__(self) -> str:
        return f"{self.id} violated ({self.sentence}): {self.what}"


class InvariantViolated(AssertionError):
    """A run contradicts an invariant, or did not become quiet. `World.check` and `World.run_until_quiet` raise it.

    Args:
        violation: the first contradiction.
    """

    def __init__(self, violation: Violation) -> None:
        super().__init__(str(violation))
        self.violation = violation


CATALOGUE: dict[str, Invariant] = {}


def invariant(name: str, sentence: str) -> Callable[[Check], Check]:
    """Enter an invariant into the catalogue, with the decorated function as its check."""

    def enter(check: Check) -> Check:
        assert name not in CATALOGUE, name
        CATALOGUE[name] = Invariant(name, sentence, (check,))
        return check

    return enter


def further(name: str) -> Callable[[Check], Check]:
    """Add the decorated function to the checks of an invariant that the catalogue has."""

    def enter(check: Check) -> Check:
        known = CATALOGUE[name]
        CATALOGUE[name] = known._replace(checks=(*known.checks, check))
        return check

    return enter
