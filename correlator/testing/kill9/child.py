"""The life of a child: one engine over a real store, from its start to its end or to the point where it is killed.

Runs in a process that was forked for it and dies with it. Engine time stands still until recovery has ended, so that
what a life begins with is exactly what the store says.
"""

import contextlib
import importlib
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from correlator.configuration import read_file
from correlator.configuration.shares import example
from correlator.core import faults
from correlator.core.instances import Deadline
from correlator.errors import CorrelatorError, HandlerFailed, MappingError
from correlator.pipeline.runner import processors_of
from correlator.pipeline.spec import PipelineFile
from correlator.ports import Processor
from correlator.runtime.contexts import MonitorThread
from correlator.runtime.engine import Engine
from correlator.storage.store import SqlStore
from correlator.testing.kill9 import wire
from correlator.testing.kill9.draws import SYSCALL
from correlator.testing.kill9.remote import OracleConnection, RemoteConnection, ToldStore
from correlator.testing.simulation import inspection
from correlator.testing.simulation.probe import innocent_messages, observed
from correlator.testing.syscalls import library

LOOK_S = 0.01
"""Between two looks at an engine that is not quiet although nothing has been told."""
BY_APPLICATION = (HandlerFailed, MappingError)
UNREACHABLE = ("E3105", "E3301")
"""How a start fails whose connection to the store is lost; a running engine connects again."""


class StandingClock:
    """The machine's clock, which stands until it is let go."""

    def __init__(self) -> None:
        self._stands: float | None = time.monotonic()
        self._behind = 0.0

    def monotonic(self) -> float:
        """Monotonic seconds: always the same number until `go` is called, and from then on without a jump."""
        return time.monotonic() - self._behind if self._stands is None else self._stands

    def wall(self) -> float:
        """The time of day in seconds since the epoch; it does not stand still."""
        return time.time()

    def go(self) -> None:
        """Go on from where it stood."""
        if self._stands is not None:
            self._behind = time.monotonic() - self._stands
            self._stands = None


class ToldEngine(Engine):
    """An engine that tells what it began with, and when it wants to stop.

    Attributes:
        life: set before the start.
    """

    life: "ChildLife"

    def recover(self) -> None:
        """Recover as `Engine.recover`, then tell the oracle with what this life begins, and let engine time run."""
        super().recover()
        self.life.began(self)

    def request_stop(self) -> None:
        """As every engine; called when a thread has failed."""
        super().request_stop()
        self.life.link.commands.put("failed")


class ChildLife:
    """One life.

    Args:
        job: what is asked for.
        link: to the oracle.

    Attributes:
        number: counted from 1.
        directory: of the run.
        engine: once it is made.
        running: set when its threads run.
    """

    def __init__(self, job: wire.Job, link: OracleConnection) -> None:
        self.number = job.life
        self.directory = Path(job.directory)
        self.link = link
        self._job = job
        self._kill = job.kill or wire.Kill()
        self._clock = StandingClock()
        self._passing = threading.Lock()
        self._passed: Counter[str] = Counter()
        self.engine: Engine | None = None
        self.running = threading.Event()
        self._store: ToldStore | None = None
        self._noted: tuple[str, int, Any] | None = None

    def run(self) -> None:
        """From the first fault point to the last word."""
        faults.install(self._at_point)
        self._arm()
        for path in self._job.prepare:
            module, _, name = path.partition(":")
            getattr(importlib.import_module(module), name)(self)
        with contextlib.ExitStack() as stack:
            if not self._job.told:
                stack.enter_context(observed(self.link.record))
                stack.enter_context(innocent_messages())
            try:
                self._live()
            except CorrelatorError as error:
                unreachable = error.code in UNREACHABLE and not self.running.is_set()
                self.link.tell(wire.Failed(str(error), isinstance(error, BY_APPLICATION), unreachable))

    def _live(self) -> None:
        """Start, do what the oracle wants, stop."""
        engine = self.engine = self._make_engine()
        engine.life = self
        engine.start()
        self.running.set()
        while True:
            command = self.link.commands.get()
            if command == "rest":
                self._rest(engine)
                continue
            engine.stop(drain=command == "stop")
            engine.raise_failure()
            calls = {SYSCALL: library.calls()} if library.preloaded() else {}
            self.link.tell(wire.Ended({**self._passed, **calls}, inspection.known_ids(engine)))
            return

    def _make_engine(self) -> ToldEngine:
        job = self._job
        pipelines = Path(job.pipelines)
        processors: Sequence[Processor] = ()
        if job.pipelines:
            loaded = read_file(pipelines, PipelineFile)
            directories = [str(pipelines.absolute().parent)]
            processors = processors_of(example(loaded.settings), directories, loaded.places)
        if job.settings.store is not None:
            store = SqlStore(job.settings.store, job.settings.name, witness_directory=self.directory)
            self._store = ToldStore(store, self.link)
        return ToldEngine(
            job.settings,
            connections={name: RemoteConnection(self.link, name, one) for name, one in job.brokers.items()},
            processors=processors,
            clock=self._clock,
            store=self._store,
            identity=f"life{job.life}",
        )

    def began(self, engine: Engine) -> None:
        """Recovery has ended, no thread runs yet."""
        for thread in engine.parts.monitor_threads():
            thread.slice = self._job.slice
        if engine.checkpointer is not None and self._store is not None:
            lineage = engine.checkpointer.checkpoint
            data = (self._store.epoch, lineage.number, lineage.digest, engine.status().engine_time)
            self.link.record("began", "", data)
        self._clock.go()

    # --- dying ---

    def _arm(self) -> None:
        """Calls that change files of the run, or of its disk, count from here on."""
        if library.preloaded():
            at, trace = self._kill.syscall, self._job.trace
            fault = library.CallFault(action=library.Action.KILL, at=at) if at else None
            watched = Path(self._job.disk) if self._job.disk else self.directory
            library.arm(watched, trace=Path(trace) if trace else None, fault=fault)

    def _at_point(self, name: str) -> None:
        if name == "ck.snapshot":
            self._note_contexts("snapshot", 1)
        elif name == "rec.on_begin":
            self._note_contexts("restored", 0)
        kill = self._kill
        with self._passing:
            self._passed[name] += 1
            hit = self._passed[name]
            counted = hit if kill.point else self._passed.total()
        if kill.hit == counted and kill.point in ("", name):
            self.link.tell(wire.Dying(name, hit, dict(self._passed)))
            die()

    def _note_contexts(self, kind: str, ahead: int) -> None:
        engine = self.engine
        if engine is not None and engine.checkpointer is not None:
            noted = kind, engine.checkpointer.checkpoint.number + ahead, inspection.fingerprint(engine, engine.settings)
            if noted != self._noted:  # an engine with nothing to do looks at itself again and again
                self._noted = noted
                self.link.record(kind, "", noted[1:])

    # --- rest ---

    def _rest(self, engine: Engine) -> None:
        """Say when the engine is quiet; nothing when it stops before."""
        while engine.failure is None:
            if self._quiet(engine) and engine.checkpoint() and self._quiet(engine) and engine.checkpoint():
                self.link.tell(wire.Quiet())
                return
            engine._supervisor.wait(LOOK_S)  # noqa: SLF001  # what `run_until_ended` waits on

    def _quiet(self, engine: Engine) -> bool:
        """Whether contexts and senders have nothing to do."""
        contexts = engine.contexts.values()
        if not all(thread.idle and not (self._job.awaits_timers and _primed(thread)) for thread in contexts):
            return False
        return all(sender.idle for sender in engine.senders.values())


def die() -> None:
    """End this process as a power cut for it alone would."""
    os.kill(os.getpid(), signal.SIGKILL)


def _primed(thread: Any) -> bool:
    """Whether a timer is set that fires once."""
    if not isinstance(thread, MonitorThread):
        return False
    return any(isinstance(timer, Deadline) or timer.period is None for timer in thread.context.monitors.timers.living())
