"""Decodes the entries of a chunk: single messages, and batches that a producer has packed into one entry.

The product has its own code for this for two reasons. rstream unpacks a batch of any size. And it numbers the messages
of a batch by its content, while the server numbers them by the count that the producer has stated. This module does no
I/O.
"""

import struct
import zlib
from collections.abc import Callable, Mapping
from typing import NamedTuple

MOST_UNPACKED_BYTES = 64 * 1024 * 1024
"""Most unpacked bytes of one batch. A frame of one megabyte may contain thousands of batches."""
_PACKED, _COMPRESSION = 0x80, 0x70
_SIZE = struct.Struct(">I")
_BATCH = struct.Struct(">BHII")
_GZIP = 16 + zlib.MAX_WBITS
_KINDS = {2: "snappy", 3: "lz4", 4: "zstd"}


class Packed(bytes):
    """Represents a message of a batch that cannot be unpacked; the first one contains all bytes of the batch.

    Attributes:
        why: the reason.
    """

    why: str


class PackedBatch(NamedTuple):
    """Messages that a producer has packed into one entry.

    Attributes:
        number: number of messages; each has its own offset.
        size: number of unpacked bytes that the producer has stated.
        packed: the content of the entry.
    """

    compression: int
    number: int
    size: int
    packed: bytes

    def unpack(self) -> list[bytes]:
        """Return the messages; `Packed` objects if the batch cannot be unpacked."""
        try:
            return _messages(_content(self), self.number)
        except (ValueError, struct.error, zlib.error) as error:
            return [_unreadable(index, self, error) for index in range(self.number)]


def entries_of(data: bytes, count: int) -> list[list[bytes] | PackedBatch]:
    """Decode `count` entries: lists of consecutive messages, and packed batches.

    Raises `ValueError` or `struct.error` if the server cannot have written them.
    """
    entries: list[list[bytes] | PackedBatch] = []
    messages: list[bytes] = []
    at = 0
    for _ in range(count):
        if data[at : at + 1] < bytes((_PACKED,)):
            begin = at + _SIZE.size
            (size,) = _SIZE.unpack_from(data, at)
            at = begin + size
            if not messages:
                entries.append(messages)
            messages.append(data[begin:at])
        else:
            kind, number, size, packed_size = _BATCH.unpack_from(data, at)
            begin = at + _BATCH.size
            at = begin + packed_size
            entries.append(PackedBatch((kind & _COMPRESSION) >> 4, number, size, data[begin:at]))
            messages = []
        if at > len(data):
            raise ValueError("an entry ends after its chunk")
    return entries


def _content(batch: PackedBatch) -> bytes:
    unpack = _UNPACK.get(batch.compression)
    if unpack is None:
        kind = _KINDS.get(batch.compression, f"compression {batch.compression}")
        raise ValueError(f"{kind} is not supported, only gzip")
    if batch.size > MOST_UNPACKED_BYTES:
        raise ValueError(f"{batch.size} bytes are more than {MOST_UNPACKED_BYTES}")
    content = unpack(batch.packed, batch.size)
    if len(content) != batch.size:
        raise ValueError(f"it does not have the {batch.size} bytes that it states")
    return content


def _unzipped(packed: bytes, size: int) -> bytes:
    """Unpack at most one byte more than `size`, which shows that there are too many."""
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


def _unreadable(index: int, batch: PackedBatch, error: Exception) -> Packed:
    made = Packed(b"" if index else batch.packed)
    of = f"message {index + 1} of a batch of {batch.number} that cannot be unpacked ({error})"
    made.why = f"{of}; the first one has its bytes" if index else of
    return made
