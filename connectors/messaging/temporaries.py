"""The temporary destinations of a connection."""

import logging
from collections.abc import Callable
from threading import Lock

from correlator import connector as port
from correlator.connector import Deletable, MakesTemporaries, ServiceClient, is_temporary, temporary
from correlator.errors import ConnectionLost, UsageError, printable, quoted

_log = logging.getLogger("connectors.messaging")


class Temporaries:
    """Makes temporary destinations, and deletes them with their connection. Any thread may call the methods.

    Args:
        client: makes the destinations in a message service; `None` for other brokers.
        connect: makes a connection of the port, to delete them at other brokers.
    """

    def __init__(self, client: ServiceClient | None, connect: Callable[[], port.Connection]) -> None:
        self._client = client
        self._connect = connect
        self._lock = Lock()
        self._names: list[str] = []

    def create(self, kind: str, broker: port.Connection) -> str:
        """Make a temporary destination, and return its name.

        Args:
            kind: `queue` or `topic`.
            broker: a connection of the port that makes the destination, if there is no message service.

        Raises `UsageError` E7511 if the broker could not delete the destination, `ConnectionLost`.
        """
        if self._client is not None:
            name = self._client.create_temporary(kind)
        elif isinstance(broker, Deletable):
            name = temporary(kind)
            if isinstance(broker, MakesTemporaries):
                broker.make_temporary(name)
        else:
            what = "its connector cannot delete destinations, so that temporary ones would stay"
            raise UsageError("E7511", f"temporary {kind}", what, "", "Use an ordinary one, and delete it yourself")
        with self._lock:
            self._names.append(name)
        return name

    def check(self, where: str, destination: str) -> None:
        """Raise `UsageError` E7521 for a consumer of a temporary destination that another connection has made.

        A message service checks it by itself.
        """
        with self._lock:
            if self._client is None and is_temporary(destination) and destination not in self._names:
                what = "another connection has made this temporary destination, or it was deleted"
                raise UsageError("E7521", where, what, "Only consumers of that connection may use it")

    def delete(self, destination: str) -> None:
        """Delete one of the temporary destinations. Raises `UsageError` E7512 and E7513, `ConnectionLost`."""
        with self._lock:
            if destination not in self._names:
                where = printable(destination) if isinstance(destination, str) else quoted(destination)
                raise UsageError("E7512", where, "this connection has no such temporary destination")
            if self._client is not None:
                self._client.delete_temporary(destination)
            else:
                broker = self._connect()
                try:
                    _delete(broker, destination)
                finally:
                    broker.close()
            self._names.remove(destination)

    def close(self) -> None:
        """Delete all temporary destinations. Called after all sessions are closed; never raises.

        Does nothing at a message service, which deletes them by itself.
        """
        if self._client is not None or not self._names:
            return
        broker = self._connect()
        for name in self._names:
            try:
                _delete(broker, name)
            except (ConnectionLost, UsageError) as error:
                _log.warning("%s stays: %s", name, error)
        self._names.clear()
        broker.close()


def _delete(broker: port.Connection, destination: str) -> None:
    assert isinstance(broker, Deletable)
    broker.delete(destination)
