"""Which subscriptions receivers read, which options say where senders send, and whether other options name the same
place: a start notices that they change.
"""

from collections.abc import Collection, Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace

from correlator.configuration.connectors import connector
from correlator.connector import Connection, Grouping, Placing, routing_options
from correlator.core.commit import Endpoint
from correlator.core.registry import RECEIVER, SENDER, Settings, without_secret_options
from correlator.errors import ConfigError
from correlator.settings import EngineSettings, ReceiverSettings

_NOTHING: Mapping[str, Connection] = {}


def subscriptions(
    settings: EngineSettings, stored: Iterable[Endpoint], provided: Mapping[str, Connection] = _NOTHING
) -> dict[str, str]:
    """Return the names of the subscriptions that the configured receivers and those added by code read, by their ids.

    Leaves out receivers whose connections have no options that name a subscription, and receivers with wrong settings,
    which get an error of their own when they are made. Opens nothing.

    Args:
        settings: settings of the engine.
        stored: the registry, with parts that this version and this configuration allow.
        provided: connections that the program passes to the engine in place of the configured ones.
    """
    added = [RECEIVER.decode(one.settings) for one in stored if one.origin == "dynamic" and one.kind == "receiver"]
    found: dict[str, str] = {}
    with ExitStack() as made:
        connections: dict[str, Connection | None] = {}
        for receiver in (*settings.receivers, *added):
            name = receiver.connection
            with suppress(ConfigError):
                if name not in connections:
                    connections[name] = _connection(name, "group", settings, provided, made)
                connection = connections[name]
                if isinstance(connection, Grouping):
                    destination = settings.destinations.get(receiver.destination, receiver.destination)
                    found[receiver.id] = connection.group(replace(receiver, destination=destination))
    return found


def unmoved(
    settings: EngineSettings, stored: Iterable[Endpoint], provided: Mapping[str, Connection] = _NOTHING
) -> set[str]:
    """Return the ids of configured parts with other options than in the registry which name the same place.

    A connection may ask its broker for them (`correlator.connector.Placing`).

    Args:
        settings: settings of the engine.
        stored: the registry, with parts that this version and this configuration allow.
        provided: connections that the program passes to the engine in place of the configured ones.
    """
    known = {(one.kind, one.id): one for one in stored if one.origin == "static"}
    parts: list[Settings] = [*settings.receivers, *settings.senders]
    found: set[str] = set()
    with ExitStack() as made:
        for part in parts:
            receives = isinstance(part, ReceiverSettings)
            entry = known.get(("receiver" if receives else "sender", part.id))
            if entry is None or entry.connection != part.connection:
                continue
            options = RECEIVER.decode(entry.settings).options if receives else SENDER.decode(entry.settings).options
            if options == without_secret_options(part).options:
                continue
            with suppress(ConfigError):
                connection = _connection(part.connection, "is_same_place", settings, provided, made)
                named = part.destination
                placed = part if named is None else replace(part, destination=settings.destinations.get(named, named))
                if isinstance(connection, Placing) and connection.is_same_place(
                    replace(placed, options=options), placed
                ):
                    found.add(part.id)
    return found


def routing(settings: EngineSettings, provided: Mapping[str, Connection] = _NOTHING) -> dict[str, Collection[str]]:
    """Return the names of the options of senders that say where messages go, by name of the connection. Opens nothing.

    Leaves out connections whose connectors cannot be loaded, which get an error of their own when they are made.

    Args:
        settings: settings of the engine.
        provided: connections that the program passes to the engine in place of the configured ones.
    """
    found = {name: routing_options(connection) for name, connection in provided.items()}
    for name, connection in settings.connections.items():
        if name not in found:
            with suppress(ConfigError):
                found[name] = routing_options(connector(connection.type, f"connections.{name}"))
    return found


def _connection(
    name: str, method: str, settings: EngineSettings, provided: Mapping[str, Connection], made: ExitStack
) -> Connection | None:
    """Return a connection; `None` if its class lacks the method. `made` closes it unless the program provides it."""
    if name in provided:
        return provided[name]
    factory = connector(settings.connections[name].type, f"connections.{name}")
    if isinstance(factory, type) and not hasattr(factory, method):
        return None  # most connectors: nothing needs to be made
    connection = factory(name, settings.connections[name])
    made.callback(connection.close)
    return connection
