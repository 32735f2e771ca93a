"""What the project's own application has told: the state of its monitors, and what became a dead letter in a context."""

from collections import Counter
from typing import Any

import msgspec

from correlator.testing.invariants.facts import Facts


def monitor(facts: Facts, name: str) -> dict[str, Any] | None:
    """The state of the only instance of a monitor at the end; `None` if there is none, or in another application."""
    found = facts.rest.state.get(name) if facts.rest and facts.setup.told else None
    return dict(found[0]) if found else None


def listed(facts: Facts, name: str, attribute: str) -> list[str]:
    """A list in the state of a monitor; empty if there is no such monitor."""
    state = monitor(facts, name)
    return list(state[attribute]) if state is not None else []


def condemned(facts: Facts, context: str, event: str = "") -> Counter[str]:
    """Ids of the messages that became dead letters of a context since processes died of them.

    For events from inside: what stands in their field of this name.
    """
    found: Counter[str] = Counter()
    for _, record in facts.history.of("condemned"):
        body = msgspec.json.decode(record.data.body)
        if record.who == context and bool(record.data.receiver) == (not event):
            found.update([body[event or "id"]] if (event or "id") in body else [])
    return found
