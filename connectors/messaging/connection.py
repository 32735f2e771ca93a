"""A connection: makes sessions, and starts and stops their listeners."""

import uuid
from collections.abc import Callable
from types import TracebackType
from typing import Self

from connectors.messaging.deliveries import AcknowledgeMode
from connectors.messaging.failures import closed
from connectors.messaging.housekeeping import ExceptionListener, Housekeeping
from connectors.messaging.link import Link
from connectors.messaging.listening import Listening
from connectors.messaging.owner import Owner
from connectors.messaging.selections import Selections
from connectors.messaging.send_options import check_function, outside
from connectors.messaging.session import ConnectionOptions, Session, Shared
from connectors.messaging.temporaries import Temporaries
from correlator import connector as port
from correlator.connector import MessageService, ServiceClient
from correlator.errors import UsageError
from correlator.processes import Maker


class Connection:
    """Makes sessions and closes them. Made by `ConnectionFactory.create_connection`; closed by `close` or `with`.

    `start` and `stop` concern listeners only, which get no messages before the connection is started.
    `Consumer.receive` works without `start`, and after `stop`.

    One thread uses a connection; each session may have another thread of its own. `stop` and `close` end waits in
    `Consumer.receive`, and wait for listeners and completions. `close` also ends waits for room in a full destination.
    Apart from these waits, no other thread may be within a call of a session when `close` is called. In a forked child
    `close` does nothing, and every other method raises `UsageError` E2050.
    """

    def __init__(
        self,
        connect: Callable[[], port.Connection],
        options: ConnectionOptions,
    ) -> None:
        self._options = options
        self._maker = Maker()
        self._connect = connect
        self._id = uuid.uuid4().hex
        self._housekeeping = Housekeeping()
        self._selections = Selections()
        self._service: port.Connection | None = None
        self._spare: port.Connection | None = None
        """The first connection of the port, for the first session, if the connector is not a message service."""
        self._client: ServiceClient | None = None
        self._temporaries: Temporaries | None = None
        self._sessions: dict[Session, Listening] = {}
        self._started = False
        self._closed = False
        if options.client_id is not None:
            self._attach()

    @property
    def client_id(self) -> str | None:
        """The client id under which this connection is registered at a message service; `None` for none."""
        return self._options.client_id

    @property
    def queue_browser_read_max(self) -> int:
        """Largest number of messages that a snapshot of its browsers examines; 0 or less for no limit.

        It is the value that the factory had when it made this connection.
        """
        return self._options.queue_browser_read_max

    def create_session(self, mode: AcknowledgeMode = AcknowledgeMode.AUTO) -> Session:
        """Make a session, without connecting: its consumers and producers connect.

        Args:
            mode: who acknowledges received messages, and when; its name is allowed, too.

        Raises:
            ConfigError: an option of the connection is wrong.
            UsageError: E7501 if this connection is closed, E7540 for an unknown mode, E7509 for mode TRANSACTED if the
                connector is not a message service, unless the factory has `emulate_transactions`.
            ConnectionLost: a message service cannot be reached.
        """
        self._check()
        if mode not in AcknowledgeMode.__members__.values():  # or the name of a mode
            raise outside("session.mode", mode, f"One of {', '.join(AcknowledgeMode)}")
        mode = AcknowledgeMode(mode)
        client = self._attach()
        service = None if client is None else client.session()
        if mode is AcknowledgeMode.TRANSACTED and service is None and not self._options.emulates_transactions:
            what = "its connector has no transactions: Pulsar's client, for one, has none"
            allowed = "ConnectionFactory(emulate_transactions=True) imitates them, and is not atomic"
            raise UsageError("E7509", "session", what, allowed, "Let an engine do what must be atomic")
        link = Link(service)
        listening = Listening(Owner(), link, self._housekeeping.report, started=self._started)
        # A connection of the port that is not a message service belongs to one thread, so each session gets its own.
        broker = service or self._spare or self._connect()
        self._spare = None
        assert self._temporaries is not None
        shared = Shared(self._id, self._options, self._housekeeping, self._selections, self._temporaries)
        session = Session(broker, mode, link, listening, shared)
        self._sessions = {one: thread for one, thread in self._sessions.items() if not one.closed}
        self._sessions[session] = listening
        return session

    def set_exception_listener(self, listener: ExceptionListener | None) -> None:
        """Call a function with each `ConnectionLost` that a consumer with a listener meets; `None` removes it.

        Calls of the program raise their errors themselves. A thread of the connection calls the function, one error at
        a time, so that it may close the connection. The consumers try again by themselves. Exceptions of the function
        are logged.

        Raises:
            UsageError: E7501 if this connection is closed, E4117 for a function that is `async def` or a generator,
                E7540 for what is no function.
        """
        self._check()
        if listener is not None:
            check_function(listener, "exception listener")
        self._housekeeping.listener = listener

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

        Returns within 50 ms if no listener runs and no consumer is connecting. Messages wait at the broker. If a thread
        waits in `Consumer.receive`, that call returns `None`. In mode DUPS_OK, received messages are acknowledged.

        Raises:
            UsageError: E7501 if this connection is closed, E7506 within a listener or completion of one of its sessions
                (the call would wait for itself: let another thread make it).
        """
        self._check()
        self._stop()

    def close(self) -> None:
        """Stop, and close all sessions, which give their unacknowledged messages back. May be repeated.

        Waits for running listeners, and for the completions of asynchronous sends. If another thread waits for room in
        a full destination, its message is refused (`SendRejected` E8108). Deletes the temporary destinations of the
        connection.

        Raises:
            UsageError: E7506, as `stop`. Nothing else.
        """
        if self._maker.is_another_process:
            return
        self._check_may_stop()
        for session in self._sessions:
            session.refuse_to_wait()
        self._stop()
        self._closed = True
        for session in self._sessions:
            session.close()
        self._sessions = {}  # not cleared: another thread may close the connection, too
        self._housekeeping.close()
        if self._temporaries is not None:
            self._temporaries.close()
        if self._client is not None:
            self._client.close()
        for connection in (self._service, self._spare):
            if connection is not None:
                connection.close()

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

    def _check_may_stop(self) -> None:
        for listening in self._sessions.values():
            listening.owner.check_may_await_listeners("connection")

    def _stop(self) -> None:
        self._check_may_stop()
        self._started = False
        for listening in self._sessions.values():
            listening.ask_to_stop()
        for listening in self._sessions.values():
            listening.stop()
        for session in self._sessions:
            session.interrupt()

    def _attach(self) -> ServiceClient | None:
        """Register with the message service at the first call; return `None` if the connector is not one."""
        if self._temporaries is None:
            connection = self._connect()
            if isinstance(connection, MessageService):
                try:
                    self._client = connection.attach(self._options.client_id)
                except BaseException:
                    connection.close()
                    raise
                self._service = connection
            else:
                self._spare = connection
                if self._options.client_id is not None:
                    connection.close()
                    what = "its connector has no client ids"
                    raise UsageError("E7545", "client id", what, "Message services have them", "Leave it out")
            self._temporaries = Temporaries(self._client, self._connect)
        return self._client
