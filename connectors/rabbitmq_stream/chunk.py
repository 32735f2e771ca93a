"""The entries of a chunk of a stream: messages, and batches of messages that a producer has packed into one. Pure.

Own code, since rstream unpacks whatever size it becomes, and numbers the messages of a batch by what is in it: the
server numbers them by what its producer has said.
"""

import struct
import zlib
from collections.abc import Callable, Mapping

MOST_UNPACKED_BYTES = 64 * 1024 * 1024
"""Of one batch. A producer's frame has a megabyte."""
_PACKED, _COMPRESSION = 0x80, 0x70
_SIZE = struct.Struct(">I")
_BATCH = struct.Struct(">BHII")
_GZIP = 16 + zlib.MAX_WBITS
_KINDS = {2: "snappy", 3: "lz4", 4: "zstd"}


class Packed(bytes):
    """What stands for a message of a batch that cannot be unpacked: for the first one, all bytes of the batch.

    Attributes:
        why: says so.
    """

    why: str


def entries_of(data: bytes, count: int) -> list[bytes]:
    """The messages of so many entries, one for each offset.

    Raises `ValueError` or `struct.error` for entries that the server cannot have written.
    """
    entries: list[bytes] = []
    at = 0
    for _ in range(count):
        if data[at : at + 1] < bytes((_PACKED,)):
            begin = at + _SIZE.size
            (size,) = _SIZE.unpack_from(data, at)
            at = begin + size
            entries.append(data[begin:at])
        else:
            kind, number, size, packed_size = _BATCH.unpack_from(data, at)
            begin = at + _BATCH.size
            at = begin + packed_size
            entries += _unpacked((kind & _COMPRESSION) >> 4, number, size, data[begin:at])
        if at > len(data):
            raise ValueError("an entry ends behind its chunk")
    return entries


def _unpacked(kind: int, number: int, size: int, packed: bytes) -> list[bytes]:
    try:
        return _messages(_content(kind, size, packed), number)
    except (ValueError, struct.error, zlib.error) as error:
        return [_unreadable(place, number, packed, error) for place in range(number)]


def _content(kind: int, size: int, packed: bytes) -> bytes:
    unpack = _UNPACK.get(kind)
    if unpack is None:
        raise ValueError(f"{_KINDS.get(kind, f'compression {kind}')} is not read, only gzip")
    if size > MOST_UNPACKED_BYTES:
        raise ValueError(f"{size} bytes are more than {MOST_UNPACKED_BYTES}")
    content = unpack(packed, size)
    if len(content) != size:
        raise ValueError(f"it has not the {size} bytes that it should have")
    return content


def _unzipped(packed: bytes, size: int) -> bytes:
    """At most one byte more than it should have."""
    return zlib.decompressobj(_GZIP).decompress(packed, size + 1)


_UNPACK: Mapping[int, Callable[[bytes, int], bytes]] = {0: lambda packed, _: packed, 1: _unzipped}


def _messages(content: bytes, number: int) -> list[bytes]:
    messages = []
    at = 0
    for _ in range(number):
        begin = at + _SIZE.size
        at = begin + _SIZE.unpack_from(content, at)[0]
        messages.append(content[begin:at])
    if at != len(content):
        raise ValueError(f"it does not hold {number} messages")
    return messages


def _unreadable(place: int, number: int, packed: bytes, error: Exception) -> Packed:
    made = Packed(b"" if place else packed)
    of = f"message {place + 1} of a batch of {number} that cannot be unpacked ({error})"
    made.why = f"{of}; the first one has its bytes" if place else of
    return made
