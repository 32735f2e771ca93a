"""The workload of the campaign of kills: scenarios and application of the simulation, with short waits."""

import contextlib
import random
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import msgspec

from correlator.connector import Features
from correlator.core import dedup, statelog
from correlator.core.registry import default_domain
from correlator.errors import CorrelatorError
from correlator.events import Headers, Message, PropertyValue
from correlator.reliability import RECEIVING, Reliability
from correlator.settings import (
    CheckpointSettings,
    EngineSettings,
    MonitorSettings,
    ReceiverSettings,
    SenderSettings,
)
from correlator.testing.invariants.history import Published, ReceiverFacts, Setup
from correlator.testing.kill9 import wire
from correlator.testing.kill9.child import ChildLife, die
from correlator.testing.simulation import small_world
from correlator.testing.simulation.brokers import Parcel
from correlator.testing.simulation.scenario import Scenario
from tests.harness.simulation import application, churn
from tests.harness.simulation.probes import WorldProbe
from tests.harness.simulation.scenario import draw

STORE = "store.db"
TIMER_S = 0.01
_BROKER = "memory"
RETRY_S = 0.01
LONGEST_BATCH_MS = 2
INTERVALS_S = (0.005, 0.02, 0.05)
WHEN_ASKED_S = 1.0
"""Seconds between checkpoints in scenarios with few of them; asking the engine whether it is quiet takes one, too."""
COMINGS_AND_GOINGS = (0, 1, 5)
UNIQUE = 1_000_000
"""Number of unique numbers that one life may give."""
ALIKE = 60
"""The application handles numbers alike that differ by a multiple of this."""
APPLICATION = (application.__name__, __name__)
"""The modules that a child process has imported before it is forked."""


class ToldProbe(WorldProbe):
    """Sends the reports of a child's monitors to the oracle, and asks the oracle for facts about earlier lives.

    Args:
        life: the life of the child.
    """

    def __init__(self, life: ChildLife) -> None:
        super().__init__(life.link.record, self._open, self._last_word)
        self._life = life

    def _last_word(self, where: str) -> None:
        self._life.link.tell(wire.Dying(where))
        die()

    def fails_now(self, message_id: str) -> bool:
        """Return whether the handler of this message fails: only the first time in any life."""
        return self._life.link.first(message_id)

    def unique(self) -> int:
        """Return a number that no life has given before."""
        return self._life.number * UNIQUE + super().unique()

    def _open(self) -> tuple[str, ...]:
        engine = self._life.engine
        assert engine is not None
        return tuple(name for name, receiver in engine.receivers.items() if receiver.is_open)


def prepare(life: ChildLife) -> None:
    """In the child: set short timers and small segments, and let monitors report their actions."""
    application.PRIME_DELAY_S = TIMER_S
    statelog.SEGMENT_ENTRIES = small_world.SEGMENT_ENTRIES
    dedup.SPARSE, dedup.SLACK = small_world.SPARSE, small_world.SLACK
    application.watch(ToldProbe(life))


def let_parts_come_and_go(life: ChildLife) -> None:
    """In the child: a thread adds and removes a receiver and a sender, and leaves the receiver in place at its end."""
    threading.Thread(target=_churn, args=(life,), name="churn", daemon=True).start()


def _churn(life: ChildLife) -> None:
    life.running.wait()
    engine, rng = life.engine, random.Random(f"churn {life.number}")
    assert engine is not None
    assert engine.remover is not None
    with contextlib.suppress(CorrelatorError):  # the engine stops
        for _ in range(rng.choice(COMINGS_AND_GOINGS)):
            churn.churn(engine, rng)
        while engine.remover.removing(churn.RECEIVER.id):
            engine.checkpoint()
        churn.settle(engine)


class Reference(NamedTuple):
    """A workload: the scenario of a run, its messages in the order of publication, and what children prepare."""

    scenario: Scenario
    parcels: list[Parcel]
    prepare: Sequence[str] = (f"{__name__}:prepare",)


def drawn(seed: int) -> Reference:
    """Make a scenario of the simulation in real time, with the messages of all destinations mixed."""
    scenario, workload = draw(seed, changing=False)
    settings = _in_real_time(scenario.settings, random.Random(f"real time {seed}"))
    made = Reference(replace(scenario, settings=settings), workload.parcels(_BROKER, random.Random(f"parcels {seed}")))
    if churn.SOURCE in workload.messages:
        return made._replace(prepare=(*made.prepare, f"{__name__}:let_parts_come_and_go"))
    return made


def smallest(mode: Reliability, times: int = 1) -> Reference:
    """Make a workload of few messages for one mode of receiving and of sending, repeated `times` times with new ids."""
    one = _SMALLEST[mode]
    receiver = ReceiverSettings(
        id=one.receiver,
        connection=_BROKER,
        destination=f"queue:{one.receiver}",
        reliability=mode,
        event=f"{application.__name__}:{one.event}",
        max_batch_size=2,
        max_batch_interval_ms=0,
    )
    senders = tuple(
        SenderSettings(id=name, connection=_BROKER, destination=f"queue:{name}.out", reliability=reliability)
        for name, reliability in one.senders.items()
    )
    settings = EngineSettings(
        name="smallest",
        checkpoint=CheckpointSettings(interval=WHEN_ASKED_S),
        receivers=(receiver,),
        senders=senders,
        monitors=tuple(
            MonitorSettings(type=f"{application.__name__}:{name}", context=context)
            for name, context in one.monitors.items()
        ),
        connection_retry_interval=RETRY_S,
        max_connection_retry_interval=RETRY_S,
        status_interval=0.0,
    )
    facts = ReceiverFacts(
        reliability=mode,
        destination=receiver.destination,
        domain=default_domain(receiver) if RECEIVING[mode].deduplicated else "",
        max_batch_size=receiver.max_batch_size,
    )
    scenario = Scenario(
        seed=0,
        settings=settings,
        persistent=True,
        brokers={_BROKER: Features(acknowledges_surely=True)},
        lives=0,
        longest_lives=(),
        slice=1000,
        setup=Setup(receivers={receiver.id: facts}, senders=one.senders),
        ends_lives=False,
        overtakes=False,
        awaits_timers=True,
    )
    numbers = range(0, times * ALIKE, ALIKE)
    return Reference(
        scenario,
        [_small_parcel(receiver.destination, *message, number) for number in numbers for message in one.messages],
    )


def stored_in(scenario: Scenario, directory: Path) -> Scenario:
    """Return the scenario with its store, if it has one, in this directory."""
    if not scenario.persistent:
        return scenario
    return replace(scenario, settings=replace(scenario.settings, store=f"sqlite:///{directory}/{STORE}"))


def _in_real_time(settings: EngineSettings, rng: random.Random) -> EngineSettings:
    """Shorten waits that only pass time. The `Matcher` is left out, since its expressions would make each run wait."""
    return replace(
        settings,
        checkpoint=CheckpointSettings(interval=rng.choice(INTERVALS_S)),
        connection_retry_interval=RETRY_S,
        max_connection_retry_interval=RETRY_S,
        receivers=tuple(
            replace(one, max_batch_interval_ms=min(one.max_batch_interval_ms, LONGEST_BATCH_MS))
            for one in settings.receivers
        ),
        senders=tuple(
            replace(
                one,
                max_batch_interval_ms=min(one.max_batch_interval_ms, LONGEST_BATCH_MS),
                retry_interval=RETRY_S,
                max_retry_interval=RETRY_S,
            )
            for one in settings.senders
        ),
        monitors=tuple(one for one in settings.monitors if not one.type.endswith(":Matcher")),
    )


class _Small(NamedTuple):
    """A small workload. A message is a pair: its number, and the number of the message that it repeats."""

    receiver: str
    event: str
    senders: dict[str, Reliability]
    monitors: dict[str, str]
    messages: list[tuple[str, str]]


_PERSISTENT = {"Ledger": "main", "Audit": "audit"}
_SMALLEST = {
    Reliability.EXACTLY_ONCE: _Small(
        "orders",
        "Order",
        {"exact": Reliability.EXACTLY_ONCE},
        _PERSISTENT,
        [("or8", "or8"), ("or9", "or8")],
    ),
    Reliability.AT_LEAST_ONCE: _Small(
        "readings",
        "Reading",
        {"steady": Reliability.AT_LEAST_ONCE},
        _PERSISTENT,
        [("re8", "re8")],
    ),
    Reliability.BEST_EFFORT: _Small(
        "hints", "Hint", {"quick": Reliability.BEST_EFFORT}, {"Relay": "relay"}, [("hi3", "hi3")]
    ),
    Reliability.APP_CONTROLLED: _Small(
        "tasks", "Task", {"quick": Reliability.BEST_EFFORT}, {"Relay": "relay"}, [("ta1", "ta1")]
    ),
}
"""The numbers of the orders are chosen so that the ledger does nothing slow with them."""


def _small_parcel(destination: str, name: str, of: str, more: int) -> Parcel:
    name, of = (f"{one[:2]}{int(one[2:]) + more}" for one in (name, of))
    number = int(of[2:])
    body = msgspec.json.encode({"id": of, "n": number, "group": number % 3})
    properties: dict[str, PropertyValue] = {"uniqueMessageId": f"{number}:P", "messageSourceId": "P"}
    published = Published(name, f"{number}:P", "P", of)
    return Parcel(_BROKER, destination, published, Message(body, properties, headers=Headers(message_id=name)))
