"""The four reliability modes, and how receivers and senders work in each of them (docs/guarantees.md)."""

from dataclasses import dataclass
from enum import StrEnum


class Reliability(StrEnum):
    """The reliability mode of a receiver or sender: what it promises after a crash (docs/guarantees.md)."""

    BEST_EFFORT = "BEST_EFFORT"
    """Keeps nothing in the store; a crash may lose messages."""
    AT_LEAST_ONCE = "AT_LEAST_ONCE"
    """Loses nothing; a message may be received or sent again after a crash."""
    EXACTLY_ONCE = "EXACTLY_ONCE"
    """Loses nothing. A receiver drops duplicates. A sender sends a repeat with the same id and the same bytes."""
    APP_CONTROLLED = "APP_CONTROLLED"
    """For receivers only: the application acknowledges, and the broker redelivers messages that it has not
    acknowledged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Receiving:
    """How a receiver works in a reliability mode.

    Attributes:
        stored: it stores messages before it acknowledges them.
        deduplicated: it drops duplicates.
        acknowledged_by_application: the application acknowledges its batches.
    """

    stored: bool
    deduplicated: bool
    acknowledged_by_application: bool

    @property
    def needs_persistence(self) -> bool:
        """Whether the engine must have a store."""
        return self.stored


@dataclass(frozen=True, slots=True, kw_only=True)
class Sending:
    """How a sender works in a reliability mode.

    Attributes:
        stored: a checkpoint stores its messages before it sends them.
        stamps_id: its messages carry a unique id.
    """

    stored: bool
    stamps_id: bool

    @property
    def needs_persistence(self) -> bool:
        """Whether the engine must have a store."""
        return self.stored


RECEIVING = {
    Reliability.BEST_EFFORT: Receiving(stored=False, deduplicated=False, acknowledged_by_application=False),
    Reliability.AT_LEAST_ONCE: Receiving(stored=True, deduplicated=False, acknowledged_by_application=False),
    Reliability.EXACTLY_ONCE: Receiving(stored=True, deduplicated=True, acknowledged_by_application=False),
    Reliability.APP_CONTROLLED: Receiving(stored=False, deduplicated=False, acknowledged_by_application=True),
}

SENDING = {
    Reliability.BEST_EFFORT: Sending(stored=False, stamps_id=True),
    Reliability.AT_LEAST_ONCE: Sending(stored=True, stamps_id=False),
    Reliability.EXACTLY_ONCE: Sending(stored=True, stamps_id=True),
}
