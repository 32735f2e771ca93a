"""A browser: shows the messages of a queue without consuming them."""

import sys
from collections import deque
from collections.abc import Callable, Iterator

from connectors.messaging.wanted import is_wanted
from correlator.connector import Browsable
from correlator.events import Message
from correlator.selector import Selector


class Browser:
    """Shows the messages of a queue (rules R1 to R9).

    Made by `Session.create_browser`; used by the thread of its session. Destination and selector never change.

    Args:
        connection: the connection of its session.
        check_open: raises if the session is closed.
        destination: `queue:NAME`.
        selector: shows matching messages only; `None` for all messages.
        read_max: most messages that a snapshot examines; 0 or less is no limit.
    """

    def __init__(
        self,
        connection: Browsable,
        check_open: Callable[[], None],
        destination: str,
        selector: Selector | None,
        read_max: int,
    ) -> None:
        self._connection = connection
        self._check_open = check_open
        self._destination = destination
        self._selector = selector
        self._read_max = read_max

    @property
    def destination(self) -> str:
        """The queue."""
        return self._destination

    @property
    def selector(self) -> str | None:
        """The text of the selector; `None` if there is none."""
        return None if self._selector is None else self._selector.text

    def enumerate(self) -> Iterator[Message]:
        """Copies of the messages that are in the queue now, oldest first.

        The browser itself applies the selector, to the oldest `queue_browser_read_max` messages. The result is a
        snapshot: later changes of the queue, and the end of session and connection, do not change it. Each call takes a
        new snapshot, which releases a message as soon as it was read.

        Messages that consumers hold may be missing, depending on the broker. RabbitMQ marks shown messages as
        redelivered.

        Raises `UsageError` E7501 if the session is closed, E2027 if the broker knows that there is no such queue;
        `ConnectionLost` if the broker cannot be reached.
        """
        self._check_open()
        most = self._read_max if self._read_max > 0 else sys.maxsize
        examined = self._connection.browse(self._destination, most)
        return _given_away(deque(one for one in examined if is_wanted(one, self._selector)))

    def close(self) -> None:
        """Do nothing: a browser ends with its session."""


def _given_away(messages: deque[Message]) -> Iterator[Message]:
    while messages:
        yield messages.popleft()
