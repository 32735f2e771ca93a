"""Counters of one life of the engine, and the states of its parts: read by any thread, written by the owner of each."""

from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class ReceiverCounters:
    """What a receiver did (FEATURES A9.3): `received` counts what the broker gave, duplicates included.

    `max_delivery_s` is the longest time from sending to redelivery, where the broker tells both (A8.19).
    """

    received: int = 0
    duplicates: int = 0
    without_id: int = 0
    conflicts: int = 0
    dead_letters: int = 0
    delivered: int = 0
    batches: int = 0
    connection_errors: int = 0
    max_delivery_s: float = 0.0


@dataclass(slots=True)
class SenderCounters:
    """What a sender did: `sent` counts confirmed messages, `dead_letters` those given up."""

    sent: int = 0
    retries: int = 0
    dead_letters: int = 0
    batches: int = 0
    connection_errors: int = 0


@dataclass(slots=True)
class CheckpointCounters:
    """How checkpoints went: durations in seconds."""

    taken: int = 0
    cut_retries: int = 0
    last_duration_s: float = 0.0
    total_duration_s: float = 0.0
    interval_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """A look at a running engine.

    Attributes:
        receivers: by id: (state, counters).
        senders: by id: (state, counters, outstanding).
        contexts: by name: events waiting.
        handler_failures: events that handlers failed on and that were skipped or kept as dead letters.
        pipeline_dead_letters: rows that pipelines could not process.
        checkpoints: how checkpoints went.
        store_commits: transactions of this life.
        engine_time: seconds.
    """

    receivers: dict[str, tuple[str, ReceiverCounters]]
    senders: dict[str, tuple[str, SenderCounters, int]]
    contexts: dict[str, int]
    handler_failures: int
    pipeline_dead_letters: int
    checkpoints: CheckpointCounters
    store_commits: int
    engine_time: float

    def totals(self) -> dict[str, Any]:
        """The figures of the table that a run ends with."""
        receivers = [counters for _, counters in self.receivers.values()]
        senders = [counters for _, counters, _ in self.senders.values()]
        return {
            "received": sum(counters.received for counters in receivers),
            "duplicates dropped": sum(counters.duplicates for counters in receivers),
            "dead letters": self.handler_failures
            + self.pipeline_dead_letters
            + sum(counters.dead_letters for counters in receivers)
            + sum(counters.dead_letters for counters in senders),
            "sent": sum(counters.sent for counters in senders),
            "checkpoints": self.checkpoints.taken,
        }
