"""What the answer of a service means for a message. This module does no I/O."""

import re
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import Enum

MOST_WAIT_S = 3600.0
"""Longest time in seconds for which a sender obeys `Retry-After`."""
_SECONDS = re.compile(r"[0-9]{1,9}")


class Verdict(Enum):
    """What a sender does after an answer.

    CONFIRMED: the service has the message.
    AGAIN: send it again later.
    BUSY: send it again later; the service takes no requests at present.
    HOLD: send nothing, because the service does not accept the sender.
    REFUSED: the service never takes this message.
    """

    CONFIRMED = "confirmed"
    AGAIN = "again"
    BUSY = "busy"
    HOLD = "hold"
    REFUSED = "refused"


def verdict(status: int, *, has_key: bool) -> Verdict:
    """Return the meaning of a status. With a key, 409 means that a request with the same key is under way.

    A status below 200 precedes the answer; the sender has not waited for it.
    """
    if 200 <= status < 300:
        return Verdict.CONFIRMED
    if status in (429, 503):
        return Verdict.BUSY
    if status < 200 or status in (408, 425) or status >= 500 or (status == 409 and has_key):
        return Verdict.AGAIN
    if status in (401, 403, 407):
        return Verdict.HOLD
    return Verdict.REFUSED


def wait_s(retry_after: str | None, now_s: float) -> float:
    """Return the seconds of a header `Retry-After`: a number of seconds, or a date. 0 for anything else."""
    if retry_after is None:
        return 0.0
    text = retry_after.strip()
    if text.isascii() and text.isdigit():
        return min(float(text), MOST_WAIT_S) if _SECONDS.fullmatch(text) else MOST_WAIT_S
    try:
        date = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return 0.0
    if date.tzinfo is None:
        date = date.replace(tzinfo=UTC)
    return min(max(0.0, (date - datetime.fromtimestamp(now_s, UTC)).total_seconds()), MOST_WAIT_S)
