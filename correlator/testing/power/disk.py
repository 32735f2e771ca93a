"""Computes from a trace which images a loss of power could have left on the disk.

On a journalling file system (ext4, XFS, btrfs) these images are possible:

- Content. Of the writes to a file since its last `fsync` or `fdatasync`, any part may be missing, in units of sectors
  of 512 bytes. Of two writes the later one may have arrived and the earlier one not, and one write may have arrived in
  part. But a sector never holds a later write without the earlier ones to the same sector, since both changed the same
  page of memory. If content is missing at the end, the file ends before it or holds zeros there: both occur.
- Length. A file is cut and lengthened in order: if a truncation is missing, all later changes of the file are missing.
- Names. Files appear, change their names and disappear in order: the image shows the names of one moment between the
  last `fsync` of the directory and the loss of power. Several file systems make the name of a file durable with its
  content; here only an `fsync` of the directory does, as POSIX says.
- `-shm` files are memory of SQLite. The first process that opens the store makes them anew.

A device that loses content although it has confirmed an `fsync` is out of scope: no store survives that.
"""

import random
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from correlator.testing.syscalls.trace import CallKind, CallRecord

SECTOR = 512
MEMORY = "-shm"
KINDS = ("whole", "lost", "torn", "absent")
"""The kinds of images.

`whole`: all calls have taken effect. `lost`: writes are missing. `torn`: one of the missing writes arrived in part.
`absent`: names are missing, and perhaps writes to the files that are there.
"""


class Image(NamedTuple):
    """The content of the disk after a loss of power.

    Attributes:
        kind: one of `KINDS`.
        files: the content of each file, by name.
        effective: whether the content differs from what the process saw.
    """

    kind: str
    files: Mapping[str, bytearray]
    effective: bool


class File:
    """One file, whatever its present name is.

    Args:
        content: the initial content, which is durable.

    Attributes:
        content: the content as the process sees it.
        durable: the content at the last sync.
        pending: the changes since then.
    """

    def __init__(self, content: bytes = b"") -> None:
        self.content = bytearray(content)
        self.durable = bytearray(content)
        self.pending: list[CallRecord] = []

    @property
    def tearable(self) -> list[int]:
        """Positions of the pending writes that can arrive in part: those of more than one sector."""
        return [at for at, one in enumerate(self.pending) if one.kind is CallKind.WRITE and _sectors(one) > 1]

    def apply(self, record: CallRecord) -> None:
        """Apply a write or a truncation."""
        self.pending.append(record)
        change(self.content, record)

    def sync(self) -> None:
        """Make the whole content durable."""
        for record in self.pending:
            change(self.durable, record)
        self.pending.clear()

    def image(self, rng: random.Random, *, torn: bool) -> bytearray:
        """Choose a content after a loss of power at random; with `torn`, one write has arrived in part."""
        if not self.pending:
            return self.content
        arrived = _draw(rng, len(self.pending))
        tear = rng.choice(self.tearable) if torn else -1
        image = bytearray(self.durable)
        missing = _Missing()
        for at, record in enumerate(self.pending):
            if record.kind is CallKind.TRUNCATE:
                if not arrived[at]:
                    break
                change(image, record)
            elif at == tear:
                _write_some(image, record, missing, [rng.random() < 0.5 for _ in range(_sectors(record))])
            elif not arrived[at]:
                missing.add(record)
            elif missing.touches(record):
                _write_some(image, record, missing, [True] * _sectors(record))
            else:
                change(image, record)
        if missing.end > len(image) and rng.random() < 0.5:
            image.extend(bytes(missing.end - len(image)))
        return image


class Disk:
    """A directory of files, to which the records of a trace are applied one by one.

    Args:
        files: the initial content of each file by name, which is durable.
    """

    def __init__(self, files: Mapping[str, bytes] = MappingProxyType({})) -> None:
        self.names = {name: File(content) for name, content in files.items() if not name.endswith(MEMORY)}
        self._durable_names = dict(self.names)
        self._pending_names: list[tuple[CallRecord, File]] = []

    def apply(self, record: CallRecord) -> None:
        """Apply the next call of the trace; the caller applies all calls, in the order of the trace.

        Args:
            record: the call. Calls on a `-shm` file change nothing; a sync with the path "" is that of the directory.
        """
        if record.path.endswith(MEMORY):
            return
        if record.kind in (CallKind.CREATE, CallKind.RENAME, CallKind.UNLINK):
            file = File() if record.kind is CallKind.CREATE else self.names[record.path]
            _rename(self.names, record, file)
            self._pending_names.append((record, file))
        elif record.kind in (CallKind.WRITE, CallKind.TRUNCATE):
            self.names[record.path].apply(record)
        elif record.kind in (CallKind.FSYNC, CallKind.FDATASYNC):
            if record.path:
                self.names[record.path].sync()
            else:
                self._sync_names()

    @property
    def kinds(self) -> Sequence[str]:
        """The kinds of images that a loss of power at this moment can leave."""
        files = self.names.values()
        there = {
            "whole": True,
            "lost": any(file.pending for file in files),
            "torn": any(file.tearable for file in files),
            "absent": bool(self._pending_names),
        }
        return [kind for kind in KINDS if there[kind]]

    def draw(self, kind: str, rng: random.Random) -> Image:
        """Choose an image of a kind that is among `kinds` at random."""
        whole = {name: file.content for name, file in self.names.items()}
        if kind == "whole":
            return Image(kind, whole, effective=False)
        names = self._names_at(rng.randrange(len(self._pending_names))) if kind == "absent" else self.names
        loses = kind != "absent" or rng.random() < 0.5
        torn = rng.choice([file for file in names.values() if file.tearable]) if kind == "torn" else None
        files = {name: file.image(rng, torn=file is torn) if loses else file.content for name, file in names.items()}
        return Image(kind, files, effective=files != whole)

    def _names_at(self, moment: int) -> dict[str, File]:
        names = dict(self._durable_names)
        for record, file in self._pending_names[:moment]:
            _rename(names, record, file)
        return names

    def _sync_names(self) -> None:
        self._durable_names = dict(self.names)
        self._pending_names.clear()


class _Missing:
    """The sectors of a file in which a write is missing, so that no later write to them arrived."""

    def __init__(self) -> None:
        self._sectors = bytearray()

    @property
    def end(self) -> int:
        """Return the end of the last missing sector, in bytes."""
        return len(self._sectors) * SECTOR

    def add(self, record: CallRecord) -> None:
        """Add all sectors of a write."""
        first, last = _span(record)
        self._sectors.extend(bytes(max(0, last - len(self._sectors))))
        self._sectors[first:last] = b"\1" * (last - first)

    def add_one(self, sector: int) -> None:
        """Add one sector."""
        self._sectors.extend(bytes(max(0, sector + 1 - len(self._sectors))))
        self._sectors[sector] = 1

    def touches(self, record: CallRecord) -> bool:
        """Return whether one of the missing sectors is within a write."""
        return self._sectors.find(1, *_span(record)) >= 0

    def holds(self, sector: int) -> bool:
        """Return whether this sector is missing."""
        return sector < len(self._sectors) and bool(self._sectors[sector])


def _rename(names: dict[str, File], record: CallRecord, file: File) -> None:
    """Apply a record that makes, changes or removes a name of `file`."""
    if record.kind is CallKind.CREATE:
        names[record.path] = file
    else:
        del names[record.path]
    if record.kind is CallKind.RENAME:
        names[record.content.decode()] = file


def change(content: bytearray, record: CallRecord) -> None:
    """Apply a write or a truncation to `content`."""
    size = record.offset - len(content)
    if size > 0:
        content.extend(bytes(size))
    if record.kind is CallKind.TRUNCATE:
        del content[record.offset :]
    else:
        content[record.offset : record.offset + len(record.content)] = record.content


def _draw(rng: random.Random, count: int) -> Sequence[bool]:
    """Choose at random which of `count` changes arrived: none, half, all but one, one, or all before or
    from a position.
    """
    how = rng.randrange(6)
    if how == 0:
        return [False] * count
    if how == 1:
        return [rng.random() < 0.5 for _ in range(count)]
    at = rng.randrange(count)
    if how == 2:
        return [one != at for one in range(count)]
    if how == 3:
        return [one == at for one in range(count)]
    return [(one >= at) is (how == 4) for one in range(count)]


def _span(record: CallRecord) -> tuple[int, int]:
    """Return the first sector of a write, and the sector after its last."""
    return record.offset // SECTOR, -(-(record.offset + len(record.content)) // SECTOR)


def _sectors(record: CallRecord) -> int:
    first, last = _span(record)
    return last - first


def _write_some(image: bytearray, record: CallRecord, missing: _Missing, arrived: Sequence[bool]) -> None:
    """Write the sectors that arrived, but none in which an earlier write is missing."""
    first, _ = _span(record)
    for sector, here in enumerate(arrived, first):
        if not here or missing.holds(sector):
            missing.add_one(sector)
            continue
        begin = max(record.offset, sector * SECTOR)
        part = record.content[begin - record.offset : (sector + 1) * SECTOR - record.offset]
        change(image, CallRecord(CallKind.WRITE, record.path, begin, part))
