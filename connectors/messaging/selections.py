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
        self._used: dict[tuple[str, Subscriber], list[str | None]] = {}

    def enter(self, where: str, topic: str, subscription: Subscriber, selector: str | None) -> None:
        """Note a consumer. Raises `UsageError` E7517 if another consumer of the subscription uses another selector."""
        with self._lock:
            used = self._used.setdefault((topic, subscription), [])
            if used and used[0] != selector:
                what = f"a consumer of the subscription {quoted(subscription.name)} uses another selector"
                raise UsageError("E7517", where, what, "", "Use the same, close that consumer, or use another name")
            used.append(selector)

    def leave(self, topic: str, subscription: Subscriber) -> None:
        """Note that a consumer was closed."""
        with self._lock:
            used = self._used[topic, subscription]
            used.pop()
            if not used:
                del self._used[topic, subscription]
