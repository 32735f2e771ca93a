"""Checks the URL of a store: the database must keep all confirmed transactions."""

from urllib.parse import parse_qsl

from correlator.configuration.problems import Findings
from correlator.configuration.urls import check_url

_ALLOWED = "Use sqlite:///path or postgresql://user@host/database"
_POSTGRES = ("postgresql", "postgresql+psycopg")


def check_store(url: str, findings: Findings) -> None:
    """Report a database that ends with the process, or that may lose confirmed transactions.

    The path of a SQLite store is relative to the working directory, unless it begins with `/` (four slashes in all), as
    in all URLs of SQLAlchemy.
    """
    base, _, query = url.partition("?")
    scheme, separator, rest = base.partition("://")
    if scheme == "sqlite" and separator:
        problem = _sqlite_problem(rest)
    elif scheme in _POSTGRES:
        problem = check_url(base)
    else:
        problem = f"{findings.show(url)} is not the URL of a store"
    if problem is not None:
        findings.error("E1301", "store", problem, _ALLOWED)
    elif weakened := _weakened(query):
        what = f"{weakened} would lose acknowledged messages on power loss"
        findings.error("E1302", "store", what, "Only full synchronisation is allowed", "Remove the option")


def _sqlite_problem(rest: str) -> str | None:
    if not rest.startswith("/"):
        return "a SQLite URL has no host: three slashes before the path"
    path = rest[1:]
    if path in ("", ":memory:") or path.startswith("file:"):
        return "a database in memory is gone with the process"
    return None


def _weakened(query: str) -> str | None:
    """Return the option that lets a commit return before it is on disk, or `None`."""
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name.lower() == "synchronous" and value.upper() != "FULL":
            return "synchronous"
        if "synchronous_commit" in f"{name}={value}" and "off" in value:
            return "synchronous_commit"
    return None
