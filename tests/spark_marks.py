"""Marks tests that use a Spark session of this process."""

from collections.abc import Iterable
from pathlib import Path

import pytest


def mark(items: Iterable[pytest.Item], directory: Path, fixture: str) -> None:
    """Mark the tests of a directory that use this fixture; PySpark's own warnings are not ours to repair."""
    for item in items:
        if item.path.parent == directory and fixture in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)
            # PySpark 4.3 warns of every pandas 3, which it imports and we do not use.
            item.add_marker(pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas"))
            # PySpark leaves the closing of its sockets to the garbage collector.
            item.add_marker(pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"))
