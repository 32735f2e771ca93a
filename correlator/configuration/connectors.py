"""Connectors by their types: what the entry points of this installation name, and what they say about settings."""

from collections.abc import Collection, Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec

from correlator.connector import ConnectionFactory
from correlator.errors import ConfigError, quoted

_GROUP = "correlator.connectors"


def installed() -> Collection[str]:
    """The types of all connectors that are installed."""
    return sorted(_installed())


def connector(type_: str, where: str) -> ConnectionFactory:
    """The connector of a type.

    Args:
        type_: as below `connections` in a configuration.
        where: the connection, for messages.

    Raises:
        ConfigError: E1212 for an unknown one, E1213 for one that cannot be loaded.
    """
    point = _installed().get(type_)
    if point is None:
        raise ConfigError("E1212", where, f"{quoted(type_)} is not a connector", f"Known: {', '.join(installed())}")
    package = point.module.partition(".")[0]
    try:
        factory: ConnectionFactory = point.load()
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        found = _hidden(type_, package, where) if missing == package else _incomplete(type_, point, missing, where)
        raise found from error
    except Exception as error:
        what = f"type '{type_}' cannot be loaded: {type(error).__name__}: {error}"
        raise ConfigError("E1213", where, what, "", f"See module {point.module}") from error
    return factory


@cache
def _installed() -> Mapping[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=_GROUP)}


def _incomplete(type_: str, point: EntryPoint, missing: str, where: str) -> ConfigError:
    """A module is missing; a distribution names the optional packages of a connector as an extra of the same name."""
    extras = point.dist.metadata.get_all("Provides-Extra", []) if point.dist is not None else []
    todo = f"Install it: pip install '{point.dist.name}[{type_}]'" if point.dist is not None and type_ in extras else ""
    return ConfigError("E1213", where, f"type '{type_}' needs the module '{missing}'", "", todo)


def _hidden(type_: str, package: str, where: str) -> ConfigError:
    """The package of a connector is not the one that Python finds under its name."""
    found = find_spec(package)
    if found is None:
        what = f"type '{type_}' needs the package '{package}', which is not there"
        return ConfigError("E1213", where, what, "", "Install the distribution of the connector again")
    place = found.origin or ", ".join(found.submodule_search_locations or ())
    what = f"another package named '{package}' ({place}) hides the one that type '{type_}' is in"
    return ConfigError("E1213", where, what, "", "Rename that package")
