"""One producer of the client library. With transactions, each batch is one, with the number of its last message.

The number is the offset of a group for partition 0 of each topic of the batch. The group has the name of the
transactions. The number is the only truth about what the cluster has: the next producer with the same name first ends
the transaction that this one has left, then reads the number.

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
"""The errors of all records that were sent to a partition at once, if the broker refuses one of them at each try. They
do not always tell which one.
"""
_PURGED = frozenset({kafka.KafkaError._PURGE_QUEUE, kafka.KafkaError._PURGE_INFLIGHT})  # noqa: SLF001  # public names
"""The errors of records that the library has dropped since another one of their transaction has failed."""
_LOOK_S = 0.2
T = TypeVar("T")
_MARKED = 0
"""The partition of a topic whose offset is the number of a source."""


class Refusal(NamedTuple):
    """Why the cluster has refused at least one of some records, and which of them are not stored."""

    reason: str
    left: Sequence[Record]


class KafkaProducer:
    """A producer. Owned by the thread of its sink.

    Args:
        where: the sender, for errors.
        broker: the cluster.
        transactional_id: the name of its transactions, and of the group; "" for no transactions.
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

    def begin(self) -> None:
        """End the transaction that an earlier producer of this name has left, and shut that producer out."""
        if not self._name:
            return
        with self._translated():
            self._call(lambda client: client.init_transactions(self._broker.timeout_s))
            self._group = self._call(self._group_of_name)

    def numbers(self, topics: Collection[str]) -> Mapping[str, tuple[int, str]]:
        """The last number of the source that is stored for each of these topics, and its note, if there is one."""
        asked = [kafka.TopicPartition(topic, _MARKED) for topic in topics]
        with self._translated():
            places = self._call(lambda _: self._committed(asked))
        for place in places:
            if place.error is not None:
                raise lost(self._where, place.error, self._broker)
        return {place.topic: (place.offset, place.metadata or "") for place in places if place.offset >= 0}

    def send(self, records: Sequence[Record], number: int, note: str) -> Refusal | None:
        """Send records in order, and wait until they are stored; returns `None` if they are.

        Args:
            records: at least one.
            number: of the last message that is accounted for with these records.
            note: kept beside the number.

        With transactions either all records are stored, with the number, or none: after a refusal the producer is of no
        use, and the next one ends the transaction. Raises `ConnectionLost`, `TransactionExpired` among them.
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
        """Give the producer up, without waiting for anything. Never raises."""
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
        """Send the records; returns the refusals by index. Raises after any other error."""
        client, flight = self._opened, _Flight(self._broker.timeout_s)
        settle: Callable[..., None] = flight.refuse
        for one in records:
            if not self._name:  # with transactions it does not matter which record it is
                settle = partial(flight.refuse, at=one.at)
            while True:
                try:
                    client.produce(one.topic, one.value, one.key, headers=one.headers, on_delivery=settle)
                except BufferError:
                    client.poll(_LOOK_S)
                    flight.check(len(client))
                else:
                    break
        while (left := client.flush(_LOOK_S)) and not (flight.refused and self._name):
            flight.check(left)
        for error in flight.refused.values():
            if error.code() not in _REFUSED:
                raise kafka.KafkaException(error)
        if flight.purged is not None and not (flight.refused and self._name):
            raise kafka.KafkaException(flight.purged)
        return dict(flight.refused)

    def _commit(self, marks: list[kafka.TopicPartition]) -> None:
        """Put the marks into the transaction, and end it. The cluster has to answer twice."""
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
            return consumer.consumer_group_metadata()  # joins no group

    def _committed(self, places: list[kafka.TopicPartition]) -> list[kafka.TopicPartition]:
        with closing(self._consumer()) as consumer:
            return consumer.committed(places, self._broker.timeout_s)

    def _consumer(self) -> kafka.Consumer:
        return kafka.Consumer(self._broker.of_consumer(self._name), logger=LOG)

    def _translated(self) -> AbstractContextManager[None]:
        return translated(self._where, self._broker, self._complaints)


class _Flight:
    """What became of the records of a batch so far. The library tells only of those that are not stored.

    Attributes:
        refused: the first error of each record that has one of its own.
        purged: the error of records that have none of their own.
    """

    def __init__(self, timeout_s: float) -> None:
        self.refused: dict[int, kafka.KafkaError] = {}
        self.purged: kafka.KafkaError | None = None
        self._timeout_s = timeout_s
        self._left = -1
        self._deadline = time.monotonic() + timeout_s

    def refuse(self, error: kafka.KafkaError | None, _record: kafka.Message, at: int = 0) -> None:
        """Take the answer for a record that is not stored: the callback of the library."""
        if error is None:
            return
        if error.code() in _PURGED:
            self.purged = error
        else:
            self.refused.setdefault(at, error)

    def check(self, left: int) -> None:
        """Raise `KafkaException` if for too long as many records as before are left to be stored."""
        now = time.monotonic()
        if left != self._left:
            self._left, self._deadline = left, now + self._timeout_s
        elif now > self._deadline:
            raise timed_out("nothing was confirmed")
