"""Which messages a reader gets."""

import time

from correlator.events import Message, expired
from correlator.selector import Selector


def is_wanted(message: Message, selector: Selector | None) -> bool:
    """Whether its time to live is not over, which a broker may leave to the reader, and it is selected."""
    return not expired(message, time.time() * 1000) and (selector is None or selector.matches(message))
