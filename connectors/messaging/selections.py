"""The selectors of the consumers of each subscription, as far as one connection knows them."""

from threading import Lock

from correlator.connector import Subscriber
from correlator.errors import UsageError, quoted


class Selections:
    """Refuses a second selector on a subscription whose messages sessions select themselves.

    A consumer acknowledges the messages that its selector does not match, so a consumer with another selector would
    never get them. Message services know all of their consumers, and check this by themselves. Any thread may call the
    methods.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._used: dict[tuple[str, str, bool], list[str | None]] = {}

    def enter(self, where: str, topic: str, subscription: Subscriber, selector: str | None) -> None:
        """Note a consumer. Raises `UsageError` E7517 if another consumer of the subscription uses another selector."""
        with self._lock:
            used = self._used.setdefault(_key(topic, subscription), [])
            if used and used[0] != selector:
                what = f"a consumer of the subscription {quoted(subscription.name)} uses another selector"
                raise UsageError("E7517", where, what, "", "Use the same, close that consumer, or use another name")
            used.append(selector)

    def leave(self, topic: str, subscription: Subscriber) -> None:
        """Note that a consumer was closed."""
        key = _key(topic, subscription)
        with self._lock:
            self._used[key].pop()
            if not self._used[key]:
                del self._used[key]


def _key(topic: str, subscription: Subscriber) -> tuple[str, str, bool]:
    """What names a subscription at the broker: RabbitMQ and Pulsar have one of a name, whether it is shared or not."""
    return topic, subscription.name, subscription.durable
