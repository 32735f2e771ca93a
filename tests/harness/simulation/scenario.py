"""Scenarios and workloads of the project's own application, chosen at random from seeds."""

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import msgspec

from correlator.connector import Features, Order
from correlator.core.registry import default_domain
from correlator.events import Headers, Message, PropertyValue
from correlator.reliability import RECEIVING, Reliability
from correlator.settings import (
    CheckpointSettings,
    DuplicateDetectionSettings,
    EngineSettings,
    MonitorSettings,
    OnError,
    ReceiverSettings,
    SenderSettings,
)
from correlator.testing.invariants.history import Published, ReceiverFacts, Setup
from correlator.testing.schedule import is_doubtful
from correlator.testing.simulation.brokers import Parcel
from correlator.testing.simulation.scenario import LONGEST_LIVES, Scenario
from tests.harness.simulation import application, changes, churn

Shape = Literal["all", "exactly_once", "without_store"]
NOTICES_WITHIN_S = (0.02, 0.1, 0.5)
"""Seconds until a broker that redelivers in any order notices a lost connection."""
LIVES_IN_DOUBT = 4
LONGEST_LIVES_IN_DOUBT = (14, 200, 1000)
"""Lengths of lives in runs about messages in doubt: a start has more of them than a loss, and hides errors."""
IDLE = 0.06
"""Share of seeds in whose runs nothing happens but that time passes."""
REFUSED_FOR_EVER = (b":or7", b":re3", b"5#")
_EVENTS = {"orders": "Order", "orders_too": "Order", "others": "Order", "readings": "Reading", "hints": "Hint"}


class Workload(NamedTuple):
    """The events in the run of a scenario besides faults.

    Attributes:
        messages: the messages by destination, in the order of publication, as the broker knows them.
        published: the same messages, as the history knows them.
        first: the configuration of the first life, if each life may have another one.
    """

    messages: Mapping[str, Sequence[Message]]
    published: Mapping[str, Sequence[Published]]
    first: changes.Configuration | None = None

    def parcels(self, connection: str, order: random.Random) -> list[Parcel]:
        """Return the messages of all destinations mixed, the n-th messages of all destinations next to each other.

        Args:
            connection: the connection to the broker of all destinations.
            order: shuffles the destinations.
        """
        places = [(name, at) for name, ones in self.messages.items() for at in range(len(ones))]
        order.shuffle(places)
        places.sort(key=lambda place: place[1])
        return [Parcel(connection, name, self.published[name][at], self.messages[name][at]) for name, at in places]


def draw(seed: int, *, changing: bool = True) -> tuple[Scenario, Workload]:
    """Make the scenario of a seed. With `changing`, the scenarios of some seeds have another
    configuration in each life.
    """
    idle = random.Random(f"idle {seed}")
    if idle.random() < IDLE:
        return _idle(seed, idle), Workload({}, {})
    rng = random.Random(f"scenario {seed}")
    shape: Shape = rng.choice(("all", "all", "exactly_once", "exactly_once", "without_store"))
    on_error: OnError = rng.choice(("stop", "dead_letter", "skip"))
    windows = rng.choice(
        (
            DuplicateDetectionSettings(),
            DuplicateDetectionSettings(per_source_window_size=3, expiry_time=0.5),
            DuplicateDetectionSettings(per_source_window_size=4, expiry_time=0.02),
            DuplicateDetectionSettings(per_source_window_size=0, expiry_time=2.0),
            DuplicateDetectionSettings(per_source_window_size=2, expiry_time=0.0),
        )
    )
    if is_doubtful(seed):
        windows = DuplicateDetectionSettings(per_source_window_size=2, expiry_time=0.02)
    deduplicating = rng.random() < 0.3
    settings = EngineSettings(
        name="simulation",
        checkpoint=CheckpointSettings(interval=rng.choice((0.05, 0.05, 0.2, 1.0))),
        receivers=tuple(_with_selectors(seed, _with_windows(seed, _with_neighbour(seed, _receivers(rng, shape))))),
        senders=tuple(_senders(rng, shape)),
        monitors=tuple(_monitors(rng, shape, on_error)),
        duplicate_detection=windows,
        max_queued=rng.choice((4, 20_000)),
        connection_retry_interval=rng.choice((0.02, 0.3)),
        max_connection_retry_interval=2.0,
        status_interval=0.0,
    )
    order = _order(seed, settings.receivers)
    notices_within_s = random.Random(f"notices {seed}").choice(NOTICES_WITHIN_S) if order is Order.ANY else 0.0
    published = _with_poison(random.Random(f"poison {seed}"), _workload(seed, rng, settings, shape, on_error))
    published = _with_unselected(random.Random(f"unselected {seed}"), published, settings.receivers)
    if shape != "without_store" and (extras := churn.workload(seed)):
        published[churn.SOURCE] = extras
    first = changes.begin(seed) if changing and shape != "without_store" else None
    other = changes.windows(seed, windows) if first else windows
    scenario = Scenario(
        seed=seed,
        settings=settings,
        persistent=shape != "without_store",
        brokers={
            "memory": Features(
                order=order,
                flags_redelivery=rng.random() < 0.7,
                acknowledges_surely=rng.random() < 0.7,
                deduplicates_sends=deduplicating,
                selects=True,
                notices_loss_within_s=notices_within_s,
            )
        },
        lives=min(rng.choice((4, 10, 20, 30)), LIVES_IN_DOUBT if is_doubtful(seed) else 30),
        longest_lives=LONGEST_LIVES_IN_DOUBT if is_doubtful(seed) else LONGEST_LIVES,
        slice=rng.choice((1, 2, 3, 1000)),
        setup=Setup(
            receivers={
                one.id: ReceiverFacts(
                    reliability=one.reliability,
                    destination=one.destination,
                    domain=default_domain(one) if RECEIVING[one.reliability].deduplicated else "",
                    max_batch_size=one.max_batch_size,
                    flow_control=one.flow_control,
                    order=order,
                    alone=one.destination.startswith("topic:"),
                )
                for one in settings.receivers
            },
            senders={one.id: one.reliability for one in settings.senders},
            window=min(windows.per_source_window_size, other.per_source_window_size),
            expiry=min(windows.expiry_time, other.expiry_time),
            checkpoint_interval=settings.checkpoint.interval,
            deduplicating=deduplicating,
            tries={one.id: 1 for one in settings.senders} if deduplicating else {},
            on_error=on_error,
        ),
        ends_lives=True,
        overtakes=True,
        awaits_timers=True,
        refused_for_ever=REFUSED_FOR_EVER,
    )
    messages = {name: [_message(one, name) for one in ones] for name, ones in published.items()}
    if first:
        more = changes.workload(seed)
        published |= more
        messages |= {name: [changes.message(one) for one in ones] for name, ones in more.items()}
    return scenario, Workload(messages, published, first)


def _idle(seed: int, rng: random.Random) -> Scenario:
    """Make the scenario of an engine that receives and sends nothing: it only waits."""
    interval = rng.choice((0.2, 1.0, 5.0))
    settings = EngineSettings(
        name="simulation",
        checkpoint=CheckpointSettings(interval=interval),
        monitors=(MonitorSettings(type=f"{application.__name__}:Sleeper"),),
        status_interval=0.0,
    )
    return Scenario(
        seed=seed,
        settings=settings,
        persistent=True,
        brokers={"memory": Features()},
        lives=rng.choice((4, 10, 20)),
        longest_lives=(14, 60, 200),
        slice=1000,
        setup=Setup(checkpoint_interval=interval),
        ends_lives=True,
        overtakes=True,
        awaits_timers=False,
    )


def _with_neighbour(seed: int, receivers: Sequence[ReceiverSettings]) -> Sequence[ReceiverSettings]:
    """In runs that concentrate on doubts, add a second receiver to some orders, and make batches of several chunks."""
    rng = random.Random(f"neighbour {seed}")
    given = {one.id: one for one in receivers}
    if not is_doubtful(seed) or "orders" not in given:
        return receivers
    if rng.random() < 0.5:
        given.setdefault("orders_too", replace(given["orders"], id="orders_too"))
    for name in (one for one in HALVES if one in given):
        size, interval_ms = rng.choice((1, 3, 5, 8)), rng.choice((0, 0, 5, 50))
        given[name] = replace(given[name], max_batch_size=size, max_batch_interval_ms=interval_ms)
    return list(given.values())


def _with_windows(seed: int, receivers: Sequence[ReceiverSettings]) -> Iterator[ReceiverSettings]:
    """Let some receivers deliver only as far as the application allows."""
    rng = random.Random(f"windows {seed}")
    for receiver in receivers:
        yield replace(receiver, flow_control=rng.random() < 0.3)


def _order(seed: int, receivers: Sequence[ReceiverSettings]) -> Order:
    """Return the order of redeliveries. `POSITION` admits one consumer at a time, so it needs a queue
    with one receiver.
    """
    orders = [Order.ANY, Order.ANY, Order.PLACE]
    if "orders_too" not in {one.id for one in receivers}:
        orders.append(Order.POSITION)
    return random.Random(f"comes again {seed}").choice(orders)


SELECTED = "left IS NULL"
"""The selector of the topic's subscriber in some runs; messages with the property `left` do not match."""
HALVES = {"orders": "half = 0", "orders_too": "half <> 0"}
"""The selectors of two receivers of one queue in some runs."""


def _with_selectors(seed: int, receivers: Iterable[ReceiverSettings]) -> Iterator[ReceiverSettings]:
    """Give some receivers selectors; the selectors of the receivers of a queue together match all its messages."""
    rng = random.Random(f"selectors {seed}")
    given = {one.id: one for one in receivers}
    if "orders_too" in given and rng.random() < 0.3:
        given.update({name: replace(given[name], selector=half) for name, half in HALVES.items()})
    if "others" in given and rng.random() < 0.3:
        given["others"] = replace(given["others"], selector=SELECTED)
    yield from given.values()


def _receivers(rng: random.Random, shape: Shape) -> list[ReceiverSettings]:
    def receiver(name: str, reliability: Reliability, destination: str, event: str) -> ReceiverSettings:
        return ReceiverSettings(
            id=name,
            connection="memory",
            destination=destination,
            reliability=reliability,
            event=f"{application.__name__}:{event}",
            max_batch_size=rng.choice((1, 2, 3, 5, 8)),
            max_batch_interval_ms=rng.choice((0, 0, 5, 50)),
        )

    made: list[ReceiverSettings] = []
    if shape != "without_store":
        made.append(receiver("orders", Reliability.EXACTLY_ONCE, "queue:orders", "Order"))
        made.append(receiver("readings", Reliability.AT_LEAST_ONCE, "queue:readings", "Reading"))
        if rng.random() < 0.5:
            made.append(receiver("orders_too", Reliability.EXACTLY_ONCE, "queue:orders", "Order"))
        if rng.random() < 0.5:
            made.append(receiver("others", Reliability.EXACTLY_ONCE, "topic:others", "Order"))
    if shape != "exactly_once":
        made.append(receiver("hints", Reliability.BEST_EFFORT, "queue:hints", "Hint"))
        made.append(receiver("tasks", Reliability.APP_CONTROLLED, "queue:tasks", "Task"))
    return made


def _senders(rng: random.Random, shape: Shape) -> list[SenderSettings]:
    def sender(name: str, reliability: Reliability) -> SenderSettings:
        return SenderSettings(
            id=name,
            connection="memory",
            destination=f"queue:{name}.out",
            reliability=reliability,
            max_batch_size=rng.choice((1, 2, 5, 500)),
            max_batch_interval_ms=rng.choice((0, 0, 20)),
            max_outstanding=rng.choice((4, 200_000)),
        )

    made = [sender("quick", Reliability.BEST_EFFORT)]
    if shape != "without_store":
        made.append(sender("exact", Reliability.EXACTLY_ONCE))
        made.append(sender("steady", Reliability.AT_LEAST_ONCE))
    return made


def _monitors(rng: random.Random, shape: Shape, on_error: OnError) -> list[MonitorSettings]:
    made: list[MonitorSettings] = []
    if shape != "without_store":
        made.append(MonitorSettings(type=f"{application.__name__}:Ledger", context="main", on_error=on_error))
        made.append(MonitorSettings(type=f"{application.__name__}:Audit", context="audit", on_error=on_error))
        made.append(MonitorSettings(type=f"{application.__name__}:Matcher", context="audit", on_error=on_error))
    if shape != "exactly_once":
        made.append(MonitorSettings(type=f"{application.__name__}:Relay", context=rng.choice(("main", "relay"))))
    return made


def _workload(
    seed: int, rng: random.Random, settings: EngineSettings, shape: Shape, on_error: OnError
) -> dict[str, list[Published]]:
    most = {"queue:orders": 24, "queue:readings": 16, "topic:others": 10, "queue:hints": 10, "queue:tasks": 12}
    published: dict[str, list[Published]] = {}
    for destination in dict.fromkeys(one.destination for one in settings.receivers):
        count = rng.randint(most[destination] // 2, most[destination])
        if destination == "queue:orders" and is_doubtful(seed):
            count *= 2
        published[destination] = list(_messages(rng, destination, count, shape, on_error))
    return published


def _messages(rng: random.Random, destination: str, count: int, shape: Shape, on_error: OnError) -> Sequence[Published]:
    """Return numbered messages. Some repeat an earlier message, some have no unique id, some are poison."""
    del shape
    letter = destination.split(":")[1][:2]
    made: list[Published] = []
    repeatable: list[Published] = []
    echo: Published | None = None
    for n in range(count):
        pid = f"{letter}{n}"
        if repeatable and rng.random() < 0.2:
            earlier = rng.choice((repeatable[-1], rng.choice(repeatable), echo or repeatable[-1]))
            made.append(earlier._replace(pid=pid))
            echo = earlier
            continue
        flaw = ""
        if rng.random() < 0.08:
            flaw = "mapping"
        elif letter == "or" and rng.random() < 0.1:
            flaw = "once" if on_error == "stop" else "handler"
        # "topic:others" uses the ids of "queue:orders" in a domain of its own
        uid = "" if rng.random() < 0.1 else f"{n}:P{rng.randrange(2)}"
        one = Published(pid, uid, uid.partition(":")[2], pid, flaw)
        made.append(one)
        if uid and not flaw:
            repeatable.append(one)
    return made


def _with_poison(rng: random.Random, published: dict[str, list[Published]]) -> dict[str, list[Published]]:
    """In one run of four, an order, with all its repeats, ends the process that handles it."""
    sound = [one.id for one in published.get("queue:orders", ()) if not one.flaw]
    if sound and rng.randrange(4) == 0:
        poison = rng.choice(sound)
        published["queue:orders"] = [
            one._replace(flaw="kills") if one.id == poison else one for one in published["queue:orders"]
        ]
    return published


def _with_unselected(
    rng: random.Random, published: dict[str, list[Published]], receivers: Sequence[ReceiverSettings]
) -> dict[str, list[Published]]:
    """If the topic's receiver has a selector, it does not match a third of the messages, with all their repeats."""
    if selecting := tuple(one.id for one in receivers if one.selector == SELECTED):
        there = published["topic:others"]
        left = {one.id for one in there if not one.flaw and rng.random() < 1 / 3}
        published["topic:others"] = [one._replace(unselected=selecting) if one.id in left else one for one in there]
    return published


_FAILURES = {"handler": "always", "once": "once", "kills": "kills"}


def _message(one: Published, destination: str) -> Message:
    number = int("".join(c for c in one.id if c.isdigit()))
    content: dict[str, Any] = {"id": one.id, "n": number}
    if destination in ("queue:orders", "topic:others"):
        content |= {"group": number % 3, "fail": _FAILURES.get(one.flaw, "")}
    elif destination == "queue:readings":
        content["group"] = number % 3
    body = msgspec.json.encode(content) if one.flaw != "mapping" else b"{" + one.pid.encode()
    properties: dict[str, PropertyValue] = {"half": number % 2} if destination == "queue:orders" else {}
    if one.unselected:
        properties["left"] = True
    if one.uid:
        properties |= {"uniqueMessageId": one.uid, "messageSourceId": one.source}
    return Message(body, properties, headers=Headers(message_id=one.pid))
