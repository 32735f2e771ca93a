"""Paths of files and their sidecars. The connector reads and writes nothing outside the configured directories."""

import hashlib
import os
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import NamedTuple
from urllib.parse import quote

from correlator.durable import make_private_directory
from correlator.errors import ConnectionLost, quoted
from correlator.options import parse_destination
from correlator.processes import LockFile

_LONGEST_FILE_NAME = 180
"""The most characters of a name without the endings of sidecars; file systems allow 255 bytes in all."""


class Directory(NamedTuple):
    """The directory of the connection, and the directory of the sidecars."""

    path: Path
    state: Path

    def file(self, name: str) -> Path:
        """The real path of a file. Raises `ConnectionLost` E7013 if a link leads out of the directory."""
        real = (self.path / name).resolve()
        if not real.is_relative_to(self.path.resolve()):
            raise ConnectionLost(
                "E7013",
                str(self.path / name),
                f"leads out of the directory to {quoted(str(real))}",
                "",
                "Remove the link",
            )
        return real

    def sidecar(self, ending: str, *names: str) -> Path:
        """The sidecar for these names, a file in the directory `state`."""
        name = ".".join(quote(part, safe="") for part in names)
        if len(name) > _LONGEST_FILE_NAME:
            digest = hashlib.sha256(name.encode()).hexdigest()
            name = f"{name[: _LONGEST_FILE_NAME - len(digest)]}{digest}"
        return self.state / f"{name}.{ending}"


def file_name(destination: str, endings: Collection[str]) -> str | None:
    """The file that a destination names; `None` unless it is a relative path with such an ending and no hidden part."""
    parsed = parse_destination(destination)
    if parsed is None or parsed.kind != "queue":
        return None
    path = PurePosixPath(parsed.name)
    plain = not path.is_absolute() and not any(part.startswith(".") for part in path.parts)
    return parsed.name if plain and path.suffix in endings and str(path) == parsed.name else None


def lock(path: Path, what: str) -> LockFile:
    """Take the lock on a file until it is closed.

    Raises `ConnectionLost` E7012 if another receiver or sender has it.
    """
    make_private_directory(path.parent)
    taken = LockFile(path)
    if not taken.try_lock():
        taken.close()
        raise ConnectionLost(
            "E7012", what, "is in use by another receiver or sender", "One at a time", "Wait, or stop the other"
        )
    return taken


def read_whole(path: Path) -> bytes | None:
    """The content of a small file; `None` if there is no such file."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def close_quietly(descriptor: int) -> None:
    """Close a descriptor, and ignore errors."""
    with suppress(OSError):
        os.close(descriptor)
