"""One cluster for all tests of this directory."""

from collections.abc import Iterator

import pytest

from tests.servers import running
from tests.spark_cluster import SparkCluster


@pytest.fixture(scope="session")
def cluster() -> Iterator[SparkCluster]:
    """A master and two workers; a test that kills a part of it starts it again."""
    with running(SparkCluster()) as cluster:
        yield cluster
