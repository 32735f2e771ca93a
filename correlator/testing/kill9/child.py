"""The life of a child: one engine over a real store, from its start to its end or to the point where it is killed.

It runs in a process that was forked for it and dies with it. Engine time stands still until recovery has ended, so that
the life begins with exactly what the store contains.
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
from correlator.pipeline.processors import processors_of
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
"""Seconds between two looks at an engine that is not quiet although nothing wakes the thread that looks."""
BY_APPLICATION = (HandlerFailed, MappingError)
UNREACHABLE = ("E3105", "E3301")
"""Codes of the errors with which a start fails if it loses the connection to the store. A running engine connects
again.
"""


class StandingClock:
    """The clock of the machine, which stands still until `go` is called."""

    def __init__(self) -> None:
        self._stands: float | None = time.monotonic()
        self._behind = 0.0

    def monotonic(self) -> float:
        """Return monotonic seconds: always the same number until `go` is called, and from then on without a jump."""
        return time.monotonic() - self._behind if self._stands is None else self._stands

    def wall(self) -> float:
        """Return the time of day in seconds since the epoch; it does not stand still."""
        return time.time()

    def go(self) -> None:
        """Let the clock run on from where it stood."""
        if self._stands is not None:
            self._behind = time.monotonic() - self._stands
            self._stands = None


class ToldEngine(Engine):
    """An engine that reports to the oracle what recovery restored, and wakes the main thread when a thread has failed.

    Attributes:
        life: the life that this engine runs; set before the start.
    """

    life: "ChildLife"

    def recover(self) -> None:
        """Recover as `Engine.recover`, report to the oracle what was restored, and let engine time run."""
        super().recover()
        self.life.began(self)

    def request_stop(self) -> None:
        """Request a stop as `Engine.request_stop`, and tell the main thread that a thread has failed."""
        super().request_stop()
        self.life.link.commands.put("failed")


class ChildLife:
    """One life of an engine in this process.

    Args:
        job: what the oracle asks for.
        link: the link to the oracle.

    Attributes:
        number: number of the life, counted from 1.
        directory: directory of the run.
        engine: the engine; `None` before it is made.
        running: set when the threads of the engine run.
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
        """Run the life: from the first fault point to the last message to the oracle."""
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
        """Start the engine, obey the commands of the oracle, and stop."""
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
        """Report what recovery restored; no thread of the engine runs yet."""
        for thread in engine.parts.monitor_threads():
            thread.slice = self._job.slice
        if engine.checkpointer is not None and self._store is not None:
            lineage = engine.checkpointer.checkpoint
            data = (self._store.epoch, lineage.number, lineage.digest, engine.status().engine_time)
            self.link.record("began", "", data)
        self._clock.go()

    # --- dying ---

    def _arm(self) -> None:
        """From here on, count the calls that change files of the run, or of its disk."""
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
            if noted != self._noted:  # an idle engine takes the same snapshot again and again
                self._noted = noted
                self.link.record(kind, "", noted[1:])

    # --- rest ---

    def _rest(self, engine: Engine) -> None:
        """Tell the oracle when the engine is quiet; say nothing if it stops before."""
        while engine.failure is None:
            if self._quiet(engine) and engine.checkpoint() and self._quiet(engine) and engine.checkpoint():
                self.link.tell(wire.Quiet())
                return
            engine._supervisor.wait(LOOK_S)  # noqa: SLF001  # what `run_until_ended` waits on

    def _quiet(self, engine: Engine) -> bool:
        """Return whether contexts and senders have nothing to do."""
        contexts = engine.contexts.values()
        if not all(thread.idle and not (self._job.awaits_timers and _primed(thread)) for thread in contexts):
            return False
        return engine.letters_sent and all(sender.idle for sender in engine.senders.values())


def die() -> None:
    """Kill this process, so that it ends as if it alone lost power."""
    os.kill(os.getpid(), signal.SIGKILL)


def _primed(thread: Any) -> bool:
    """Return whether a timer is set that fires once."""
    if not isinstance(thread, MonitorThread):
        return False
    return any(isinstance(timer, Deadline) or timer.period is None for timer in thread.context.monitors.timers.living())
