"""The files of a SQLite database: where they may lie, who may read them, and which process owns them (traps T7, T10,
T12 and T59).

This module knows no SQL. It never opens an existing database file: closing the file would release the locks of SQLite
connections that other code of this process may have (POSIX locks belong to the process).
"""

import contextlib
import os
import re
import socket
import stat
import time
from datetime import UTC, datetime
from pathlib import Path

from correlator.durable import PRIVATE_FILE, create_private, make_private_directory
from correlator.errors import Fenced, StoreError, quoted
from correlator.processes import LockFile

NETWORK_FILE_SYSTEMS = frozenset({
    "9p", "acfs", "afs", "beegfs", "ceph", "cifs", "coda", "davfs", "fakeowner", "gfs", "gfs2", "glusterfs", "gpfs",
    "kafs", "lustre", "ncpfs", "nfs", "nfs4", "ocfs2", "orangefs", "panfs", "prl_fs", "pvfs2", "smb2", "smb3", "smbfs",
    "vboxsf", "virtiofs", "vmhgfs", "wekafs",
})  # fmt: skip
"""File systems of other machines, and file systems that show directories of the host to a virtual machine."""
LOCAL_FUSE = frozenset({
    "fuseblk", "fuse.bindfs", "fuse.cryfs", "fuse.encfs", "fuse.exfat", "fuse.fuse-overlayfs", "fuse.fuse2fs",
    "fuse.gocryptfs", "fuse.mergerfs", "fuse.ntfs-3g", "fuse.securefs",
})  # fmt: skip
"""The FUSE file systems that keep files on disks of this machine; most others do not."""
SIDECARS = ("-wal", "-shm", ".lock", ".witness")
_COARSEST_NS = 3_000_000_000
"""Nanoseconds; more than the resolution of file times in any local file system (FAT has 2 s)."""
_MOUNTS = Path("/proc/self/mounts")
_ESCAPED = re.compile(r"\\([0-7]{3})")


def beside(path: Path, suffix: str) -> Path:
    """Return the file beside a store with this suffix: `beside(Path("a.db"), ".lock")` is `a.db.lock`."""
    return path.with_name(path.name + suffix)


def prepare(path: Path) -> None:
    """Make sure that a store may lie at `path`, and make an empty private file there if there is none.

    Raises:
        StoreError: E9101 to E9104, the place is not safe; E3006, it cannot be used. Nothing was changed, except that
            missing directories were made.
    """
    try:
        make_private_directory(path.parent)
        refuse_unsafe(path)
        make_private_file(path)
        if stat.S_IMODE(path.stat().st_mode) & ~PRIVATE_FILE:
            path.chmod(PRIVATE_FILE)
    except OSError as error:
        raise unusable(path, error) from error


def make_private_file(path: Path) -> None:
    """Make an empty file that only its owner may use, if there is none. A file that exists stays unopened and
    unchanged.
    """
    with contextlib.suppress(FileExistsError):
        os.close(create_private(path))


def prepare_witness(path: Path) -> None:
    """Make sure that the witness of a PostgreSQL store can be written. Raises `StoreError` as `prepare`."""
    try:
        make_private_directory(path.parent)
        refuse_unsafe(path)
    except OSError as error:
        raise unusable(path, error) from error
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise unusable(path, "permission denied")


def refuse_unsafe(path: Path) -> None:
    """Check the directory of a store, and its files by their names.

    Raises:
        StoreError: E9101, writable by everybody; E9102, a symbolic link; E9103, a network file system; E9104, another
            owner.
        OSError: the directory cannot be read.
    """
    for link in (path.parent, path, *(beside(path, suffix) for suffix in SIDECARS)):
        if link.is_symlink():
            raise StoreError("E9102", str(link), "is a symbolic link", "Name the real path", "")
    directory = path.parent.stat()
    if directory.st_mode & stat.S_IWOTH:
        mode = f"{stat.S_IMODE(directory.st_mode):04o}"
        raise StoreError("E9101", str(path), f"{path.parent} is writable by everybody (mode {mode})", "", "chmod 700")
    if directory.st_uid not in (os.geteuid(), 0):
        raise StoreError(
            "E9104",
            str(path),
            f"{path.parent} belongs to user {directory.st_uid}, this process runs as {os.geteuid()}",
            "",
            "Give the directory to the user of the engine",
        )
    refuse_network(path)


class OpenFiles:
    """The files of an open SQLite database. It notices their removal, after which a commit would be lost.

    Make the object while the database is open in WAL mode, and after it was read, because then all of its files exist.
    """

    def __init__(self, path: Path) -> None:
        self._where = str(path)
        self._directory = str(path.parent)
        names = (self._where, f"{self._where}-wal", f"{self._where}-shm")
        self._files = [(name, _identity(name)) for name in names]
        self._settled: tuple[int, int, int] | None = None
        """Identity and change time of the directory when all files were last found in it.

        The modification time is not enough: programs that restore a directory also restore this time.
        """

    def check(self) -> None:
        """Raise `StoreError` E3112 if a file was removed, moved or replaced since this object was made.

        The call checks the files only if their directory has changed. In Linux 6.18, a file's next write is slower by
        40 µs if somebody has asked for the file's times, and each commit writes to the log.
        """
        try:
            found = os.stat(self._directory)  # noqa: PTH116  # a third of the time of `Path.stat`, at every commit
        except OSError:
            now = None
        else:
            now = found.st_dev, found.st_ino, found.st_ctime_ns
        if now is not None and now == self._settled:
            return
        for name, identity in self._files:
            if _identity(name) != identity:
                raise StoreError(
                    "E3112",
                    self._where,
                    f"{name} was removed or replaced while it was in use; the last transaction is lost with it",
                    "A store is left alone while its engine runs",
                    "Put the files back, or start anew without them",
                )
        # A second change within one step of the file system's clock would leave the same time.
        self._settled = now if now is not None and now[2] < time.time_ns() - _COARSEST_NS else None


def _identity(name: str) -> tuple[int, int] | None:
    try:
        found = os.stat(name)  # noqa: PTH116  # as fast as the one of the directory
    except OSError:
        return None
    return found.st_dev, found.st_ino


def file_system(path: Path, mounts: str) -> str:
    """Return the type of the file system that holds `path`, according to the text of a mount table; "" if it is
    unknown.
    """
    found, longest = "", -1
    for line in mounts.splitlines():
        _, point, kind, *_ = line.split(" ")
        point = _ESCAPED.sub(lambda found: chr(int(found[1], 8)), point)
        if path.is_relative_to(point) and len(point) >= longest:
            found, longest = kind, len(point)
    return found


def lock(path: Path) -> LockFile:
    """Take the lock of a store, on the file `<store>.lock`; closing the result releases it.

    The file is never removed: if it were, two engines could lock two different files with the same name.

    Raises:
        Fenced: E3201, another process (or other code of this process) owns the store.
        StoreError: E3006, the lock file cannot be written.
    """
    try:
        taken = LockFile(beside(path, ".lock"), os.O_CREAT | os.O_NOFOLLOW)
    except OSError as error:
        raise unusable(path, error) from error
    if not taken.try_lock():
        owner = os.read(taken.fileno(), 400).decode("utf-8", "replace").strip()
        taken.close()
        raise owned(str(path), owner or "another process")
    try:
        os.ftruncate(taken.fileno(), 0)
        os.pwrite(taken.fileno(), f"{owner_text()}\n".encode(), 0)
    except OSError as error:  # the disk may be full
        taken.close()
        raise unusable(path, error) from error
    return taken


def owner_text() -> str:
    """Describe this process, for another process that wants the same store."""
    return f"pid {os.getpid()} on host {socket.gethostname()} since {datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"


def owned(where: str, owner: str) -> Fenced:
    """Return the refusal of a store that another process owns (E3201)."""
    return Fenced(
        "E3201",
        where,
        f"the store is owned by {owner}",
        "One engine owns a store at a time",
        "Stop that engine, or give this one a store of its own",
    )


def beginning(path: Path) -> str:
    """Return the first bytes of a file that SQLite has refused, in quotes, for a message."""
    with path.open("rb") as file:
        return quoted(file.read(16).decode("latin-1"))


def unusable(path: Path, error: OSError | str) -> StoreError:
    """Return the refusal of a store that cannot be opened or written (E3006)."""
    text = error if isinstance(error, str) else (error.strerror or str(error)).lower()
    return StoreError(
        "E3006", str(path), f"cannot be used ({text})", "The engine must be able to write the file and its directory"
    )


def refuse_network(path: Path) -> None:
    """Raise `StoreError` E9103 on a file system where locks and the shared memory of the WAL may not work."""
    if not _MOUNTS.exists():
        return
    kind = file_system(path.parent.resolve(), _MOUNTS.read_text(errors="replace"))
    is_fuse = kind.partition(".")[0] == "fuse"
    if kind in NETWORK_FILE_SYSTEMS or (is_fuse and kind not in LOCAL_FUSE):
        raise StoreError(
            "E9103",
            str(path),
            f"lies on a network file system ({kind})",
            "A SQLite store needs a local disk",
            "Use a local directory, or PostgreSQL",
        )
