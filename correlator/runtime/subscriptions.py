"""Which subscriptions receivers read, and which options say where senders send: a start notices that they change."""

from collections.abc import Collection, Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace

from correlator.configuration.connectors import connector
from correlator.connector import Connection, Grouping, routing_options
from correlator.core.commit import Endpoint
from correlator.core.registry import RECEIVER
from correlator.errors import ConfigError
from correlator.settings import EngineSettings

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
    found = {}
    with ExitStack() as made:
        groupings: dict[str, Grouping | None] = {}
        for receiver in (*settings.receivers, *added):
            name = receiver.connection
            with suppress(ConfigError):
                if name not in groupings:
                    groupings[name] = _grouping(name, settings, provided, made)
                grouping = groupings[name]
                if grouping is not None:
                    destination = settings.destinations.get(receiver.destination, receiver.destination)
                    found[receiver.id] = grouping.group(replace(receiver, destination=destination))
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


def _grouping(
    name: str, settings: EngineSettings, provided: Mapping[str, Connection], made: ExitStack
) -> Grouping | None:
    if name in provided:
        given = provided[name]
        return given if isinstance(given, Grouping) else None
    factory = connector(settings.connections[name].type, f"connections.{name}")
    if isinstance(factory, type) and not hasattr(factory, "group"):
        return None  # most connectors: nothing needs to be made
    connection = factory(name, settings.connections[name])
    made.callback(connection.close)
    return connection if isinstance(connection, Grouping) else None
