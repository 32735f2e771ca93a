"""`correlator version`: shows the versions that a bug report needs."""

import importlib.metadata
import platform
import sqlite3

import typer

from correlator.cli.failures import say
from correlator.cli.output import write_line
from correlator.errors import ConfigError
from correlator.runtime.versions import version_of

FIRST_SQLITE_WITH_BUG = (3, 7, 0)
SAFE_SQLITE = (3, 51, 3)


def add_to(app: typer.Typer) -> None:
    """Register the command `correlator version` with `app`, the Typer application of all commands."""
    app.command()(version)


def version() -> None:
    """Show the versions of correlator, Python, SQLite, and PySpark if it is installed."""
    write_line(f"correlator {importlib.metadata.version('correlator')}")
    write_line(f"python {platform.python_version()}")
    write_line(f"sqlite {sqlite3.sqlite_version}")
    if pyspark := version_of("pyspark"):
        write_line(f"pyspark {pyspark}")
    if FIRST_SQLITE_WITH_BUG <= sqlite3.sqlite_version_info < SAFE_SQLITE:
        say(_old_sqlite())


def _old_sqlite() -> ConfigError:
    safe = ".".join(map(str, SAFE_SQLITE))
    return ConfigError(
        "W3011",
        "sqlite",
        f"{sqlite3.sqlite_version} has the WAL-reset bug, mended in {safe}: two connections that write, or copy the "
        "log into the file, at the same instant can damage it",
        "No engine and no command does that: a store has one writer, and those of an embedded broker take turns",
        "Let no other program write to such a file",
    )
