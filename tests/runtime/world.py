"""A broker, a store, and engines over both; and engines in other processes, that are killed."""

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from connectors.embedded import EmbeddedConnection
from correlator import Engine, Message, Monitor, Reliability
from correlator.core import faults
from correlator.events import Outgoing
from correlator.settings import (
    CheckpointSettings,
    ConnectionSettings,
    EngineSettings,
    MonitorSettings,
    ReceiverSettings,
    SenderSettings,
)
from correlator.storage import inspect
from correlator.testing.memory import MemoryBroker
from tests.runtime.flows import SCRIPT

PATIENCE_S = 120.0
BEST_EFFORT = Reliability.BEST_EFFORT
AT_LEAST_ONCE = Reliability.AT_LEAST_ONCE
EXACTLY_ONCE = Reliability.EXACTLY_ONCE
APP_CONTROLLED = Reliability.APP_CONTROLLED


def receiver(name: str = "in", reliability: Reliability = EXACTLY_ONCE, **fields: Any) -> ReceiverSettings:
    """A receiver of `queue:NAME`."""
    values = {"connection": "memory", "destination": f"queue:{name}", "max_batch_interval_ms": 0, **fields}
    return ReceiverSettings(id=name, reliability=reliability, **values)


def sender(name: str = "out", reliability: Reliability = EXACTLY_ONCE, **fields: Any) -> SenderSettings:
    """A sender to `queue:NAME`."""
    values = {"connection": "memory", "destination": f"queue:{name}", **fields}
    return SenderSettings(id=name, reliability=reliability, **values)


def message(text: str, unique_id: str | None = None, source: str | None = None, **properties: Any) -> Message:
    """A message whose unique id is its text, unless another one (or "" for none) is given."""
    unique_id = text if unique_id is None else unique_id
    if unique_id:
        properties["uniqueMessageId"] = unique_id
    if source:
        properties["messageSourceId"] = source
    return Message(text.encode(), properties)


def numbered(count: int, prefix: str = "m", first: int = 1) -> list[Message]:
    """Messages m1, m2, …"""
    return [message(f"{prefix}{number}") for number in range(first, first + count)]


@dataclass(frozen=True)
class Happened:
    """One line of the trace of a world."""

    kind: str
    who: str
    count: int


class Held:
    """A fault point where every thread waits until the test opens it.

    Attributes:
        reached: a thread is there, or was.
    """

    def __init__(self) -> None:
        self.reached = threading.Event()
        self._opened = threading.Event()

    def wait_reached(self) -> None:
        """Wait until a thread is there."""
        assert self.reached.wait(PATIENCE_S), "no thread came to this point"

    def open(self) -> None:
        """Let threads go on."""
        self._opened.set()

    def passed(self) -> None:
        """A thread is there."""
        self.reached.set()
        self._opened.wait(PATIENCE_S)


class World:
    """What a test sees.

    Args:
        store: URL of the engine's store; `None` runs without persistence.
    """

    def __init__(self, store: str | None) -> None:
        self.store = store
        self.trace: list[Happened] = []
        self.broker = MemoryBroker(on_event=self._happened)
        self._engines: list[Engine] = []
        self._held: list[Held] = []

    # --- engines ---

    def engine(
        self,
        *parts: ReceiverSettings | SenderSettings,
        monitors: Sequence[type[Monitor] | MonitorSettings] = (),
        interval: float = 0.02,
        **options: Any,
    ) -> Engine:
        """An engine over this broker and store; more fields of the settings as options."""
        of_engine = {
            name: options.pop(name) for name in ("processors", "connections", "clock", "jitter") if name in options
        }
        of_engine.setdefault("connections", {"memory": self.broker.connection()})
        values = {
            "name": "world",
            "store": self.store,
            "checkpoint": CheckpointSettings(interval=interval),
            "receivers": tuple(part for part in parts if isinstance(part, ReceiverSettings)),
            "senders": tuple(part for part in parts if isinstance(part, SenderSettings)),
            "monitors": tuple(one if isinstance(one, MonitorSettings) else monitor(one) for one in monitors),
            "connection_retry_interval": 0.01,
            "max_connection_retry_interval": 0.05,
            "stop_timeout": 5.0,
            **options,
        }
        made = Engine(EngineSettings(**values), **of_engine)
        self._engines.append(made)
        return made

    def crash(self, engine: Engine) -> None:
        """Let an engine go without drain and checkpoint: what is not committed is lost."""
        engine.stop(drain=False)

    def close(self) -> None:
        """Stop what a failed test has left running."""
        for held in self._held:
            held.open()
        for engine in self._engines:
            engine.stop(drain=False)

    # --- broker ---

    def publish(self, *messages: Message | str, to: str = "queue:in") -> None:
        """Put messages into the broker; a text is body and id at once."""
        self.broker.publish(to, [message(one) if isinstance(one, str) else one for one in messages])

    def sent(self, queue: str = "queue:out") -> list[str]:
        """Bodies that arrived at a destination, in order."""
        return [one.body.decode() for one in self.broker.received(queue)]

    def ids(self, queue: str = "queue:out") -> list[Any]:
        """Unique ids of what arrived, in order."""
        return [one.properties.get("uniqueMessageId") for one in self.broker.received(queue)]

    def wait(self, condition: Callable[[], Any]) -> None:
        """Wait until the condition holds."""
        for _ in range(int(PATIENCE_S / 0.005)):
            if self.broker.wait_until(condition, 0.005):
                return
        raise AssertionError(f"waited {PATIENCE_S} s in vain; heard {SCRIPT.heard[-20:]}, trace {self.trace[-20:]}")

    def wait_for(self, *bodies: str, at: str = "queue:out") -> None:
        """Wait until exactly these bodies have arrived, in order."""
        self.wait(lambda: len(self.sent(at)) >= len(bodies))
        assert self.sent(at) == list(bodies)

    def happened(self, *kinds: str) -> list[str]:
        """The kinds in the trace, of these only, in order."""
        return [one.kind for one in self.trace if one.kind in kinds]

    def watch_points(self) -> None:
        """Put every fault point into the trace."""
        faults.install(lambda name: self.trace.append(Happened(name, "", 0)))

    def hold_at(self, *points: str) -> list[Held]:
        """Let every thread that passes one of these fault points from now on wait there."""
        held = {point: Held() for point in points}
        self._held += held.values()
        faults.install(lambda name: held[name].passed() if name in held else None)
        return list(held.values())

    def note(self, what: str) -> None:
        """Put a line of the test's own into the trace."""
        self.trace.append(Happened(what, "", 0))

    def fail_at(self, point: str, error: BaseException) -> None:
        """Let the thread that passes this fault point next fail."""

        def passed(name: str) -> None:
            if name == point:
                faults.install(None)
                raise error

        faults.install(passed)

    def _happened(self, kind: str, who: str, destination: str, messages: Sequence[Any]) -> None:
        self.trace.append(Happened(kind, who, len(messages)))

    # --- store ---

    def dead_letters(self) -> list[str]:
        """Reasons of the dead letters in the store."""
        return [row.letter.reason for row in inspect.dead_letters(self.store)]

    def received_rows(self) -> int:
        """Messages in the receive log."""
        return sum(row.last - row.first + 1 for row in inspect.receive_log(self.store))

    def outbox_rows(self) -> int:
        """Messages in the outbox."""
        return sum(row.last - row.first + 1 for row in inspect.outbox(self.store))

    def stored_ids(self, domain: str = "memory:queue:in") -> list[str]:
        """Unique ids that the store holds for a domain."""
        return [one.id for one in inspect.accepted_ids(self.store, domain)]


def monitor(cls: type[Monitor], **fields: Any) -> MonitorSettings:
    """Settings of a monitor."""
    return MonitorSettings(type=f"{cls.__module__}:{cls.__name__}", **fields)


def contents(url: str) -> str:
    """All of a store that a refused start must leave alone, the epoch included."""
    looks = (
        inspect.instance,
        inspect.registry,
        inspect.checkpoints,
        inspect.receive_log,
        inspect.outbox,
        inspect.domains,
        inspect.state_keys,
    )
    return repr([look(url) for look in looks])


def the_monitor(engine: Engine, cls: type[Monitor], context: str = "main") -> Any:
    """The instance of a class in a running engine."""
    instances = engine.contexts[context].context.monitors.instances
    return next(one for one in instances if type(one) is cls)


# --- other processes ---


class Children:
    """A process that has everything imported and forks an engine for each order: a start costs no imports."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-W", "error", "-m", "tests.runtime.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )

    def run(self, **order: Any) -> dict[str, Any]:
        """Have an engine run as the order says (see `child.Order`) until it is killed or done.

        Returns `killed` (by SIGKILL), `exit` (status) and `points` (hits of every fault point, when it was not killed).
        """
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "the process that starts engines is gone"
        return json.loads(line)

    def close(self) -> None:
        """End it."""
        self._process.stdin.close()
        self._process.wait(PATIENCE_S)
        self._process.stdout.close()


class Queues:
    """Queues of an embedded broker in a file: they outlive killed processes."""

    def __init__(self, directory: Path) -> None:
        self.url = f"sqlite:///{directory / 'broker.db'}"
        self._connection = EmbeddedConnection("files", ConnectionSettings(type="embedded", options={"store": self.url}))
        self.publish([])

    def publish(self, messages: Sequence[Message], to: str = "queue:in") -> None:
        """Put messages in."""
        sink = self._connection.sink(SenderSettings(id="publisher", connection="files", destination=to))
        sink.connect()
        results = sink.send([Outgoing(number, "", to, one) for number, one in enumerate(messages, 1)])
        sink.close()
        assert results == [None] * len(messages)

    def read(self, queue: str = "queue:out") -> list[Message]:
        """All that lies in a queue."""
        return list(self._connection.browse(queue, 1_000_000))

    def bodies(self, queue: str = "queue:out") -> list[str]:
        """Their bodies."""
        return [one.body.decode() for one in self.read(queue)]
