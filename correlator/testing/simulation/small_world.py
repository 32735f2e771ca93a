"""Small limits of the engine, for short runs."""

import contextlib
from collections.abc import Iterator
from typing import Any

import structlog

from correlator.core import dedup, statelog

SEGMENT_ENTRIES = 4
"""Entries of a state segment in the simulation: small, so that cleaning takes place in short runs."""
SPARSE = 2
SLACK = 0
"""A segment of ids is rewritten when one in so many is alive: often, with the small windows of the simulation."""


@contextlib.contextmanager
def small_world() -> Iterator[None]:
    """Within the block the engine's limits are so small that short runs reach every mechanism, and logs are dropped."""
    before = statelog.SEGMENT_ENTRIES, dedup.SPARSE, dedup.SLACK, structlog.get_config()
    statelog.SEGMENT_ENTRIES, dedup.SPARSE, dedup.SLACK = SEGMENT_ENTRIES, SPARSE, SLACK
    structlog.configure(processors=[_drop])
    try:
        yield
    finally:
        statelog.SEGMENT_ENTRIES, dedup.SPARSE, dedup.SLACK, configuration = before
        structlog.configure(**configuration)


def _drop(_logger: Any, _method: str, _event: Any) -> Any:
    raise structlog.DropEvent
