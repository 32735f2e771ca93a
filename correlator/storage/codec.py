"""The content of rows: typed values as MessagePack, with a CRC-32."""

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


class CheckpointContent(msgspec.Struct, frozen=True, gc=False):
    """The content of the row of a checkpoint: `CheckpointCommit` without the parts that have rows of their own."""

    number: int
    engine_time: float
    digest: bytes
    contexts: list[ContextCut]
    senders: list[SenderCut]


_KINDS: tuple[type[Any], ...] = (
    CheckpointContent,
    ReceiveSegment,
    IdSegment,
    StateSegment,
    OutboundSegment,
    DeadLetter,
    Endpoint,
)
_ENCODER = msgspec.msgpack.Encoder()
_DECODERS = {kind: msgspec.msgpack.Decoder(kind) for kind in _KINDS}


def content_of(value: Any) -> dict[str, Any]:
    """Return the columns `content` and `crc` for a value.

    Raises:
        TypeError, ValueError, OverflowError: the value has no encoding (an integer beyond 64 bits, a lone surrogate).
            Callers encode before they begin a transaction.
    """
    content = _ENCODER.encode(value)
    return {"content": content, "crc": zlib.crc32(content)}


def progress_row(receiver: str, *, confirmed_batch: int = 0, consumed: int = 0) -> dict[str, Any]:
    """Return a row of `receive_progress`, each number of which has a CRC-32."""
    return {
        "receiver": receiver,
        "confirmed_batch": confirmed_batch,
        "confirmed_crc": content_of([receiver, "confirmed_batch", confirmed_batch])["crc"],
        "consumed": consumed,
        "consumed_crc": content_of([receiver, "consumed", consumed])["crc"],
    }


def check(where: str, content: object, crc: int) -> None:
    """Check that a content is unchanged since it was written; a damaged row may hold a value of any type.

    Raises:
        RecoveryRefused: E4201, it has changed. The engine does not start, and nothing was changed.
    """
    if not isinstance(content, bytes) or zlib.crc32(content) != crc:
        raise altered(where)


def read(kind: type[T], where: str, content: bytes, crc: int) -> T:
    """Decode the value of a row, after a check of its CRC.

    Args:
        kind: the type of the value.
        where: the name of the row in messages, such as `checkpoint 812`.
        content: the bytes.
        crc: their CRC-32, as stored.

    Raises:
        RecoveryRefused: E4201, content and CRC do not match; E4202, the bytes are no value of this type.
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


def altered(where: str, what: str = "content does not match its digest") -> RecoveryRefused:
    """Return the refusal (E4201) of a row whose content somebody has changed; `what` shows it."""
    return RecoveryRefused(
        "E4201",
        where,
        what,
        "Rows of a store are written by the engine only",
        "Restore a backup of the store",
    )
