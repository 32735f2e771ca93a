"""Chunks of a stream: packed batches are unpacked, and the counts in their headers are checked."""

import gzip
import struct

import pytest

from connectors.rabbitmq_stream.chunk import MOST_UNPACKED_BYTES, Packed, PackedBatch, entries_of
from connectors.rabbitmq_stream.feed import Feed, PackedRun

NONE, GZIP, ZSTD = 0x80, 0x90, 0xC0


def sized(*messages):
    return b"".join(struct.pack(">I", len(one)) + one for one in messages)


def batch(kind, number, content, size=None, packed=None):
    packed = content if packed is None else packed
    return struct.pack(">BHII", kind, number, len(content) if size is None else size, len(packed)) + packed


def zipped(*messages):
    content = sized(*messages)
    return batch(GZIP, len(messages), content, packed=gzip.compress(content, mtime=0))


def messages_of(data, count):
    """The messages of all entries, one for each offset."""
    entries = entries_of(data, count)
    return [one for entry in entries for one in (entry.unpack() if isinstance(entry, PackedBatch) else entry)]


def test_messages_and_batches_in_order():
    data = sized(b"1", b"") + batch(NONE, 2, sized(b"2", b"3")) + zipped(b"4", b"5" * 1000) + sized(b"6")
    assert messages_of(data, 5) == [b"1", b"", b"2", b"3", b"4", b"5" * 1000, b"6"]


BOMB = gzip.compress(bytes(1_000_000), mtime=0)


@pytest.mark.parametrize(
    ("hostile", "reason"),
    [
        (batch(ZSTD, 3, b"???"), "zstd is not supported"),
        (batch(0xF0, 3, b"???"), "compression 7 is not supported"),
        (batch(GZIP, 3, b"", size=5, packed=b"no gzip"), "header"),
        (batch(GZIP, 3, b"", size=5, packed=BOMB[:20]), "5 bytes"),
        (batch(GZIP, 3, b"", size=1000, packed=BOMB), "1000 bytes"),
        (batch(GZIP, 3, b"", size=MOST_UNPACKED_BYTES + 1, packed=BOMB), "are more than"),
        (batch(NONE, 3, sized(b"1", b"2")), "unpack_from"),
        (batch(NONE, 3, sized(b"1", b"2", b"3", b"4")), "does not hold 3"),
        (batch(NONE, 3, sized(b"1", b"2") + b"\0\0\0\x09x"), "does not hold 3"),
    ],
)
def test_a_batch_that_cannot_be_unpacked_keeps_its_offsets(hostile, reason):
    entries = messages_of(sized(b"before") + hostile + sized(b"behind"), 3)
    assert len(entries) == 5
    assert (entries[0], entries[4]) == (b"before", b"behind")
    assert all(isinstance(one, Packed) and reason in one.why for one in entries[1:4])
    assert entries[1] == hostile[11:]
    assert entries[2] == entries[3] == b""


@pytest.mark.parametrize("data", [b"", b"\0\0", b"\0\0\0\x05abc", b"\x80\0\1", batch(NONE, 1, sized(b"1"))[:-1]])
def test_what_no_server_writes(data):
    with pytest.raises((ValueError, struct.error)):
        entries_of(data, 1)


def test_t57_of_all_batches_that_wait_one_is_unpacked():
    """A chunk of a few kilobytes may hold gigabytes, and may claim any number of messages."""
    batches = [PackedRun(at, 0, *entries_of(zipped(bytes(500_000), bytes(500_000)), 1)) for at in range(0, 40, 2)]
    unread = PackedRun(40, 0, *entries_of(batch(GZIP, 65535, b""), 1))
    feed = Feed(1, 0, most=100_000, most_bytes=600_000)
    feed.put([*batches, unread])
    assert feed.waiting_bytes < 30_000
    for at in range(38):
        assert [run.first for run in feed.take(at, None, 3, 0.0).runs] == [at]
        assert feed.waiting_bytes < 1_030_000
    runs = feed.take(50, None, 3, 0.0).runs
    assert [(run.first, run.end) for run in runs] == [(50, 53)]
    assert isinstance(runs[0].entries[0], Packed)
    assert feed.position == 53


def test_batches_that_are_not_wanted_are_not_unpacked(monkeypatch):
    feed = Feed(1, 0, most=100, most_bytes=1000)
    feed.put([PackedRun(0, 0, *entries_of(zipped(b"1", b"2"), 1)), PackedRun(2, 0, *entries_of(zipped(b"3"), 1))])
    monkeypatch.setattr(PackedBatch, "unpack", None)
    assert feed.take(3, None, 10, 0.0) == ([], False)
    assert feed.waiting_bytes == 0
    assert feed.position == 3
