"""One simulated engine from its start to its death."""

import threading
from collections.abc import Collection

from correlator.runtime.actor import Actor
from correlator.runtime.engine import Engine
from correlator.testing.memory import MemoryConnection


class SimulatedLife:
    """One engine and its actors.

    Args:
        number: number of the life, counted from 1.
        engine: the engine, before its recovery.
        connections: connections of the engine, which are closed when it dies.

    Attributes:
        began: simulated time and engine time at the end of recovery; `None` before.
        steps_left: steps that a paused engine may still do after another one has overtaken it.
    """

    def __init__(self, number: int, engine: Engine, connections: Collection[MemoryConnection]) -> None:
        self.number = number
        self.engine = engine
        self.actors: list[Actor] = []
        self.due: list[float] = []
        self.began: tuple[float, float] | None = None
        self.steps_left = 0
        self._connections = connections
        self._woken: list[threading.Event] = []

    def begin(self, now: float) -> None:
        """Let every actor run; recovery has ended."""
        self.actors = self.engine.actors()
        self.due = [0.0] * len(self.actors)
        self._woken = [actor._woken for actor in self.actors]  # noqa: SLF001  # asked a hundred times for each crash
        self.began = now, self.engine.parts.engine_time.now()

    def engine_time(self, now: float) -> float | None:
        """Return engine time as the simulated clock counts it since recovery; `None` before the end of recovery."""
        return None if self.began is None else self.began[1] + now - self.began[0]

    def runnable(self, now: float) -> list[int]:
        """Return the positions of the actors that have something to do."""
        woken = self._woken
        return [at for at, when in enumerate(self.due) if when <= now or woken[at].is_set()]

    def step(self, at: int, now: float) -> None:
        """Let the actor at this position do one step."""
        actor = self.actors[at]
        actor.take_wake()
        if actor.stopping:  # the engine has removed it
            actor.finish()
            self.due[at] = float("inf")
            return
        delay = actor.step()
        self.due[at] = float("inf") if delay is None else now + delay

    def adopt(self, actor: Actor | None) -> None:
        """Step this actor as well; it was added while the engine runs."""
        if actor is not None:
            self.actors.append(actor)
            self.due.append(0.0)
            self._woken.append(actor._woken)  # noqa: SLF001

    def end(self) -> None:
        """Close the connections of the engine, and drop everything else that it holds."""
        for connection in self._connections:
            connection.close()
