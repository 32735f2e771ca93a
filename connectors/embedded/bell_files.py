"""Wakes the consumers of other processes by touching files beside a SQLite database: `FILE.bells/NUMBER`.

A bell rings when the modification time of its file changes. A process that touches a file sets the access time to a
number of its own, so that it can ignore its own rings. A consumer makes the file before it listens. So nobody listens
to a bell without a file.

The files are touched after the commit. Watching the write-ahead log instead would wake consumers too early: SQLite
writes and syncs the log before the commit becomes visible.
"""

import errno
import os
import secrets
import time
from contextlib import suppress
from pathlib import Path

from sqlalchemy import Connection

from connectors.embedded.inotify import OVERFLOW, Inotify
from correlator.durable import PRIVATE_DIRECTORY, PRIVATE_FILE

_REMOVAL_TAKES_S = 3.0


class BellFiles:
    """The channel of the processes that use one SQLite database.

    Args:
        database: path of the database; its directory must exist when somebody listens.
    """

    def __init__(self, database: str) -> None:
        self._database = Path(database)
        self._directory = Path(f"{database}.bells")
        self._removed_at = float("-inf")
        self.token_ns = secrets.randbits(60)  # as a time, this is before 2007, which any file system can store

    def notify(self, bells: set[int], _: Connection) -> None:
        """Touch the files. Raises `OSError`."""
        for bell in bells:
            with suppress(FileNotFoundError):  # nobody has ever listened
                os.utime(self.path(bell), ns=(self.token_ns, time.time_ns()), follow_symlinks=False)

    def listener(self) -> "FileListener":
        """Make a listener that uses inotify. Raises `OSError` where inotify is missing or its limits are reached."""
        return FileListener(self)

    def poller(self) -> "FilePoller":
        """Make a listener that polls the times of the files."""
        return FilePoller(self)

    def path(self, bell: int) -> str:
        """Return the path of the file of a bell."""
        return f"{self._directory}/{bell}"

    def make(self, bell: int) -> None:
        """Make the file if there is none.

        Raises:
            FileNotFoundError: there is no database, or files were removed a moment ago: a program that removes the
                directory with all its content would find a new file there.
            OSError: the file cannot be made.
        """
        if time.monotonic() < self._removed_at + _REMOVAL_TAKES_S or not self._database.exists():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.path(bell))
        with suppress(FileExistsError):
            self._directory.mkdir(PRIVATE_DIRECTORY)
        os.close(os.open(self.path(bell), os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, PRIVATE_FILE))

    def note_removal(self) -> None:
        """Make no files for a moment, since files were removed."""
        self._removed_at = time.monotonic()


class FileListener:
    """Watches the files by inotify."""

    interval_s: float | None = None
    settles_after_s = 0.0

    def __init__(self, files: BellFiles) -> None:
        self._files = files
        self._watches: dict[int, int] = {}  # watches by bell
        self._inotify = Inotify()

    def fileno(self) -> int:
        """The descriptor of inotify, which becomes readable when a watched file changes; -1 after `close`."""
        return self._inotify.fileno()

    def listen(self, bells: set[int]) -> None:
        """Watch the files of these bells; make missing ones. Raises `OSError`."""
        for bell in self._watches.keys() - bells:
            self._inotify.unwatch(self._watches.pop(bell))
        for bell in bells - self._watches.keys():
            try:
                self._watches[bell] = self._inotify.watch(self._files.path(bell))
            except FileNotFoundError:
                self._files.make(bell)
                self._watches[bell] = self._inotify.watch(self._files.path(bell))

    def heard(self) -> set[int]:
        """Return the bells that were rung, or whose files were replaced.

        Raises:
            FileNotFoundError: a file was removed.
            OSError: the limits of inotify are reached.
        """
        changed = self._inotify.read()
        bells = {bell for bell, watch in self._watches.items() if watch in changed or OVERFLOW in changed}
        try:
            return {bell for bell in bells if self._is_heard(bell)}
        except FileNotFoundError:
            self._files.note_removal()
            raise

    def close(self) -> None:
        """End all watches and close the descriptor of inotify."""
        self._inotify.close()

    def _is_heard(self, bell: int) -> bool:
        """Return whether another process has rung the bell, or may have: a new file was not watched until now."""
        path = self._files.path(bell)
        before, watch = self._watches[bell], self._inotify.watch(path)
        if watch != before:
            self._inotify.unwatch(before)
            self._watches[bell] = watch
            return True
        return os.lstat(path).st_atime_ns != self._files.token_ns


class FilePoller:
    """Checks the times of the files every 10 ms. Never raises."""

    interval_s: float | None = 0.01
    settles_after_s = 0.0

    def __init__(self, files: BellFiles) -> None:
        self._files = files
        self._stamps: dict[int, tuple[int, ...]] = {}

    def fileno(self) -> int:
        """Return -1: there is no descriptor."""
        return -1

    def listen(self, bells: set[int]) -> None:
        """Check the files of these bells from now on; make missing ones."""
        for bell in bells - self._stamps.keys():
            with suppress(OSError):
                self._files.make(bell)
        self._stamps = {bell: self._stamp(bell) for bell in bells}

    def heard(self) -> set[int]:
        """Return the bells whose files were touched by another process, or have appeared or vanished."""
        before, self._stamps = self._stamps, {bell: self._stamp(bell) for bell in self._stamps}
        changed = {bell for bell, stamp in self._stamps.items() if stamp != before[bell]}
        return {bell for bell in changed if self._files.token_ns not in self._stamps[bell]}

    def close(self) -> None:
        """Do nothing: a poller holds no resources."""

    def _stamp(self, bell: int) -> tuple[int, ...]:
        try:
            found = os.lstat(self._files.path(bell))
        except OSError:
            return ()
        return found.st_ino, found.st_mtime_ns, found.st_atime_ns
