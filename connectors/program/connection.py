"""The entry point of the connector `program`: checks options; makes sources."""

from typing import NoReturn

from connectors.program.source import ProgramSource
from correlator.connector import Features, Order
from correlator.errors import ConfigError
from correlator.options import check_destination, check_options, whole_option
from correlator.settings import ConnectionSettings, ReceiverSettings, SenderSettings


class ProgramConnection:
    """The program in whose process the engine runs.

    A receiver takes the messages that the program passes to `Engine.publish`. Its option `max_waiting` (10,000) is the
    largest number of messages that wait until the receiver takes them. There are no senders.
    """

    features = Features(redelivers=False, answers=True, order=Order.POSITION, acknowledges_surely=True, shares=False)

    def __init__(self, name: str, settings: ConnectionSettings) -> None:
        self._where = f"connections.{name}"
        check_options(self._where, settings.options, ())

    def source(self, receiver: ReceiverSettings) -> ProgramSource:
        """Make a source of the messages that the program publishes to this receiver. Raises `ConfigError`."""
        where = f"receivers.{receiver.id}"
        check_options(where, receiver.options, ("max_waiting",))
        check_destination(where, receiver.destination)
        return ProgramSource(
            where,
            whole_option(where, receiver.options, "max_waiting", 10_000, 1_000_000),
            receiver.max_batch_size,
            receiver.max_batch_bytes,
        )

    def sink(self, sender: SenderSettings) -> NoReturn:
        """Refuse the sender: `ConfigError` E1216."""
        what, todo = "a program takes no messages from senders", "Handle the events in a monitor, or use a broker"
        raise ConfigError("E1216", f"senders.{sender.id}.connection", what, "", todo)

    def close(self) -> None:
        """Do nothing: sources share no resources."""
