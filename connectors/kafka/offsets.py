"""The offsets of a group: where it continues in a topic, and where it begins.

The metadata of a committed offset is the id of its topic. If a topic is deleted and another one gets its name, an
offset of the first topic would skip messages of the second one. Tools that set offsets leave no metadata, and other
programs that were in the group may have left metadata of another form: such offsets count for the present topic.
"""

import re
from collections.abc import Collection, Mapping, Sequence

import confluent_kafka as kafka

from connectors.kafka.broker import KafkaBroker
from connectors.kafka.cluster import Topic
from connectors.kafka.destinations import Start
from connectors.kafka.failures import GONE, NO_POSITION
from connectors.kafka.patience import answer_within
from correlator.connector import NO_SUCH_DESTINATION
from correlator.errors import ConnectionLost, quoted

CHOOSE = "Choose where the group continues: kafka-consumer-groups.sh --reset-offsets"
NOT_NOW = frozenset(
    {
        kafka.KafkaError.UNKNOWN_MEMBER_ID,
        kafka.KafkaError.ILLEGAL_GENERATION,
        kafka.KafkaError.REBALANCE_IN_PROGRESS,
    }
)
"""Error codes of a commit by a consumer that is not a member of the group while the group has members,
or is changing.
"""
_TOPIC_ID = re.compile(r"[A-Za-z0-9_+/-]{22}")
"""The id of a topic, as text: 16 bytes in Base64, of which clients use both alphabets."""


class GroupOffsets:
    """The offsets of a group for its topics, used by one of its consumers. Methods also raise the errors of the
    library.

    Args:
        where: the receiver, for errors.
        broker: the cluster.
        group: the name of the group.

    Attributes:
        topics: the topics, by name; the owner may replace this mapping.
    """

    def __init__(self, where: str, broker: KafkaBroker, group: str, topics: Mapping[str, Topic]) -> None:
        self.topics = topics
        self._where = where
        self._timeout_s = broker.timeout_s
        self._group = group

    def mark(self, topic: str, partition: int, offset: int) -> kafka.TopicPartition:
        """Make an offset that can be committed."""
        return kafka.TopicPartition(topic, partition, offset, self.topics[topic].id)

    def begin(self, consumer: kafka.Consumer, start: Start, others: Collection[str]) -> None:
        """Store where a new group begins, so that a later start begins at the same place.

        If a topic is added to a group that has offsets, the group reads this topic from its first message.

        Args:
            consumer: a consumer that has not joined the group yet.
            start: where a group without offsets begins.
            others: other names of topics that the caller has read before.

        Raises `ConnectionLost`: E7063 if the group has no offset and needs one; E7062 if a partition does not hold the
        offset of `start`; E7010 if there is no such partition; W7020, once, if a topic is not the one to which its
        offsets belong: the group then begins with the first message of the topic.
        """
        places = [kafka.TopicPartition(one.name, at) for one in self.topics.values() for at in range(one.partitions)]
        committed = consumer.committed(places, self._timeout_s)
        begun = {place.topic for place in committed if self._is_of_topic(place)}
        not_ours = [place for place in committed if not self._is_of_topic(place)]
        made_again = {*others, *(place.topic for place in not_ours if place.offset >= 0)}
        if begun or made_again:
            start = Start("earliest")
        elif start.kind == "committed":
            names = ", ".join(f"'{name}'" for name in self.topics)
            what = f"the group {quoted(self._group)} has no offset for the topic {names}"
            todo = "Set its offsets, or choose another 'start'"
            raise ConnectionLost(NO_POSITION, self._where, what, "start: committed needs one", todo)
        elif unknown := start.offsets.keys() - {place.partition for place in places}:
            what = f"'start' has an offset for partition {min(unknown)}, which the topic does not have"
            raise ConnectionLost(NO_SUCH_DESTINATION, self._where, what)
        if new := [place for place in not_ours if place.offset >= 0 or place.topic not in begun]:
            first = [self.mark(one.topic, one.partition, self._first(consumer, one, start)) for one in new]
            self._commit(consumer, first)
        if made_again:
            names = ", ".join(f"'{name}'" for name in sorted(made_again))
            what = f"the topic {names} was deleted and made again; its messages are lost"
            raise ConnectionLost("W7020", self._where, what)

    def of(self, consumer: kafka.Consumer, places: Sequence[kafka.TopicPartition]) -> list[kafka.TopicPartition]:
        """Return where the group continues in these partitions. A partition without an offset is new: it begins at its
        start.

        Raises `ConnectionLost` E7062 if a partition does not contain the offset.
        """
        if not places:
            return []
        committed = consumer.committed(list(places), self._timeout_s)
        return [self.mark(place.topic, place.partition, self._checked(consumer, place)) for place in committed]

    def _is_of_topic(self, place: kafka.TopicPartition) -> bool:
        metadata = place.metadata or ""
        is_of_another = _TOPIC_ID.fullmatch(metadata) is not None and metadata != self.topics[place.topic].id
        return place.offset >= 0 and not is_of_another

    def _checked(self, consumer: kafka.Consumer, place: kafka.TopicPartition) -> int:
        low, high = consumer.get_watermark_offsets(place, self._timeout_s)
        if not self._is_of_topic(place):
            return low
        if not low <= place.offset <= high:
            raise self._gone(f"the group {quoted(self._group)} is", place, place.offset, low, high, CHOOSE)
        return place.offset

    def _gone(
        self, who: str, place: kafka.TopicPartition, offset: int, low: int, high: int, todo: str
    ) -> ConnectionLost:
        what = f"{who} at offset {offset} of partition {place.partition} of '{place.topic}', "
        what += f"which holds offsets {low} to {high}"
        return ConnectionLost(GONE, self._where, what, "Nothing is left out silently", todo)

    def _first(self, consumer: kafka.Consumer, place: kafka.TopicPartition, start: Start) -> int:
        """Return the offset in a partition at which a new group begins."""
        if start.kind == "time":
            asked = kafka.TopicPartition(place.topic, place.partition, start.time_ms)
            (found,) = consumer.offsets_for_times([asked], self._timeout_s)
            if found.offset >= 0:
                return found.offset
        low, high = consumer.get_watermark_offsets(place, self._timeout_s)
        if start.kind == "offsets":
            offset = start.offsets.get(place.partition, low)
            if not low <= offset <= high:
                raise self._gone("the receiver is to start", place, offset, low, high, "Correct 'start'")
            return offset
        return low if start.kind == "earliest" else high

    def _commit(self, consumer: kafka.Consumer, begin: list[kafka.TopicPartition]) -> None:
        try:
            answer_within(self._timeout_s, lambda: consumer.commit(offsets=begin, asynchronous=False))
        except kafka.KafkaException as error:
            if error.args[0].code() not in NOT_NOW:  # if the group has consumers, they have chosen
                raise
