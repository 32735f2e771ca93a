"""The options of senders and receivers of the connector `sql`, as values."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from connectors.sql.outbox_table import ROLES, Outbox
from connectors.sql.polled_table import Polled
from connectors.sql.replication_slot import Captured
from connectors.sql.rows import Writing
from connectors.sql.statement import check_statement
from correlator.errors import ConfigError, quoted
from correlator.options import (
    check_destination,
    check_options,
    choice_option,
    duration_option,
    is_name,
    text_option,
)
from correlator.settings import ReceiverSettings, SenderSettings

_MODES = ("insert", "upsert", "delete", "statement")
_OF_SENDERS = ("mode", "extra_fields", "missing_up_to")
_OF_TABLES = ("key_columns", "schema")
_OF_OUTBOXES = ("schema", "columns", "poll_interval")
_OF_POLLED = ("schema", "order_column", "key_columns", "lag", "start", "poll_interval")
_OF_CAPTURED = ("slot", "snapshot")
_POLL_INTERVAL_S = 5.0
_SLOT_NAME = re.compile(r"[a-z0-9_]{1,63}")


def place_of(part: ReceiverSettings | SenderSettings) -> str:
    """Return the place of a receiver or sender, for messages."""
    return f"{'receivers' if isinstance(part, ReceiverSettings) else 'senders'}.{part.id}"


def is_captured(receiver: ReceiverSettings) -> bool:
    """Return whether the receiver takes the changes of tables from the log of the server."""
    return receiver.destination.startswith("topic:") and "slot" in receiver.options


def is_polled(receiver: ReceiverSettings) -> bool:
    """Return whether the receiver reads the rows of a table and leaves them there."""
    return receiver.destination.startswith("topic:") and not is_captured(receiver)


def captured_of(receiver: ReceiverSettings) -> Captured:
    """Read the settings of a receiver that captures changes. Raises `ConfigError`."""
    where, options = place_of(receiver), receiver.options
    check_options(where, options, _OF_CAPTURED)
    _, publication = check_destination(where, receiver.destination)
    slot = text_option(where, options, "slot")
    if not _SLOT_NAME.fullmatch(slot):
        allowed = "1 to 63 small letters, digits and underscores"
        raise ConfigError("E1022", f"{where}.slot", f"{quoted(slot)} is not a name of a slot", allowed)
    snapshot = choice_option(where, options, "snapshot", ("first", "never"), "first")
    return Captured(where, publication, slot, snapshot == "first")


def polled_of(receiver: ReceiverSettings) -> Polled:
    """Read the settings of a receiver of a polled table. Raises `ConfigError`."""
    where, options = place_of(receiver), receiver.options
    check_options(where, options, _OF_POLLED)
    if "order_column" not in options:
        what = "neither 'order_column' nor 'slot' is set"
        allowed = "order_column polls a table, slot captures the changes of the tables of a publication"
        raise ConfigError("E1021", where, what, allowed)
    _, table = check_destination(where, receiver.destination)
    lag_s = duration_option(where, options, "lag", "From 1ms to 1h", lambda given: 0.001 <= given <= 3600)
    start = choice_option(where, options, "start", ("first", "next"), "first")
    return Polled(
        where,
        table,
        schema_of(where, options),
        text_option(where, options, "order_column"),
        _key_columns(f"{where}.key_columns", options),
        lag_s,
        start == "next",
    )


def outbox_of(receiver: ReceiverSettings) -> Outbox:
    """Read the settings of a receiver of an outbox table. Raises `ConfigError`."""
    where = place_of(receiver)
    check_options(where, receiver.options, _OF_OUTBOXES)
    table = _table(where, receiver.destination)
    return Outbox(where, table, schema_of(where, receiver.options), _columns(f"{where}.columns", receiver.options))


def poll_interval_of(receiver: ReceiverSettings) -> float:
    """Return the seconds after which a receiver looks for rows without a notification. Raises `ConfigError`."""
    where, options = place_of(receiver), receiver.options
    allowed = "From 10ms to 1h"
    given_s = duration_option(where, options, "poll_interval", allowed, lambda given: 0.01 <= given <= 3600)
    return _POLL_INTERVAL_S if given_s is None else given_s


def _columns(where: str, options: Mapping[str, Any]) -> Mapping[str, str]:
    """Return the names of columns by their roles. Raises `ConfigError` E1020 or E1022."""
    named = options.get("columns", {})
    if not isinstance(named, Mapping):
        raise ConfigError("E1022", where, f"{quoted(named)} is not a mapping", "As in {id: number, body: payload}")
    check_options(where, named, ROLES)
    for role, name in named.items():
        if not isinstance(name, str) or not is_name(name):
            raise ConfigError("E1022", f"{where}.{role}", f"{quoted(name)} is not a name of a column")
    every = [named.get(role, role) for role in ROLES]
    for role, name in named.items():
        if every.count(name) > 1:
            raise ConfigError("E1022", f"{where}.{role}", f"column {quoted(name)} has two roles")
    return dict(named)


def writing_of(sender: SenderSettings) -> Writing:
    """Read the settings of a sender. Raises `ConfigError`."""
    where, options = place_of(sender), sender.options
    check_options(where, options, (*_OF_SENDERS, *_OF_TABLES, "statement"))
    mode = choice_option(where, options, "mode", _MODES, "insert")
    extra_fields = choice_option(where, options, "extra_fields", ("refuse", "ignore"), "refuse")
    for name in options.keys() & ({*_OF_TABLES} if mode == "statement" else {"statement"}):
        raise ConfigError("E1022", f"{where}.{name}", f"has no meaning with mode: {mode}")
    if mode == "statement":
        statement = text_option(where, options, "statement")
        check_statement(f"{where}.statement", statement)
        return Writing(where, _target(where, sender), None, mode, (), extra_fields == "ignore", statement)
    keys = _key_columns(f"{where}.key_columns", options)
    if keys and mode == "insert":
        raise ConfigError("E1022", f"{where}.key_columns", "has no meaning without mode: upsert or mode: delete")
    return Writing(where, _target(where, sender), schema_of(where, options), mode, keys, extra_fields == "ignore")


def _target(where: str, sender: SenderSettings) -> str:
    """Return the name of the table of a sender. Raises `ConfigError` E1215 or E1216."""
    if sender.destination is None:
        what = "a sender to a database needs a destination of its own"
        raise ConfigError("E1216", f"{where}.destination", what, "Use queue:TABLE")
    return _table(where, sender.destination)


def schema_of(where: str, options: Mapping[str, Any]) -> str | None:
    """Return the option `schema`; `None` for the schema that the database searches first. Raises `ConfigError`."""
    return text_option(where, options, "schema") if "schema" in options else None


def _key_columns(where: str, options: Mapping[str, Any]) -> Sequence[str]:
    keys = options.get("key_columns", ())
    if "key_columns" in options and (not isinstance(keys, list | tuple) or not keys):
        raise ConfigError("E1022", where, f"{quoted(keys)} is not a list of columns", "As in [customer, day]")
    for at, key in enumerate(keys):
        if not isinstance(key, str) or not is_name(key):
            raise ConfigError("E1022", where, f"{quoted(key)} is not a name of a column")
        if key in keys[:at]:
            raise ConfigError("E1022", where, f"column {quoted(key)} is named twice")
    return tuple(keys)


def _table(where: str, destination: str) -> str:
    """Return the name of the table. Raises `ConfigError` E1215 or E1216."""
    kind, name = check_destination(where, destination)
    if kind != "queue":
        what = f"{quoted(destination)} is not a table"
        raise ConfigError("E1216", f"{where}.destination", what, "Use queue:TABLE")
    return name
