"""Each error of the library within a transaction leads to a new producer that reads the number, or to a refusal.

A stand-in for the library keeps what a cluster would: the messages of ended transactions, and the number.
"""

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import confluent_kafka as confluent
import pytest

from connectors.kafka.cluster import Rules
from connectors.kafka.sink import KafkaSink
from correlator import Reliability
from correlator.errors import ConnectionLost, SendRejected
from correlator.events import Message, Outgoing
from correlator.settings import SenderSettings
from tests.kafka_server import KafkaServer

TOPIC = "orders"
ERROR = confluent.KafkaError
ERRORS = {
    "_FENCED": ERROR._FENCED,
    "PRODUCER_FENCED": ERROR.PRODUCER_FENCED,
    "INVALID_PRODUCER_EPOCH": ERROR.INVALID_PRODUCER_EPOCH,
    "INVALID_PRODUCER_ID_MAPPING": ERROR.INVALID_PRODUCER_ID_MAPPING,
    "INVALID_TXN_STATE": ERROR.INVALID_TXN_STATE,
    "_CONFLICT": ERROR._CONFLICT,
    "_INCONSISTENT": ERROR._INCONSISTENT,
    "_STATE": ERROR._STATE,
    "_TIMED_OUT": ERROR._TIMED_OUT,
    "_PURGE_QUEUE": ERROR._PURGE_QUEUE,
    "NOT_COORDINATOR": ERROR.NOT_COORDINATOR,
    "COORDINATOR_NOT_AVAILABLE": ERROR.COORDINATOR_NOT_AVAILABLE,
    "COORDINATOR_LOAD_IN_PROGRESS": ERROR.COORDINATOR_LOAD_IN_PROGRESS,
}
PLACES = (
    "topics",
    "init",
    "begin",
    "produce",
    "flush",
    "flush bare",
    "delivery",
    "offsets",
    "commit",
    "committed",
    "numbers",
)
"""Where the error comes: before a call, as the result of a message, behind a commit, or as the number is read."""


class Cluster:
    """What a cluster keeps, and the error that comes once.

    Attributes:
        stored: the values of ended transactions.
        number: of the last one; `None` before the first.
        refuses: bodies of messages that it refuses.
        producers: how many there were.
        reads: how often the number was read.
    """

    def __init__(self) -> None:
        self.stored: list[bytes] = []
        self.number: int | None = None
        self.refuses: Collection[bytes] = ()
        self.producers = 0
        self.reads = 0
        self._error: confluent.KafkaError | None = None
        self._place = ""

    def fail(self, place: str, code: int) -> None:
        """Let the next call at this place fail."""
        self._place, self._error = place, confluent.KafkaError(code)

    def failed(self) -> bool:
        """Whether the error has come."""
        return self._error is None

    def at(self, place: str) -> confluent.KafkaError | None:
        """The error, if it comes here."""
        if place != self._place:
            return None
        error, self._error, self._place = self._error, None, ""
        return error

    def check(self, place: str) -> None:
        """Raise the error, if it comes here."""
        if (error := self.at(place)) is not None:
            raise confluent.KafkaException(error)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """Stands in for the library."""
    made = Cluster()
    monkeypatch.setattr(confluent, "Producer", lambda *_, **__: Producer(made))
    monkeypatch.setattr(confluent, "Consumer", lambda *_, **__: Consumer(made))
    monkeypatch.setattr("connectors.kafka.sink.Cluster", lambda *_: Questions())
    return made


class Producer:
    """A producer: at most the newest one can end a transaction."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._open: list[tuple[bytes, Callable[..., None]]] = []
        self._number: int | None = None
        self._me = 0

    def list_topics(self, _topic: str, _timeout_s: float) -> None:
        self._cluster.check("topics")

    def init_transactions(self, _timeout_s: float) -> None:
        self._cluster.check("init")
        self._cluster.producers += 1
        self._me = self._cluster.producers

    def begin_transaction(self) -> None:
        self._cluster.check("begin")

    def produce(self, _topic: str, value: bytes, _key: object, *, headers: object, on_delivery: Any) -> None:
        self._cluster.check("produce")
        self._open.append((value, on_delivery))

    def flush(self, _timeout_s: float) -> int:
        cluster = self._cluster
        cluster.check("flush")
        if (bare := cluster.at("flush bare")) is not None:
            raise bare  # type: ignore[misc]  # as the library does after a fatal error
        error = cluster.at("delivery")
        is_refused = any(value in cluster.refuses for value, _ in self._open)
        for value, settle in self._open:
            if value in cluster.refuses:
                settle(confluent.KafkaError(ERROR.INVALID_RECORD), None)
            elif error is not None or is_refused:
                settle(error or confluent.KafkaError(ERROR._PURGE_QUEUE), None)
        return 0

    def send_offsets_to_transaction(self, marks: Sequence[confluent.TopicPartition], *_: object) -> None:
        self._cluster.check("offsets")
        (mark,) = marks
        self._number = mark.offset

    def commit_transaction(self, _timeout_s: float) -> None:
        self._cluster.check("commit")
        assert self._me == self._cluster.producers, "a producer goes on that is shut out"
        self._cluster.stored += [value for value, _ in self._open]
        self._cluster.number = self._number
        self._open = []
        self._cluster.check("committed")

    def purge(self, *, blocking: bool) -> None:
        self._open = []

    def __len__(self) -> int:
        return 0


class Consumer:
    """Reads the number."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def consumer_group_metadata(self) -> object:
        return object()

    def committed(self, places: Sequence[confluent.TopicPartition], _timeout_s: float) -> object:
        self._cluster.check("numbers")
        self._cluster.reads += 1
        number = self._cluster.number
        return [
            confluent.TopicPartition(one.topic, 0, confluent.OFFSET_INVALID if number is None else number)
            for one in places
        ]

    def close(self) -> None:
        pass


class Questions:
    """Answers about topics."""

    def rules(self, names: Collection[str]) -> Mapping[str, Rules]:
        return {name: Rules() for name in names}

    def close(self) -> None:
        pass


@contextlib.contextmanager
def sink_of() -> Iterator[KafkaSink]:
    settings = SenderSettings(
        id="s", connection="k", destination=f"topic:{TOPIC}", reliability=Reliability.EXACTLY_ONCE
    )
    sink = KafkaServer.connection_to("127.0.0.1:9").sink(settings)
    sink.connect()
    yield sink
    sink.close()


def numbered(first: int, last: int) -> list[Outgoing]:
    return [Outgoing(n, "life", f"topic:{TOPIC}", Message(b"%d" % n)) for n in range(first, last + 1)]


def send(sink: KafkaSink, batch: Sequence[Outgoing]) -> tuple[Sequence[SendRejected | None], list[str]]:
    """Send as an engine does: after a lost connection connect and send again; returns what was lost, too."""
    lost: list[str] = []
    while True:
        try:
            return sink.send(batch), lost
        except ConnectionLost as error:
            lost.append(error.code)
            assert len(lost) < 3
            sink.connect()


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", ERRORS)
def test_a_new_producer_reads_the_number(cluster: Cluster, name: str, place: str) -> None:
    of_begin = place in ("topics", "init", "numbers")
    with sink_of() as sink:
        assert send(sink, numbered(1, 3)) == ([None] * 3, [])
        if of_begin:
            sink.close()
            sink.connect()
        before, reads = cluster.producers, cluster.reads
        cluster.fail(place, ERRORS[name])
        results, lost = send(sink, numbered(3, 6))
        assert (results, len(lost)) == ([None] * 4, 1)
        assert cluster.failed()
        assert cluster.producers == before + (2 if place == "numbers" else 1)
        assert cluster.reads == reads + 1
        assert send(sink, numbered(5, 8)) == ([None] * 4, [])
    assert cluster.stored == [b"%d" % n for n in range(1, 9)]
    assert cluster.number == 8


@pytest.mark.parametrize("code", [ERROR.INVALID_RECORD, ERROR._INVALID_DIFFERENT_RECORD])
def test_a_refused_message_is_the_only_one_that_is_not_stored(cluster: Cluster, code: int) -> None:
    cluster.refuses = [b"3"]
    with sink_of() as sink:
        cluster.fail("delivery", code)
        results, lost = send(sink, numbered(1, 6))
        again, _ = send(sink, numbered(1, 6))
    for each in (results, again):
        assert [None if one is None else one.code for one in each] == [None, None, "E8102", None, None, None]
    assert lost == []
    assert cluster.stored == [b"%d" % n for n in range(1, 7) if n != 3]
    assert cluster.number == 6


@pytest.mark.parametrize("place", ["offsets", "commit"])
def test_a_refusal_of_no_message_refuses_none(cluster: Cluster, place: str) -> None:
    with sink_of() as sink:
        cluster.fail(place, ERROR.INVALID_RECORD)
        assert send(sink, numbered(1, 3)) == ([None] * 3, ["E7025"])
    assert cluster.stored == [b"1", b"2", b"3"]
