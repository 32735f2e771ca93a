"""Changes of the configuration between two lives, in some of the scenarios with a store.

The changes concern pipelines and their receivers, logical destinations, windows, event types, receivers and monitors. A
start is either refused and leaves the store unchanged, or the engine runs. Like the parts of `churn`, these parts are
not in the `Setup` of the history; the invariants K1 to K7 check them.
"""

import dataclasses
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from correlator.core.batch_context import Delivered, Effects
from correlator.core.commit import StateEntry
from correlator.core.fingerprints import digest
from correlator.core.steps import ConfiguredStep
from correlator.events import Headers, Message
from correlator.ports import Processor, StateView
from correlator.reliability import Reliability
from correlator.settings import (
    DuplicateDetectionSettings,
    EngineSettings,
    MonitorSettings,
    ReceiverSettings,
    SenderSettings,
)
from correlator.testing.invariants.history import LifeConfiguration, Published
from tests.harness.simulation import application

LEFT, OTHER_LEFT, RIGHT = "queue:left", "queue:left2", "queue:right"
"""Destinations of receivers. Messages of the first two have equal ids: they come from two independent systems."""
BILLS = ("queue:bills", "queue:bills2")
SENDER = "bills"
STEP = "count"
COUNT = b"all"
NAMES = ("copy", "tap", "log")
EVENTS = ("", "Counted", "Passed")
READ = ("left", "right", "direct")
MOST = 12
COUNTED = {f"ri{n}" for n in range(0, MOST, 2)}
"""The messages of `RIGHT` that fit every event class."""
MAX_ROWS = 3


class Bill(NamedTuple):
    """The output of a pipeline for a message.

    It says which pipeline handled which message, its `number` within its receiver, the `total` that the step keeps, and
    the `version` of that step.
    """

    pipeline: str
    receiver: str
    pid: str
    total: int
    version: int
    number: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Parts(LifeConfiguration):
    """The configuration of one life, as the invariants use it.

    Attributes:
        routes: for each receiver, the pipelines that it delivers to.
        discards: pipelines whose step gives up its state.
        bills: destination of the sender of pipelines at the broker.
        passing: context of the monitor without lasting state, "" if there is none.
        counting: context of the persistent monitor, "" if there is none.
    """

    routes: Mapping[str, tuple[str, ...]]
    discards: tuple[str, ...]
    bills: str
    passing: str
    counting: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """The configuration of one life.

    Attributes:
        pipelines: for each pipeline, the receivers that it names.
        left: the destination of the logical destination that the receiver `left` names.
        bills: the destination of the logical destination that the sender names.
        direct: whether there is a receiver `direct` that names the queue `LEFT` itself.
        event: the class of the events that the messages of `right` become; "" for none. Not all become `Counted`.
        passing: the context of a monitor without lasting state; "" if there is none.
        counting: the context of a persistent monitor; "" if there is none.
        windows: the windows of all duplicate detectors; `None` for those of the scenario.
        versions: the version of the keyed step, for pipelines whose definition has changed.
        discards: the pipelines whose state is to be discarded, each with the version of the step that made the state.
        lacks: a receiver that is missing from the configuration.
    """

    pipelines: Mapping[str, tuple[str, ...]]
    left: str = LEFT
    bills: str = BILLS[0]
    direct: bool = False
    event: str = ""
    passing: str = ""
    counting: str = ""
    windows: DuplicateDetectionSettings | None = None
    versions: Mapping[str, int] = dataclasses.field(default_factory=dict)
    discards: Mapping[str, int] = dataclasses.field(default_factory=dict)
    lacks: str = ""

    def settings(self, base: EngineSettings) -> EngineSettings:
        """Return the settings of the scenario, changed by this configuration."""
        receivers = [one for one in self._receivers() if one.id != self.lacks]
        return dataclasses.replace(
            base,
            receivers=(*base.receivers, *receivers),
            senders=(*base.senders, _SENDER),
            monitors=(*base.monitors, *self._monitors()),
            destinations={"left_in": self.left, "bills_out": self.bills},
            duplicate_detection=self.windows or base.duplicate_detection,
            discard_state=tuple(
                f"{name}/{STEP} {_fingerprint(version)}"
                for name, version in self.discards.items()
                if name not in self.pipelines
            ),
        )

    def processors(self) -> list[Processor]:
        """Return the pipelines of this configuration."""
        return [
            Tap(name, receivers, self.versions.get(name, 0), self.discards.get(name))
            for name, receivers in self.pipelines.items()
        ]

    def routes(self) -> dict[str, tuple[str, ...]]:
        """Return, for each receiver, the pipelines to which it delivers."""
        return {
            receiver: tuple(name for name, receivers in self.pipelines.items() if receiver in receivers)
            for receiver in READ
        }

    def healed(self) -> "Configuration":
        """Return a configuration like this one that the engine must accept, and with which it can come to rest."""
        return dataclasses.replace(self, left=OTHER_LEFT, direct=True, lacks="")

    def told(self) -> "Parts":
        """The record for the history."""
        return Parts(
            routes=self.routes(),
            pipelines=tuple(self.pipelines),
            discards=tuple(self.discards),
            bills=self.bills,
            passing=self.passing,
            counting=self.counting,
        )

    def _receivers(self) -> list[ReceiverSettings]:
        event = f"{application.__name__}:{self.event}" if self.event else None
        made = [
            _receiver("left", "left_in", Reliability.EXACTLY_ONCE, None),
            _receiver("right", RIGHT, Reliability.AT_LEAST_ONCE, event),
        ]
        return [*made, _receiver("direct", LEFT, Reliability.EXACTLY_ONCE, None)] if self.direct else made

    def _monitors(self) -> list[MonitorSettings]:
        found = {"Passerby": self.passing, "Counter": self.counting}
        return [
            MonitorSettings(type=f"{application.__name__}:{name}", context=one) for name, one in found.items() if one
        ]


_SENDER = SenderSettings(
    id=SENDER, connection="memory", destination="bills_out", reliability=Reliability.EXACTLY_ONCE, max_batch_size=2
)


def _receiver(name: str, destination: str, reliability: Reliability, event: str | None) -> ReceiverSettings:
    return ReceiverSettings(
        id=name,
        connection="memory",
        destination=destination,
        reliability=reliability,
        event=event,
        max_batch_size=2,
        max_batch_interval_ms=0,
    )


class Tap:
    """A pipeline with a keyed step that counts messages, and sends a bill with the count for each message.

    Args:
        name: the name of the pipeline.
        receivers: the receivers that it names.
        version: the version of the step.
        discarded: the version whose state is to be discarded; `None` for none.
    """

    senders: Sequence[str] = (_SENDER.id,)
    max_rows = MAX_ROWS
    max_bytes = 1 << 20
    planned_s = 0.0

    def __init__(self, name: str, receivers: Sequence[str], version: int, discarded: int | None) -> None:
        self.name = name
        self.receivers = receivers
        decision = "" if discarded is None else f"discard {_fingerprint(discarded)}"
        self.steps = [ConfiguredStep(f"{name}/{STEP}", _facts(version), "", decision, lambda _, value: value)]
        self._version = version

    def open(self) -> None:
        """Do nothing."""

    def process(self, batch: Sequence[Delivered], state: StateView, engine_time: float) -> Effects:
        """Compute the effects of a batch from the batch and the state alone, as the port demands."""
        del engine_time
        owner = f"step:{self.name}/{STEP}"
        before = int(state.get(owner, COUNT) or 0)
        bills = [
            Bill(self.name, one.receiver, _pid(one.message), count, self._version, one.number)
            for count, one in enumerate(batch, before + 1)
        ]
        entry = StateEntry(owner, COUNT, str(before + len(bills)).encode())
        return Effects(sends=[(SENDER, Message(msgspec.json.encode(bill))) for bill in bills], state=[entry])

    def conclude(self, state: StateView, engine_time: float) -> Effects:
        """Return no effects."""
        del state, engine_time
        return Effects()

    def close(self) -> None:
        """Do nothing."""


def _pid(message: Message) -> str:
    assert message.headers is not None
    return str(message.headers.message_id)


def _facts(version: int) -> dict[str, str]:
    return {"kind": "tap", "window": str(version)}


def _fingerprint(version: int) -> str:
    return digest(_facts(version))


# --- random choices ---


def begin(seed: int) -> Configuration | None:
    """Return the configuration of the first life; `None` if the configuration never changes in the run of this seed."""
    rng = random.Random(f"changes {seed}")
    if rng.random() > 0.5:
        return None
    return Configuration(pipelines={"copy": ("left", "right"), "tap": ("right",)})


def windows(seed: int, base: DuplicateDetectionSettings) -> DuplicateDetectionSettings:
    """Return the windows of some lives, in runs in which the windows change."""
    rng = random.Random(f"windows between lives {seed}")
    return rng.choice(
        (base, DuplicateDetectionSettings(), DuplicateDetectionSettings(per_source_window_size=2, expiry_time=0.5))
    )


def workload(seed: int) -> dict[str, list[Published]]:
    """Return the messages to publish for the receivers."""
    rng = random.Random(f"changes workload {seed}")
    count = rng.randint(MOST // 2, MOST)
    return {
        LEFT: [Published(f"la{n}", f"{n}:L", "L", f"la{n}") for n in range(count)],
        OTHER_LEFT: [Published(f"lb{n}", f"{n}:L", "L", f"lb{n}") for n in range(count)],
        RIGHT: [Published(f"ri{n}", "", "", f"ri{n}") for n in range(count)],
    }


def message(one: Published) -> Message:
    """Return the message as the broker carries it."""
    properties = {"uniqueMessageId": one.uid, "messageSourceId": one.source} if one.uid else {}
    counted = {"n": 1} if one.id in COUNTED else {}
    return Message(msgspec.json.encode({"id": one.id} | counted), dict(properties), headers=Headers(message_id=one.pid))


def change(before: Configuration, other: DuplicateDetectionSettings, rng: random.Random) -> Configuration:
    """Make one or two changes, as a person might.

    Args:
        before: the configuration that the last start accepted.
        other: windows that may replace those of the scenario.
        rng: the random generator of the run.
    """
    after = dataclasses.replace(before, discards={})
    for _ in range(rng.choice((1, 1, 2))):
        after = rng.choice(_OPERATORS)(after, other, rng)
    return after


def _drop(before: Configuration, name: str, rng: random.Random) -> Configuration:
    """Remove a pipeline; in most cases also decide what happens to the state of its step."""
    kept = {other: receivers for other, receivers in before.pipelines.items() if other != name}
    discards = {name: before.versions.get(name, 0)} if rng.random() < 0.7 else {}
    return dataclasses.replace(before, pipelines=kept, discards=discards)


def _add(before: Configuration, _: Any, rng: random.Random) -> Configuration:
    absent = [name for name in NAMES if name not in before.pipelines]
    if not absent:
        return before
    receivers = rng.choice(
        (("left",), ("right",), ("left", "right"), ("direct", "right") if before.direct else READ[:2])
    )
    return dataclasses.replace(before, pipelines={**before.pipelines, rng.choice(absent): receivers})


def _remove(before: Configuration, _: Any, rng: random.Random) -> Configuration:
    if not before.pipelines:
        return before
    return _drop(before, rng.choice(list(before.pipelines)), rng)


def _rename(before: Configuration, _: Any, rng: random.Random) -> Configuration:
    absent = [name for name in NAMES if name not in before.pipelines]
    if not absent or not before.pipelines:
        return before
    old, new = rng.choice(list(before.pipelines)), rng.choice(absent)
    after = _drop(before, old, rng)
    return dataclasses.replace(after, pipelines={**after.pipelines, new: before.pipelines[old]})


def _redefine(before: Configuration, _: Any, rng: random.Random) -> Configuration:
    """Change the definition of a keyed step; in most cases also decide what happens to its state, sometimes wrongly."""
    if not before.pipelines:
        return before
    name = rng.choice(list(before.pipelines))
    version = before.versions.get(name, 0)
    discards = rng.choice(({}, {name: version}, {name: version}, {name: version + 1}))
    return dataclasses.replace(before, versions={**before.versions, name: version + 1}, discards=discards)


def _from(before: Configuration, _: Any, rng: random.Random) -> Configuration:
    """Change the list of receivers of a pipeline."""
    if not before.pipelines:
        return before
    name, receiver = rng.choice(list(before.pipelines)), rng.choice(READ if before.direct else READ[:2])
    named = before.pipelines[name]
    others = tuple(one for one in named if one != receiver) if receiver in named else (*named, receiver)
    return dataclasses.replace(before, pipelines={**before.pipelines, name: others})


def _left(before: Configuration, _: Any, rng: random.Random) -> Configuration:
    del rng
    return dataclasses.replace(before, left=OTHER_LEFT if before.left == LEFT else LEFT)


def _bills(before: Configuration, _: Any, rng: random.Random) -> Configuration:
    del rng
    return dataclasses.replace(before, bills=BILLS[before.bills == BILLS[0]])


def _direct(before: Configuration, _: Any, rng: random.Random) -> Configuration:
    """Add a receiver, or remove it, which the start must refuse once the receiver has existed."""
    del rng
    return dataclasses.replace(before, direct=not before.direct)


def _lacks(before: Configuration, _: Any, rng: random.Random) -> Configuration:
    return dataclasses.replace(before, lacks=rng.choice(("left", "right")))


def _typed(before: Configuration, _: Any, rng: random.Random) -> Configuration:
    del rng
    return dataclasses.replace(before, event=EVENTS[(EVENTS.index(before.event) + 1) % len(EVENTS)])


def _passing(before: Configuration, _: Any, rng: random.Random) -> Configuration:
    return dataclasses.replace(before, passing=rng.choice(("", "passing", "side")))


def _counting(before: Configuration, _: Any, rng: random.Random) -> Configuration:
    return dataclasses.replace(before, counting=rng.choice(("", "counting", "counted")))


def _windows(before: Configuration, other: DuplicateDetectionSettings, rng: random.Random) -> Configuration:
    del rng
    return dataclasses.replace(before, windows=None if before.windows else other)


_Operator = Callable[[Configuration, DuplicateDetectionSettings, random.Random], Configuration]
_OPERATORS: Sequence[_Operator] = (
    _add,
    _remove,
    _rename,
    _redefine,
    _from,
    _from,
    _left,
    _bills,
    _direct,
    _lacks,
    _typed,
    _passing,
    _counting,
    _windows,
)
