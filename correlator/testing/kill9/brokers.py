"""The brokers of a run in real time. They live in the test's process."""

import time
from collections.abc import Sequence
from typing import Any

from correlator.testing.invariants.history import History, Kind
from correlator.testing.schedule import Schedule
from correlator.testing.simulation.brokers import Brokers, Known
from correlator.testing.simulation.scenario import Scenario

LONGEST_DOWN_MS = 40


class ServedBrokers(Brokers):
    """Brokers that children reach over their sockets. Used by the oracle's thread.

    Args:
        scenario: the scenario of the run.
        schedule: decides which faults strike.
        history: receives a record of everything that happens at the brokers.
        known: see `Brokers`.

    Attributes:
        life: number of the life that acts at present.
        forgetful: whether an acknowledgement was lost without an error, so that only a new connection brings its
            messages again.
        stirred: whether there may be something to receive that was not there at the last look.
    """

    def __init__(self, scenario: Scenario, schedule: Schedule, history: History, known: Known | None) -> None:
        self.life = 0
        self.stirred = False
        self.forgetful = False
        self._schedule = schedule
        self._down_until: float | None = None
        super().__init__(
            scenario,
            schedule,
            history,
            strikes=self._strikes,
            acting=lambda: self.life,
            clock=time.monotonic,
            known=known,
        )

    def meddle(self) -> None:
        """Let a broker go down or come back, or cut the lines, if the schedule says so."""
        if self._down_until is not None:
            if time.monotonic() >= self._down_until:
                self.set_down(down=False)
        elif self._strikes("broker.down"):
            self.set_down(down=True)
        if self._strikes("broker.cut"):
            self.cut()

    def heal(self) -> None:
        """End all faults, and close all connections."""
        self._schedule.on = False
        self.set_down(down=False)
        self.cut()

    def cut(self) -> None:
        """Cut every line, as a network may do."""
        super().cut()
        self.forgetful = False
        self.stirred = True

    def set_down(self, *, down: bool) -> None:
        """Let all brokers go down for a while, or come back."""
        milliseconds = self._schedule.detail("broker.down", LONGEST_DOWN_MS)
        self._down_until = time.monotonic() + milliseconds / 1000 if down else None
        super().set_down(down=down)
        self.stirred = True

    def _strikes(self, kind: str) -> bool:
        struck = self._schedule.strikes(kind)
        if struck:
            self._history.add(self.life, "fault", kind)
            self.forgetful = self.forgetful or kind == "ack.silent"
        return struck

    def _happened(self, connection: str, kind: Kind, endpoint: str, destination: str, messages: Sequence[Any]) -> None:
        super()._happened(connection, kind, endpoint, destination, messages)
        came_round = kind == "accepted" and self._is_read(connection, destination)
        self.stirred = self.stirred or came_round or kind in ("published", "returned")
