"""The source of the connector `http`: each request to a path, or each line of its body, is a message."""

from collections.abc import Collection, Sequence
from typing import Any

from connectors.http.application import Rules
from connectors.http.endpoint import Endpoint
from connectors.http.server import WebServer
from correlator.connector import Backlog, Chunk
from correlator.errors import ConnectionLost
from correlator.processes import Maker
from correlator.settings import ReceiverSettings


class HttpSource:
    """Takes the requests of its path from the server. If a request is not acknowledged, its client must send it again.

    Args:
        receiver: the settings of the receiver.
        server: the server of the connection.
        path: path of the requests.
        rules: what requests must have.
    """

    def __init__(self, receiver: ReceiverSettings, server: WebServer, path: str, rules: Rules) -> None:
        self._where = f"receivers.{receiver.id}"
        self._server = server
        self._path = path
        self._rules = rules
        self._endpoint = Endpoint(receiver)
        self._process = Maker()
        server.declare(path)

    def connect(self) -> None:
        """Give back the requests that are under way, and take requests. Raises `UsageError` E2050 in a forked child.

        Raises `ConnectionLost` E7001 if the server cannot listen, E7009 if another receiver has the path.
        """
        if self._endpoint.is_open:
            self._process.check(self._where)
        self.close()
        self._process = Maker()
        self._server.open(self._where, self._path, self._rules, self._endpoint)

    def receive(self, max_messages: int, timeout_s: float) -> Chunk:
        """Return the messages of the next requests; all messages of a request are in one chunk. See
        `connector.Source`.
        """
        return Chunk(*self._connected().take(max_messages, timeout_s))

    def acknowledge(self, tokens: Sequence[Any]) -> None:
        """Answer 202 to the requests of which these are the last unacknowledged messages."""
        self._connected().acknowledge(tokens)

    def dropped(self, ids: Collection[str]) -> None:
        """Let the requests with these unique ids be answered with 422 once they are acknowledged."""
        self._connected().note_conflicts(ids)

    def reject(self, tokens: Sequence[Any]) -> None:
        """Answer 503 to the requests of these messages."""
        self._connected().reject(tokens)

    def backlog(self) -> Backlog:
        """Return the number of messages that wait."""
        return self._connected().backlog

    def close(self) -> None:
        """Answer 503 to all requests that are under way. Does nothing in a forked child."""
        if not self._process.is_another_process:
            self._endpoint.close()

    def _connected(self) -> Endpoint:
        self._process.check(self._where)
        if not self._endpoint.is_open:
            raise ConnectionLost("E7003", self._where, "not connected")
        if not self._server.answers:
            self._endpoint.close()
            raise ConnectionLost("E7001", self._where, "the server has ended")
        return self._endpoint
