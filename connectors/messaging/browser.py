"""A browser: looks at a queue without taking anything from it."""

import sys
from collections import deque
from collections.abc import Callable, Iterator

from connectors.messaging.wanted import is_wanted
from correlator.connector import Browsable
from correlator.events import Message
from correlator.selector import Selector


class Browser:
    """Shows the messages of a queue (rules R1 to R9).

    Made by `Session.create_browser`; used by the thread of its session. Its destination and selector are those that it
    was made with.

    Args:
        connection: of its session, whose broker can show a queue.
        check_open: raises when the session is closed.
        destination: `queue:NAME`.
        selector: what is shown; `None` for everything.
        read_max: most messages that are examined for a snapshot; 0 or less is no limit.
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
        """The text of the selector; `None` when everything is shown."""
        return None if self._selector is None else self._selector.text

    def enumerate(self) -> Iterator[Message]:
        """Copies of the messages that are in the queue now, oldest first.

        The selector is applied here, to the oldest `queue_browser_read_max` messages. Whatever happens to the queue
        afterwards changes nothing, nor does the end of session and connection. It cannot be reset; each call takes a
        new snapshot. A message that was read from it is not referred to any more.

        How a broker shows a queue is its own: what others hold meanwhile may be missing, and RabbitMQ marks what it
        has shown as redelivered.

        Raises `UsageError` E7501 when the session is closed, E2027 where the broker knows that there is no such queue;
        `ConnectionLost` when the broker cannot be reached.
        """
        self._check_open()
        most = self._read_max if self._read_max > 0 else sys.maxsize
        examined = self._connection.browse(self._destination, most)
        return _given_away(deque(one for one in examined if is_wanted(one, self._selector)))

    def close(self) -> None:
        """Has no effect."""


def _given_away(messages: deque[Message]) -> Iterator[Message]:
    while messages:
        yield messages.popleft()
