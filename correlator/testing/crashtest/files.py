"""Files that crash tests leave: readable by their owner alone."""

import os
from pathlib import Path
from typing import Any

import msgspec

from correlator.errors import UsageError, quoted


def as_json(content: Any) -> bytes:
    """For people and programs."""
    return msgspec.json.format(msgspec.json.encode(content)) + b"\n"


def write_json(path: Path, content: Any) -> None:
    """Write a file of JSON; raises `UsageError` E2424 where that is not possible."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(as_json(content))
    except OSError as error:
        raise UsageError("E2424", quoted(str(path)), f"cannot be written: {error.strerror}") from error
