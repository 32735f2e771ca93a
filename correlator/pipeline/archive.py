"""An archive of the classes that Spark loads (AppCDS): a JVM maps it instead of parsing and checking each class.

The archive lies in `$XDG_CACHE_HOME/correlator/jvm/<key>/`, or below `~/.cache`. The key covers all that the JVM
requires to be the same: Java, PySpark, the jars with their sizes and times, and the flags of the JVM that made the
archive. A process of its own makes the archive (`correlator.pipeline.archiver`), after the first session with this key
has started. Java can use the archive with any garbage collector and with any of its compilers.

A JVM that maps a truncated archive dies. So a file beside the archive records its size and its time. If an archive
differs from this record, Spark does not use it, and the next maker replaces it. A cache that cannot be read or written
is not an error: Spark starts without an archive.
"""

import hashlib
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path

from correlator.durable import is_private, make_private_directory, put, sync_directory, sync_file

_log = logging.getLogger(__name__)

KEPT = 2
"""Number of archives that stay in the cache: those of the keys that were used last. Each takes 160 MB."""
MAKER_FLAGS = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""Flags of the JVM that makes an archive."""
_QUIET = ("-Xshare:auto", "-Xlog:disable", "-Xlog:all=error:stderr")
"""Keeps Java from writing to stdout that it cannot use an archive."""
_DELAY_S = 30
"""Seconds between the start of Spark and the making of an archive. Many runs of `correlator test` end earlier."""
_NEXT_ATTEMPT_S = 24 * 3600.0
_DETACHED = ("/bin/sh", "-c", '"$0" "$@" &')
_NAME, _RECORD, _FAILURE = "classes.jsa", "classes.size", "failed"
_TEMPORARY = "making-"


class Archive:
    """The archive with one key. Any thread and any process may use it.

    Args:
        directory: the directory of the key; it need not exist.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._path = directory / _NAME
        self._record = directory / _RECORD
        self._failure = directory / _FAILURE

    def is_whole(self) -> bool:
        """Whether there is an archive that is unchanged since its maker left it, and that only this user can change."""
        try:
            recorded = self._record.read_bytes()
            return recorded == _measure(self._path) and all(map(is_private, (self.directory, self.directory.parent)))
        except OSError:
            return False

    def flags(self) -> Sequence[str]:
        """The flags with which a JVM uses the archive; marks the key as used."""
        with suppress(OSError):
            os.utime(self.directory)
        return (*_QUIET, f"-XX:SharedArchiveFile={self._path}")

    def remove(self) -> None:
        """Remove the archive, for example because a JVM has died with it."""
        with suppress(OSError):
            self._record.unlink(missing_ok=True)
            self._path.unlink(missing_ok=True)

    def store(self, made: Path) -> None:
        """Take over a file that a JVM has made in the directory: after any crash there is the whole file or none."""
        self.remove()
        sync_file(made)
        put(self._record, _measure(made))
        made.rename(self._path)
        sync_directory(self.directory)

    @contextmanager
    def making(self) -> Iterator[Path]:
        """The path of a file for `store`, in a directory of its own. The caller is the only maker.

        It removes the directories of earlier makers, because the JVM of a killed maker may still write into its
        directory.
        """
        make_private_directory(self.directory)
        for left in self.directory.glob(f"{_TEMPORARY}*"):
            shutil.rmtree(left, ignore_errors=True)
        with tempfile.TemporaryDirectory(prefix=_TEMPORARY, dir=self.directory, ignore_cleanup_errors=True) as own:
            yield Path(own, _NAME)

    def note_failure(self) -> None:
        """Let nobody try to make the archive for a day."""
        with suppress(OSError):
            self._failure.touch()

    def has_failed(self) -> bool:
        """Whether the making of the archive failed within the last day."""
        try:
            return time.time() - self._failure.stat().st_mtime < _NEXT_ATTEMPT_S
        except OSError:
            return False


def archive_of(java: str, home: Path, environment: Mapping[str, str]) -> Archive | None:
    """The archive of a Java with this identity and of this Spark; `None` if there is no place for it."""
    if (cache := cache_directory(environment)) is None:
        return None
    try:
        return Archive(cache / key_of(java, home))
    except OSError as error:
        _log.debug("the jars of Spark cannot be listed: %s", error)
        return None


def cache_directory(environment: Mapping[str, str]) -> Path | None:
    """The directory of all archives; `None` if the environment names none that a flag of Java can hold."""
    if base := environment.get("XDG_CACHE_HOME"):
        cache = Path(base)
    else:
        try:
            cache = Path.home() / ".cache"
        except RuntimeError:
            return None
    return cache / "correlator" / "jvm" if cache.is_absolute() and os.pathsep not in str(cache) else None


def key_of(java: str, home: Path) -> str:
    """A name for all that a JVM and its archive must have in common. Raises `OSError`.

    The order of the jars is the one in the directory, in which Java puts them on its class path.
    """
    told = hashlib.sha256()
    parts = [java, version("pyspark"), str(home), *MAKER_FLAGS]
    with os.scandir(home / "jars") as jars:
        for jar in jars:
            found = jar.stat()
            parts.append(f"{jar.name} {found.st_size} {int(found.st_mtime)}")
    for part in parts:
        told.update(part.encode(errors="surrogateescape") + b"\0")
    return told.hexdigest()[:32]


def prune(cache: Path) -> None:
    """Remove all keys but those that were used last. Only the maker of archives may call it."""
    with suppress(OSError):
        keys = [(one.stat().st_mtime_ns, one) for one in cache.iterdir() if one.is_dir()]
        for _, directory in sorted(keys, reverse=True)[KEPT:]:
            shutil.rmtree(directory, ignore_errors=True)


def make_later(archive: Archive, environment: Mapping[str, str], delay_s: float = _DELAY_S) -> None:
    """Start a process that makes the archive. Nobody waits for it: it outlives this process, and has no terminal.

    Args:
        archive: the archive that is missing.
        environment: the environment in which Spark was started.
        delay_s: how long the process waits before it begins.
    """
    if archive.has_failed() or not _can_write(archive.directory.parent):
        return
    command = [*_DETACHED, sys.executable, "-m", "correlator.pipeline.archiver", str(delay_s)]
    surroundings = {**environment, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    try:
        subprocess.run(  # noqa: S603
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=surroundings,
            start_new_session=True,
            check=False,
        )
    except OSError as error:
        _log.debug("nobody makes an archive of classes: %s", error)


def _can_write(cache: Path) -> bool:
    """Make the directory of all archives, for this user alone; return whether archives can be made in it."""
    try:
        make_private_directory(cache)
        can = is_private(cache) and os.access(cache, os.W_OK | os.X_OK)
    except OSError as error:
        _log.debug("no archive of classes: %s", error)
        return False
    if not can:
        _log.debug("no archive of classes: %s is not a directory of this user alone that can be written", cache)
    return can


def _measure(file: Path) -> bytes:
    """The size of a file, and its time in whole seconds, since container images keep no fractions of seconds."""
    found = file.stat()
    return f"{found.st_size} {int(found.st_mtime)}\n".encode()
