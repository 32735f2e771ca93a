"""Messages that nobody wants any more."""

import time

from correlator.events import Message


def has_expired(message: Message) -> bool:
    """Whether its time to live is over, where the broker tells until when and leaves it to the reader."""
    expiration = message.headers.expiration if message.headers else None
    return expiration is not None and 0 < expiration <= time.time() * 1000
