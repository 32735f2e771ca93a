"""Asks the broker's REST interface which messages a subscription has not acknowledged; the binary protocol cannot."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from connectors.pulsar import rest
from connectors.pulsar.broker import PulsarBroker

_RANGE = re.compile(r"\((\d+):(-?\d+)\.\.(\d+):(-?\d+)\]")
_Entry = tuple[int, int]
"""Ledger and entry number; a later message has higher ones."""


class Backlog(NamedTuple):
    """The unacknowledged entries of a subscription.

    Attributes:
        behind: entry up to which all entries are acknowledged.
        last: the newest entry.
        acknowledged: ranges of further acknowledged entries; the first entry of a range is excluded, the last included.
    """

    behind: _Entry
    last: _Entry
    acknowledged: Sequence[tuple[_Entry, _Entry]]

    def holds(self, entry: _Entry) -> bool:
        """Return whether an entry is unacknowledged."""
        return self.behind < entry and not any(before < entry <= through for before, through in self.acknowledged)


def backlog_of(where: str, broker: PulsarBroker, topic: str, subscription: str) -> Backlog | None:
    """Return the backlog of a topic or partition: all entries without such a subscription, `None` without such a topic.

    Raises `ConnectionLost`.
    """
    try:
        stats = rest.ask(where, broker, "GET", topic, "internalStats")
    except rest.NotThere:
        return None
    last = _entry(stats["lastConfirmedEntry"])
    cursor = stats["cursors"].get(subscription)
    if cursor is None:
        return Backlog((-1, -1), last, ())
    ranges = [
        ((int(ledger), int(entry)), (int(last_ledger), int(last_entry)))
        for ledger, entry, last_ledger, last_entry in _RANGE.findall(cursor["individuallyDeletedMessages"])
    ]
    return Backlog(_entry(cursor["markDeletePosition"]), last, ranges)


def _entry(text: str) -> _Entry:
    ledger, _, entry = text.partition(":")
    return int(ledger), int(entry)
