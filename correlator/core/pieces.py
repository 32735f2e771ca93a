"""Divides what is to be stored into rows, so that no row is too large for a database. Pure."""

from collections.abc import Sequence
from typing import TypeVar

from correlator.events import Message

T = TypeVar("T")
_MEASURED = (str, bytes)

MOST_BYTES = 16 * 1024 * 1024
"""Approximate limit in bytes of the content of one row. A larger item has a row of its own."""


def pieces(items: Sequence[T], sizes: Sequence[int], most: int) -> list[Sequence[T]]:
    """Divide items, in order, into pieces of at most `most` items and `MOST_BYTES`; `sizes` are in bytes."""
    if len(items) <= most and sum(sizes) <= MOST_BYTES:
        return [items] if items else []
    found: list[Sequence[T]] = []
    begin = size = 0
    for at, its_size in enumerate(sizes):
        if at > begin and (at - begin == most or size + its_size > MOST_BYTES):
            found.append(items[begin:at])
            begin, size = at, 0
        size += its_size
    return [*found, items[begin:]]


def size_of(message: Message) -> int:
    """Approximate number of bytes that a message adds to its row."""
    size = len(message.body)
    for value in message.properties.values():
        if isinstance(value, _MEASURED):
            size += len(value)
    return size
