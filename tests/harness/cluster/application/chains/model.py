"""A module that no step names: a step imports it."""

import zlib

POISON = 666_666
"""A number with which the worker of a step kills itself."""


def doubled(number: int) -> int:
    """Return twice a number."""
    return number * 2


def link(chain: int, key: str, number: int) -> int:
    """Return the next value of the chain of a key."""
    return zlib.crc32(f"{key} {number}".encode(), chain)
