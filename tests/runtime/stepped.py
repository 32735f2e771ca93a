"""Engines without threads over a store in memory: each part takes its steps when the test lets it."""

from collections.abc import Sequence
from typing import Any

from correlator.runtime.engine import Engine
from correlator.settings import EngineSettings, ReceiverSettings, SenderSettings
from correlator.testing.clock import ManualClock
from correlator.testing.memory import MemoryBroker
from correlator.testing.store import Disk, ModelStore


def stepped(
    disk: Disk,
    broker: MemoryBroker,
    *parts: ReceiverSettings | SenderSettings,
    processors: Sequence[Any] = (),
    committed: Any = lambda epoch, number, writes: None,
    clock: ManualClock | None = None,
    **settings: Any,
) -> Engine:
    """A life over what the last one left; what that had not acknowledged comes again.

    `committed` is told of each transaction.
    """
    broker.drop_connections()
    values = {
        "name": "test",
        "receivers": tuple(part for part in parts if isinstance(part, ReceiverSettings)),
        "senders": tuple(part for part in parts if isinstance(part, SenderSettings)),
        **settings,
    }
    engine = Engine(
        EngineSettings(**values),
        connections={"memory": broker.connection()},
        store=ModelStore(disk, committed=committed),
        processors=processors,
        clock=clock or ManualClock(),
        blocking=False,
    )
    engine.recover()
    return engine


def work(engine: Engine, rounds: int = 40) -> None:
    """Let every part do what it can, in turn."""
    for _ in range(rounds):
        for actor in engine.actors():
            actor.step()
