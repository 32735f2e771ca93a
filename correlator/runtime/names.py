"""Imports the classes of monitors and events that a configuration or the store names."""

from typing import Any

from correlator.configuration.imports import import_object
from correlator.errors import ConfigError, quoted


def resolve(name: str, where: str = "store") -> type[Any]:
    """Import a class.

    Args:
        name: `module:Class`.
        where: the setting that names the class, for the message.

    Raises:
        ConfigError: E1501 if there is no such class, or if the import fails. After a failed import the message shows
            the lines of the traceback that belong to the user's code.
    """
    module_name, _, path = name.partition(":")
    if not module_name or not path:
        raise ConfigError("E1501", where, f"{quoted(name)} is not an import path", "Write 'module:Class'")
    found = import_object(name, where)
    if not isinstance(found, type):
        raise ConfigError("E1501", where, f"{quoted(name)} is no class")
    return found
