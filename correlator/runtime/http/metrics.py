"""The status of an engine as metrics of Prometheus (docs/http.md)."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.metadata import version
from operator import attrgetter
from typing import Any, Literal, NamedTuple

from correlator.events import PartStatus
from correlator.runtime.status import PIPELINE_TIMES, Status

MOST_PARTS = 200
"""This number of parts of each kind have samples of their own; the others have one sample together."""
OTHERS = "_other"
SUM = "sum"
_PREFIX = "correlator_"

Values = Callable[[Status], Mapping[str, float]]
"""The values of all parts of a kind, by name; a value of the whole engine has the empty name."""
Histograms = Callable[[Status], Mapping[str, Mapping[str, float]]]
"""The histograms of all parts of a kind, in the same way: how many values are at most as large as each limit, by limit;
the number of all values; and their sum."""


class Described(NamedTuple):
    """A metric of the engine.

    Attributes:
        name: its name, for a counter without `_total`.
        kind: its type in Prometheus.
        labels: its labels: the kind of parts that it is about, or none for the whole engine.
        text: what it means.
        values: reads it, if it is no histogram.
        others: makes one value of the values of the parts without samples of their own, if it is a gauge.
        histograms: reads it, if it is a histogram.
    """

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    labels: Sequence[str]
    text: str
    values: Values = lambda _: {}
    others: Callable[[Iterable[float]], float] = sum
    histograms: Histograms = lambda _: {}


def _engine(read: Callable[[Status], float]) -> Values:
    return lambda status: {"": float(read(status))}


def _receivers(field: str) -> Values:
    read = attrgetter(field)
    return lambda status: {name: float(read(counters)) for name, (_, counters) in status.receivers.items()}


def _senders(field: str) -> Values:
    read = attrgetter(field)
    return lambda status: {name: float(read(counters)) for name, (_, counters, _) in status.senders.items()}


def _pipelines(field: str) -> Values:
    read = attrgetter(field)
    return lambda status: {name: float(read(counters)) for name, counters in status.pipelines.items()}


def _up(kind: Literal["receivers", "senders"]) -> Values:
    return lambda status: {
        name: float(status.conditions[name].status is PartStatus.OK) for name in getattr(status, kind)
    }


def _paused(kind: Literal["receivers", "senders"]) -> Values:
    return lambda status: {name: float(name in status.paused) for name in getattr(status, kind)}


def _connections_up(status: Status) -> Mapping[str, float]:
    return {name: float(condition.status is not PartStatus.ERROR) for name, condition in status.connections.items()}


def _backlog(field: str) -> Values:
    def values(status: Status) -> Mapping[str, float]:
        told = {name: counters.backlog for name, (_, counters) in status.receivers.items()}
        found = {name: getattr(backlog, field, None) for name, backlog in told.items()}
        return {name: float(value) for name, value in found.items() if value is not None}

    return values


def _waiting(status: Status) -> Mapping[str, float]:
    return {name: float(status.waits.get(name, "pause") != "pause") for name in status.receivers}


def _store_up(status: Status) -> Mapping[str, float]:
    return {"": float(not status.store_fails)} if status.store_fails is not None else {}


def _checkpoint_durations(status: Status) -> Mapping[str, Mapping[str, float]]:
    counters = status.checkpoints
    return {"": {**counters.within, "+Inf": counters.taken, SUM: counters.total_duration_s}}


def _latencies(status: Status) -> Mapping[str, Mapping[str, float]]:
    return {
        name: {**latency.within, "+Inf": latency.confirmed, SUM: latency.total_s}
        for name, latency in status.latencies.items()
    }


def _outstanding(status: Status) -> Mapping[str, float]:
    return {name: float(count) for name, (_, _, count) in status.senders.items()}


METRICS = (
    Described(
        "ready",
        "gauge",
        (),
        "1 if the engine runs and all its parts of a mode other than BEST_EFFORT are connected.",
        _engine(lambda status: not status.not_ready()),
    ),
    Described(
        "start_timestamp_seconds",
        "gauge",
        (),
        "When the engine was started, in seconds since 1970 (UTC).",
        _engine(attrgetter("started")),
    ),
    Described(
        "resident_memory_bytes", "gauge", (), "Resident memory of the process.", _engine(attrgetter("resident_bytes"))
    ),
    Described(
        "received_messages",
        "counter",
        (),
        "Messages of all receivers, including removed ones.",
        _engine(attrgetter("received")),
    ),
    Described(
        "settled_messages",
        "counter",
        (),
        "Messages that all senders, including removed ones, have sent or given up.",
        _engine(attrgetter("settled")),
    ),
    Described(
        "duplicate_ids",
        "gauge",
        (),
        "Ids that duplicate detection remembers.",
        _engine(attrgetter("duplicate_ids")),
    ),
    Described(
        "handler_failures",
        "counter",
        (),
        "Events on which a handler has failed.",
        _engine(attrgetter("handler_failures")),
    ),
    Described("store_up", "gauge", (), "0 if the store has refused the last transaction, 1 otherwise.", _store_up),
    Described("store_commits", "counter", (), "Transactions of the store.", _engine(attrgetter("store_commits"))),
    Described("checkpoints", "counter", (), "Checkpoints that were taken.", _engine(attrgetter("checkpoints.taken"))),
    Described(
        "checkpoint_duration_seconds",
        "histogram",
        (),
        "Durations of the checkpoints.",
        histograms=_checkpoint_durations,
    ),
    Described(
        "checkpoint_last_duration_seconds",
        "gauge",
        (),
        "Duration of the last checkpoint.",
        _engine(attrgetter("checkpoints.last_duration_s")),
    ),
    Described("connection_up", "gauge", ("connection",), "1 if none of its parts is in error.", _connections_up, min),
    Described("receiver_up", "gauge", ("receiver",), "1 if it is connected.", _up("receivers"), min),
    Described("receiver_paused", "gauge", ("receiver",), "1 if somebody has paused it.", _paused("receivers"), max),
    Described(
        "receiver_waiting",
        "gauge",
        ("receiver",),
        "1 if it takes no messages, because it waits for room or for the application.",
        _waiting,
        max,
    ),
    *(
        Described(f"receiver_{name}", "counter", ("receiver",), text, _receivers(field))
        for field, name, text in (
            ("received", "messages", "Messages that came from the broker, including duplicates."),
            ("delivered", "delivered", "Messages that it has delivered to contexts."),
            ("duplicates", "duplicates", "Messages that duplicate detection has dropped."),
            ("conflicts", "conflicts", "Duplicates whose body differs from that of the first message with their id."),
            ("without_id", "without_id", "Messages without a unique id, in a mode that detects duplicates."),
            ("dead_letters", "dead_letters", "Messages that could not be mapped, and became dead letters."),
            ("unmapped", "unmapped", "Messages that could not be mapped, and did not become dead letters."),
            ("redelivered", "redelivered", "Messages that the broker has marked as redelivered."),
            ("expired", "expired", "Messages that it dropped, because their time to live had passed."),
            ("own", "own", "Messages of senders of this engine."),
            ("unselected", "unselected", "Messages that did not match the selector."),
            ("unreadable", "unreadable", "Messages that the connector could not read, wholly or in part."),
            ("batches", "batches", "Batches that it has closed."),
            ("connection_errors", "connection_errors", "Lost connections, and failed attempts to connect."),
        )
    ),
    Described(
        "receiver_unhandled",
        "counter",
        ("receiver",),
        "Messages that no monitor listened for.",
        lambda status: {name: float(count) for name, count in status.unhandled.items()},
    ),
    Described(
        "receiver_window_messages",
        "gauge",
        ("receiver",),
        "Messages that the application allows at present, with flow control.",
        lambda status: {name: float(count) for name, count in status.windows.items()},
    ),
    Described(
        "receiver_backlog_messages",
        "gauge",
        ("receiver",),
        "Messages that its destination still holds, if the broker reports it.",
        _backlog("messages"),
    ),
    Described(
        "receiver_backlog_bytes",
        "gauge",
        ("receiver",),
        "Bytes that its destination still holds, if the connector reports it.",
        _backlog("size"),
    ),
    Described("sender_up", "gauge", ("sender",), "1 if it is connected.", _up("senders"), min),
    Described("sender_paused", "gauge", ("sender",), "1 if somebody has paused it.", _paused("senders"), max),
    *(
        Described(f"sender_{name}", "counter", ("sender",), text, _senders(field))
        for field, name, text in (
            ("sent", "messages", "Messages that the broker has confirmed."),
            ("retries", "retries", "Further attempts to send a message that the broker has refused."),
            ("dead_letters", "dead_letters", "Messages that were given up, and became dead letters."),
            ("batches", "batches", "Batches that were sent."),
            ("connection_errors", "connection_errors", "Lost connections, and failed attempts to connect."),
        )
    ),
    Described(
        "sender_outstanding_messages", "gauge", ("sender",), "Messages that are not confirmed yet.", _outstanding
    ),
    Described(
        "sender_oldest_waiting_seconds",
        "gauge",
        ("sender",),
        "For how long its oldest message that is not confirmed has waited, at least.",
        lambda status: status.oldest_sends,
        max,
    ),
    Described(
        "sender_latency_seconds",
        "histogram",
        ("sender",),
        "How long messages took from the handler that sent them to the confirm of the broker, at most;"
        " not for mode BEST_EFFORT.",
        histograms=_latencies,
    ),
    Described(
        "context_queued_events",
        "gauge",
        ("context",),
        "Events that wait in its queue.",
        lambda status: {name: float(count) for name, count in status.contexts.items()},
    ),
    Described(
        "context_oldest_waiting_seconds",
        "gauge",
        ("context",),
        "For how long the oldest event in its queue has waited, at least.",
        lambda status: status.oldest_events,
        max,
    ),
    *(
        Described(f"pipeline_{name}", "counter", ("pipeline",), text, _pipelines(field))
        for field, name, text in (
            ("received", "messages", "Messages that it has processed."),
            ("sent", "sent", "Messages that it has handed to senders."),
            ("dead_letters", "dead_letters", "Rows that became dead letters."),
            ("batches", "batches", "Batches that it has processed."),
        )
    ),
    *(
        Described(
            f"pipeline_{field.removesuffix('_s')}_seconds",
            "counter",
            ("pipeline",),
            f"Time that its thread has spent on the part `{field.removesuffix('_s')}` of batches.",
            _pipelines(field),
        )
        for field in PIPELINE_TIMES
    ),
)


BUILD = Described(
    "build_info", "gauge", ("engine", "version"), "1; the labels are the engine and its version.", lambda _: {}
)


def described() -> list[tuple[str, str, str, str]]:
    """Name, kind, labels and meaning of all metrics, as they are exported."""
    return [
        (f"{_PREFIX}{one.name}{'_total' if one.kind == 'counter' else ''}", one.kind, ", ".join(one.labels), one.text)
        for one in (BUILD, *METRICS)
    ]


class Others:
    """Adds up what the parts without samples of their own count.

    A sum never falls, since Prometheus would take this for a restart. It keeps the counts of a part that was removed,
    or that has samples of its own now.
    """

    def __init__(self) -> None:
        self._last: dict[str, Mapping[str, Mapping[str, float]]] = {}
        self._sums: dict[str, Mapping[str, float]] = {}

    def add(self, metric: str, counts: Mapping[str, Mapping[str, float]]) -> Mapping[str, Mapping[str, float]]:
        """Return the counts of the first parts by name, and the sums of the others.

        Args:
            metric: name of the metric.
            counts: what each part has counted, by its name: its counts by name.
        """
        if len(counts) <= MOST_PARTS and metric not in self._sums:
            return counts
        names = sorted(counts)
        sums, last = self._sums.get(metric, {}), self._last.get(metric, {})
        for name in names[MOST_PARTS:]:
            sums = {one: sums.get(one, 0) + more for one, more in _increase(counts[name], last.get(name, {})).items()}
        self._last[metric], self._sums[metric] = counts, sums
        return {**{name: counts[name] for name in names[:MOST_PARTS]}, OTHERS: sums}


def _increase(now: Mapping[str, float], before: Mapping[str, float]) -> dict[str, float]:
    """Return by how much counts have grown; a count that has fallen belongs to a new part of the same name."""
    if any(now[name] < value for name, value in before.items()):
        before = {}
    return {name: value - before.get(name, 0) for name, value in now.items()}


def exposition(status: Status, others: Others) -> tuple[bytes, str]:
    """The metrics of this status in the text format of Prometheus, and their content type.

    A part that was removed has no samples any more. All calls for one engine need the same `others`.
    """
    from prometheus_client import exposition as text  # noqa: PLC0415  # only engines with the setting `http` have it
    from prometheus_client.registry import CollectorRegistry  # noqa: PLC0415  # the same

    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(status, others))
    return text.generate_latest(registry), text.CONTENT_TYPE_PLAIN_0_0_4


class _Collector:
    def __init__(self, status: Status, others: Others) -> None:
        self._status = status
        self._others = others

    def collect(self) -> Iterator[Any]:
        """All metrics that have a value."""
        yield _family(BUILD, {(self._status.name, version("correlator")): 1.0})
        for one in METRICS:
            values = one.values(self._status)
            if one.kind == "histogram":
                yield _histogram(one, self._others.add(one.name, one.histograms(self._status)))
            elif values:
                few = self._counts(one, values) if one.kind == "counter" else _few(values, one.others)
                yield _family(one, {(name,) if one.labels else (): value for name, value in few.items()})

    def _counts(self, one: Described, values: Mapping[str, float]) -> Mapping[str, float]:
        added = self._others.add(one.name, {name: {SUM: value} for name, value in values.items()})
        return {name: counts[SUM] for name, counts in added.items()}


def _few(values: Mapping[str, float], others: Callable[[Iterable[float]], float]) -> Mapping[str, float]:
    """The values of the first parts by name, and one value for the others."""
    if len(values) <= MOST_PARTS:
        return values
    names = sorted(values)
    shown = {name: values[name] for name in names[:MOST_PARTS]}
    return shown | {OTHERS: others(values[name] for name in names[MOST_PARTS:])}


def _histogram(one: Described, histograms: Mapping[str, Mapping[str, float]]) -> Any:
    from prometheus_client import core  # noqa: PLC0415  # as in `exposition`

    family = core.HistogramMetricFamily(f"{_PREFIX}{one.name}", one.text, labels=one.labels)
    for name, values in histograms.items():
        buckets = [(limit, count) for limit, count in values.items() if limit != SUM]
        family.add_metric([name] if one.labels else [], buckets, values[SUM])
    return family


def _family(one: Described, values: Mapping[tuple[str, ...], float]) -> Any:
    from prometheus_client import core  # noqa: PLC0415  # as in `exposition`

    made: Any = core.CounterMetricFamily if one.kind == "counter" else core.GaugeMetricFamily
    family = made(f"{_PREFIX}{one.name}", one.text, labels=one.labels)
    for labels, value in values.items():
        family.add_metric(labels, value)
    return family
