"""Objects that are files below a folder on this machine."""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from connectors.created_once import create_once, make_durable_directory, name_of_source
from connectors.objects.stores import LONGEST_NUMBER, Content, Found, changed, check_name, gone, is_shown
from correlator import durable
from correlator.connector import NO_SUCH_DESTINATION
from correlator.errors import ConnectionLost, StoreError, quoted
from correlator.processes import LockFile
from correlator.storage import files

LOCKS = "_locks"


class Folder:
    """The files below a folder.

    Args:
        path: the folder.
        writes: whether a sender uses it: then the folder is made if it is missing, and locks in it must work.
    """

    def __init__(self, path: Path, *, writes: bool) -> None:
        self._path = path
        self._writes = writes
        self._where = ""

    def connect(self, where: str) -> None:
        """Refuse a path that is a link or not a folder; for a sender, also refuse a network file system."""
        self._where = where
        with self._translated():
            if self._path.is_symlink():
                raise ConnectionLost("E7013", where, f"{self._path} is a symbolic link", "", "Name the real path")
            if not self._path.is_dir() and (self._path.exists() or not self._writes):
                raise ConnectionLost(NO_SUCH_DESTINATION, where, f"{self._path} is not a folder", "", "Make it")
            if self._writes:
                self._refuse_network()

    def _refuse_network(self) -> None:
        try:
            files.refuse_network(self._path / LOCKS)
        except StoreError as error:
            what = f"{self._path} {error.what}"
            raise ConnectionLost("E7003", self._where, what, "Senders need a folder on a local disk") from error

    def close(self) -> None:
        """Do nothing: no file of the folder is open between two calls."""

    def check_creation(self, folder: str) -> None:
        """Make the folder, so that a receiver finds it. `create` makes a file by a link, which never
        replaces a file.
        """
        with self._translated():
            make_durable_directory(self._path / folder)

    def found(self, folder: str) -> Iterator[Found]:
        """Yield the files below a folder, one folder after another.

        Raises `ConnectionLost` E7010 if there is no such folder, E7013 for a symbolic link.
        """
        with self._translated():
            if not (self._path / folder).is_dir():
                raise ConnectionLost(NO_SUCH_DESTINATION, self._where, f"there is no folder {self._path / folder}")
            yield from self._below(folder, folder)

    def _below(self, path: str, folder: str) -> Iterator[Found]:
        for entry in self._entries(path):
            name = f"{path}/{entry.name}"
            if not is_shown(name, folder):
                continue
            if entry.is_symlink():
                what = f"{self._path / name} is a symbolic link"
                raise ConnectionLost("E7013", self._where, what, "", "Put the file in its place, or remove the link")
            if entry.is_dir():
                yield from self._below(name, folder)
            elif entry.is_file():
                with suppress(FileNotFoundError):  # another program may have removed it
                    yield _found(check_name(self._where, name), entry.stat(follow_symlinks=False))

    def names(self, folder: str) -> Iterator[str]:
        """Yield the names of all files directly in a folder."""
        with self._translated():
            for entry in self._entries(folder):
                yield f"{folder}/{entry.name}"

    def newest(self, folder: str, ending: str) -> str | None:
        """Return the file with the highest number in its name. It is on disk when this returns."""
        with self._translated():
            names = [entry.name for entry in self._entries(folder)]
            numbers = [name for name in names if name.endswith(ending) and _is_number(name.removesuffix(ending))]
            if not numbers:
                return None
            durable.sync_directory(self._path / folder)  # a killed process may have left this undone
            return f"{folder}/{max(numbers)}"

    def create(self, name: str, content: bytes) -> bool:
        """Make a file by a link, which fails if the name exists."""
        with self._translated():
            path = self._path / name
            make_durable_directory(path.parent)
            return create_once(path, content)

    def open(self, found: Found) -> Content:
        """Open a file for reading."""
        with self._translated():
            try:
                descriptor = os.open(self._path / found.name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            except FileNotFoundError as error:
                raise gone(self._where, found.name) from error
            return _File(self._where, descriptor, found)

    def head(self, name: str) -> Found | None:
        """Return size and tag of one file, as `Store.head`."""
        with self._translated():
            try:
                return _found(name, (self._path / name).lstat())
            except FileNotFoundError:
                return None

    def remove(self, found: Found, moved_to: str) -> None:
        """Remove or rename a file; this is durable when the call returns."""
        with self._translated():
            path = self._path / found.name
            if self.head(found.name) != found:
                return
            if moved_to:
                make_durable_directory((self._path / moved_to).parent)
                path.rename(self._path / moved_to)
                durable.sync_directory((self._path / moved_to).parent)
            else:
                path.unlink()
            durable.sync_directory(path.parent)

    def lock(self, folder: str, source: str) -> LockFile:
        """Take the lock of a source. Raises `ConnectionLost` E7012 if another process has it."""
        with self._translated():
            locks = self._path / folder / LOCKS
            make_durable_directory(locks)
            taken = LockFile(locks / f"{name_of_source(source)}.lock", os.O_CREAT | os.O_NOFOLLOW)
            if not taken.try_lock():
                taken.close()
                what = f"source {quoted(source)} is in use by another sender, which writes to {self._path / folder}"
                todo = "Stop the other engine: it runs with a copy of this store"
                raise ConnectionLost("E7012", self._where, what, "Only one sender at a time uses a source", todo)
            return taken

    def _entries(self, folder: str) -> Iterator["os.DirEntry[str]"]:
        try:
            with os.scandir(self._path / folder) as entries:
                yield from entries
        except FileNotFoundError:
            return

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise ConnectionLost("E7003", self._where, f"{self._path} cannot be used: {error}") from error


class _File:
    """A file that is being read. Turns `OSError` into `ConnectionLost`."""

    def __init__(self, where: str, descriptor: int, found: Found) -> None:
        self._where = where
        self._descriptor = descriptor
        self._found = found
        self.size = found.size

    def read(self, size: int, offset: int) -> bytes:
        """Read, then check that the file was not written meanwhile."""
        try:
            block = os.pread(self._descriptor, size, offset)
            now = _found(self._found.name, os.fstat(self._descriptor))
        except OSError as error:
            what = f"{quoted(self._found.name)} cannot be read: {error}"
            raise ConnectionLost("E7003", self._where, what) from error
        if now.tag != self._found.tag:
            raise changed(self._where, self._found.name)
        return block

    def close(self) -> None:
        """Close the file."""
        if self._descriptor >= 0:
            with suppress(OSError):
                os.close(self._descriptor)
            self._descriptor = -1


def _found(name: str, entry: os.stat_result) -> Found:
    if not stat.S_ISREG(entry.st_mode):
        return Found(name, 0, "no file", 0.0)
    return Found(name, entry.st_size, f"{entry.st_size}-{entry.st_mtime_ns}", entry.st_mtime)


def _is_number(stem: str) -> bool:
    return len(stem) == LONGEST_NUMBER and stem.isascii() and stem.isdigit()
