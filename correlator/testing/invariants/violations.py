"""All invariants, and the question whether a history keeps them; docs/hazards.md lists them by group.

They know nothing of the engine: only what the broker, the disk and the application told.
"""

from correlator.testing.invariants import changes, churn, general, poison, receiving, sending
from correlator.testing.invariants.catalogue import CATALOGUE, Violation
from correlator.testing.invariants.facts import Facts
from correlator.testing.invariants.history import History

MOST_OF_ONE = 3
GROUPS = (general, receiving, sending, churn, changes, poison)
"""The modules that fill the catalogue, by being imported."""


def violations(history: History) -> list[Violation]:
    """Return all contradictions in the history, in the order of the catalogue; at most 3 for each invariant."""
    facts = Facts(history)
    found: list[Violation] = []
    for one in CATALOGUE.values():
        for count, what in enumerate(one.check(facts)):
            if count == MOST_OF_ONE:
                break
            found.append(Violation(one.id, one.sentence, what))
    return found
