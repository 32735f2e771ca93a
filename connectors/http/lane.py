"""One connection to the service, over which a sender sends one request after another."""

import http.client
import socket
import ssl
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple

from connectors.http.service import Service
from correlator.errors import ConnectionLost

MOST_ANSWER_BYTES = 65_536
"""Most bytes of an answer that are read; the connection is closed if the answer has more."""
_FRESH_S = 0.1


class Reply(NamedTuple):
    """The answer of the service: status, reason phrase, the beginning of the body, and `Retry-After`."""

    status: int
    reason: str
    body: bytes
    retry_after: str | None


class Lane:
    """Sends requests, one at a time. One thread at a time calls the methods; any thread may call `interrupt`.

    Args:
        where: the place of the sender.
        service: the service that gets the requests.
        timeout_s: longest duration of a request in seconds.
    """

    def __init__(self, where: str, service: Service, timeout_s: float) -> None:
        self._where = where
        self._service = service
        self._timeout_s = timeout_s
        self._connection: http.client.HTTPConnection | None = None
        self._used_at = 0.0
        self._began_at: float | None = None
        self._is_interrupted = False

    def open(self) -> None:
        """Connect, unless there is a working connection. Raises `ConnectionLost`."""
        if self._connection is not None and time.monotonic() - self._used_at > _FRESH_S and not self._is_alive():
            self.close()
        if self._connection is None:
            self._connection = self._service.open(self._where, self._timeout_s)
            self._used_at = time.monotonic()

    def post(self, path: str, headers: Mapping[str, str], body: bytes) -> Reply:
        """Send a request and read the answer.

        Raises `ConnectionLost` E7001. The service may have the request nevertheless, unless there was no connection.
        """
        self._is_interrupted = False
        self._began_at = time.monotonic()
        try:
            self.open()
            assert self._connection is not None
            self._connection.request("POST", path, body, headers)
            answer = self._connection.getresponse()
            content = answer.read(MOST_ANSWER_BYTES)
            reply = Reply(answer.status, answer.reason, content, answer.getheader("Retry-After"))
            is_whole = not self._is_interrupted and (not answer.length or len(content) == MOST_ANSWER_BYTES)
            if not answer.isclosed() or answer.will_close or answer.status < 200:
                self.close()
        except OSError as error:
            self.close()
            raise self._unanswered(f"{type(error).__name__} {error}".rstrip()) from error
        except http.client.HTTPException as error:
            self.close()
            raise self._unanswered(type(error).__name__) from None  # the service may quote the token in its text
        except BaseException:
            self.close()
            raise
        finally:
            self._began_at = None
        self._used_at = time.monotonic()
        if not is_whole:
            raise self._unanswered("a part of an answer")
        return reply

    def interrupt(self) -> None:
        """Cut the connection if the present request takes too long."""
        began, connection = self._began_at, self._connection
        if began is None or connection is None or time.monotonic() - began <= self._timeout_s:
            return
        self._is_interrupted = True
        with suppress(OSError, TypeError):  # the connection may have ended meanwhile
            socket.socket.shutdown(connection.sock, socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection. Never raises."""
        if self._connection is not None:
            with suppress(OSError):
                self._connection.close()
            self._connection = None

    def _unanswered(self, why: str) -> ConnectionLost:
        what = f"{self._service.name} has not answered: {why}"
        return ConnectionLost("E7001", self._where, what, "It may have the message", "The sender sends it again")

    def _is_alive(self) -> bool:
        """Return whether the service has neither closed the connection nor sent anything without a request."""
        assert self._connection is not None
        connected = self._connection.sock
        try:
            connected.settimeout(0)
            connected.recv(1)
        except (BlockingIOError, ssl.SSLWantReadError):
            connected.settimeout(self._timeout_s)
            return True
        except OSError:
            return False
        return False
