"""Commits whose outcome the network hides, each resolved to the truth (trap T1).

    python -m tests.crash.ambiguous --commits 1000

A real engine works on a real PostgreSQL through the fault proxy. At each of its commits the request or the reply of
COMMIT is lost, whole or from one of its bytes on, and the server is told of it or not; some of the looks for the
outcome are disturbed as well. What the engine is told of each commit goes to a model of the store too; whenever an
outcome is settled, a second, direct connection looks at what the database really holds.
"""

import argparse
import random
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import structlog

from correlator import Engine
from correlator.core.commit import CheckpointCommit, ReceiveCommit, Recovered, Write
from correlator.errors import CommitUnknown, CorrelatorError
from correlator.storage.store import SqlStore
from correlator.testing.network import (
    POSTGRES_COMMIT,
    AtByte,
    AtRequest,
    CutConnection,
    Direction,
    FaultProxy,
    Injection,
    NetworkFault,
)
from correlator.testing.store import Disk, ModelStore, StoreAround
from tests.crash import child
from tests.crash.campaign import check, publish, write_report
from tests.servers import PostgresServer, running
from tests.storage.values import contents

REQUEST_SIZE = 12  # COMMIT
REPLY_SIZE = 18  # its completion, and that the server is ready
SESSION_SIZE = 1200  # what a new session says until it has looked, about, and what it hears
PUBLISHED_AHEAD = 100
PATIENCE_S = 60.0


@dataclass(slots=True)
class Figures:
    """What a run did.

    Attributes:
        commits: those that met a fault.
        faults: how many acted, by kind.
        outcomes: what was found, by kind of fault.
        without_fault: further ones whose connection was lost before their COMMIT was sent.
        disturbed: looks for an outcome whose own connection was cut or refused.
        looks: comparisons of the database with what the engine had been told.
        violations: texts.
    """

    commits: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    without_fault: int = 0
    disturbed: int = 0
    looks: int = 0
    orders: int = 0
    violations: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def line(self) -> str:
        """One line."""
        faults = ", ".join(f"{count} {kind}" for kind, count in sorted(self.faults.items()))
        return (
            f"{self.commits} commits: {faults}, {self.without_fault} without a fault; {self.disturbed} looks disturbed, "
            f"{self.looks} comparisons, {self.orders} orders exactly once, {len(self.violations)} violations, "
            f"{self.seconds:.0f} s"
        )

    def report(self) -> dict[str, Any]:
        """The same for a machine."""
        return {
            "runs": self.commits,
            "faults": dict(sorted(self.faults.items())),
            "outcomes": dict(sorted(self.outcomes.items())),
            "runs_without_fault": self.without_fault,
            "disturbed_looks": self.disturbed,
            "comparisons": self.looks,
            "orders": self.orders,
            "violations": self.violations,
            "seconds": round(self.seconds, 1),
        }


class WatchedStore(StoreAround):
    """The store of the engine: its commits meet faults, and what it answers is compared with what is there.

    Used as the port `Store` says; `wait_received` by the thread of the test.

    Args:
        store: the real one, behind the proxy.
        proxy: in front of the server.
        direct: a connection to the server itself, for this alone.
        rng: chooses faults.
        commits: so many meet one, then no more.
    """

    def __init__(
        self, store: SqlStore, proxy: FaultProxy, direct: psycopg.Connection, rng: random.Random, commits: int
    ) -> None:
        self.figures = Figures()
        self.disk = Disk()
        self.received = 0
        super().__init__(store)
        self._proxy = proxy
        self._direct = direct
        self._rng = rng
        self._commits = commits
        self._model = ModelStore(self.disk)
        self._asked: tuple[str, Sequence[Write]] = ("", ())
        self._changed = threading.Condition()

    def take_over(self, recovered: Recovered) -> None:
        """Both."""
        self._model.take_over(self._model.read())
        self._store.take_over(recovered)

    def commit(self, number: int, writes: Sequence[Write]) -> None:
        """Commit while a fault waits for the COMMIT."""
        if self.figures.commits >= self._commits:
            self._store.commit(number, writes)
            self._done(number, writes)
            return
        place, kind = self._place()
        injection = self._proxy.inject(NetworkFault(place, CutConnection(upstream=self._rng.random() < 0.5)))
        self._asked = (kind, writes)
        try:
            self._store.commit(number, writes)
            self._done(number, writes)
            self._note(injection, kind, "answered")
        except CommitUnknown:
            self._note(injection, kind, "")
            raise
        finally:
            injection.withdraw()

    def resolve(self, number: int) -> bool:
        """Look, sometimes through a connection that is disturbed in its turn."""
        injection = self._disturb()
        try:
            committed = self._store.resolve(number)
        finally:
            if injection is not None:
                self.figures.disturbed += injection.fired
                injection.withdraw()
            self._proxy.accept()
        self._proxy.heal()  # at last the server notices the clients that are gone
        kind, writes = self._asked
        if kind:
            self.figures.outcomes[f"{kind}: {'committed' if committed else 'not committed'}"] += 1
            if committed != _MUST_BE.get(kind, committed):
                self._violated(
                    f"commit {number}, {kind}: the store says that it was{'' if committed else ' not'} committed"
                )
        if committed:
            self._done(number, writes)
        else:
            self._look(number - 1)
        return committed

    def wait_received(self, count: int) -> bool:
        """Wait a moment until so many messages are in the store; says whether they are."""
        with self._changed:
            return self._changed.wait_for(lambda: self.received >= count, 1.0)

    def _place(self) -> tuple[AtRequest, str]:
        direction = self._rng.choice(list(Direction))
        size = REQUEST_SIZE if direction is Direction.REQUEST else REPLY_SIZE
        after = self._rng.choice([0, size, self._rng.randint(0, size)])
        kind = "cut behind the" if after == size else "lost" if not after else "cut within the"
        return AtRequest(matcher=POSTGRES_COMMIT, direction=direction, after=after), f"{kind} {direction}"

    def _note(self, injection: Injection, kind: str, outcome: str) -> None:
        if not (injection.fired or (outcome and injection.wait(PATIENCE_S))):
            self.figures.without_fault += 1
            self._asked = ("", self._asked[1])
            return
        self.figures.commits += 1
        self.figures.faults[kind] += 1
        if outcome:
            self.figures.outcomes[f"{kind}: {outcome}"] += 1

    def _disturb(self) -> Injection | None:
        """One look of four is cut at some byte, one of ten refused."""
        if self._rng.random() < 0.1:
            self.figures.disturbed += 1
            self._proxy.refuse()
        if self._rng.random() < 0.75:
            return None
        place = AtByte(
            direction=self._rng.choice(list(Direction)),
            connection=self._proxy.connections + 1,
            after=self._rng.randint(0, SESSION_SIZE),
        )
        return self._proxy.inject(NetworkFault(place, CutConnection(upstream=self._rng.random() < 0.5)))

    def _done(self, number: int, writes: Sequence[Write]) -> None:
        """The engine is told that this is committed."""
        self._asked = ("", ())
        self._model.commit(number, writes)
        self._look(number)
        with self._changed:
            for write in writes:
                if isinstance(write, ReceiveCommit) and write.segment is not None:
                    self.received += len(write.segment.messages)
            self._changed.notify_all()

    def _look(self, number: int) -> None:
        """The database holds what the engine was told, no more and no less."""
        self.figures.looks += 1
        believed, held = keys_of(self.disk), keys_in(self._direct)
        if believed != held:
            differences = [f"{name} {believed[name]} but {held[name]}" for name in held if believed[name] != held[name]]
            self._violated(f"at commit {number} the engine believes " + "; ".join(differences))

    def _violated(self, text: str) -> None:
        self.figures.violations.append(text)


_MUST_BE = {"lost request": False, "cut within the request": False, "lost reply": True, "cut within the reply": True}


def keys_of(disk: Disk) -> dict[str, Any]:
    """What a model of a store holds: the keys of all rows."""
    checkpoint = msgspec.msgpack.decode(disk.checkpoint, type=CheckpointCommit).number
    return {
        "engine": [(disk.epoch, disk.commit, len(disk.dead))],
        "checkpoint": [(checkpoint,)] if checkpoint else [],
        "receive_log": sorted((*key, span.last) for key, span in disk.receive_log.items()),
        "outbox": sorted((*key, span.last) for key, span in disk.outbound.items()),
        "accepted_ids": sorted(disk.ids),
        "state_log": sorted((number,) for number in disk.state),
        "endpoint": sorted((name,) for name in disk.endpoints),
    }


def keys_in(direct: psycopg.Connection) -> dict[str, Any]:
    """The same of a database."""
    columns = {
        "engine": "epoch, commit_number, dead_letters",
        "checkpoint": "number",
        "receive_log": "receiver, first, last",
        "outbox": "sender, first, last",
        "accepted_ids": "domain, number",
        "state_log": "number",
        "endpoint": "id",
    }
    with direct.transaction():
        return {table: sorted(direct.execute(f"SELECT {names} FROM {table}")) for table, names in columns.items()}


def run(
    server: PostgresServer,
    directory: Path,
    *,
    commits: int,
    seed: int,
    make_store: Callable[[str, str], SqlStore] = SqlStore,
) -> Figures:
    """One engine over so many commits.

    Args:
        server: with a database of this run's own.
        directory: for the broker.
        commits: how many.
        seed: of faults.
        make_store: of an address and a name; a mutant takes the place of the real one.
    """
    begin = time.monotonic()
    rng = random.Random(seed)
    url = server.fresh_database()
    broker = f"sqlite:///{directory}/broker.db"
    with FaultProxy(server.port) as proxy, psycopg.connect(url) as direct:
        direct.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        behind = make_store(url.replace(f":{server.port}/", f":{proxy.port}/"), "crash")
        store = WatchedStore(behind, proxy, direct, rng, commits)
        figures = store.figures
        try:
            figures.orders = _work(store, broker, rng, commits)
            check(url, broker, figures.orders)
            _compare_contents(url, store.disk)
        except (AssertionError, CorrelatorError) as error:
            figures.violations.append(f"{type(error).__name__}: {error}")
    figures.seconds = time.monotonic() - begin
    return figures


def _work(store: WatchedStore, broker: str, rng: random.Random, commits: int) -> int:
    """Feed an engine until it has met all faults and handled everything; returns how many orders it had."""
    settings = child.settings_of(child.Job(store="sqlite:///unused", broker=broker, expected=0))
    published = 0
    with Engine(settings, store=store) as engine:
        while store.figures.commits < commits:
            published = publish(rng, broker, published)
            while not store.wait_received(published - PUBLISHED_AHEAD):
                engine.raise_failure()
        while not store.wait_received(published):
            engine.raise_failure()
    engine.raise_failure()
    return published


def _compare_contents(url: str, disk: Disk) -> None:
    """At the end every row holds what the engine wrote."""
    opened = SqlStore(url, "crash")
    held, believed = contents(opened.read()), contents(disk.recovered())
    opened.close()
    assert held == believed


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; exit status 1 on a violation."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    parser = argparse.ArgumentParser(prog="python -m tests.crash.ambiguous")
    parser.add_argument("--commits", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--report", type=Path)
    parsed = parser.parse_args(arguments)
    directory = Path(tempfile.mkdtemp(prefix="correlator-ambiguous-"))
    try:
        with running(PostgresServer()) as server:
            figures = run(server, directory, commits=parsed.commits, seed=parsed.seed)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    sys.stdout.write("\n".join([*figures.violations, figures.line()]) + "\n")
    write_report(parsed.report, figures.report())
    return 1 if figures.violations else 0


if __name__ == "__main__":
    sys.exit(main())
