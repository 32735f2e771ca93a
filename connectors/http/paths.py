"""The path of a URL for a destination: `queue:orders/new` means `/orders/new`."""

from functools import lru_cache
from urllib.parse import quote

from correlator.errors import ConfigError, quoted
from correlator.options import check_destination, parse_destination

_ALLOWED = "Use queue:PATH, such as queue:orders or queue:v1/orders, without a slash at the beginning"


def path_of(destination: str) -> str | None:
    """Return the path, not encoded; `None` if servers might read it in different ways."""
    parsed = parse_destination(destination)
    if parsed is None or parsed.kind != "queue":
        return None
    *inner, last = parsed.name.split("/")
    if "" in inner or {".", ".."} & {*inner, last}:
        return None
    return f"/{parsed.name}"


def check_path(where: str, destination: str) -> str:
    """Return the path of a receiver's or sender's destination. Raises `ConfigError` E1215 or E1216."""
    check_destination(where, destination)
    path = path_of(destination)
    if path is None:
        raise ConfigError("E1216", f"{where}.destination", f"{quoted(destination)} is not a path", _ALLOWED)
    return path


@lru_cache(maxsize=1024)
def target_of(destination: str) -> str | None:
    """Return the path in the form for a request; `None` as `path_of`."""
    path = path_of(destination)
    return None if path is None else quote(path)
