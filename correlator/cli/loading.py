"""Reads the file that a command works on: engine and pipelines, with the modules beside the file importable."""

import contextlib
import sys
from collections.abc import Collection, Iterator
from pathlib import Path

from correlator.cli.checks import check_pipelines
from correlator.configuration import Check, Loaded, read_file
from correlator.errors import UsageError
from correlator.pipeline.spec import PipelineFile

_URL_SCHEMES = ("sqlite:", "postgresql:", "postgresql+psycopg:")


def load(file: Path, checks: Collection[Check[PipelineFile]] = ()) -> Loaded[PipelineFile]:
    """Read a configuration file; raises `InvalidConfiguration` with everything that is wrong in it.

    Args:
        file: its path.
        checks: rules beside those that are checked always.
    """
    return read_file(file, PipelineFile, check_import=_anything, checks=[check_pipelines, *checks])


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
    _refuse_lost_directory()
    if file_or_url.startswith(_URL_SCHEMES):
        return file_or_url
    store = read_file(file_or_url, PipelineFile).settings.store
    if store is None:
        raise UsageError("E2011", file_or_url, "has no store: this engine keeps nothing", "", "Name one in 'store'")
    return store


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
