"""Finds the connector of a type by the entry points of this installation."""

from collections.abc import Collection, Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points, packages_distributions
from importlib.util import find_spec
from pathlib import Path

from correlator.connector import ConnectionFactory
from correlator.errors import ConfigError, quoted

_GROUP = "correlator.connectors"
_OURS = Path(__file__).parents[2] / "connectors"
"""The package of the connectors that come with the engine: it lies beside `correlator`."""


def installed() -> Collection[str]:
    """The types of all installed connectors, sorted."""
    return sorted(_installed())


def connector(type_: str, where: str) -> ConnectionFactory:
    """Load the connector of a type.

    Args:
        type_: `type` of a connection in the configuration.
        where: the connection, for messages.

    Raises:
        ConfigError: E1212 for an unknown type, E1213 if the connector cannot be loaded.
    """
    point = _installed().get(type_)
    if point is None:
        raise ConfigError("E1212", where, f"{quoted(type_)} is not a connector", f"Known: {', '.join(installed())}")
    try:
        factory: ConnectionFactory = point.load()
    except Exception as error:
        raise _not_loaded(type_, point, where, error) from error
    return factory


@cache
def _installed() -> Mapping[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=_GROUP)}


def _not_loaded(type_: str, point: EntryPoint, where: str, error: Exception) -> ConfigError:
    package = point.module.partition(".")[0]
    missing = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    hidden = _hidden(type_, point, package, missing, where)
    if hidden is not None:
        return hidden
    if missing == package:
        what = f"type '{type_}' needs the package '{package}', which is not there"
        return ConfigError("E1213", where, what, "", "Install the distribution of the connector again")
    if missing:
        return _incomplete(type_, point, missing, where)
    what = f"type '{type_}' cannot be loaded: {type(error).__name__}: {error}"
    return ConfigError("E1213", where, what, "", f"See module {point.module}")


def _hidden(type_: str, point: EntryPoint, package: str, missing: str, where: str) -> ConfigError | None:
    """The error if Python finds another package under the name of the connector's package; otherwise `None`."""
    found = find_spec(package)
    if found is None:
        return None
    own = "" if point.dist is None else point.dist.name
    others = sorted({*packages_distributions().get(package, ())} - {own})
    places = [found.origin] if found.origin else [*(found.submodule_search_locations or ())]
    is_elsewhere = package == _OURS.name and _OURS.resolve() not in (Path(place).resolve().parent for place in places)
    if not (is_elsewhere or missing == package or (others and not missing)):
        return None
    named = ", ".join(f"'{name}'" for name in others)
    by, todo = (f", installed by {named},", f"Uninstall {named}, then install '{own}' again") if others else ("", "")
    what = f"another package named '{package}' ({', '.join(places)}){by} hides the one that type '{type_}' is in"
    return ConfigError("E1213", where, what, "", todo or "Rename that package")


def _incomplete(type_: str, point: EntryPoint, missing: str, where: str) -> ConfigError:
    """The error for a missing client library; an extra of the connector's distribution may install it."""
    extras = point.dist.metadata.get_all("Provides-Extra", []) if point.dist is not None else []
    todo = f"Install it: pip install '{point.dist.name}[{type_}]'" if point.dist is not None and type_ in extras else ""
    return ConfigError("E1213", where, f"type '{type_}' needs the module '{missing}'", "", todo)
