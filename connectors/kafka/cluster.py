"""Asks a cluster about its topics and their limits. Changes nothing.

It does not ask about groups: in librdkafka 2.16 that call ends the process if the broker goes away meanwhile.
"""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

import confluent_kafka as kafka
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType  # type: ignore[attr-defined]

from connectors.kafka.broker import LOG, KafkaBroker
from connectors.kafka.failures import Complaints, translated

DEFAULT_LIMIT = 1_000_000
"""Bytes of a message if the user may not see the limit of its topic."""
_UNSEEN = (kafka.KafkaError.TOPIC_AUTHORIZATION_FAILED, kafka.KafkaError.CLUSTER_AUTHORIZATION_FAILED)


class Topic(NamedTuple):
    """A topic: its id, which is another one after the topic was deleted and made again, and its partitions."""

    name: str
    id: str
    partitions: int


class Rules(NamedTuple):
    """What a topic demands of a message: at most so many bytes, and a key if it is compacted."""

    most_bytes: int = DEFAULT_LIMIT
    needs_key: bool = False


class Cluster:
    """A client for questions, until `close`. One thread uses it; `where` names the receiver or sender in errors."""

    def __init__(self, where: str, broker: KafkaBroker) -> None:
        self._where = where
        self._broker = broker
        self._complaints = Complaints()
        self._client = AdminClient(broker.common() | {"error_cb": self._complaints}, logger=LOG)

    def close(self) -> None:
        """Close the connections."""
        del self._client

    def check(self) -> None:
        """Raise `ConnectionLost` if the cluster does not answer."""
        with self._translated():
            self._client.describe_cluster(request_timeout=self._broker.timeout_s).result()

    def topic(self, name: str) -> Topic:
        """The topic. Raises `ConnectionLost` E7010 if there is none."""
        with self._translated():
            asked = self._client.describe_topics(kafka.TopicCollection([name]), request_timeout=self._broker.timeout_s)
            found = asked[name].result()
        return Topic(name, str(found.topic_id), len(found.partitions))

    def rules(self, names: Collection[str]) -> Mapping[str, Rules]:
        """What topics demand, as far as the user may see it. Raises `ConnectionLost` E7010 if one is missing."""
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
                    rules[resource.name] = Rules(int(found["max.message.bytes"]), "compact" in policies)
        return rules

    @contextmanager
    def _translated(self) -> Iterator[None]:
        with translated(self._where, self._broker, self._complaints):
            try:
                yield
            except kafka.KafkaException:
                self._client.poll(0)  # the client says what it complains about
                raise
