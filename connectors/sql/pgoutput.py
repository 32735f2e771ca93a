"""Decodes what a PostgreSQL server sends to a reader of a replication slot, and encodes the answer.

The format of the changes is version 1 of `pgoutput`, the output plugin of PostgreSQL's own logical replication. A value
is the text that the type's output function makes. This module does no I/O.
"""

import struct
from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

_MICROSECONDS_2000 = 946_684_800_000_000
"""Microseconds from the epoch to the beginning of 2000, from which PostgreSQL counts."""
_u16, _u32 = struct.Struct("!H"), struct.Struct("!I")
_wal, _keepalive, _status = struct.Struct("!cQQq"), struct.Struct("!cQq?"), struct.Struct("!cQQQq?")
_begin, _commit, _column, _truncate = (
    struct.Struct("!Qqi"),
    struct.Struct("!BQQq"),
    struct.Struct("!Ii"),
    struct.Struct("!IB"),
)


class Kept(Enum):
    """Replaces a value that the change left as it was and that the server does not send.

    PostgreSQL stores large values apart from their rows (TOAST), and its log contains them only if they change.
    """

    UNCHANGED = "unchanged"


Value = bytes | None | Kept
Values = Sequence[Value]


class Wal(NamedTuple):
    """A part of the server's log: `content` is what `read_change` reads."""

    content: bytes


class Keepalive(NamedTuple):
    """A message of a server that has nothing else to send.

    Attributes:
        end: place in the log before which the server has sent everything.
        wants_answer: whether the server ends the session unless it soon gets an answer.
    """

    end: int
    wants_answer: bool


class Begin(NamedTuple):
    """The beginning of a transaction, whose changes follow.

    Attributes:
        lsn: the place of its commit in the log.
        time_ms: when it committed, in milliseconds since the epoch.
    """

    lsn: int
    time_ms: int


class Commit(NamedTuple):
    """The end of a transaction; `end` is the place after it in the log."""

    end: int


class Column(NamedTuple):
    """A column of a table, with the numbers of its type; `is_key` if it belongs to the replica identity."""

    name: str
    type: int
    modifier: int
    is_key: bool = False


class Relation(NamedTuple):
    """The description of a table for the changes that follow."""

    oid: int
    schema: str
    table: str
    columns: Sequence[Column]


class Change(NamedTuple):
    """A change of a row.

    Attributes:
        operation: `insert`, `update` or `delete`.
        relation: number of the table.
        old: the row before the change: all of it if the replica identity is full, else its key, with null in the other
            columns; `None` if the server does not send it, as for an update that has not changed the key.
        new: the row after the change; `None` for a deletion.
        is_whole: whether `old` has all columns.
    """

    operation: str
    relation: int
    old: Values | None
    new: Values | None
    is_whole: bool = False


class Truncate(NamedTuple):
    """The numbers of tables that were emptied."""

    relations: Sequence[int]


class Other(NamedTuple):
    """A message that describes no change of a row, such as the name of a type."""

    kind: bytes


def read_frame(data: bytes) -> Wal | Keepalive:
    """Decode a message of the server. Raises `ValueError`."""
    try:
        if data[:1] == b"w":
            _wal.unpack_from(data)
            return Wal(data[_wal.size :])
        if data[:1] == b"k":
            _, end, _, wants_answer = _keepalive.unpack(data)
            return Keepalive(end, wants_answer)
    except struct.error as error:
        raise ValueError(str(error)) from error
    raise ValueError(f"unknown frame {data[:1]!r}")


def status(received: int, flushed: int, time_ns: int, *, asks: bool) -> bytes:
    """Encode what the reader has, for the server.

    Args:
        received: place in the log up to which the reader has read.
        flushed: place up to which it no longer needs the log: the server never sends the part before this place again.
        time_ns: the present time, in nanoseconds since the epoch.
        asks: whether the server is to answer at once.
    """
    return _status.pack(b"r", received, flushed, flushed, time_ns // 1000 - _MICROSECONDS_2000, asks)


def read_change(data: bytes) -> Begin | Commit | Relation | Change | Truncate | Other:
    """Decode the content of a `Wal`. Raises `ValueError`."""
    kind = data[:1]
    try:
        if kind in _CHANGES:
            return _change(_CHANGES[kind], data)
        if kind == b"B":
            lsn, time_us, _ = _begin.unpack(data[1:])
            return Begin(lsn, (time_us + _MICROSECONDS_2000) // 1000)
        if kind == b"C":
            return Commit(_commit.unpack(data[1:])[2])
        if kind == b"R":
            return _relation(data)
        if kind == b"T":
            count, _ = _truncate.unpack_from(data, 1)
            return Truncate(struct.unpack(f"!{count}I", data[1 + _truncate.size :]))
    except (struct.error, IndexError) as error:
        raise ValueError(str(error)) from error
    if kind in (b"O", b"Y", b"M"):
        return Other(kind)
    raise ValueError(f"unknown message {kind!r}")


def lsn_text(lsn: int) -> str:
    """Return a place in the log as PostgreSQL writes it."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def lsn_of(text: str) -> int:
    """Return the place in the log for PostgreSQL's text of it."""
    upper, _, lower = text.partition("/")
    return int(upper, 16) << 32 | int(lower, 16)


_CHANGES = {b"I": "insert", b"U": "update", b"D": "delete"}


def _change(operation: str, data: bytes) -> Change:
    (relation,) = _u32.unpack_from(data, 1)
    at = 5
    old: Values | None = None
    new: Values | None = None
    mark = data[at : at + 1]
    is_whole = mark == b"O"
    if mark in (b"K", b"O"):
        old, at = _values(data, at + 1)
    if data[at : at + 1] == b"N":
        new, at = _values(data, at + 1)
    if at != len(data) or (new is None) != (operation == "delete") or (old is None and new is None):
        raise ValueError(f"malformed {operation}")
    return Change(operation, relation, old, new, is_whole)


def _values(data: bytes, at: int) -> tuple[Values, int]:
    (count,) = _u16.unpack_from(data, at)
    at += 2
    values: list[Value] = []
    for _ in range(count):
        kind = data[at]
        at += 1
        if kind == 0x74:  # t
            (size,) = _u32.unpack_from(data, at)
            end = at + 4 + size
            if end > len(data):
                raise ValueError("a value is cut off")
            values.append(data[at + 4 : end])
            at = end
        elif kind == 0x6E:  # n
            values.append(None)
        elif kind == 0x75:  # u
            values.append(Kept.UNCHANGED)
        else:
            raise ValueError(f"unknown kind of value {kind}")
    return values, at


def _relation(data: bytes) -> Relation:
    (oid,) = _u32.unpack_from(data, 1)
    schema, at = _text(data, 5)
    table, at = _text(data, at)
    (count,) = _u16.unpack_from(data, at + 1)  # after the kind of the replica identity
    at += 3
    columns = []
    for _ in range(count):
        is_key = bool(data[at] & 1)
        name, at = _text(data, at + 1)
        kind, modifier = _column.unpack_from(data, at)
        at += _column.size
        columns.append(Column(name, kind, modifier, is_key))
    if at != len(data):
        raise ValueError("malformed relation")
    return Relation(oid, schema or "pg_catalog", table, columns)


def _text(data: bytes, at: int) -> tuple[str, int]:
    end = data.index(0, at)
    return data[at:end].decode(errors="backslashreplace"), end + 1
