"""Turns errors of Pulsar's client into errors of the port: one code for each remedy that the user has."""

from connectors.pulsar.broker import PulsarBroker
from correlator.connector import IN_USE, NO_SUCH_DESTINATION, TAKES_NOTHING
from correlator.errors import ConnectionLost, SendRejected, quoted

TOO_LARGE = "MessageTooBig"
"""The client's name of the error for a message above the limit that the broker stated when the client connected."""

_ALLOW = "let the broker make topics and subscriptions (allowAutoTopicCreation, allowAutoSubscriptionCreation)"
_MAKE_IT = f"Make it, or {_ALLOW}"
_GRANT = "Grant the permission on the namespace"
_LOST = {
    "TopicNotFound": (NO_SUCH_DESTINATION, "its topic or namespace does not exist", _MAKE_IT),
    "SubscriptionNotFound": (NO_SUCH_DESTINATION, "its subscription does not exist", _MAKE_IT),
    "AuthorizationError": ("E7007", "the broker does not let this client use it", _GRANT),
    "AuthenticationError": ("E7002", "the broker refused the token", "Check token or token_file"),
    "ConsumerBusy": (
        IN_USE,
        "its subscription is in use, by an exclusive consumer or with another type",
        "End the other consumer, or set the same subscription_type",
    ),
    "ProducerBusy": (IN_USE, "a producer of the same name is still there", ""),
    "ProducerFenced": (IN_USE, "another producer has taken its place", ""),
    "ProducerBlockedQuotaExceededError": (TAKES_NOTHING, "its backlog quota is used up", ""),
    "ProducerBlockedQuotaExceededException": (TAKES_NOTHING, "its backlog quota is used up", ""),
    "ConnectError": ("E7001", "the broker cannot be reached", ""),
    "NotConnected": ("E7001", "the connection is gone", ""),
    "AlreadyClosed": ("E7001", "the connection is gone", ""),
    "ServiceUnitNotReady": ("E7001", "the broker is not ready for it yet", ""),
}
"""Code, cause and remedy for each error, by the client's name of the error."""
_REFUSED = {
    "TopicNotFound": ("E8101", "there is no such topic or namespace"),
    "AuthorizationError": ("E8107", "the broker does not let this client send to it"),
    "TopicTerminated": ("E8102", "the topic is terminated: it takes no messages any more"),
    "NotAllowedError": ("E8102", "the broker does not allow it"),
    "IncompatibleSchema": ("E8102", "the topic has a schema that plain bytes do not fit"),
    "InvalidTopicName": ("E8104", "it is not the name of a topic"),
}
WAITED_FOR = frozenset({"TopicNotFound", "AuthorizationError"})
"""Refusals that end when an administrator makes the topic or grants the permission."""
_FINAL = frozenset({"TopicTerminated", "InvalidTopicName"})
"""Refusals that never end."""


def of_name(error: Exception) -> str:
    """Return the client's name of an error."""
    return type(error).__name__


def not_connected(where: str) -> ConnectionLost:
    """Make the error of a source or sink that is not connected."""
    return ConnectionLost("E7001", where, "not connected")


def lost(where: str, name: str, topic: str, broker: PulsarBroker) -> ConnectionLost:
    """Make the error after which the engine connects again."""
    if name == "Timeout":
        return silent(where, broker)
    code, what, todo = _LOST.get(name, ("E7025", f"the client or the broker refused something ({name})", ""))
    return ConnectionLost(code, where, f"{quoted(topic)}: {what}", "", todo)


def silent(where: str, broker: PulsarBroker) -> ConnectionLost:
    """Make the error of a broker that does not answer in time."""
    return ConnectionLost("E7023", where, f"{broker.service_url} did not answer within {broker.timeout_s} s")


def not_subscribed(where: str, topic: str, broker: PulsarBroker) -> ConnectionLost:
    """Make the error of a subscription without an answer in time: the client retries, and does not say
    why it is refused.
    """
    what = f"{quoted(topic)}: {broker.service_url} let nobody subscribe within {broker.timeout_s} s"
    return ConnectionLost("E7023", where, what, "", f"If it is up, make the subscription, or {_ALLOW}")


def refused(where: str, name: str, topic: str, broker: PulsarBroker) -> SendRejected | None:
    """Return the refusal of a message because of its topic; `None` if the failure is of another kind.

    If the broker deduplicates, a message must be refused at every attempt. If it were refused once and sent later,
    after others, the broker would drop it as a repeat, although it has no copy.
    """
    if name not in _REFUSED or (broker.deduplication and name not in _FINAL):
        return None
    code, what = _REFUSED[name]
    return SendRejected(code, where, f"{quoted(topic)}: {what}")
