"""Classes by name: monitors, event types and connectors that a configuration or the store names."""

import importlib
import importlib.metadata
import sys
import traceback
from typing import Any

from correlator.errors import ConfigError, quoted
from correlator.ports import ConnectionFactory

CONNECTORS = "correlator.connectors"


def resolve(name: str, where: str = "store") -> type[Any]:
    """The class behind `module:Class`; raises `ConfigError` E1501 that shows the user's own part of a traceback."""
    module_name, _, path = name.partition(":")
    if not module_name or not path:
        raise ConfigError("E1501", where, f"{quoted(name)} is not an import path", "Write 'module:Class'")
    found: Any = sys.modules.get(module_name) or _import(module_name, where)
    for part in path.split("."):
        found = getattr(found, part, None)
    if not isinstance(found, type):
        raise ConfigError("E1501", where, f"module '{module_name}' has no class {quoted(path)}")
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


def _import(module_name: str, where: str) -> Any:
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name != module_name.split(".", maxsplit=1)[0] and error.name != module_name:
            raise ConfigError("E1501", where, f"importing '{module_name}' failed: {error}") from error
        raise ConfigError("E1501", where, f"cannot import '{module_name}': {error}") from error
    except Exception as error:
        own = traceback.extract_tb(error.__traceback__)[-1]
        raise ConfigError(
            "E1501", where, f"importing '{module_name}' raised {type(error).__name__}: {error}", f"At line {own.lineno}"
        ) from error
