"""Real processes, really killed: SIGKILL at random times and at named fault points, until the work is done.

    python -m tests.crash.campaign --kills 1000 --store sqlite
    python -m tests.crash.campaign --kills 2000 --store postgres

Over PostgreSQL some of the kills hit the server while the engine lives: its session is ended, the process behind it is
killed (the server recovers as after a crash), or the whole server is stopped at once and started again. The engine must
then go on and finish by itself, unless it is killed as well.

The oracle is this process: it publishes, kills, and at the end reads both brokers' queues and the store. Every order
counts once in the state, and leaves once by each sender, numbered without a gap.
"""

import argparse
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec

from connectors.embedded import EmbeddedConnection
from correlator.core.commit import StateSegment
from correlator.core.instances import StoredMonitor
from correlator.errors import StoreError
from correlator.events import Message, Outgoing
from correlator.settings import ConnectionSettings, SenderSettings
from correlator.storage.store import SqlStore
from correlator.testing.files import write_json
from tests.crash.child import Job, run
from tests.forking import forking
from tests.servers import PostgresServer, running

ORDERS_OF_A_LIFE = 40
LIVES = 15
PATIENCE_S = 120.0
POINTS = (
    "rec.lock",
    "cfg.register.commit",
    "cfg.tx.commit.before",
    "cfg.tx.commit.after",
    "rec.epoch.commit.before",
    "rec.epoch.commit.after",
    "rec.load.dedup",
    "rec.load.outbox",
    "rec.replay",
    "rec.on_begin",
    "rec.on_conclude",
    "rec.open_receivers",
    "rx.tx.begin",
    "rx.tx.insert",
    "rx.tx.dedup",
    "rx.tx.commit.before",
    "rx.tx.commit.after",
    "rx.enqueue",
    "rx.ack.before",
    "rx.ack.after",
    "app.event",
    "ck.snapshot",
    "ck.tx.begin",
    "ck.tx.state",
    "ck.tx.outbox",
    "ck.tx.prune_rx",
    "ck.tx.commit.before",
    "ck.tx.commit.after",
    "ck.release.before",
    "ck.release.after",
    "tx.publish.before",
    "tx.publish.after",
    "tx.confirm",
)
"""Where a child may be told to kill itself."""

SESSION, BACKEND, SERVER = "sessions ended", "backends killed", "servers stopped"

_context = forking("tests.crash.child", "connectors.embedded", "psycopg")


@dataclass(slots=True)
class Figures:
    """What a campaign did.

    Attributes:
        kills: all of them.
        kinds: the same by what was killed, and how.
        lives: engines that were started to be killed.
        unharmed: those of them that had ended before anything was killed.
        refused: those that did not start, since their server was killed meanwhile.
        rounds: stores.
        orders: handled, each exactly once.
        violations: texts; a round with one is not counted among the orders.
    """

    kills: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    lives: int = 0
    unharmed: int = 0
    refused: int = 0
    rounds: int = 0
    orders: int = 0
    violations: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def killed(self, kind: str) -> None:
        """Count one."""
        self.kills += 1
        self.kinds[kind] += 1

    def line(self) -> str:
        """One line."""
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(self.kinds.items()))
        refused = f", {self.refused} starts refused by a killed server" if self.refused else ""
        return (
            f"{self.kills} kills ({kinds}) in {self.rounds} rounds of {self.lives} lives{refused}, {self.unharmed} unharmed, "
            f"{self.orders} orders exactly once, {len(self.violations)} violations, "
            f"{self.seconds:.0f} s, {self.kills / max(self.seconds, 0.001):.1f} kills/s"
        )

    def report(self) -> dict[str, Any]:
        """The same for a machine."""
        return {
            "runs": self.lives,
            "faults": dict(sorted(self.kinds.items())),
            "runs_without_fault": self.unharmed,
            "refused_starts": self.refused,
            "rounds": self.rounds,
            "orders": self.orders,
            "violations": self.violations,
            "seconds": round(self.seconds, 1),
        }


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What happens to one life.

    Attributes:
        strikes: what is killed of the server, each so many seconds after the one before.
        after_start: whether the first strike waits until the engine has started.
        kill_after: seconds after the last strike until the engine is killed; `None` lets it end by itself.
    """

    strikes: Sequence[tuple[float, str]] = ()
    after_start: bool = True
    kill_after: float | None = None


def campaign(
    new_store: Callable[[], str], directory: Path, *, kills: int, seed: int, server: PostgresServer | None = None
) -> Figures:
    """Rounds until there were so many kills; an effect that is not exactly once is a violation, and ends it.

    Args:
        new_store: makes an empty store and returns its URL.
        directory: for brokers.
        kills: how many.
        seed: of times and places.
        server: of the stores, to be killed as well; nobody else may use it. Without it engines alone are killed.
    """
    figures = Figures()
    begin = time.monotonic()
    while figures.kills < kills and not figures.violations:
        rng = random.Random(f"{seed} {figures.rounds}")
        broker = directory / f"broker{figures.rounds}.db"
        try:
            one_round(rng, new_store(), broker, kills - figures.kills, figures, server)
        except AssertionError as error:
            figures.violations.append(f"seed {seed}, round {figures.rounds}: {error}")
        figures.rounds += 1
    figures.seconds = time.monotonic() - begin
    return figures


def one_round(
    rng: random.Random, store: str, broker: Path, most_kills: int, figures: Figures, server: PostgresServer | None
) -> None:
    """One store from its first engine to the last: something is killed in most lives, the last one finishes."""
    url = f"sqlite:///{broker}"
    published = 0
    for _ in range(min(LIVES, most_kills)):
        published = publish(rng, url, published)
        plan, point = _plan(rng, server is not None)
        job = Job(store=store, broker=url, expected=published, point=point, hit=rng.randint(1, 8))
        figures.lives += 1
        figures.unharmed += not live(job, plan, figures, server)
    assert not live(Job(store=store, broker=url, expected=published), Plan(), figures, server)
    check(store, url, published)
    figures.orders += published
    broker.unlink()


def _plan(rng: random.Random, with_server: bool) -> tuple[Plan, str]:
    """A plan, and the point at which the engine kills itself, "" for none."""
    if not with_server or rng.random() < 0.5:
        point = rng.choice(POINTS) if rng.random() < 0.5 else ""
        return Plan(kill_after=PATIENCE_S if point else rng.uniform(0.01, 0.5)), point
    kind = rng.choices((SESSION, BACKEND, SERVER), (4, 1, 1))[0]
    strikes = [(rng.uniform(0.0, 0.15), kind) for _ in range(rng.randint(1, 6) if kind == SESSION else 1)]
    kill_after = rng.uniform(0.01, 0.3) if rng.random() < 0.25 else None
    return Plan(strikes=strikes, after_start=rng.random() < 0.8, kill_after=kill_after), ""


def live(job: Job, plan: Plan, figures: Figures, server: PostgresServer | None) -> bool:
    """One child; says whether anything was killed."""
    before = figures.kills
    told, teller = _context.Pipe(duplex=False)
    process = _context.Process(target=run, args=(job, teller))
    process.start()
    teller.close()
    if plan.strikes and plan.after_start:
        told.poll(PATIENCE_S)
    for delay, kind in plan.strikes:
        process.join(delay)
        if process.is_alive() and server is not None and strike(server, kind, job.store):
            figures.killed(kind)
    struck = figures.kills > before
    process.join(PATIENCE_S if plan.kill_after is None else plan.kill_after)
    if process.is_alive():
        process.kill()
        process.join()
    status = process.exitcode
    process.close()
    if status == -signal.SIGKILL:
        assert plan.kill_after is not None, "an engine did not finish"
        figures.killed("engines at fault points" if job.point else "engines at random moments")
    elif struck and status == StoreError.exit_status:
        figures.refused += 1
    else:
        assert status == 0, f"a child ended with status {status}: {_first_words(told)}"
    told.close()
    return figures.kills > before


def _first_words(told: Connection) -> str:
    """What a child that has ended told first."""
    try:
        return told.recv_bytes().decode()
    except EOFError:
        return "nothing"


def strike(server: PostgresServer, kind: str, store: str) -> bool:
    """Kill something of the server under a living engine, and have it back; says whether there was something."""
    if kind == SESSION:
        return server.terminate_backends(store) > 0
    if kind == BACKEND:
        return server.kill_backends(store) > 0
    server.crash()
    return True


def publish(rng: random.Random, broker: str, published: int) -> int:
    """Put the orders of a life into the queue, some of them twice; returns how many there are now."""
    batch: list[Message] = []
    for number in range(published + 1, published + ORDERS_OF_A_LIFE + 1):
        properties = {"uniqueMessageId": f"{number}:P", "messageSourceId": "P"}
        batch.append(Message(b'{"id":"o%d"}' % number, properties))
        if rng.random() < 0.1:
            batch.append(rng.choice(batch[-10:]))
    sink = connection_of(broker).sink(SenderSettings(id="producer", connection="local", destination="queue:orders"))
    sink.connect()
    results = sink.send([Outgoing(0, "", "queue:orders", message) for message in batch])
    sink.close()
    assert not any(results)
    return published + ORDERS_OF_A_LIFE


def connection_of(broker: str) -> EmbeddedConnection:
    """The embedded broker, as this process sees it."""
    return EmbeddedConnection("local", ConnectionSettings(type="embedded", options={"store": broker}))


def check(store: str, broker: str, published: int) -> None:
    """Exactly once: in the state, and at both queues, in one order."""
    ids = [f"o{number}" for number in range(1, published + 1)]
    handled, counts = state_of(store)
    assert handled == published
    assert counts == dict.fromkeys(ids, 1)
    left = [
        msgspec.json.decode(message.body)["id"] for message in connection_of(broker).browse("queue:orders", published)
    ]
    assert len(left) < published // 5, "more is left than repeats that came behind the last order"
    exact = connection_of(broker).browse("queue:exact", 2 * published)
    bodies = [message.body.decode() for message in exact]
    assert [body.split(":")[0] for body in bodies] == [str(number) for number in range(1, published + 1)]
    assert sorted(body.split(":")[1] for body in bodies) == sorted(ids)
    stamps = [str(message.properties["uniqueMessageId"]).split(":", 1) for message in exact]
    assert [int(sequence) for sequence, _ in stamps] == list(range(1, published + 1))
    assert len({source for _, source in stamps}) == 1
    steady = connection_of(broker).browse("queue:steady", 2 * published)
    assert [message.body.decode() for message in steady] == bodies


def state_of(store: str) -> tuple[int, dict[str, int]]:
    """The state of the monitor as the store holds it."""
    opened = SqlStore(store, "crash")
    recovered = opened.read()
    found = counted(recovered.state)  # which the store reads while it is open
    assert not recovered.outbound
    assert not recovered.receive_log
    opened.close()
    return found


def counted(state: Iterable[StateSegment]) -> tuple[int, dict[Any, int]]:
    """What the monitor `Total` of a child has handled, and how often each order."""
    values: dict[tuple[str, bytes], bytes | None] = {}
    for segment in state:
        values.update({(entry.owner, entry.key): entry.value for entry in segment.entries})
    monitor = msgspec.msgpack.decode(values["monitor:Total", b"0"], type=StoredMonitor)
    counts = {
        msgspec.msgpack.decode(key): msgspec.msgpack.decode(value)
        for (owner, key), value in values.items()
        if owner.startswith("table:") and value is not None
    }
    return msgspec.msgpack.decode(monitor.attributes)["handled"], counts


def sqlite_stores(directory: Path) -> Callable[[], str]:
    """Makes addresses of new SQLite stores."""
    made: list[int] = []

    def new() -> str:
        made.append(0)
        return f"sqlite:///{directory}/store{len(made)}.db"

    return new


def write_report(path: Path | None, report: dict[str, Any]) -> None:
    """Write the figures of a command as JSON, if a file is asked for."""
    if path is not None:
        write_json(path, report)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; exit status 1 on a violation."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash.campaign")
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--report", type=Path)
    parser.add_argument("--store", choices=("sqlite", "postgres"), default="sqlite")
    parsed = parser.parse_args(arguments)
    directory = Path(tempfile.mkdtemp(prefix="correlator-crash-"))
    try:
        figures = _on(parsed.store, directory, parsed.kills, parsed.seed)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    sys.stdout.write("\n".join([*figures.violations, figures.line()]) + "\n")
    write_report(parsed.report, figures.report())
    return 1 if figures.violations else 0


def _on(store: str, directory: Path, kills: int, seed: int) -> Figures:
    if store == "sqlite":
        return campaign(sqlite_stores(directory), directory, kills=kills, seed=seed)
    with running(PostgresServer()) as server:
        return campaign(server.fresh_schema, directory, kills=kills, seed=seed, server=server)


if __name__ == "__main__":
    sys.exit(main())
