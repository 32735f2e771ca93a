"""A connection: makes sessions, and starts and stops their listeners."""

import uuid
from collections.abc import Callable
from types import TracebackType
from typing import Self

from connectors.messaging.deliveries import AcknowledgeMode
from connectors.messaging.failures import closed
from connectors.messaging.listening import Listening
from connectors.messaging.owner import Owner
from connectors.messaging.session import Session
from correlator import connector as port
from correlator.errors import UsageError
from correlator.processes import Maker


class Connection:
    """Makes sessions and closes them. Made by `ConnectionFactory.create_connection`; closed by `close` or `with`.

    `start` and `stop` concern listeners only, which get no messages before the connection is started.
    `Consumer.receive` works without `start`, and after `stop`.

    One thread uses a connection; each session may have another thread of its own. When `close` is called, no thread may
    be within a call of a session, except the threads of listeners and completions: `close` waits for these. In a forked
    child `close` does nothing, and every other method raises `UsageError` E2050.
    """

    def __init__(
        self, connect: Callable[[], port.Connection], queue_browser_read_max: int, *, emulates_transactions: bool
    ) -> None:
        self._connect = connect
        self._queue_browser_read_max = queue_browser_read_max
        self._emulates_transactions = emulates_transactions
        self._maker = Maker()
        self._id = uuid.uuid4().hex
        self._sessions: dict[Session, Listening] = {}
        self._started = False
        self._closed = False

    @property
    def queue_browser_read_max(self) -> int:
        """Largest number of messages that a snapshot of its browsers examines; 0 or less for no limit.

        It is the value that the factory had when it made this connection.
        """
        return self._queue_browser_read_max

    def create_session(self, mode: AcknowledgeMode = AcknowledgeMode.AUTO) -> Session:
        """Make a session, without connecting: its consumers and producers connect.

        Args:
            mode: who acknowledges received messages, and when.

        Raises:
            ConfigError: an option of the connection is wrong.
            UsageError: E7501 if this connection is closed, E7509 for mode TRANSACTED unless the factory has
                `emulate_transactions`.
        """
        self._check()
        if mode is AcknowledgeMode.TRANSACTED and not self._emulates_transactions:
            what = "sessions have no transactions of their brokers: Pulsar's client, for one, has none"
            allowed = "ConnectionFactory(emulate_transactions=True) imitates them, and is not atomic"
            raise UsageError("E7509", "session", what, allowed, "Let an engine do what must be atomic")
        listening = Listening(Owner(), started=self._started)
        # Each session has a connection of the port of its own, since such a connection belongs to one thread.
        session = Session(self._connect(), self._id, mode, self._queue_browser_read_max, listening)
        self._sessions = {one: thread for one, thread in self._sessions.items() if not one.closed}
        self._sessions[session] = listening
        return session

    def start(self) -> None:
        """Let the listeners of all sessions get messages, later listeners included. May be repeated.

        From now on a session with listeners belongs to their thread: set all listeners before.

        Raises:
            UsageError: E7501 if this connection is closed.
        """
        self._check()
        self._started = True
        for listening in self._sessions.values():
            listening.start()

    def stop(self) -> None:
        """Call no listener until the next `start`; returns when no listener runs any more. May be repeated.

        Returns within 50 ms if no listener runs and no consumer is connecting. Messages wait at the broker.

        Raises:
            UsageError: E7501 if this connection is closed, E7506 within a listener or completion of one of its sessions
                (the call would wait for itself: let another thread make it).
        """
        self._check()
        self._stop()

    def close(self) -> None:
        """Stop, and close all sessions, which give their unacknowledged messages back. May be repeated.

        Waits for running listeners and for the completions of asynchronous sends.

        Raises:
            UsageError: E7506, as `stop`. Nothing else.
        """
        if self._maker.is_another_process:
            return
        self._stop()
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

    def _check(self) -> None:
        if self._closed:
            raise closed("connection")
        self._maker.check("connection")

    def _stop(self) -> None:
        for listening in self._sessions.values():
            listening.owner.check_may_await_listeners("connection")
        self._started = False
        for listening in self._sessions.values():
            listening.ask_to_stop()
        for listening in self._sessions.values():
            listening.wait()
