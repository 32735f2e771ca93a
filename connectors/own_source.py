"""A source for messages that have none: those of a producer of a session, whose repeats nobody can recognise."""

import uuid
from itertools import count

import msgspec

from correlator.events import Outgoing


class OwnSource:
    """Gives the messages of one sink a source and numbers, if they have no source.

    Attributes:
        name: the source; no other sink ever has it.
    """

    def __init__(self) -> None:
        self.name = uuid.uuid4().hex
        self._numbers = count(1)

    def numbered(self, out: Outgoing) -> Outgoing:
        """Return the message with a source and a number."""
        if out.source:
            return out
        return msgspec.structs.replace(out, source=self.name, sequence=next(self._numbers))
