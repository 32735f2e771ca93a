"""Signatures of webhooks as Standard Webhooks defines them: HMAC-SHA256 over id, time and body. This
module does no I/O.
"""

import base64
import binascii
import hashlib
import hmac
from collections.abc import Collection, Iterator

SIGNED = b"webhook-id", b"webhook-timestamp", b"webhook-signature"
"""The headers of a signed request."""
TOLERANCE_S = 300
"""Most seconds by which the time of a request may differ from the time of this machine, in both directions."""
MOST_SIGNATURES = 32
"""Most signatures of a request that are checked, so that nobody can cause endless work."""
LEAST_KEY_BYTES = 24
_PREFIX = "whsec_"
_VERSION = b"v1,"
_MOST_DIGITS = 12


def key_of(secret: str) -> bytes | None:
    """Return the key of a secret: Base64 of at least 24 bytes, usually after `whsec_`. `None` if it is not valid."""
    try:
        key = base64.b64decode(secret.removeprefix(_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        return None
    return key if len(key) >= LEAST_KEY_BYTES else None


def signed(key: bytes, id_: bytes, timestamp: bytes, body: bytes) -> bytes:
    """Return the signature of a request."""
    content = b".".join((id_, timestamp, body))
    return _VERSION + base64.b64encode(hmac.digest(key, content, hashlib.sha256))


def is_timely(timestamp: bytes, now_s: float) -> bool:
    """Return whether the time of a request is a whole number of seconds, and near the time of this machine."""
    return timestamp.isdigit() and len(timestamp) <= _MOST_DIGITS and abs(now_s - int(timestamp)) <= TOLERANCE_S


def is_signed(keys: Collection[bytes], id_: bytes, timestamp: bytes, body: bytes, given: bytes) -> bool:
    """Return whether one of the signatures in the header was made with one of the keys.

    Args:
        keys: several keys while a secret is being replaced.
        id_: the header `webhook-id`.
        timestamp: the header `webhook-timestamp`.
        body: the body as it was sent.
        given: the header `webhook-signature`: signatures separated by blanks.
    """
    made = [signed(key, id_, timestamp, body) for key in keys]
    return any(hmac.compare_digest(one, ours) for one in _signatures(given) for ours in made)


def _signatures(given: bytes) -> Iterator[bytes]:
    for one in given.split(b" ", MOST_SIGNATURES)[:MOST_SIGNATURES]:
        if one.startswith(_VERSION):
            yield one
