"""The link of a source or sink to Pulsar: its own client. The thread of the source or sink owns it.

The client has threads of its own, which reconnect by themselves. Every call here ends after `timeout_s` at the latest.
A process that is forked later must not use the client.
"""

import contextlib
import os
import re
import zlib
from collections.abc import Callable
from typing import Any, TypeVar

import pulsar

from connectors.pulsar.broker import PulsarBroker
from connectors.pulsar.content import DEFAULT_PRIORITY, MESSAGE_ID, PRIORITY
from connectors.pulsar.destinations import EXCLUSIVE, FAILOVER, KEY_SHARED, SHARED, PulsarSubscription
from connectors.pulsar.failures import lost, not_connected, not_subscribed, of_name
from connectors.pulsar.handshake import shake_hands
from connectors.pulsar.priorities import partition_of
from connectors.pulsar.redelivery import DeadLetterPolicy
from correlator.errors import ConnectionLost

_TYPES = {
    SHARED: pulsar.ConsumerType.Shared,
    EXCLUSIVE: pulsar.ConsumerType.Exclusive,
    FAILOVER: pulsar.ConsumerType.Failover,
    KEY_SHARED: pulsar.ConsumerType.KeyShared,
}
_POSITIONS = {"earliest": pulsar.InitialPosition.Earliest, "latest": pulsar.InitialPosition.Latest}
_READ_AHEAD = 100
_HASHES = 2**32
_ADVERTISED = {"jms.priority": "enabled"}
"""The property by which a producer or consumer tells the broker that it uses priorities."""
_NOWHERE = pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull)
"""The client logs nothing, since errors report the same. Its threads could block the process in a Python logger."""
_T = TypeVar("_T")


class PulsarLink:
    """A client of Pulsar.

    Args:
        where: the receiver or sender, for messages.
        broker: the options of the connection.
    """

    def __init__(self, where: str, broker: PulsarBroker) -> None:
        self._where = where
        self._broker = broker
        self._client: pulsar.Client | None = None

    def open(self) -> None:
        """Check that the broker accepts a connection, and make the client. Raises `ConnectionLost`."""
        shake_hands(self._where, self._broker)
        broker = self._broker
        has_token = bool(broker.token or broker.token_file)
        self._client = pulsar.Client(
            broker.service_url,
            authentication=pulsar.AuthenticationToken(self._token) if has_token else None,
            operation_timeout_seconds=broker.timeout_s,
            connection_timeout_ms=broker.timeout_s * 1000,
            stats_interval_in_seconds=0,
            tls_trust_certs_file_path=broker.trusted if broker.is_encrypted else None,
            tls_validate_hostname=True,
            logger=_NOWHERE,
        )

    def subscribe(self, subscription: PulsarSubscription, waiting: int) -> pulsar.Consumer:
        """Consume a subscription, with a receiver queue of `waiting` messages. Raises `ConnectionLost`."""
        client = self._connected()
        if subscription.pattern:
            client._client = _Discovering(client._client, subscription.discovery_s)  # noqa: SLF001
        try:
            return self.call(subscription.topic, lambda: self._subscribe(subscription, waiting))
        except ConnectionLost as error:
            if isinstance(error.__cause__, pulsar.exceptions.Timeout):
                raise not_subscribed(self._where, subscription.topic, self._broker) from error
            raise

    def keep(self, subscription: PulsarSubscription) -> None:
        """Make the subscription if it does not exist, without consuming. Raises `PulsarException`.

        Does nothing if this client may not subscribe, or if another consumer has the subscription.
        """
        with contextlib.suppress(
            pulsar.exceptions.AuthorizationError,
            pulsar.exceptions.ConsumerBusy,
            pulsar.exceptions.SubscriptionNotFound,
            pulsar.exceptions.NotAllowedError,
        ):
            try:
                self._subscribe(subscription, 0).close()
            except pulsar.exceptions.InvalidConfiguration:  # a topic with partitions needs a receiver queue
                self._subscribe(subscription, 1).close()

    def producer(self, topic: str, name: str) -> pulsar.Producer:
        """Make a producer without a send time-out: an unsent message waits, so that no later one overtakes it.

        Raises `PulsarException`, whose meaning depends on the caller.
        """
        mapping = self._broker.priority_mapping
        return self._connected().create_producer(
            topic,
            name or None,
            send_timeout_millis=0,
            max_pending_messages=0,
            properties={**_ADVERTISED, "jms.priorityMapping": mapping} if mapping else None,
            message_router=_router(name, mapping),
        )

    def partitions(self, topic: str) -> list[str]:
        """Return the partitions of a topic; the topic itself if it has none. Raises `ConnectionLost`."""
        return list(self.call(topic, lambda: self._connected().get_topic_partitions(topic)))

    def schema(self, topic: str, version: int) -> Any:
        """Return a version of a topic's schema from the registry; `None` if there is none. Raises `ConnectionLost`."""
        client = self._connected()._client  # noqa: SLF001  # the outer one has no such method
        try:
            return self.call(topic, lambda: client.get_schema_info(topic, version))
        except ConnectionLost as error:
            if isinstance(error.__cause__, pulsar.exceptions.TopicNotFound):
                return None
            raise

    def reader(self, topic: str, ledger: int, entry: int) -> pulsar.Reader:
        """Make a reader that begins after an entry and needs no subscription. Raises `ConnectionLost`.

        It requests a hundred messages at a time. With very few it could wait for ever: the client drops the messages of
        the entry itself without requesting others in their place.
        """
        begin = pulsar.MessageId.earliest if ledger < 0 else pulsar.MessageId(-1, ledger, entry, -1)
        return self.call(topic, lambda: self._connected().create_reader(topic, begin, receiver_queue_size=_READ_AHEAD))

    def call(self, topic: str, function: Callable[[], _T]) -> _T:
        """Call a function that concerns a topic; an error of the client becomes `ConnectionLost`."""
        try:
            return function()
        except pulsar.PulsarException as error:
            raise lost(self._where, of_name(error), topic, self._broker) from error

    def close(self) -> None:
        """Close the client, in an orderly way if the broker answers. Never raises."""
        client, self._client = self._client, None
        if client is None:
            return
        try:
            client.close()
        except pulsar.PulsarException:
            client.shutdown()
        client._consumers.clear()  # noqa: SLF001  # they refer to the client, and keep it and its threads alive

    def _connected(self) -> pulsar.Client:
        if self._client is None:
            raise not_connected(self._where)
        return self._client

    def _subscribe(self, subscription: PulsarSubscription, waiting: int) -> pulsar.Consumer:
        ack_timeout_s = self._broker.ack_timeout_s
        return self._connected().subscribe(
            re.compile(subscription.pattern)
            if subscription.pattern
            else list(subscription.topics) or subscription.topic,
            subscription.name,
            consumer_type=_TYPES[subscription.subscription_type],
            initial_position=_POSITIONS[subscription.initial_position],
            receiver_queue_size=waiting,
            negative_ack_redelivery_delay_ms=round(subscription.backoff.min_delay_s * 1000),
            unacked_messages_timeout_ms=None if ack_timeout_s is None else round(ack_timeout_s * 1000),
            dead_letter_policy=_policy(subscription.dead_letters),
            properties=_ADVERTISED if self._broker.priority_mapping else None,
        )

    def _token(self) -> str:
        """Return the token. Threads of the client call this; an exception in them would end the process."""
        try:
            return self._broker.current_token()
        except (OSError, ValueError):
            return ""


class _Discovering:
    """The inner client, with a discovery interval for patterns, which the outer client does not pass on."""

    def __init__(self, client: Any, discovery_s: int) -> None:
        self._client = client
        self._discovery_s = discovery_s

    def subscribe_pattern(self, pattern: str, subscription: str, configuration: Any) -> Any:
        configuration.pattern_auto_discovery_period(self._discovery_s)
        return self._client.subscribe_pattern(pattern, subscription, configuration)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)


def _policy(policy: DeadLetterPolicy | None) -> pulsar.ConsumerDeadLetterPolicy | None:
    if policy is None:
        return None
    return pulsar.ConsumerDeadLetterPolicy(
        policy.max_redeliver_count, policy.dead_letter_topic, policy.initial_subscription_name
    )


def _router(name: str, mapping: str) -> Callable[[pulsar.Message, int], int] | None:
    """Return a function that chooses partitions; `None` for the client's own choice.

    A partition recognises only its own repeats, so a repeated message must always use the same partition.
    """
    if mapping:
        return lambda message, partitions: _by_priority(message, partitions, mapping)
    if name:
        return lambda message, partitions: _hash(message.partition_key() or name) % partitions
    return None


def _by_priority(message: pulsar.Message, partitions: int, mapping: str) -> int:
    """Return a partition for the priority of a message: the same for each key; messages without a key are spread."""
    properties = message.properties()
    share = _hash(message.partition_key() or properties[MESSAGE_ID]) / _HASHES
    return partition_of(int(properties.get(PRIORITY, DEFAULT_PRIORITY)), share, partitions, mapping)


def _hash(text: str) -> int:
    return zlib.crc32(text.encode())
