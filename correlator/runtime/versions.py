"""The versions of what an engine runs with."""

import importlib.metadata
import platform
import re
import sqlite3
from collections.abc import Mapping
from functools import cache

_NAME = re.compile(r"[\w.-]+")
_NOT_USED = re.compile(r"extra == '(?:docs|flights|peers|test)'")
"""Extras whose packages no engine uses."""


@cache
def versions() -> Mapping[str, str]:
    """Return the versions of correlator, Python and SQLite, and of each installed library that engines may use."""
    fixed = {
        "correlator": importlib.metadata.version("correlator"),
        "Python": platform.python_version(),
        "SQLite": sqlite3.sqlite_version,
    }
    names = {_NAME.match(one)[0] for one in _requirements() if not _NOT_USED.search(one)}  # type: ignore[index]
    installed = {name: version for name in sorted(names) if (version := version_of(name)) is not None}
    return {**fixed, **installed}


def version_of(package: str) -> str | None:
    """Return the version of an installed package; `None` if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _requirements() -> list[str]:
    return importlib.metadata.requires("correlator") or []
