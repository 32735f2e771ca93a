"""Small files for data that a connector must keep because its broker does not, and their locks."""

import hashlib
from pathlib import Path
from urllib.parse import quote

from correlator.durable import make_private_directory
from correlator.errors import ConnectionLost
from correlator.processes import LockFile

_LONGEST_NAME = 180
"""The most characters of a name without its ending; file systems allow 255 bytes in all."""


def sidecar(directory: Path, ending: str, *names: str) -> Path:
    """Return the path of the file in a directory that belongs to these names."""
    name = ".".join(quote(part, safe="") for part in names)
    if len(name) > _LONGEST_NAME:
        digest = hashlib.sha256(name.encode()).hexdigest()
        name = f"{name[: _LONGEST_NAME - len(digest)]}{digest}"
    return directory / f"{name}.{ending}"


def lock(path: Path, what: str) -> LockFile:
    """Take the lock on a file. It is held until the returned file is closed.

    Raises `ConnectionLost` E7012 if another receiver or sender has it.
    """
    make_private_directory(path.parent)
    taken = LockFile(path)
    if not taken.try_lock():
        taken.close()
        raise ConnectionLost(
            "E7012", what, "is in use by another receiver or sender", "Only one may use it", "Wait, or stop the other"
        )
    return taken


def read_whole(path: Path) -> bytes | None:
    """Return the content of a small file; `None` if there is no such file."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
