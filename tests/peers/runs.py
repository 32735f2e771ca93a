"""Runs of a peer: its kills, a last life without kills, and the judgement."""

import contextlib
import math
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from tests.harness.processes import ROOT, environment
from tests.peers.job import Job
from tests.peers.judge import Verdict, judge
from tests.peers.peers import PEERS, Peer
from tests.peers.sites import Order, Servers, Site

CUSTOMERS = ("ada", "bob", "cyd", "dan", "eve")
BATCH, BACKLOG = 200, 200
"""Orders that are published together, and how many must wait at least before the next ones are published."""
MOST_RESULTS = 100
"""Results of a life before its kill, at most."""
LONGEST_DELAY_S = 0.5
LOOK_S = 0.01
QUIET_S = 3.0
PATIENCE_S = 180.0
RESTART_S = 1.0
MOST_RESTARTS = 5
"""In a row, without a result between them."""
MOST_LAST_LIVES = 3
KILLS_OF_A_RUN, BROKER_KILLS_OF_A_RUN = 25, 10
LOG_SHOWN = 3000


class Killed(StrEnum):
    """What is killed in a run."""

    PROCESS = "process"
    BROKER = "broker"


class DoesNotRun(Exception):
    """A peer that ends again and again without a result."""


@dataclass
class Row:
    """What the runs of a peer have found.

    Attributes:
        peer: name of the peer.
        killed: what was killed.
        kills: how often.
        loaded: how many of the kills came while an order had no result yet.
        orders: orders that were published.
        results: results that came out.
        lost, doubled, contradicted, wrong, unordered: see `Verdict`.
        restarts: how often the process had ended by itself and was started again.
        stalls: how often it stood still although orders were waiting, and was killed for this.
        seconds: duration, with starts and restarts.
        trouble: why the run ended early; empty if it did not.
    """

    peer: str
    killed: Killed
    kills: int = 0
    loaded: int = 0
    orders: int = 0
    results: int = 0
    lost: int = 0
    doubled: int = 0
    contradicted: int = 0
    wrong: int | None = 0
    unordered: int = 0
    restarts: int = 0
    stalls: int = 0
    seconds: float = 0.0
    trouble: str = ""

    @property
    def violations(self) -> list[str]:
        """Where correlator has not kept what it promises. Repeats of a result are allowed."""
        if self.peer != "correlator":
            return []
        forbidden = ("lost", "contradicted", "wrong", "unordered", "restarts", "stalls", "trouble")
        return [f"kills of the {self.killed}, {name}: {found}" for name in forbidden if (found := getattr(self, name))]

    def add(self, verdict: Verdict) -> None:
        """Add what the judge has found in one run."""
        self.lost += verdict.lost
        self.doubled += verdict.doubled
        self.contradicted += verdict.contradicted
        self.wrong = None if self.wrong is None or verdict.wrong is None else self.wrong + verdict.wrong
        self.unordered += verdict.unordered


class Life:
    """A process of a peer, with all its children. Its output goes to a file."""

    def __init__(self, words: Sequence[str], job: Job, log: Path) -> None:
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                words,
                cwd=ROOT,
                env=environment(**job.environment),
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def ends_within(self, seconds: float) -> bool:
        """Wait for its end, but no longer; returns whether it has ended."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill(self) -> None:
        """Kill it and its children."""
        with contextlib.suppress(ProcessLookupError):  # all have ended
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(PATIENCE_S)

    def stop(self) -> None:
        """Let it stop in order, then kill what has not."""
        self._process.terminate()
        self.ends_within(PATIENCE_S)
        self.kill()


class Run:
    """A peer at work in a place of its own."""

    def __init__(self, peer: Peer, site: Site, directory: Path, rng: random.Random, row: Row) -> None:
        self._peer = peer
        self._site = site
        self._directory = directory
        self._rng = rng
        self._row = row
        remembers = "yes" if peer.remembers else "no"
        self._job = Job(site.broker, site.source, site.target, str(directory), remembers)
        self._log = directory / "log"
        self._customers: list[str] = []
        self._life: Life | None = None
        self._attempts = 0
        self._moments: list[tuple[int, int]] = []
        if peer.prepare:
            words = peer.command(directory, preparing=True)
            subprocess.run(words, cwd=ROOT, env=environment(), check=True, capture_output=True)

    def kill_processes(self, kills: int) -> None:
        """Let the peer work in one life after the other, and kill each."""
        for _ in range(kills):
            self._begin()
            self._work()
            self._kill()
            self._row.kills += 1

    def kill_brokers(self, kills: int) -> None:
        """Let the peer work, and kill its broker again and again."""
        self._site.await_durable()
        self._begin()
        for _ in range(kills):
            self._work()
            self._site.kill()
            self._row.kills += 1

    def finish(self) -> None:
        """Let the peer do the rest without kills, and judge it."""
        for _ in range(MOST_LAST_LIVES):
            if self._life is None:
                self._begin()
            is_done = self._rest()
            if self._life is not None:
                self._life.stop()
                self._life = None
            left = self._site.left()
            if left == 0 or (left is None and is_done):
                break
            self._row.stalls += not is_done
        results = [self._peer.result(body) for body in self._site.results()]
        self._row.loaded += sum(
            len({one.order for one in results[:come]}) < published for published, come in self._moments
        )
        state = None if self._peer.state is None else self._peer.state(self._directory)
        self._row.add(judge(self._customers, results, state))
        self._row.orders += len(self._customers)
        self._row.results += len(results)

    def give_up(self) -> None:
        """End the process, if there is one."""
        if self._life is not None:
            self._kill()

    def _begin(self) -> None:
        if self._peer.words:
            self._life = Life(self._peer.command(self._directory), self._job, self._log)

    def _kill(self) -> None:
        assert self._life is not None
        self._life.kill()
        self._life = None

    def _work(self) -> None:
        """Publish orders as fast as they are taken, until the moment of a kill."""
        before, published, wanted = self._site.count(), 0, self._rng.randint(1, MOST_RESULTS)
        moment = math.inf
        come, moved = 0, time.monotonic()
        while time.monotonic() < moment:
            self._look()
            latest = self._site.count() - before
            if latest != come:
                come, moved, self._attempts = latest, time.monotonic(), 0
            elif time.monotonic() - moved > PATIENCE_S:
                self._stalled()
                moved = time.monotonic()
            if come >= wanted and moment == math.inf:
                moment = time.monotonic() + self._rng.random() * LONGEST_DELAY_S
            waiting = self._site.left()
            if (published - come if waiting is None else waiting) < BACKLOG:
                self._publish(BATCH)
                published += BATCH
        self._moments.append((len(self._customers), self._site.count()))

    def _rest(self) -> bool:
        """Wait until all is done and nothing more comes; false if for long no result has come and no order was taken."""
        moved, left = time.monotonic(), self._site.left()
        while time.monotonic() - moved < PATIENCE_S:
            if self._another_result(QUIET_S) or self._site.left() != left:
                moved, left = time.monotonic(), self._site.left()
            elif self._is_done():
                return True
        return False

    def _another_result(self, within_s: float) -> bool:
        """Wait for one; returns whether it has come."""
        before, deadline = self._site.count(), time.monotonic() + within_s
        while time.monotonic() < deadline:
            self._look()
            if self._site.count() != before:
                self._attempts = 0
                return True
        return False

    def _is_done(self) -> bool:
        """Whether every order has a result, and none waits in the source, as far as it knows."""
        found = {self._peer.result(body).order for body in self._site.results()}
        return len(found) == len(self._customers) and not self._site.left()

    def _look(self) -> None:
        """Wait a moment, and start the process again if it has ended."""
        if self._life is None:
            time.sleep(LOOK_S)
        elif self._life.ends_within(LOOK_S):
            self._row.restarts += 1
            self._start_again()

    def _stalled(self) -> None:
        self._row.stalls += 1
        if self._life is None:
            raise DoesNotRun("it stands still")
        self._start_again()

    def _start_again(self) -> None:
        self._attempts += 1
        if self._attempts > MOST_RESTARTS:
            raise DoesNotRun(self._log.read_text(errors="replace")[-LOG_SHOWN:])
        self._kill()
        time.sleep(RESTART_S)
        self._begin()

    def _publish(self, number: int) -> None:
        first = len(self._customers)
        self._customers += self._rng.choices(CUSTOMERS, k=number)
        self._site.publish([Order(at, self._customers[at]) for at in range(first, first + number)])


@dataclass
class Result:
    """The result of a campaign.

    Attributes:
        seed: seed of everything that was drawn.
        rows: one for each peer and what was killed.
        versions: of all that took part.
        left_out: peers that could not take part, with the package that is missing.
    """

    seed: int
    rows: list[Row] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)

    @property
    def violations(self) -> Sequence[str]:
        """Where correlator has not kept what it promises."""
        return [text for row in self.rows for text in row.violations]

    @property
    def blind(self) -> Sequence[str]:
        """The reasons why rows prove nothing. A repeat shows that a kill has met messages."""
        return [
            f"{row.peer}: {row.loaded} of {row.kills} kills of the {row.killed} came while an order had no result"
            for row in self.rows
            if row.loaded * 2 < row.kills and not row.doubled
        ]

    def lines(self) -> Sequence[str]:
        """The result as lines of text."""
        found = [f"seed {self.seed}; " + ", ".join(f"{name} {number}" for name, number in self.versions.items())]
        found += [f"{name} did not run: the package {package} is missing" for name, package in self.left_out.items()]
        return [*found, *table(self.rows), *self.violations, *self.blind]

    def report(self) -> Mapping[str, Any]:
        """The result as values for a JSON report."""
        return asdict(self)


COLUMNS = (
    "killed",
    "kills",
    "loaded",
    "orders",
    "results",
    "lost",
    "doubled",
    "contradicted",
    "wrong",
    "unordered",
    "restarts",
    "stalls",
    "seconds",
)


def table(rows: Sequence[Row]) -> list[str]:
    """Rows as lines of text, with a heading."""
    cells = [["peer", *COLUMNS]]
    for row in rows:
        values = [getattr(row, name) for name in COLUMNS]
        shown = ["-" if one is None else f"{one:.0f}" if isinstance(one, float) else str(one) for one in values]
        cells.append([PEERS[row.peer].title, *shown])
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [
        "  ".join(
            [line[0].ljust(widths[0]), *(one.rjust(width) for one, width in zip(line[1:], widths[1:], strict=True))]
        )
        for line in cells
    ]
    return lines + [f"{PEERS[row.peer].title}: {row.trouble}" for row in rows if row.trouble]


def campaign(
    servers: Servers,
    directory: Path,
    names: Sequence[str],
    *,
    kills: int,
    broker_kills: int,
    seed: int,
    say: Callable[[str], object] = lambda _: None,
) -> Result:
    """Run each peer with kills of its process, then with kills of its broker.

    A directory is left only of a run that shows a violation, or has ended early.
    """
    result = Result(seed)
    for name in names:
        peer = PEERS[name]
        if package := peer.missing:
            result.left_out[name] = package
            continue
        result.versions.update(peer.versions)
        wanted = {
            Killed.PROCESS: (kills if peer.words else 0, KILLS_OF_A_RUN),
            Killed.BROKER: (broker_kills, BROKER_KILLS_OF_A_RUN),
        }
        for killed, (number, at_once) in wanted.items():
            row = Row(name, killed)
            result.rows += [row] if number else []
            while row.kills < number and not row.trouble:
                place = directory / f"{name}-{killed}-{row.kills}"
                one_run(servers, place, row, min(at_once, number - row.kills), f"{seed} {killed} {row.kills}")
                say("\n".join(table([row])[1:]))
    result.versions.update(servers.versions)
    return result


def one_run(servers: Servers, directory: Path, row: Row, kills: int, seed: str) -> None:
    """One run of a peer, from fresh queues to the judgement. All peers have the same draws."""
    directory.mkdir(mode=0o700)
    peer = PEERS[row.peer]
    begin = time.monotonic()
    site = peer.site(servers, directory)
    run = Run(peer, site, directory, random.Random(seed), row)
    try:
        (run.kill_processes if row.killed is Killed.PROCESS else run.kill_brokers)(kills)
        run.finish()
    except DoesNotRun as error:
        row.trouble = str(error)
    finally:
        run.give_up()
        site.close()
        row.seconds += time.monotonic() - begin
    if not row.trouble and not row.violations:
        shutil.rmtree(directory)
