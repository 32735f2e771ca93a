"""Reads the file that a command works on: engine and pipelines, with the modules beside the file importable."""

import contextlib
import sys
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from correlator.cli.checks import check_pipelines
from correlator.configuration import Check, Loaded, read_file
from correlator.configuration.connectors import connector
from correlator.configuration.words import did_you_mean
from correlator.connector import Connection
from correlator.errors import UsageError, quoted
from correlator.pipeline.spec import PipelineFile

_URL_SCHEMES = ("sqlite:", "postgresql:", "postgresql+psycopg:")


def load(
    file: Path, checks: Collection[Check[PipelineFile]] = (), overrides: Sequence[str] = ()
) -> Loaded[PipelineFile]:
    """Read a configuration file; raises `InvalidConfiguration` with everything that is wrong in it.

    Args:
        file: its path.
        checks: rules beside those that are checked always.
        overrides: `KEY.PATH=VALUE`, in place of what the file says there.
    """
    every = [check_pipelines, *checks]
    return read_file(file, PipelineFile, check_import=_anything, checks=every, overrides=overrides)


def directory_of(file: Path) -> str:
    """Where modules that the file names are looked up."""
    return str(file.absolute().parent)


@contextlib.contextmanager
def importable(file: Path) -> Iterator[None]:
    """Let modules beside the file be imported, after all others; afterwards forget them again.

    So two files that are checked in one run may have modules of the same name.
    """
    _refuse_lost_directory()
    directory = directory_of(file)
    before = set(sys.modules)
    sys.path.append(directory)
    try:
        yield
    finally:
        sys.path.remove(directory)
        for name in set(sys.modules) - before:
            if str(getattr(sys.modules[name], "__file__", "")).startswith(directory):
                del sys.modules[name]


def store_url(file_or_url: str) -> str:
    """The store that a command is to look at: an address, or the file of the engine that owns it."""
    return store_and_settings(file_or_url)[0]


def store_and_settings(file_or_url: str) -> tuple[str, PipelineFile | None]:
    """The store, and what the file says of it; `None` where only an address is given."""
    _refuse_lost_directory()
    if file_or_url.startswith(_URL_SCHEMES):
        return file_or_url, None
    settings = read_file(file_or_url, PipelineFile).settings
    if settings.store is None:
        raise UsageError("E2011", file_or_url, "has no store: this engine keeps nothing", "", "Name one in 'store'")
    return settings.store, settings


def connection_of(name: str, settings: PipelineFile) -> Connection:
    """A connection of the file, not opened; raises `UsageError` E2012 for a name that is not there."""
    if name not in settings.connections:
        hint = did_you_mean(name, settings.connections) or f"Defined: {', '.join(settings.connections) or 'none'}"
        raise UsageError("E2012", quoted(name), "no such connection in the file", hint)
    configured = settings.connections[name]
    return connector(configured.type, f"connections.{name}")(name, configured)


def _refuse_lost_directory() -> None:
    """Relative paths need a working directory, and it may have been removed."""
    try:
        Path.cwd()
    except OSError as error:
        what = f"cannot be used: {error.strerror}"
        raise UsageError("E2016", "working directory", what, "", "Change to another one") from error


def _anything(path: str, found: object) -> None:
    """What each import must be is said by the checks, which know where it stands."""
    del path, found
