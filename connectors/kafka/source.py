"""The source of Kafka: a member of the group of its receiver, which keeps an offset for each partition."""

import math
import time
from collections.abc import Collection, Mapping, Sequence

from connectors.ids import WantedIds
from connectors.kafka.broker import KafkaBroker
from connectors.kafka.cluster import Cluster, Topic
from connectors.kafka.content import Decoder
from connectors.kafka.destinations import Start, Topics, uses_schema
from connectors.kafka.member import GroupMember
from connectors.kafka.offsets import GroupOffsets
from connectors.kafka.partitions import Token
from connectors.kafka.registry import Schemas
from connectors.kafka.schemas import BodyReader
from correlator.connector import NO_SUCH_DESTINATION, NOTHING, Backlog, Chunk
from correlator.errors import ConnectionLost, quoted
from correlator.events import Message
from correlator.processes import Maker
from correlator.settings import ReceiverSettings

_ANOTHER_LOOK_S = 0.1


class KafkaSource:
    """Reads topics from the acknowledged offsets of its group.

    A group has one offset for each partition: all messages before it are acknowledged. If messages are acknowledged in
    another order, those after the oldest unacknowledged message are redelivered after a reconnect.

    Args:
        broker: the cluster.
        topics: the topics to read.
        start: where to begin if the group has no offsets for them.
        receiver: the settings of the receiver; its subscription is the name of the group.
    """

    def __init__(self, broker: KafkaBroker, topics: Topics, start: Start, receiver: ReceiverSettings) -> None:
        self._where = f"receivers.{receiver.id}"
        self._broker = broker
        self._wanted = topics
        self._start = start
        self._group = receiver.subscription
        self._most = receiver.max_batch_size
        self._most_bytes = receiver.max_batch_bytes
        self._most_message_bytes = receiver.max_message_bytes
        self._wanted_ids = WantedIds.of(receiver)
        registry = broker.registry if uses_schema(receiver, broker) else None
        self._reader = None if registry is None else BodyReader(Schemas(self._where, registry))
        self._process = Maker()
        self._topics: Mapping[str, Topic] = {}
        self._decoders: Mapping[str, Decoder] = {}
        self._cluster: Cluster | None = None
        self._offsets: GroupOffsets | None = None
        self._member: GroupMember | None = None
        self._looked_s: dict[str, float] = {}
        self._discovered_s = 0.0

    def connect(self) -> None:
        """Join the group and continue at its offsets, or store where a new group begins. `UsageError` E2050 in a forked
        child.

        Waits at most `timeout_s` for partitions, because other consumers that are gone or busy may hold them.
        Raises `ConnectionLost`: E7010 if there is no such topic or partition; E7062 if a topic does not hold the next
        message any more; E7063 if `start` is `committed` and the group has no offset; W7020, once, if a topic was made
        again.
        """
        if self._member is not None:
            self._process.check(self._where)
        self.close()
        self._process = Maker()
        try:
            self._cluster = cluster = Cluster(self._where, self._broker)
            before, topics = self._topics, cluster.topics(self._names(cluster))
            others = [name for name, one in topics.items() if name in before and before[name].id != one.id]
            self._know(topics)
            self._offsets = GroupOffsets(self._where, self._broker, self._group, topics)
            self._member = GroupMember(self._where, self._broker, self._group, self._offsets, self._most_bytes)
            self._member.join(self._start, others)
        except BaseException:
            self.close()
            raise

    def receive(self, max_messages: int, timeout_s: float) -> Chunk:
        """Take the next messages of the assigned partitions as `connector.Source.receive`.

        Raises `ConnectionLost` E7150 or E7151 while the registry does not have a schema, or does not answer.
        `BodyReader` says how long it waits for a schema.
        """
        member = self._connected()
        self._discover(member)
        room = min(max_messages, self._most - member.held)
        deadline = time.monotonic() + timeout_s
        while room > 0:
            parts = member.take(room, max(0.0, deadline - time.monotonic()))
            if parts:
                self._check_topics({part.topic for part in parts})
                messages: list[Message] = []
                for part in parts:
                    messages += self._decoders[part.topic].messages(part.partition, part.records)
                if self._reader is not None:
                    messages = [self._reader.read(one) for one in messages]
                return Chunk(messages, [token for part in parts for token in part.tokens])
            if time.monotonic() >= deadline:
                break
        return NOTHING

    def acknowledge(self, tokens: Sequence[Token]) -> None:
        """Commit the offsets that these messages move. A later call of the source reads the cluster's answer.

        Ignores messages of partitions that moved to another consumer meanwhile: that consumer receives them again.
        """
        self._connected().acknowledge(tokens)

    def reject(self, tokens: Sequence[Token]) -> None:
        """Give these messages back: `receive` returns them again, before any new one of their partitions.

        Other consumers do not get them.
        """
        self._connected().reject(tokens)

    def backlog(self) -> Backlog | None:
        """Return the number of offsets after the position in the assigned partitions; `None` before all
        positions are known.
        """
        behind = self._connected().behind()
        return None if behind is None else Backlog(messages=behind)

    def close(self) -> None:
        """Leave the group; its other consumers receive the unacknowledged messages. Does nothing in a forked child."""
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

    def _names(self, cluster: Cluster) -> Sequence[str]:
        """Return the names of the topics to read. Raises `ConnectionLost` E7010 if none matches the pattern."""
        if self._wanted.pattern is None:
            return [self._wanted.text]
        self._discovered_s = time.monotonic()
        names = self._wanted.among(cluster.names())
        if not names:
            what = f"no topic matches {quoted(self._wanted.text)}"
            raise ConnectionLost(NO_SUCH_DESTINATION, self._where, what, "", "Create a topic; the engine waits for it")
        return names

    def _know(self, topics: Mapping[str, Topic]) -> None:
        self._topics = topics
        self._looked_s = {name: looked_s for name, looked_s in self._looked_s.items() if name in topics}
        wanted = self._wanted_ids
        self._decoders = {
            name: Decoder(one.id, self._most_message_bytes, wants_id=wanted.unique_id, wants_source=wanted.source_id)
            for name, one in topics.items()
        }

    def _discover(self, member: GroupMember) -> None:
        """Look for new topics that match the pattern, if that is due. Raises `ConnectionLost` if a topic is gone."""
        if self._wanted.pattern is None or time.monotonic() < self._discovered_s + self._broker.discovers_s:
            return
        assert self._cluster is not None
        assert self._offsets is not None
        names = self._names(self._cluster)
        for gone in self._topics.keys() - names:
            raise ConnectionLost("E7018", self._where, f"the topic '{gone}' was deleted")
        if new := [name for name in names if name not in self._topics]:
            self._know({**self._topics, **self._cluster.topics(new)})
            self._offsets.topics = self._topics
            member.subscribe()

    def _check_topics(self, names: Collection[str]) -> None:
        """Raise `ConnectionLost` if one of these topics was deleted and made again: the client would keep its offsets.

        Checks after messages have arrived and before they are delivered, but not a topic that it checked a moment
        before: nobody deletes a topic, makes it and fills it in so short a time.
        """
        now_s = time.monotonic()
        if all(now_s - self._looked_s.get(name, -math.inf) < _ANOTHER_LOOK_S for name in names):
            return
        assert self._cluster is not None
        for name, topic in self._cluster.topics(names).items():
            if topic.id != self._topics[name].id:
                raise ConnectionLost("E7018", self._where, f"the topic '{name}' was deleted")
            self._looked_s[name] = now_s
