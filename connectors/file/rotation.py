"""Which file follows one that was renamed: what `logrotate` and logging libraries leave behind, by their names.

Names tell an order in two cases. `NAME.3` is older than `NAME.2`; what has a date or time in its name is older than
what has a later one at the same place. By any other name a file is taken for the only one that was renamed.

Where the name is a link that moves on, the files keep their names, and the one that the link leads to has a date, too.
"""

import os
import re
from pathlib import Path
from typing import NamedTuple, Self

from correlator.errors import ConnectionLost

_DIGITS = re.compile("[0-9]")
_NUMBER = re.compile("0|[1-9][0-9]{0,4}")
_FEWEST_DIGITS_OF_DATE = 6
_COMPRESSED = (".gz", ".bz2", ".xz", ".zst", ".lz4", ".Z")


class Identity(NamedTuple):
    """What a file keeps when it is renamed."""

    device: int
    inode: int

    @classmethod
    def of(cls, status: os.stat_result) -> Self:
        """Of what `stat` tells."""
        return cls(status.st_dev, status.st_ino)


def identity_of(path: Path) -> Identity | None:
    """Of the file that has a name; `None` when there is none."""
    try:
        return Identity.of(path.stat())
    except FileNotFoundError:
        return None


def find(directory: Path, identity: Identity) -> Path | None:
    """The name that a file has now, in the directory where it was."""
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.inode() == identity.inode and identity_of(directory / entry.name) == identity:
                return directory / entry.name
    return None


def following(where: str, path: Path, old: Identity) -> Path:
    """The file that was written to after `old`, which had the name `path` before; it may have been renamed since, too.

    Raises `ConnectionLost` E7030 when a file must be there by its number and is not, or is compressed.
    """
    renamed = find(path.parent, old)
    if renamed is None:
        return path
    number = renamed.name.removeprefix(f"{path.name}.")
    if _NUMBER.fullmatch(number):
        return _by_number(where, path, int(number), renamed)
    return _by_date(where, path, renamed)


def is_made_from(name: str, original: str) -> bool:
    """Whether rotation makes a name of the other one, or they are the same: `NAME.1`, `NAME-2024`, `STEM-2024.EXT`."""
    made = rf"{re.escape(original)}([\W_].*)?|{re.escape(Path(original).stem)}[-_.][0-9].*"
    return name == _without_compression(name) and re.fullmatch(made, name) is not None


def _by_number(where: str, path: Path, number: int, renamed: Path) -> Path:
    younger = path.with_name(f"{path.name}.{number - 1}")
    if number > 1 and not younger.exists():
        raise missing(where, f"{younger} is missing: it was written after {path.name}.{number} and before {path.name}")
    if number > 1:
        return younger
    is_from_0 = number == 1 and younger.exists() and younger.stat().st_mtime_ns >= renamed.stat().st_mtime_ns
    return younger if is_from_0 else path


def _by_date(where: str, path: Path, renamed: Path) -> Path:
    shape, shape_of_path = _shape(renamed.name), _shape(path.name)
    is_link = shape == shape_of_path
    if shape.count("0") - (0 if is_link else shape_of_path.count("0")) < _FEWEST_DIGITS_OF_DATE:
        return path
    younger = sorted(
        one.name
        for one in path.parent.iterdir()
        if _shape(plain := _without_compression(one.name)) == shape
        and renamed.name < plain
        and (plain < path.name or not is_link)
    )
    if not younger:
        return path
    if younger[0] != _without_compression(younger[0]):
        raise missing(where, f"{path.with_name(younger[0])} is compressed: it was written after {renamed.name}")
    return path.with_name(younger[0])


def _shape(name: str) -> str:
    return _DIGITS.sub("0", name)


def _without_compression(name: str) -> str:
    for ending in _COMPRESSED:
        name = name.removesuffix(ending)
    return name


def missing(where: str, what: str) -> ConnectionLost:
    """A file that is to be read next is not where it was."""
    todo = "Put it back, uncompressed, or remove the position file of the receiver to go on with the present file"
    return ConnectionLost("E7030", where, what, "Rotated files stay until they are read", todo)
