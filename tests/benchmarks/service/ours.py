"""The embedded message service as a peer, on each of its stores, with a queue without limits as the other peers have."""

import shutil
import sqlite3
import tempfile
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from connectors.embedded import EmbeddedConnection
from correlator.settings import ConnectionSettings
from tests.benchmarks.service.clients import QUEUE, python_client
from tests.benchmarks.service.peer import BrokerPeer
from tests.servers import PostgresServer


def _create(store: str) -> str:
    """Create the queue, and return the address of the store."""
    options = {"store": store}
    EmbeddedConnection("bench", ConnectionSettings(type="embedded", options=options)).create(f"queue:{QUEUE}")
    return store


class SqliteStore:
    """A store in a file: no server, the clients do the work."""

    pid = None

    def __init__(self) -> None:
        self.settings = f"correlator {version('correlator')}, sqlite {sqlite3.sqlite_version}, queue without limits"
        self._directory = Path(tempfile.mkdtemp(prefix="correlator-service-"))
        self._url = f"sqlite:///{self._directory}/broker.db"

    def start(self) -> None:
        """Make the file, with the queue."""
        _create(self._url)

    def close(self) -> None:
        """Remove the file."""
        shutil.rmtree(self._directory, ignore_errors=True)

    def client(self) -> Sequence[str | Path]:
        """A client of it."""
        return python_client("session_client", self._url)


class PostgresStore:
    """A store in a server of its own, with the server's default settings."""

    def __init__(self) -> None:
        self.settings = ""
        self._server = PostgresServer()
        self._url = ""

    @property
    def pid(self) -> int:
        """The server's process."""
        return self._server.pid

    def start(self) -> None:
        """Start it with an empty database."""
        self._server.start()
        self._url = _create(self._server.fresh_database())
        ((server,),) = self._server.execute("SHOW server_version")
        self.settings = (
            f"correlator {version('correlator')}, PostgreSQL {server} with its default settings, queue without limits"
        )

    def close(self) -> None:
        """End it."""
        self._server.close()

    def client(self) -> Sequence[str | Path]:
        """A client of it."""
        return python_client("session_client", self._url)


def sqlite() -> BrokerPeer:
    """With a store in a file."""
    return BrokerPeer("sqlite", SqliteStore)


def postgres() -> BrokerPeer:
    """With a store in PostgreSQL."""
    return BrokerPeer("postgres", PostgresStore)


OURS = ("sqlite", "postgres")
"""The names of these peers."""
