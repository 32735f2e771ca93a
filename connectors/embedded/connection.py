"""The entry point of the connector `embedded`: checks options; makes sources and sinks."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from sqlalchemy import Connection

from connectors.embedded import administration, destinations, examination, schema
from connectors.embedded.access import Access
from connectors.embedded.administrator import EmbeddedAdministration
from connectors.embedded.browsing import browse
from connectors.embedded.link import open_link, translated
from connectors.embedded.removal import delete_destination, delete_subscription
from connectors.embedded.service import EmbeddedClient, make_sink, make_source
from connectors.embedded.sink import EmbeddedSink
from connectors.embedded.source import EmbeddedSource
from correlator.connector import Features, Order
from correlator.errors import ConfigError, ConnectionLost, CorrelatorError, StoreError
from correlator.events import Message
from correlator.options import check_options, flag_option, text_option, whole_option
from correlator.settings import ConnectionSettings, ReceiverSettings, SenderSettings
from correlator.storage.database import location, parse, reading
from correlator.storage.sqlite import NO_DATABASE

DEFAULT_STORE = "sqlite:///correlator-broker.db"
MOST_TIMEOUT_MS = 24 * 3600 * 1000
_HARDLY_S = 0.05
NOTICES_LOST_SESSION_WITHIN_S = 35.0
"""Seconds until PostgreSQL has certainly ended a silent session and freed the lock of its consumer."""


class EmbeddedConnection:
    """A connection to an embedded broker. Option `store`: its database, a `sqlite:///PATH` or `postgresql://` URL.

    A relative path is below the working directory. The broker makes a missing file, its directory and the tables, but
    not the directories above that one.

    Option `ack_timeout_ms`: how long a session waits for room in a full destination with the limit behavior
    FLOW_CONTROL; 0, the default, means no limit.

    Option `auto_create`: whether a message or consumer makes the destination that it names; the default is true.
    Otherwise the destination must exist.
    """

    features = Features(
        order=Order.PLACE,
        flags_redelivery=True,
        acknowledges_surely=True,
        deduplicates_sends=True,
        delays=True,
        selects=True,
    )

    def __init__(self, name: str, settings: ConnectionSettings) -> None:
        where = f"connections.{name}"
        check_options(where, settings.options, ("store", "ack_timeout_ms", "auto_create"))
        self._name = name
        self._store = _store_url(where, text_option(where, settings.options, "store", DEFAULT_STORE))
        self._ack_timeout_ms = whole_option(where, settings.options, "ack_timeout_ms", 0, MOST_TIMEOUT_MS, least=0)
        self._auto_create = flag_option(where, settings.options, "auto_create", default=True)
        if not self._store.startswith("sqlite:"):
            self.features = replace(self.features, notices_loss_within_s=NOTICES_LOST_SESSION_WITHIN_S)

    @staticmethod
    def own_database(options: Mapping[str, Any]) -> str:
        """Return the URL of the broker's database; see `correlator.connector.OwnsDatabase`."""
        return text_option("connections", options, "store", DEFAULT_STORE)

    def source(self, receiver: ReceiverSettings) -> EmbeddedSource:
        """Make a consumer of the queue, or of the receiver's durable subscription. Raises `ConfigError`.

        The selector applies to a queue. From a subscription the consumer takes every message, since the subscription
        belongs to this receiver alone.
        """
        return make_source(Access(self._store, auto_create=self._auto_create), receiver)

    def sink(self, sender: SenderSettings) -> EmbeddedSink:
        """Make a producer. It stores every message durably, even one that is marked as not persistent. Raises
        `ConfigError`.
        """
        return make_sink(Access(self._store, auto_create=self._auto_create), sender)

    def attach(self, client_id: str | None) -> EmbeddedClient:
        """Register a connection of a program; see `correlator.connector.MessageService`."""
        where = f"connections.{self._name}"
        timeout_s = self._ack_timeout_ms / 1000
        return EmbeddedClient(where, self._store, client_id, self.features, timeout_s, auto_create=self._auto_create)

    def administration(self) -> EmbeddedAdministration:
        """Return the operations of an administrator; see `correlator.connector.Administered`."""
        return EmbeddedAdministration(f"connections.{self._name}", self._store, self._looking, self._attach_briefly)

    def _attach_briefly(self) -> EmbeddedClient:
        """Make a client whose sessions hardly wait for room."""
        return EmbeddedClient(f"connections.{self._name}", self._store, None, self.features, _HARDLY_S)

    def browse(self, destination: str, limit: int, _options: Mapping[str, Any] = {}) -> Sequence[Message]:
        """Return copies of the first messages of a queue, including held messages. Changes nothing.

        Raises `UsageError` E2110 if the destination is not a queue, `ConnectionLost` if the database cannot be read.
        """
        return browse(self._looking, destination, limit)

    def queues(self) -> Sequence[str]:
        """Return all queues that were ever used. Raises `ConnectionLost` as `browse`."""
        with self._looking() as connection:
            return destinations.queues(connection)

    def examine(
        self, _receivers: Sequence[ReceiverSettings], _senders: Sequence[SenderSettings]
    ) -> Sequence[CorrelatorError]:
        """Findings about the database; none if there is no broker yet. See `correlator.connector.Examinable`."""
        where = f"connections.{self._name}"
        try:
            with translated(where):
                return examination.look(where, self._store)
        except ConnectionLost as error:
            return [error]

    @contextmanager
    def _looking(self) -> Iterator[Connection]:
        """Open the database for reading. Raises `ConnectionLost` E7003, also if there is no broker yet; E7006.

        First upgrades a broker of an older version.
        """
        where = f"connections.{self._name}"
        with translated(where):
            try:
                with reading(self._store) as connection:
                    found = schema.revision(connection)
                    schema.refuse_unknown(location(self._store), found)
                    if not found:
                        raise _no_broker(where, f"{location(self._store)} holds no broker yet")
                    if found == schema.HEAD:
                        yield connection
                        return
                open_link(self._store).close()
                with reading(self._store) as connection:
                    yield connection
            except StoreError as error:
                if error.code != NO_DATABASE:
                    raise
                raise _no_broker(where, f"the broker's database {location(self._store)} is not there yet") from error

    def unsubscribe(self, topic: str, subscription: str) -> None:
        """Delete a subscription; see `correlator.connector.Unsubscribable`."""
        delete_subscription(f"connections.{self._name}", Access(self._store), topic, subscription)

    def create(self, destination: str, properties: Mapping[str, Any] = {}) -> None:
        """Make a destination with these properties; see docs/embedded-limits.md.

        Raises:
            UsageError: E7522, the name is reserved; E7523, a property does not exist or has a value that is not
                allowed; E7524, the destination exists already.
            ConfigError: E1215, the name is not one of a destination.
            ConnectionLost: the database failed.
        """
        administration.create(f"connections.{self._name}", Access(self._store), destination, properties)

    def update(self, destination: str, properties: Mapping[str, Any]) -> None:
        """Change properties of a destination. It keeps the messages that it holds, even above a new limit.

        Raises:
            UsageError: E7512, there is no such destination; E7523 as `create`; E7525, its consumers do not allow it.
            ConfigError, ConnectionLost: as `create`.
        """
        administration.update(f"connections.{self._name}", Access(self._store), destination, properties)

    def delete(self, destination: str) -> None:
        """Delete a destination; see `correlator.connector.Deletable`."""
        delete_destination(f"connections.{self._name}", Access(self._store), destination)

    def close(self) -> None:
        """Do nothing: sources and sinks share no resources."""


def _no_broker(where: str, what: str) -> ConnectionLost:
    todo = f"If it should be there, correct {where}.store"
    return ConnectionLost("E7003", where, what, "It is made by whoever first sends or receives", todo)


def _store_url(where: str, text: str) -> str:
    """Return the URL with an absolute path. Raises `ConfigError` E1214 without the URL, since it may
    contain a password.
    """
    try:
        url = parse(text)
    except ConfigError as error:
        raise ConfigError("E1214", f"{where}.store", error.what, error.allowed, error.todo) from error
    if url.get_backend_name() == "sqlite":
        url = url.set(database=str(Path(url.database or "").absolute()))
    return url.render_as_string(hide_password=False)
