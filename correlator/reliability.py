"""What each reliability mode means, as one table (docs/guarantees.md; rules Z1 and Z9)."""

from dataclasses import dataclass
from enum import StrEnum


class Reliability(StrEnum):
    """The four modes; `APP_CONTROLLED` is for receivers only."""

    BEST_EFFORT = "BEST_EFFORT"
    AT_LEAST_ONCE = "AT_LEAST_ONCE"
    EXACTLY_ONCE = "EXACTLY_ONCE"
    APP_CONTROLLED = "APP_CONTROLLED"


@dataclass(frozen=True, slots=True, kw_only=True)
class Receiving:
    """How a receiver works in a mode."""

    stored: bool
    deduplicated: bool
    acknowledged_by_application: bool

    @property
    def needs_persistence(self) -> bool:
        """Whether the engine must have a store."""
        return self.stored


@dataclass(frozen=True, slots=True, kw_only=True)
class Sending:
    """How a sender works in a mode."""

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
