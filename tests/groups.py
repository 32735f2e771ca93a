"""Which tests one worker runs one after the other, so that a server starts once for all of them.

Four workers that each start the servers of all brokers and a Spark session would be busy with that for minutes. So the
tests of a broker are a group, so are those that parse all sources, and those of Spark are two. Which worker gets a
group is decided when it has nothing else to do, and the other tests fill the gaps.
"""

import re
from typing import Any
from zlib import crc32

import pytest
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

_BROKER = re.compile("pulsar|starlight|kafka|webhook|rabbit|mysql|bucket")
_OF_FILES = {"starlight": "pulsar", "webhook": "kafka"}
"""The broker of files that do not name it."""
_READ_SOURCES = ("tests/test_architecture.py", "tests/docs/test_hazards.py", "tests/docs/test_rules.py")
"""Files whose tests parse the same sources, which a worker then does once."""
_SPARK = ("tests/pipeline/", "tests/spark_programs/")
_HALVES = 2


def group_of(nodeid: str) -> str:
    """The group of a test; its own name if it is a group of one."""
    file = nodeid.partition("::")[0]
    if file.startswith(_SPARK):
        return f"spark {crc32(file.encode()) % _HALVES}"
    if file.startswith("tests/cluster/"):
        return "cluster"
    if file in _READ_SOURCES:
        return "sources"
    broker = _BROKER.search(nodeid)
    return nodeid if broker is None else _OF_FILES.get(broker[0], broker[0])


class Groups(LoadScopeScheduling):
    """Gives whole groups to workers, the largest groups first."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)

    def mark_test_complete(self, node: WorkerController, item_index: int, duration: float = 0) -> None:
        """Forget a group when its last test has ended.

        The base class goes through all groups that a worker has ever had, after each test: with 10,000 groups that
        takes longer than many a test.
        """
        super().mark_test_complete(node, item_index, duration)
        work, group = self.assigned_work[node], group_of(self.registered_collections[node][item_index])
        if all(work[group].values()):
            del work[group]


def scheduler(config: pytest.Config, log: Any) -> Groups:
    """The scheduler of a run with several workers."""
    return Groups(config, log)
