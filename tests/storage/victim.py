"""A process that forks engines which die by SIGKILL at a fault point. Reads `work url hit` lines, answers each.

The answer is `status commits point`: what the child ended with, how many of its commits had returned, where it died.
"""

import os
import signal
import sys
from pathlib import Path

from sqlalchemy import inspect

from correlator.core import faults
from correlator.core.commit import QueueRun, ReceiveCommit, RegistryCommit, SuspectCommit, Write
from correlator.storage import database, migrate
from correlator.storage.store import SqlStore
from tests.storage import values
from tests.storage.values import opened

REVISIONS = Path(__file__).parent / "revisions"
COMMITS: list[list[Write]] = [
    [RegistryCommit(put=[values.endpoint("orders"), values.endpoint("alerts", "sender"), values.endpoint("twin")])],
    [values.received(1, 3, number=1), values.received(1, 1, receiver="twin")],
    [
        values.checkpoint(
            1,
            contexts=[values.context(QueueRun("twin", 1, 1))],
            senders=[values.sender(0, 3)],
            state=[values.state(1, a=b"1"), values.state(2, b=b"2")],
            outbound=[values.outbound(1, 2)],
            consumed={"orders": 3},
        )
    ],
    [
        ReceiveCommit(
            receiver="orders",
            segment=values.received(4, 2).segment,
            ids=values.ids(2, "m4"),
            rewritten=[values.ids(1, "m3")],
            confirmed_batch=1,
            dead_letters=[values.letter()],
        ),
        values.checkpoint(2, senders=[values.sender(2, 3)], state=[values.state(3, a=b"3")], state_dropped=[1]),
    ],
    [RegistryCommit(removed=["twin"])],
    [SuspectCommit(contexts=["main"], suspects=[values.suspect(4, 5), values.suspect(6, 6)])],
    [values.checkpoint(3, absolved=[values.suspect(6, 6)], dead_letters=[values.letter()])],
    [ReceiveCommit(receiver="orders", segment=None, ids=None, forgotten=[("d", 1)])],
]


def work_of_an_engine(url: str, report: "Report") -> None:
    """Open, commit all that is not yet there, and ask for the last as if its answer had been lost."""
    store = SqlStore(url, "alpha")
    for number in range(opened(store).commit + 1, len(COMMITS) + 1):
        store.commit(number, COMMITS[number - 1])
        report.commits = number
    assert store.resolve(len(COMMITS))
    store.close()


def work_of_a_migration(url: str, report: "Report") -> None:
    """Bring a store of the first schema to the last of the test's revisions."""
    store = database.connect(url)
    migrate.bring_up(store, head="0006", scripts=REVISIONS)
    report.commits = 3
    store.close()


def tables_of(store: database.Database) -> set[str]:
    with store.transaction() as connection:
        return set(inspect(connection).get_table_names())


class Report:
    """What the child tells before it dies, through a pipe."""

    def __init__(self, pipe: int, hit: int) -> None:
        self.commits = 0
        self._pipe = pipe
        self._hit = hit

    def passed(self, point: str) -> None:
        self._hit -= 1
        if self._hit == 0:
            self.tell(point)
            os.kill(os.getpid(), signal.SIGKILL)

    def tell(self, point: str) -> None:
        os.write(self._pipe, f"{self.commits} {point}".encode())


def child(work: str, url: str, hit: int, pipe: int) -> None:
    report = Report(pipe, hit)
    faults.install(report.passed)
    (work_of_an_engine if work == "engine" else work_of_a_migration)(url, report)
    report.tell("end")


def main() -> None:
    for line in sys.stdin:
        work, url, hit = line.split()
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                child(work, url, int(hit), writer)
            finally:
                os._exit(0)
        os.close(writer)
        _, status = os.waitpid(pid, 0)
        with os.fdopen(reader) as pipe:
            sys.stdout.write(f"{os.waitstatus_to_exitcode(status)} {pipe.read()}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
