"""Makes the stored form of an outgoing message, or reports why the broker refuses the message."""

import time
import uuid
from functools import lru_cache
from itertools import count

from connectors.embedded.content import encode
from connectors.embedded.destinations import HOW_TO_CREATE, is_reserved, is_temporary
from connectors.embedded.limits import Refusal
from connectors.embedded.sending import of_one_life
from connectors.embedded.storing import NewMessage
from correlator import tracing
from correlator.errors import SendRejected, quoted
from correlator.events import LONGEST_LIFE_MS, Headers, Outgoing
from correlator.options import is_name, parse_destination

_HIGHEST_PRIORITY, _DEFAULT_PRIORITY = 9, 4


@lru_cache(maxsize=256)
def is_destination(text: str) -> bool:
    """Return whether a message may have this text as its destination."""
    return parse_destination(text) is not None


_is_source = lru_cache(maxsize=256)(is_name)
_NO_HEADERS = Headers()


class Composer:
    """Composes the messages of one sink. Message ids contain a random part, so no other sink makes the same ids.

    Args:
        where: name of the sender in messages.
        lasting: whether the sender uses the same source after a restart.
        passing: whether a message that is marked as not persistent ends with the broker.
    """

    def __init__(self, where: str, *, lasting: bool, passing: bool) -> None:
        self._where = where
        self._lasting = lasting
        self._passing = passing
        self._life = uuid.uuid4().hex
        self._numbers = count(1)

    def compose(self, out: Outgoing, since_s: float | None = None) -> NewMessage:
        """Return the message in its stored form; its times begin at `since_s` (monotonic clock), or now. Raises
        `SendRejected`.
        """
        if not is_destination(out.destination):
            what = f"{quoted(out.destination)} is not a destination"
            raise self.refused(out, "E8104", what, "Use queue:NAME or topic:NAME")
        if is_reserved(out.destination):
            raise self.refused(out, "E8109", f"{out.destination} belongs to the broker", "Programs do not send to it")
        if out.source and not _is_source(out.source):
            raise self.refused(out, "E8105", f"{quoted(out.source)} cannot be stored as a source")
        if out.message_id and not is_name(out.message_id):
            raise self.refused(out, "E8110", f"{quoted(out.message_id)} cannot be stored as a message id")
        try:
            content = encode(out.message)
        except ValueError as error:
            raise self.refused(out, "E8110", f"the message cannot be stored: {error}") from error
        headers = out.message.headers or _NO_HEADERS
        lives_ms = self._time(out, "time_to_live_ms", headers.time_to_live_ms)
        delay_ms = self._time(out, "delivery_delay_ms", headers.delivery_delay_ms)
        if lives_ms and delay_ms >= lives_ms:
            what = f"the message would expire after {lives_ms} ms, before its delivery after {delay_ms} ms"
            raise self.refused(out, "E8110", what)
        priority = _DEFAULT_PRIORITY if headers.priority is None else headers.priority
        return NewMessage(
            source=out.source if self._lasting or not out.source else of_one_life(out.source),
            sequence=out.sequence,
            message_id=out.message_id or f"ID:{self._life}-{next(self._numbers)}",
            content=content,
            # Other brokers have more than ten priorities.
            rank=_HIGHEST_PRIORITY - min(max(priority, 0), _HIGHEST_PRIORITY),
            lives_ms=lives_ms,
            delay_ms=delay_ms,
            since_s=time.monotonic() if since_s is None else since_s,
            persistent=0 if self._passing and headers.persistent is False else 1,
            traced=tracing.traces(out.message),
            insists=out.insists,
        )

    def refused(self, out: Outgoing, code: str, what: str, allowed: str = "") -> SendRejected:
        """Make the error of a message that the broker refuses."""
        return SendRejected(code, f"{self._where} message {out.sequence}", what, allowed)

    def limited(self, out: Outgoing, refusal: Refusal) -> SendRejected:
        """Make the error of a message that the limits of its destination do not allow."""
        return self.refused(out, "E8108" if refusal.full else "E8106", refusal.what, refusal.allowed)

    def gone(self, out: Outgoing) -> SendRejected:
        """Make the error of a message to a destination that does not exist."""
        if is_temporary(out.destination):
            return self.refused(out, "E8101", f"the temporary destination {out.destination} has ended")
        return self.refused(out, "E8101", f"there is no destination {out.destination}", HOW_TO_CREATE)

    def _time(self, out: Outgoing, name: str, value: int | None) -> int:
        if value is not None and value < 0:
            raise self.refused(out, "E8110", f"{name} is {value}", f"0 to {LONGEST_LIFE_MS}")
        return min(value or 0, LONGEST_LIFE_MS)
