"""Where the control socket of an engine is: the engine and the commands find the same place from the same settings."""

import hashlib
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from correlator.settings import EngineSettings
from correlator.storage.database import location, parse

SUFFIX = ".control"
LONGEST_PATH = 107
"""Bytes of the path of a socket: the system has room for 108, with a null byte at the end."""
_LONGEST_READABLE = 40


def sockets_of(settings: EngineSettings, file: Path | None = None) -> Sequence[Path]:
    """Return the possible paths of the socket of an engine, the preferred one first.

    The socket lies in `control_directory`; without this setting it lies in a directory that only the user of the engine
    may use. This directory depends on the environment, so there are several paths. The socket never lies beside a
    store, because nobody could then copy the directory of the store: a socket cannot be copied.

    Args:
        settings: checked settings of one engine or of one share.
        file: the absolute path of its configuration file; `None` for an engine that code has made.
    """
    name = _name(settings, file)
    if settings.control_directory is not None:
        return [Path(settings.control_directory).absolute() / name]
    return [directory / name for directory in _directories()]


def fits(path: Path) -> bool:
    """Whether a socket can have this path."""
    return len(os.fsencode(path)) <= LONGEST_PATH


def _directories() -> list[Path]:
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    user = os.geteuid()
    of_user = [Path(runtime)] if runtime and Path(runtime).is_absolute() else []
    return [
        *dict.fromkeys(directory / "correlator" for directory in [*of_user, Path(f"/run/user/{user}")]),
        Path(tempfile.gettempdir()) / f"correlator-{user}",
    ]


def _name(settings: EngineSettings, file: Path | None) -> str:
    """The name of the engine, and a digest of what distinguishes it from others of this name: its store, or its
    configuration file if it has no store.
    """
    place = "" if file is None else str(file)
    if settings.store is not None:
        parsed = parse(settings.store)
        if parsed.get_backend_name() == "sqlite":
            place = str(Path(location(settings.store)).resolve())
        else:
            place = "\0".join(map(str, (parsed.host, parsed.port, parsed.database, parsed.query.get("options"))))
    digest = hashlib.sha256(f"{settings.name}\0{place}".encode(errors="backslashreplace")).hexdigest()[:16]
    readable = quote(settings.name, safe="", errors="backslashreplace")[:_LONGEST_READABLE]
    return f"{readable}-{digest}{SUFFIX}"
