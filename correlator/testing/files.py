"""Writes the files that tests and campaigns leave, with mode 0600."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from correlator.errors import UsageError, quoted


def as_json(content: Any) -> bytes:
    """Encode the content as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(content)) + b"\n"


def write(path: Path, parts: Iterable[bytes]) -> None:
    """Write a file with mode 0600, in place of an earlier one. Raises `OSError` if the file cannot be written."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(descriptor, 0o600)
        file.writelines(parts)


def write_json(path: Path, content: Any) -> None:
    """Write a file of JSON. Raises `UsageError` E2424 if the file cannot be written."""
    try:
        write(path, [as_json(content)])
    except OSError as error:
        raise UsageError("E2424", quoted(str(path)), f"cannot be written: {error.strerror}") from error
