"""A consumer: the messages of one destination, one by one."""

import copy
import time
from contextlib import suppress
from typing import Any

from connectors.messaging.deliveries import AcknowledgeMode, Delivery, Intake, Unacknowledged
from connectors.messaging.failures import closed
from connectors.messaging.wanted import is_wanted
from correlator.errors import ConnectionLost
from correlator.events import Message
from correlator.selector import Selector

_LONGEST_WAIT_S = 3600.0
"""Of one call of a source; the operating system knows no endless ones."""


class Consumer:
    """Receives from one destination. Made by `Session.create_consumer`; used by the thread of its session.

    Args:
        where: how messages of errors call it.
        intake: where messages come from, connected.
        unacknowledged: of its session.
        mode: of its session.
        wanted: what is received of a topic; `None` for everything. Of a queue the broker selects.
    """

    def __init__(
        self,
        where: str,
        intake: Intake,
        unacknowledged: Unacknowledged,
        mode: AcknowledgeMode,
        wanted: Selector | None,
    ) -> None:
        self._where = where
        self._intake = intake
        self._unacknowledged = unacknowledged
        self._mode = mode
        self._wanted = wanted
        self._closed = False

    @property
    def closed(self) -> bool:
        """Whether `close` was called, here or for its session."""
        return self._closed

    def receive(self, timeout_s: float) -> Message | None:
        """The next message, waiting at most so long for it; `None` when none came, or none will (the end of a file).

        0 does not wait, and `math.inf` waits for ever. What does not match the selector of a topic, or has expired, is
        acknowledged and left out.

        In mode AUTO the message is acknowledged when this returns (Q9). When just that fails, the message is returned
        all the same and may come again.

        Raises `ConnectionLost` when the broker cannot be reached: what this consumer gave and was not acknowledged
        comes again. Call again, now or later, to connect anew. Raises `UsageError` E7501 when it is closed, E7502 when
        too many messages are not acknowledged.
        """
        if self._closed:
            raise closed(self._where)
        deadline = time.monotonic() + timeout_s
        while True:
            remaining_s = max(0.0, deadline - time.monotonic())
            chunk = self._intake.receive(min(remaining_s, _LONGEST_WAIT_S))
            for message in chunk.messages:
                if is_wanted(message, self._wanted):
                    return self._delivered(message, chunk.token)
                self._intake.acknowledge([chunk.token])
            if chunk.ended or (time.monotonic() >= deadline and (timeout_s > 0 or not chunk.messages)):
                return None

    def close(self) -> None:
        """Receive nothing more; what was received here and not acknowledged comes again, to whoever consumes next.

        Never raises; may be repeated.
        """
        self._closed = True
        self._intake.close()

    def _delivered(self, message: Message, token: Any) -> Message:
        if self._mode is AcknowledgeMode.AUTO:
            with suppress(ConnectionLost):  # whether the broker knows is unknown: twice is better than never
                self._intake.acknowledge([token])
            return message
        own = copy.copy(message)  # it stands for this delivery alone, also where a broker gives one object twice
        self._unacknowledged.add(Delivery(own, self._intake, token))
        return own
