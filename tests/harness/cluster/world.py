"""An engine whose pipeline runs on a real cluster, its input, and the output that it must have sent in the end."""

import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from correlator.errors import CorrelatorError
from correlator.events import Message
from tests.harness.cluster.application.chains.model import POISON, link
from tests.harness.cluster.brokers import Broker
from tests.harness.processes import environment
from tests.spark_cluster import SMALL, SparkCluster, children, jvm_of, kill, wait_until

APPLICATION = Path(__file__).parent / "application"
FILE = APPLICATION / "chains.yaml"
COMMAND = str(Path(sys.executable).with_name("correlator"))
EMBEDDED_SETTINGS = '{type: embedded, store: "${BROKER}"}'
"""The connection in the file, which the connection of another broker replaces."""
REFUSED = -1000
"""A number that Spark refuses: its message becomes a dead letter."""
KEYS = 40
PATIENCE_S = 600


class World:
    """One engine, its store and its broker.

    Args:
        cluster: the cluster on which its pipeline runs.
        store: address of the engine's store.
        broker: the broker with the messages; the caller closes it.
        directory: directory for the log of the engine.
    """

    def __init__(self, cluster: SparkCluster, store: str, broker: Broker, directory: Path) -> None:
        self.cluster = cluster
        self.log = directory / "engine.log"
        self.sent: dict[str, int] = {}
        self.refused = 0
        self._directory = directory
        small = {"SPARK_SUBMIT_OPTS": SMALL}
        self._variables = {**cluster.environment, **small, "STORE": store, "MASTER": cluster.url}
        self._broker = broker
        self._file = self._file_for(broker)
        self._engine: subprocess.Popen[bytes] | None = None

    def _file_for(self, broker: Broker) -> Path:
        """Return the file of the engine: that of the application itself, or one with the connection of
        another broker.
        """
        if broker.settings["type"] == "embedded":
            self._variables["BROKER"] = broker.settings["store"]
            return FILE
        file = self._directory / FILE.name
        file.touch(0o600)
        file.write_text(FILE.read_text().replace(EMBEDDED_SETTINGS, json.dumps(broker.settings)))
        (self._directory / "chains").symlink_to(APPLICATION / "chains")
        return file

    @property
    def pid(self) -> int:
        """Process id of the engine."""
        return self._running.pid

    @property
    def _running(self) -> subprocess.Popen[bytes]:
        assert self._engine is not None
        return self._engine

    @property
    def jvm(self) -> int | None:
        """Process id of the engine's JVM; `None` if there is none."""
        return jvm_of(self.pid)

    def begin(self, *, hurried: bool = False) -> None:
        """Start the engine; if `hurried`, a batch may take only a few seconds."""
        command = [sys.executable, "-m", "tests.harness.cluster.hurried"] if hurried else [COMMAND]
        with self.log.open("ab") as log:
            self._engine = subprocess.Popen(
                [*command, "run", str(self._file)],
                cwd=self._directory,
                stdout=log,
                stderr=log,
                env=environment(**self._variables),
                start_new_session=True,
            )

    def kill(self) -> None:
        """Kill the engine, and wait until it and its JVM are gone."""
        jvm = self.jvm
        self._running.kill()
        self._running.wait()
        if jvm is not None:
            wait_until(lambda: not Path(f"/proc/{jvm}").exists())

    def end(self) -> int:
        """Stop the engine in an orderly way; return its exit status."""
        self._running.terminate()
        return self.wait()

    def wait(self) -> int:
        """Wait until the engine has ended by itself; return its exit status."""
        return self._running.wait(PATIENCE_S)

    def poison(self) -> None:
        """Publish a message with which the function of a step kills its process each time."""
        self._broker.publish([_message("poison", POISON, "poison")])

    @property
    def has_ended(self) -> bool:
        """Return whether the engine is gone."""
        return self._engine is not None and self._engine.poll() is not None

    def close(self) -> None:
        """Kill all processes that are left."""
        if self._engine is not None and self._engine.poll() is None:
            for pid in children(self._engine.pid):
                kill(pid)
            self._engine.kill()
            self._engine.wait()

    def feed(self, count: int, refused: int = 0) -> None:
        """Publish `count` messages, those of the keys in turn; before them publish some that Spark refuses.

        If the broker fails, it is unknown which messages it has: they are published again, and the receiver drops
        repeats.
        """
        sent = dict(self.sent)
        messages = [_message("bad", REFUSED, f"bad-{self.refused + at}") for at in range(refused)]
        for _ in range(count):
            key = f"k{sum(sent.values()) % KEYS}"
            sent[key] = sent.get(key, 0) + 1
            messages.append(_message(key, sent[key], f"{key}-{sent[key]}"))
        while True:
            try:
                self._broker.publish(messages)
                break
            except CorrelatorError:
                threading.Event().wait(0.2)
        self.sent, self.refused = sent, self.refused + refused

    @property
    def fed(self) -> int:
        """Return how many messages must be in the output."""
        return sum(self.sent.values())

    @property
    def come(self) -> int:
        """Return how many messages are in the output; -1 if the broker does not answer."""
        return self._broker.come

    def wait_for_all(self, engine_may_end: bool = False) -> None:
        """Wait until the output of all published messages is there."""
        fed = self.fed
        wait_until(lambda: (self.has_ended and not engine_may_end) or self.come >= fed, within_s=PATIENCE_S)
        assert engine_may_end or not self.has_ended, self.text()[-6000:]

    def text(self) -> str:
        """Return the log of all lives of the engine."""
        return self.log.read_text(errors="replace")

    def lines(self, code: str) -> list[str]:
        """Return the lines of the log with a code."""
        return [line for line in self.text().splitlines() if code in line]

    def check(self) -> list[str]:
        """Return what is wrong with the output, the dead letters and the state; the engine must have stopped."""
        wrong = []
        found: dict[str, list[dict[str, Any]]] = {}
        for body in self._broker.links():
            row = json.loads(body)
            found.setdefault(row["key"], []).append(row)
        for key in sorted({*found, *self.sent}):
            expected = chain_of(key, self.sent.get(key, 0))
            if found.get(key, []) != expected:
                wrong.append(_difference(key, found.get(key, []), expected))
        states = {key: rows[-1]["chain"] for key, rows in found.items()}
        if (stored := self._states()) != states:
            wrong.append(f"state: {stored} instead of {states}")
        if (dead := self._dead_letters()) != self.refused:
            wrong.append(f"{dead} dead letters instead of {self.refused}")
        if "Traceback" in self.text():
            wrong.append("the log has a traceback")
        if "getResult" in self.text():
            wrong.append("the log has 'getResult'")
        return wrong

    def _states(self) -> dict[str, int]:
        rows = self._command("inspect", "state", self._variables["STORE"], "--json")
        steps = [row for row in rows if row["owner"].startswith("step:")]
        return {row["key"]: row["value"]["attributes"]["chain"] for row in steps}

    def _dead_letters(self) -> int:
        return len(self._command("deadletter", "list", self._variables["STORE"], "--json"))

    def _command(self, *arguments: str) -> list[dict[str, Any]]:
        done = subprocess.run(
            [COMMAND, *arguments], capture_output=True, text=True, check=True, env=environment(), cwd=self._directory
        )
        rows: list[dict[str, Any]] = json.loads(done.stdout)
        return rows


def _message(key: str, number: int, unique_id: str) -> Message:
    return Message(json.dumps({"key": key, "number": number}).encode(), {"uniqueMessageId": unique_id})


def chain_of(key: str, count: int) -> list[dict[str, Any]]:
    """Compute in plain Python what a key must give."""
    rows: list[dict[str, Any]] = []
    chain = 0
    for number in range(1, count + 1):
        chain = link(chain, key, number)
        rows.append({"key": key, "number": number, "chain": chain})
    return rows


def _difference(key: str, found: Sequence[object], expected: Sequence[object]) -> str:
    at = next((at for at, pair in enumerate(zip(found, expected, strict=False)) if pair[0] != pair[1]), None)
    where = f"; first at {at}: {found[at]} instead of {expected[at]}" if at is not None else ""
    return f"key {key}: {len(found)} messages instead of {len(expected)}{where}"


@contextlib.contextmanager
def fed_steadily(world: World, count: int, every_s: float) -> Iterator[Callable[[], None]]:
    """Publish messages again and again in another thread; yield the function that ends this."""
    ended = threading.Event()

    def run() -> None:
        while not ended.wait(every_s):
            world.feed(count)

    thread = threading.Thread(target=run)
    thread.start()

    def end() -> None:
        ended.set()
        thread.join()

    try:
        yield end
    finally:
        end()
