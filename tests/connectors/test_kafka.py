"""The Kafka connector against a real broker: numbers and transactions of senders, groups and offsets of receivers."""

import contextlib
import dataclasses
import itertools
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Any

import confluent_kafka as confluent
import pytest

from connectors.kafka.cluster import Cluster
from connectors.kafka.examination import _of_cluster
from connectors.kafka.member import GroupMember
from connectors.kafka.offsets import GroupOffsets
from connectors.kafka.sink import KafkaSink
from connectors.kafka.source import KafkaSource
from correlator import Reliability
from correlator.connector import Chunk
from correlator.errors import ConnectionLost, SendRejected
from correlator.events import Headers, Message, Outgoing
from correlator.settings import ReceiverSettings, SenderSettings
from correlator.testing.contract import PATIENCE_S, bodies, take, tokens
from tests.kafka_server import ANSWER_S, KafkaServer
from tests.servers import free_port
from tests.waiting import wait_until

pytestmark = pytest.mark.kafka


def life(topic: str) -> str:
    """The source id of a sender that no other test has."""
    return f"host:17:{topic}:S01"


def name_of(topic: str) -> str:
    """The name of its transactions, and of the group with its number."""
    return f"correlator-{life(topic)}"


def sender(
    topic: str | None, reliability: Reliability = Reliability.EXACTLY_ONCE, max_outstanding: int = 1000
) -> SenderSettings:
    destination = None if topic is None else f"topic:{topic}"
    return SenderSettings(
        id="s", connection="k", destination=destination, reliability=reliability, max_outstanding=max_outstanding
    )


def receiver(topic: str, name: str = "r", size: int = 1000, **options: object) -> ReceiverSettings:
    return ReceiverSettings(id=name, connection="k", destination=f"topic:{topic}", max_batch_size=size, options=options)


def batch(topic: str, first: int, *contents: bytes | Message, of: str = "") -> list[Outgoing]:
    return [
        Outgoing(number, life(of or topic), f"topic:{topic}", one if isinstance(one, Message) else Message(one))
        for number, one in enumerate(contents, first)
    ]


def numbered(topic: str, first: int, last: int) -> list[Outgoing]:
    """Messages with their numbers as bodies, and with unique ids, as an engine sends them."""
    messages = [Message(b"%d" % n, {"uniqueMessageId": f"{n}:{life(topic)}"}) for n in range(first, last + 1)]
    return batch(topic, first, *messages)


def texts(first: int, last: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, last + 1)]


@contextlib.contextmanager
def sink_of(kafka: KafkaServer, topic: str | None, settings: SenderSettings | None = None) -> Iterator[KafkaSink]:
    sink = kafka.connection().sink(settings or sender(topic))
    try:
        sink.connect()
        yield sink
    finally:
        sink.close()


@contextlib.contextmanager
def source_of(kafka: KafkaServer, settings: ReceiverSettings, **client: object) -> Iterator[KafkaSource]:
    source = kafka.connection(client=client).source(settings)
    try:
        source.connect()
        yield source
    finally:
        source.close()


def values(kafka: KafkaServer, topic: str, *, committed: bool = True) -> list[bytes | None]:
    return [record.value() for record in kafka.records(topic, committed=committed)]


def stored(kafka: KafkaServer, group: str, topic: str) -> dict[int, int]:
    """The offsets of a group by partition of a topic. Other tests of the run may have used the group for other topics."""
    return {partition: offset for (name, partition), offset in kafka.offsets(group).items() if name == topic}


def number_is(kafka: KafkaServer, topic: str, number: int) -> bool:
    """Wait until the number of a sender is this one: a commit returns before each part of the cluster knows of it."""
    wait_until(lambda: kafka.offsets(name_of(topic)).get((topic, 0)) == number)
    return True


def codes(results: Sequence[SendRejected | None]) -> list[str | None]:
    return [None if one is None else one.code for one in results]


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the connector has logged."""
    return [record.getMessage() for record in caplog.records if record.name == "connectors.kafka"]


def lost_by(source: KafkaSource) -> ConnectionLost:
    """The `ConnectionLost` that ends receiving."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        try:
            source.receive(1, 0.2)
        except ConnectionLost as error:
            return error
    raise AssertionError("nothing ends")


def producer(kafka: KafkaServer, name: str) -> confluent.Producer:
    """A producer of another program, or of an earlier life, with transactions."""
    made = confluent.Producer({"bootstrap.servers": kafka.servers, "transactional.id": name})
    made.init_transactions(ANSWER_S)
    return made


def offer(one: confluent.Producer, topic: str, *contents: bytes) -> None:
    """Put records into a transaction, and wait until the broker has them."""
    one.begin_transaction()
    for content in contents:
        one.produce(topic, content)
    assert one.flush(ANSWER_S) == 0


def earlier_life(kafka: KafkaServer, topic: str) -> confluent.Producer:
    """The producer of an earlier life: it has stored messages 1 to 3, and has a transaction with 4 and 5."""
    earlier = producer(kafka, name_of(topic))
    consumer = confluent.Consumer({"bootstrap.servers": kafka.servers, "group.id": name_of(topic)})
    group = consumer.consumer_group_metadata()
    consumer.close()
    offer(earlier, topic, *texts(1, 3))
    earlier.send_offsets_to_transaction([confluent.TopicPartition(topic, 0, 3)], group, ANSWER_S)
    earlier.commit_transaction(ANSWER_S)
    offer(earlier, topic, b"4", b"5")
    earlier.send_offsets_to_transaction([confluent.TopicPartition(topic, 0, 5)], group, ANSWER_S)
    return earlier


def expiring(
    kafka: KafkaServer,
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
    place: str,
    times: int,
    then: Callable[[], object] = lambda: None,
) -> list[str]:
    """Let so many transactions expire before this call of their producer, and do something after each; returns the
    places where they did."""
    late: list[str] = []

    class Late(confluent.Producer):
        def begin_transaction(self) -> None:
            self._produced = 0
            super().begin_transaction()

        def produce(self, *arguments: Any, **options: Any) -> None:
            self._produced += 1
            if self._produced == 3:
                self._expire("produce")
            super().produce(*arguments, **options)

        def send_offsets_to_transaction(self, *arguments: Any) -> None:
            self._expire("offsets")
            super().send_offsets_to_transaction(*arguments)

        def commit_transaction(self, *arguments: Any) -> None:
            self._expire("commit")
            super().commit_transaction(*arguments)

        def _expire(self, now: str) -> None:
            if now == place and len(late) < times:
                assert self.flush(ANSWER_S) == 0
                with closing(Cluster("t", kafka.connection()._broker)) as cluster:
                    wait_until(lambda: not cluster.held_back(cluster.topic(topic)))
                late.append(now)
                then()

    monkeypatch.setattr(confluent, "Producer", Late)
    return late


@contextlib.contextmanager
def short_transactions(kafka: KafkaServer, topic: str) -> Iterator[KafkaSink]:
    """A sink whose transactions expire after two seconds."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("connectors.kafka.broker._TRANSACTION_MS", 2000)
        with closing(kafka.connection(timeout_s=2).sink(sender(topic))) as sink:
            sink.connect()
            yield sink


# --- senders ---


def test_a_batch_and_its_number_are_one_transaction(kafka: KafkaServer) -> None:
    topic = kafka.topic()
    with sink_of(kafka, topic) as sink:
        assert codes(sink.send(numbered(topic, 1, 3))) == [None] * 3
        assert number_is(kafka, topic, 3)
        assert codes(sink.send(numbered(topic, 2, 5))) == [None] * 4
    with sink_of(kafka, topic) as sink:
        sink.send(numbered(topic, 4, 7))
    assert values(kafka, topic) == texts(1, 7)
    assert number_is(kafka, topic, 7)


def test_the_open_transaction_of_an_earlier_life_is_ended_before_the_number_is_read(kafka: KafkaServer) -> None:
    topic = kafka.topic()
    earlier = earlier_life(kafka, topic)
    with sink_of(kafka, topic) as sink:
        sink.send(numbered(topic, 2, 6))
    with pytest.raises(confluent.KafkaException, match="_FENCED"):
        earlier.commit_transaction(ANSWER_S)
    assert values(kafka, topic) == texts(1, 6)
    assert values(kafka, topic, committed=False) == [*texts(1, 5), *texts(4, 6)]


def test_what_an_earlier_life_commits_at_the_last_moment_counts(
    kafka: KafkaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = kafka.topic()
    earlier = earlier_life(kafka, topic)

    class Next(confluent.Producer):
        def init_transactions(self, *arguments: Any) -> None:
            earlier.commit_transaction(ANSWER_S)
            super().init_transactions(*arguments)

    monkeypatch.setattr(confluent, "Producer", Next)
    with closing(kafka.connection(timeout_s=2).sink(sender(topic))) as sink:
        sink.connect()
        sink.send(numbered(topic, 2, 6))
    assert values(kafka, topic, committed=False) == texts(1, 6)


def test_a_producer_that_is_shut_out_says_so_and_stores_nothing_twice(kafka: KafkaServer) -> None:
    topic = kafka.topic()
    with sink_of(kafka, topic) as one, sink_of(kafka, topic) as other:
        one.send(numbered(topic, 1, 2))
        other.send(numbered(topic, 1, 4))
        with pytest.raises(ConnectionLost, match=r"E7061 senders\.s: another producer has taken over"):
            one.send(numbered(topic, 3, 5))
        with pytest.raises(ConnectionLost, match="E7001"):
            one.send(numbered(topic, 3, 5))
        one.connect()
        one.send(numbered(topic, 3, 5))
    assert values(kafka, topic) == texts(1, 5)


@pytest.mark.parametrize("place", ["produce", "offsets", "commit"])
def test_a_transaction_that_expired_is_no_rival(
    kafka: KafkaServer, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    topic = kafka.topic()
    late = expiring(kafka, topic, monkeypatch, place, times=1)
    with short_transactions(kafka, topic) as sink:
        assert codes(sink.send(numbered(topic, 1, 3))) == [None] * 3
        assert late == [place]
        assert codes(sink.send(numbered(topic, 2, 5))) == [None] * 4
    assert values(kafka, topic) == texts(1, 5)
    assert number_is(kafka, topic, 5)


def test_transactions_that_always_expire_are_reported(kafka: KafkaServer, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = kafka.topic()
    late = expiring(kafka, topic, monkeypatch, "offsets", times=2)
    with short_transactions(kafka, topic) as sink:
        with pytest.raises(ConnectionLost, match=r"E7023 senders\.s: a transaction lasted .* ends one after 2 s"):
            sink.send(numbered(topic, 1, 3))
        assert late == ["offsets"] * 2
        sink.connect()
        assert codes(sink.send(numbered(topic, 1, 3))) == [None] * 3
    assert values(kafka, topic) == texts(1, 3)


def test_a_rival_while_a_transaction_expired_is_told(kafka: KafkaServer, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = kafka.topic()
    with sink_of(kafka, topic) as other:
        late = expiring(kafka, topic, monkeypatch, "commit", 1, lambda: other.send(numbered(topic, 1, 5)))
        with short_transactions(kafka, topic) as sink:
            with pytest.raises(ConnectionLost, match=r"E7061 senders\.s: another producer has taken over"):
                sink.send(numbered(topic, 1, 3))
            assert late == ["commit"]
    assert values(kafka, topic) == texts(1, 5)


def test_two_senders_with_one_source_are_both_told(kafka: KafkaServer) -> None:
    topic = kafka.topic()
    with sink_of(kafka, topic) as one, sink_of(kafka, topic) as other:
        one.send(numbered(topic, 1, 1))
        other.send(numbered(topic, 2, 2))
        for number, sink in zip(range(3, 9), itertools.cycle((one, other)), strict=False):
            with pytest.raises(ConnectionLost, match="E7061"):
                sink.send(numbered(topic, number, number))
            sink.connect()
            assert codes(sink.send(numbered(topic, number, number))) == [None]
    assert values(kafka, topic) == texts(1, 8)


def test_refused_messages_are_refused_alone_and_again(kafka: KafkaServer) -> None:
    topic = kafka.topic(cleanup_policy="compact")
    messages: list[bytes | Message] = [Message(b"%d" % n, {}, f"key {n}") for n in range(50)]
    messages[7] = Message(b"no key")
    messages[20] = Message(b"x" * 2_000_000, {}, "too large")
    messages[30] = Message(b"later", {}, "k", None, Headers(delivery_delay_ms=1000))
    wanted: list[str | None] = [None] * 50
    wanted[7], wanted[20], wanted[30] = "E8102", "E8106", "E8110"
    sent = batch(topic, 1, *messages)
    sent[40] = Outgoing(41, life(topic), "queue:nowhere", Message(b"x"))
    wanted[40] = "E8104"
    with sink_of(kafka, topic) as sink:
        assert codes(sink.send(sent)) == wanted
        assert codes(sink.send(sent)) == wanted
    with sink_of(kafka, topic) as sink:
        assert codes(sink.send(sent[5:10])) == wanted[5:10]
        assert codes(sink.send(sent[8:])) == wanted[8:]
    assert values(kafka, topic) == [b"%d" % n for n in range(50) if n not in (7, 20, 30, 40)]


@pytest.mark.parametrize("batches", [[(1, 2, 3)], [(1, 2), (3,)], [(2,), (3,)]])
def test_a_message_that_would_fit_later_stays_refused(kafka: KafkaServer, batches: list[tuple[int, ...]]) -> None:
    """A sender was killed before its engine had the dead letter, and the topic takes larger messages since."""
    topic = kafka.topic(max_message_bytes="1000")
    first = batches[0][0]
    bodies = {1: b"one", 2: b"x" * 2000, 3: b"three"}
    with sink_of(kafka, topic) as sink:
        for one in batches:
            sink.send(batch(topic, one[0], *[bodies[number] for number in one]))
    kafka.configure(topic, max_message_bytes="100000")
    with sink_of(kafka, topic) as sink:
        results = codes(sink.send(batch(topic, first, *[bodies[number] for number in range(first, 4)])))
        assert results == ["E8102" if number == 2 else None for number in range(first, 4)]
        assert codes(sink.send(batch(topic, 4, b"four"))) == [None]
    assert values(kafka, topic) == [*([b"one"] if first == 1 else []), b"three", b"four"]


def test_many_messages_that_would_fit_later_stay_refused(kafka: KafkaServer) -> None:
    """More than a note can hold: which of the older ones are stored, only the topic shows."""
    topic = kafka.topic(max_message_bytes="1000")
    ids = [{"uniqueMessageId": f"{number}:{life(topic)}"} for number in range(1, 451)]
    sent = batch(topic, 1, *[Message(b"%d" % n if n % 2 else b"x" * 2000, id_) for n, id_ in enumerate(ids, 1)])
    with sink_of(kafka, topic) as sink:
        assert codes(sink.send(sent)) == [None, "E8106"] * 225
    kafka.configure(topic, max_message_bytes="100000")
    with sink_of(kafka, topic) as sink:
        assert codes(sink.send(sent)) == [None, "E8102"] * 225
        assert codes(sink.send(numbered(topic, 451, 451))) == [None]
    assert values(kafka, topic) == texts(1, 451)[::2]


def test_without_transactions_refused_messages_are_refused_alone(kafka: KafkaServer) -> None:
    topic = kafka.topic(cleanup_policy="compact")
    messages: list[bytes | Message] = [Message(b"%d" % n, {}, f"key {n}") for n in range(20)]
    messages[7] = Message(b"no key")
    with sink_of(kafka, topic, sender(topic, Reliability.AT_LEAST_ONCE)) as sink:
        results = sink.send(batch(topic, 1, *messages))
        assert codes(results) == [None if n != 7 else "E8102" for n in range(20)]
        assert codes(sink.send(batch(topic, 21, Message(b"20", {}, "k")))) == [None]
    assert values(kafka, topic) == [b"%d" % n for n in range(21) if n != 7]
    assert kafka.offsets(name_of(topic)).get((topic, 0)) is None


@pytest.mark.parametrize("reliability", [Reliability.EXACTLY_ONCE, Reliability.AT_LEAST_ONCE])
def test_what_only_the_broker_knows_to_be_wrong_is_found(kafka: KafkaServer, reliability: Reliability) -> None:
    topic = kafka.topic()
    messages: list[bytes | Message] = [Message(b"%d" % n, {}, f"key {n}") for n in range(1, 7)]
    messages[2] = messages[5] = Message(b"no key")
    wanted = [None if n not in (3, 6) else "E8102" for n in range(1, 7)]
    with sink_of(kafka, topic, sender(topic, reliability)) as sink:
        kafka.configure(topic, cleanup_policy="compact")
        sent = batch(topic, 1, *messages)
        assert codes(sink.send(sent)) == wanted
        assert codes(sink.send(batch(topic, 7, Message(b"7", {}, "k")))) == [None]
    kafka.configure(topic, cleanup_policy="delete")
    with sink_of(kafka, topic) as sink:
        if reliability == Reliability.EXACTLY_ONCE:
            assert codes(sink.send(sent)) == wanted, "refused first, then taken for a repeat"
    assert values(kafka, topic) == [b"1", b"2", b"4", b"5", b"7"]


def test_a_large_batch_is_one_transaction(kafka: KafkaServer) -> None:
    topic, number = kafka.topic(), 5000
    with sink_of(kafka, topic) as sink:
        assert codes(sink.send(numbered(topic, 1, number))) == [None] * number
        assert codes(sink.send(numbered(topic, 1, number))) == [None] * number
    records = kafka.records(topic)
    assert [record.value() for record in records] == texts(1, number)
    assert [record.offset() for record in records] == list(range(number)), "no end of a transaction in between"


@pytest.mark.parametrize("reliability", [Reliability.EXACTLY_ONCE, Reliability.AT_LEAST_ONCE])
def test_one_refused_message_of_a_large_batch_is_found_without_waiting_for_a_time_out(
    kafka: KafkaServer, reliability: Reliability
) -> None:
    topic, number = kafka.topic(), 5000
    messages: list[bytes | Message] = [Message(text, {}, "key") for text in texts(1, number)]
    messages[3000] = Message(b"no key")
    with closing(kafka.connection(timeout_s=300).sink(sender(topic, reliability))) as sink:
        sink.connect()
        kafka.configure(topic, cleanup_policy="compact")
        began_s = time.monotonic()
        results = codes(sink.send(batch(topic, 1, *messages)))
        assert time.monotonic() - began_s < 150, "it waited for a time-out"
    assert results == [None if at != 3000 else "E8102" for at in range(number)]
    stored, others = values(kafka, topic), [text for text in texts(1, number) if text != b"3001"]
    if reliability is Reliability.EXACTLY_ONCE:
        assert stored == others
    else:  # what the broker refuses together with the message is sent again, after what it has stored meanwhile
        assert sorted(stored) == sorted(others)


@pytest.mark.parametrize("reported", [True, False], ids=["reported", "not yet reported"])
def test_a_message_that_is_refused_while_others_are_produced_is_found(
    kafka: KafkaServer, monkeypatch: pytest.MonkeyPatch, *, reported: bool
) -> None:
    """The library then takes no further record into the transaction, whether or not it has reported the refusal."""
    waited: list[bool] = []

    class Slow(confluent.Producer):
        """Produces its first record, and returns when the broker has refused this record."""

        def produce(self, *arguments: Any, **options: Any) -> None:
            produce = super().produce
            produce(*arguments, **options)
            if waited:
                return
            waited.append(True)
            if reported:
                self.flush(ANSWER_S)
                return
            with pytest.raises(confluent.KafkaException, match="Erroneous state"):
                wait_until(lambda: produce(*arguments, **options), ANSWER_S)

    topic = kafka.topic()
    with sink_of(kafka, topic) as sink:
        kafka.configure(topic, cleanup_policy="compact")
        monkeypatch.setattr(confluent, "Producer", Slow)
        messages = [Message(b"no key"), Message(b"2", {}, "key"), Message(b"3", {}, "key")]
        assert codes(sink.send(batch(topic, 1, *messages))) == ["E8102", None, None]
    assert waited
    assert values(kafka, topic) == [b"2", b"3"]


def test_the_limit_is_that_of_the_topic(kafka: KafkaServer) -> None:
    large, small = kafka.topic(max_message_bytes="2000000"), kafka.topic(max_message_bytes="5000")
    with sink_of(kafka, None) as sink:
        assert codes(sink.send(batch(large, 1, b"x" * 1_500_000))) == [None]
        assert codes(sink.send(batch(small, 2, b"x" * 5000, *[b"y" * 1000] * 20, of=large))) == ["E8106", *[None] * 20]
        assert codes(sink.send(batch(large, 23, b"x" * 1_999_000))) == [None]
        assert codes(sink.send(batch(large, 24, b"x" * 2_000_000))) == ["E8106"]
    assert len(values(kafka, small)) == 20


def test_a_limit_that_was_lowered_is_read_again(kafka: KafkaServer) -> None:
    topic = kafka.topic()
    with sink_of(kafka, topic) as sink:
        sink.send(batch(topic, 1, b"first"))
        kafka.configure(topic, max_message_bytes="1000")
        with pytest.raises(ConnectionLost, match="E7064"):
            sink.send(batch(topic, 2, b"x" * 3000, b"second"))
        sink.connect()
        assert codes(sink.send(batch(topic, 2, b"x" * 3000, b"second"))) == ["E8106", None]
    assert values(kafka, topic) == [b"first", b"second"]


def test_if_the_number_is_gone_the_topic_says_what_it_has(kafka: KafkaServer, caplog: pytest.LogCaptureFixture) -> None:
    topic = kafka.topic(2)
    with sink_of(kafka, topic) as sink:
        for number in range(1, 21, 2):
            sink.send(numbered(topic, number, number + 1))
    kafka.delete_group(name_of(topic))
    kafka.publish(topic, {"value": b"foreign", "headers": {"uniqueMessageId": f"999999:{life(topic)}"}})
    with sink_of(kafka, topic) as sink:
        assert not told(caplog)
        sink.send(numbered(topic, 5, 22))
        sink.send(numbered(topic, 22, 22))
    source = life(topic)
    what = f"the cluster has forgotten the number of {source}; the last messages of the topic '{topic}' go up to 20"
    assert told(caplog) == [f"senders.s: {what}"]
    found = values(kafka, topic)
    assert sorted(found, key=lambda one: (len(one), one)) == [*texts(1, 22), b"foreign"]
    assert number_is(kafka, topic, 22)


def test_each_topic_of_a_sender_has_the_number(kafka: KafkaServer) -> None:
    one, other = kafka.topic(), kafka.topic()
    first = [*batch(one, 1, b"1"), *batch(other, 2, b"2", of=one), *batch(one, 3, b"3")]
    with sink_of(kafka, None) as sink:
        sink.send(first)
        sink.send(batch(one, 4, b"4"))
    wait_until(lambda: kafka.offsets(name_of(one)) == {(one, 0): 4, (other, 0): 3})
    kafka.delete_topic(one)
    kafka.make_topic(one)
    with sink_of(kafka, None) as sink:
        sink.send([*first, *batch(one, 4, b"4"), *batch(other, 5, b"5", of=one)])
    assert values(kafka, other) == [b"2", b"5"]


def test_a_topic_that_is_missing_is_waited_for(kafka: KafkaServer) -> None:
    with pytest.raises(ConnectionLost, match=r"E7010 senders\.s: .* Create the topic"), sink_of(kafka, "made-later"):
        pass
    with sink_of(kafka, None) as sink:
        with pytest.raises(ConnectionLost, match="E7010"):
            sink.send(batch("made-later", 1, b"1"))
        kafka.make_topic("made-later")
        sink.connect()
        sink.send(batch("made-later", 1, b"1"))
    assert values(kafka, "made-later") == [b"1"]


def test_nobody_answers() -> None:
    nowhere = KafkaServer.connection_to(f"127.0.0.1:{free_port()}", timeout_s=1)
    for end in (nowhere.sink(sender("t")), nowhere.source(receiver("t"))):
        with pytest.raises(ConnectionLost, match=r"E7001 .* no answer from 127\.0\.0\.1:.*refused"):
            end.connect()
        end.close()


def test_a_frozen_broker_stores_nothing_twice(kafka: KafkaServer) -> None:
    topic = kafka.topic()
    sink = kafka.connection(timeout_s=1).sink(sender(topic))
    send_at_last(sink, numbered(topic, 1, 3))
    with kafka.frozen():
        with pytest.raises(ConnectionLost, match="E7023"):
            sink.send(numbered(topic, 4, 6))
        with pytest.raises(ConnectionLost, match="E7023"):
            sink.connect()
    send_at_last(sink, numbered(topic, 4, 6))
    sink.close()
    assert values(kafka, topic) == texts(1, 6)


def send_at_last(sink: KafkaSink, messages: list[Outgoing]) -> None:
    """As the engine does: again and again, until the broker answers in time."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            sink.connect()
            sink.send(messages)
            break
        except ConnectionLost:
            assert time.monotonic() < deadline


# --- receivers ---


def test_what_was_aborted_does_not_come_and_the_end_is_reached(kafka: KafkaServer) -> None:
    topic = kafka.topic()
    other = producer(kafka, f"other of {topic}")
    for number in range(1, 6):
        offer(other, topic, b"aborted %d" % number)
        other.abort_transaction(ANSWER_S)
        offer(other, topic, b"%d" % number)
        other.commit_transaction(ANSWER_S)
    with source_of(kafka, receiver(topic, "ends")) as source:
        chunks = take(source, 5)
        assert bodies(chunks) == texts(1, 5)
        assert not source.receive(1, 0.2).messages
        source.acknowledge(tokens(chunks))
        behind = source.backlog()
        assert behind is not None
        assert behind.messages == 0
    assert stored(kafka, "ends", topic) == {0: 20}


def test_the_acknowledged_offset_is_that_of_the_next_message(kafka: KafkaServer) -> None:
    topic = kafka.topic()
    kafka.publish(topic, *[{"value": text} for text in texts(1, 3)])
    with source_of(kafka, receiver(topic, "next")) as source:
        chunks = take(source, 3)
        source.acknowledge(tokens(chunks)[:2])
    assert stored(kafka, "next", topic) == {0: 2}


def partitions(source: KafkaSource) -> list[int]:
    assert source._member is not None
    return [number for _, number in source._member.assigned]


def both_have_partitions(one: KafkaSource, other: KafkaSource) -> tuple[list[Chunk], list[Chunk]]:
    """Receive by both until each has one of two partitions; returns what came."""
    of_one: list[Chunk] = []
    of_other: list[Chunk] = []
    deadline = time.monotonic() + PATIENCE_S
    while not (len(partitions(one)) == len(partitions(other)) == 1):
        assert time.monotonic() < deadline
        of_one.append(one.receive(100, 0.05))
        of_other.append(other.receive(100, 0.05))
    return of_one, of_other


def test_a_late_acknowledgement_of_a_partition_that_moved_has_no_effect(kafka: KafkaServer) -> None:
    topic = kafka.topic(2)
    connection = kafka.connection(timeout_s=1, client={"heartbeat.interval.ms": 100})
    kafka.publish(topic, *[{"value": b"%d of %d" % (at, p), "partition": p} for p in (0, 1) for at in range(10)])
    one = connection.source(receiver(topic, "moves"))
    other = connection.source(receiver(topic, "moves"))
    try:
        one.connect()
        held = take(one, 20)
        other.connect()
        _, of_other = both_have_partitions(one, other)
        of_other += take(other, 10 - len(bodies(of_other)))
        (moved,) = partitions(other)
        one.acknowledge(tokens(held))
        wait_until(lambda: stored(kafka, "moves", topic) == {1 - moved: 10, moved: 0})
        assert bodies(of_other) == [b"%d of %d" % (at, moved) for at in range(10)]
        other.acknowledge(tokens(of_other)[:4])
        other.close()
        deadline = time.monotonic() + PATIENCE_S
        again: list[bytes] = []
        while len(again) < 6:
            assert time.monotonic() < deadline
            again += bodies([one.receive(100, 0.1)])
        one.acknowledge(tokens(held))
        assert again == [b"%d of %d" % (at, moved) for at in range(4, 10)]
        assert kafka.offsets("moves")[topic, moved] == 4
    finally:
        one.close()
        other.close()


def test_members_that_come_and_go_lose_nothing(kafka: KafkaServer) -> None:
    """Three members join and leave again and again; none of them loses its connection by that."""
    topic, number = kafka.topic(6), 3000
    kafka.publish(topic, *[{"value": text, "key": text} for text in texts(1, number)])
    seen: set[str] = set()
    failures: list[BaseException] = []

    def member() -> None:
        client = {"session.timeout.ms": 6000, "heartbeat.interval.ms": 100}
        source = kafka.connection(timeout_s=1, client=client).source(receiver(topic, "changing", size=20))
        deadline = time.monotonic() + PATIENCE_S
        try:
            while len(seen) < number and time.monotonic() < deadline and not failures:
                source.connect()
                for _ in range(20):
                    chunk = source.receive(20, 0.05)
                    seen.update(str(message.properties["uniqueMessageId"]) for message in chunk.messages)
                    source.acknowledge(chunk.tokens)
        except BaseException as error:  # noqa: BLE001 - the main thread reports it
            failures.append(error)
        source.close()

    threads = [threading.Thread(target=member) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(seen) == number
    assert sum(stored(kafka, "changing", topic).values()) == number


def test_an_offset_that_is_refused_while_members_change_is_committed_again(kafka: KafkaServer) -> None:
    topic = kafka.topic()
    kafka.publish(topic, {"value": b"1"})
    with source_of(kafka, receiver(topic, "refused")) as source:
        chunks = take(source, 1)
        member = source._member
        assert member is not None
        source.acknowledge(tokens(chunks))
        wait_until(lambda: not source.receive(1, 0.05).messages and not member._unanswered)
        member._unanswered += 1
        refusal = confluent.KafkaError(confluent.KafkaError.ILLEGAL_GENERATION)
        member._on_commit(refusal, [confluent.TopicPartition(topic, 0, 0)])
        source.receive(1, 0.0)
        assert member._unanswered == 1
        wait_until(lambda: not source.receive(1, 0.05).messages and not member._unanswered)
    assert stored(kafka, "refused", topic) == {0: 1}


def test_what_retention_has_removed_is_never_left_out_silently(kafka: KafkaServer) -> None:
    topic = kafka.topic()
    kafka.publish(topic, *[{"value": text} for text in texts(1, 10)])
    with source_of(kafka, receiver(topic, "slow")) as source:
        source.acknowledge(tokens(take(source, 2)))
    kafka.delete_records(topic, 5)
    source = kafka.connection().source(receiver(topic, "slow"))
    with pytest.raises(
        ConnectionLost, match=r"E7062 .* is at offset 2 of partition 0 of '.*', which holds offsets 5 to 10"
    ):
        source.connect()


def test_what_retention_removes_while_a_receiver_holds_it_is_not_left_out_silently(kafka: KafkaServer) -> None:
    topic = kafka.topic()
    kafka.publish(topic, *[{"value": text} for text in texts(1, 10)])
    with source_of(kafka, receiver(topic, "holds")) as source:
        held = take(source, 10)
        kafka.delete_records(topic, 5)
        source.reject(tokens(held)[:2])
        lost = lost_by(source)
    assert lost.code == "E7062", lost


def test_a_topic_that_was_made_again_is_read_from_its_beginning(kafka: KafkaServer) -> None:
    topic = kafka.topic()
    kafka.publish(topic, *[{"value": text} for text in texts(1, 3)])
    with source_of(kafka, receiver(topic, "again", start="latest")) as source:
        kafka.publish(topic, {"value": b"old"})
        chunks = take(source, 1)
        old = chunks[0].messages[0].properties["uniqueMessageId"]
        kafka.delete_topic(topic)
        kafka.make_topic(topic)
        kafka.publish(topic, *[{"value": text} for text in texts(1, 8)])
        source.acknowledge(tokens(chunks))  # an offset of the old topic, for the new one
        # While the new topic has fewer messages than were acknowledged in the old one, the offset is told instead.
        assert re.search(
            r"^E7018 .* was deleted|^E7062 .* is at offset [34] of partition 0 of .*, which holds offsets 0 to [0-3]\b",
            str(lost_by(source)),
        )
        with pytest.raises(ConnectionLost, match=r"W7020 .* was deleted and made again"):
            source.connect()
        source.connect()
        chunks = take(source, 8)
        assert bodies(chunks) == texts(1, 8)
        assert old not in [one.properties["uniqueMessageId"] for chunk in chunks for one in chunk.messages]


def test_an_offset_of_the_old_topic_in_one_partition_is_reported_once(kafka: KafkaServer) -> None:
    topic = kafka.topic(2)
    kafka.publish(topic, *[{"value": b"%d" % at, "partition": at} for at in (0, 1)])
    settings = receiver(topic, "late")
    with source_of(kafka, settings) as source:
        source.acknowledge(tokens(take(source, 2)))
    other = confluent.Consumer({"bootstrap.servers": kafka.servers, "group.id": "late"})
    other.commit(offsets=[confluent.TopicPartition(topic, 1, 1, "AAAAAAAAAAAAAAAAAAAAAQ")], asynchronous=False)
    other.close()
    source = kafka.connection().source(settings)
    with pytest.raises(ConnectionLost, match="W7020"):
        source.connect()
    source.close()
    with source_of(kafka, settings) as source:
        assert bodies(take(source, 1)) == [b"1"], "partition 1 begins anew, partition 0 goes on"


def test_where_a_new_group_begins(kafka: KafkaServer) -> None:
    topic = kafka.topic()
    kafka.publish(topic, {"value": b"1", "timestamp": 1_000}, {"value": b"2", "timestamp": 86_400_000})
    latest = kafka.connection().source(receiver(topic, "latest", start="latest"))
    latest.connect()
    latest.close()
    future = kafka.connection().source(receiver(topic, "future", start="2100-01-01T00:00:00Z"))
    future.connect()
    future.close()
    kafka.publish(topic, {"value": b"3", "timestamp": 86_500_000})
    with source_of(kafka, receiver(topic, "earliest")) as source:
        assert bodies(take(source, 3)) == texts(1, 3)
    with source_of(kafka, receiver(topic, "time", start="1970-01-02T00:00:00Z")) as source:
        assert bodies(take(source, 2)) == texts(2, 3)
    for name in ("latest", "future"):
        with source_of(kafka, receiver(topic, name, start="committed")) as source:
            assert bodies(take(source, 1)) == texts(3, 3)
    source = kafka.connection().source(receiver(topic, "new", start="committed"))
    with pytest.raises(ConnectionLost, match=r"E7063 receivers\.new: the group 'new' has no offset for the topic"):
        source.connect()


def test_a_group_begins_at_given_offsets(kafka: KafkaServer) -> None:
    topic = kafka.topic(3)
    kafka.publish(topic, *[{"value": b"%d" % n, "partition": p} for p in range(3) for n in range(10 * p, 10 * p + 4)])
    with source_of(kafka, receiver(topic, "given", start={"0": 3, 1: 4})) as source:
        chunks = take(source, 5)
        assert sorted(bodies(chunks)) == [b"20", b"21", b"22", b"23", b"3"]
        kafka.publish(topic, {"value": b"14", "partition": 1})
        assert bodies(take(source, 1)) == [b"14"]
        source.acknowledge(tokens(chunks))
    assert stored(kafka, "given", topic) == {0: 4, 1: 4, 2: 4}
    with source_of(kafka, receiver(topic, "given", start={0: 0})) as source:
        assert bodies(take(source, 1)) == [b"14"], "the group has begun"


@pytest.mark.parametrize(
    ("start", "error"),
    [
        ({0: 1}, r"E7062 receivers\.r: the receiver is to start at offset 1 .* which holds offsets 2 to 4\."),
        ({0: 5}, "E7062 .* at offset 5 "),
        ({0: 4, 1: 0}, "E7010 .* an offset for partition 1, which the topic does not have"),
    ],
)
def test_given_offsets_that_are_not_there_are_told(kafka: KafkaServer, start: dict[int, int], error: str) -> None:
    topic = kafka.topic()
    kafka.publish(topic, *[{"value": text} for text in texts(1, 4)])
    kafka.delete_records(topic, 2)
    source = kafka.connection().source(receiver(topic, start=start))
    with pytest.raises(ConnectionLost, match=error):
        source.connect()
    assert (topic, 0) not in kafka.offsets("r")


def test_a_new_partition_is_read_from_its_beginning(kafka: KafkaServer) -> None:
    topic = kafka.topic()
    with source_of(
        kafka, receiver(topic, "grows", start="latest"), **{"topic.metadata.refresh.interval.ms": 200}
    ) as source:
        kafka.add_partition(topic, 2)
        kafka.publish(topic, {"value": b"1", "partition": 1})
        assert bodies(take(source, 1)) == [b"1"]


def test_a_deletion_comes_back_as_one(kafka: KafkaServer) -> None:
    topic = kafka.topic()
    kafka.publish(topic, {"value": None, "key": b"\xff", "headers": [("h", None), ("h", b"\xfe")], "timestamp": 5_000})
    with source_of(kafka, receiver(topic, "first")) as source:
        (message,) = take(source, 1)[0].messages
    assert (message.body, message.key, message.properties["kafka_null"]) == (b"", "\\xff", True)
    with sink_of(kafka, topic) as sink:
        assert codes(sink.send(batch(topic, 1, message))) == [None]
    _, back = kafka.records(topic)
    assert (back.value(), back.key(), dict(back.headers() or ())["h"]) == (None, b"\xff", b"\xfe")


def test_a_message_that_is_sent_on_gets_a_time_and_a_partition_of_its_own(kafka: KafkaServer) -> None:
    here, there = kafka.topic(2), kafka.topic(2)
    at = 1 - confluent.murmur2(b"key", 2)
    kafka.publish(here, {"value": b"1", "key": b"key", "partition": at, "timestamp": 5_000})
    with source_of(kafka, receiver(here, "own")) as source:
        (message,) = take(source, 1)[0].messages
    assert message.headers is not None
    assert (message.headers.timestamp, message.properties["kafka_partition"]) == (5_000, at)
    before_ms = time.time_ns() // 1_000_000
    with sink_of(kafka, there) as sink:
        assert codes(sink.send(batch(there, 1, message))) == [None]
    (back,) = kafka.records(there)
    assert back.timestamp()[1] >= before_ms
    assert back.partition() == 1 - at, "where its key puts it"


def test_a_receiver_of_a_missing_topic_waits(kafka: KafkaServer) -> None:
    source = kafka.connection().source(receiver("nowhere"))
    with pytest.raises(ConnectionLost, match=r"E7010 receivers\.r: .* Create the topic"):
        source.connect()


# --- patterns ---


QUICK = {"topic.metadata.refresh.interval.ms": 100, "heartbeat.interval.ms": 100}


def matching(prefix: str, name: str, **options: object) -> ReceiverSettings:
    return receiver(f"^{prefix}\\..*", name, **options)


def test_topics_that_match_a_pattern_are_read_also_new_ones(kafka: KafkaServer) -> None:
    for name in ("shop.a", "shop.b", "shopping"):
        kafka.make_topic(name)
        kafka.publish(name, {"value": name.encode()})
    settings = matching("shop", "pattern", start="latest")
    with source_of(kafka, settings, **QUICK) as source:
        kafka.publish("shop.a", {"value": b"now"})
        held = take(source, 1)
        assert bodies(held) == [b"now"]
        kafka.make_topic("shop.new", 2)
        kafka.publish("shop.new", {"value": b"0", "partition": 0}, {"value": b"1", "partition": 1})
        new = take(source, 2)
        assert sorted(bodies(new)) == [b"0", b"1"], "a new topic begins with its first message"
        source.acknowledge(tokens(held))  # of a partition that stayed assigned
    offsets = kafka.offsets("pattern")
    assert (offsets["shop.a", 0], offsets["shop.b", 0]) == (2, 1)
    kafka.make_topic("shop.later")
    kafka.publish("shop.later", {"value": b"later"})
    with source_of(kafka, settings, **QUICK) as source:
        assert sorted(bodies(take(source, 3))) == [b"0", b"1", b"later"], "also one made while no engine ran"


def test_a_topic_of_a_pattern_that_was_made_again_begins_anew(kafka: KafkaServer) -> None:
    for name in ("again.a", "again.b"):
        kafka.make_topic(name)
        kafka.publish(name, *[{"value": b"old"}] * 3)
    settings = matching("again", "anew")
    with source_of(kafka, settings, **QUICK) as source:
        old = take(source, 6)
        source.acknowledge(tokens(old))
        kafka.delete_topic("again.b")
        kafka.make_topic("again.b")
        kafka.publish("again.b", *[{"value": text} for text in texts(1, 5)])
        assert lost_by(source).code in ("E7018", "E7010")
        with pytest.raises(ConnectionLost, match=r"W7020 .*'again\.b' was deleted and made again"):
            source.connect()
        source.connect()
        new = take(source, 5)
        assert bodies(new) == texts(1, 5)
        ids = [[one.properties["uniqueMessageId"] for chunk in some for one in chunk.messages] for some in (old, new)]
        assert set(ids[0]).isdisjoint(ids[1])


def test_a_pattern_without_topics_waits_and_one_that_goes_is_noticed(kafka: KafkaServer) -> None:
    source = kafka.connection(client=QUICK).source(matching("none", "empty"))
    with pytest.raises(ConnectionLost, match=r"E7010 receivers\.empty: no topic matches"):
        source.connect()
    for name in ("none.a", "none.b"):
        kafka.make_topic(name)
    source.connect()
    kafka.delete_topic("none.b")
    assert lost_by(source).code in ("E7018", "E7010")
    source.connect()
    kafka.publish("none.a", {"value": b"goes on"})
    assert bodies(take(source, 1)) == [b"goes on"]
    source.close()


# --- what the library returns in one call ---


def test_records_from_before_an_assignment_in_the_same_call_do_not_count(kafka: KafkaServer) -> None:
    """The library may serve a change of the group between the records of one call."""
    topic = kafka.topic()
    kafka.publish(topic, *[{"value": text} for text in texts(1, 10)])
    with source_of(kafka, receiver(topic, "within")) as source:
        member = source._member
        assert member is not None
        source.acknowledge(tokens(take(source, 2)[:1])[:1])
        wait_until(lambda: stored(kafka, "within", topic) == {0: 1})
        real, places = member._consumer, [confluent.TopicPartition(topic, 0)]

        class Changing:
            def __getattr__(self, name: str) -> object:
                return getattr(real, name)

            def consume(self, most: int, timeout_s: float) -> list[confluent.Message]:
                records = real.consume(most, timeout_s)
                member._consumer = real
                member._on_revoke(real, places)
                real.incremental_unassign(places)
                member._on_assign(real, places)
                return records

        member._waiting.clear()
        member._consumer = Changing()  # type: ignore[assignment]
        assert bodies(take(source, 9)) == texts(2, 10)


@pytest.mark.parametrize(("batch_bytes", "ahead_kb"), [(1000, 1024), (8 * 1024 * 1024, 8192), (2**30, 65536)])
def test_what_the_library_fetches_ahead_is_bounded(
    monkeypatch: pytest.MonkeyPatch, batch_bytes: int, ahead_kb: int
) -> None:
    given: list[dict[str, object]] = []
    monkeypatch.setattr(confluent, "Consumer", lambda settings, **_: given.append(settings))
    broker = KafkaServer.connection_to("127.0.0.1:9")._broker
    GroupMember("receivers.r", broker, "g", GroupOffsets("receivers.r", broker, "g", {}), batch_bytes)
    bounds = given[-1]["queued.max.messages.kbytes"], given[-1]["fetch.message.max.bytes"]
    assert bounds == (ahead_kb, 1024 * 1024)


def test_a_receiver_that_uses_up_what_was_fetched_ahead_does_not_wait_for_more(kafka: KafkaServer) -> None:
    topic = kafka.topic()
    for _ in range(4):
        kafka.publish(topic, *[{"value": bytes(100_000)}] * 40)
    settings = dataclasses.replace(receiver(topic, "quick"), max_batch_bytes=1_000_000)  # the client fetches 1 MB ahead
    with source_of(kafka, settings) as source:
        began_s = time.monotonic()
        for through in range(10, 170, 10):
            source.acknowledge(tokens(take(source, 10)))
            wait_until(
                lambda through=through: kafka.offsets("quick")[topic, 0] == through
            )  # meanwhile it fetches again
        lasted_s = time.monotonic() - began_s
    assert lasted_s < 5, "it waited for a second after each megabyte"


# --- the doctor ---


def found(kafka: KafkaServer, *parts: ReceiverSettings | SenderSettings, **options: object) -> list[tuple[str, str]]:
    receivers = [one for one in parts if isinstance(one, ReceiverSettings)]
    senders = [one for one in parts if isinstance(one, SenderSettings)]
    return [(one.code, one.where) for one in kafka.connection(**options).examine(receivers, senders)]


def test_the_doctor_names_missing_topics(kafka: KafkaServer) -> None:
    topic = kafka.topic()
    parts = receiver(topic), receiver("none"), matching("nothing", "p"), sender(topic, Reliability.BEST_EFFORT)
    assert found(kafka, *parts, sender(None)) == [("E7010", "receivers.r"), ("E7010", "receivers.p")]


def test_the_doctor_looks_at_replicas(kafka: KafkaServer) -> None:
    topic = kafka.topic()
    assert found(kafka, sender(topic)) == [("W7147", "senders.s")]
    kafka.configure(topic, min_insync_replicas="2")
    assert found(kafka, sender(topic)) == [("E7146", "senders.s")]


def test_the_doctor_knows_what_the_brokers_refuse(kafka: KafkaServer) -> None:
    topic = kafka.topic()
    client = {"session.timeout.ms": 500, "heartbeat.interval.ms": 100}
    assert found(kafka, receiver(topic), client=client) == [("E7142", "connections.kafka")]
    parts = receiver(topic), sender(topic, Reliability.AT_LEAST_ONCE)
    wanted = ["W7141", "E7143", "W7144"]
    settings = {
        "offsets.retention.minutes": "60",
        "transaction.max.timeout.ms": "50000",
        "auto.create.topics.enable": "true",
    }
    where, broker = "connections.k", kafka.connection()._broker
    seen = list(_of_cluster(where, broker, settings, parts[:1], [sender(topic)]))
    assert [one.code for one in seen] == wanted
    assert "receivers.r, senders.s" in str(seen[0])
    careful = receiver(topic, start="committed")
    assert [one.code for one in _of_cluster(where, broker, settings, [careful], parts[1:])] == ["W7144"]


def test_the_doctor_finds_a_transaction_that_nobody_ends(kafka: KafkaServer) -> None:
    topic = kafka.topic()
    kafka.publish(topic, {"value": b"before"})
    other = producer(kafka, f"hanging of {topic}")
    other.begin_transaction()
    other.produce(topic, b"new")
    assert other.flush(ANSWER_S) == 0
    assert found(kafka, receiver(topic)) == []
    other.abort_transaction(ANSWER_S)
    other.begin_transaction()
    other.produce(topic, b"old", timestamp=time.time_ns() // 1_000_000 - 3_600_000)
    assert other.flush(ANSWER_S) == 0
    assert found(kafka, receiver(topic)) == [("W7145", "receivers.r")]
    other.abort_transaction(ANSWER_S)
    assert found(kafka, receiver(topic)) == []
