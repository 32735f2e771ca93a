"""Checks the URL of a store: the database must keep all confirmed transactions."""

import os
import re
from ipaddress import AddressValueError, IPv6Address
from pathlib import Path
from urllib.parse import parse_qsl

from correlator.configuration.problems import Findings

_ALLOWED = "Use sqlite:///path or postgresql://user@host/database"
_POSTGRES = ("postgresql", "postgresql+psycopg")
_HOST = re.compile(r"(?P<host>\[[^\]]*\]|[^:\[\]]*)(?::(?P<port>[^:]*))?")


def check_store(url: str, findings: Findings) -> None:
    """Report a database that ends with the process, or that may lose confirmed transactions.

    The path of a SQLite store is relative to the working directory, unless it begins with `/` (four slashes in all), as
    in all URLs of SQLAlchemy.
    """
    base, _, query = url.partition("?")
    scheme, separator, rest = base.partition("://")
    if scheme == "sqlite" and separator:
        problem = _sqlite_problem(rest)
    elif scheme in _POSTGRES and separator:
        problem = _postgres_problem(rest)
    else:
        problem = f"{findings.show(url)} is not the URL of a store"
    if problem is not None:
        findings.error("E1301", "store", problem, _ALLOWED)
    elif weakened := _weakened(query):
        what = f"{weakened} would lose acknowledged messages on power loss"
        findings.error("E1302", "store", what, "Only full synchronisation is allowed", "Remove the option")


def same_database(one: str, other: str) -> bool:
    """Whether two URLs of stores name one file, or one database of PostgreSQL with the same options."""
    return _place(one) == _place(other)


def _place(url: str) -> tuple[str, ...]:
    base, _, query = url.partition("?")
    scheme, _, rest = base.partition("://")
    if scheme == "sqlite":
        return (os.path.normpath(Path(rest[1:]).absolute()),)
    return rest.rpartition("@")[2], *(value for name, value in parse_qsl(query) if name == "options")


def _sqlite_problem(rest: str) -> str | None:
    if not rest.startswith("/"):
        return "a SQLite URL has no host: three slashes before the path"
    path = rest[1:]
    if path in ("", ":memory:") or path.startswith("file:"):
        return "a database in memory is gone with the process"
    return None


def _postgres_problem(rest: str) -> str | None:
    """Return what is wrong with `user:password@host:port/database`; never shows user or password."""
    if any(c.isspace() or not c.isprintable() for c in rest):
        return "contains a space or a control character"
    authority = re.split(r"[/#]", rest, maxsplit=1)[0]
    if "@" in rest and "@" not in authority:
        return "has an '@' after the host: in a password, write '/' as %2F, '?' as %3F and '#' as %23"
    if "," in authority.rpartition("@")[2]:
        return "has several hosts; a store has one host and one port"
    found = _HOST.fullmatch(authority.rpartition("@")[2])
    if found is None:
        return "an IPv6 address must stand in brackets, as in [::1]"
    host, port = found["host"], found["port"]
    if host.startswith("[") and not _is_ipv6(host[1:-1]):
        return "has brackets around what is not an IPv6 address"
    return _port_problem(port) if host else "has no host"


def _is_ipv6(text: str) -> bool:
    try:
        return bool(IPv6Address(text))
    except AddressValueError:
        return False


def _port_problem(port: str | None) -> str | None:
    if port is None:
        return None
    if not re.fullmatch(r"[0-9]{1,9}", port, re.ASCII):
        return "the port is not a number"
    return None if 1 <= int(port) <= 65535 else f"port {int(port)} is not in 1..65535"


def _weakened(query: str) -> str | None:
    """Return the option that lets a commit return before it is on disk, or `None`."""
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name.lower() == "synchronous" and value.upper() != "FULL":
            return "synchronous"
        if "synchronous_commit" in f"{name}={value}" and "off" in value:
            return "synchronous_commit"
    return None
