"""Runs the message service many times, and kills its processes."""

import contextlib
import os
import random
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Protocol

import msgspec
import psycopg
from sqlalchemy.engine import make_url

from correlator.testing import files
from correlator.testing.syscalls import library
from tests.harness.service import roles, topology
from tests.harness.service.drain import drain, tidy
from tests.harness.service.journal import Asked, Got, Journal, Restarted, appending, now, read
from tests.harness.service.judge import Breach, violations
from tests.harness.service.life import JOURNAL, LOG, Death, fork, start
from tests.harness.service.roles import Worker
from tests.harness.service.tables import tables

MOST_VIOLATIONS = 3
"""How many runs may fail before a campaign ends."""
TOGETHER = (2, 3, 4)
WAVES = (1, 2, 2, 3)
LIVES = (3, 10)
"""The smallest and the largest number of processes that a wave starts."""
PATIENCE_S = 90.0


class Stores(Protocol):
    """Makes an empty broker for each run."""

    def fresh(self, directory: Path) -> str:
        """Return the address of a new broker with the destinations of `topology`."""
        ...

    def drop(self, store: str) -> None:
        """Remove the broker."""
        ...


class FileStores:
    """Makes SQLite files that are copies of one file, whose bytes are `content`."""

    def __init__(self) -> None:
        with tempfile.TemporaryDirectory() as directory:
            self.content = _made_in_child(Path(directory))

    def fresh(self, directory: Path) -> str:
        """See `Stores`."""
        path = directory / "broker.db"
        files.write(path, [self.content])
        return f"sqlite:///{path}"

    def drop(self, store: str) -> None:
        """Do nothing: deleting the directory of the run deletes the file. See `Stores`."""


class ServerStores:
    """Makes databases of a PostgreSQL server that are copies of one database.

    Args:
        server: the address of one of its databases, as a superuser.
    """

    def __init__(self, server: str) -> None:
        self._server = make_url(server)
        self._made = 0
        self._template = self._name()
        self._do(f"CREATE DATABASE {self._template}")
        with tempfile.TemporaryDirectory() as directory:
            bury(fork(Path(directory), lambda: topology.make(self._url(self._template))))
        self._wait_until_unused(self._template)

    def fresh(self, directory: Path) -> str:
        """See `Stores`."""
        name = self._name()
        self._do(f"CREATE DATABASE {name} TEMPLATE {self._template}")
        return self._url(name)

    def drop(self, store: str) -> None:
        """See `Stores`."""
        self._do(f"DROP DATABASE {make_url(store).database} WITH (FORCE)")

    def _name(self) -> str:
        self._made += 1
        return f"service_{os.getpid()}_{self._made}"

    def _url(self, database: str) -> str:
        return self._server.set(database=database).render_as_string(hide_password=False)

    def _do(self, statement: str) -> None:
        with psycopg.connect(self._url(self._server.database or ""), autocommit=True) as server:
            server.execute(statement)

    def _wait_until_unused(self, database: str) -> None:
        """Wait until nobody is connected to a database: the server ends a session a moment after its process."""
        with psycopg.connect(self._url(self._server.database or ""), autocommit=True) as server:
            deadline = time.monotonic() + PATIENCE_S
            while server.execute("SELECT 1 FROM pg_stat_activity WHERE datname = %s", (database,)).fetchall():
                assert time.monotonic() < deadline, database
                time.sleep(0.01)


def _made_in_child(directory: Path) -> bytes:
    """Return the bytes of an empty broker. Another process makes it, because this process forks and
    must have no threads.
    """
    path = directory / "made"
    bury(fork(directory, lambda: files.write(path, [topology.template(directory)])))
    return path.read_bytes()


class FailedRun(msgspec.Struct, frozen=True):
    """A run that failed: its seed, some of the violations, and the directory with store, journal and log."""

    seed: int
    violated: list[str]
    kept: str


class ServiceFigures(msgspec.Struct):
    """The figures of a campaign.

    Attributes:
        runs: runs from an empty broker until it is empty again.
        lives: processes that were started.
        kills: processes that died as planned, or because the server was killed.
        by_kind: kills by kind.
        by_role: kills by the role of the process.
        restarts: number of starts of the broker after all processes were dead.
        messages: messages that a program sent or tried to send.
        handed: number of times that a program got a message.
        again: number of times that a program got a message that it or another program had got before.
        prepared: prepared transactions that were resolved.
        without_fault: runs in which no process was killed.
        violations: runs that failed.
        by_violation: runs by the promise that they violate.
        found: the runs that failed.
        seconds, cpu_seconds: duration and CPU time of the campaign.
    """

    runs: int = 0
    lives: int = 0
    kills: int = 0
    by_kind: Counter[str] = msgspec.field(default_factory=Counter)
    by_role: Counter[str] = msgspec.field(default_factory=Counter)
    restarts: int = 0
    messages: int = 0
    handed: int = 0
    again: int = 0
    prepared: int = 0
    without_fault: int = 0
    violations: int = 0
    by_violation: Counter[str] = msgspec.field(default_factory=Counter)
    found: list[FailedRun] = []
    seconds: float = 0.0
    cpu_seconds: float = 0.0

    def merge(self, other: "ServiceFigures") -> None:
        """Add the figures of another campaign that ran at the same time with other seeds."""
        for name in self.__struct_fields__:
            if name == "seconds":
                self.seconds = max(self.seconds, other.seconds)
            else:
                setattr(self, name, getattr(self, name) + getattr(other, name))

    def line(self) -> str:
        """Return the figures as one line."""
        kinds = ", ".join(f"{count:,} by {kind}" for kind, count in sorted(self.by_kind.items()))
        return (
            f"{self.runs:,} runs ({self.without_fault:,} without a fault), {self.kills:,} kills ({kinds}) of "
            f"{self.lives:,} processes, {self.restarts:,} starts of the broker, {self.messages:,} messages handed over "
            f"{self.handed:,} times ({self.again:,} again), {self.prepared:,} prepared transactions, "
            f"{self.violations} violations, {self.seconds:.0f} s, {self.cpu_seconds:.0f} s of CPU, "
            f"{self.kills / max(self.cpu_seconds, 0.001):.1f} kills per second of CPU"
        )


class Run:
    """One run.

    Args:
        directory: an empty directory.
        store: the address of an empty broker.
        seed: determines all random choices.
        figures: counts the run.
        cast: the roles of the processes, and how often processes have them.
    """

    def __init__(self, directory: Path, store: str, seed: int, figures: ServiceFigures, cast: roles.Cast) -> None:
        self._directory = directory
        self._store = store
        self._seed = seed
        self._rng = random.Random(f"service {seed}")
        self._figures = figures
        self._cast = cast
        self._lives = 0
        self._kills = 0
        self._found: list[Breach] = []
        self._on_sqlite = store.startswith("sqlite")

    def run(self) -> list[Breach]:
        """Run from an empty broker to an empty broker; return the violated promises. Ends early if rows are wrong."""
        write = Journal(appending(self._directory / JOURNAL), 0)
        spared = self._rng.random() < 0.05
        waves = self._rng.choice(WAVES)
        for wave in range(1, waves + 1):
            with self._kept_open(killed=self._rng.random() < 0.5 and not spared):
                self._wave(spared=spared)
                if self._found:
                    return self._found
                stays = wave == waves and self._rng.random() < 0.5
                if stays:
                    self._drain()
            if not stays:
                write.add(Restarted(now()))
                self._figures.restarts += 1
        if not stays:
            self._drain()
        self._end(lambda: tidy(self._store))  # the process that kept the broker open may have been killed
        self._look(empty=True)
        self._judge()
        self._figures.without_fault += not self._kills
        return self._found

    def _wave(self, *, spared: bool) -> None:
        left = self._rng.randint(*LIVES)
        together = self._rng.choice(TOGETHER)
        living: dict[int, tuple[str, Death | None]] = {}
        deadline = time.monotonic() + PATIENCE_S
        while left or living:
            while left and len(living) < together:
                left -= 1
                role = self._rng.choices(list(self._cast), list(self._cast.values()))[0]
                death = None if spared or self._rng.random() < 0.15 else self._drawn_death()
                living[self._start(role, death)] = role.__name__, death
            ended = self._one_of(set(living), deadline)
            if not ended:
                self._found.append(Breach("STUCK", f"{[role for role, _ in living.values()]} did not end"))
            for process, status in ended:
                self._count(*living.pop(process), status)
            self._look(empty=False)
            if self._found:
                for process in living:
                    os.kill(process, signal.SIGKILL)
                    bury(process)
                return

    def _start(self, role: Callable[[Worker], None], death: Death | None) -> int:
        self._lives += 1
        self._figures.lives += 1
        steps = self._rng.randint(4, 14)
        seed = f"{self._seed} {self._lives}"
        return start(self._directory, self._store, self._lives, role, seed, steps, death)

    def _drawn_death(self) -> Death:
        rng, kind = self._rng, self._rng.random()
        if kind < 0.15:
            return Death(after_ms=rng.randint(1, 250))
        if kind < 0.40 and self._on_sqlite and library.preloaded():
            return Death(call=rng.randint(1, rng.choice((10, 40, 120))))
        return Death(statement=rng.randint(1, rng.choice((15, 60, 150, 400))), after=rng.random() < 0.5)

    def _one_of(self, living: set[int], deadline: float) -> list[tuple[int, int]]:
        """Wait for processes to end; return those that have ended, or none if the time is over."""
        while time.monotonic() < deadline:
            found = [(process, status) for process in living if (status := _status(process)) is not None]
            if found:
                return found
            time.sleep(0.002)
        return []

    def _count(self, role: str, death: Death | None, status: int) -> None:
        if status in {-signal.SIGKILL, -signal.SIGALRM} and death is not None:
            self._kills += 1
            self._figures.kills += 1
            self._figures.by_kind[death.kind] += 1
            self._figures.by_role[role] += 1
        elif status:
            self._found.append(Breach("BROKEN", f"{role} ended with status {status}: {self._last_line()}"))

    def _last_line(self) -> str:
        lines = (self._directory / LOG).read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""

    @contextlib.contextmanager
    def _kept_open(self, *, killed: bool) -> Iterator[None]:
        """Let a process keep the broker open during the block, so that the broker does not start anew."""
        ready, tells = os.pipe()
        until, ends = os.pipe()
        self._lives += 1
        keeper = start(self._directory, self._store, self._lives, _keeper(tells, until, (ready, ends)), "", 0, None)
        for descriptor in (tells, until):
            os.close(descriptor)
        os.read(ready, 1)
        os.close(ready)
        with tables(self._store) as before:
            starts = before.starts()
        try:
            yield
            with tables(self._store) as after:
                if after.starts() != starts:
                    self._found.append(Breach("START", "the broker started while a process had it open"))
        finally:
            if killed:
                os.kill(keeper, signal.SIGKILL)
                self._kills += 1
                self._figures.kills += 1
                self._figures.by_kind["restart"] += 1
            os.close(ends)
            bury(keeper)

    def _drain(self) -> None:
        self._lives += 1
        self._end(partial(drain, self._directory, self._store, self._lives, self._prepared()))

    def _prepared(self) -> list[str]:
        """Return the names of all transactions that a process wanted to prepare."""
        events = read(self._directory / JOURNAL)
        return [one.name for one in events if isinstance(one, Asked) and one.call == "prepare"]

    def _end(self, work: Callable[[], None]) -> None:
        def end() -> None:
            signal.setitimer(signal.ITIMER_REAL, PATIENCE_S)
            work()

        status = bury(fork(self._directory, end))
        if status:
            self._found.append(Breach("BROKEN", f"the end had status {status}: {self._last_line()}"))

    def _look(self, *, empty: bool) -> None:
        with tables(self._store) as found:
            self._found += [Breach("ROWS", what) for what in found.contradictions()]
            if empty:
                self._found += [Breach("LEFT", what) for what in found.left()]

    def _judge(self) -> None:
        events = read(self._directory / JOURNAL)
        self._found += violations(events)
        figures = self._figures
        gots = [event for event in events if isinstance(event, Got) and event.place != topology.DEAD]
        figures.handed += len(gots)
        figures.again += len(gots) - len({(got.place, got.name) for got in gots})
        for event in events:
            if isinstance(event, Asked):
                figures.messages += len(event.sends)
                figures.prepared += event.call == "prepare"


def _keeper(tells: int, until: int, others: tuple[int, ...]) -> Callable[[Worker], None]:
    def keep_open(worker: Worker) -> None:
        for descriptor in others:
            os.close(descriptor)
        roles.keep_open(worker, tells, until)

    return keep_open


def _status(process: int) -> int | None:
    """Return the exit status of a process; `None` if it lives."""
    found, status = os.waitpid(process, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if found else None


def bury(process: int) -> int:
    """Wait for the end of a process; return its status, or the negative number of the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def run_seed(
    seed: int, stores: Stores, figures: ServiceFigures, cast: roles.Cast = roles.ROLES, *, keeps: bool = True
) -> list[Breach]:
    """Do one run. If it fails, its directory stays, unless `keeps` is false."""
    directory = Path(tempfile.mkdtemp(prefix="correlator-service-"))
    store = stores.fresh(directory)
    found = Run(directory, store, seed, figures, cast).run()
    figures.runs += 1
    if found:
        figures.violations += 1
        figures.by_violation.update({one.id for one in found})
        figures.found.append(FailedRun(seed, [str(one) for one in found[:6]], str(directory)))
        if keeps:
            return found
    stores.drop(store)
    shutil.rmtree(directory)
    return found


def campaign(kills: int, *, seed: int, step: int, stores: Stores) -> ServiceFigures:
    """Do runs with ascending seeds, until `kills` processes were killed or too many runs have failed."""
    figures = ServiceFigures()
    began, used = time.monotonic(), _cpu_s()
    with contextlib.suppress(KeyboardInterrupt):
        while figures.kills < kills and figures.violations < MOST_VIOLATIONS:
            run_seed(seed, stores, figures)
            seed += step
    figures.seconds = round(time.monotonic() - began, 2)
    figures.cpu_seconds = round(_cpu_s() - used, 2)
    return figures


def _cpu_s() -> float:
    """Return the CPU time of this process and of its children that have ended."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system
