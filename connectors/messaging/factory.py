"""The factory of connections, with their options."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from connectors.messaging.connection import Connection
from connectors.messaging.send_options import check_flag, check_name, check_options, check_whole, outside
from connectors.messaging.session import MOST_FLOW, ConnectionOptions
from connectors.messaging.transaction import MOST_SENDS
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
        emulate_transactions: whether its connections imitate mode TRANSACTED if the connector is not a message service.
            Imitated transactions are not atomic.
        client_id: the client id of its connections at a message service, which owns durable subscriptions; one
            connection at a time has it. `None` for none.
        flow_limit: largest number of messages that a consumer has fetched and that are not settled. `None`: 1000, but
            1 in modes AUTO and NO_ACKNOWLEDGE if the connector reads ahead by itself.
        prefetch: whether consumers fetch more messages than `receive` asks for. Connectors that read ahead by
            themselves refuse `False`.
        tx_producer_max_num_msgs: largest number of messages that a transaction sends.
        ack_on_non_persistent: whether `send` waits for the broker also if a message is not persistent, and raises
            if the broker does not have it. By default `send` returns at once and a failure is logged.
    """

    connector: port.ConnectionFactory
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)  # may contain a password
    queue_browser_read_max: int = field(default_factory=_read_max_of_environment)
    emulate_transactions: bool = False
    client_id: str | None = None
    flow_limit: int | None = None
    prefetch: bool = True
    tx_producer_max_num_msgs: int = MOST_SENDS
    ack_on_non_persistent: bool = False

    def create_connection(self, *, client_id: str | None = None) -> Connection:
        """Make a connection, which the caller has to close. Without a client id it opens nothing.

        User and password are options of the factory; another user needs another factory.

        Args:
            client_id: the client id of this connection; `None` for that of the factory.

        Raises:
            UsageError: E7515 if another connection has the client id, E7545 if the connector has no client ids, E7540
                for a setting of the factory, or a client id, that is of a wrong type or out of its range.
            ConnectionLost: there is a client id, and the broker cannot be reached.
            ConfigError: there is a client id, and an option of the connection is wrong.
        """
        if client_id is None:
            client_id = self.client_id
        if client_id is not None:
            check_name("factory.client_id", client_id)
        self._check()
        settings = ConnectionSettings(type=_NAME, options=dict(self.options))
        return Connection(
            partial(self.connector, _NAME, settings),
            ConnectionOptions(
                client_id=client_id,
                queue_browser_read_max=self.queue_browser_read_max,
                emulates_transactions=self.emulate_transactions,
                flow_limit=self.flow_limit,
                prefetch=self.prefetch,
                tx_producer_max_num_msgs=self.tx_producer_max_num_msgs,
                ack_on_non_persistent=self.ack_on_non_persistent,
            ),
        )

    def _check(self) -> None:
        if not callable(self.connector):
            raise outside("factory.connector", self.connector, "The entry point of a connector: EmbeddedConnection")
        check_options("factory.options", self.options)
        if type(self.queue_browser_read_max) is not int:
            allowed = "A whole number; 0 for no limit"
            raise outside("factory.queue_browser_read_max", self.queue_browser_read_max, allowed)
        if self.flow_limit is not None:
            check_whole("factory.flow_limit", self.flow_limit, MOST_FLOW, least=1)
        check_whole("factory.tx_producer_max_num_msgs", self.tx_producer_max_num_msgs, MOST_FLOW, least=1)
        check_flag("factory.emulate_transactions", self.emulate_transactions)
        check_flag("factory.prefetch", self.prefetch)
        check_flag("factory.ack_on_non_persistent", self.ack_on_non_persistent)
