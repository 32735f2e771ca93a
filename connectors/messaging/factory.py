"""The factory of connections, with their options."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from connectors.messaging.connection import Connection
from correlator import connector as port
from correlator.settings import ConnectionSettings

READ_MAX_VARIABLE = "CORRELATOR_QUEUE_BROWSER_READ_MAX"
_NAME = "messaging"
"""The name of the connection in errors."""


def _read_max_of_environment() -> int:
    try:
        return int(os.environ.get(READ_MAX_VARIABLE, ""))
    except ValueError:
        return 0


@dataclass(slots=True)
class ConnectionFactory:
    """Makes connections to one broker. Opens nothing; any thread may use it.

    Attributes:
        connector: the entry point of a connector, such as `EmbeddedConnection` or `RabbitConnection`.
        options: options of the connection, as below `connections` in a configuration file. The first session reports a
            wrong option.
        queue_browser_read_max: largest number of messages that a browser examines for one snapshot, whether they match
            or not; 0 or less for no limit. A connection keeps the value that the factory has when it makes the
            connection. The default is the environment variable `CORRELATOR_QUEUE_BROWSER_READ_MAX` at the time when the
            factory is made; 0 if it is unset or no integer. A copy of a factory has the value of the original.
        emulate_transactions: whether its connections make sessions in mode TRANSACTED, which are not atomic.
    """

    connector: port.ConnectionFactory
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)  # may hold a password
    queue_browser_read_max: int = field(default_factory=_read_max_of_environment)
    emulate_transactions: bool = False

    def create_connection(self) -> Connection:
        """Make a connection, which the caller has to close. Never fails: it opens nothing.

        User and password are options of the factory; another user needs another factory.
        """
        settings = ConnectionSettings(type=_NAME, options=dict(self.options))
        return Connection(
            partial(self.connector, _NAME, settings),
            self.queue_browser_read_max,
            emulates_transactions=self.emulate_transactions,
        )
