"""The source of messages that have none: those of a producer of a session, whose repeats nobody can know."""

import uuid
from itertools import count

import msgspec

from correlator.events import Outgoing


class OwnSource:
    """Belongs to one sink, and numbers its messages without a source.

    Attributes:
        name: the source; no other sink ever has it.
    """

    def __init__(self) -> None:
        self.name = uuid.uuid4().hex
        self._numbers = count(1)

    def numbered(self, out: Outgoing) -> Outgoing:
        """The message with a source and a number."""
        if out.source:
            return out
        return msgspec.structs.replace(out, source=self.name, sequence=next(self._numbers))
