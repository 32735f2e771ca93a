"""The parts of an engine: makes contexts, senders and receivers from settings, and knows how they hang together."""

import dataclasses
import itertools
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import msgspec

from correlator.core.commit import OutboundSegment, SenderCut
from correlator.core.context import Context, Routes
from correlator.core.dedup import DuplicateDetector
from correlator.core.faults import point
from correlator.core.instances import OnError
from correlator.core.mapping import ReceiveMapping
from correlator.core.outbox import FlushRequest, Outbox
from correlator.core.queue import Run
from correlator.core.recovery import default_domain
from correlator.core.reliability import RECEIVING
from correlator.errors import ConfigError, CorrelatorError
from correlator.events import SenderFlushed
from correlator.ports import Connection, Processor
from correlator.runtime.clock import Clock, EngineTime
from correlator.runtime.contexts import BatchContext, MonitorThread, ProcessorThread
from correlator.runtime.names import connector, resolve
from correlator.runtime.receiver import Receiver, Targets
from correlator.runtime.sender import Sender
from correlator.runtime.writer import Writer
from correlator.settings import EngineSettings, ReceiverSettings, SenderSettings

ContextThread = MonitorThread | ProcessorThread
P = TypeVar("P")
HandlerFailure = Callable[[OnError, CorrelatorError], None]


class Numbers(msgspec.Struct, frozen=True, kw_only=True):
    """Where a receiver goes on: number of its next message, count of its next batch, last batch surely acknowledged."""

    next_number: int = 1
    next_batch: int = 1
    confirmed_batch: int = 0


class Parts:
    """Contexts, senders and receivers of one engine.

    Dictionaries are replaced, never changed in place, once threads run: a reader in another thread needs no lock.

    Args:
        settings: of the engine.
        connections: given connections by name; others are made when they are first needed.
        clock: monotonic seconds.
        engine_time: engine time.
        writer: `None` without persistence.
        blocking: whether sources may block.
    """

    def __init__(
        self,
        settings: EngineSettings,
        connections: Mapping[str, Connection],
        *,
        clock: Clock,
        engine_time: EngineTime,
        writer: Writer | None,
        blocking: bool,
    ) -> None:
        self.routes = Routes()
        self.routes.woken = self.wake_all
        self.routes.next_flush = itertools.count(1).__next__
        self.contexts: dict[str, ContextThread] = {}
        self.receivers: dict[str, Receiver] = {}
        self.senders: dict[str, Sender] = {}
        self.receiver_routes: dict[str, Sequence[str]] = {}
        self.engine_time = engine_time
        self.writer = writer
        self._settings = settings
        self._connections = dict(connections)
        self._clock = clock
        self._blocking = blocking
        self._changing = threading.Lock()

    # --- contexts ---

    def context(self, name: str, failed: HandlerFailure) -> Context:
        """The context of monitors with this name, made when it does not exist."""
        thread = self.contexts.get(name)
        if thread is None:
            context = Context(name, self.routes, resolve, failed, self.engine_time.now())
            thread = self.contexts[name] = MonitorThread(
                context, self.engine_time, self._unstored_outboxes_full, persistent=self.writer is not None
            )
            self.routes.channels = {**self.routes.channels, name: [context.queue]}
        assert isinstance(thread, MonitorThread)
        return thread.context

    def add_processor(self, processor: Processor, state: Mapping[str, dict[bytes, bytes]]) -> ProcessorThread:
        """The context of a pipeline, with its part of the keyed state."""
        prefix = f"step:{processor.name}/"
        own = {owner: kept for owner, kept in state.items() if owner.startswith(prefix)}
        context = BatchContext(processor.name, own)
        thread = ProcessorThread(
            processor,
            context,
            self.routes,
            self.engine_time,
            self._outboxes_full,
            persistent=self.writer is not None,
        )
        self.contexts[processor.name] = thread
        return thread

    def monitor_threads(self) -> list[MonitorThread]:
        """The contexts of monitors."""
        return [thread for thread in self.contexts.values() if isinstance(thread, MonitorThread)]

    def processor_threads(self) -> list[ProcessorThread]:
        """The contexts of pipelines."""
        return [thread for thread in self.contexts.values() if isinstance(thread, ProcessorThread)]

    def wake_all(self) -> None:
        """Wake senders and contexts."""
        for sender in self.senders.values():
            sender.wake()
        for thread in self.contexts.values():
            thread.wake()

    # --- senders ---

    def make_sender(
        self,
        settings: SenderSettings,
        source: str,
        cut: SenderCut | None = None,
        outbound: Sequence[OutboundSegment] = (),
    ) -> Sender:
        """A sender with its outbox, as the last checkpoint left it; nobody can send to it before `add_sender`."""
        placed = settings
        if settings.destination is not None:
            placed = dataclasses.replace(settings, destination=self._destination(settings.destination))
        outbox = Outbox(
            settings.id,
            settings.reliability,
            source,
            placed.destination or "",
            settings.unique_message_id_property,
            settings.message_source_id_property,
            self._destination,
        )
        if cut is not None and outbox.stored:
            point("rec.load.outbox")
            outbox.restore(cut, outbound)
        return Sender(
            settings,
            outbox,
            self._connection(settings.connection).sink(placed),
            clock=self._clock,
            engine_time=self.engine_time,
            retry_interval=self._settings.connection_retry_interval,
            persistent=self.writer is not None,
            fail_fast=self._settings.fail_fast,
            flushed=self._flushed,
        )

    def add_sender(self, sender: Sender) -> None:
        """Make a sender one of the parts: from now on it can be sent to."""
        name = sender.settings.id
        with self._changing:
            self.senders = {**self.senders, name: sender}
            self.routes.outboxes = {**self.routes.outboxes, name: sender.outbox}

    def close_to_sends(self, name: str) -> None:
        """Refuse what is sent to a sender from now on: it is being removed."""
        with self._changing:
            self.routes.closing |= {name}

    def _flushed(self, sender: str, request: FlushRequest, failed: int) -> None:
        event = SenderFlushed(sender=sender, request_id=request.request_id, failed=failed)
        thread = self.contexts[request.context]
        thread.queue.deliver(Run("", 0, (), (event,), stored=False))
        thread.wake()

    def _outboxes_full(self) -> bool:
        return any(sender.outbox.outstanding >= sender.settings.max_outstanding for sender in self.senders.values())

    def _unstored_outboxes_full(self) -> bool:
        return any(
            not sender.outbox.stored and sender.outbox.outstanding >= sender.settings.max_outstanding
            for sender in self.senders.values()
        )

    # --- receivers ---

    def make_receiver(self, settings: ReceiverSettings, numbers: Numbers) -> Receiver:
        """A receiver; its contexts exist already. Nobody knows it before `add_receiver`."""
        mode = RECEIVING[settings.reliability]
        placed = dataclasses.replace(settings, destination=self._destination(settings.destination))
        connection = self._connection(settings.connection)
        domain = default_domain(settings) if mode.deduplicated else None
        if domain is not None:
            self.detector(domain)
        if mode.acknowledged_by_application and self._pipelines_of(settings.id):
            raise ConfigError(
                "E1207", f"receiver '{settings.id}'", "APP_CONTROLLED needs a monitor; a pipeline acknowledges nothing"
            )
        targets = self._targets(settings.id)
        return Receiver(
            settings,
            connection.source(placed),
            connection.features,
            self._mapping(settings, deduplicated=mode.deduplicated),
            targets,
            self.writer,
            domain=domain,
            next_number=numbers.next_number,
            next_batch=numbers.next_batch,
            confirmed_batch=numbers.confirmed_batch,
            clock=self._clock,
            engine_time=self.engine_time,
            max_backlog=self._settings.max_queued,
            hold=self._outboxes_full,
            retry_interval=self._settings.connection_retry_interval,
            fail_fast=self._settings.fail_fast,
            blocking=self._blocking,
        )

    def add_receiver(self, receiver: Receiver) -> None:
        """Make a receiver one of the parts."""
        name, mode = receiver.settings.id, RECEIVING[receiver.settings.reliability]
        with self._changing:
            if mode.stored:
                self.receiver_routes = {**self.receiver_routes, name: receiver.targets.names}
            if mode.acknowledged_by_application:
                self.routes.resume = {**self.routes.resume, name: receiver.resume}
            self.receivers = {**self.receivers, name: receiver}

    @staticmethod
    def _mapping(settings: ReceiverSettings, *, deduplicated: bool) -> ReceiveMapping:
        return ReceiveMapping(
            settings.id,
            resolve(settings.event, f"receiver {settings.id}.event") if settings.event else None,
            settings.unique_message_id,
            settings.message_source_id,
            deduplicated=deduplicated,
            max_message_bytes=settings.max_message_bytes,
        )

    def _targets(self, receiver: str) -> Targets:
        """A receiver that pipelines name delivers to them, any other one to all contexts of monitors."""
        threads: Sequence[ContextThread] = self._pipelines_of(receiver) or self.monitor_threads()
        if not threads:
            raise ConfigError(
                "E1208",
                f"receiver '{receiver}'",
                "delivers to nobody",
                "A pipeline names it under 'from', or there is a monitor",
                "Name it in a pipeline, or leave it out",
            )
        return Targets([(thread.cuttable.name, thread.queue, thread.wake) for thread in threads])

    def _pipelines_of(self, receiver: str) -> list[ProcessorThread]:
        return [thread for thread in self.processor_threads() if receiver in thread.processor.receivers]

    def detector(self, domain: str) -> DuplicateDetector:
        """The duplicate detector of a domain, made when it does not exist; only with persistence."""
        assert self.writer is not None
        detector = self.writer.detectors.get(domain)
        if detector is None:
            windows = self._settings.duplicate_detection
            detector = DuplicateDetector(domain, windows.per_source_window_size, windows.expiry_time)
            self.writer.detectors[domain] = detector
        return detector

    def numbers_of_new(self, receiver: str) -> Numbers:
        """Where a new receiver begins: beyond what a removed one of the same id has left in contexts and domains."""
        entered = max((thread.queue.entered.get(receiver, 0) for thread in self.contexts.values()), default=0)
        detectors = list(self.writer.detectors.values()) if self.writer is not None else []
        batch = max((detector.last_batch(receiver) for detector in detectors), default=0)
        return Numbers(next_number=entered + 1, next_batch=batch + 1, confirmed_batch=batch)

    def domains_only_of(self, receiver: str) -> list[str]:
        """The duplicate detection domain of a receiver, unless another one shares it."""
        domain = self.receivers[receiver].domain if receiver in self.receivers else None
        others = {part.domain for name, part in self.receivers.items() if name != receiver}
        return [] if domain is None or domain in others else [domain]

    # --- both ---

    def forget(self, part_id: str) -> None:
        """A dynamic part was removed from the store: let go of it."""
        with self._changing:
            self.receivers = _without(self.receivers, part_id)
            self.senders = _without(self.senders, part_id)
            self.receiver_routes = _without(self.receiver_routes, part_id)
            self.routes.outboxes = _without(self.routes.outboxes, part_id)
            self.routes.resume = _without(self.routes.resume, part_id)
            self.routes.closing -= {part_id}
        for thread in self.contexts.values():
            with thread.lock:
                thread.queue.forget(part_id)

    def close(self) -> None:
        """Close the connections; after all senders and receivers."""
        for connection in self._connections.values():
            connection.close()

    def _connection(self, name: str) -> Connection:
        if name not in self._connections:
            settings = self._settings.connections[name]
            self._connections[name] = connector(settings.type, f"connections.{name}")(name, settings)
        return self._connections[name]

    def _destination(self, destination: str) -> str:
        return self._settings.destinations.get(destination, destination)


def _without(parts: dict[str, P], name: str) -> dict[str, P]:
    return {other: part for other, part in parts.items() if other != name}
