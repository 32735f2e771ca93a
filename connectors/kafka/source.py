"""The source of Kafka: a member of the group of its receiver, which keeps an offset for each partition."""

import time
from collections.abc import Sequence

import confluent_kafka as kafka

from connectors.kafka.broker import KafkaBroker
from connectors.kafka.cluster import Cluster, Topic
from connectors.kafka.content import SOURCE_ID, UNIQUE_ID, Decoder
from connectors.kafka.destinations import Start
from connectors.kafka.member import GroupMember
from connectors.kafka.offsets import GroupOffsets
from connectors.kafka.partitions import Token
from correlator.connector import NOTHING, Backlog, Chunk
from correlator.errors import ConnectionLost
from correlator.processes import Maker
from correlator.settings import ReceiverSettings

_ANOTHER_LOOK_S = 0.1


class KafkaSource:
    """Reads a topic from the acknowledged offsets of its group.

    A group has one offset for each partition: everything before it is acknowledged. If messages are acknowledged in
    another order, those behind the oldest unacknowledged message come again after a reconnect.

    Args:
        broker: the cluster.
        topic: name of the topic.
        start: where to begin if the group has no offset for the topic.
        receiver: the settings of the receiver; its subscription is the name of the group.
    """

    def __init__(self, broker: KafkaBroker, topic: str, start: Start, receiver: ReceiverSettings) -> None:
        self._where = f"receivers.{receiver.id}"
        self._broker = broker
        self._name = topic
        self._start = start
        self._group = receiver.subscription
        self._most = receiver.max_batch_size
        self._most_bytes = receiver.max_batch_bytes
        self._most_message_bytes = receiver.max_message_bytes
        templates = (receiver.unique_message_id, receiver.message_source_id)
        self._wants_id = any(f"property.{UNIQUE_ID}" in template for template in templates)
        self._wants_source = any(f"property.{SOURCE_ID}" in template for template in templates)
        self._process = Maker()
        self._topic: Topic | None = None
        self._cluster: Cluster | None = None
        self._member: GroupMember | None = None
        self._looked_s = 0.0

    def connect(self) -> None:
        """Join the group; go on at its offsets, or store those where a new group begins.

        Does not wait for partitions longer than `timeout_s`: consumers that are gone or busy may hold them.
        Raises `ConnectionLost`: E7010 if there is no such topic; E7062 if the topic does not hold the next message any
        more; E7063 if `start` is `committed` and the group has no offset; W7020, once, if the topic was made again.
        """
        if self._member is not None:
            self._process.check(self._where)
        self.close()
        self._process = Maker()
        try:
            self._cluster = Cluster(self._where, self._broker)
            before, self._topic = self._topic, self._cluster.topic(self._name)
            was_other = before is not None and before.id != self._topic.id
            offsets = GroupOffsets(self._where, self._broker, self._group, self._topic)
            self._decoder = Decoder(
                self._topic.id, self._most_message_bytes, wants_id=self._wants_id, wants_source=self._wants_source
            )
            self._member = GroupMember(self._where, self._broker, self._group, self._name, offsets, self._most_bytes)
            self._member.join(self._start, was_other=was_other)
        except BaseException:
            self.close()
            raise

    def receive(self, max_messages: int, timeout_s: float) -> Chunk:
        """Take the next messages of the assigned partitions as `connector.Source.receive`."""
        member = self._connected()
        room = min(max_messages, self._most - sum(one.progress.held for one in member.assigned.values()))
        taken: list[tuple[Token, kafka.Message]] = []
        size = 0
        deadline = time.monotonic() + timeout_s
        while len(taken) < room:
            record = member.next(0.0 if taken else max(0.0, deadline - time.monotonic()))
            if record is None:
                if taken or time.monotonic() >= deadline:
                    break
                continue
            size += len(record)
            if taken and size > self._most_bytes:
                member.put_back(record)
                break
            if (token := member.take(record)) is not None:
                taken.append((token, record))
        taken = [(token, record) for token, record in taken if member.has(token.partition)]
        if not taken:
            return NOTHING
        self._check_topic()
        return Chunk([self._decoder.message(record) for _, record in taken], [token for token, _ in taken])

    def acknowledge(self, tokens: Sequence[Token]) -> None:
        """Commit the offsets that these messages move. A later call of the source takes the answer.

        Ignores messages of partitions that were taken away since they came: their next owner gets them again.
        """
        self._connected().acknowledge(tokens)

    def reject(self, tokens: Sequence[Token]) -> None:
        """Return these messages again, before any new message of their partitions. Other consumers do not get them."""
        self._connected().reject(tokens)

    def backlog(self) -> Backlog | None:
        """The offsets behind the position in the assigned partitions; `None` before all of them are known."""
        behind = self._connected().behind()
        return None if behind is None else Backlog(messages=behind)

    def close(self) -> None:
        """Leave the group; its other consumers get the unacknowledged messages. In a forked child it does nothing."""
        if self._process.is_another_process:
            return
        member, self._member = self._member, None
        if member is not None:
            member.close()
        cluster, self._cluster = self._cluster, None
        if cluster is not None:
            cluster.close()

    def _connected(self) -> GroupMember:
        self._process.check(self._where)
        if self._member is None:
            raise ConnectionLost("E7001", self._where, "not connected")
        self._member.check()
        return self._member

    def _check_topic(self) -> None:
        """Raise `ConnectionLost` if the topic is another one now: the client would go on at the same offsets.

        Asks after messages have come and before they are handed out, though not again within a moment: nobody deletes a
        topic, makes it and fills it in so short a time.
        """
        now_s = time.monotonic()
        if now_s - self._looked_s < _ANOTHER_LOOK_S:
            return
        assert self._cluster is not None
        assert self._topic is not None
        if self._cluster.topic(self._name).id != self._topic.id:
            raise ConnectionLost("E7018", self._where, f"the topic '{self._name}' was deleted")
        self._looked_s = now_s
