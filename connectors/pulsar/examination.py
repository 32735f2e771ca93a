"""Finds for `correlator doctor` what in a Pulsar cluster would stop receivers and senders, lose messages, or store them
twice.

It reads the policies of namespaces and the settings of the brokers, which only the REST interface shows. It does not
examine policies of single topics.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from connectors.pulsar import rest
from connectors.pulsar.broker import PulsarBroker
from connectors.pulsar.destinations import route_of_sender, subscription_of_receiver
from connectors.pulsar.handshake import shake_hands
from correlator.connector import NO_SUCH_DESTINATION
from correlator.errors import ConfigError, ConnectionLost, CorrelatorError, quoted
from correlator.reliability import Reliability
from correlator.settings import ReceiverSettings, SenderSettings

_FORBIDDEN = ("E7002", "E7007")
"""Codes for a user without rights: brokers answer 401 also to a user whose token they have accepted."""
_EVICTS = "consumer_backlog_eviction"
_ADMIN = "pulsar-admin namespaces"


def examine(
    where: str, broker: PulsarBroker, receivers: Sequence[ReceiverSettings], senders: Sequence[SenderSettings]
) -> Iterator[CorrelatorError]:
    """Yield findings; changes nothing.

    Args:
        where: the connection, for errors.
        broker: the cluster.
        receivers: those of the connection.
        senders: those of the connection.
    """
    parts = [*(_of_receiver(one, broker) for one in receivers), *(_of_sender(one, broker) for one in senders)]
    try:
        shake_hands(where, broker)
        if broker.web_service_url:
            yield from _of_cluster(where, broker, parts)
        else:
            yield _unseen(where, "only the REST interface shows the policies of namespaces", "Set web_service_url")
    except ConnectionLost as error:
        yield error


class _Part(NamedTuple):
    """A receiver or sender.

    Attributes:
        where: its name in errors.
        topics: full names of its topics, or a pattern for them; none for a sender whose messages name their topics.
        is_pattern: whether `topics` has a pattern.
        takes: whether it is a receiver.
        is_reliable: whether it must lose no message.
    """

    where: str
    topics: Sequence[str]
    is_pattern: bool
    takes: bool
    is_reliable: bool

    def has_topics_in(self, namespace: str) -> bool:
        """Whether one of its topics is in the namespace."""
        return any(_namespace_of(topic) == namespace for topic in self.topics)


def _of_receiver(receiver: ReceiverSettings, broker: PulsarBroker) -> _Part:
    found = subscription_of_receiver(receiver, broker)
    topics = [found.pattern] if found.pattern else found.topics or [found.topic]
    is_reliable = receiver.reliability != Reliability.BEST_EFFORT
    return _Part(f"receivers.{receiver.id}", topics, bool(found.pattern), takes=True, is_reliable=is_reliable)


def _of_sender(sender: SenderSettings, broker: PulsarBroker) -> _Part:
    topic = route_of_sender(sender, broker).topic
    is_reliable = sender.reliability != Reliability.BEST_EFFORT
    return _Part(f"senders.{sender.id}", [topic] if topic else [], False, takes=False, is_reliable=is_reliable)


def _namespace_of(topic: str) -> str:
    """Return `TENANT/NAMESPACE` of the full name of a topic, or of a pattern for such names."""
    return "/".join(rest.parts_of(topic)[:2])


def _of_cluster(where: str, broker: PulsarBroker, parts: Sequence[_Part]) -> Iterator[CorrelatorError]:
    try:
        defaults = rest.ask_about(where, broker, "brokers", "configuration", "runtime")
    except ConnectionLost as error:
        if error.code not in _FORBIDDEN:
            raise
        yield _unseen(where, "the user may not see the settings of the brokers", "Let a superuser examine it")
        defaults = {}
    for namespace in sorted({_namespace_of(topic) for part in parts for topic in part.topics}):
        here = [part for part in parts if part.has_topics_in(namespace)]
        try:
            policies = _Policies(rest.ask_about(where, broker, "namespaces", *namespace.split("/")), defaults)
            if not policies.makes_topics:
                yield from _missing(here, namespace, _topics_of(where, broker, namespace))
        except rest.NotThere:
            yield ConnectionLost(NO_SUCH_DESTINATION, where, f"there is no namespace {quoted(namespace)}")
        except ConnectionLost as error:
            if error.code not in _FORBIDDEN:
                raise
            todo = "Let an administrator of the tenant examine it"
            yield _unseen(where, f"the user may not see the policies of {namespace}", todo)
        else:
            yield from _of_policies(policies, namespace, [part for part in here if part.is_reliable], broker)


class _Policies:
    """What holds for a namespace: its own policies, or else the settings of the brokers, as far as they can be seen."""

    def __init__(self, own: Mapping[str, Any], defaults: Mapping[str, str]) -> None:
        self._own = own
        self._defaults = defaults

    @property
    def makes_topics(self) -> bool:
        """Whether the brokers make missing topics."""
        own = self._own.get("autoTopicCreationOverride")
        return own["allowAutoTopicCreation"] if own else self._defaults.get("allowAutoTopicCreation") != "false"

    @property
    def stores_repeats(self) -> bool:
        """Whether deduplication is off."""
        return self._value("deduplicationEnabled", "brokerDeduplicationEnabled") in (False, "false")

    @property
    def evicts(self) -> bool:
        """Whether the brokers drop messages when a backlog is too large or too old."""
        if quotas := self._own.get("backlog_quota_map"):
            return any(one["policy"] == _EVICTS for one in quotas.values())
        limits = ("backlogQuotaDefaultLimitBytes", "backlogQuotaDefaultLimitGB", "backlogQuotaDefaultLimitSecond")
        is_limited = any(float(self._defaults.get(name, -1)) > 0 for name in limits)
        return is_limited and self._defaults.get("backlogQuotaDefaultRetentionPolicy") == _EVICTS

    @property
    def lives_s(self) -> int:
        """Seconds after which the brokers drop an unacknowledged message; 0 for never."""
        return int(self._value("message_ttl_in_seconds", "ttlDurationDefaultInSeconds") or 0)

    @property
    def stays_min(self) -> int:
        """Minutes after which the brokers delete a subscription without a consumer; 0 for never."""
        return int(self._value("subscription_expiration_time_minutes", "subscriptionExpirationTimeMinutes") or 0)

    def _value(self, policy: str, default: str) -> Any:
        own = self._own.get(policy)
        return self._defaults.get(default) if own is None else own


def _of_policies(
    policies: _Policies, namespace: str, parts: Iterable[_Part], broker: PulsarBroker
) -> Iterator[CorrelatorError]:
    """Yield a finding for each part that a policy concerns."""
    for part in parts:
        if policies.evicts:
            what = f"the brokers drop the oldest messages of {namespace} when a backlog quota is used up ({_EVICTS})"
            yield ConfigError("W7033", part.where, what, "", "Choose producer_request_hold")
        if part.takes and policies.lives_s > 0:
            what = f"the brokers drop messages of {namespace} that nobody has acknowledged for {policies.lives_s} s"
            yield ConfigError("W7034", part.where, what, "", f"{_ADMIN} set-message-ttl -ttl 0 {namespace}")
        if part.takes and policies.stays_min > 0:
            what = f"the brokers delete a subscription of {namespace} without a consumer for {policies.stays_min} min"
            yield ConfigError(
                "W7034", part.where, what, "", f"{_ADMIN} set-subscription-expiration-time -t 0 {namespace}"
            )
        if not part.takes and policies.stores_repeats and broker.deduplication:
            what = f"{namespace} stores repeats, although the connection has 'deduplication: true'"
            yield ConfigError("W7160", part.where, what, "", f"{_ADMIN} set-deduplication --enable {namespace}")


def _topics_of(where: str, broker: PulsarBroker, namespace: str) -> set[str]:
    """Return the full names of all topics of a namespace, partitioned or not."""
    path = ("persistent", *namespace.split("/"))
    return {*rest.ask_about(where, broker, *path), *rest.ask_about(where, broker, *path, "partitioned")}


def _missing(parts: Iterable[_Part], namespace: str, known: set[str]) -> Iterator[CorrelatorError]:
    for part in parts:
        if part.is_pattern:
            continue
        for topic in part.topics:
            if _namespace_of(topic) == namespace and topic not in known:
                what = f"there is no topic {quoted(topic)}, and the brokers make none"
                yield ConnectionLost(NO_SUCH_DESTINATION, part.where, what, "", "Make it, or allow them to make topics")


def _unseen(where: str, why: str, todo: str) -> ConfigError:
    return ConfigError("W7161", where, f"not everything was examined: {why}", "", todo)
