"""The traffic of a round: a publisher, the process of the bridge, and a follower of its output."""

import contextlib
import json
import random
import select
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from correlator import Reliability
from correlator.settings import SenderSettings
from tests.connectors.campaign.board import Board, Stalled
from tests.connectors.campaign.publisher import Publisher
from tests.connectors.pulsar_campaign.bridge import SOURCE, TARGET
from tests.connectors.pulsar_campaign.storage import Follower
from tests.pulsar_server import PulsarServer
from tests.servers import START_TIMEOUT_S

_ROOT = Path(__file__).parents[3]
_KEEP_ALL = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}


class Kind(StrEnum):
    """The process that a round kills."""

    BROKER = "kills"
    BRIDGE = "process kills"


class Control(StrEnum):
    """The protection that a control leaves out, so that something must double."""

    NO_DEDUPLICATION = "without deduplication"
    AT_LEAST_ONCE = "AT_LEAST_ONCE"


class BridgeEnded(Exception):
    """The bridge ended, and nobody had killed it."""


@dataclass(frozen=True, kw_only=True)
class Round:
    """The parameters of a round.

    Attributes:
        seed: seed of everything that is drawn in the round.
        kind: the process that it kills.
        kills: number of kills; a control ends as soon as something has doubled.
        control: the protection that it leaves out; `None` in a round that is no control.
    """

    seed: str
    kind: Kind
    kills: int
    control: Control | None = None

    @property
    def deduplication(self) -> bool:
        """Whether the broker drops repeats of producers."""
        return self.control is not Control.NO_DEDUPLICATION

    @property
    def reliability(self) -> Reliability:
        """The reliability mode of the bridge's receiver."""
        return Reliability.AT_LEAST_ONCE if self.control is Control.AT_LEAST_ONCE else Reliability.EXACTLY_ONCE

    def __str__(self) -> str:
        control = f", the control {self.control}" if self.control else ""
        return f"seed {self.seed} ({self.kills} {self.kind}{control})"


@dataclass(frozen=True, kw_only=True)
class PulsarSite:
    """The broker, the namespace and the directory of a round.

    Attributes:
        pulsar: the broker; nobody else may use it while it is killed.
        namespace: namespace of both topics.
        deduplication: whether the broker drops repeats in this namespace.
        directory: place of the store and the log of the bridge.
        patience_s: longest time without a new order.
    """

    pulsar: PulsarServer
    namespace: str
    deduplication: bool
    directory: Path
    patience_s: float

    @property
    def options(self) -> dict[str, Any]:
        """The options of connections."""
        return {**self.pulsar.options, "namespace": self.namespace, "deduplication": self.deduplication}

    @property
    def store(self) -> str:
        """The store of the bridge."""
        return f"sqlite:///{self.directory}/bridge.db"

    def topic(self, name: str) -> str:
        """The full name of one of the two topics."""
        return f"persistent://{self.namespace}/{name}"


def fresh_place(pulsar: PulsarServer, this: Round, directory: Path, patience_s: float) -> PulsarSite:
    """Make a namespace in which the broker keeps acknowledged messages."""
    namespace = pulsar.namespace(deduplication=this.deduplication)
    pulsar.request("POST", f"namespaces/{namespace}/retention", _KEEP_ALL)
    return PulsarSite(
        pulsar=pulsar,
        namespace=namespace,
        deduplication=this.deduplication,
        directory=directory,
        patience_s=patience_s,
    )


class Bridge:
    """The process of the bridge, and its successors after kills. Owned by the thread of the round.

    Attributes:
        counters: sums of the counters of receivers and senders of bridges that have ended in order.
    """

    def __init__(self, place: PulsarSite, this: Round) -> None:
        self.counters: list[dict[str, Any]] = []
        self._place = place
        self._arguments = (json.dumps(place.options), place.store, this.reliability.value)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process, and wait until it reports that it has begun. Raises `BridgeEnded`, `Stalled`."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.connectors.pulsar_campaign.bridge", *self._arguments],
                cwd=_ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        self._line()

    def kill(self) -> None:
        """Kill the process and wait for its end; without effect if there is no process."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()

    def restart(self) -> None:
        """Kill the process and start another one."""
        self.kill()
        self.start()

    def end(self) -> None:
        """Let the process end in order. Raises `BridgeEnded`, `Stalled`."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.stdin = None
        self.counters += self._line().values()
        self.kill()

    def look(self) -> None:
        """Raise `BridgeEnded` if the process has ended by itself."""
        if self._process is not None and self._process.poll() is not None:
            raise BridgeEnded(f"with {self._process.returncode}: {self._log.read_text()[-2000:]}")

    @property
    def _log(self) -> Path:
        return self._place.directory / "bridge.log"

    def _line(self) -> dict[str, Any]:
        assert self._process is not None
        output = self._process.stdout
        assert output is not None
        if not select.select([output], [], [], START_TIMEOUT_S)[0]:
            raise Stalled("the bridge says nothing")
        line = output.readline()
        if not line:
            self._process.wait(START_TIMEOUT_S)
            self.look()
        told: dict[str, Any] = json.loads(line)
        return told


class Traffic:
    """A publisher, a bridge and a follower at work. Owned by the thread of the round.

    Attributes:
        board: the orders of the round; what has come through is stored in the topic `out`.
    """

    def __init__(self, place: PulsarSite, this: Round, rng: random.Random, board: Board) -> None:
        self.board = board
        self.bridge = Bridge(place, this)
        destination = f"queue:{SOURCE}"
        sender = SenderSettings(id="publisher", connection="pulsar", destination=destination)
        sink = place.pulsar.connection(**place.options).sink(sender)
        self.publisher = Publisher(sink, SOURCE, rng, board)
        self._follower = Follower(place.pulsar.url, place.topic(TARGET), board)
        self._patience_s = place.patience_s
        self._running: list[Future[None]] = []
        self._counted_before = 0

    @contextlib.contextmanager
    def flowing(self) -> Iterator[None]:
        """Run them within the block. At its end every order has come through, and the bridge has ended in order."""
        with ThreadPoolExecutor(2) as pool:
            published = pool.submit(self.publisher.run)
            self._running = [published, pool.submit(self._follower.run)]
            try:
                self.bridge.start()
                yield
                self.publisher.finish()
                self.wait_until(lambda: published.done() and self.board.under_way <= 0)
                self.bridge.end()
            finally:
                self.bridge.kill()
                self.publisher.give_up()
                self._follower.end()

    def strike(self, kill: Callable[[], None]) -> None:
        """Kill a process; `has_brought` and `is_flowing` count from this kill on."""
        kill()
        self._counted_before = self.board.counted

    def wait_until(self, reached: Callable[[], bool]) -> None:
        """Wait as long as orders move. Raises `Stalled`, or the error that has ended one of the three."""
        self.board.wait_as_long_as_it_moves(reached, self.look, self._patience_s)

    def look(self) -> None:
        """Raise the error that has ended the bridge, the publisher or the follower, if there is one."""
        self.bridge.look()
        for one in self._running:
            if one.done():
                one.result()

    def has_brought(self, orders: int) -> bool:
        """Whether at least `orders` orders have come through since the last kill."""
        return self.board.counted - self._counted_before >= orders

    @property
    def is_flowing(self) -> bool:
        """Whether an order has come through since the last kill while others are under way."""
        return self.has_brought(1) and self.board.under_way > 0

    @property
    def counters(self) -> Counter[str]:
        """Counters of all receivers and senders of bridges that have ended in order."""
        total: Counter[str] = Counter()
        for one in self.bridge.counters:
            total.update({name: count for name, count in one.items() if isinstance(count, int)})
        return total
