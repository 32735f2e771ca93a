"""The engine: one process life over one store.

Life: build the parts from settings, recover, start the threads, run, stop in order. The order of recovery (FEATURES
A9.14) and of stopping (RELIABILITY T65) stand in `recover` and `stop`.
"""

import contextlib
import dataclasses
import itertools
import os
import secrets
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self

import msgspec

from correlator.configuration import EngineFile, read_file
from correlator.core.checkpoint import Checkpoint
from correlator.core.commit import Endpoint, Recovered, RegistryCommit
from correlator.core.context import Context, Routes, decode_event
from correlator.core.dedup import DuplicateDetector
from correlator.core.faults import point
from correlator.core.instances import StoredMonitor, restore_monitor
from correlator.core.mapping import ReceiveMapping
from correlator.core.monitor import Monitor
from correlator.core.outbox import FlushRequest, Outbox
from correlator.core.queue import Run
from correlator.core.receiving import State
from correlator.core.recovery import ReceiveLog, default_domain, endpoint_of, reconcile, restored_runs
from correlator.core.reliability import RECEIVING, SENDING, Reliability
from correlator.errors import ConfigError, CorrelatorError, RecoveryRefused, StoreError, UsageError
from correlator.events import DeadLetter, SenderFlushed
from correlator.ports import Connection, Processor, Store
from correlator.runtime.actor import Actor
from correlator.runtime.checkpointer import Checkpointer
from correlator.runtime.clock import Clock, EngineTime, SystemClock
from correlator.runtime.contexts import BatchContext, MonitorThread, ProcessorThread
from correlator.runtime.logs import get_logger
from correlator.runtime.names import connector, resolve
from correlator.runtime.receiver import Receiver, Targets
from correlator.runtime.remover import Remover
from correlator.runtime.sender import Sender
from correlator.runtime.status import CheckpointCounters, Status
from correlator.runtime.writer import RegistryRequest, Writer
from correlator.settings import EngineSettings, MonitorSettings, ReceiverSettings, SenderSettings
from correlator.storage.store import SqlStore

COMMIT_PATIENCE_S = 60.0
ContextThread = MonitorThread | ProcessorThread


class Engine:
    """One engine.

    Args:
        settings: what it consists of.
        connections: connections by name that take the place of configured ones (tests, embedding programs).
        processors: pipelines.
        clock: monotonic seconds.
        store: takes the place of `settings.store`.
        blocking: whether sources may block; a simulation that drives the steps itself says no.
        identity: unique part of the ids of this life's senders; by default host, process and a random number.

    Raises `ConfigError` for settings that cannot work; nothing is opened before `start`.
    Use it as a context manager: recovery happens on entry, an orderly stop on exit (after an exception: no drain).
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
    ) -> None:
        self.settings = settings
        self.processors = processors
        self.routes = Routes()
        self.contexts: dict[str, ContextThread] = {}
        self.receivers: dict[str, Receiver] = {}
        self.senders: dict[str, Sender] = {}
        self.writer: Writer | None = None
        self._registry_changes = RegistryCommit()
        self._batches: dict[str, int] = {}
        self.checkpointer: Checkpointer | None = None
        self.remover: Remover | None = None
        self.failure: BaseException | None = None
        self.handler_failures = 0
        self.registry: dict[str, Endpoint] = {}
        self._clock = clock or SystemClock()
        self._store = store
        self._blocking = blocking
        self._identity = identity or f"{socket.gethostname()}:{os.getpid()}:{secrets.randbelow(10**9)}"
        self._connections = dict(connections or {})
        self._given_connections = set(self._connections)
        self._sender_numbers = itertools.count(1)
        self._receiver_routes: dict[str, Sequence[str]] = {}
        self._engine_time = EngineTime(self._clock)
        self._changed = threading.Condition()
        self._started = False
        self._threads_running = False
        self._stop_asked = threading.Event()
        self._log = get_logger(engine=settings.name)
        self._check()

    @classmethod
    def from_yaml(cls, path: str | Path, **overrides: Any) -> Self:
        """An engine as a file describes it; raises `ConfigError` with every problem of the file."""
        loaded = read_file(Path(path), EngineFile)
        return cls(loaded.settings, **overrides)

    # --- life cycle ---

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop(drain=error is None)

    def start(self) -> None:
        """Recover, then let threads run. Raises what stands in the way; nothing is left open then."""
        try:
            self.recover()
        except BaseException:
            self._close_all()
            raise
        self._threads_running = True
        for actor in self.actors():
            actor.failed = self._failed
            actor.start()

    def recover(self) -> None:
        """Everything from opening the store to opening the receivers, without starting a thread."""
        self._started = True
        recovered = self._open_store()
        if recovered is None:
            self._register(())
        dynamic = [endpoint for endpoint in self.registry.values() if endpoint.origin == "dynamic"]
        self._engine_time = EngineTime(self._clock, recovered.engine_time if recovered else 0.0)
        self._make_writer(recovered)
        self._make_contexts(recovered)
        self._make_senders(recovered, dynamic)
        self._restore_detectors(recovered)
        self._make_receivers(recovered, dynamic)
        self._restore_queues(recovered)
        self._commit_registry_changes()
        self._make_checkpointer(recovered)
        self._run_recovery_hooks(recovered)
        self._open_parts()

    def actors(self) -> list[Actor]:
        """All actors, in the order in which their threads start."""
        actors: list[Actor] = []
        if self.writer is not None:
            actors.append(self.writer)
        actors.extend(self.senders.values())
        actors.extend(self.contexts.values())
        if self.checkpointer is not None:
            actors.append(self.checkpointer)
        if self.remover is not None:
            actors.append(self.remover)
        actors.extend(self.receivers.values())
        return actors

    def run_forever(self) -> None:
        """Run until SIGTERM or SIGINT (a second one: at once), `request_stop`, or a failure, which is raised."""
        with self._signals():
            self._stop_asked.wait()
        self.raise_failure()

    def run_until_ended(self, tick: Callable[[Status], None] = lambda _: None, every_s: float = 0.2) -> None:
        """Run until every source has come to its end and all of it is handled, sent and confirmed.

        Args:
            tick: called from this thread about every `every_s` seconds.
            every_s: seconds.

        Raises the failure that stopped the engine; returns early when a stop was asked for.
        """
        with self._signals():
            while not self._stop_asked.is_set() and not self._all_done():
                with self._changed:
                    self._changed.wait(every_s)
                tick(self.status())
        self.raise_failure()

    def request_stop(self) -> None:
        """Let `run_forever` and `run_until_ended` return; any thread may call it."""
        self._stop_asked.set()
        self._notify()

    def raise_failure(self) -> None:
        """Raise what stopped the engine, if anything did."""
        if self.failure is not None:
            raise self.failure

    def stop(self, *, drain: bool = True) -> None:
        """Stop in order: receivers, contexts drained, last checkpoint, release, confirms, close (RELIABILITY T65).

        Waits at most `stop_timeout` for each step; what was not done is done after the next start.
        """
        if not self._started:
            return
        self._started = False
        if drain and self.failure is None and self._threads_running:
            self._drain()
        for actor in reversed(self.actors()):
            actor.stop()
        for actor in reversed(self.actors()):
            actor.join()
        self._close_all()

    def checkpoint(self, timeout: float = COMMIT_PATIENCE_S) -> bool:
        """Take a checkpoint now and wait until it is durable and released; says whether it came in time."""
        if self.checkpointer is None:
            return True
        return self.checkpointer.wait_answered(self.checkpointer.ask(), timeout)

    def status(self) -> Status:
        """A look at the running engine."""
        return Status(
            receivers={name: (part.state.value, part.counters) for name, part in self.receivers.items()},
            senders={
                name: ("ok" if part.connected else "connecting", part.counters, part.outbox.outstanding)
                for name, part in self.senders.items()
            },
            contexts={name: thread.queue.waiting for name, thread in self.contexts.items()},
            handler_failures=self.handler_failures,
            checkpoints=self.checkpointer.counters if self.checkpointer else CheckpointCounters(),
            store_commits=self.writer.commits if self.writer else 0,
            engine_time=self._engine_time.now(),
        )

    # --- dynamic parts ---

    def add_receiver(self, settings: ReceiverSettings) -> Receiver:
        """Add a receiver for the life of the store; the same settings again are no error (FEATURES A1.5, A1.10).

        Must not be called from a monitor of the context that the receiver delivers to while the store is stuck: it
        waits for the commit that records it. Raises `UsageError` E8303 for an id that is taken.
        """
        self._check_reliability(settings)
        if self._known(settings):
            return self.receivers[settings.id]
        self._record(endpoint_of(settings, dynamic=True))
        receiver = self._make_receiver(settings, None)
        receiver.open = True
        self._run(receiver)
        return receiver

    def add_sender(self, settings: SenderSettings) -> Sender:
        """Add a sender for the life of the store; sends are accepted at once (FEATURES A1.18). As `add_receiver`."""
        self._check_reliability(settings)
        if self._known(settings):
            return self.senders[settings.id]
        endpoint = endpoint_of(settings, dynamic=True, source=self._new_source())
        self._record(endpoint)
        sender = self._make_sender(settings, None, endpoint.source)
        sender.open = True
        self._run(sender)
        return sender

    def remove(self, part_id: str) -> None:
        """Remove a dynamic receiver or sender once what it holds is handled or sent (FEATURES A1.8, A1.16, A1.17).

        Returns at once; `removed` tells when it is done. Raises `UsageError` E8301 for a static part and E8302 for
        an unknown id.
        """
        endpoint = self.registry.get(part_id)
        if endpoint is None:
            raise UsageError("E8302", f"'{part_id}'", "no such receiver or sender", ", ".join(sorted(self.registry)))
        if endpoint.origin == "static":
            raise UsageError(
                "E8301", f"{endpoint.kind} '{part_id}'", "is static; remove is only possible for dynamic ones"
            )
        assert self.remover is not None
        self.remover.begin(part_id)

    def removed(self, part_id: str) -> bool:
        """Whether no such part exists (any more)."""
        return part_id not in self.registry

    # --- building ---

    def _check(self) -> None:
        parts: list[ReceiverSettings | SenderSettings] = [*self.settings.receivers, *self.settings.senders]
        for settings in parts:
            self._check_reliability(settings)

    def _check_reliability(self, settings: ReceiverSettings | SenderSettings) -> None:
        kind = "receiver" if isinstance(settings, ReceiverSettings) else "sender"
        where = f"{kind} '{settings.id}'"
        if kind == "sender" and settings.reliability is Reliability.APP_CONTROLLED:
            raise ConfigError("E1204", where, "APP_CONTROLLED is for receivers only")
        mode = RECEIVING[settings.reliability] if kind == "receiver" else SENDING[settings.reliability]
        if mode.needs_persistence and self.settings.store is None and self._store is None:
            raise ConfigError(
                "E1205",
                where,
                f"{settings.reliability} needs a persistent engine",
                "",
                "Set 'store', or use BEST_EFFORT" + (" or APP_CONTROLLED" if kind == "receiver" else ""),
            )
        known = {*self.settings.connections, *self._connections}
        if settings.connection not in known:
            raise ConfigError(
                "E1211", where, f"connection '{settings.connection}' is not defined", f"Defined: {', '.join(known)}"
            )

    def _open_store(self) -> Recovered | None:
        if self._store is None and self.settings.store is not None:
            self._store = SqlStore(self.settings.store, self.settings.name)
        return self._store.open(self._check_recovered) if self._store is not None else None

    def _check_recovered(self, recovered: Recovered) -> None:
        point("cfg.compare")
        self._register(recovered.endpoints)

    def _register(self, stored: Sequence[Endpoint]) -> None:
        changes = reconcile(stored, (*self.settings.receivers, *self.settings.senders))
        self._registry_changes = RegistryCommit(put=[self._with_source(endpoint) for endpoint in changes.put])
        self.registry = {endpoint.id: endpoint for endpoint in (*stored, *self._registry_changes.put)}

    def _with_source(self, endpoint: Endpoint) -> Endpoint:
        if endpoint.kind == "sender" and not endpoint.source and SENDING[Reliability(endpoint.reliability)].stored:
            return msgspec.structs.replace(endpoint, source=self._new_source())
        return endpoint

    def _new_source(self) -> str:
        return f"{self._identity}:S{next(self._sender_numbers):02d}"

    def _make_writer(self, recovered: Recovered | None) -> None:
        if recovered is None or self._store is None:
            return
        self.writer = Writer(self._store, recovered.commit, self._engine_time.now)

    def _commit_registry_changes(self) -> None:
        if self.writer is not None and self._registry_changes.put:
            point("cfg.register.commit")
            self.writer.submit(RegistryRequest(self._registry_changes, lambda: None))
            self._commit_waiting()

    def _commit_waiting(self) -> None:
        assert self.writer is not None
        while (delay := self.writer.step()) is not None:
            if delay:
                self._stop_asked.wait(delay)

    def _make_contexts(self, recovered: Recovered | None) -> None:
        state: dict[str, dict[bytes, bytes]] = {}
        if recovered is not None and self.writer is not None:
            state = self.writer.state_log.restore(recovered.state)
        for settings in self.settings.monitors:
            self._context(settings.context)
        for processor in self.processors:
            context = BatchContext(processor.name, {name: kept for name, kept in state.items() if _of(processor, name)})
            self.contexts[processor.name] = ProcessorThread(
                processor, context, self.routes, self._engine_time, self._outboxes_full
            )
            self.contexts[processor.name].on_processed = self._notify  # type: ignore[union-attr]
        if not self.contexts:
            self._context("main")
        self._load_monitors(state)

    def _context(self, name: str) -> MonitorThread:
        thread = self.contexts.get(name)
        if thread is None:
            context = Context(name, self.routes, resolve)
            context.failed = self._handler_failed  # type: ignore[method-assign]
            thread = MonitorThread(context, self._engine_time, self._unstored_outboxes_full)
            self.contexts[name] = thread
            self.routes.channels = {**self.routes.channels, name: [context.queue]}
            self.routes.woken = self._wake_all
            self.routes.next_flush = itertools.count(1).__next__
        assert isinstance(thread, MonitorThread)
        return thread

    def _load_monitors(self, state: dict[str, dict[bytes, bytes]]) -> None:
        self._fresh: list[tuple[Context, Monitor]] = []
        restored: set[str] = set()
        for settings in self.settings.monitors:
            cls = self._monitor_class(settings)
            context = self._context(settings.context).context
            stored = state.get(f"monitor:{cls.state_name}", {}).get(b"0")
            if cls.persistent and stored is not None:
                restored.add(cls.state_name)
                self._restore(context, cls, 0, stored, state, settings.on_error)
            else:
                monitor = cls(**settings.options)
                context.load(monitor, settings.on_error)
                self._fresh.append((context, monitor))
        self._restore_spawned(state, restored)

    def _monitor_class(self, settings: MonitorSettings) -> type[Monitor]:
        cls = resolve(settings.type, f"monitor {settings.type}")
        if not issubclass(cls, Monitor):
            raise ConfigError("E1502", f"monitor {settings.type}", "is not a subclass of Monitor")
        if cls.persistent and self._store is None:
            raise ConfigError(
                "E1206", f"monitor {settings.type}", "a persistent monitor needs a persistent engine", "", "Set 'store'"
            )
        return cls

    def _restore(
        self,
        context: Context,
        cls: type[Monitor],
        number: int,
        data: bytes,
        state: dict[str, dict[bytes, bytes]],
        on_error: Any,
    ) -> None:
        point("rec.load.state")
        stored = msgspec.msgpack.decode(data, type=StoredMonitor)
        context.load(restore_monitor(cls, number, stored, state), on_error, number, stored)

    def _restore_spawned(self, state: dict[str, dict[bytes, bytes]], restored: set[str]) -> None:
        for owner, instances in state.items():
            if not owner.startswith("monitor:"):
                continue
            for key, data in instances.items():
                stored = msgspec.msgpack.decode(data, type=StoredMonitor)
                if key == b"0":
                    self._require(owner[8:] in restored, "E4202", f"monitor '{owner[8:]}'", stored.type)
                    continue
                thread = self.contexts.get(stored.context)
                self._require(isinstance(thread, MonitorThread), "E4312", f"context '{stored.context}'", stored.type)
                assert isinstance(thread, MonitorThread)
                self._restore(thread.context, resolve(stored.type), int(key), data, state, stored.on_error)

    @staticmethod
    def _require(fulfilled: bool, code: str, where: str, what: str) -> None:
        if not fulfilled:
            raise RecoveryRefused(
                code, where, f"has state in the store ({what}) but is not configured", "", "Put it back"
            )

    # --- senders and receivers ---

    def _make_senders(self, recovered: Recovered | None, dynamic: Sequence[Endpoint]) -> None:
        again = [
            msgspec.json.decode(endpoint.settings, type=SenderSettings)
            for endpoint in dynamic
            if endpoint.kind == "sender"
        ]
        for settings in (*self.settings.senders, *again):
            self._make_sender(settings, recovered, self.registry[settings.id].source)

    def _make_sender(self, settings: SenderSettings, recovered: Recovered | None, source: str) -> Sender:
        outbox = Outbox(
            settings.id,
            settings.reliability,
            source or self._new_source(),
            self._destination(settings.destination),
            settings.unique_message_id_property,
            settings.message_source_id_property,
        )
        for cut in recovered.senders if recovered and outbox.stored else ():
            if cut.sender == settings.id:
                point("rec.load.outbox")
                outbox.restore(cut, [segment for segment in recovered.outbound if segment.sender == settings.id])  # type: ignore[union-attr]
        placed = dataclasses.replace(settings, destination=self._destination(settings.destination))
        sender = Sender(
            settings,
            outbox,
            self._connection(settings.connection).sink(placed),
            clock=self._clock,
            engine_time=self._engine_time,
            retry_interval=self.settings.connection_retry_interval,
            flushed=self._flushed,
        )
        self.senders = {**self.senders, settings.id: sender}
        self.routes.outboxes = {**self.routes.outboxes, settings.id: outbox}
        return sender

    def _make_receivers(self, recovered: Recovered | None, dynamic: Sequence[Endpoint]) -> None:
        again = [
            msgspec.json.decode(endpoint.settings, type=ReceiverSettings)
            for endpoint in dynamic
            if endpoint.kind == "receiver"
        ]
        self._log_at_start = ReceiveLog(recovered.receive_log if recovered else ())
        for settings in (*self.settings.receivers, *again):
            self._make_receiver(settings, recovered)

    def _make_receiver(self, settings: ReceiverSettings, recovered: Recovered | None) -> Receiver:
        mode = RECEIVING[settings.reliability]
        connection = self._connection(settings.connection)
        domain = default_domain(settings) if mode.deduplicated else None
        if domain is not None:
            self._detector(domain)
        targets = self._targets(settings.id)
        if mode.stored:
            self._receiver_routes[settings.id] = targets.names
        event_type = resolve(settings.event, f"receiver {settings.id}.event") if settings.event else None
        receiver = Receiver(
            settings,
            connection.source(dataclasses.replace(settings, destination=self._destination(settings.destination))),
            connection.features,
            ReceiveMapping(
                settings.id,
                event_type,
                settings.unique_message_id,
                settings.message_source_id,
                deduplicated=mode.deduplicated,
                max_message_bytes=settings.max_message_bytes,
            ),
            targets,
            self.writer,
            domain=domain,
            next_number=self._next_number(settings.id, recovered),
            next_batch=self._batches.get(settings.id, 0) + 1,
            confirmed_batch=recovered.confirmed_batches.get(settings.id, 0) if recovered else 0,
            clock=self._clock,
            engine_time=self._engine_time,
            max_backlog=self.settings.max_queued,
            hold=self._outboxes_full,
            retry_interval=self.settings.connection_retry_interval,
            blocking=self._blocking,
        )
        receiver.ended = self._source_ended
        if mode.acknowledged_by_application:
            self.routes.resume = {**self.routes.resume, settings.id: receiver.resume}
        self.receivers = {**self.receivers, settings.id: receiver}
        return receiver

    def _next_number(self, receiver: str, recovered: Recovered | None) -> int:
        if recovered is None:
            return 1
        entered = max((cut.entered.get(receiver, 0) for cut in recovered.contexts), default=0)
        consumed = recovered.consumed.get(receiver, 0)
        return max(entered, consumed, self._log_at_start.last_number(receiver)) + 1

    def _targets(self, receiver: str) -> Targets:
        names = [processor.name for processor in self.processors if receiver in processor.receivers]
        if not names:
            names = [name for name, thread in self.contexts.items() if isinstance(thread, MonitorThread)]
        threads = [self.contexts[name] for name in names]
        return Targets([(name, thread.queue, thread.wake) for name, thread in zip(names, threads, strict=True)])

    def _connection(self, name: str) -> Connection:
        if name not in self._connections:
            settings = self.settings.connections[name]
            self._connections[name] = connector(settings.type, f"connections.{name}")(name, settings)
        return self._connections[name]

    def _destination(self, destination: str) -> str:
        return self.settings.destinations.get(destination, destination)

    def _detector(self, domain: str) -> DuplicateDetector:
        assert self.writer is not None
        detector = self.writer.detectors.get(domain)
        if detector is None:
            windows = self.settings.duplicate_detection
            detector = DuplicateDetector(domain, windows.per_source_window_size, windows.expiry_time)
            self.writer.detectors[domain] = detector
        return detector

    # --- recovery ---

    def _restore_detectors(self, recovered: Recovered | None) -> None:
        if recovered is None:
            return
        self._batches = dict(recovered.confirmed_batches)
        point("rec.load.dedup")
        for segment in recovered.ids:
            self._batches[segment.receiver] = max(self._batches.get(segment.receiver, 0), segment.batch)
            self._detector(segment.domain).restore([segment], recovered.confirmed_batches)

    def _restore_queues(self, recovered: Recovered | None) -> None:
        self._replay_failures: list[DeadLetter] = []
        cuts = {cut.context: cut for cut in recovered.contexts} if recovered else {}
        for name, cut in cuts.items():
            if name not in self.contexts and cut.queue:
                self._require(False, "E4312", f"context '{name}'", f"{len(cut.queue)} runs waiting")
        events_of = {name: self._remap(receiver) for name, receiver in self.receivers.items()}
        for name, thread in self.contexts.items():
            if name in cuts and recovered is not None:
                runs = restored_runs(
                    cuts[name].queue, self._log_at_start, events_of, lambda one: decode_event(resolve, one)
                )
                if isinstance(thread, MonitorThread):
                    thread.context.restore(cuts[name], runs, recovered.engine_time)
                else:
                    thread.queue.restore(cuts[name].entered, runs)
            self._deliver_beyond(name, thread, events_of)
        self._log_at_start = ReceiveLog(())
        if self._replay_failures:
            self._log.error("stored messages no longer map", count=len(self._replay_failures))
            next(iter(self.contexts.values())).context.keep_dead_letters(self._replay_failures)

    def _remap(self, receiver: Receiver) -> Callable[[Sequence[Any]], Sequence[Any]]:
        def events(messages: Sequence[Any]) -> Sequence[Any]:
            point("rec.replay")
            mapped, failures = receiver.mapping.remap(messages, self._engine_time.now())
            self._replay_failures.extend(failures)
            return mapped

        return events

    def _deliver_beyond(
        self, name: str, thread: ContextThread, events_of: Mapping[str, Callable[[Sequence[Any]], Sequence[Any]]]
    ) -> None:
        for receiver, names in self._receiver_routes.items():
            if name in names:
                entered = thread.queue.entered.get(receiver, 0)
                for first, messages in self._log_at_start.beyond(receiver, entered):
                    thread.queue.deliver(Run(receiver, first, messages, events_of[receiver](messages), stored=True))

    def _make_checkpointer(self, recovered: Recovered | None) -> None:
        if recovered is None or self.writer is None:
            return
        self.checkpointer = Checkpointer(
            Checkpoint(recovered.checkpoint, recovered.digest),
            list(self.contexts.values()),
            self.routes,
            self._receiver_routes,
            self.writer,
            interval=self.settings.checkpoint.interval,
            clock=self._clock,
            engine_time=self._engine_time,
            released=self._released,
        )

    def _run_recovery_hooks(self, recovered: Recovered | None) -> None:
        again = recovered is not None and recovered.checkpoint > 0
        monitors = [thread for thread in self.contexts.values() if isinstance(thread, MonitorThread)]
        fresh = {monitor for _, monitor in self._fresh}
        if again:
            point("rec.on_begin")
            for thread in monitors:
                thread.context.call_restored("on_begin_recovery", fresh)
        for context, monitor in self._fresh:
            context.call_one(monitor, "onload")
        if again:
            for thread in monitors:
                while thread.context.work(thread.slice, self._engine_time.now()):
                    pass
            point("rec.on_conclude")
            for thread in monitors:
                thread.context.call_restored("on_conclude_recovery", fresh)
        self._fresh = []

    def _open_parts(self) -> None:
        self.remover = Remover(self)
        point("rec.open_senders")
        for sender in self.senders.values():
            sender.open = True
        point("rec.open_receivers")
        for receiver in self.receivers.values():
            receiver.open = True

    # --- while running ---

    def _known(self, settings: ReceiverSettings | SenderSettings) -> bool:
        endpoint = self.registry.get(settings.id)
        if endpoint is None:
            return False
        if endpoint == endpoint_of(settings, dynamic=True, source=endpoint.source):
            return True
        raise UsageError(
            "E8303",
            f"{endpoint.kind} '{settings.id}'",
            f"exists already ({endpoint.origin}), with other settings",
            "The configuration of a part never changes after it was made",
            "Choose another id",
        )

    def _record(self, endpoint: Endpoint) -> None:
        self.commit_registry(RegistryCommit(put=[endpoint]))
        self.registry = {**self.registry, endpoint.id: endpoint}

    def commit_registry(self, commit: RegistryCommit) -> None:
        """Have a registry change committed and wait for it; a no-op without persistence."""
        if self.writer is None:
            return
        committed = threading.Event()
        self.writer.submit(RegistryRequest(commit, committed.set))
        if not self._threads_running:
            self._commit_waiting()
        elif not committed.wait(COMMIT_PATIENCE_S):
            self.raise_failure()
            raise StoreError("E3110", "store", f"a registry change was not committed in {COMMIT_PATIENCE_S:.0f} s")

    def forget(self, part_id: str) -> None:
        """A dynamic part is removed from the store: let go of it in memory."""
        self.registry = {name: endpoint for name, endpoint in self.registry.items() if name != part_id}
        self.receivers = {name: part for name, part in self.receivers.items() if name != part_id}
        self.senders = {name: part for name, part in self.senders.items() if name != part_id}
        self.routes.resume = {name: part for name, part in self.routes.resume.items() if name != part_id}
        self._receiver_routes.pop(part_id, None)
        for thread in self.contexts.values():
            with thread.lock:
                thread.queue.forget(part_id)
        self._notify()

    def _run(self, actor: Actor) -> None:
        actor.failed = self._failed
        if self._threads_running:
            actor.start()

    def _flushed(self, sender: str, request: FlushRequest, failed: int) -> None:
        event = SenderFlushed(sender=sender, request_id=request.request_id, failed=failed)
        thread = self.contexts[request.context]
        thread.queue.deliver(Run("", 0, (), (event,), stored=False))
        thread.wake()

    def _wake_all(self) -> None:
        for sender in self.senders.values():
            sender.wake()
        for thread in self.contexts.values():
            thread.wake()

    def _released(self) -> None:
        for sender in self.senders.values():
            sender.wake()
        self._notify()

    def _handler_failed(self, policy: str, error: CorrelatorError) -> None:
        self.handler_failures += 1
        self._log.error("a handler failed; its event is left out", policy=policy, error=error)

    def _outboxes_full(self) -> bool:
        return any(sender.outbox.outstanding >= sender.settings.max_outstanding for sender in self.senders.values())

    def _unstored_outboxes_full(self) -> bool:
        return any(
            not sender.outbox.stored and sender.outbox.outstanding >= sender.settings.max_outstanding
            for sender in self.senders.values()
        )

    def _source_ended(self) -> None:
        if all(receiver.state is State.ENDED for receiver in self.receivers.values()):
            for thread in self.contexts.values():
                if isinstance(thread, ProcessorThread):
                    thread.conclude()
        self._notify()

    def _all_done(self) -> bool:
        if any(receiver.state is not State.ENDED for receiver in self.receivers.values()):
            return False
        if any(
            not thread.idle or (isinstance(thread, ProcessorThread) and not thread.concluded)
            for thread in self.contexts.values()
        ):
            return False
        return (
            self.checkpoint(timeout=1.0) and all(sender.idle for sender in self.senders.values()) and self.checkpoint()
        )

    def _failed(self, actor: Actor, error: BaseException) -> None:
        """A thread ended by an exception: nothing may be committed, acknowledged or sent any more."""
        if self.failure is None:
            self.failure = error
            self._log.critical("the engine stops", part=actor.name, error=error)
        for other in self.actors():
            other.stop()
        self.request_stop()

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()

    # --- stopping ---

    def _drain(self) -> None:
        point("stop.begin")
        for receiver in self.receivers.values():
            receiver.draining = True
            receiver.wake()
        self._wait(lambda: all(receiver.quiet for receiver in self.receivers.values()))
        point("stop.drain")
        self._wait(lambda: all(thread.idle for thread in self.contexts.values()))
        point("stop.final_ck")
        self.checkpoint(self.settings.stop_timeout)
        if not self._wait(lambda: all(sender.idle for sender in self.senders.values())):
            waiting = {name: sender.outbox.outstanding for name, sender in self.senders.items() if not sender.idle}
            self._log.warning(
                "stopping while sends wait for a broker; they leave after the next start", waiting=waiting
            )
        self.checkpoint(self.settings.stop_timeout)
        point("stop.close")

    def _wait(self, done: Callable[[], bool]) -> bool:
        deadline = self._clock.monotonic() + self.settings.stop_timeout
        while not done():
            if self.failure is not None or self._clock.monotonic() > deadline:
                return False
            with self._changed:
                self._changed.wait(0.01)
        return True

    def _close_all(self) -> None:
        for name, connection in list(self._connections.items()):
            connection.close()
            if name not in self._given_connections:
                del self._connections[name]
        if self._store is not None and (self.writer is None or not self._threads_running):
            self._store.close()

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """SIGTERM and SIGINT ask for an orderly stop; a second one kills at once. Only in the main thread."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def asked(number: int, _: FrameType | None) -> None:
            for again in handled:
                signal.signal(again, lambda _number, _frame: os._exit(128 + number))
            self._log.info("stopping", signal=signal.Signals(number).name)
            self._stop_asked.set()

        handled = [signal.SIGTERM, signal.SIGINT]
        before = [signal.signal(number, asked) for number in handled]
        try:
            yield
        finally:
            for number, handler in zip(handled, before, strict=True):
                signal.signal(number, handler)


def _of(processor: Processor, owner: str) -> bool:
    return owner.startswith(f"step:{processor.name}/")
