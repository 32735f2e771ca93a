"""The life of an engine: its phases, and what each of them allows."""

import threading
from enum import Enum

from correlator.errors import NotDone, UsageError, quoted
from correlator.processes import Maker


class Phase(Enum):
    """The phases in the life of an engine. Parts can be added and removed in the phases STARTED and STOPPING."""

    NEW = "new"
    STARTED = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"


class Life:
    """The life of one engine. The thread that starts and stops the engine changes it; any thread may ask.

    Args:
        name: name of the engine.

    Attributes:
        phase: the present phase.
        began: when the start began, in seconds since the epoch; 0 before.
        recovering: identity of the thread that recovers, from the beginning of the start until the threads run.
        threads_running: whether the threads of the engine were started.
        changing: held by a thread that adds a part or begins to remove one, and by the thread that starts all others.
    """

    def __init__(self, name: str) -> None:
        self.phase = Phase.NEW
        self.began = 0.0
        self.recovering: int | None = None
        self.threads_running = False
        self.changing = threading.Lock()
        self._name = name
        self._maker = Maker()

    def begin(self, now: float) -> None:
        """Note that the calling thread begins to start the engine, at this time of day."""
        self.recovering = threading.get_ident()
        self.began = now

    def enter(self, phase: Phase) -> None:
        """Enter the next phase."""
        self.phase = phase

    def run_threads(self) -> None:
        """Note that the recovery has ended, and that threads run from now on. The caller holds `changing`."""
        self.threads_running = True
        self.recovering = None

    @property
    def shown(self) -> str:
        """The phase as the status shows it."""
        return "starting" if self.phase is Phase.STARTED and not self.threads_running else self.phase.value

    @property
    def is_another_process(self) -> bool:
        """Whether the engine was made by another process, of which this one is a forked child."""
        return self._maker.is_another_process

    def refuse_child(self) -> None:
        """Raise `UsageError` E2050 in a forked child."""
        self._maker.check(f"engine {self._name}")

    def refuse_second(self) -> None:
        """Raise `UsageError` E2051 if the engine was started before."""
        if self.phase is not Phase.NEW:
            what, allowed = "was started before", "An engine has one life"
            raise UsageError("E2051", f"engine {self._name}", what, allowed, "Make another Engine")

    def refuse_change(self, part_id: str) -> None:
        """Raise `UsageError` E8305 unless the calling thread may add or remove this part now.

        During recovery, only the thread that recovers may, in a handler.
        """
        if self.phase not in (Phase.STARTED, Phase.STOPPING):
            todo = "Add and remove parts between start and stop"
            raise UsageError("E8305", f"'{part_id}'", "the engine does not run", "", todo)
        if self.recovering not in (None, threading.get_ident()):
            what = "the engine is starting, in another thread"
            raise UsageError("E8305", f"'{part_id}'", what, "", "Wait until start has returned")

    def refuse_unless_running(self, where: str) -> None:
        """Raise `NotDone` E8309 unless the engine runs: it neither starts nor stops; `UsageError` E2050 in a child."""
        self.refuse_child()
        shown = self.shown  # read once: another thread may change it
        if shown != Phase.STARTED.value:
            raise NotDone("E8309", quoted(where), f"the engine is {shown}", "It must run", "Repeat it later")
