"""The parameters of a simulated run."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from correlator.connector import Features
from correlator.settings import EngineSettings
from correlator.testing.invariants.history import Setup

LONGEST_LIVES = (14, 14, 60, 60, 60, 200)
"""Fault points that a life may pass before it is killed; the first 14 are those of recovery."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """The parameters of a run, without its messages.

    Attributes:
        seed: of everything that is drawn.
        settings: of every engine of the run.
        persistent: whether there is a store.
        brokers: what the broker of each connection can do.
        lives: engines that are killed at most.
        longest_lives: fault points that a life may pass before it is killed, one of these is drawn.
        slice: most events between two looks of a context.
        setup: for the history.
        ends_lives: whether an engine that was not killed within its steps is dropped all the same.
        overtakes: whether an engine may start while another one that was paused still has the store.
        awaits_timers: whether a timer that fires once keeps the world from rest.
        refused_for_ever: bodies that contain one of these are refused by the broker at each try.
    """

    seed: int
    settings: EngineSettings
    persistent: bool
    brokers: Mapping[str, Features]
    lives: int
    longest_lives: Sequence[int]
    slice: int
    setup: Setup
    ends_lives: bool
    overtakes: bool
    awaits_timers: bool
    refused_for_ever: Collection[bytes] = ()

    def label(self, connection: str, destination: str) -> str:
        """The name of a destination in the history."""
        return destination if len(self.brokers) == 1 else f"{connection}:{destination}"
