"""The steps of the pipeline of the cluster tests. Their output shows each loss, repeat and change of order."""

import os
import signal
from collections.abc import Iterator

import pyarrow as pa
from chains.model import POISON, doubled, link  # type: ignore[import-not-found]

from correlator import KeyedMonitor, event


@event
class Item:
    """A message; `number` counts the messages of its key."""

    key: str
    number: int
    twice: int


@event
class Link:
    """A message linked to all messages of its key before it."""

    key: str
    number: int
    chain: int


def twice(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Double the numbers; this is the function of a `python` step."""
    if POISON in rows.column("number").to_pylist():
        os.kill(os.getpid(), signal.SIGKILL)
    numbers = [doubled(one) for one in rows.column("number").to_pylist()]
    return rows.append_column("twice", pa.array(numbers, pa.int64()))


class Chains(KeyedMonitor[Item, Link]):
    """Links each message to all messages of its key before it."""

    chain: int = 0

    def on_event(self, row: Item) -> Iterator[Link]:
        """Yield the next link. A loss, a repeat or another order changes this link and all later ones."""
        assert row.twice == row.number * 2
        self.chain = link(self.chain, row.key, row.number)
        yield Link(key=row.key, number=row.number, chain=self.chain)
