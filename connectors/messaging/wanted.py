"""Decides which messages a consumer or browser passes on."""

import time

from correlator.events import Message, expired
from correlator.selector import Selector


def is_wanted(message: Message, selector: Selector | None) -> bool:
    """Whether the message has not expired and matches the selector. A broker may leave both checks to its clients."""
    return not expired(message, time.time() * 1000) and (selector is None or selector.matches(message))
