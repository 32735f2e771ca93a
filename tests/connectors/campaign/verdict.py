"""Judges whether a state, or a topic, holds each order once."""

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from correlator.storage.store import SqlStore

IDS_SHOWN = 200


class Verdict(NamedTuple):
    """The orders that should not be there, and the orders that are missing."""

    lost: list[str]
    doubled: dict[str, int]
    foreign: dict[str, int]

    @property
    def doubles(self) -> int:
        """The number of orders beyond the first of each number."""
        return sum(self.doubled.values()) - len(self.doubled)

    def violations(self, *, may_double: bool = False) -> list[str]:
        """One text for each kind of violation."""
        found = {
            "lost": self.lost,
            "counted more than once": [] if may_double else [f"{one} ({n} times)" for one, n in self.doubled.items()],
            "never published": list(self.foreign),
        }
        return [
            f"{len(ids)} orders {what}: {', '.join(ids[:IDS_SHOWN])}{' ...' if len(ids) > IDS_SHOWN else ''}"
            for what, ids in found.items()
            if ids
        ]


def judge(counts: Mapping[str, int], published: int) -> Verdict:
    """Compare the counted orders with the numbers of all orders that the publisher has begun."""
    expected = [str(number) for number in range(published)]
    known = set(expected)
    return Verdict(
        lost=[name for name in expected if not counts.get(name)],
        doubled={name: counts[name] for name in expected if counts.get(name, 0) > 1},
        foreign={name: count for name, count in counts.items() if name not in known},
    )


def counts_in(store: str, engine: str) -> dict[str, int]:
    """How often each order was counted, according to the store of an engine that has ended."""
    opened_store = SqlStore(store, engine)
    values: dict[tuple[str, bytes], bytes | None] = {}
    for segment in opened_store.read().state:
        values.update({(entry.owner, entry.key): entry.value for entry in segment.entries})
    opened_store.close()
    return {
        msgspec.msgpack.decode(key, type=str): msgspec.msgpack.decode(value, type=int)
        for (owner, key), value in values.items()
        if owner.startswith("table:") and value is not None
    }
