"""The files of a SQLite store: where they may lie, who may read them, who owns them (RELIABILITY T7, T10, T12, T59).

Knows no SQL. An existing store file is never opened here: closing it would drop the locks of the SQLite connection
that another part of this process may have (POSIX locks belong to the process).
"""

import fcntl
import os
import socket
import stat
from datetime import datetime
from pathlib import Path

from correlator.errors import Fenced, StoreError, quoted

PRIVATE_FILE = 0o600
PRIVATE_DIRECTORY = 0o700
NETWORK_FILE_SYSTEMS = frozenset({
    "afs", "beegfs", "ceph", "cifs", "coda", "fuse.ceph", "fuse.glusterfs", "fuse.s3fs", "fuse.sshfs", "gfs", "gfs2",
    "glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4", "ocfs2", "smb2", "smb3", "smbfs",
})  # fmt: skip
SIDECARS = ("-wal", "-shm", ".lock", ".witness")
_MOUNTS = Path("/proc/self/mounts")


def beside(path: Path, suffix: str) -> Path:
    """The file of the store with this suffix: `beside(Path("a.db"), ".lock")` is `a.db.lock`."""
    return path.with_name(path.name + suffix)


def prepare(path: Path) -> None:
    """Make sure that a store may live at `path`, and that an empty private file is there if there was none.

    Raises:
        StoreError: E9101 to E9104 for a place that is not safe, E3006 for one that cannot be used. Nothing was changed,
            except that missing directories were made.
    """
    try:
        _make_directory(path.parent)
        refuse_unsafe(path)
        if not path.exists():
            create_private(path)
        elif stat.S_IMODE(path.stat().st_mode) & ~PRIVATE_FILE:
            path.chmod(PRIVATE_FILE)
    except OSError as error:
        raise unusable(path, error) from error


def prepare_witness(path: Path) -> None:
    """Make sure that the witness of a PostgreSQL store can be written; raises `StoreError` as `prepare`."""
    try:
        _make_directory(path.parent)
        refuse_unsafe(path)
    except OSError as error:
        raise unusable(path, error) from error
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise unusable(path, "permission denied")


def refuse_unsafe(path: Path) -> None:
    """Check the directory of a store and what lies in it by name.

    Raises:
        StoreError: E9101 writable by everybody, E9102 symbolic link, E9103 network file system, E9104 other owner.
        OSError: the directory cannot be looked at.
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
    _refuse_network(path)


def file_system(path: Path, mounts: str) -> str:
    """The type of the file system that holds `path`, by the text of a mount table; "" when unknown."""
    found, longest = "", -1
    for line in mounts.splitlines():
        _, point, kind, *_ = line.split(" ")
        point = point.replace("\\040", " ")
        if path.is_relative_to(point) and len(point) >= longest:
            found, longest = kind, len(point)
    return found


def create_private(path: Path) -> None:
    """Make an empty file that only its owner may read."""
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, PRIVATE_FILE))


def sync_directory(directory: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def lock(path: Path) -> int:
    """Own the store: an exclusive `flock` on `<store>.lock`, which the kernel frees when the process dies.

    Not `lockf`: that lock is lost as soon as any code of this process opens and closes the file. The file stays;
    removing it would let two engines lock two different files of one name.

    Returns:
        The descriptor that holds the lock, for `unlock`.

    Raises:
        Fenced: E3201, another process (or another part of this one) owns the store.
        StoreError: E3006, the lock file cannot be written.
    """
    try:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(beside(path, ".lock"), flags, PRIVATE_FILE)
    except OSError as error:
        raise unusable(path, error) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        owner = os.read(descriptor, 400).decode("utf-8", "replace").strip()
        os.close(descriptor)
        raise owned(str(path), owner or "another process") from error
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{owner_text()}\n".encode(), 0)
    except OSError as error:  # a full disk
        unlock(descriptor)
        raise unusable(path, error) from error
    return descriptor


def unlock(descriptor: int) -> None:
    """Give a lock up, also where a child that was forked a moment ago still has a copy of the descriptor."""
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)


def owner_text() -> str:
    """How this process appears to another one that wants the same store."""
    return f"pid {os.getpid()} on host {socket.gethostname()} since {datetime.now().astimezone():%Y-%m-%d %H:%M:%S%z}"


def owned(where: str, owner: str) -> Fenced:
    """The refusal of a store that is in use (E3201)."""
    return Fenced(
        "E3201",
        where,
        f"the store is owned by {owner}",
        "One engine owns a store at a time",
        "Stop that engine, or give this one a store of its own",
    )


def beginning(path: Path) -> str:
    """The first bytes of a file that SQLite has already refused, in quotes, for the message."""
    with path.open("rb") as file:
        return quoted(file.read(16).decode("latin-1"))


def unusable(path: Path, error: OSError | str) -> StoreError:
    """A store that cannot be opened or written (E3006)."""
    text = error if isinstance(error, str) else (error.strerror or str(error)).lower()
    return StoreError(
        "E3006", str(path), f"cannot be used ({text})", "The engine must be able to write the file and its directory"
    )


def _make_directory(directory: Path) -> None:
    """Make missing directories, each private: `Path.mkdir(parents=True)` would leave parents open to others."""
    if not directory.exists():
        _make_directory(directory.parent)
        directory.mkdir(PRIVATE_DIRECTORY)


def _refuse_network(path: Path) -> None:
    """Locks and the shared memory of the write-ahead log do not work across machines (RELIABILITY T12)."""
    if not _MOUNTS.exists():
        return
    kind = file_system(path.parent.resolve(), _MOUNTS.read_text(errors="replace"))
    if kind in NETWORK_FILE_SYSTEMS:
        raise StoreError(
            "E9103",
            str(path),
            f"lies on a network file system ({kind})",
            "A SQLite store needs a local disk",
            "Use a local directory, or PostgreSQL",
        )
