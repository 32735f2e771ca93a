"""Real processes, really killed: SIGKILL at random times and at named fault points, until the work is done.

    python -m tests.crash.campaign --kills 1000 --store sqlite

The oracle is this process: it publishes, kills, and at the end reads both brokers' queues and the store. Every order
counts once in the state, and leaves once by each sender, numbered without a gap.
"""

import argparse
import multiprocessing
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from connectors.embedded import EmbeddedConnection
from correlator.core.instances import StoredMonitor
from correlator.events import Message, Outgoing
from correlator.settings import ConnectionSettings, SenderSettings
from correlator.storage.store import SqlStore
from tests.crash.child import Job, run
from tests.servers import PostgresServer

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

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["tests.crash.child"])


@dataclass(slots=True)
class Figures:
    """What a campaign did."""

    kills: int = 0
    at_points: int = 0
    rounds: int = 0
    orders: int = 0
    seconds: float = 0.0

    def line(self) -> str:
        """One line."""
        return (
            f"{self.kills} kills ({self.at_points} at fault points) in {self.rounds} rounds, {self.orders} orders "
            f"exactly once, {self.seconds:.0f} s, {self.kills / max(self.seconds, 0.001):.1f} kills/s"
        )


def campaign(new_store: Callable[[], str], directory: Path, *, kills: int, seed: int) -> Figures:
    """Rounds until so many children were killed; raises `AssertionError` when an effect is not exactly once.

    Args:
        new_store: makes an empty store and returns its URL.
        directory: for brokers.
        kills: how many.
        seed: of times and places.
    """
    figures = Figures()
    begin = time.monotonic()
    while figures.kills < kills:
        rng = random.Random(f"{seed} {figures.rounds}")
        one_round(rng, new_store(), directory / f"broker{figures.rounds}.db", kills - figures.kills, figures)
        figures.rounds += 1
    figures.seconds = time.monotonic() - begin
    return figures


def one_round(rng: random.Random, store: str, broker: Path, most_kills: int, figures: Figures) -> None:
    """One store from its first engine to the last: some lives are killed, the last one finishes."""
    url = f"sqlite:///{broker}"
    published = 0
    for _ in range(min(LIVES, most_kills)):
        published = publish(rng, url, published)
        point = rng.choice(POINTS) if rng.random() < 0.5 else ""
        job = Job(store=store, broker=url, expected=published, point=point, hit=rng.randint(1, 8))
        if live(job, rng.uniform(0.01, 0.5)):
            figures.kills += 1
            figures.at_points += bool(point)
    assert not live(Job(store=store, broker=url, expected=published), PATIENCE_S), "the last engine did not finish"
    check(store, url, published)
    figures.orders += published
    broker.unlink()


def live(job: Job, kill_after_s: float) -> bool:
    """One child; says whether it was killed, by us or by itself."""
    process = _context.Process(target=run, args=(job,))
    process.start()
    process.join(PATIENCE_S if job.point else kill_after_s)
    if process.is_alive():
        process.kill()
        process.join()
    status = process.exitcode
    process.close()
    assert status in (0, -9), f"a child ended with status {status}"
    return status == -9


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
    recovered = opened.open()
    values: dict[tuple[str, bytes], bytes | None] = {}
    for segment in recovered.state:
        values.update({(entry.owner, entry.key): entry.value for entry in segment.entries})
    assert not recovered.outbound
    assert not recovered.receive_log
    opened.close()
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


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash.campaign")
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--store", choices=("sqlite", "postgres"), default="sqlite")
    parsed = parser.parse_args(arguments)
    directory = Path(tempfile.mkdtemp(prefix="correlator-crash-"))
    try:
        figures = _on(parsed.store, directory, parsed.kills, parsed.seed)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    sys.stdout.write(figures.line() + "\n")
    return 0


def _on(store: str, directory: Path, kills: int, seed: int) -> Figures:
    if store == "sqlite":
        return campaign(sqlite_stores(directory), directory, kills=kills, seed=seed)
    server = PostgresServer()
    try:
        server.start()
        return campaign(server.fresh_database, directory, kills=kills, seed=seed)
    finally:
        server.close()


if __name__ == "__main__":
    sys.exit(main())
