"""The embedded message service as a peer, on each of its stores."""

import shutil
import sqlite3
import tempfile
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from tests.benchmarks.service.clients import python_client
from tests.benchmarks.service.peer import BrokerPeer
from tests.servers import PostgresServer


class SqliteStore:
    """A store in a file: no server, the clients do the work."""

    pid = None

    def __init__(self) -> None:
        self.settings = f"correlator {version('correlator')}, sqlite {sqlite3.sqlite_version}"
        self._directory = Path(tempfile.mkdtemp(prefix="correlator-service-"))

    def start(self) -> None:
        """There is nothing to start."""

    def close(self) -> None:
        """Remove the file."""
        shutil.rmtree(self._directory, ignore_errors=True)

    def client(self) -> Sequence[str | Path]:
        """A client of it."""
        return python_client("session_client", f"sqlite:///{self._directory}/broker.db")


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
        self._url = self._server.fresh_database()
        ((server,),) = self._server.execute("SHOW server_version")
        self.settings = f"correlator {version('correlator')}, PostgreSQL {server} with its default settings"

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
