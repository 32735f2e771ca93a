"""Files that survive a power cut: written as a whole, private to their owner, under durable names.

Any thread may call these functions. They raise `OSError`.
"""

import os
import stat
from pathlib import Path

PRIVATE_FILE = 0o600
PRIVATE_DIRECTORY = 0o700
"""The permissions of every file and directory that the product makes."""


def make_private_directory(directory: Path) -> None:
    """Make missing directories for their owner alone: `Path.mkdir(parents=True)` would leave parents open to others."""
    if not directory.exists():
        make_private_directory(directory.parent)
        directory.mkdir(PRIVATE_DIRECTORY, exist_ok=True)


def is_private(directory: Path) -> bool:
    """Whether a directory belongs to this user, and nobody else may use it. Raises `OSError`."""
    found = directory.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not stat.S_IMODE(found.st_mode) & 0o077


def create_private(path: Path) -> int:
    """Make a file that only its owner may read, and open it for writing. Raises `FileExistsError` if it exists."""
    return os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, PRIVATE_FILE)


def replace(path: Path, content: bytes) -> None:
    """Replace the content of a file: after any crash the file has the whole old content or the whole new content."""
    put(path, content)
    sync_directory(path.parent)


def put(path: Path, content: bytes) -> None:
    """Replace the content of a file like `replace`; but until `sync_directory`, a power cut may bring the old content
    back.
    """
    partial = path.with_name(f"{path.name}.part")
    partial.unlink(missing_ok=True)
    descriptor = create_private(partial)
    try:
        write_all(descriptor, content)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    partial.replace(path)


def sync_file(path: Path) -> None:
    """Make the content of a file durable that another program or library has written and closed."""
    _sync(path, os.O_RDONLY)


def sync_directory(directory: Path) -> None:
    """Make new, renamed and removed names in a directory durable."""
    _sync(directory, os.O_RDONLY | os.O_DIRECTORY)


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_all(descriptor: int, content: bytes) -> None:
    """Write the whole content: one call of the system may write a part, for example on a disk that is nearly full."""
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
