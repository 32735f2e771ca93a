"""One producer of the client library. If it uses transactions, each batch is one transaction.

Such a transaction also stores the number of the last message of the batch: as the offset of a group for partition 0 of
each topic of the batch. The group has the name of the transactions. Only this number says what the cluster has stored:
the next producer with the same name first ends the transaction that this one left open, then reads the number.

Nothing is repaired. After any error within a transaction the producer is dropped, and a new one begins.
"""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from functools import partial
from typing import Any, NamedTuple, TypeVar

import confluent_kafka as kafka

from connectors.kafka.broker import KafkaBroker
from connectors.kafka.content import Record
from connectors.kafka.failures import FENCED, Complaints, TransactionExpired, lost, timed_out, translated
from connectors.kafka.log import LOG
from connectors.kafka.patience import answer_within
from correlator.errors import ConnectionLost
from correlator.processes import never_finalize

_INVALID = kafka.KafkaError.INVALID_RECORD
_REFUSED = frozenset({_INVALID, kafka.KafkaError._INVALID_DIFFERENT_RECORD})  # noqa: SLF001  # a public name
"""The errors that the library reports for all records sent to a partition together if the broker refuses one of them
again and again. They do not always tell which record was refused.
"""
_PURGED = frozenset({kafka.KafkaError._PURGE_QUEUE, kafka.KafkaError._PURGE_INFLIGHT})  # noqa: SLF001  # public names
"""The errors of records that the library has dropped since another one of their transaction has failed."""
_STOPPED = kafka.KafkaError._STATE  # noqa: SLF001  # a public name
_LOOK_S = 0.2
T = TypeVar("T")
_MARKED = 0
"""The partition of a topic whose offset is the number of the last message of a source."""


class Refusal(NamedTuple):
    """The reason for which the cluster refused at least one of some records, and the records that are not stored."""

    reason: str
    left: Sequence[Record]


class KafkaProducer:
    """A producer. The thread of its sink owns it.

    Args:
        where: the sender, for errors.
        broker: the cluster.
        transactional_id: name of its transactions, and of the group; "" for a producer without transactions.
        batch_bytes: the most bytes that it sends to a partition at once.
    """

    def __init__(self, where: str, broker: KafkaBroker, transactional_id: str, batch_bytes: int) -> None:
        self._where = where
        self._broker = broker
        self._name = transactional_id
        self._complaints = Complaints()
        settings = broker.of_producer(transactional_id, batch_bytes) | {"error_cb": self._complaints}
        never_finalize(self)
        with self._translated():
            self._client: kafka.Producer | None = kafka.Producer(settings, logger=LOG)

    def begin(self, topic: str) -> None:
        """End the transaction that an earlier producer of this name left open, and fence that producer.

        Args:
            topic: any topic that exists.
        """
        if not self._name:
            return
        with self._translated():
            # If no broker is connected, the library looks for the coordinator of the transactions only half a second
            # later. The first answer may come from a connection that it replaces; the second one comes from a broker.
            for _ in range(2):
                self._call(lambda client: client.list_topics(topic, self._broker.timeout_s))
            self._call(lambda client: client.init_transactions(self._broker.timeout_s))
            self._group = self._call(self._group_of_name)

    def numbers(self, topics: Collection[str]) -> Mapping[str, tuple[int, str]]:
        """Return, for each of these topics that has one, the last stored number of the source, and its note."""
        asked = [kafka.TopicPartition(topic, _MARKED) for topic in topics]
        with self._translated():
            places = self._call(lambda _: self._committed(asked))
        for place in places:
            if place.error is not None:
                raise lost(self._where, place.error, self._broker)
        return {place.topic: (place.offset, place.metadata or "") for place in places if place.offset >= 0}

    def send(self, records: Sequence[Record], number: int, note: str) -> Refusal | None:
        """Send records in order, and wait until they are stored; return `None` if they are.

        Args:
            records: at least one.
            number: number of the last message that these records account for.
            note: text to store with the number.

        With transactions either all records are stored, with the number, or none. After a refusal this producer cannot
        be used any more, and the next one ends the transaction. Raises `ConnectionLost`, also `TransactionExpired`.
        """
        began_s = time.monotonic()
        try:
            with self._translated():
                if self._name:
                    self._opened.begin_transaction()
                failed = self._carry_out(records)
                if self._name and not failed:
                    topics = {one.topic for one in records}
                    self._commit([kafka.TopicPartition(topic, _MARKED, number, note) for topic in sorted(topics)])
        except ConnectionLost as error:
            self._check_age(time.monotonic() - began_s, error)
            raise
        if not failed:
            return None
        reason = kafka.KafkaError(_INVALID).str()
        return Refusal(reason, records if self._name else [one for one in records if one.at in failed])

    def close(self) -> None:
        """Drop the producer without waiting. Never raises."""
        client, self._client = self._client, None
        if client is not None:
            client.purge(blocking=False)

    @property
    def _opened(self) -> kafka.Producer:
        assert self._client is not None
        return self._client

    def _check_age(self, lasted_s: float, error: ConnectionLost) -> None:
        """Raise `TransactionExpired` if this is why the cluster shuts the producer out: no other one has to exist."""
        longest_s = self._broker.transaction_ms / 1000
        if error.code == FENCED and lasted_s >= longest_s:
            what = f"a transaction lasted {lasted_s:.1f} s, and the cluster ends one after {longest_s:g} s"
            raise TransactionExpired("E7023", self._where, what) from error

    def _carry_out(self, records: Sequence[Record]) -> Mapping[int, kafka.KafkaError]:
        """Send the records; return the refusals by index. Raises after any other error."""
        client, flight = self._opened, _Flight(self._broker.timeout_s)
        stopped = self._produce(records, flight)
        while (left := client.flush(_LOOK_S)) and not (flight.refused and self._name):
            flight.check(left)
        for error in flight.refused.values():
            if error.code() not in _REFUSED:
                raise kafka.KafkaException(error)
        dropped = flight.purged or stopped
        if dropped is not None and not (flight.refused and self._name):
            raise kafka.KafkaException(dropped)
        return dict(flight.refused)

    def _produce(self, records: Sequence[Record], flight: "_Flight") -> kafka.KafkaError | None:
        """Let the library send the records.

        Return the error with which it takes no more of them, since it knows that one of the transaction has failed. It
        may report only later which one, and why.
        """
        client = self._opened
        settle: Callable[..., None] = flight.refuse
        for one in records:
            if not self._name:  # with transactions it does not matter which record was refused
                settle = partial(flight.refuse, at=one.at)
            while True:
                try:
                    client.produce(one.topic, one.value, one.key, headers=one.headers, on_delivery=settle)
                except BufferError:
                    client.poll(_LOOK_S)
                    flight.check(len(client))
                except kafka.KafkaException as error:
                    cause: kafka.KafkaError = error.args[0]
                    if cause.code() != _STOPPED:
                        raise
                    return cause
                else:
                    break
        return None

    def _commit(self, marks: list[kafka.TopicPartition]) -> None:
        """Put the marks into the transaction, and commit it. The cluster has to answer twice."""
        client, group, timeout_s = self._opened, self._group, self._broker.timeout_s

        def commit() -> None:
            client.send_offsets_to_transaction(marks, group, timeout_s)
            client.commit_transaction(timeout_s)

        answer_within(2 * timeout_s, commit)

    def _call(self, call: Callable[[kafka.Producer], T]) -> T:
        client = self._opened
        return answer_within(self._broker.timeout_s, lambda: call(client))

    def _group_of_name(self, _client: kafka.Producer) -> Any:
        with closing(self._consumer()) as consumer:
            return consumer.consumer_group_metadata()  # this does not join the group

    def _committed(self, places: list[kafka.TopicPartition]) -> list[kafka.TopicPartition]:
        with closing(self._consumer()) as consumer:
            return consumer.committed(places, self._broker.timeout_s)

    def _consumer(self) -> kafka.Consumer:
        return kafka.Consumer(self._broker.of_consumer(self._name), logger=LOG)

    def _translated(self) -> AbstractContextManager[None]:
        return translated(self._where, self._broker, self._complaints)


class _Flight:
    """The outcomes of a batch so far. The library calls back only for records that are not stored.

    Attributes:
        refused: the first error of each record that has an error of its own.
        purged: the error of records that were dropped because another one failed.
    """

    def __init__(self, timeout_s: float) -> None:
        self.refused: dict[int, kafka.KafkaError] = {}
        self.purged: kafka.KafkaError | None = None
        self._timeout_s = timeout_s
        self._left = -1
        self._deadline = time.monotonic() + timeout_s

    def refuse(self, error: kafka.KafkaError | None, _record: kafka.Message, at: int = 0) -> None:
        """Take the library's callback for a record that is not stored."""
        if error is None:
            return
        if error.code() in _PURGED:
            self.purged = error
        else:
            self.refused.setdefault(at, error)

    def check(self, left: int) -> None:
        """Raise `KafkaException` if the number of records that are not yet stored has not changed for too long."""
        now = time.monotonic()
        if left != self._left:
            self._left, self._deadline = left, now + self._timeout_s
        elif now > self._deadline:
            raise timed_out("nothing was confirmed")
