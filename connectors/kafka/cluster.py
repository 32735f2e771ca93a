"""Asks a cluster about its topics and their limits. Changes nothing.

It does not ask about groups: in librdkafka 2.16 that call ends the process if the broker goes away meanwhile.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import confluent_kafka as kafka
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ConfigResource,
    OffsetSpec,
    ResourceType,
    TopicDescription,
)

from connectors.kafka.broker import KafkaBroker
from connectors.kafka.failures import Complaints, translated
from connectors.kafka.log import LOG

DEFAULT_LIMIT = 1_000_000
"""Limit in bytes of a message if the user may not see the limit of its topic."""
_UNSEEN = (kafka.KafkaError.TOPIC_AUTHORIZATION_FAILED, kafka.KafkaError.CLUSTER_AUTHORIZATION_FAILED)


class Topic(NamedTuple):
    """A topic.

    Attributes:
        name: its name.
        id: differs after the topic was deleted and made again.
        partitions: number of partitions.
        replicas: smallest number of replicas of a partition.
    """

    name: str
    id: str
    partitions: int
    replicas: int


class Rules(NamedTuple):
    """What a topic demands of a message: a largest number of bytes, and a key if the topic is compacted.

    Attributes:
        in_sync: number of replicas that must be in sync; otherwise the topic takes no message.
    """

    most_bytes: int = DEFAULT_LIMIT
    needs_key: bool = False
    in_sync: int = 1


class Cluster:
    """A client that asks the cluster, until `close`. One thread uses it; `where` names the receiver or
    sender in errors. Raises `ConnectionLost` E7016 if the files for TLS cannot be used.
    """

    def __init__(self, where: str, broker: KafkaBroker) -> None:
        self._where = where
        self._broker = broker
        self._complaints = Complaints()
        with translated(where, broker):
            self._client = AdminClient(broker.common() | {"error_cb": self._complaints}, logger=LOG)

    def close(self) -> None:
        """Close the connections to the cluster. No other method may be called afterwards."""
        del self._client

    def check(self) -> None:
        """Raise `ConnectionLost` if the cluster does not answer."""
        with self._translated():
            self._client.describe_cluster(request_timeout=self._broker.timeout_s).result()

    def names(self) -> Collection[str]:
        """Return the names of all topics that the user may see."""
        with self._translated():
            return self._client.list_topics(timeout=self._broker.timeout_s).topics

    def topics(self, names: Collection[str]) -> Mapping[str, Topic]:
        """Return the topics with these names. Raises `ConnectionLost` E7010 if one does not exist."""
        with self._translated():
            wanted = kafka.TopicCollection(list(names))
            asked = self._client.describe_topics(wanted, request_timeout=self._broker.timeout_s)
            found = {name: one.result() for name, one in asked.items()}
        return {name: _topic(name, found[name]) for name in names}

    def topic(self, name: str) -> Topic:
        """Return the topic with this name. Raises `ConnectionLost` E7010 if it does not exist."""
        return self.topics([name])[name]

    def rules(self, names: Collection[str]) -> Mapping[str, Rules]:
        """Return what topics demand, as far as the user may see it. Raises `ConnectionLost` E7010 if
        one does not exist.
        """
        rules = {}
        resources = [ConfigResource(ResourceType.TOPIC, name) for name in names]
        with self._translated():
            asked = self._client.describe_configs(resources, request_timeout=self._broker.timeout_s)
            for resource, answer in asked.items():
                try:
                    found = {name: entry.value or "" for name, entry in answer.result().items()}
                except kafka.KafkaException as error:
                    if error.args[0].code() not in _UNSEEN:
                        raise
                    rules[self.topic(resource.name).name] = Rules()
                else:
                    policies = found["cleanup.policy"].split(",")
                    in_sync = int(found["min.insync.replicas"])
                    rules[resource.name] = Rules(int(found["max.message.bytes"]), "compact" in policies, in_sync)
        return rules

    def settings(self) -> Mapping[str, str] | None:
        """Return the settings of one of the brokers; `None` if the user may not see them."""
        with self._translated():
            nodes = self._client.describe_cluster(request_timeout=self._broker.timeout_s).result().nodes
            resource = ConfigResource(ResourceType.BROKER, str(nodes[0].id))
            asked = self._client.describe_configs([resource], request_timeout=self._broker.timeout_s)
            try:
                found = asked[resource].result()
            except kafka.KafkaException as error:
                if error.args[0].code() not in _UNSEEN:
                    raise
                return None
        return {name: entry.value for name, entry in found.items() if entry.value is not None}

    def held_back(self, topic: Topic) -> Sequence[kafka.TopicPartition]:
        """Return the first offset of each partition where an open transaction holds up readers of
        committed messages.
        """
        end = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        latest = {kafka.TopicPartition(topic.name, number): end for number in range(topic.partitions)}
        ends = []
        with self._translated():
            for isolation in (kafka.IsolationLevel.READ_COMMITTED, kafka.IsolationLevel.READ_UNCOMMITTED):
                asked = self._client.list_offsets(
                    latest, isolation_level=isolation, request_timeout=self._broker.timeout_s
                )
                ends.append({place.partition: answer.result().offset for place, answer in asked.items()})
        committed, all_ = ends
        return [
            kafka.TopicPartition(topic.name, number, end) for number, end in committed.items() if end < all_[number]
        ]

    @contextmanager
    def _translated(self) -> Iterator[None]:
        with translated(self._where, self._broker, self._complaints):
            try:
                yield
            except kafka.KafkaException:
                self._client.poll(0)  # the client passes its errors to `Complaints`
                raise


def _topic(name: str, found: TopicDescription) -> Topic:
    replicas = min(len(one.replicas) for one in found.partitions)
    return Topic(name, str(found.topic_id), len(found.partitions), replicas)
