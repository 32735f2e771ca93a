"""When a simulated run has come to rest."""

from correlator.runtime.engine import Engine
from correlator.testing.simulation import inspection
from correlator.testing.simulation.brokers import Brokers
from correlator.testing.store import Disk


class RestCheck:
    """Finds out that nothing is left to do, and that a checkpoint which was asked for after that found nothing either.

    Args:
        disk: of the run.
        brokers: of the run.
        awaits_timers: whether a timer that fires once is something to do.
    """

    def __init__(self, disk: Disk, brokers: Brokers, *, awaits_timers: bool) -> None:
        self._disk = disk
        self._brokers = brokers
        self._awaits_timers = awaits_timers
        self._asked: int | None = None

    def restart(self) -> None:
        """Another engine runs, which knows nothing of a checkpoint that the last one was asked for."""
        self._asked = None

    def reached(self, engine: Engine) -> bool:
        """Whether the run has come to rest; asks for the checkpoint as soon as nothing is left to do."""
        if not inspection.at_rest(engine, self._disk, self._brokers.left(), awaits_timers=self._awaits_timers):
            self._asked = None
        elif engine.checkpointer is None:
            return True
        elif self._asked is None:
            self._asked = engine.checkpointer.ask()
        else:
            return engine.checkpointer.answered(self._asked)
        return False
