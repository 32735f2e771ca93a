"""Classes by name: monitors and event types that a configuration or the store names."""

from typing import Any

from correlator.configuration.imports import import_object
from correlator.errors import ConfigError, quoted


def resolve(name: str, where: str = "store") -> type[Any]:
    """The class behind `module:Class`; raises `ConfigError` E1501 that shows the user's own part of a traceback."""
    module_name, _, path = name.partition(":")
    if not module_name or not path:
        raise ConfigError("E1501", where, f"{quoted(name)} is not an import path", "Write 'module:Class'")
    found = import_object(name, where)
    if not isinstance(found, type):
        raise ConfigError("E1501", where, f"{quoted(name)} is no class")
    return found
