"""The service that is killed: it stores each order in a file, once for each key, and then answers."""

import itertools
import os
import signal
import sqlite3
import threading
from collections.abc import Sequence
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Literal

Place = Literal["before an order is stored", "after an order is stored"]
PLACES: tuple[Place, ...] = ("before an order is stored", "after an order is stored")
"""Where the service kills itself; the caller has no answer yet at either place."""


class _Service(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, path: Path, port: int, kill: tuple[Place, int] | None) -> None:
        self._kill = kill
        self._calls = itertools.count(1)
        self._lock = threading.Lock()
        self._store = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        self._store.execute("PRAGMA journal_mode = WAL")  # so that nobody waits for a reader
        self._store.execute("CREATE TABLE IF NOT EXISTS calls (body TEXT)")
        self._store.execute("CREATE TABLE IF NOT EXISTS stored (key TEXT UNIQUE, body TEXT)")
        super().__init__(("127.0.0.1", port), _Handler)

    def take(self, key: str | None, body: str) -> None:
        """Store an order; one without a key is stored at each call."""
        with self._lock:
            number = next(self._calls)
            self._die_at("before an order is stored", number)
            self._store.execute("INSERT INTO calls VALUES (?)", (body,))
            self._store.execute("INSERT OR IGNORE INTO stored VALUES (?, ?)", (key, body))
            self._die_at("after an order is stored", number)

    def _die_at(self, place: Place, number: int) -> None:
        if self._kill == (place, number):
            os.kill(os.getpid(), signal.SIGKILL)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Service

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.take(self.headers["Idempotency-Key"], body.decode())
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Print nothing for each request."""


def serve(path: Path, port: int, kill: tuple[Place, int] | None) -> None:
    """Answer requests until the process is killed.

    Args:
        path: the file of the service.
        port: where it listens.
        kill: where the process kills itself, and at which of its calls, counted from 1.
    """
    _Service(path, port, kill).serve_forever()


def called(path: Path) -> Sequence[str]:
    """The bodies of all calls."""
    return _bodies(path, "SELECT body FROM calls")


def stored(path: Path) -> Sequence[str]:
    """The bodies of all orders that the service has stored."""
    return _bodies(path, "SELECT body FROM stored")


def _bodies(path: Path, query: str) -> Sequence[str]:
    with closing(sqlite3.connect(path)) as store:
        return [body for (body,) in store.execute(query)]
