"""One process of a run. It is forked from a process that has imported everything, and lives for milliseconds.

It dies before or after a statement of SQL, before a call that changes a file, or when its time is over.
"""

import gc
import logging
import os
import random
import signal
import sqlite3
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import msgspec
from sqlalchemy import Engine, event

from connectors.embedded import administrator, database, source, sweeping
from connectors.embedded.sql import Sql
from connectors.messaging import housekeeping, intake
from correlator.testing.syscalls import library
from correlator.testing.syscalls.library import Action, CallFault
from tests.harness.service.journal import Born, Ended, Journal, appending, now
from tests.harness.service.roles import Worker

JOURNAL = "journal"
LOG = "log"
BROKEN = 70
"""Exit status of a process that has met an error that must not occur."""
SHORT_S = 0.05


class Death(msgspec.Struct, frozen=True):
    """When a process dies. At most one of `statement`, `call` and `after_ms` is above 0.

    Attributes:
        statement: the number of the statement at which it dies, counted from 1; a commit counts as a statement.
        after: whether it dies after the statement; otherwise it dies before it.
        call: the number of the call that changes a file before which it dies, counted from 1.
        after_ms: the milliseconds after which it dies.
    """

    statement: int = 0
    after: bool = False
    call: int = 0
    after_ms: int = 0

    @property
    def kind(self) -> str:
        """The kind of death, for the figures."""
        return "statement" if self.statement else "call" if self.call else "time"


def shorten_waits() -> None:
    """Shorten all pauses and intervals of the service, so that runs are short."""
    source.LOOK_S = SHORT_S
    vars(source)["_REAP_S"] = 4 * SHORT_S
    sweeping.INTERVAL_S = 2 * SHORT_S
    intake.IDLE_S = 2 * SHORT_S
    vars(housekeeping)["_TICK_S"] = SHORT_S
    assert administrator


def warm_up() -> None:
    """Compile all statements in the parent, so that no forked process has to."""
    for one in [found for found in gc.get_objects() if isinstance(found, Sql)]:
        for dialect in ("sqlite", "postgresql"):
            one._compile(dialect)
    gc.collect()
    gc.freeze()


def fork(directory: Path, work: Callable[[], None]) -> int:
    """Run a function in a new process, which then ends; return the id of the process."""
    sys.stdout.flush()
    child = os.fork()
    if not child:
        _be(directory, work)
    return child


def _be(directory: Path, work: Callable[[], None]) -> NoReturn:
    status = BROKEN
    try:
        descriptor = os.open(directory / LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        logging.disable(logging.WARNING)
        work()
        status = 0
    except BaseException:  # noqa: BLE001  # the judge finds the status and the log of any error
        traceback.print_exc()
    sys.stderr.flush()
    os._exit(status)


def start(
    directory: Path, store: str, life: int, role: Callable[[Worker], None], seed: str, steps: int, death: Death | None
) -> int:
    """Start a process with a role; return the id of the process."""

    def live() -> None:
        journal = Journal(appending(directory / JOURNAL), life)
        journal.add(Born(now(), life, role.__name__))
        worker = Worker(store, life, journal, random.Random(seed), steps)
        worker.watch()
        arm(directory, death)
        role(worker)
        journal.add(Ended(now(), life))

    return fork(directory, live)


def arm(directory: Path, death: Death | None) -> None:
    """Let this process die as planned."""
    if death is None:
        return
    if death.after_ms:
        signal.setitimer(signal.ITIMER_REAL, death.after_ms / 1000)
    elif death.call:
        library.arm(directory, fault=CallFault(action=Action.KILL, at=death.call))
    else:
        _count_statements(death)


def _count_statements(death: Death) -> None:
    execute = Sql._execute
    counting = threading.Lock()
    counted = 0

    def at(*, after: bool) -> None:
        nonlocal counted
        with counting:
            counted += not after
            if counted == death.statement and after is death.after:
                os.kill(os.getpid(), signal.SIGKILL)

    def counted_execute(self: Sql, *arguments: Any) -> Any:
        at(after=False)
        result = execute(self, *arguments)
        at(after=True)
        return result

    def counted_commit(raw: sqlite3.Connection) -> None:
        at(after=False)
        commit(raw)

    commit = database.commit
    Sql._execute = counted_execute  # type: ignore[assignment,method-assign]
    database.commit = counted_commit
    event.listen(Engine, "commit", lambda _: at(after=False))  # with PostgreSQL
