"""Check a history against all invariants of the catalogue; docs/hazards.md lists them by group.

The invariants of this package hold for every application. They know nothing of the engine, and use only what the
broker, the disk and the application reported. To check more of one application, enter invariants of it into the
catalogue.
"""

from correlator.testing.invariants import general, poison, receiving, sending
from correlator.testing.invariants.catalogue import CATALOGUE, Violation
from correlator.testing.invariants.facts import Facts
from correlator.testing.invariants.history import History

MOST_OF_ONE = 3
GROUPS = (general, receiving, sending, poison)
"""The modules that fill the catalogue, by being imported."""


def violations(history: History) -> list[Violation]:
    """Return all contradictions in the history, in the order of the catalogue; at most 3 for each invariant."""
    facts = Facts(history)
    found: list[Violation] = []
    for one in CATALOGUE.values():
        for count, what in enumerate(one.contradictions(facts)):
            if count == MOST_OF_ONE:
                break
            found.append(Violation(one.id, one.sentence, what))
    return found
