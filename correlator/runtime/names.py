"""Classes by name: monitors, event types and connectors that a configuration or the store names."""

import importlib.metadata
import importlib.util
from typing import Any

from correlator.configuration.imports import import_object
from correlator.connector import ConnectionFactory
from correlator.errors import ConfigError, quoted

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
    """The connector of a type.

    Raises `ConfigError` E1212 for an unknown one, E1213 when a package is missing, or another one of its name hides it.
    """
    known = {point.name: point for point in importlib.metadata.entry_points(group=CONNECTORS)}
    if type_name not in known:
        raise ConfigError("E1212", where, f"type {quoted(type_name)} is unknown", f"Known: {', '.join(sorted(known))}")
    try:
        factory: ConnectionFactory = known[type_name].load()
    except ImportError as error:
        own = known[type_name].module.partition(".")[0]
        if (error.name or "").partition(".")[0] == own:
            raise _hidden(type_name, own, where) from error
        raise ConfigError(
            "E1213",
            where,
            f"type '{type_name}' needs the package '{error.name}'",
            "",
            f"Install: pip install correlator[{type_name}]",
        ) from error
    return factory


def _hidden(type_name: str, package: str, where: str) -> ConfigError:
    """The package of a connector is not the one that Python finds under its name."""
    found = importlib.util.find_spec(package)
    if found is None:
        what = f"type '{type_name}' needs the package '{package}', which is not there"
        return ConfigError("E1213", where, what, "", "Install the distribution of the connector again")
    place = found.origin or ", ".join(found.submodule_search_locations or ())
    what = f"another package named '{package}' ({place}) hides the one that type '{type_name}' is in"
    return ConfigError("E1213", where, what, "", "Rename that package")
