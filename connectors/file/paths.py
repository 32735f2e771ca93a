"""Paths of files and their sidecars. The connector reads and writes nothing outside the configured directories."""

import os
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from connectors.sidecars import sidecar
from correlator.errors import ConnectionLost, quoted
from correlator.options import parse_destination


class Directory(NamedTuple):
    """The directory of the connection, and the directory of the sidecars."""

    path: Path
    state: Path

    def file(self, name: str) -> Path:
        """Return the real path of a file. Raises `ConnectionLost` E7013 if a link leads out of the directory."""
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
        """Return the path of the sidecar for these names, in the directory `state`."""
        return sidecar(self.state, ending, *names)


def file_name(destination: str, endings: Collection[str]) -> str | None:
    """Return the file that a destination names; `None` unless it is a relative path with such an ending
    and no hidden part.
    """
    parsed = parse_destination(destination)
    if parsed is None or parsed.kind != "queue":
        return None
    path = PurePosixPath(parsed.name)
    plain = not path.is_absolute() and not any(part.startswith(".") for part in path.parts)
    return parsed.name if plain and path.suffix in endings and str(path) == parsed.name else None


def close_quietly(descriptor: int) -> None:
    """Close a descriptor, and ignore errors."""
    with suppress(OSError):
        os.close(descriptor)
