"""One consumer of the client library from its making to its end: a member of a group.

The cluster divides the partitions of the topic among the members. It tells of each change while the member asks for
records. When a partition goes to another member, this one forgets what it has taken from it: the other one begins at
the acknowledged offset.
"""

import time
from collections import deque
from collections.abc import Iterable
from contextlib import AbstractContextManager, suppress

import confluent_kafka as kafka

from connectors.kafka.broker import LOG, KafkaBroker
from connectors.kafka.destinations import Start
from connectors.kafka.failures import GONE, Complaints, lost, timed_out, translated
from connectors.kafka.offsets import CHOOSE, NOT_NOW, GroupOffsets
from connectors.kafka.partitions import AssignedPartition, Token
from connectors.kafka.patience import answer_within
from correlator.errors import ConnectionLost
from correlator.processes import never_finalize

_LOOK_S = 0.1
_KB = 1024


class GroupMember:
    """A member of a group. Owned by the thread of its source, until `close`.

    Args:
        where: the receiver, for errors.
        broker: the cluster.
        group: name of the group.
        topic: name of the topic.
        offsets: those of the group.
        batch_bytes: the most bytes of a batch, which bound what it fetches ahead.

    Attributes:
        assigned: its partitions by number.
    """

    def __init__(
        self, where: str, broker: KafkaBroker, group: str, topic: str, offsets: GroupOffsets, batch_bytes: int
    ) -> None:
        self._where = where
        self._broker = broker
        self._topic = topic
        self._offsets = offsets
        self.assigned: dict[int, AssignedPartition] = {}
        self._waiting: deque[kafka.Message] = deque()
        self._complaints = Complaints()
        self._fault: ConnectionLost | None = None
        self._has_joined = False
        self._unanswered = 0
        self._answered_s = 0.0
        self._again: set[int] = set()
        """Partitions whose offset was not stored since the members of the group were changing."""
        ahead_kb = max(_KB, min(64 * _KB, 2 * batch_bytes // _KB))
        bounds = {"queued.max.messages.kbytes": ahead_kb, "fetch.message.max.bytes": _KB * _KB}
        callbacks = {"error_cb": self._complaints, "on_commit": self._on_commit}
        never_finalize(self)
        with self._translated():
            self._consumer = kafka.Consumer({**bounds, **broker.of_consumer(group), **callbacks}, logger=LOG)

    def join(self, start: Start, *, was_other: bool) -> None:
        """Join the group, and wait for the first partitions, at most as long as for an answer.

        The arguments and errors are those of `GroupOffsets.begin`; also E7062.
        """
        with self._translated():
            self._offsets.begin(self._consumer, start, was_other=was_other)
            changes = {"on_assign": self._on_assign, "on_revoke": self._on_revoke, "on_lost": self._on_revoke}
            self._consumer.subscribe([self._topic], **changes)
        deadline = time.monotonic() + self._broker.timeout_s
        while not self._has_joined and time.monotonic() < deadline:
            if (record := self._poll(_LOOK_S)) is not None:
                self._waiting.append(record)

    def check(self) -> None:
        """Raise `ConnectionLost` after a fault."""
        if self._fault is not None:
            raise self._fault

    def next(self, timeout_s: float) -> kafka.Message | None:
        """The next record, `None` if none comes in time. Raises `ConnectionLost`."""
        return self._waiting.popleft() if self._waiting else self._poll(timeout_s)

    def put_back(self, record: kafka.Message) -> None:
        """Let a record be the next one."""
        self._waiting.appendleft(record)

    def take(self, record: kafka.Message) -> Token | None:
        """Hold a record; `None` if it is not to be delivered."""
        one = self.assigned.get(_partition_of(record))
        number = None if one is None else one.take(record.offset() or 0)
        return None if one is None or number is None else Token(one, number)

    def has(self, one: AssignedPartition) -> bool:
        """Whether a partition is still assigned since the same time."""
        return self.assigned.get(one.number) is one

    def acknowledge(self, tokens: Iterable[Token]) -> None:
        """Ask the cluster to store the offsets that these messages move."""
        moved = [
            self._offsets.mark(one.number, self._position(one))
            for one, numbers in self._by_partition(tokens)
            if one.progress.acknowledge(numbers)
        ]
        self._commit(moved)

    def reject(self, tokens: Iterable[Token]) -> None:
        """Give messages back: they come again before any new one of their partitions."""
        for one, numbers in self._by_partition(tokens):
            one.progress.reject(numbers)
            self._forget({one.number})
            start, _ = one.progress.next()
            with self._translated():
                self._consumer.seek(kafka.TopicPartition(self._topic, one.number, start))

    def behind(self) -> int | None:
        """How many offsets lie behind the position in the assigned partitions; `None` if that is not known of all."""
        behind = len(self._waiting)
        for one in self.assigned.values():
            place = kafka.TopicPartition(self._topic, one.number)
            _, high = self._consumer.get_watermark_offsets(place, cached=True)
            if high < 0:
                return None
            (place,) = self._consumer.position([place])
            behind += max(0, high - max(place.offset, one.progress.position))
        return behind

    def close(self) -> None:
        """Leave the group. If the cluster does not answer in time, a thread goes on waiting for it."""
        with suppress(kafka.KafkaException, RuntimeError):
            answer_within(self._broker.timeout_s, self._consumer.close)

    # --- records ---

    def _translated(self) -> AbstractContextManager[None]:
        return translated(self._where, self._broker, self._complaints)

    def _poll(self, timeout_s: float) -> kafka.Message | None:
        """Ask for a record, and serve changes of the group meanwhile."""
        if self._again:
            again = [one for one in self.assigned.values() if one.number in self._again]
            self._again.clear()
            self._commit([self._offsets.mark(one.number, self._position(one)) for one in again])
        with self._translated():
            record = self._consumer.poll(timeout_s)
            if self._unanswered and time.monotonic() > self._answered_s + self._broker.timeout_s:
                raise timed_out("a commit of offsets was not answered")
        self.check()
        if (serious := self._complaints.serious) is not None:
            raise lost(self._where, serious, self._broker, self._complaints)
        if record is not None and (error := record.error()) is not None:
            raise self._of_record(record, error)
        return record

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
        """The tokens of the partitions that are still assigned."""
        numbers: dict[int, list[int]] = {}
        for one, number in tokens:
            if self.has(one):
                numbers.setdefault(one.number, []).append(number)
        return [(self.assigned[partition], its) for partition, its in numbers.items()]

    def _position(self, one: AssignedPartition) -> int:
        """The offset to commit: if all is acknowledged, also behind what is no message, as the end of a transaction."""
        position, until = one.progress.next()
        waits = any(_partition_of(record) == one.number for record in self._waiting)
        if one.progress.held or until is not None or waits:
            return one.progress.position
        (place,) = self._consumer.position([kafka.TopicPartition(self._topic, one.number)])
        return max(position, place.offset)

    def _forget(self, partitions: set[int]) -> None:
        """Drop what was fetched of these partitions and not taken."""
        self._waiting = deque(record for record in self._waiting if _partition_of(record) not in partitions)

    # --- what the client calls within `poll` and `close` ---

    def _on_assign(self, consumer: kafka.Consumer, places: list[kafka.TopicPartition]) -> None:
        try:
            with self._translated():
                begin = self._offsets.of(consumer, places)
                self.assigned.update((one.partition, AssignedPartition(one.partition, one.offset)) for one in begin)
                consumer.incremental_assign(begin)
        except ConnectionLost as error:
            self._fault = error
        self._has_joined = True

    def _on_revoke(self, _consumer: kafka.Consumer, places: list[kafka.TopicPartition]) -> None:
        gone = {place.partition for place in places}
        for partition in gone:
            self.assigned.pop(partition, None)
        self._forget(gone)

    def _on_commit(self, error: kafka.KafkaError | None, places: list[kafka.TopicPartition]) -> None:
        self._unanswered -= 1
        self._answered_s = time.monotonic()
        for place in places:
            failed = error or place.error
            if failed is not None and failed.code() in NOT_NOW:
                self._again.add(place.partition)
            elif failed is not None and self._fault is None:
                self._fault = lost(self._where, failed, self._broker)


def _partition_of(record: kafka.Message) -> int:
    partition = record.partition()
    assert partition is not None
    return partition
