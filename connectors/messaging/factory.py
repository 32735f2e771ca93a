"""Where connections come from, and what they are given."""

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
"""What messages of errors call the connection."""


def _read_max_of_environment() -> int:
    try:
        return int(os.environ.get(READ_MAX_VARIABLE, ""))
    except ValueError:
        return 0


@dataclass(slots=True)
class ConnectionFactory:
    """Makes connections to one broker. Opens nothing, and may be used by any thread.

    Attributes:
        connector: the entry point of a connector, such as `EmbeddedConnection` or `RabbitConnection`.
        options: those of the connection, as below `connections` in a configuration file.
        queue_browser_read_max: most messages that a browser examines for one snapshot, selected or not; 0 or less is
            no limit. A connection keeps the value that the factory had when it was created. Without one the
            environment variable `CORRELATOR_QUEUE_BROWSER_READ_MAX` is read when the factory is made, and counts as 0
            when it is unset or no integer; copies of a factory have the value of the factory.
        emulate_transactions: whether its connections make sessions in mode TRANSACTED, which are not atomic.
    """

    connector: port.ConnectionFactory
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)  # may hold a password
    queue_browser_read_max: int = field(default_factory=_read_max_of_environment)
    emulate_transactions: bool = False

    def create_connection(self) -> Connection:
        """A connection, to be closed by its user. Never fails: nothing is opened before there is a session.

        It takes no user and password: those of a factory are among its options, and another pair needs another factory.
        """
        settings = ConnectionSettings(type=_NAME, options=dict(self.options))
        return Connection(
            partial(self.connector, _NAME, settings),
            self.queue_browser_read_max,
            emulates_transactions=self.emulate_transactions,
        )
