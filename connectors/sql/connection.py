"""The entry point of the connector `sql`: checks options; makes sources and sinks, and outbox tables."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from sqlalchemy import Connection

from connectors.sql.capture import CaptureSource
from connectors.sql.database import address, open_database, same_table, translated
from connectors.sql.examination import look
from connectors.sql.mysql import check_name
from connectors.sql.options import (
    captured_of,
    is_captured,
    is_polled,
    outbox_of,
    place_of,
    poll_interval_of,
    polled_of,
    schema_of,
    writing_of,
)
from connectors.sql.outbox import OutboxSource
from connectors.sql.outbox_table import Outbox, OutboxTable, statements
from connectors.sql.polling import PolledSource
from connectors.sql.sink import SqlSink
from correlator.connector import NO_SUCH_DESTINATION, Advice, Features, Order
from correlator.errors import ConfigError, ConnectionLost, CorrelatorError, UsageError, quoted
from correlator.events import Message
from correlator.options import check_options, text_option, whole_option
from correlator.settings import ConnectionSettings, ReceiverSettings, SenderSettings

_LAST_NUMBER = 2**63 - 1


class SqlConnection:
    """A database with tables, from which receivers take messages and to which senders write.

    Options: `database`, its address; `state`, the directory in which receivers of topics keep their positions.

    Receivers take the rows of an outbox table, `queue:TABLE`, and delete them. Their options are `schema` of the table;
    `columns`, which names the columns of the table if they have other names; and `poll_interval` (5s), after which a
    receiver looks for rows even without a notification.

    Receivers of `topic:TABLE` read the rows of a table and leave them there. Their options are `schema`;
    `order_column`, whose values grow; `key_columns`, which order rows with equal values (by default those of the
    primary key); `lag`, for how long a row must exist before it is read; `start` (`first` or `next`): with which row a
    receiver without a position begins, by default `first`; and `poll_interval` (5s).

    Receivers of `topic:PUBLICATION` with the option `slot`, the name of a replication slot, take the changes of the
    tables of a publication of PostgreSQL. Their other option is `snapshot` (`first` or `never`): whether a receiver
    without a position begins with the existing rows; by default it does.

    Senders write to `queue:TABLE`; their options are `mode` (`insert`, `upsert`, `delete` or `statement`, by default
    `insert`); `key_columns`, the columns that identify a row (by default those of the primary key); `schema` of the
    table; `statement`, which a sender executes for each message; `extra_fields` (`refuse`), how to treat a body with a
    field without a column; and `missing_up_to` (0), the number up to which the database may lack messages of the
    sender.
    """

    features = Features(
        order=Order.POSITION,
        acknowledges_surely=True,
        deduplicates_sends=True,
        misses_numbers=True,
        carries_properties=False,
    )
    redelivery_options: Collection[str] = ()
    routing_options: Collection[str] = ("schema",)

    def __init__(self, name: str, settings: ConnectionSettings) -> None:
        where = f"connections.{name}"
        check_options(where, settings.options, ("database", "state"))
        if "database" not in settings.options:
            raise ConfigError("E1021", where, "'database' is missing")
        self._url = address(where, str(settings.options["database"]))
        self._where = where
        given = text_option(where, settings.options, "state") if "state" in settings.options else None
        self._state = None if given is None else Path(given).absolute()
        self._slots: dict[str, str] = {}
        """The subscription of the receiver of each slot."""

    def source(self, receiver: ReceiverSettings) -> OutboxSource | PolledSource | CaptureSource:
        """Make a reader of an outbox table, of a polled table, or of changes. Raises `ConfigError`."""
        if is_captured(receiver):
            captured = captured_of(receiver)
            if self._url.get_backend_name() != "postgresql":
                what, allowed = "this database has no replication slots", "PostgreSQL has them"
                raise ConfigError("E1022", f"{captured.where}.slot", what, allowed)
            other = self._slots.setdefault(captured.slot, receiver.subscription)
            if other != receiver.subscription:
                what = f"the receiver of subscription {quoted(other)} reads slot {quoted(captured.slot)}"
                raise ConfigError("E1022", f"{captured.where}.slot", what, "Each receiver needs a slot of its own")
            return CaptureSource(receiver, self._url, captured, self._positions(captured.where))
        interval_s = poll_interval_of(receiver)
        if not is_polled(receiver):
            return OutboxSource(receiver, self._url, self._outbox_of(receiver), interval_s)
        polled = polled_of(receiver)
        self._check_name(polled.where, polled.table)
        return PolledSource(receiver, self._url, polled, interval_s, self._positions(polled.where))

    def group(self, receiver: ReceiverSettings) -> str:
        """The outbox table of a receiver, or the subscription of a topic; see `correlator.connector.Grouping`."""
        if not receiver.destination.startswith("queue:"):
            return receiver.subscription
        outbox = outbox_of(receiver)
        return outbox.table if outbox.schema is None else f"{outbox.schema}.{outbox.table}"

    def is_same_place(
        self, before: ReceiverSettings | SenderSettings, after: ReceiverSettings | SenderSettings
    ) -> bool:
        """Whether the schemas, of which one may not be written out, have the same table; asks PostgreSQL. See
        `correlator.connector.Placing`.
        """
        schemas = [schema_of(place_of(part), part.options) for part in (before, after)]
        if schemas[0] == schemas[1]:
            return True
        table = (after.destination or "").partition(":")[2]
        if self._url.get_backend_name() == "postgresql":
            return same_table(self._where, self._url, table, schemas)
        default = "main" if self._url.get_backend_name() == "sqlite" else self._url.database
        return all(schema in (None, default) for schema in schemas)

    def sink(self, sender: SenderSettings) -> SqlSink:
        """Make a writer of the table. Raises `ConfigError`."""
        missing_up_to = whole_option(place_of(sender), sender.options, "missing_up_to", 0, _LAST_NUMBER, least=0)
        writing = writing_of(sender)
        if writing.mode != "statement":
            self._check_name(writing.where, writing.table)
        return SqlSink(sender, self._url, writing, missing_up_to)

    def browse(self, destination: str, limit: int, options: Mapping[str, Any] = {}) -> Sequence[Message]:
        """Return copies of the messages of the first rows of an outbox table. Changes nothing.

        Raises `UsageError` E2110 if the destination is not a queue, E2027 if there is no such table; `ConnectionLost`,
        among others if the table cannot be an outbox.
        """
        if not destination.startswith("queue:"):
            raise UsageError("E2110", destination, "only queues can be browsed")
        own = {name: options[name] for name in ("schema", "columns") if name in options}
        receiver = ReceiverSettings(id="browse", connection="", destination=destination, options=own)
        source = OutboxSource(receiver, self._url, outbox_of(receiver)._replace(where=self._where), 1.0)
        try:
            return source.peek(limit)
        except ConnectionLost as error:
            if error.code != NO_SUCH_DESTINATION:
                raise
            raise UsageError("E2027", quoted(destination), "the broker has no such queue") from error
        finally:
            source.close()

    def outbox_statements(self, receiver: ReceiverSettings) -> Sequence[str]:
        """Return the SQL statements that make the outbox table of a receiver, for `correlator outbox`.

        Raises `ConfigError` as `source`.
        """
        return statements(self._outbox_of(receiver), self._url.get_backend_name())

    def create_outbox(self, receiver: ReceiverSettings) -> None:
        """Make the outbox table of a receiver if it does not exist, and its trigger, if it has one, for `correlator
        outbox`.

        Raises `ConfigError` as `source`; `ConnectionLost`, among others if the existing table cannot be an outbox.
        """
        outbox, made = outbox_of(receiver), self.outbox_statements(receiver)

        def create(connection: Connection) -> None:
            connection.execution_options(no_parameters=True)  # a name may contain a percent sign
            for statement in made:
                connection.exec_driver_sql(statement)

        self._use(outbox.where, create)
        self._use(outbox.where, lambda connection: OutboxTable(connection, outbox))

    def examine(
        self, receivers: Sequence[ReceiverSettings], senders: Sequence[SenderSettings]
    ) -> Sequence[CorrelatorError]:
        """Return what keeps receivers and senders from using their tables, for `correlator doctor`. Changes nothing."""
        parts: Sequence[ReceiverSettings | SenderSettings] = (*receivers, *senders)
        return [finding for part in parts for finding in self._examined(part)]

    @staticmethod
    def advice(endpoint: ReceiverSettings | SenderSettings) -> Iterator[Advice]:
        """Warn of a lag, which no database can enforce."""
        if isinstance(endpoint, ReceiverSettings) and is_polled(endpoint) and "lag" in endpoint.options:
            what = f"a row that commits more than {endpoint.options['lag']} after rows with higher values is never read"
            todo = "In PostgreSQL, order by a column of the type xid8, or use an outbox table"
            yield Advice("W1230", "lag", what, "", todo)

    @staticmethod
    def notes(receiver: ReceiverSettings) -> Iterator[str]:
        """Yield the exceptions for a receiver that begins with a snapshot, and for one that relies on a lag."""
        if "slot" in receiver.options and receiver.options.get("snapshot", "first") == "first":
            what = f"A snapshot of '{receiver.id}' that is interrupted begins again"
            yield f"{what}: after a message 'truncate', rows that were received before are redelivered with other ids"
        if is_polled(receiver) and "lag" in receiver.options:
            late = f"a row that commits more than {receiver.options['lag']} after rows with higher values"
            yield f"'{receiver.id}' loses {late}"

    def close(self) -> None:
        """Do nothing: sources and sinks share no resources."""

    def _outbox_of(self, receiver: ReceiverSettings) -> Outbox:
        outbox = outbox_of(receiver)
        self._check_name(outbox.where, outbox.table)
        return outbox

    def _check_name(self, where: str, table: str) -> None:
        if self._url.get_backend_name() == "mysql":
            check_name(where, table)

    def _positions(self, where: str) -> Path:
        """Return the directory for the position of a receiver. Raises `ConfigError` E1021."""
        if self._state is None:
            todo = "Name a directory for the positions of receivers"
            raise ConfigError("E1021", self._where, f"'state' is missing, which {where} needs", "", todo)
        return self._state

    def _use(self, where: str, use: Callable[[Connection], object]) -> None:
        """Call a function within a transaction. Raises `ConnectionLost`."""
        with (
            translated(where, lambda: None),
            closing(open_database(where, self._url, defers=True)) as connection,
            connection.begin(),
        ):
            use(connection)

    def _examined(self, part: ReceiverSettings | SenderSettings) -> Sequence[CorrelatorError]:
        found: list[CorrelatorError] = []
        try:
            self._use(place_of(part), lambda connection: found.extend(look(connection, part)))
        except ConnectionLost as error:
            found.append(error)
        return found
