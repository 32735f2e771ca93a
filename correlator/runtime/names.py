"""Classes by name: monitors, event types and connectors that a configuration or the store names."""

import importlib.metadata
from typing import Any

from correlator.configuration.imports import import_object
from correlator.errors import ConfigError, quoted
from correlator.ports import ConnectionFactory

CONNECTORS = "correlator.connectors"


def resolve(name: str, where: str = "store") -> type[Any]:
    """The class behind `module:Class`; raises `ConfigError` E1501 that shows the user's own part of a traceback."""
    module_name, _, path = name.partition(":")
    if not module_name or not path:
        raise ConfigError("E1501", where, f"{quoted(name)} is not an import path", "Write 'module:Class'")
    found = import_object(name, where)
    if not isinstance(found, type):
        raise ConfigError("E1501", where, f"{quoted(name)} is no class")
    return found


def connector(type_name: str, where: str) -> ConnectionFactory:
    """The connector of a type; raises `ConfigError` E1212 for an unknown one and E1213 when its package is missing."""
    known = {point.name: point for point in importlib.metadata.entry_points(group=CONNECTORS)}
    if type_name not in known:
        raise ConfigError("E1212", where, f"type {quoted(type_name)} is unknown", f"Known: {', '.join(sorted(known))}")
    try:
        factory: ConnectionFactory = known[type_name].load()
    except ImportError as error:
        raise ConfigError(
            "E1213",
            where,
            f"type '{type_name}' needs the package '{error.name}'",
            "",
            f"Install: pip install correlator[{type_name}]",
        ) from error
    return factory
