"""One consumer of the client library, which is a member of a group.

The cluster divides the partitions of the topics among the members. It reports each change while the member asks for
records. When a partition moves to another member, this one forgets the messages that it took from it: the other member
begins at the acknowledged offset.

It fetches all available records in one call of the library. With a call for each record it would release the lock of
the interpreter each time, and wait for the lock while other threads work.
"""

import time
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from contextlib import AbstractContextManager, suppress
from itertools import accumulate, groupby, islice, repeat
from typing import NamedTuple

import confluent_kafka as kafka

from connectors.kafka.broker import KafkaBroker
from connectors.kafka.destinations import Start
from connectors.kafka.failures import GONE, Complaints, lost, timed_out, translated
from connectors.kafka.log import LOG
from connectors.kafka.offsets import CHOOSE, NOT_NOW, GroupOffsets
from connectors.kafka.partitions import AssignedPartition, Place, Token
from connectors.kafka.patience import answer_within
from correlator.errors import ConnectionLost
from correlator.processes import never_finalize

_LOOK_S = 0.1
_KB = 1024
_FETCH_AGAIN_MS = 20
"""When the client has fetched as much ahead as it may, it looks for room again after this time. By default it waits a
second, in which a quick receiver uses up all of it.
"""


class Taken(NamedTuple):
    """Records of a partition that are to be delivered, with their tokens."""

    topic: str
    partition: int
    records: list[kafka.Message]
    tokens: Sequence[Token]


class GroupMember:
    """A member of a group. Owned by the thread of its source, until `close`.

    Args:
        where: the receiver, for errors.
        broker: the cluster.
        group: the name of the group.
        offsets: the offsets of the group.
        batch_bytes: the most bytes of a batch; they limit what the member fetches ahead.

    Attributes:
        assigned: its partitions, by topic and number.
    """

    def __init__(self, where: str, broker: KafkaBroker, group: str, offsets: GroupOffsets, batch_bytes: int) -> None:
        self._where = where
        self._broker = broker
        self._offsets = offsets
        self._batch_bytes = batch_bytes
        self.assigned: dict[Place, AssignedPartition] = {}
        self._waiting: deque[kafka.Message] = deque()  # changed in place, also within a call of `_fetch`
        self._complaints = Complaints()
        self._fault: ConnectionLost | None = None
        self._has_joined = False
        self._unanswered = 0
        self._answered_s = 0.0
        self._again: set[Place] = set()
        """Partitions whose offset could not be stored because the members of the group were changing."""
        self._fresh: list[kafka.TopicPartition] = []
        """Partitions that were assigned during the present call of the library."""
        ahead_kb = max(_KB, min(64 * _KB, batch_bytes // _KB))
        bounds = {
            "queued.max.messages.kbytes": ahead_kb,
            "fetch.message.max.bytes": _KB * _KB,
            "fetch.queue.backoff.ms": _FETCH_AGAIN_MS,
        }
        callbacks = {"error_cb": self._complaints, "on_commit": self._on_commit}
        never_finalize(self)
        with self._translated():
            self._consumer = kafka.Consumer({**bounds, **broker.of_consumer(group), **callbacks}, logger=LOG)

    def join(self, start: Start, others: Collection[str]) -> None:
        """Join the group, and wait for the first partitions as long as for an answer at most.

        The arguments and errors are those of `GroupOffsets.begin`; also E7062.
        """
        with self._translated():
            try:
                self._offsets.begin(self._consumer, start, others)
            except kafka.KafkaException as error:
                told = self._consumer.poll(0.0)  # a refusal of the group, which a call answers with a time-out
                if told is not None and (refusal := told.error()) is not None:
                    raise kafka.KafkaException(refusal) from error
                raise
        self.subscribe()
        deadline = time.monotonic() + self._broker.timeout_s
        while not self._has_joined and time.monotonic() < deadline:
            self._waiting.extend(self._fetch(1, _LOOK_S))

    def subscribe(self) -> None:
        """Read the topics of the offsets. Partitions that are assigned and belong to these topics stay assigned."""
        changes = {"on_assign": self._on_assign, "on_revoke": self._on_revoke, "on_lost": self._on_revoke}
        with self._translated():
            self._consumer.subscribe(list(self._offsets.topics), **changes)

    def check(self) -> None:
        """Raise `ConnectionLost` after a fault."""
        if self._fault is not None:
            raise self._fault

    @property
    def held(self) -> int:
        """Number of messages that it holds: taken, and neither acknowledged nor given back."""
        return sum(one.progress.held for one in self.assigned.values())

    def take(self, most: int, timeout_s: float) -> list[Taken]:
        """Take the available records, or wait for the first one; return none if none comes in time. Raises
        `ConnectionLost`.

        Takes at most `most` (1 or more) records, and no more bytes than a batch may have unless the first record has
        more.
        """
        waiting = self._waiting
        if not waiting:
            waiting += self._fetch(most, timeout_s)
        records = list(islice(waiting, most))
        if sum(map(len, records)) > self._batch_bytes:
            sizes = accumulate(map(len, records))
            del records[max(1, sum(size <= self._batch_bytes for size in sizes)) :]
        for _ in records:
            waiting.popleft()
        of: dict[Place, list[kafka.Message]] = {}
        for topic, of_topic in groupby(records, kafka.Message.topic):
            assert topic is not None
            for partition, some in groupby(of_topic, kafka.Message.partition):
                assert partition is not None
                of.setdefault((topic, partition), []).extend(some)
        taken = [self._hold(self.assigned[place], records) for place, records in of.items() if place in self.assigned]
        return [one for one in taken if one.tokens]

    def _hold(self, one: AssignedPartition, records: list[kafka.Message]) -> Taken:
        """Hold records of a partition, except those that are not to be delivered (again)."""
        numbers = one.take([record.offset() or 0 for record in records])
        if not all(numbers):
            records = [record for record, number in zip(records, numbers, strict=True) if number]
            numbers = [number for number in numbers if number]
        return Taken(*one.place, records, list(zip(repeat(one.epoch), numbers, strict=False)))

    def acknowledge(self, tokens: Iterable[Token]) -> None:
        """Ask the cluster to store the offsets that these messages move."""
        moved = [
            self._offsets.mark(*one.place, self._position(one))
            for one, numbers in self._by_partition(tokens)
            if one.progress.acknowledge(numbers)
        ]
        self._commit(moved)

    def reject(self, tokens: Iterable[Token]) -> None:
        """Give messages back: `take` returns them again, before any new message of their partitions."""
        for one, numbers in self._by_partition(tokens):
            one.progress.reject(numbers)
            self._forget({one.place})
            start, _ = one.progress.next()
            with self._translated():
                self._consumer.seek(kafka.TopicPartition(*one.place, start))

    def behind(self) -> int | None:
        """Return how many offsets of the assigned partitions come after the position; `None` if it is
        not known for each.
        """
        behind = len(self._waiting)
        for one in self.assigned.values():
            place = kafka.TopicPartition(*one.place)
            _, high = self._consumer.get_watermark_offsets(place, cached=True)
            if high < 0:
                return None
            (place,) = self._consumer.position([place])
            behind += max(0, high - max(place.offset, one.progress.position))
        return behind

    def close(self) -> None:
        """Leave the group. If the cluster does not answer in time, a thread continues to wait for it."""
        with suppress(kafka.KafkaException, RuntimeError):
            answer_within(self._broker.timeout_s, self._consumer.close)

    # --- records ---

    def _translated(self) -> AbstractContextManager[None]:
        return translated(self._where, self._broker, self._complaints)

    def _fetch(self, most: int, timeout_s: float) -> list[kafka.Message]:
        """Ask for the available records, or wait for the first one, and serve changes of the group meanwhile."""
        if self._again:
            again = [one for place, one in self.assigned.items() if place in self._again]
            self._again.clear()
            self._commit([self._offsets.mark(*one.place, self._position(one)) for one in again])
        with self._translated():
            first = self._consumer.poll(timeout_s)
            self._fresh = []
            records = [] if first is None else [first]
            if records and most > 1:
                records += self._consumer.consume(most - 1, 0.0)
            if self._fresh:
                records = self._begin_anew(records)
            if self._unanswered and time.monotonic() > self._answered_s + self._broker.timeout_s:
                raise timed_out("a commit of offsets was not answered")
        self.check()
        if (serious := self._complaints.serious) is not None:
            raise lost(self._where, serious, self._broker, self._complaints)
        for record in records:
            if (error := record.error()) is not None:
                raise self._of_record(record, error)
        return records

    def _begin_anew(self, records: list[kafka.Message]) -> list[kafka.Message]:
        """Let partitions that were assigned during a call of the library begin after this call.

        The call may have returned earlier records of such a partition, if this member had the partition before, too.
        """
        fresh, self._fresh = self._fresh, []
        self._consumer.incremental_unassign(fresh)
        self._consumer.incremental_assign(fresh)
        places = {(one.topic, one.partition) for one in fresh}
        return [record for record in records if _place_of(record) not in places]

    def _commit(self, places: list[kafka.TopicPartition]) -> None:
        if not places:
            return
        if not self._unanswered:
            self._answered_s = time.monotonic()
        with self._translated():
            self._consumer.commit(offsets=places, asynchronous=True)
        self._unanswered += 1

    def _of_record(self, record: kafka.Message, error: kafka.KafkaError) -> ConnectionLost:
        if error.code() == kafka.KafkaError._AUTO_OFFSET_RESET:  # noqa: SLF001  # a public name of the library
            what = f"partition {record.partition()} does not hold the next message any more ({error.str()})"
            return ConnectionLost(GONE, self._where, what, "", CHOOSE)
        return lost(self._where, error, self._broker, self._complaints)

    def _by_partition(self, tokens: Iterable[Token]) -> Iterable[tuple[AssignedPartition, list[int]]]:
        """Return the tokens of the partitions that are still assigned, by partition."""
        numbers: dict[int, list[int]] = {}
        for epoch, number in tokens:
            numbers.setdefault(epoch, []).append(number)
        return [(one, numbers[one.epoch]) for one in self.assigned.values() if one.epoch in numbers]

    def _position(self, one: AssignedPartition) -> int:
        """Return the offset to commit. If all messages are acknowledged, it is after any end of a
        transaction at this place.
        """
        position, until = one.progress.next()
        if one.progress.held or until is not None or any(_place_of(record) == one.place for record in self._waiting):
            return one.progress.position
        (place,) = self._consumer.position([kafka.TopicPartition(*one.place)])
        return max(position, place.offset)

    def _forget(self, places: set[Place]) -> None:
        """Drop the fetched records of these partitions that were not taken."""
        kept = [record for record in self._waiting if _place_of(record) not in places]
        self._waiting.clear()
        self._waiting.extend(kept)

    # --- callbacks of the client within `poll`, `consume` and `close` ---

    def _on_assign(self, consumer: kafka.Consumer, places: list[kafka.TopicPartition]) -> None:
        try:
            with self._translated():
                begin = self._offsets.of(consumer, places)
                for one in begin:
                    place = one.topic, one.partition
                    self.assigned[place] = AssignedPartition(place, one.offset)
                consumer.incremental_assign(begin)
                self._fresh += begin
        except ConnectionLost as error:
            self._fault = error
        self._has_joined = True

    def _on_revoke(self, _consumer: kafka.Consumer, places: list[kafka.TopicPartition]) -> None:
        gone = {(one.topic, one.partition) for one in places}
        for place in gone:
            self.assigned.pop(place, None)
        self._fresh = [one for one in self._fresh if (one.topic, one.partition) not in gone]
        self._forget(gone)

    def _on_commit(self, error: kafka.KafkaError | None, places: list[kafka.TopicPartition]) -> None:
        self._unanswered -= 1
        self._answered_s = time.monotonic()
        for place in places:
            failed = error or place.error
            if failed is not None and failed.code() in NOT_NOW:
                self._again.add((place.topic, place.partition))
            elif failed is not None and self._fault is None:
                self._fault = lost(self._where, failed, self._broker)


def _place_of(record: kafka.Message) -> Place:
    topic, partition = record.topic(), record.partition()
    assert topic is not None
    assert partition is not None
    return topic, partition
