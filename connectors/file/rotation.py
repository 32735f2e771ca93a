"""Finds the file that follows a renamed one, by the names that `logrotate` and logging libraries give to files.

Names show an order in two cases: `NAME.3` is older than `NAME.2`, and a file with a date or time in its name is older
than a file with a later one at the same place. With any other name, a file counts as the only renamed one.

If the name is a symbolic link that is moved from file to file, the files keep their names, which have dates.
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
    """Device and inode of a file, which it keeps when it is renamed.

    A restart of the machine, or a new mount of a network file system, may give the file system another device number.
    So identities from different lives are compared with `is_same_inode`.
    """

    device: int
    inode: int

    @classmethod
    def of(cls, status: os.stat_result) -> Self:
        """Return the identity in the result of `stat`."""
        return cls(status.st_dev, status.st_ino)

    def is_same_inode(self, other: "Identity | None") -> bool:
        """Return whether this may be the file with the other identity, if both are in one directory."""
        return other is not None and self.inode == other.inode


def identity_of(path: Path) -> Identity | None:
    """Return the identity of the file with this path; `None` if there is no such file."""
    try:
        return Identity.of(path.stat())
    except FileNotFoundError:
        return None


def find(directory: Path, identity: Identity) -> Path | None:
    """Return the present path of a file in its directory; `None` if it is gone."""
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.inode() == identity.inode and identity.is_same_inode(identity_of(directory / entry.name)):
                return directory / entry.name
    return None


def following(where: str, path: Path, old: Identity) -> Path:
    """Return the file that was written after `old`. Both had the name `path` at first, and both may have been renamed.

    Raises `ConnectionLost` E7030 if a file with a certain number must exist and does not, or is compressed.
    """
    renamed = find(path.parent, old)
    if renamed is None:
        return path
    number = renamed.name.removeprefix(f"{path.name}.")
    if _NUMBER.fullmatch(number):
        return _by_number(where, path, int(number), renamed)
    return _by_date(where, path, renamed)


def is_made_from(name: str, original: str) -> bool:
    """Return whether a name is the original one or made from it by rotation: `NAME.1`, `NAME-2024`, `STEM-2024.EXT`."""
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
    """Make the error for a missing file that must be read next."""
    todo = "Restore it, uncompressed, or remove the position file of the receiver to continue with the present file"
    return ConnectionLost("E7030", where, what, "Rotated files stay until they are read", todo)
