"""What the project's own application reported: the state of its monitors, and the dead letters of its contexts."""

from collections import Counter
from typing import Any

import msgspec

from correlator.testing.invariants.facts import Facts


def monitor(facts: Facts, name: str) -> dict[str, Any] | None:
    """Return the state of a monitor's only instance at the end; `None` without one, or in another application."""
    found = facts.rest.state.get(name) if facts.rest and facts.setup.told else None
    return dict(found[0]) if found else None


def listed(facts: Facts, name: str, attribute: str) -> list[str]:
    """Return a list in the state of a monitor; an empty list if there is no such monitor."""
    state = monitor(facts, name)
    return list(state[attribute]) if state is not None else []


def condemned(facts: Facts, context: str, event: str = "") -> Counter[str]:
    """Return the ids of the messages that became dead letters of a context because processes died of them.

    If `event` is not "", count events from inside the engine instead, by their field of this name.
    """
    found: Counter[str] = Counter()
    for _, record in facts.history.of("condemned"):
        body = msgspec.json.decode(record.data.body)
        if record.who == context and bool(record.data.receiver) == (not event):
            found.update([body[event or "id"]] if (event or "id") in body else [])
    return found
