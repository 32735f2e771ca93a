"""Kills parts of a cluster and of its engine at random under load, and checks the output in the end."""

import random
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from statistics import median

import msgspec

from tests.harness.cluster.brokers import EMBEDDED, Server, broker_of
from tests.harness.cluster.world import World, fed_steadily
from tests.servers import PostgresServer, running
from tests.spark_cluster import SparkCluster, children, kill, wait_until

KINDS = ("python", "daemon", "executor", "worker", "master", "jvm", "engine", "postgres")
BROKER = "broker"
"""Another kind, for a broker with a server of its own; the server of the embedded broker is PostgreSQL."""
FORGETFUL = "forgetful"
"""Another kind, which takes minutes: a master that has lost all its data when it starts again."""
NOTHING = "nothing"
"""Another kind, for comparing times: nothing is killed."""
_WAITS = 0.3
"""Share of the kills that wait until the engine works again; others strike while it recovers. If calm,
each kill waits.
"""
_PATIENCE_S = 300


class Figures(msgspec.Struct):
    """The work and the findings of a campaign.

    Attributes:
        kills: number of kills, by kind.
        recovered_s: by kind, the seconds from a kill until the output of a message that was published after it.
        messages: number of messages in the output.
        lives: number of started engines.
        ended: the last line of the log of each engine that has ended by itself.
        told: number of log lines, by code.
        wrong: what was wrong in the end.
        seconds: duration in seconds.
    """

    kills: Counter[str] = msgspec.field(default_factory=Counter)
    recovered_s: dict[str, list[float]] = {}
    messages: int = 0
    lives: int = 0
    ended: list[str] = []
    told: Counter[str] = msgspec.field(default_factory=Counter)
    wrong: list[str] = []
    seconds: float = 0.0

    def lines(self) -> list[str]:
        """Return the figures as lines of text."""
        lines = [
            f"{sum(self.kills.values())} kills, {self.messages:,} messages, {self.lives} lives, {self.seconds:.0f} s"
        ]
        for kind in self.kills:
            times = self.recovered_s.get(kind, [])
            shown = f"goes on after {median(times):.1f} s (at most {max(times):.1f} s, {len(times)})" if times else ""
            lines.append(f"  {kind:<9} {self.kills[kind]:>4} {shown}")
        lines.append(f"  told: {', '.join(f'{code} {count}' for code, count in sorted(self.told.items()))}")
        lines += [f"  ended by itself: {one}" for one in self.ended]
        lines += [f"  WRONG {one}" for one in self.wrong]
        return lines


class Campaign:
    """One world under load.

    Args:
        world: the world, to which the caller publishes steadily.
        server: the server with the store.
        broker: the server of the broker.
        seed: determines kinds and times.
        figures: receives the figures.
        calm: whether each kill waits until the engine has recovered from the previous one.
    """

    def __init__(
        self, world: World, server: PostgresServer, broker: Server, seed: int, figures: Figures, *, calm: bool
    ) -> None:
        self._world = world
        self._cluster = world.cluster
        self._server = server
        self._broker = broker
        self._rng = random.Random(seed)
        self._bag: list[str] = []
        self._calm = calm
        self.figures = figures

    def kill_one(self, kinds: tuple[str, ...]) -> None:
        """Kill something, and repair what does not repair itself."""
        if not self._bag:
            self._bag = list(kinds)
            self._rng.shuffle(self._bag)
        kind = self._bag.pop()
        time.sleep(self._rng.uniform(0.0, 2.0))
        self._revive()
        if not self._kills[kind](self):
            self._bag.insert(0, kind)  # there was none to kill at this moment
            return
        began = time.monotonic()
        self.figures.kills[kind] += 1
        self._repair(kind)
        if self._calm or self._rng.random() < _WAITS:
            fed = self._world.fed
            wait_until(lambda: self.is_past(fed), within_s=_PATIENCE_S, every_s=0.3)
            self.figures.recovered_s.setdefault(kind, []).append(time.monotonic() - began)

    def is_past(self, count: int) -> bool:
        """Return whether more than `count` messages are in the output; restart the engine if it has ended."""
        self._revive()
        return self._world.come > count

    def _revive(self) -> None:
        """Start the engine again if it has ended by itself."""
        if self._world.has_ended:
            self.figures.ended.append(self._world.text().splitlines()[-1])
            self.begin()

    def begin(self) -> None:
        """Start the engine."""
        self.figures.lives += 1
        self._world.begin()

    def _repair(self, kind: str) -> None:
        time.sleep(self._rng.choice((0.0, self._rng.uniform(0.0, 4.0))))
        if kind == "worker":
            self._cluster.start_worker()
        elif kind in ("master", FORGETFUL):
            self._cluster.start_master()
        elif kind == "engine":
            self.begin()
        elif kind == "postgres":
            self._server.start()
        elif kind == BROKER:
            self._broker.start()

    def _one_of(self, pids: list[int]) -> bool:
        return bool(pids) and kill(self._rng.choice(pids))

    def _kill_daemon(self) -> bool:
        return self._one_of([one for executor in self._cluster.executors() for one in children(executor)])

    def _kill_worker(self) -> bool:
        self._cluster.kill_worker(self._rng.randrange(2))
        return True

    def _kill_master(self) -> bool:
        self._cluster.kill_master()
        return True

    def _kill_memory(self) -> bool:
        self._cluster.kill_master()
        self._cluster.forget()
        return True

    def _kill_jvm(self) -> bool:
        jvm = self._world.jvm
        return jvm is not None and kill(jvm)

    def _kill_engine(self) -> bool:
        self._world.kill()
        return True

    def _kill_postgres(self) -> bool:
        self._server.kill()
        return True

    def _kill_broker(self) -> bool:
        self._broker.kill()
        return True

    _kills: dict[str, Callable[["Campaign"], bool]] = {
        "python": lambda self: self._one_of(self._cluster.pythons()),
        "daemon": _kill_daemon,
        "executor": lambda self: self._one_of(self._cluster.executors()),
        "worker": _kill_worker,
        "master": _kill_master,
        FORGETFUL: _kill_memory,
        NOTHING: lambda _: True,
        "jvm": _kill_jvm,
        "engine": _kill_engine,
        "postgres": _kill_postgres,
        BROKER: _kill_broker,
    }


def kinds_of(broker: str) -> tuple[str, ...]:
    """Return the kinds that a campaign with this broker kills."""
    return KINDS if broker == EMBEDDED else (*KINDS, BROKER)


def campaign(
    kills: int,
    seed: int,
    kinds: tuple[str, ...],
    say: Callable[[str], None],
    *,
    broker: str = EMBEDDED,
    calm: bool = False,
) -> Figures:
    """Kill as many times as requested, the kinds in equal numbers; then wait for all output, stop the engine, and
    check.

    SIGINT ends the kills early.
    """
    ended = threading.Event()
    signal.signal(signal.SIGINT, lambda *_: ended.set())
    figures, began = Figures(), time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="correlator-campaign-") as directory,
        running(PostgresServer()) as server,
        running(SparkCluster()) as cluster,
        broker_of(broker, server) as (messages, broker_server),
    ):
        world = World(cluster, server.fresh_database(), messages, Path(directory))
        one = Campaign(world, server, broker_server, seed, figures, calm=calm)
        try:
            one.begin()
            with fed_steadily(world, 60, 1.0) as stop_feeding:
                wait_until(lambda: world.come > 0, within_s=_PATIENCE_S)
                while sum(figures.kills.values()) < kills and not ended.is_set():
                    one.kill_one(kinds)
                    say(f"{time.monotonic() - began:.0f} s: {dict(figures.kills)}, {world.come} of {world.fed}")
                stop_feeding()
            wait_until(lambda: one.is_past(world.fed - 1), within_s=_PATIENCE_S * 2)
            status = world.end()
            figures.messages = world.come
            figures.wrong += [*world.check(), *([f"exit status {status}"] if status != 143 else [])]
        except Exception as error:  # noqa: BLE001  # report the figures so far, whatever it is
            figures.wrong.append(repr(error))
            figures.wrong += world.text().splitlines()[-20:]
        finally:
            lines = world.text().splitlines()
            figures.told = Counter(f"{word}" for line in lines for word in line.split() if _is_code(word))
            Path(tempfile.gettempdir(), "cluster-campaign.log").write_text("\n".join(lines))
            world.close()
    figures.seconds = time.monotonic() - began
    return figures


def _is_code(word: str) -> bool:
    return len(word) == 5 and word[0] in "EWI" and word[1:].isdigit()
