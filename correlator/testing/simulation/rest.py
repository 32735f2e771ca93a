"""Decides when a simulated run has come to rest."""

from correlator.runtime.engine import Engine
from correlator.testing.simulation import inspection
from correlator.testing.simulation.brokers import Brokers
from correlator.testing.store import Disk


class RestCheck:
    """Checks that nothing is left to do, and that a checkpoint requested after that finds nothing to do either.

    Args:
        disk: the disk of the run.
        brokers: the brokers of the run.
        awaits_timers: whether a timer that fires once counts as something to do.
    """

    def __init__(self, disk: Disk, brokers: Brokers, *, awaits_timers: bool) -> None:
        self._disk = disk
        self._brokers = brokers
        self._awaits_timers = awaits_timers
        self._asked: int | None = None

    def restart(self) -> None:
        """Begin anew for another engine, which knows nothing of the checkpoint that was requested."""
        self._asked = None

    def reached(self, engine: Engine) -> bool:
        """Return whether the run has come to rest; request the checkpoint as soon as nothing is left to do."""
        if not inspection.at_rest(engine, self._disk, self._brokers.left, awaits_timers=self._awaits_timers):
            self._asked = None
        elif engine.checkpointer is None:
            return True
        elif self._asked is None:
            self._asked = engine.checkpointer.ask()
        else:
            return engine.checkpointer.answered(self._asked)
        return False
