"""The sink of Kafka. For an EXACTLY_ONCE sender each batch is a transaction, and a repeated message is recognised.

The sink itself refuses messages that no record can contain or that are larger than their topic allows. It notes their
numbers with the number of the batch, so a message is refused at every try, even if the schema or the limit of the topic
has changed since.
"""

import logging
import time
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from contextlib import closing
from itertools import groupby
from operator import attrgetter

import msgspec

from connectors.kafka.broker import KafkaBroker
from connectors.kafka.cluster import Cluster, Rules
from connectors.kafka.content import Record, encode
from connectors.kafka.destinations import ALLOWED, Subject, subject_of, topic_of
from connectors.kafka.failures import TransactionExpired
from connectors.kafka.producer import KafkaProducer
from connectors.kafka.registry import UNUSABLE, Schemas
from connectors.kafka.schemas import body_writer
from connectors.kafka.tail import last_numbers
from correlator.errors import ConnectionLost, SendRejected, quoted
from correlator.events import Outgoing
from correlator.processes import Maker
from correlator.settings import SenderSettings

PREFIX = "correlator-"
"""Begins the names of transactions and of the groups with the numbers, so that rights can be granted by prefix."""
_MOST_NOTED = 200
"""Number of refused numbers that fit into the metadata of an offset, whose limit is 4,096 bytes."""
_log = logging.getLogger("connectors.kafka")
_source_of = attrgetter("source")
_numbers = msgspec.json.Decoder(list[int])


class KafkaSink:
    """Sends messages to topics, and waits until all replicas in sync have them.

    Args:
        broker: the cluster.
        topic: the topic of the sender; `None` if each message names one.
        sender: the settings of the sender.
    """

    def __init__(self, broker: KafkaBroker, topic: str | None, sender: SenderSettings) -> None:
        self._where = f"senders.{sender.id}"
        self._broker = broker
        self._topic = topic
        self._once = sender.reliability == "EXACTLY_ONCE"
        self._most_outstanding = sender.max_outstanding
        self._subject = subject_of(sender, broker)
        self._write: Callable[[bytes], bytes] | None = None
        self._process = Maker()
        self._connected = False
        self._rules: dict[str, Rules] = {}
        self._producer: KafkaProducer | None = None
        self._source = ""
        self._last = 0
        self._refused: set[int] = set()
        """Numbers of messages that the cluster or this sink has refused. Their repeats are refused, too; without this
        they would seem stored.
        """
        self._unsure_below = 0
        """Of the messages below this number and up to `_last`, only the topics show which were refused."""
        self._found: dict[str, AbstractSet[int]] = {}
        """The numbers of the source's messages that were found at the end of a topic."""
        self._looked_at: set[str] = set()
        self._are_gone = False

    def connect(self) -> None:
        """Connect, and check the sender's topic and schema. Raises `UsageError` E2050 in a forked child.

        Raises `ConnectionLost`: among others E7150 to E7152 if the registry does not have the schema or it cannot be
        used.
        """
        if self._connected:
            self._process.check(self._where)
        self.close()
        self._process = Maker()
        with closing(Cluster(self._where, self._broker)) as cluster:
            if self._topic is None:
                cluster.check()
            else:
                self._rules.update(cluster.rules([self._topic]))
        if self._subject is not None:
            self._write = self._writer(self._subject)
        self._connected = True

    def send(self, batch: Sequence[Outgoing]) -> Sequence[SendRejected | None]:
        """Send the batch; when this returns, each message is stored or refused."""
        self._process.check(self._where)
        if not self._connected:
            raise ConnectionLost("E7001", self._where, "not connected")
        try:
            return [one for source, part in groupby(batch, _source_of) for one in self._send(source, list(part))]
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Drop the producer. Unconfirmed messages may still arrive. Does nothing in a forked child."""
        if self._process.is_another_process:
            return
        self._drop()
        self._rules.clear()
        self._connected = False

    def _writer(self, subject: Subject) -> Callable[[bytes], bytes]:
        """Return a function that makes bodies with the schema of the subject; register the schema if
        the sender has a file.
        """
        assert self._broker.registry is not None
        schemas = Schemas(self._where, self._broker.registry)
        schema = schemas.register(*subject) if subject.definition else schemas.latest(subject.name)
        try:
            return body_writer(schema, schemas)
        except ValueError as error:
            what = f"schema {schema.id} of the subject {quoted(subject.name)} cannot be used: {error}"
            raise ConnectionLost(UNUSABLE, self._where, what) from error

    def _drop(self) -> None:
        if self._producer is not None:
            self._producer.close()
        self._producer = None

    def _send(self, source: str, part: Sequence[Outgoing]) -> Sequence[SendRejected | None]:
        """Send messages of one source. If a transaction has expired, a new producer sends, once, what is not stored.

        Raises `ConnectionLost` E7061 if the cluster then has a number that this sink has not sent: another producer has
        used the source.
        """
        try:
            return self._try(source, part)
        except TransactionExpired as expired:
            self._drop()
            results = self._try(source, part)
            if self._last > part[-1].sequence:
                raise expired.__cause__ or expired from None
            return results

    def _try(self, source: str, part: Sequence[Outgoing]) -> Sequence[SendRejected | None]:
        """Send messages of one source. Messages of a session have no source, so repeats are not recognised."""
        results: list[SendRejected | None] = [None] * len(part)
        self._turn_to(source if self._once else "")
        records = self._prepare(part, results)
        if self._source:
            self._note_refused(part, results)
        if not records:
            return results
        producer = self._begin()
        if self._source:
            self._look_back(producer, {one.topic for one in records}, part[0].sequence)
            records = self._new(records, part, results)
        self._carry_out(records, part, results)
        return results

    def _carry_out(
        self, records: Sequence[Record], part: Sequence[Outgoing], results: list[SendRejected | None]
    ) -> None:
        """Send records. If the cluster refuses one of them, send each half, and so on, until the
        refused record is found.
        """
        parts = [records] if records else []
        while parts:
            now = parts.pop()
            number = part[now[-1].at if parts else -1].sequence
            refusal = self._begin().send(now, number, self._note())
            if refusal is None:
                self._last = number
                continue
            if self._source:
                self._drop()
            if len(refusal.left) > 1:
                half = len(refusal.left) // 2
                parts += [refusal.left[half:], refusal.left[:half]]
            else:
                (one,) = refusal.left
                results[one.at] = _refused(part[one.at], refusal.reason)
                self._refused.add(part[one.at].sequence)

    def _prepare(self, part: Sequence[Outgoing], results: list[SendRejected | None]) -> Sequence[Record]:
        """Return the records of messages; put a refusal into `results` for each message that cannot become a record."""
        records: list[Record] = []
        now_ms, write = time.time_ns() // 1_000_000, self._write
        for at, outgoing in enumerate(part):
            topic = topic_of(outgoing.destination)
            if topic is None:
                what = f"{quoted(outgoing.destination)} is not a topic of Kafka"
                results[at] = SendRejected("E8104", _place(outgoing), what, ALLOWED)
                continue
            try:
                records.append(encode(outgoing, topic, now_ms, at, write))
            except (ValueError, TypeError, AttributeError) as error:  # a program may put any value into a message
                what = f"a record of Kafka cannot hold the message: {error}"
                results[at] = SendRejected("E8110", _place(outgoing), what)
        self._learn({one.topic for one in records} - self._rules.keys())
        fit: list[Record] = []
        for one in records:
            results[one.at] = refusal = _unfit(one, self._rules[one.topic], part[one.at])
            if refusal is None:
                fit.append(one)
        return fit

    def _new(
        self, records: Sequence[Record], part: Sequence[Outgoing], results: list[SendRejected | None]
    ) -> Sequence[Record]:
        """Return the records that the cluster does not account for; refuse those that were refused before."""
        first = part[0].sequence
        if first > self._last and not self._refused:
            return records
        for one in records:
            number = part[one.at].sequence
            is_unsure = number < self._unsure_below and number <= self._last
            if number in self._refused or (is_unsure and number not in self._at_end(one.topic, first)):
                what = "the message was refused when it was first sent"
                results[one.at] = SendRejected("E8102", _place(part[one.at]), what)
        return [one for one in records if results[one.at] is None and part[one.at].sequence > self._last]

    def _note_refused(self, part: Sequence[Outgoing], results: Sequence[SendRejected | None]) -> None:
        """Remember which messages were refused. Forget older ones, except those that a note contains."""
        self._refused.update(one.sequence for one, refusal in zip(part, results, strict=True) if refusal is not None)
        if len(self._refused) > 2 * _MOST_NOTED:
            since = min(sorted(self._refused)[-_MOST_NOTED], part[0].sequence)
            self._refused = {number for number in self._refused if number >= since}

    def _note(self) -> str:
        """Return the newest refused numbers, as the cluster stores them with the number of the source."""
        return msgspec.json.encode(sorted(self._refused)[-_MOST_NOTED:]).decode() if self._refused else ""

    def _learn(self, topics: AbstractSet[str]) -> None:
        """Learn the limits of topics. Drop a producer whose batches may be too large for them."""
        if not topics:
            return
        with closing(Cluster(self._where, self._broker)) as cluster:
            learnt = cluster.rules(topics)
        before = self._batch_bytes
        self._rules.update(learnt)
        if self._batch_bytes != before:
            self._drop()

    @property
    def _batch_bytes(self) -> int:
        return min((one.most_bytes for one in self._rules.values()), default=0)

    def _turn_to(self, source: str) -> None:
        """Send messages of this source from now on; "" for messages whose repeats are not recognised."""
        if source != self._source:
            self._drop()
            self._source, self._last, self._refused, self._unsure_below = source, 0, set(), 0

    def _begin(self) -> KafkaProducer:
        """Return the producer for messages of the present source; make one if there is none yet."""
        if self._producer is not None:
            return self._producer
        name = self._source and PREFIX + self._source
        self._producer = producer = KafkaProducer(self._where, self._broker, name, self._batch_bytes)
        self._looked_at = set()
        producer.begin(next(iter(self._rules)))
        return producer

    def _look_back(self, producer: KafkaProducer, topics: AbstractSet[str], first: int) -> None:
        """Find out which messages of the source the cluster has stored, by topics that this connection uses for the
        first time.

        Each topic has the number of the last batch with a message for it. If no topic has one although messages of the
        source were confirmed, the numbers are lost, and the last messages of the topics are read instead.
        """
        new = topics - self._looked_at
        if not new:
            return
        self._found.clear()
        numbers = producer.numbers(new)
        for number, note in numbers.values():
            noted = _noted(note)
            self._last = max(self._last, number)
            self._refused |= {one for one in noted if one >= first}  # the sender does not send the others again
            if len(noted) == _MOST_NOTED:
                self._unsure_below = max(self._unsure_below, noted[0])
        if not self._looked_at:
            self._are_gone = not numbers and self._last == 0 and first > 1
        if self._are_gone:
            for name in sorted(new):
                self._last = max((self._last, *self._at_end(name, first)))
                told = "%s: the cluster has forgotten the number of %s; the last messages of the topic '%s' go up to %d"
                _log.warning(told, self._where, self._source, name, self._last)
        self._looked_at |= new

    def _at_end(self, name: str, first: int) -> AbstractSet[int]:
        """Return the numbers of the source's messages among the last ones of a topic."""
        if name not in self._found:
            with closing(Cluster(self._where, self._broker)) as cluster:
                topic = cluster.topic(name)
            most = self._most_outstanding
            self._found[name] = last_numbers(self._where, self._broker, topic, self._source, first, most)
        return self._found[name]


def _unfit(record: Record, rules: Rules, outgoing: Outgoing) -> SendRejected | None:
    """Return why a topic would refuse a record; `None` if it accepts it."""
    if record.size > rules.most_bytes:
        what = f"the message has {record.size} bytes, and max.message.bytes of '{record.topic}' is {rules.most_bytes}"
        return SendRejected("E8106", _place(outgoing), what)
    if rules.needs_key and record.key is None:
        what = f"the message has no key, which the compacted topic '{record.topic}' needs"
        return SendRejected("E8102", _place(outgoing), what)
    return None


def _noted(text: str) -> Sequence[int]:
    """Return the numbers of a note; none if another program has written it."""
    try:
        return _numbers.decode(text)
    except ValueError:
        return ()


def _refused(outgoing: Outgoing, reason: str) -> SendRejected:
    return SendRejected("E8102", _place(outgoing), f"Kafka refuses the message: {reason}")


def _place(outgoing: Outgoing) -> str:
    return f"message {outgoing.sequence}:{outgoing.source}"
