"""A connection: what sessions have in common."""

from collections.abc import Callable
from types import TracebackType
from typing import Self

from connectors.messaging.deliveries import AcknowledgeMode
from connectors.messaging.failures import closed
from connectors.messaging.session import Session
from correlator import ports


class Connection:
    """Makes sessions and closes them. Made by `ConnectionFactory.create_connection`; closed by `close` or `with`.

    There is no `start` and `stop`. Their purpose is to keep back messages until the program is ready for them, and here
    none comes before `Consumer.receive` asks for it: a connection behaves as a `JMSContext` of JMS 2.0, which starts
    itself.

    Used by one thread. Each session may have another thread of its own; when `close` is called, none of them is within
    a call any more.
    """

    def __init__(self, connect: Callable[[], ports.Connection], queue_browser_read_max: int) -> None:
        self._connect = connect
        self._queue_browser_read_max = queue_browser_read_max
        self._sessions: list[Session] = []
        self._closed = False

    @property
    def queue_browser_read_max(self) -> int:
        """The limit of its browsers, as the factory had it when this connection was created (R9)."""
        return self._queue_browser_read_max

    def create_session(self, mode: AcknowledgeMode = AcknowledgeMode.AUTO) -> Session:
        """A session that acknowledges in this mode.

        Raises `ConfigError` for options that the connector does not take, `UsageError` E7501 when this connection is
        closed.
        """
        if self._closed:
            raise closed("connection")
        # A session has a connection of the port to itself, since that belongs to one thread.
        session = Session(self._connect(), mode, self._queue_browser_read_max)
        self._sessions = [one for one in self._sessions if not one.closed]
        self._sessions.append(session)
        return session

    def close(self) -> None:
        """Close the sessions, which gives back what they have not acknowledged. Never raises; may be repeated."""
        self._closed = True
        for session in self._sessions:
            session.close()
        self._sessions.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
