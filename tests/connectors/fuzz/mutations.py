"""Values on which programs often fail, and functions that damage bytes."""

from collections.abc import Callable
from random import Random
from typing import Any

NAMES = (
    "a",
    "",
    "correlator_nulls",
    "correlator_unreadable",
    "cut_from_bytes",
    "uniqueMessageId",
    "messageSourceId",
    "jms_message_type",
    "jms_null",
    "jms_types",
    "x_jsmtype",
    "x_jmstype",
    "x",
    "JMSType",
    "JMSTimestamp",
    "JMSMessageID",
    "JMSMessageId",
    "JMSCorrelationID",
    "JMSReplyTo",
    "JMSReplyToType",
    "JMSXGroupID",
    "JMSPriority",
    "JMSExpiration",
    "JMSDeliveryMode",
    "JMSPulsarMessageType",
    "JMSXDeliveryCount",
    "x-delivery-count",
    "x-death",
    "x-stream-offset",
    "amqp_content_type",
    "amqp_properties",
    "CC",
    "ü\0",
)
TEXTS = (
    "",
    "a",
    "text",
    "TextMessage",
    "BytesMessage",
    "map",
    "stream",
    "object",
    "header",
    "queue:",
    "topic:",
    "queue:a",
    "base64:AAH/",
    "-1",
    "0",
    "9" * 19,
    "9" * 250,
    "1e999",
    "NaN",
    "٣",
    "[" * 200,
    '["a","x"]',
    '["\\ud800"]',
    '{"x":"float"}',
    "true",
    "short",
    "\0",
    "é" * 100,
    "😀",
)
NUMBERS = (0, 1, -1, 5, 9, 10, 127, 128, 255, 256, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**53, 2**63 - 1)
LARGEST = 2**64 - 1
_ODD_BYTES = (0x00, 0x01, 0x40, 0x45, 0x7F, 0x80, 0xC0, 0xC1, 0xF0, 0xFF)
_LENGTHS = tuple(number.to_bytes(4, "big") for number in (0, 1, 2, 255, 65_535, 2**31 - 1, 2**31, 2**32 - 1))
BODIES = (b"", b"{}", b"{", b'{"a":1}', b"\xff\xfe", b"null", b"[" * 2000, b"9" * 5000, b'"\\ud800"', bytes(300))


def maybe(random: Random, probability: float, make: Callable[[Random], Any]) -> Any:
    """A value with this probability, otherwise `None`."""
    return make(random) if random.random() < probability else None


def text(random: Random) -> str:
    """One of the odd texts, or a text of random characters."""
    if random.random() < 0.8:
        return random.choice(TEXTS)
    return "".join(chr(random.choice((random.randrange(128), random.randrange(0x800)))) for _ in range(8))


def number(random: Random) -> int:
    """A random whole number of 64 bits, with or without a sign."""
    return random.choice(NUMBERS) * random.choice((1, 1, -1))


def body(random: Random) -> bytes:
    """A random body of any kind."""
    return random.choice(BODIES) if random.random() < 0.7 else random.randbytes(random.randrange(40))


def damaged(random: Random, data: bytes) -> bytes:
    """The data with up to four changes."""
    piece = bytearray(data)
    for _ in range(random.randint(1, 4)):
        at = random.randrange(len(piece) + 1)
        random.choice(_DAMAGES)(random, piece, at)
    return bytes(piece)


def _overwrite(random: Random, piece: bytearray, at: int) -> None:
    piece[at : at + 1] = bytes((random.randrange(256),))


def _overwrite_oddly(random: Random, piece: bytearray, at: int) -> None:
    piece[at : at + 1] = bytes((random.choice(_ODD_BYTES),))


def _overwrite_length(random: Random, piece: bytearray, at: int) -> None:
    piece[at : at + 4] = random.choice(_LENGTHS)


def _cut_out(random: Random, piece: bytearray, at: int) -> None:
    del piece[at : at + random.randint(1, 8)]


def _cut_off(_: Random, piece: bytearray, at: int) -> None:
    del piece[at:]


def _insert(random: Random, piece: bytearray, at: int) -> None:
    piece[at:at] = random.randbytes(random.randint(1, 8))


def _repeat(random: Random, piece: bytearray, at: int) -> None:
    piece[at:at] = piece[at : at + random.randint(1, 16)] * random.choice((1, 2, 50))


_DAMAGES = (_overwrite, _overwrite, _overwrite_oddly, _overwrite_length, _cut_out, _cut_off, _insert, _repeat)
