"""What the answer of a service means for a message. Pure."""

import re
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import Enum

MOST_WAIT_S = 3600.0
"""The longest time for which a sender does as `Retry-After` says."""
_SECONDS = re.compile(r"[0-9]{1,9}")


class Verdict(Enum):
    """What to do after an answer.

    CONFIRMED: the service has the message.
    AGAIN: send it again later.
    BUSY: as AGAIN; the service takes nothing at present.
    HOLD: send nothing, since the service does not accept the sender.
    REFUSED: the service never takes this message.
    """

    CONFIRMED = "confirmed"
    AGAIN = "again"
    BUSY = "busy"
    HOLD = "hold"
    REFUSED = "refused"


def verdict(status: int, *, has_key: bool) -> Verdict:
    """What a status means. 409 says that a request with the same key is under way, if there is a key.

    A status below 200 comes before an answer, which we have not waited for.
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
    """The seconds that a header `Retry-After` asks for: a number of seconds, or a date. 0 for anything else."""
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
