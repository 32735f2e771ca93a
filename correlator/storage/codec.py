"""Contents of rows as bytes: MessagePack of the typed values, with a CRC-32. Never pickle."""

import zlib
from typing import Any, TypeVar, cast

import msgspec

from correlator.core.commit import (
    ContextCut,
    Endpoint,
    IdSegment,
    OutboundSegment,
    ReceiveSegment,
    SenderCut,
    StateSegment,
)
from correlator.errors import RecoveryRefused
from correlator.events import DeadLetter

T = TypeVar("T")


class Cut(msgspec.Struct, frozen=True, gc=False):
    """What the row of a checkpoint holds: `CheckpointCommit` without what has rows of its own."""

    number: int
    engine_time: float
    digest: bytes
    contexts: list[ContextCut]
    senders: list[SenderCut]


_KINDS: tuple[type[Any], ...] = (Cut, ReceiveSegment, IdSegment, StateSegment, OutboundSegment, DeadLetter, Endpoint)
_ENCODER = msgspec.msgpack.Encoder()
_DECODERS = {kind: msgspec.msgpack.Decoder(kind) for kind in _KINDS}


def content_of(value: Any) -> dict[str, Any]:
    """The columns `content` and `crc` of a value.

    Raises what msgspec raises for a value that has no encoding (an integer beyond 64 bits, a lone surrogate): the
    caller has not begun to write.
    """
    content = _ENCODER.encode(value)
    return {"content": content, "crc": zlib.crc32(content)}


def check(where: str, content: bytes, crc: int) -> None:
    """Refuse a content that is not the one that was written.

    Raises:
        RecoveryRefused: E4201; the engine does not start, nothing was changed.
    """
    if zlib.crc32(content) != crc:
        raise altered(where)


def read(kind: type[T], where: str, content: bytes, crc: int) -> T:
    """The value of a row.

    Args:
        kind: what the content was made of.
        where: the row, as messages name it: `checkpoint 812`.
        content: the bytes.
        crc: their CRC-32 as stored.

    Raises:
        RecoveryRefused: E4201 when they do not fit together, E4202 when the bytes are no such value.
    """
    check(where, content, crc)
    try:
        return cast(T, _DECODERS[kind].decode(content))
    except msgspec.DecodeError as error:
        raise RecoveryRefused(
            "E4202",
            where,
            f"content is not a {kind.__name__}: {error}",
            "",
            "It was written by another version: start that one, or restore a backup",
        ) from error


def altered(where: str) -> RecoveryRefused:
    """The refusal of a row that somebody changed (E4201)."""
    return RecoveryRefused(
        "E4201",
        where,
        "content does not match its digest",
        "Rows of a store are written by the engine only",
        "Restore a backup of the store",
    )
