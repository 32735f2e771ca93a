"""The entries of a chunk of a stream: messages, and batches of messages that a producer has packed into one. Pure.

Own code, since rstream unpacks whatever size it becomes, and numbers the messages of a batch by what is in it: the
server numbers them by what its producer has said.
"""

import struct
import zlib
from collections.abc import Callable, Mapping
from typing import NamedTuple

MOST_UNPACKED_BYTES = 64 * 1024 * 1024
"""Of one batch. A producer's frame has a megabyte, and may hold thousands of batches."""
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


class PackedBatch(NamedTuple):
    """Messages that a producer has packed into one entry.

    Attributes:
        number: how many; each has an offset.
        size: their bytes when unpacked, as the producer has said.
        packed: what the entry holds.
    """

    compression: int
    number: int
    size: int
    packed: bytes

    def unpack(self) -> list[bytes]:
        """The messages; `Packed` ones when they cannot be unpacked."""
        try:
            return _messages(_content(self), self.number)
        except (ValueError, struct.error, zlib.error) as error:
            return [_unreadable(index, self, error) for index in range(self.number)]


def entries_of(data: bytes, count: int) -> list[list[bytes] | PackedBatch]:
    """So many entries: messages that follow one another, and batches.

    Raises `ValueError` or `struct.error` for entries that the server cannot have written.
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
            raise ValueError("an entry ends behind its chunk")
    return entries


def _content(batch: PackedBatch) -> bytes:
    unpack = _UNPACK.get(batch.compression)
    if unpack is None:
        kind = _KINDS.get(batch.compression, f"compression {batch.compression}")
        raise ValueError(f"{kind} is not read, only gzip")
    if batch.size > MOST_UNPACKED_BYTES:
        raise ValueError(f"{batch.size} bytes are more than {MOST_UNPACKED_BYTES}")
    content = unpack(batch.packed, batch.size)
    if len(content) != batch.size:
        raise ValueError(f"it has not the {batch.size} bytes that it should have")
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


def _unreadable(index: int, batch: PackedBatch, error: Exception) -> Packed:
    made = Packed(b"" if index else batch.packed)
    of = f"message {index + 1} of a batch of {batch.number} that cannot be unpacked ({error})"
    made.why = f"{of}; the first one has its bytes" if index else of
    return made
