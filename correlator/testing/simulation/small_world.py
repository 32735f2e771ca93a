"""Small limits of the engine, for short runs."""

import contextlib
from collections.abc import Iterator
from typing import Any

import structlog

from correlator.core import dedup, statelog

SEGMENT_ENTRIES = 4
"""Entries of a segment of state in the simulation. The number is small, so that short runs clean segments."""
SPARSE = 2
SLACK = 0
"""Segments of ids are rewritten if more than `SPARSE` times the living ids plus `SLACK` are stored: so quite often."""


@contextlib.contextmanager
def small_world() -> Iterator[None]:
    """Within the block, make the engine's limits so small that short runs reach every mechanism, and drop logs."""
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
