"""The engine: one life of a process over one store.

The engine makes its parts from settings, recovers, starts the threads, runs, and stops in order. `recover` and
`Restart` define the order of recovery. `stop` defines the order of stopping.
"""

import asyncio
import functools
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from correlator.configuration import IN_CODE, EngineFile, Origin, Provided, check_engine_settings, read_file, require
from correlator.connector import Connection
from correlator.core.bridge import bridges_of
from correlator.core.checkpoint import Checkpoint, Cut
from correlator.core.commit import Endpoint, Recovered, Suspect
from correlator.core.delivery import layout_of
from correlator.core.faults import point
from correlator.core.instances import OnError
from correlator.core.intake import ReceiverState
from correlator.errors import ConfigError, CorrelatorError, NotDone, UsageError
from correlator.events import PartStatus
from correlator.ports import Processor, Store
from correlator.processes import new_identity
from correlator.runtime import phases
from correlator.runtime.actor import Actor
from correlator.runtime.checkpointer import Checkpointer
from correlator.runtime.clock import Clock, EngineTime, SystemClock
from correlator.runtime.commits import COMMIT_PATIENCE_S, Commits
from correlator.runtime.control.address import sockets_of
from correlator.runtime.control.orders import RequestHandler
from correlator.runtime.control.server import ControlServer
from correlator.runtime.effective import in_use
from correlator.runtime.engine_status import EngineStatus
from correlator.runtime.forwarding import Forwarder
from correlator.runtime.http.shown import Shown
from correlator.runtime.letters import Letters, read_letters
from correlator.runtime.life import Life, Phase
from correlator.runtime.logs import get_logger
from correlator.runtime.observers import Observers
from correlator.runtime.part_changes import PartChanges
from correlator.runtime.parts import Callbacks, ContextThread, Parts
from correlator.runtime.paths import paths_through
from correlator.runtime.pausing import Pausing
from correlator.runtime.publishing import Publisher
from correlator.runtime.receiver import Receiver
from correlator.runtime.recording import Recording
from correlator.runtime.registry import Registry
from correlator.runtime.remover import Remover
from correlator.runtime.reporter import Reporter
from correlator.runtime.requests import RegistryRequest, SuspectRequest
from correlator.runtime.restart import NOTHING, Restart
from correlator.runtime.sender import Sender
from correlator.runtime.services import Services
from correlator.runtime.signals import stop_signals
from correlator.runtime.status import CheckpointCounters, Status, TakenCheckpoint
from correlator.runtime.supervisor import Supervisor
from correlator.runtime.timeline import Timeline
from correlator.runtime.watchdog import Watchdog, Watched
from correlator.runtime.writer import Writer
from correlator.settings import EngineSettings, ReceiverSettings, SenderSettings
from correlator.storage.store import SqlStore

LOOK_FOR_SIGNALS_S = 0.2
"""Seconds between two looks whether a signal has come."""
TELL_WAIT_AFTER_S = 1.0
"""Seconds after which a step of a stop that still waits logs what it waits for."""
_MOST_TOLD = 10


class Engine:
    """One engine: it receives, calls the handlers of monitors, takes checkpoints, and sends.

    `Engine(settings)` checks the settings and opens nothing. `start` opens the store, connects and starts the threads.
    As a context manager the engine starts on entry and stops on exit; after an exception in the block it does not
    drain. An engine has one life: to start again, make another engine.

    One thread calls `start`, `run_forever`, `run_until_ended` and `stop`. Any thread may call the other methods while
    the engine runs. A handler must not call `stop`, `checkpoint` or `run_…`: they wait for the handler to return.

    In a forked child `stop` and `request_stop` do nothing, and every other method raises `UsageError` E2050.

    Attributes:
        timeline: the last changes of state, for those who follow them.

    Args:
        settings: receivers, senders, monitors and limits of the engine; for a file, call `Engine.from_yaml`.
        connections: connections by name, which replace the configured ones (for tests and embedding programs).
        processors: the pipelines. The engine makes the bridges of its settings itself.
        clock: monotonic time in seconds; by default the clock of the system.
        store: replaces `settings.store`.
        blocking: whether sources may block; `False` for a simulation, which calls the steps itself.
        identity: unique part of the source ids that senders get in this life; by default host, process id and a
            random number.
        jitter: draws a number from 0 to 1 for the time between two attempts to connect; a simulation passes a
            repeatable function.
        warnings: warnings about the settings, which the start logs; by default the warnings that the check of the
            settings finds. A caller that has printed them already passes an empty sequence.
        origin: the file of the settings, for those who ask for the source of each.

    Raises:
        ConfigError: the settings cannot work; `problems` has every problem (E1022 for an object that is no
            `EngineSettings`, E2040 for an input log beside pipelines or bridges). Correct the settings.
        UsageError: E2052, the settings have shares; use `Member`.
    """

    def __init__(
        self,
        settings: EngineSettings,
        *,
        connections: Mapping[str, Connection] | None = None,
        processors: Sequence[Processor] = (),
        clock: Clock | None = None,
        store: Store | None = None,
        blocking: bool = True,
        identity: str | None = None,
        jitter: Callable[[], float] = secrets.SystemRandom().random,  # noqa: B008  # no state
        warnings: Sequence[ConfigError] | None = None,
        origin: Origin = IN_CODE,
    ) -> None:
        require(settings, EngineSettings, "Engine", "For a file: Engine.from_yaml(path)")
        if settings.shares is not None:
            todo = "Use Member, which runs an engine for each of its shares"
            raise UsageError("E2052", f"engine {settings.name}", "has shares", "An Engine is one share", todo)
        provided = Provided(connections=dict(connections or {}), store=store is not None)
        found = check_engine_settings(settings, provided)
        identity = identity or new_identity()
        self.settings = settings
        self.processors = (*processors, *bridges_of(settings))
        self._refuse_unrecorded()
        self._clock = clock or SystemClock()
        self.timeline = Timeline(self._clock.wall)
        self.reporter: Reporter | None = None
        self._warnings = found if warnings is None else warnings
        self._log = get_logger(engine=settings.name)
        self._store = _store_of(settings) if store is None else store
        self._life = Life(settings.name)
        self._supervisor = Supervisor(settings.name)
        self._status = EngineStatus(settings.name, self._life, self._supervisor, self._clock)
        self._commits = Commits(self._life, self._supervisor, self._clock, lambda: self.writer)
        self._registry = Registry(settings, provided, identity, lambda one: self._commits.commit(RegistryRequest(one)))
        self._changes = PartChanges(
            settings, provided, self._registry, self._life, lambda: self._parts, lambda: self.remover, self._run
        )
        self._publisher = Publisher(self._life, lambda: self.receivers, self._runs_here)
        self._make_parts = functools.partial(
            Parts,
            settings,
            provided.connections,
            clock=self._clock,
            blocking=blocking,
            jitter=jitter,
            callbacks=Callbacks(
                default_senders=self._registry.default_senders,
                default_outbox=self._changes.default_outbox,
                want_checkpoint=self._want_checkpoint,
                rested=self._context_rested,
                ended=self._source_ended,
                processed=self._supervisor.notify,
                told=self.timeline.add,
            ),
        )
        self._parts = self._make_parts(engine_time=EngineTime(self._clock), writer=None)
        self._services: Services | None = None
        watchdog = Watchdog(self._watched, settings.handler_warning_after, self._clock)
        used = functools.partial(in_use, settings, origin)
        orders = RequestHandler(self, used)
        file = Path(origin.places.file).resolve() if origin.places.file else None
        control = ControlServer(functools.partial(sockets_of, settings, file), orders.answer)
        self._stored = settings.store if store is None else None
        shown = Shown(
            self.status,
            self.timeline,
            self._paths_through,
            self._taken_checkpoints,
            orders.answer,
            used,
            self._stored,
        )
        self._observers = Observers(watchdog, settings, self._clock, shown, control)

    @classmethod
    def from_yaml(cls, path: str | Path, **overrides: Any) -> Self:
        """Make an engine from a configuration file. Opens nothing but the file.

        Args:
            path: the file. Paths in it are relative to the working directory.
            overrides: keyword arguments of `Engine`, such as `connections`; not `settings`, `warnings` and `origin`.

        Raises:
            ConfigError: the file cannot be used; `problems` has every problem, with its line.
        """
        loaded = read_file(Path(path), EngineFile)
        return cls(loaded.settings, warnings=loaded.warnings, origin=loaded.origin, **overrides)

    # --- parts ---

    @property
    def contexts(self) -> dict[str, ContextThread]:
        """The threads of contexts and pipelines by name. Only these threads may use the state of their contexts."""
        return self._parts.contexts

    @property
    def receivers(self) -> dict[str, Receiver]:
        """The receivers by id, static and dynamic. For their figures call `status`."""
        return self._parts.receivers

    @property
    def senders(self) -> dict[str, Sender]:
        """The senders by id, static and dynamic. For their figures call `status`."""
        return self._parts.senders

    @property
    def parts(self) -> Parts:
        """The contexts, receivers and senders of this engine, with the objects that they share."""
        return self._parts

    @property
    def registry(self) -> Mapping[str, Endpoint]:
        """The entry of the registry for each receiver and sender, by id."""
        return self._registry.endpoints

    @property
    def writer(self) -> Writer | None:
        """The store writer, which commits; `None` before a start and without a store."""
        return self._parts.writer

    @property
    def checkpointer(self) -> Checkpointer | None:
        """Takes the checkpoints; `None` before a start and without a store."""
        return None if self._services is None else self._services.checkpointer

    @property
    def remover(self) -> Remover | None:
        """Removes dynamic parts; `None` before a start."""
        return None if self._services is None else self._services.remover

    @property
    def forwarder(self) -> Forwarder | None:
        """Sends dead letters; `None` before a start, and without the setting `dead_letter_sender`."""
        return None if self._services is None else self._services.forwarder

    @property
    def letters_sent(self) -> bool:
        """Whether no dead letter of the store waits for the outbox of `dead_letter_sender`."""
        return self.forwarder is None or self.forwarder.idle

    @property
    def failure(self) -> BaseException | None:
        """The first error that ended a thread, and so stops the engine; `None` while there is none."""
        return self._supervisor.failure

    @property
    def http_address(self) -> tuple[str, int] | None:
        """Host and port at which the HTTP server listens, or has listened until the engine stopped; `None` before a
        start, and without the setting `http`.
        """
        return None if self._observers.server is None else self._observers.server.address

    @property
    def handler_failures(self) -> int:
        """Number of events on which a handler raised, and which were skipped or became dead letters (`on_error`)."""
        return self._supervisor.handler_failures

    # --- messages of the program ---

    def publish(
        self,
        event: Any,
        *,
        to: str,
        unique_id: str | None = None,
        key: str | None = None,
        properties: Mapping[str, Any] | None = None,
        timeout_s: float | None = None,
    ) -> None:
        """Give an event to a receiver of a connection of type `program`, and wait until it is received for good.

        When this method has returned, a receiver with AT_LEAST_ONCE or EXACTLY_ONCE has committed the message to the
        store: no crash loses it. After an error publish the event again with the same unique id; a receiver with
        EXACTLY_ONCE then drops a repeat. Any thread that is not the engine's own may call it (docs/publishing.md).

        Args:
            event: the event, a `Message` (without its `destination`) or bytes; an event becomes JSON.
            to: id of the receiver.
            unique_id: unique id of the message, for duplicate detection.
            key: key of the message.
            properties: properties of the message.
            timeout_s: how many seconds to wait; without it there is no limit.

        Raises:
            NotDone: E8309, the engine does not run; E8315, it has stopped meanwhile, or the receiver was
                removed; E8316, the time has passed.
            UsageError: E8317 for a receiver that is not there or receives from a broker, and in a handler; E8318 for a
                unique id that the receiver cannot use.
            MappingError: E5201, E5202 for what cannot become a message.
        """
        self._publisher.publish(to, event, unique_id, key, properties, timeout_s)

    async def published(
        self,
        event: Any,
        *,
        to: str,
        unique_id: str | None = None,
        key: str | None = None,
        properties: Mapping[str, Any] | None = None,
    ) -> None:
        """Do the same as `publish` in a coroutine, without blocking its event loop. A cancellation withdraws nothing.

        Many that wait at once are committed together. Limit the time with `asyncio.timeout`.
        """
        await self._publisher.published(to, event, unique_id, key, properties)

    def _runs_here(self) -> bool:
        return any(actor.is_running_here() for actor in self.actors())

    # --- life cycle ---

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self.start)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.stop, drain=error is None)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop(drain=error is None)

    def start(self) -> None:
        """Recover, then start the threads. Call it once.

        It reads the store, restores monitors and queues, handles restored events in the calling thread, and takes a
        checkpoint of what they send. It does not wait for brokers: receivers and senders connect in their own threads.
        After an error nothing is left open.

        Raises:
            RecoveryRefused: the store does not fit the configuration (E43xx). The store is as it was: correct the
                configuration, or follow the message.
            StateError: stored state does not fit the classes (E42xx). The store is as it was.
            StoreError: the store cannot be used (E3xxx); `Fenced` if another engine owns it.
            ConfigError: a monitor class, a connection or a pipeline cannot be used (E1xxx).
            HandlerFailed: a handler has failed during recovery (E5500).
            UsageError: E2051, the engine was started before.
        """
        self._life.refuse_child()
        self._life.refuse_second()
        self._life.begin(self._clock.wall())
        self._observers.start()
        self.timeline.add("phase", phase="starting")
        try:
            self.recover()
        except BaseException as error:
            self._life.enter(Phase.STOPPED)
            self._observers.stop()
            self._close_all(in_order=False)
            if isinstance(error, SystemExit):
                raise self._supervisor.ended_by("recovery", error) from error
            raise
        try:
            self._start_threads()
        except BaseException:
            self.stop(drain=False)
            raise

    def recover(self) -> None:
        """Do every step of a start, from reading the store to opening the receivers, without starting a thread.

        For simulations, which then call `step` of each of `actors`. All other programs call `start`.
        """
        self._life.refuse_second()
        self._life.enter(Phase.STARTED)
        for warning in self._warnings:
            self._log.warning(str(warning))
        restart = self._open_store()
        self._registry.record_changes()
        self._services = self._make_services(self._make_checkpointer(restart))
        restart.run_hooks()
        self._keep_what_waits()
        self._open_parts()

    def _start_threads(self) -> None:
        with self._life.changing:  # a part that another thread adds is among these actors, or starts after all of them
            self._life.run_threads()
            if self._observers.spans is not None:
                self._observers.spans.recovering = False
            for actor in self.actors():
                actor.start(self._failed)
        self.timeline.add("phase", phase="running")

    def actors(self) -> list[Actor]:
        """The actors of the running engine, in the order in which their threads start."""
        actors: list[Actor] = []
        if self.writer is not None:
            actors.append(self.writer)
        actors.extend(self.senders.values())
        actors.extend(self.contexts.values())
        if self.checkpointer is not None:
            actors.append(self.checkpointer)
        if self.remover is not None:
            actors.append(self.remover)
        if self.forwarder is not None:
            actors.append(self.forwarder)
        if self.reporter is not None:
            actors.append(self.reporter)
        actors.extend(self.receivers.values())
        return actors

    def run_forever(self) -> None:
        """Wait until SIGTERM or SIGINT comes, `request_stop` is called, or the engine fails.

        It does not stop the engine: the end of the `with` block does, or `stop`. In the main thread it takes over
        SIGTERM and SIGINT; a second signal ends the process at once. In any other thread it leaves signals alone.

        Raises the failure of the engine, as `raise_failure`.
        """
        self._life.refuse_child()
        with stop_signals() as signalled:
            while not self._supervisor.stop_asked.is_set() and not signalled():
                self._supervisor.stop_asked.wait(LOOK_FOR_SIGNALS_S)
        self.raise_failure()

    def run_until_ended(self, tick: Callable[[Status], None] = lambda _: None, every_s: float = 0.2) -> None:
        """Wait until every source has ended, and all messages are handled, sent, confirmed and in a checkpoint.

        A source ends only if its connector says so, as for a file that is not followed. A signal or `request_stop` ends
        the wait earlier. As with `run_forever`, the engine still runs after the return, and signals are taken over.

        Args:
            tick: called in this thread with the present status, after each progress of a part, and after `every_s`
                seconds without progress.
            every_s: seconds between two calls of `tick` while there is no progress.

        Raises the failure of the engine, as `raise_failure`.
        """
        self._life.refuse_child()
        with stop_signals() as signalled:
            while not self._supervisor.stop_asked.is_set() and not signalled() and not self._all_done():
                self._supervisor.wait(every_s)
                tick(self.status())
        self.raise_failure()

    def request_stop(self) -> None:
        """Let `run_forever` and `run_until_ended` return. Returns at once; any thread and any handler may call it."""
        if self._life.is_another_process:
            return  # at the fork a thread of the parent may have held the supervisor's lock: it is never free here
        self._supervisor.request_stop()

    def raise_failure(self) -> None:
        """Raise the error that has stopped the engine; return if there is none.

        If a handler has called `sys.exit`, it raises `HandlerFailed` E5500, so that the program does not end as if all
        were well. The next start recovers from the last checkpoint.
        """
        self._life.refuse_child()
        self._supervisor.raise_failure()

    def stop(self, *, drain: bool = True) -> None:
        """Stop: stop receiving, let contexts handle their queues, take a last checkpoint, send, end threads, close.

        Each step takes at most `stop_timeout` seconds. The next start does what a step could not finish. Has no effect
        before a start, and after the first call. It does not raise the failure of the engine: call `raise_failure`.

        Args:
            drain: `False` to end the threads at once, without the earlier steps, as after a failure: the next start
                goes on from the last checkpoint.
        """
        if self._life.phase is not Phase.STARTED or self._life.is_another_process:
            return
        self._life.enter(Phase.STOPPING)
        in_order = False
        phases.begin("stopping")
        self.timeline.add("phase", phase="stopping")
        try:
            if drain and self.failure is None and self._life.threads_running:
                self._drain()
                in_order = self.failure is None
        finally:
            self._life.enter(Phase.STOPPED)
            self._stop_actors()
            if self._life.changing.acquire(timeout=self.settings.stop_timeout):
                self._life.changing.release()  # a part that another thread was adding is there now, or was refused
            self._stop_actors()
            self._join()
            self._finish_unstarted()
            self.timeline.add("phase", phase="stopped")
            self._observers.stop()
            self._close_all(in_order=in_order)

    def _stop_actors(self) -> None:
        for actor in reversed(self.actors()):
            actor.stop()

    def _join(self) -> None:
        """Wait for all threads, at most `stop_timeout` seconds.

        A thread that has not ended by then is in a handler, and whatever it still does has no effect.
        """
        late = list(reversed(self.actors()))

        def join(seconds: float) -> Sequence[str]:
            deadline = self._clock.monotonic() + seconds
            late[:] = [one for one in late if not one.join(max(0.0, deadline - self._clock.monotonic()))]
            return [f"thread {one.name}" for one in late]

        self._wait_and_tell(join)
        if late:
            names = [one.name for one in late]
            self._log.error("threads do not end; what they do has no effect any more", threads=names)

    def _finish_unstarted(self) -> None:
        """Release what actors without a thread own, since their thread could not start. Other actors do so in their
        threads.
        """
        for actor in self.actors() if self._life.threads_running else ():
            if actor.ident is None:
                actor.finish()

    def checkpoint(self, timeout: float = COMMIT_PATIENCE_S) -> bool:
        """Take a checkpoint, and wait until it is durable and its sends are released.

        Handlers must not call it: a checkpoint waits until each handler has returned.

        Args:
            timeout: longest wait in seconds.

        Returns whether the checkpoint was done in time. A checkpoint that is not done in time still takes place, unless
            the engine stops meanwhile. Returns `True` at once if the engine has no store.
        """
        self._life.refuse_child()
        if self.checkpointer is None:
            return True
        return self.checkpointer.wait_answered(self.checkpointer.ask(), timeout)

    def _taken_checkpoints(self) -> Sequence[TakenCheckpoint]:
        return () if self.checkpointer is None else tuple(self.checkpointer.taken)

    def order_checkpoint(self, timeout: float = COMMIT_PATIENCE_S) -> CheckpointCounters:
        """As `checkpoint`, but return the counters of the checkpoints, and raise an error if it was not done.

        Raises:
            UsageError: E2011, the engine has no store.
            NotDone: E8309, the engine starts or stops; E8310, it was not done in time.
        """
        self._life.refuse_unless_running("checkpoint")
        if self.checkpointer is None:
            raise UsageError("E2011", f"engine {self.settings.name}", "has no store: it takes no checkpoints")
        if not self.checkpoint(timeout):
            what = f"was not done within {timeout:g} s, or before the engine stopped"
            raise NotDone("E8310", "checkpoint", what, "It may still take place", "Repeat the command")
        return replace(self.checkpointer.counters)

    def pause(self, part_id: str) -> None:
        """Pause a receiver or sender until `resume` or the end of this life; without effect while it is paused.

        A receiver finishes its present batch and begins no other one. A sender sends no further batch: its messages
        wait, and if they reach `max_outstanding`, contexts and receivers wait, too. Both keep their connections.
        Returns at once. Any thread and any handler may call it.

        Raises:
            UsageError: E8307, there is no such part.
            NotDone: E8309, the engine starts or stops.
        """
        self._running(part_id).pausing.pause(part_id)

    def resume(self, part_id: str) -> None:
        """End a pause, if there is one. Returns at once, and raises as `pause`."""
        self._running(part_id).pausing.resume(part_id)

    def drain(
        self, part_id: str, timeout: float = COMMIT_PATIENCE_S, *, wanted: Callable[[], bool] = lambda: True
    ) -> bool:
        """Wait until a receiver or sender has nothing left to do, and a checkpoint has recorded that.

        A receiver is paused first, and stays paused: it has nothing left when all messages that it has taken are
        handled and acknowledged. A sender goes on: it has nothing left at a moment when every message is confirmed or a
        dead letter, so pause or drain the receivers first if messages keep coming. Handlers must not call it.

        Args:
            part_id: id of the receiver or sender.
            timeout: longest wait in seconds.
            wanted: the wait ends as soon as this returns `False`.

        Returns whether it was done in time; `False`, too, if the engine stops meanwhile.

        Raises as `pause`, and `UsageError` E8308 for a paused sender, or a receiver that was resumed meanwhile.
        """
        pausing = self._running(part_id).pausing
        return pausing.drain(part_id, timeout, lambda: wanted() and self._life.phase is Phase.STARTED)

    def discard_dead_letters(self, numbers: Sequence[int]) -> None:
        """Delete dead letters from the store. Returns when they are gone. Numbers that are gone already have no effect.

        Raises:
            UsageError: E2011, the engine has no store.
            NotDone: E8309, the engine starts or stops; E8311, somebody else works on one of them.
            StoreError: E3110, the store has not confirmed it within 60 s, or before the engine stopped.
        """
        self._kept_letters().discard(numbers)

    def replay_dead_letters(self, numbers: Sequence[int], timeout: float = COMMIT_PATIENCE_S) -> list[int]:
        """Bring the messages of dead letters back: they are handled or sent again, as docs/dead-letters.md says.

        Handlers must not call it. If it is not done in time, those that are left stay dead letters; a send may still
        go back with a later checkpoint.

        Returns the numbers of the dead letters whose messages are back. Messages that still cannot be mapped stay.

        Raises:
            UsageError: E2011, the engine has no store, or got it from a program; E2021, a number is not there; E2023, a
                message cannot go back. Nothing has changed then.
            NotDone: E8309, the engine starts or stops; E8310, it was not done in time; E8311, somebody else works on
                one of them.
            StoreError: the store cannot be read.
        """
        return self._kept_letters().replay(numbers, timeout)

    def _repr_html_(self) -> str:
        """The status as a notebook shows it."""
        return self.status()._repr_html_()

    def status(self) -> Status:
        """States and counters of the engine. Any thread may call it. The threads go on counting meanwhile."""
        self._life.refuse_child()
        return self._status.of(self._parts, self.checkpointer)

    # --- dynamic parts ---

    def add_receiver(self, settings: ReceiverSettings) -> Receiver:
        """Add a receiver. It comes back with every start, until `remove`; without a store it ends with the engine.

        Returns when the store has recorded the receiver, without waiting for its broker. Any thread and any handler may
        call it; a handler holds up its context meanwhile. A receiver with the same settings is returned as it is.

        Raises:
            ConfigError: the settings cannot work; `problems` has every problem. Nothing is added.
            UsageError: E8303 for an id that a part with other settings has, E8304 while a part of this id is being
                removed (add it again later), E8305 before `start` and after `stop`.
            StoreError: E3110, the store has not recorded it within 60 s, or before the engine stopped. It may be there
                after the next start.
        """
        return self._changes.add_receiver(settings)

    def add_sender(self, settings: SenderSettings) -> Sender:
        """Add a sender, as `add_receiver` adds a receiver, with the same errors.

        Monitors can send to it when this returns. Messages wait until its broker can be reached. E8303 also refuses the
        id of a default sender.
        """
        return self._changes.add_sender(settings)

    def remove(self, part_id: str) -> None:
        """Begin to remove a dynamic receiver or sender; returns at once. Any thread and any handler may call it.

        A receiver takes no further batch, and is gone when all messages that it has received are handled and in a
        checkpoint. A sender refuses further sends (E8002), and is gone when each earlier send is confirmed or a dead
        letter, however long its broker is away. Then `removed` returns `True`. If the engine stops before, the part is
        there again after the next start: call `remove` again.

        Raises:
            UsageError: E8301 for a static part, E8302 for an unknown id, E8305 before `start` and after `stop`, E8306
                for a part that a pipeline names.
        """
        self._changes.remove(part_id)

    def removed(self, part_id: str) -> bool:
        """Whether no receiver or sender has this id, and none is being removed. `True` for an id that never existed."""
        return self._changes.removed(part_id)

    # --- building ---

    def _refuse_unrecorded(self) -> None:
        if self.settings.input_log is not None and self.processors:
            raise ConfigError(
                "E2040",
                "input_log",
                "the engine has pipelines or bridges, whose batches are not recorded",
                "Only what monitors take in can be replayed",
                "Leave input_log out, or give the pipelines and bridges an engine of their own",
            )

    def _open_store(self) -> Restart:
        """Read the store, make the parts from what it holds, then take it over.

        Every check that can refuse the start runs before this engine writes, so a refused start changes no row.
        """
        if self._store is None:
            self._observers.control(owned=False)
            return self._restart(NOTHING)
        phases.begin("reading the store")
        recovered = self._store.read()
        self._observers.control(owned=True)
        restart = self._restart(recovered)
        self._store.take_over(recovered)
        return restart

    def _restart(self, recovered: Recovered) -> Restart:
        pipelines = {processor.name: processor.receivers for processor in self.processors}
        self._registry.compare(recovered, layout_of(self.settings.monitors, pipelines))
        engine_time = EngineTime(self._clock, recovered.engine_time)
        recording = Recording(self.settings) if self.settings.input_log is not None else None
        writer = self._make_writer(recovered, engine_time)
        spans = self._observers.spans
        self._parts = self._make_parts(engine_time=engine_time, writer=writer, recording=recording, spans=spans)
        restart = Restart(
            self.settings,
            self._parts,
            recovered,
            self.registry,
            self._handler_failed,
            lambda commit: self._commits.commit(SuspectRequest(commit)),
            self._absolve,
        )
        restart.make_parts(self.processors, self._registry.source_of)
        self._parts.listen()
        for processor in self.processors:
            self._log.info("starting a pipeline", pipeline=processor.name)
            processor.open()
        phases.begin("recovering")
        restart.load_steps(self.processors)
        return restart

    def _make_writer(self, recovered: Recovered, engine_time: EngineTime) -> Writer | None:
        if self._store is None:
            return None
        windows = self.settings.duplicate_detection
        writer = Writer(self._store, recovered.commit, engine_time.now, windows, self._letters_stored)
        writer.domains.note_receivers(recovered.endpoints)
        return writer

    def _make_checkpointer(self, restart: Restart) -> Checkpointer | None:
        if self.writer is None:
            return None
        stored = restart.recovered
        return Checkpointer(
            Checkpoint(stored.checkpoint, stored.digest, restart.changes, stored.engine_time, restart.unmapped),
            list(self.contexts.values()),
            self._parts.routes,
            lambda: self._parts.receiver_routes,
            self.writer,
            interval=self.settings.checkpoint.interval,
            clock=self._clock,
            engine_time=self._parts.engine_time,
            staged=self._parts.note_staged,
            released=self._released,
            recording=self._parts.recording,
        )

    def _make_services(self, checkpointer: Checkpointer | None) -> Services:
        pausing = Pausing(self._parts, checkpointer, self._clock, self.timeline, self._supervisor.wait)
        remover = Remover(self._parts, self.writer, checkpointer, self._removed)
        letters = None
        if checkpointer is not None:
            letters = Letters(
                self._parts,
                lambda: self.registry,
                self._commits.commit,
                checkpointer,
                functools.partial(read_letters, self._stored, self.settings.name),
                self._clock,
                self.timeline,
            )
        return Services(
            checkpointer=checkpointer,
            remover=remover,
            pausing=pausing,
            letters=letters,
            forwarder=self._make_forwarder(checkpointer, letters),
        )

    def _make_forwarder(self, checkpointer: Checkpointer | None, letters: Letters | None) -> Forwarder | None:
        name, parts = self.settings.dead_letter_sender, self._parts
        if name is None or checkpointer is None or letters is None or parts.writer is None:
            return None
        sender = parts.senders[name]
        warning = parts.leaves_out_reasons(sender.settings)
        if warning is not None:
            self._log.warning(str(warning))
        return Forwarder(
            name,
            letters,
            parts.writer,
            checkpointer,
            lambda: parts.to_send(sender) >= sender.settings.max_outstanding,
        )

    def _keep_what_waits(self) -> None:
        """Take a checkpoint of the events that handlers of restored events have sent, before any context handles these
        events.

        A handler of one of them may end the process, and then the next start must find the event
        (`correlator.core.poison`).
        """
        if self.checkpointer is not None and not all(thread.idle for thread in self._parts.monitor_threads()):
            self.checkpointer.ask()
            self.checkpointer.step()
            self._commits.commit_waiting()
            self.checkpointer.step()

    def _open_parts(self) -> None:
        if self.settings.status_interval:
            self.reporter = Reporter(self.status, self.settings.status_interval, self._clock)
        point("rec.open_senders")
        for sender in self.senders.values():
            sender.open()
        point("rec.open_receivers")
        for receiver in self.receivers.values():
            receiver.open()

    # --- while running ---

    def _running(self, where: str) -> Services:
        self._life.refuse_unless_running(where)
        assert self._services is not None
        return self._services

    def _absolve(self, suspect: Suspect) -> None:
        assert self.checkpointer is not None
        self.checkpointer.absolved.append(suspect)

    def _removed(self, part_id: str) -> None:
        self._registry.forget(part_id)
        self._parts.statuses.removed(part_id)
        self._supervisor.notify()

    def _run(self, actor: Actor) -> None:
        if self._life.threads_running:
            actor.start(self._failed)

    def _want_checkpoint(self) -> None:
        if self.checkpointer is not None:
            self.checkpointer.ask_once()

    def _context_rested(self) -> None:
        if self.checkpointer is not None:
            self.checkpointer.note_rest()

    def _handler_failed(self, policy: OnError, error: CorrelatorError, about: str) -> None:
        self._supervisor.handler_failed(policy, error, about)
        self.timeline.add("handler_failed", policy=policy, error=str(error))

    def _released(self, cut: Cut) -> None:
        assert self.checkpointer is not None
        took = self.checkpointer.counters.last_duration_s
        self.timeline.add("checkpoint", number=self.checkpointer.checkpoint.number, seconds=round(took, 6))
        if (spans := self._observers.spans) is not None:
            spans.committed(cut.commit.outbound, cut.commit.number, spans.now() - took)
        for sender in self.senders.values():
            sender.wake()
        self._supervisor.notify()

    def _letters_stored(self) -> None:
        if self.forwarder is not None:
            self.forwarder.note()

    def _source_ended(self) -> None:
        self._conclude_if_all_ended()
        self._supervisor.notify()

    def _conclude_if_all_ended(self) -> bool:
        """Let the pipelines conclude if every source has ended; return whether every source has ended."""
        if not all(receiver.state is ReceiverState.ENDED for receiver in self.receivers.values()):
            return False
        for thread in self._parts.processor_threads():
            thread.conclude()
        return True

    def _all_done(self) -> bool:
        """Whether every source has ended, every message is handled and sent, and a checkpoint has recorded that.

        It also lets the pipelines conclude, since the last source that had not ended may have been removed.
        """
        if not self._conclude_if_all_ended() or not all(thread.idle for thread in self.contexts.values()):
            return False
        if not all(thread.concluded for thread in self._parts.processor_threads()) or not self.checkpoint(1.0):
            return False
        if not self.letters_sent or not all(sender.idle for sender in self.senders.values()):
            return False
        return self.checkpoint(1.0) and self.letters_sent

    def _failed(self, actor: Actor, error: BaseException) -> None:
        """An exception has ended a thread: stop all actors, so that nothing more is committed, acknowledged or sent."""
        if isinstance(actor, Receiver | Sender):
            actor.tell(PartStatus.FATAL_ERROR, str(error) or type(error).__name__)
        first = self._supervisor.fail(error)
        if first:
            self.timeline.add("failed", thread=actor.name, error=str(error) or type(error).__name__)
        for other in self.actors():
            other.stop()
        self.request_stop()
        if first:
            self._log.critical("the engine stops", part=actor.name, error=error)

    def _paths_through(self, part_id: str) -> list[dict[str, object]]:
        return paths_through(part_id, self._parts, self.settings.monitors)

    def _kept_letters(self) -> Letters:
        letters = self._running("dead letters").letters
        if letters is None:
            raise UsageError("E2011", f"engine {self.settings.name}", "has no store: it keeps no dead letters")
        return letters

    def _watched(self) -> list[Watched]:
        """Return the threads that call handlers. During recovery, the thread that starts the engine does."""
        threads = self._parts.monitor_threads()
        return [Watched(self._life.recovering or thread.ident or 0, thread.context.running) for thread in threads]

    # --- stopping ---

    def _drain(self) -> None:
        point("stop.begin")
        for receiver in self.receivers.values():
            receiver.drain()
        self._wait(lambda: [f"receiver {name}" for name, one in self.receivers.items() if not one.quiet])
        point("stop.drain")
        self._wait(lambda: [f"context {name}" for name, one in self.contexts.items() if not one.idle])
        point("stop.final_ck")
        self._wait_for_checkpoint(forced=False)
        self._wait(lambda: [_unsent(name, one) for name, one in self.senders.items() if not (one.idle or one.paused)])
        waiting = {name: sender.outbox.outstanding for name, sender in self.senders.items() if not sender.idle}
        if waiting:
            self._log.warning(
                "stopping while sends wait for a broker; they leave after the next start", waiting=waiting
            )
        self._wait_for_checkpoint(forced=True)
        point("stop.close")

    def _wait(self, missing: Callable[[], Sequence[str]]) -> None:
        """Wait until nothing is missing, or a thread has failed."""

        def look(seconds: float) -> Sequence[str]:
            deadline = self._clock.monotonic() + seconds
            while (names := missing()) and self.failure is None:
                if self._clock.monotonic() > deadline:
                    return names
                self._supervisor.wait(0.01)
            return ()

        self._wait_and_tell(look)

    def _wait_for_checkpoint(self, *, forced: bool) -> None:
        """Wait until a checkpoint is done, which is `forced` as for `Checkpointer.ask`."""
        checkpointer = self.checkpointer
        if checkpointer is None:
            return
        number = checkpointer.ask(forced=forced)

        def answered(seconds: float) -> Sequence[str]:
            return () if checkpointer.wait_answered(number, seconds) or checkpointer.stopping else ("checkpoint",)

        self._wait_and_tell(answered)

    def _wait_and_tell(self, wait: Callable[[float], Sequence[str]]) -> None:
        """Wait at most `stop_timeout` seconds; after a while, log for what.

        Args:
            wait: waits so many seconds, and returns what is still missing.
        """
        longest = self.settings.stop_timeout
        names = wait(min(TELL_WAIT_AFTER_S, longest))
        if names and longest > TELL_WAIT_AFTER_S:
            shown = ", ".join([*names[:_MOST_TOLD], *(["…"] if len(names) > _MOST_TOLD else [])])
            self._log.info("the stop waits", waits_for=shown, at_most_s=longest)
            wait(longest - TELL_WAIT_AFTER_S)

    def _close_all(self, *, in_order: bool) -> None:
        if self._parts.recording is not None:
            self._parts.recording.close(in_order=in_order)
        self._parts.close()
        if self._life.threads_running:
            return  # each thread has released what it owns
        for processor in self.processors:
            processor.close()
        if self._store is not None:
            self._store.close()


def _unsent(name: str, sender: Sender) -> str:
    """What a stop waits for: the messages of a sender that its broker has not confirmed."""
    without = "" if sender.connected else ", no connection"
    return f"sender {name} ({sender.outbox.outstanding} not confirmed{without})"


def _store_of(settings: EngineSettings) -> Store | None:
    """The configured store, not yet open."""
    if settings.store is None:
        return None
    witness = None if settings.witness_directory is None else Path(settings.witness_directory)
    return SqlStore(settings.store, settings.name, witness_directory=witness)
