"""Members that are killed and frozen while they run the shares of an engine: nothing lost or doubled, order per share.

    python -m tests.crash.members --kills 100

Three members run eight shares, each from a queue of its own to another one. Again and again one of them is killed, and
another process takes its place; or it is frozen for up to three times its lease, and goes on. This mostly happens within
a commit, an acknowledgement or a send. The oracle is this
process: at the end every order has been counted once by the monitor of its share, and has left once, in the order in
which the orders were published, with numbers of one source without a gap.

The queues give messages to one consumer at a time, as an exclusive subscription does.
"""

import argparse
import os
import random
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import msgspec

from correlator.configuration import of_share
from correlator.events import Message, Outgoing
from correlator.reliability import Reliability
from correlator.runtime.member import shares_of
from correlator.settings import SenderSettings
from correlator.storage.leases import Table, shown
from correlator.storage.store import SqlStore
from correlator.testing.files import write_json
from tests.crash.campaign import connection_of, counted
from tests.crash.member_child import Job, run, settings_of
from tests.forking import forking
from tests.servers import PostgresServer, running

SHARES = 8
MEMBERS = 3
KILLS_OF_A_ROUND = 25
PATIENCE_S = 120.0
STRIKE_S = 1.0
POINTS = (
    "rx.tx.begin",
    "rx.tx.fence",
    "rx.tx.commit.before",
    "rx.tx.commit.after",
    "rx.ack.before",
    "rx.ack.after",
    "ck.tx.begin",
    "ck.tx.fence",
    "ck.tx.commit.before",
    "ck.tx.commit.after",
    "ck.release.after",
    "tx.publish.before",
    "tx.publish.after",
    "tx.confirm",
)
"""Where a member is killed or frozen, if it comes there soon."""
LOOK_S = 0.1

_context = forking("tests.crash.member_child", "connectors.embedded", "psycopg")


@dataclass(slots=True)
class MemberFigures:
    """What a campaign did.

    Attributes:
        killed: members that were killed.
        frozen: members that were frozen, and went on.
        overtaken: those of them that lost shares meanwhile.
        takes: how often a share was taken, without the first time.
        orders: handled, each exactly once.
        violations: texts.
    """

    killed: int = 0
    frozen: int = 0
    overtaken: int = 0
    rounds: int = 0
    takes: int = 0
    orders: int = 0
    seconds: float = 0.0
    violations: list[str] = field(default_factory=list)

    @property
    def struck(self) -> int:
        """Kills and freezes."""
        return self.killed + self.frozen

    def line(self) -> str:
        """One line."""
        return (
            f"{self.killed} members killed, {self.frozen} frozen ({self.overtaken} of them overtaken) in {self.rounds} rounds; "
            f"shares changed hands {self.takes} times; {self.orders} orders exactly once and in order, "
            f"{len(self.violations)} violations, {self.seconds:.0f} s"
        )


class Fleet:
    """The members of one engine, as processes; a process that was told to go is gone at the end of the block."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.shares = shares_of(settings_of(job))
        self.processes: list[BaseProcess] = []
        self._told: dict[int, Connection] = {}

    def start(self) -> BaseProcess:
        """Start a member, without waiting for it."""
        told, teller = _context.Pipe()
        process = _context.Process(target=run, args=(self.job, teller))
        process.start()
        teller.close()
        assert process.pid is not None
        self._told[process.pid] = told
        self.processes.append(process)
        return process

    def joined(self, process: BaseProcess) -> None:
        """Wait until it has joined."""
        assert process.pid is not None
        assert self._told[process.pid].poll(PATIENCE_S)
        assert self._told[process.pid].recv_bytes() == b"joined"

    def kill(self, process: BaseProcess) -> None:
        """Kill it, and wait until it is gone."""
        process.kill()
        self._gone(process)

    def strike(self, process: BaseProcess, number: int, point: str) -> None:
        """Let a signal strike it at a fault point, or at any moment if it does not come there."""
        assert process.pid is not None
        self._told[process.pid].send_bytes(f"{number} {point}".encode())
        deadline = time.monotonic() + STRIKE_S
        while time.monotonic() < deadline:
            if state_of_process(process.pid) in "TZX":
                return
            time.sleep(LOOK_S / 10)
        self._told[process.pid].send_bytes(b"0 nowhere")
        os.kill(process.pid, number)

    def wake(self) -> None:
        """Let those go on that came to their fault point late."""
        self.refuse_dead()
        for process in self.processes:
            assert process.pid is not None
            if state_of_process(process.pid) == "T":
                os.kill(process.pid, signal.SIGCONT)

    def stop(self) -> None:
        """Let all members stop in order, and wait for that."""
        self.wake()
        for process in self.processes:
            process.terminate()
        for process in list(self.processes):
            process.join(PATIENCE_S)
            status = process.exitcode
            self._gone(process)
            assert status == 0, f"a member ended with status {status}"

    def close(self) -> None:
        """End what is left."""
        for process in list(self.processes):
            self.kill(process)

    def table(self) -> Table:
        """Who runs which share now."""
        return shown(self.shares)

    def held(self, pid: int) -> set[tuple[int, int]]:
        """Number and epoch of each share that a member has, or had last."""
        return {(one.number, one.epoch) for one in self.table().shares if one.member.startswith(f"pid {pid} ")}

    def wait(self, condition: Any, what: str) -> None:
        """Wait until it is true of the table."""
        deadline = time.monotonic() + PATIENCE_S
        while not condition(self.table()):
            assert time.monotonic() < deadline, f"{what}: {self.table()}"
            self.refuse_dead()
            time.sleep(LOOK_S)

    def refuse_dead(self) -> None:
        """Raise `AssertionError` if a member has ended that nobody has killed."""
        ended = [process.exitcode for process in self.processes if process.exitcode is not None]
        assert not ended, f"members have ended with status {ended}"

    def _gone(self, process: BaseProcess) -> None:
        self.processes.remove(process)
        assert process.pid is not None
        self._told.pop(process.pid).close()
        process.join(PATIENCE_S)
        if process.exitcode is None:
            process.kill()
            process.join()
        process.close()


def state_of_process(pid: int) -> str:
    """`T` for a frozen process, `Z` or `X` for a dead one."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


class Orders:
    """What was published: orders with ids from 1 on in each share, some of them twice unless this is a control."""

    def __init__(self, job: Job, rng: random.Random) -> None:
        self.published = dict.fromkeys(range(job.shares), 0)
        self._job = job
        self._rng = rng
        self._broker = connection_of(job.broker)
        for number in self.published:
            limits = {"max_num_active_consumers": 1, "max_num_backup_consumers": -1}
            self._broker.create(f"queue:in-{number}", limits)
        self._sink = self._broker.sink(SenderSettings(id="producer", connection="local", destination="queue:in-0"))
        self._sink.connect()

    def publish_one(self, share: int) -> None:
        """Put one order into the queue of a share."""
        self.published[share] += 1
        number = self.published[share]
        properties = {"uniqueMessageId": f"{number}:P{share}", "messageSourceId": f"P{share}"}
        message = Message(msgspec.json.encode({"id": number}), properties)
        assert not any(self._sink.send([Outgoing(0, "", f"queue:in-{share}", message)]))

    def publish(self, most: int) -> None:
        """Put orders into the queues of all shares."""
        for share, before in self.published.items():
            batch = []
            for number in range(before + 1, before + 1 + self._rng.randint(0, most)):
                properties = {"uniqueMessageId": f"{number}:P{share}", "messageSourceId": f"P{share}"}
                batch.append(Message(msgspec.json.encode({"id": number}), properties))
                self.published[share] = number
                if self._job.reliability is Reliability.EXACTLY_ONCE and self._rng.random() < 0.1:
                    batch.append(self._rng.choice(batch[-5:]))
            assert not any(self._sink.send([Outgoing(0, "", f"queue:in-{share}", one) for one in batch]))

    def left(self, share: int) -> list[Message]:
        """What has left a share."""
        return list(self._broker.browse(f"queue:out-{share}", 2 * self.published[share] + 10))

    def all_left(self) -> bool:
        """Whether every order has left."""
        return all(len(self.left(share)) >= published for share, published in self.published.items())

    def close(self) -> None:
        """Close the producer."""
        self._sink.close()

    def check(self) -> None:
        """Exactly once and in order, in the state and at the queue of every share."""
        sources = []
        for share, published in self.published.items():
            ids = list(range(1, published + 1))
            settings = of_share(settings_of(self._job), share)
            assert settings.store is not None
            handled, counts = state_of(settings.store, settings.name) if published else (0, {})
            assert handled == published, f"share {share} has counted {handled} of {published} orders"
            assert counts == dict.fromkeys(ids, 1), f"share {share} has counted {counts}"
            messages = self.left(share)
            assert [one.body.decode() for one in messages] == [f"{number}:{number}" for number in ids], f"share {share}"
            stamps = [str(one.properties["uniqueMessageId"]).split(":", 1) for one in messages]
            assert [int(sequence) for sequence, _ in stamps] == ids
            sources += {source for _, source in stamps}
        assert len(sources) == len(set(sources)) == sum(map(bool, self.published.values())), sources


def state_of(store: str, name: str) -> tuple[int, dict[int, int]]:
    """The state of the monitor as a store holds it."""
    opened = SqlStore(store, name)
    recovered = opened.read()
    found = counted(recovered.state)  # which the store reads while it is open
    assert not recovered.outbound
    opened.close()
    return found


def campaign(
    server: PostgresServer, *, kills: int, seed: int, lease: float = 2.0, shares: int = SHARES, control: bool = False
) -> MemberFigures:
    """Rounds until so many members were killed or frozen; a violation ends it."""
    figures = MemberFigures()
    begin = time.monotonic()
    while figures.struck < kills and not figures.violations:
        rng = random.Random(f"{seed} {figures.rounds}")
        store, broker = server.fresh_database(), server.fresh_database()
        reliability = Reliability.AT_LEAST_ONCE if control else Reliability.EXACTLY_ONCE
        job = Job(store=store, broker=broker, shares=shares, lease=lease, reliability=reliability)
        try:
            one_round(rng, job, min(KILLS_OF_A_ROUND, kills - figures.struck), figures)
        except AssertionError as error:
            figures.violations.append(f"seed {seed}, round {figures.rounds}: {error}")
        figures.rounds += 1
    figures.seconds = time.monotonic() - begin
    return figures


def one_round(rng: random.Random, job: Job, kills: int, figures: MemberFigures) -> None:
    """One engine from its first member to an orderly stop of the last ones."""
    fleet = Fleet(job)
    orders = Orders(job, rng)
    try:
        for process in [fleet.start() for _ in range(MEMBERS)]:
            fleet.joined(process)
        for _ in range(kills):
            orders.publish(10)
            time.sleep(rng.uniform(0.1, 1.0))
            strike(rng, fleet, orders, figures)
        orders.publish(10)
        deadline = time.monotonic() + PATIENCE_S
        while not orders.all_left():
            fleet.wake()
            assert time.monotonic() < deadline, f"orders are missing: {fleet.table()}"
            time.sleep(LOOK_S)
        figures.takes += sum(one.epoch - 1 for one in fleet.table().shares)
        fleet.stop()
        orders.check()
        figures.orders += sum(orders.published.values())
    finally:
        orders.close()
        fleet.close()


def strike(rng: random.Random, fleet: Fleet, orders: Orders, figures: MemberFigures) -> None:
    """Kill a member and start another one, or freeze one for a while, mostly while it has something under way."""
    fleet.wake()
    victim = rng.choice(fleet.processes)
    assert victim.pid is not None
    number, point = rng.choice((signal.SIGKILL, signal.SIGSTOP)), rng.choice(POINTS)
    before = fleet.held(victim.pid)
    orders.publish(10)
    fleet.strike(victim, number, point)
    orders.publish(10)
    if number == signal.SIGKILL:
        fleet.kill(victim)
        figures.killed += 1
        fleet.start()
        return
    try:
        time.sleep(rng.uniform(0.1, 3.0) * fleet.job.lease)
        after = fleet.held(victim.pid)
    finally:
        os.kill(victim.pid, signal.SIGCONT)
    figures.frozen += 1
    figures.overtaken += not before <= after


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; exit status 1 on a violation."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash.members")
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--lease", type=float, default=2.0)
    parser.add_argument("--control", action="store_true", help="receive AT_LEAST_ONCE: orders are counted twice")
    parser.add_argument("--report", type=Path)
    parsed = parser.parse_args(arguments)
    with running(PostgresServer()) as server:
        figures = campaign(server, kills=parsed.kills, seed=parsed.seed, lease=parsed.lease, control=parsed.control)
    sys.stdout.write("\n".join([*figures.violations, figures.line()]) + "\n")
    if parsed.report is not None:
        write_json(parsed.report, {name: getattr(figures, name) for name in figures.__slots__})
    return 1 if figures.violations else 0


if __name__ == "__main__":
    sys.exit(main())
