"""The parameters of a simulated run."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from correlator.connector import Features
from correlator.settings import EngineSettings
from correlator.testing.invariants.history import Setup

LONGEST_LIVES = (14, 14, 60, 60, 60, 200)
"""Numbers of fault points that a life may pass before it is killed; recovery passes the first 14."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """The parameters of a run, without its messages.

    Attributes:
        seed: determines all random choices.
        settings: settings of every engine of the run.
        persistent: whether there is a store.
        brokers: features of the broker of each connection.
        lives: largest number of engines that are killed.
        longest_lives: numbers of fault points that a life may pass before it is killed; one is chosen for each life.
        slice: most events between two looks of a context at other work.
        setup: the parts of the run, for the history.
        ends_lives: whether an engine that was not killed within its steps is dropped at their end.
        overtakes: whether an engine may start while a paused one still owns the store.
        awaits_timers: whether a world with a timer that fires once does not count as at rest.
        refused_for_ever: the broker refuses bodies that contain one of these at each try.
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
        """Return the name of a destination in the history."""
        return destination if len(self.brokers) == 1 else f"{connection}:{destination}"
