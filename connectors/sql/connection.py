"""The entry point of the connector `sql`: checks options; makes sinks."""

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any, Never

from sqlalchemy.exc import SQLAlchemyError

from connectors.sql.database import address, open_database, reason_of
from connectors.sql.rows import TableRows, Writing
from connectors.sql.sink import SqlSink
from correlator.connector import Features
from correlator.errors import ConfigError, ConnectionLost, CorrelatorError, StoreError, quoted
from correlator.options import check_destination, check_options, choice_option, text_option, whole_option
from correlator.settings import ConnectionSettings, ReceiverSettings, SenderSettings

_MODES = ("insert", "upsert", "delete")
_OPTIONS = ("mode", "key_columns", "schema", "extra_fields", "missing_up_to")
_LAST_NUMBER = 2**63 - 1
_LONGEST_NAME = 500


class SqlConnection:
    """A database with tables, to which senders write. It has no receivers.

    Options: `database`, its address. Senders write to `queue:TABLE`; their options are `mode` (`insert`), also `upsert`
    or `delete`; `key_columns`, the columns that identify a row (those of the primary key); `schema` of the table;
    `extra_fields` (`refuse`), what happens to a body with a field without column; and `missing_up_to` (0), up to which
    number the database may lack messages of the sender.
    """

    features = Features(deduplicates_sends=True)

    def __init__(self, name: str, settings: ConnectionSettings) -> None:
        where = f"connections.{name}"
        check_options(where, settings.options, ("database",))
        if "database" not in settings.options:
            raise ConfigError("E1021", where, "'database' is missing")
        self._url = address(where, str(settings.options["database"]))

    def source(self, receiver: ReceiverSettings) -> Never:
        """Refuse the receiver with `ConfigError` E1216."""
        what = "a connection of type sql has no receivers"
        raise ConfigError("E1216", f"receivers.{receiver.id}.destination", what, "Senders write to it")

    def sink(self, sender: SenderSettings) -> SqlSink:
        """A writer of the table."""
        where = f"senders.{sender.id}"
        missing_up_to = whole_option(where, sender.options, "missing_up_to", 0, _LAST_NUMBER, least=0)
        return SqlSink(sender, self._url, _writing(where, sender), missing_up_to)

    def examine(
        self, _receivers: Sequence[ReceiverSettings], senders: Sequence[SenderSettings]
    ) -> Sequence[CorrelatorError]:
        """For `correlator doctor`: what keeps senders from writing to their tables. Changes nothing."""
        return [error for sender in senders for error in self._examine(sender)]

    def close(self) -> None:
        """Do nothing: sinks share nothing."""

    def _examine(self, sender: SenderSettings) -> Iterator[CorrelatorError]:
        where = f"senders.{sender.id}"
        try:
            with closing(open_database(where, self._url)) as connection, connection.begin():
                TableRows(connection, _writing(where, sender))
        except ConnectionLost as error:
            yield error
        except (SQLAlchemyError, StoreError, sqlite3.Error, OSError) as error:
            yield ConnectionLost("E7003", where, f"the database failed: {reason_of(error)}")


def _writing(where: str, sender: SenderSettings) -> Writing:
    """Read the settings of a sender. Raises `ConfigError`."""
    options = sender.options
    check_options(where, options, _OPTIONS)
    mode = choice_option(where, options, "mode", _MODES, "insert")
    keys = _key_columns(f"{where}.key_columns", options)
    if keys and mode == "insert":
        raise ConfigError("E1022", f"{where}.key_columns", "has no meaning without mode: upsert or mode: delete")
    schema = text_option(where, options, "schema") if "schema" in options else None
    extra_fields = choice_option(where, options, "extra_fields", ("refuse", "ignore"), "refuse")
    return Writing(where, _table(where, sender.destination), schema, mode, keys, extra_fields == "ignore")


def _key_columns(where: str, options: Mapping[str, Any]) -> Sequence[str]:
    keys = options.get("key_columns", ())
    if "key_columns" in options and (not isinstance(keys, list | tuple) or not keys):
        raise ConfigError("E1022", where, f"{quoted(keys)} is not a list of columns", "As in [customer, day]")
    for at, key in enumerate(keys):
        if not isinstance(key, str) or not 0 < len(key) <= _LONGEST_NAME:
            raise ConfigError("E1022", where, f"{quoted(key)} is not a name of a column")
        if key in keys[:at]:
            raise ConfigError("E1022", where, f"column {quoted(key)} is there twice")
    return tuple(keys)


def _table(where: str, destination: str | None) -> str:
    """The name of the table. Raises `ConfigError` E1215 or E1216."""
    allowed = "Use queue:TABLE"
    if destination is None:
        what = "a sender to a database needs a destination of its own"
        raise ConfigError("E1216", f"{where}.destination", what, allowed)
    kind, name = check_destination(where, destination)
    if kind != "queue":
        raise ConfigError("E1216", f"{where}.destination", f"{quoted(destination)} is not a table", allowed)
    return name
