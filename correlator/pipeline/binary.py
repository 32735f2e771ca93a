"""What the binary formats of a `decode` step have in common. Pure: knows neither Spark nor Arrow.

A format is small and can be sent to a worker, which makes the decoder. Senders of messages are not trusted: a decoder
checks the claims of a body before it makes room for them.
"""

import stat
from collections.abc import Callable, Hashable, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

from correlator.errors import ConfigError, quoted
from correlator.pipeline.envelope import RESERVED, quote

MOST_ELEMENTS = 1_000_000
"""The largest number of elements of arrays and maps in one body. An element may take one byte of the body, and a
hundred bytes of memory."""
MOST_FIELDS = 10_000
"""The largest number of fields of a schema, including the fields of nested records: a short schema can name a type
again and again."""
_MOST_FILE_BYTES = 16 * 1024 * 1024
LEAST_LONG, MOST_LONG = -(2**63), 2**63 - 1
_RELATIVE = "A relative path counts from the directory in which the engine was started"

Convert = Callable[[Any], Any]
"""Turns the value that a library has read into the value of a column."""


class Malformed(ValueError):
    """A body that does not fit the schema; `add` names the field around the place."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self._path: list[str] = []

    def add(self, name: str) -> None:
        """Add the name of a field, the innermost first."""
        self._path.append(name)

    def __str__(self) -> str:
        what = str(self.args[0])
        return f"field {'.'.join(reversed(self._path))} {what}" if self._path else f"the body {what}"


class Format(Hashable, Protocol):
    """A binary format with its schema; equal formats have equal decoders."""

    def columns(self) -> Mapping[str, str]:
        """The columns with their types in Spark's DDL; raises `ConfigError` E1513, E1517 or E1529."""
        ...

    def decoder(self) -> Callable[[bytes], Mapping[str, Any]]:
        """Make a function that turns a body into the values of the columns; the function raises `Malformed`.

        Dates, times and timestamps are whole numbers, as Arrow keeps them.
        """
        ...


class Fields:
    """Counts the fields of a schema, and refuses a name that two columns would have."""

    def __init__(self) -> None:
        self._left = MOST_FIELDS

    def check(self, setting: str, path: str, names: Iterable[str]) -> None:
        """Check the fields of one record; `path` is the path of the record, empty for the body."""
        taken: set[str] = set()
        for name in names:
            self._left -= 1
            if self._left < 0:
                raise ConfigError("E1513", setting, f"has more than {MOST_FIELDS} fields, nested fields included")
            if name.lower() in taken:
                what = f"there are two fields {quoted(inner(path, name))}"
                raise ConfigError("E1517", setting, what, "Spark does not tell upper from lower case", "Rename one")
            if not path and name.lower() in RESERVED:
                raise ConfigError("E1517", setting, f"field {quoted(name)} has a name that the engine uses")
            taken.add(name.lower())


def inner(path: str, name: str) -> str:
    """The path of a field."""
    return f"{path}.{name}" if path else name


def struct(columns: Mapping[str, str]) -> str:
    """The type of a struct."""
    return f"STRUCT<{', '.join(f'{quote(name)}: {kind}' for name, kind in columns.items())}>"


def no_column(setting: str, path: str, what: str, todo: str = "") -> ConfigError:
    """The error of a field that no column can hold."""
    place = f"field {quoted(path)}" if path else "the body"
    return ConfigError("E1513", setting, f"{place} {what}, which no column can hold", "", todo)


def content_of(setting: str, name: str) -> bytes:
    """The content of a file that a setting names; raises `ConfigError` E1529."""
    file = Path(name)
    try:
        if file.exists() and not stat.S_ISREG(file.stat().st_mode):
            raise ConfigError("E1529", setting, f"{name} is not a regular file", "", "Name a file")
        with file.open("rb") as opened:
            content = opened.read(_MOST_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else str(error)) or str(error)
        raise ConfigError("E1529", setting, f"{name} cannot be read: {reason}", _RELATIVE) from error
    if len(content) > _MOST_FILE_BYTES:
        raise ConfigError("E1529", setting, f"{name} has more than {_MOST_FILE_BYTES} bytes")
    return content


def missing_package(setting: str, package: str) -> ConfigError:
    """The error of a format whose library is not installed."""
    return ConfigError(
        "E1537", setting, f"the package '{package}' is missing", "", "Install: pip install 'correlator[spark]'"
    )
