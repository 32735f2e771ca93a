"""A browser: shows the messages of a queue without consuming them."""

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

from correlator.connector import Browsable
from correlator.events import Message, expired
from correlator.selector import Selector


class Browser:
    """Shows the messages of a queue, and takes none.

    Made by `Session.create_browser`; only the thread that owns its session may use it. It works until its session is
    closed. Destination and selector never change.

    Args:
        connection: the connection of the port that its session uses.
        check_open: raises if the session is closed, or belongs to another thread.
        destination: `queue:NAME`.
        selector: shows matching messages only; `None` for all messages.
        read_max: largest number of messages that a snapshot examines; 0 or less for no limit.
        using: held while a thread uses the connection.
        sees_expired: whether the connection may show messages that have expired.
    """

    def __init__(
        self,
        connection: Browsable,
        check_open: Callable[[], None],
        destination: str,
        selector: Selector | None,
        read_max: int,
        using: AbstractContextManager[Any],
        *,
        sees_expired: bool,
    ) -> None:
        self._connection = connection
        self._check_open = check_open
        self._destination = destination
        self._selector = selector
        self._read_max = read_max
        self._using = using
        self._sees_expired = sees_expired

    @property
    def destination(self) -> str:
        """The queue whose messages the browser shows, as `queue:NAME`. It never changes."""
        return self._destination

    @property
    def selector(self) -> str | None:
        """The text of the selector; `None` if there is none."""
        return None if self._selector is None else self._selector.text

    def enumerate(self) -> Iterator[Message]:
        """Return copies of the messages that are in the queue at this moment, oldest first.

        The browser itself applies the selector, to the oldest `queue_browser_read_max` messages. The result is a
        snapshot in memory: later changes of the queue, and the end of session and connection, do not change it. Each
        call takes a new snapshot. The iterator releases each message when it returns it.

        Messages that consumers hold may be missing, depending on the broker. RabbitMQ marks shown messages as
        redelivered.

        Raises:
            UsageError: E7501 if the session is closed, E7505 in a thread that does not own the session, E2027 if the
                broker knows that there is no such queue.
            ConnectionLost: the broker cannot be reached. Call it again.
        """
        self._check_open()
        most = min(self._read_max, sys.maxsize) if self._read_max > 0 else sys.maxsize
        with self._using:
            examined = self._connection.browse(self._destination, most)
        return _given_away(deque(one for one in examined if self._shows(one)))

    def _shows(self, message: Message) -> bool:
        if self._sees_expired and expired(message, time.time() * 1000):
            return False
        return self._selector is None or self._selector.matches(message)

    def close(self) -> None:
        """Do nothing. It exists because browsers of JMS have it; a browser ends with its session."""


def _given_away(messages: deque[Message]) -> Iterator[Message]:
    while messages:
        yield messages.popleft()
