"""Counters of one life of the engine, and the states of its parts. Any thread reads them; only the owner of each writes
it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from correlator.connector import Backlog
from correlator.core.dispatch import SenderCounters
from correlator.core.intake import ReceiverCounters
from correlator.events import PartStatus
from correlator.reliability import Reliability
from correlator.runtime.html import table
from correlator.runtime.statuses import Condition


@dataclass(slots=True)
class PipelineCounters:
    """What a pipeline has done in this life, and how long its thread took. Durations are in seconds.

    Attributes:
        received: messages that it processed.
        dead_letters: rows that became dead letters.
        sent: messages handed to senders.
        batches: batches that it processed; the end of all input does not count as a batch.
        take_s: time to take batches from the queue.
        plan_s: time in which Spark planned batches.
        compute_s: time in which batches were computed.
        apply_s: time to apply the effects of batches to the state and the outboxes in memory.
    """

    received: int = 0
    dead_letters: int = 0
    sent: int = 0
    batches: int = 0
    take_s: float = 0.0
    plan_s: float = 0.0
    compute_s: float = 0.0
    apply_s: float = 0.0

    @property
    def busy_s(self) -> float:
        """How long its thread worked."""
        return self.take_s + self.plan_s + self.compute_s + self.apply_s


PIPELINE_TIMES = ("take_s", "plan_s", "compute_s", "apply_s")
"""The durations among the counters of a pipeline, in the order of a batch."""


DURATIONS_S = {
    f"{limit:g}": limit
    for limit in (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
}
"""The limits by which the durations of checkpoints and the latencies of messages are counted, by their texts."""


@dataclass(slots=True)
class ContextCounters:
    """What a context of monitors has done in this life.

    Attributes:
        handled: events that it has handled.
        busy_s: seconds for which its thread has worked.
    """

    handled: int = 0
    busy_s: float = 0.0


class LatencyCounters(NamedTuple):
    """How long the messages of a sender took in this life (docs/status.md). Durations are in seconds.

    Attributes:
        confirmed: messages that the broker has confirmed, apart from those that the start found in the store.
        total_s: sum of their durations.
        within: for each limit in seconds: how many of them took at most this time.
    """

    confirmed: int
    total_s: float
    within: dict[str, int]


class Location(NamedTuple):
    """The place from which a receiver receives, or to which a sender sends: a connection, and the configured
    destination, if any.
    """

    connection: str
    destination: str | None


class TakenCheckpoint(NamedTuple):
    """A checkpoint of this life. Durations are in seconds.

    Attributes:
        number: its number in the store.
        time: when its sends were released, in seconds since the epoch.
        cause: why it was taken: `interval`; `rest`, since sends waited for it and no context had anything to do; or
            `order`, for a command, a program, a removal or a full outbox.
        duration_s: from its beginning until its sends were released.
        cut_s: the time until all contexts had stopped and the cut was taken.
        commit_s: the time after that until the store had committed it.
        release_s: the time after that until its sends were released.
        changes: number of the changed entries of state.
        sends: number of its sends.
        dead_letters: number of its dead letters.
    """

    number: int
    time: float
    cause: str
    duration_s: float
    cut_s: float
    commit_s: float
    release_s: float
    changes: int
    sends: int
    dead_letters: int


@dataclass(slots=True)
class CheckpointCounters:
    """Counts the checkpoints of one life. Durations are in seconds.

    Attributes:
        taken: number of checkpoints.
        cut_retries: how often the checkpointer has waited in vain for a handler to return.
        last_duration_s: duration of the last checkpoint.
        total_duration_s: sum of all durations.
        interval_s: from the end of one checkpoint to the beginning of the next.
        within: for each limit in seconds: how many checkpoints took at most this time. Nobody changes the dictionary.
    """

    taken: int = 0
    cut_retries: int = 0
    last_duration_s: float = 0.0
    total_duration_s: float = 0.0
    interval_s: float = 0.0
    within: dict[str, int] = field(default_factory=lambda: dict.fromkeys(DURATIONS_S, 0))

    def note(self, duration_s: float) -> None:
        """Count a checkpoint that is committed, and that took so many seconds. Called by the checkpointer only."""
        self.taken += 1
        self.last_duration_s = duration_s
        self.total_duration_s += duration_s
        self.within = {text: self.within[text] + (duration_s <= limit) for text, limit in DURATIONS_S.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """State and counters of a running engine at one moment.

    Attributes:
        name: the name of the engine.
        phase: `new`, `starting`, `running`, `stopping` or `stopped`; `running` begins when recovery is concluded.
        time: the moment, in seconds since the epoch.
        started: when this life began, in seconds since the epoch; 0 before.
        places: for each receiver and sender, by id: its connection and destination.
        deliveries: for each receiver, by id: the contexts and pipelines that get its messages.
        pipeline_senders: for each pipeline, by name: the senders to which it sends. Monitors may send to every sender.
        reliabilities: for each receiver and sender, by id: its mode.
        receivers: for each receiver, by id: the state of its cycle, and its counters.
        senders: for each sender, by id: its status, its counters, and the number of its messages that wait for a
            checkpoint or for the broker.
        conditions: for each receiver and sender, by id: its status and error, as the events report them.
        connections: for each connection, by name: its status and error.
        windows: for each receiver with flow control, by id: how many messages it may deliver now.
        waits: for each receiver that may not receive at present, by id: the reason, such as `outbox:SENDER`,
            `queue:CONTEXT`, `window` or `doubt`.
        paused: ids of the receivers and senders that somebody has paused.
        duplicate_ids: number of ids that duplicate detection remembers.
        removed_received: messages that removed receivers had received.
        removed_sent: messages that removed senders had settled.
        resident_bytes: resident memory of the process.
        contexts: for each context, by name: the number of events that wait in its queue.
        monitors: for each context of monitors, by name: what it has handled.
        oldest_events: for each context, by name: for how many seconds the first event of its queue waits. The value may
            be too small, by at most the time since the previous call of `Engine.status`.
        oldest_sends: for each sender, by id: for how many seconds its first unsettled message waits, with the same
            accuracy.
        outbox_limits: for each sender, by id: how many of its messages may wait (`max_outstanding`); at this limit its
            outbox is full, and contexts and receivers wait.
        latencies: for each sender of a mode other than BEST_EFFORT, by id: how long its messages took from the handler
            that sent them to the confirm of the broker. A time may be too long, by some hundredths of a second.
        store_fails: whether the last transaction of the store has failed, and is tried again; `None` without a store.
        unhandled: for each receiver, by id: the number of messages of this life that no monitor listened for
            (docs/receiving.md).
        unhandled_letters: how many of these messages became dead letters.
        handler_failures: number of events on which a handler failed, and which were left out or became dead letters.
        handler_skips: how many of these events were left out (`on_error: skip`), and are no dead letters.
        pipelines: for each pipeline, by name: its counters.
        checkpoints: counters of the checkpoints.
        store_commits: number of transactions of this life.
        engine_time: engine time in seconds.
    """

    name: str
    phase: str
    time: float
    started: float
    places: Mapping[str, Location]
    deliveries: Mapping[str, Sequence[str]]
    pipeline_senders: Mapping[str, Sequence[str]]
    reliabilities: Mapping[str, Reliability]
    receivers: dict[str, tuple[str, ReceiverCounters]]
    senders: dict[str, tuple[str, SenderCounters, int]]
    conditions: Mapping[str, Condition]
    connections: Mapping[str, Condition]
    windows: Mapping[str, int]
    waits: Mapping[str, str]
    paused: frozenset[str]
    duplicate_ids: int
    removed_received: int
    removed_sent: int
    resident_bytes: int
    contexts: dict[str, int]
    monitors: Mapping[str, ContextCounters]
    oldest_events: Mapping[str, float]
    oldest_sends: Mapping[str, float]
    outbox_limits: Mapping[str, int]
    latencies: Mapping[str, LatencyCounters]
    store_fails: bool | None
    unhandled: Mapping[str, int]
    unhandled_letters: int
    handler_failures: int
    handler_skips: int
    pipelines: Mapping[str, PipelineCounters]
    checkpoints: CheckpointCounters
    store_commits: int
    engine_time: float

    def totals(self) -> dict[str, Any]:
        """The figures of the table that `correlator run` prints at its end."""
        receivers = [counters for _, counters in self.receivers.values()]
        senders = [counters for _, counters, _ in self.senders.values()]
        return {
            "received": sum(counters.received for counters in receivers),
            "duplicates dropped": sum(counters.duplicates for counters in receivers),
            "dead letters": self.handler_failures
            - self.handler_skips
            + self.unhandled_letters
            + sum(counters.dead_letters for counters in self.pipelines.values())
            + sum(counters.dead_letters for counters in receivers)
            + sum(counters.dead_letters for counters in senders),
            "sent": sum(counters.sent for counters in senders),
            "checkpoints": self.checkpoints.taken,
        }

    def backlog(self) -> Backlog:
        """The messages that the destinations of all receivers still hold, as far as their sources know."""
        told = [counters.backlog for _, counters in self.receivers.values() if counters.backlog is not None]
        messages = [one.messages for one in told if one.messages is not None]
        sizes = [one.size for one in told if one.size is not None]
        return Backlog(sum(messages) if messages else None, sum(sizes) if sizes else None)

    def not_ready(self) -> list[str]:
        """Why the engine is not ready, one sentence for each reason; empty if it is ready.

        It is ready while it runs and each receiver and sender of a mode other than BEST_EFFORT has its connection,
        whether or not it is paused.
        """
        if self.phase != "running":
            return [f"the engine is {self.phase}"]
        return [
            f"{'receiver' if name in self.receivers else 'sender'} {name}: {condition.status}"
            + (f": {condition.error}" if condition.error else "")
            for name, condition in self.conditions.items()
            if condition.status is not PartStatus.OK and self.reliabilities.get(name) is not Reliability.BEST_EFFORT
        ]

    def paused_parts(self) -> list[str]:
        """The paused parts, such as `receiver orders`."""
        return [f"{'receiver' if name in self.receivers else 'sender'} {name}" for name in sorted(self.paused)]

    def _repr_html_(self) -> str:
        """The status in the form that a notebook shows."""
        rows: list[tuple[object, ...]] = []
        for name, (state, received) in self.receivers.items():
            rows.append((f"receiver {name}", self._shown_condition(name), state, received.received, "", ""))
        for name, (_, sent, outstanding) in self.senders.items():
            rows.append((f"sender {name}", self._shown_condition(name), "", "", sent.sent, outstanding))
        for name, queued in self.contexts.items():
            handled = self.monitors.get(name, ContextCounters()).handled
            rows.append((f"context {name}", "", "", handled, "", queued))
        columns = ("part", "status", "state", "received or handled", "sent", "waiting")
        return table(f"engine {self.name}: {self.phase}", columns, rows)

    def _shown_condition(self, name: str) -> str:
        condition = self.conditions[name]
        return f"{condition.status.value} {condition.error}".rstrip()

    def to_dict(self) -> dict[str, Any]:
        """All of this as values that JSON has (docs/status.md). Times are seconds since the epoch, in UTC."""
        return {
            "name": self.name,
            "phase": self.phase,
            "time": self.time,
            "started": self.started,
            "engine_time": self.engine_time,
            "not_ready": self.not_ready(),
            "paused": self.paused_parts(),
            "receivers": {name: self._receiver(name) for name in self.receivers},
            "senders": {name: self._sender(name) for name in self.senders},
            "connections": {name: _shown(condition) for name, condition in self.connections.items()},
            "contexts": {name: self._context(name) for name in self.contexts},
            "pipelines": {
                name: {"sends_to": list(self.pipeline_senders[name]), **asdict(counters)}
                for name, counters in self.pipelines.items()
            },
            "checkpoints": asdict(self.checkpoints),
            "totals": {name.replace(" ", "_"): value for name, value in self.totals().items()},
            "duplicate_ids": self.duplicate_ids,
            "handler_failures": self.handler_failures,
            "handler_skips": self.handler_skips,
            "store_commits": self.store_commits,
            "store_fails": self.store_fails,
            "resident_bytes": self.resident_bytes,
        }

    def _receiver(self, name: str) -> dict[str, Any]:
        state, counters = self.receivers[name]
        backlog = counters.backlog
        return {
            **self._part(name),
            "state": state,
            "delivers_to": list(self.deliveries[name]),
            "waits_for": self.waits.get(name),
            "window": self.windows.get(name),
            "unhandled": self.unhandled.get(name, 0),
            **asdict(counters),
            "backlog": None if backlog is None else backlog._asdict(),
        }

    def _sender(self, name: str) -> dict[str, Any]:
        _, counters, outstanding = self.senders[name]
        oldest, latency = self.oldest_sends[name], self.latencies.get(name)
        waiting = {"outstanding": outstanding, "max_outstanding": self.outbox_limits[name], "oldest_s": oldest}
        took = None if latency is None else latency._asdict()
        return {**self._part(name), **waiting, **asdict(counters), "latency": took}

    def _context(self, name: str) -> dict[str, Any]:
        pipeline, monitors = self.pipelines.get(name), self.monitors.get(name, ContextCounters())
        did = asdict(monitors) if pipeline is None else {"handled": pipeline.received, "busy_s": pipeline.busy_s}
        return {"queued": self.contexts[name], "oldest_s": self.oldest_events[name], **did}

    def _part(self, name: str) -> dict[str, Any]:
        reliability = self.reliabilities.get(name)
        shown = {**_shown(self.conditions[name]), "paused": name in self.paused, **self.places[name]._asdict()}
        return {**shown, "reliability": None if reliability is None else reliability.value}

    @property
    def received(self) -> int:
        """Messages that all receivers of this life have received."""
        return self.removed_received + sum(counters.received for _, counters in self.receivers.values())

    @property
    def settled(self) -> int:
        """Messages that brokers confirmed in this life, or that senders gave up."""
        return self.removed_sent + sum(counters.settled for _, counters, _ in self.senders.values())


def _shown(condition: Condition) -> dict[str, Any]:
    return {**condition._asdict(), "status": condition.status.value}


def pipeline_lines(before: Status, now: Status) -> list[str]:
    """For each pipeline the line of the log: what it did between two moments, and how it spent its time."""
    passed = now.engine_time - before.engine_time
    return [
        _pipeline_line(name, before.pipelines.get(name, PipelineCounters()), did, now.contexts.get(name, 0), passed)
        for name, did in now.pipelines.items()
    ]


def _pipeline_line(name: str, before: PipelineCounters, now: PipelineCounters, waiting: int, passed: float) -> str:
    def share(item: str) -> str:
        spent: float = getattr(now, item) - getattr(before, item)
        return f"{100 * spent / passed if passed > 0 else 0:.0f}%"

    figures = {
        "pipeline": name,
        "in": now.received,
        "out": now.sent,
        "dead": now.dead_letters,
        "batches": now.batches,
        "inRate": f"{(now.received - before.received) / passed if passed > 0 else 0:.0f}",
        "waiting": waiting,
        **{item.removesuffix("_s"): share(item) for item in PIPELINE_TIMES},
    }
    return "Pipeline Status: " + " ".join(f"{field}={value}" for field, value in figures.items())


def status_line(before: Status, now: Status) -> str:
    """The status line of the log: what the engine did between two moments (docs/status.md)."""
    passed = now.engine_time - before.engine_time
    receivers = [counters for _, counters in now.receivers.values()]

    def rate(count: int, earlier: int) -> str:
        return f"{(count - earlier) / passed if passed > 0 else 0:.0f}"

    figures = {
        "s": len(now.senders),
        "tx": now.settled,
        "sRate": rate(now.settled, before.settled),
        "sOutst": sum(outstanding for _, _, outstanding in now.senders.values()),
        "r": len(now.receivers),
        "rx": now.received,
        "rRate": rate(now.received, before.received),
        "rWindow": sum(now.windows.values()) if now.windows else -1,
        "rRedel": sum(counters.redelivered for counters in receivers),
        "rMaxDeliverySecs": f"{max((counters.max_delivery_s for counters in receivers), default=0.0):.1f}",
        "rDupsDet": sum(counters.duplicates for counters in receivers),
        "rConflicts": sum(counters.conflicts for counters in receivers),
        "rDupIds": now.duplicate_ids,
        "rUnhandled": sum(now.unhandled.values()),
        "connErr": sum(condition.status is PartStatus.ERROR for condition in now.connections.values()),
        "iq": sum(now.contexts.values()),
        "rWait": ",".join(f"{receiver}({why})" for receiver, why in now.waits.items()) or "-",
        "rssMB": now.resident_bytes // 1_000_000,
    }
    return "Messaging Status: " + " ".join(f"{name}={value}" for name, value in figures.items())
