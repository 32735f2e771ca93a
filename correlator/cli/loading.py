"""Reads the configuration file of a command, and makes the modules beside the file importable."""

import contextlib
import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from correlator.cli.checks import check_pipelines
from correlator.configuration import Check, Loaded, of_share, read_file
from correlator.configuration.connectors import connector
from correlator.configuration.shares import example
from correlator.configuration.words import did_you_mean
from correlator.connector import Connection
from correlator.errors import UsageError, quoted
from correlator.pipeline.spec import PipelineFile

_URL_SCHEMES = ("sqlite:", "postgresql:", "postgresql+psycopg:")


def load(
    file: Path, checks: Collection[Check[PipelineFile]] = (), overrides: Sequence[str] = ()
) -> Loaded[PipelineFile]:
    """Read a configuration file; raises `InvalidConfiguration` with all problems.

    Args:
        file: path of the file.
        checks: further checks in addition to `check_pipelines`.
        overrides: settings `KEY.PATH=VALUE` that override the file.
    """
    every = [check_pipelines, *checks]
    return read_file(file, PipelineFile, check_import=_anything, checks=every, overrides=overrides)


def load_engine(
    file: Path,
    checks: Collection[Check[PipelineFile]] = (),
    overrides: Sequence[str] = (),
    share: int | None = None,
) -> Loaded[PipelineFile]:
    """Read a configuration file like `load`, for a command that needs the settings of one engine.

    If the file has shares, the result has the settings of the given share; without one, of the first share. Raises
    `UsageError` E2060 if there is no such share.
    """
    loaded = load(file, checks, overrides)
    if share is not None:
        return replace(loaded, settings=of_share(loaded.settings, share))
    return replace(loaded, settings=example(loaded.settings))


def directory_of(file: Path) -> str:
    """Return the directory of the file, in which Python also looks for its modules."""
    return str(file.absolute().parent)


@contextlib.contextmanager
def importable(file: Path) -> Iterator[None]:
    """Make modules beside the file importable within the block; modules of the same name in other places take
    precedence.

    At its end the block removes these modules again, so that the next file may have modules of the same names.
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


def store_url(file_or_url: str, share: int | None = None) -> str:
    """Return the URL of the store that an argument names: it is a URL, or the configuration file of the engine."""
    return store_and_settings(file_or_url, share)[0]


def store_and_settings(file_or_url: str, share: int | None = None) -> tuple[str, PipelineFile | None]:
    """Return the URL of the store, and the settings of the file; `None` if the argument is a URL.

    If the file has shares, `share` is the number of one of them; raises `UsageError` E2060 without it.
    """
    _refuse_lost_directory()
    if file_or_url.startswith(_URL_SCHEMES):
        if share is not None:
            raise UsageError("E2060", "--share", "a URL names one store", "", "Name the configuration file instead")
        return file_or_url, None
    settings = read_file(file_or_url, PipelineFile).settings
    if share is not None:
        settings = of_share(settings, share)
    refuse_shares(file_or_url, settings)
    if settings.store is None:
        raise UsageError("E2011", file_or_url, "has no store: this engine keeps nothing", "", "Name one in 'store'")
    return settings.store, settings


def refuse_shares(file: str, settings: PipelineFile) -> None:
    """Raise `UsageError` E2060 if the command line does not say which of the shares is meant."""
    if settings.shares is not None:
        what = f"has {settings.shares.count} shares, each with a store of its own"
        raise UsageError("E2060", file, what, "", "Name one with --share NUMBER; 'correlator shares' lists them")


def connection_of(name: str, settings: PipelineFile) -> Connection:
    """Make a connection of the file, without opening it; raises `UsageError` E2012 for an unknown name."""
    if name not in settings.connections:
        hint = did_you_mean(name, settings.connections) or f"Defined: {', '.join(settings.connections) or 'none'}"
        raise UsageError("E2012", quoted(name), "no such connection in the file", hint)
    configured = settings.connections[name]
    return connector(configured.type, f"connections.{name}")(name, configured)


def _refuse_lost_directory() -> None:
    """Refuse to run if the working directory was removed: relative paths need it."""
    try:
        Path.cwd()
    except OSError as error:
        what = f"cannot be used: {error.strerror}"
        raise UsageError("E2016", "working directory", what, "", "Change to another one") from error


def _anything(path: str, found: object) -> None:
    """Accept every imported object: the checks, which know its use, refuse wrong ones."""
    del path, found
