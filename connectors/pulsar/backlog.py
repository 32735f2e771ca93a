"""What a subscription has not acknowledged yet, as the broker's REST interface tells it: its own protocol does not."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from connectors.pulsar import rest
from connectors.pulsar.broker import PulsarBroker

_RANGE = re.compile(r"\((\d+):(-?\d+)\.\.(\d+):(-?\d+)\]")
_Entry = tuple[int, int]
"""Ledger and entry: they grow with the topic."""


class Backlog(NamedTuple):
    """What is left.

    Attributes:
        behind: everything up to this entry is acknowledged.
        last: the newest entry.
        acknowledged: further entries, each range without its first and with its last one.
    """

    behind: _Entry
    last: _Entry
    acknowledged: Sequence[tuple[_Entry, _Entry]]

    def holds(self, entry: _Entry) -> bool:
        """Whether it is not acknowledged yet."""
        return self.behind < entry and not any(before < entry <= through for before, through in self.acknowledged)


def backlog_of(where: str, broker: PulsarBroker, topic: str, subscription: str) -> Backlog | None:
    """Of one topic or partition; everything where there is no such subscription, `None` where there is no topic.

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
