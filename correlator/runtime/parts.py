"""The parts of an engine: makes contexts, senders and receivers from settings, and connects them with one another."""

import dataclasses
import itertools
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from correlator.configuration.connectors import connector
from correlator.connector import Connection, Features, Grouping, Listening, group_of, notes_of
from correlator.core.admission import (
    at_same_place,
    leaves_out_reasons,
    refuse_beside,
    refuse_call,
    refuse_for_pipelines,
    selection,
)
from correlator.core.backoff import Backoff
from correlator.core.batch_context import BatchContext
from correlator.core.calls import Watcher
from correlator.core.commit import OutboundSegment, SenderCut
from correlator.core.context import Context
from correlator.core.crowding import MAX_WAITING_FROM_INSIDE
from correlator.core.delivery import Layout
from correlator.core.dispatch import Dispatcher
from correlator.core.faults import point
from correlator.core.fields import FieldMapping, SendMapping
from correlator.core.instances import OnError
from correlator.core.intake import Intake, Numbers
from correlator.core.mapping import ReceiveMapping
from correlator.core.outbox import FlushRequest, Outbox
from correlator.core.queue import InputQueue, Run
from correlator.core.routes import Routes, nothing_left
from correlator.core.unhandled import Unhandled
from correlator.errors import ConfigError, CorrelatorError
from correlator.events import SenderFlushed
from correlator.ports import Processor
from correlator.processes import Maker
from correlator.reliability import RECEIVING, SENDING
from correlator.runtime.breakdown import SENDER_ITEMS, Breakdown, NoBreakdown, receiver_items
from correlator.runtime.calling import CallingSink, function_of
from correlator.runtime.clock import Clock, EngineTime
from correlator.runtime.contexts import MonitorThread, ProcessorThread
from correlator.runtime.latency import Runs
from correlator.runtime.logs import get_logger
from correlator.runtime.mapper import Mapper
from correlator.runtime.names import resolve
from correlator.runtime.receiver import Receiver
from correlator.runtime.reconnection import ReconnectionPolicy
from correlator.runtime.recording import Recording
from correlator.runtime.sender import Sender
from correlator.runtime.statuses import Statuses
from correlator.runtime.targets import Targets
from correlator.runtime.writer import Writer
from correlator.settings import EngineSettings, ReceiverSettings, SenderSettings

if TYPE_CHECKING:
    from correlator.runtime.spans import Spans

ContextThread = MonitorThread | ProcessorThread
P = TypeVar("P")
HandlerFailure = Callable[[OnError, CorrelatorError, str], None]


def _nothing() -> None:
    """Do nothing: the default of callbacks, for parts without an engine."""


def _untold(_name: str, **_values: Any) -> None:
    """Do nothing, for callbacks with arguments; see `_nothing`."""


def _no_outbox(_sender: str) -> Outbox | None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Callbacks:
    """What parts ask of their engine and report to it, each from its own thread.

    Attributes:
        default_senders: ids of the default senders; each of them exists once something is sent to it.
        default_outbox: makes a default sender and returns its outbox; returns `None` for any other id.
        want_checkpoint: orders a checkpoint soon, because sends that wait for it fill an outbox.
        rested: reports that a context has nothing to do while its sends wait for a checkpoint.
        ended: reports that a source has come to its end.
        processed: reports that a pipeline has processed a batch or has concluded.
        told: reports a change of state for the timeline, as `Timeline.add`.
    """

    default_senders: Collection[str] = ()
    default_outbox: Callable[[str], Outbox | None] = _no_outbox
    want_checkpoint: Callable[[], None] = _nothing
    rested: Callable[[], None] = _nothing
    ended: Callable[[], None] = _nothing
    processed: Callable[[], None] = _nothing
    told: Callable[..., None] = _untold


@dataclass(slots=True)
class Removed:
    """Totals of the removed parts: messages that receivers had received, and messages that senders had settled."""

    received: int = 0
    sent: int = 0


class Parts:
    """Contexts, senders and receivers of one engine.

    Once threads run, its dictionaries are replaced and never changed in place: a reader in another thread needs no
    lock.

    Args:
        settings: settings of the engine.
        connections: connections by name that replace the configured ones; others are made at their first use.
        clock: for time-outs and back-off, in monotonic seconds.
        engine_time: the clock for contexts and senders.
        writer: the store writer; `None` without a store.
        blocking: whether `Source.receive` may block.
        jitter: draws a number from 0 to 1, for the time between two attempts to connect.
        recording: records the inputs of contexts; `None` without an input log.
        spans: makes spans of sampled messages; `None` for no spans.
        callbacks: what the engine does for its parts; by default nothing.
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
        jitter: Callable[[], float],
        recording: Recording | None = None,
        spans: "Spans | None" = None,
        callbacks: Callbacks | None = None,
    ) -> None:
        self.recording = recording
        self._spans = spans
        self._changing = threading.Lock()
        self._callbacks = callbacks or Callbacks()
        self.routes = Routes(
            default_outbox=self._callbacks.default_outbox,
            woken=self.wake_all,
            next_flush=itertools.count(1).__next__,
            outstanding=self._outstanding,
            changing=self._changing,
        )
        self.contexts: dict[str, ContextThread] = {}
        self.receivers: dict[str, Receiver] = {}
        self.senders: dict[str, Sender] = {}
        self.receiver_routes: dict[str, Sequence[str]] = {}
        self.unhandled: dict[str, Unhandled] = {}
        self.statuses = Statuses(self._tell_monitors, clock, self._callbacks.told)
        self.own_sources: dict[str, frozenset[str]] = {}
        self.removed = Removed()
        self.engine_time = engine_time
        self.writer = writer
        self._settings = settings
        self._connections = dict(connections)
        self._clock = clock
        self._blocking = blocking
        self._jitter = jitter
        self._held = False

    # --- contexts ---

    def context(
        self, name: str, failed: HandlerFailure, routes: Routes | None = None, watcher: Watcher | None = None
    ) -> Context:
        """Return the context of monitors with this name; the first call makes it.

        Args:
            name: name of the context.
            failed: called for each failure of a handler that does not stop the engine.
            routes: replaces the routes of the engine, for a replay.
            watcher: learns of each call of a handler, for a replay.
        """
        thread = self.contexts.get(name)
        if thread is None:
            now, calendar = self.engine_time.now(), self.engine_time.calendar()
            tape = self.recording.tape(name, self.routes, now, calendar) if self.recording is not None else None
            routes = routes or (tape.view if tape else self.routes)
            context = Context(
                name,
                routes,
                resolve,
                failed,
                now,
                calendar,
                Maker(),
                queue=InputQueue(tape.entered, tape.forgot) if tape else InputQueue(),
                stored=self.writer is not None,
                unhandled=lambda: self.unhandled,
                tracer=None if self._spans is None else self._spans.tracer(name),
                watcher=watcher,
            )
            thread = MonitorThread(
                context,
                self.engine_time,
                self._context_held,
                persistent=self.writer is not None,
                rested=self._callbacks.rested,
                tape=tape,
            )
            self.contexts = {**self.contexts, name: thread}  # the watchdog may be reading the old dictionary
            self.routes.subscribe(name, context.queue)
        assert isinstance(thread, MonitorThread)
        return thread.context

    def add_processor(self, processor: Processor) -> ProcessorThread:
        """Make the context of a pipeline, without its keyed state."""
        context = BatchContext(processor.name)
        thread = ProcessorThread(
            processor,
            context,
            self.routes,
            self.engine_time,
            self._outboxes_full,
            persistent=self.writer is not None,
            rested=self._callbacks.rested,
            processed=self._callbacks.processed,
            told=self._callbacks.told,
            spans=self._spans,
        )
        self.contexts = {**self.contexts, processor.name: thread}
        return thread

    def monitor_threads(self) -> list[MonitorThread]:
        """The threads of contexts that run monitors, in the order in which they were made."""
        return [thread for thread in self.contexts.values() if isinstance(thread, MonitorThread)]

    def processor_threads(self) -> list[ProcessorThread]:
        """The threads of contexts that run pipelines, in the order in which they were made."""
        return [thread for thread in self.contexts.values() if isinstance(thread, ProcessorThread)]

    def _tell_monitors(self, event: Any) -> None:
        """Deliver a notice, which no checkpoint keeps, to all contexts of monitors."""
        for thread in self.monitor_threads():
            if len(thread.queue) >= MAX_WAITING_FROM_INSIDE:
                log = get_logger(engine=self._settings.name)
                log.warning("W5407 a context takes no more notices; a notice is left out", notice=str(event))
                continue
            thread.queue.deliver(Run("", 0, (), (event,), stored=False))
            thread.wake()

    def wake_all(self) -> None:
        """Wake the threads of all senders and contexts, which may have new work. Any thread may call it."""
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
        """Make a sender and its outbox, with the sends that the last checkpoint holds. Monitors can send to it after
        `add_sender`.

        Args:
            settings: settings of the sender.
            source: the messageSourceId of its messages.
            cut: what the last checkpoint holds about the sender; `None` for a new sender.
            outbound: the sends that the store holds for the sender.

        Raises `ConfigError` if its connection, destination or mapping cannot be used.
        """
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
            persistent=settings.persistent,
            time_to_live_ms=None if settings.time_to_live is None else round(settings.time_to_live * 1000),
            mapping=SendMapping(settings.mapping, f"sender {settings.id}.mapping") if settings.mapping else None,
        )
        if cut is not None and outbox.stored:
            point("rec.load.outbox")
            outbox.restore(cut, outbound)
        connection = self._connection(settings.connection)
        dispatcher = Dispatcher(
            settings,
            connection.features,
            outbox,
            jitter=self._jitter,
            keeps_dead_letters=self.writer is not None,
        )
        refuse_call(settings, f"senders.{settings.id}", connection.features)
        sink = connection.sink(placed)
        if settings.call is not None:
            function = function_of(settings.call, f"senders.{settings.id}.call")
            sink = CallingSink(settings, function, sink, self._destination)
        return Sender(
            settings,
            dispatcher,
            sink,
            clock=self._clock,
            engine_time=self.engine_time,
            reconnecting=self._reconnection_policy(),
            flushed=self._flushed,
            settled=self._settled,
            statuses=self.statuses,
            breakdown=self._breakdown(settings, SENDER_ITEMS),
            spans=self._spans,
        )

    def _reconnection_policy(self) -> ReconnectionPolicy:
        first = self._settings.connection_retry_interval
        backoff = Backoff(first, max(first, self._settings.max_connection_retry_interval))
        return ReconnectionPolicy(backoff, self._jitter, self._settings.fail_fast)

    def add_sender(self, sender: Sender) -> None:
        """Make a sender one of the parts: from now on monitors can send to it."""
        name = sender.settings.id
        with self._changing:
            self.senders = {**self.senders, name: sender}
            self._note_sources()
            self.routes.outboxes = {**self.routes.outboxes, name: sender.outbox}

    def close_to_sends(self, name: str) -> None:
        """Refuse sends to a sender from now on: it is being removed."""
        with self._changing:
            self.routes.closing |= {name}

    def _flushed(self, sender: str, request: FlushRequest, failed: int) -> None:
        event = SenderFlushed(sender=sender, request_id=request.request_id, failed=failed)
        thread = self.contexts[request.context]
        thread.queue.deliver(Run("", 0, (), (event,), stored=False))
        thread.wake()

    def _outboxes_full(self) -> bool:
        """Whether an outbox is full, so that contexts pause.

        A checkpoint does not wait for room: it moves staged sends to the outbox, and so ends the pause.
        """
        return self._full_outbox() is not None

    def _full_outbox(self) -> str | None:
        """The id of a sender whose outbox is full, `None` if every outbox has room.

        If half of the full outbox or more is staged, the call orders a checkpoint, since only a checkpoint can release
        these sends. If less is staged, the larger part is at the broker, whose confirms make room.
        """
        stagings = [staging for thread in self.contexts.values() if (staging := thread.context.staging).sends]
        for name, sender in self.senders.items():
            staged, most = sum([staging.count(name) for staging in stagings]), sender.settings.max_outstanding
            if sender.outbox.outstanding + staged >= most:
                self._held = True
                if 2 * staged >= most:
                    self._callbacks.want_checkpoint()
                return name
        return None

    def _settled(self) -> None:
        """Wake the actors that waited for room, if all outboxes have room again; called after a sender has settled a
        batch.
        """
        if self._held and self._full_outbox() is None:
            self._held = False
            for actor in (*self.contexts.values(), *self.receivers.values()):
                actor.wake()

    def _outstanding(self, name: str) -> int | None:
        """How many messages a sender has not sent or not confirmed; `None` if there is no such sender."""
        sender = self.senders.get(name)
        if sender is not None:
            return self.to_send(sender)
        return 0 if name in self._callbacks.default_senders else None

    def to_send(self, sender: Sender) -> int:
        """How many messages of a sender wait for a checkpoint or for the broker."""
        return sender.outbox.outstanding + self.staged(sender.settings.id)

    def numbers(self, sender: Sender) -> tuple[int, int]:
        """The number up to which all messages of a sender are settled, and the number of its last message, including
        staged ones.
        """
        settled, last = sender.outbox.numbers
        return settled, last + self.staged(sender.settings.id)

    def note_staged(self, name: str, first: int, runs: Runs) -> None:
        """Note since when sends of a cut are staged, beginning with the send of this number."""
        sender = self.senders.get(name)
        if sender is not None:
            sender.latency.add(first, runs)

    def staged(self, name: str) -> int:
        """How many messages of a sender wait for a checkpoint."""
        return sum(thread.context.staging.count(name) for thread in self.contexts.values())

    def _context_held(self) -> bool:
        return (self.recording is not None and self.recording.full) or self._outboxes_full()

    # --- receivers ---

    def make_receiver(self, settings: ReceiverSettings, numbers: Numbers, domain: str) -> Receiver:
        """Make a receiver, whose contexts exist already. It becomes one of the parts with `add_receiver`.

        Args:
            settings: settings of the receiver.
            numbers: the numbers of its next message and of its next batch.
            domain: its duplicate detection domain, for modes that have one.

        Raises `ConfigError` if its connection, destination, selector or mapping cannot be used, or if it delivers to no
        context.
        """
        where, mode = f"receiver '{settings.id}'", RECEIVING[settings.reliability]
        placed = dataclasses.replace(settings, destination=self._destination(settings.destination))
        connection = self._connection(settings.connection)
        if self._pipelines_of(settings.id):
            refuse_for_pipelines(settings, where)
        features = connection.features
        selector = selection(placed, where, selects=features.selects, shares=features.shares)
        others = [one.settings for one in self.receivers.values()]
        refuse_beside(
            settings,
            others,
            where,
            self._settings.destinations,
            shares=features.shares,
            group=lambda one: group_of(connection, one),
        )
        targets = self._targets(settings)
        intake = Intake(
            settings,
            features,
            selector,
            numbers,
            domain=domain,
            own_sources=lambda: self.own_sources,
            beside=lambda: sum(one.intake.redeliveries.may_give_back for one in self._beside(settings)),
        )
        mapping = mapping_of(settings, placed.destination, deduplicated=mode.deduplicated)
        return Receiver(
            settings,
            intake,
            connection.source(placed),
            Mapper(mapping, settings.max_extra_mapping_threads, f"receiver-{settings.id}", self.engine_time.now),
            targets,
            self.writer,
            clock=self._clock,
            statuses=self.statuses,
            breakdown=self._breakdown(settings, receiver_items(settings.reliability)),
            reconnecting=self._reconnection_policy(),
            blocking=self._blocking,
            spans=self._spans,
        )

    def _beside(self, settings: ReceiverSettings) -> Sequence[Receiver]:
        receivers = self.receivers
        others = [one.settings for one in receivers.values()]
        return [receivers[one.id] for one in at_same_place(settings, others, self._settings.destinations)]

    def add_receiver(self, receiver: Receiver) -> None:
        """Make a receiver one of the parts: contexts can grant it a window, and acknowledge its batches."""
        name, mode = receiver.settings.id, RECEIVING[receiver.settings.reliability]
        with self._changing:
            if mode.stored:
                self.receiver_routes = {**self.receiver_routes, name: receiver.targets.names}
            self.routes.resume = _without(self.routes.resume, name)
            if mode.acknowledged_by_application:
                self.routes.resume = {**self.routes.resume, name: receiver.resume}
            if receiver.settings.flow_control:
                self.routes.grant = {**self.routes.grant, name: receiver.grant}
            if receiver.settings.unhandled != "ignore" and not self._pipelines_of(name):
                self.unhandled = {**self.unhandled, name: self._unhandled(receiver)}
            self.receivers = {**self.receivers, name: receiver}

    def _unhandled(self, receiver: Receiver) -> Unhandled:
        settings, log = receiver.settings, get_logger(receiver=receiver.settings.id)

        def tell(count: int, event: Any) -> None:
            last = type(event).__name__
            log.warning("W5410 messages arrive that no monitor listens for", count=count, last=last)
            self._callbacks.told("unhandled", receiver=settings.id, count=count, last=last)

        return Unhandled(
            settings.id,
            receiver.targets.names,
            dead_letters=settings.unhandled == "dead_letter",
            stored=RECEIVING[settings.reliability].stored,
            changing=threading.Lock(),
            told=tell,
        )

    def _targets(self, settings: ReceiverSettings) -> Targets:
        """The contexts of a receiver: the pipelines that name it, or all contexts of monitors if no pipeline does.

        An APP_CONTROLLED receiver delivers to one context only (trap T70): the first one whose monitors acknowledge
        batches.
        """
        receiver, monitors = settings.id, self.monitor_threads()
        pipelines = {thread.context.name: thread.processor.receivers for thread in self.processor_threads()}
        layout = Layout([thread.context.name for thread in monitors], pipelines)
        threads = [self.contexts[name] for name in layout.targets(receiver)]
        if threads and RECEIVING[settings.reliability].acknowledged_by_application:
            asked: list[ContextThread] = [
                thread for thread in monitors if any(one.acknowledges() for one in thread.context.monitors.instances)
            ]
            threads = (asked or threads)[:1]
        if not threads:
            raise ConfigError(
                "E1208",
                f"receiver '{receiver}'",
                "delivers to nobody",
                "A pipeline or bridge names it under 'from', or there is a monitor",
                "Name it in a pipeline or bridge, or leave it out",
            )
        queues = [(thread.context.name, thread.queue, thread.wake) for thread in threads]
        return Targets(queues, self._settings.max_queued, self._full_outbox, self._callbacks.ended)

    def _pipelines_of(self, receiver: str) -> list[ProcessorThread]:
        return [thread for thread in self.processor_threads() if receiver in thread.processor.receivers]

    def numbers_of_new(self, receiver: str) -> Numbers:
        """The first numbers of a new receiver.

        They are higher than all that contexts and duplicate detectors know of a removed receiver with the same id.
        """
        entered = max((thread.queue.entered.get(receiver, 0) for thread in self.contexts.values()), default=0)
        detectors = list(self.writer.domains.detectors.values()) if self.writer is not None else []
        batch = max((detector.last_batch(receiver) for detector in detectors), default=0)
        return Numbers(next_number=entered + 1, next_batch=batch + 1, confirmed_batch=batch)

    # --- both ---

    def forget(self, part_id: str) -> None:
        """Remove a dynamic part from the parts and its messages from all queues; the store has removed it already."""
        with self._changing:
            if part_id in self.receivers:
                self.removed.received += self.receivers[part_id].counters.received
            else:
                self.removed.sent += self.senders[part_id].counters.settled
            self.receivers = _without(self.receivers, part_id)
            self.senders = _without(self.senders, part_id)
            self.receiver_routes = _without(self.receiver_routes, part_id)
            self.routes.outboxes = _without(self.routes.outboxes, part_id)
            if part_id in self.routes.resume:  # for a monitor that acknowledges too late: no batch is left
                self.routes.resume = {**self.routes.resume, part_id: lambda _: nothing_left}
            self.routes.grant = _without(self.routes.grant, part_id)
            self.unhandled = _without(self.unhandled, part_id)
            self._note_sources()
            self.routes.closing -= {part_id}
        for thread in self.contexts.values():
            with thread.lock:
                thread.queue.forget(part_id)

    def _note_sources(self) -> None:
        """Note the source ids of the messages that the senders of this engine send, by property (bad input 105)."""
        found: dict[str, set[str]] = {}
        for sender in self.senders.values():
            if SENDING[sender.settings.reliability].stamps_id:
                found.setdefault(sender.settings.message_source_id_property, set()).add(sender.outbox.source)
        self.own_sources = {name: frozenset(sources) for name, sources in found.items()}

    def _breakdown(self, settings: ReceiverSettings | SenderSettings, items: Sequence[str]) -> NoBreakdown:
        if not settings.log_performance_breakdown:
            return NoBreakdown()
        log = get_logger(part=settings.id)
        return Breakdown(items, self.engine_time.now, self._settings.performance_breakdown_interval, log.info)

    def use(self, name: str, connection: Connection) -> None:
        """Use a connection for the parts that are made later, unless a connection of this name is there already."""
        self._connections.setdefault(name, connection)

    def listen(self) -> None:
        """Let the connections listen to which other programs connect. Raises `ConfigError` if one of them cannot
        listen.
        """
        for connection in self._connections.values():
            if isinstance(connection, Listening):
                connection.listen()

    def features(self, connection: str) -> Features:
        """What the broker of a connection can do. The connection must have parts."""
        return self._connections[connection].features

    def subscription_of(self, receiver: ReceiverSettings) -> str:
        """The name of the subscription that a receiver reads, "" if its connection has no options that name one.

        Raises `ConfigError` if its connection or an option cannot be used.
        """
        connection = self._connection(receiver.connection)
        if not isinstance(connection, Grouping):
            return ""
        return connection.group(dataclasses.replace(receiver, destination=self._destination(receiver.destination)))

    def notes(self, receiver: ReceiverSettings) -> Sequence[str]:
        """The exceptions from the guarantees of a receiver. Its connection must have parts."""
        return notes_of(self._connections[receiver.connection], receiver)

    def leaves_out_reasons(self, sender: SenderSettings) -> ConfigError | None:
        """The warning about a sender of dead letters; see `leaves_out_reasons`. Its connection must have parts."""
        return leaves_out_reasons(sender, self._connections[sender.connection])

    def close(self) -> None:
        """Close the connections. Call it after all senders and receivers are closed."""
        for connection in self._connections.values():
            connection.close()

    def _connection(self, name: str) -> Connection:
        if name not in self._connections:
            settings = self._settings.connections[name]
            self._connections[name] = connector(settings.type, f"connections.{name}")(name, settings)
        return self._connections[name]

    def _destination(self, destination: str) -> str:
        return self._settings.destinations.get(destination, destination)


def mapping_of(settings: ReceiverSettings, destination: str, *, deduplicated: bool) -> ReceiveMapping:
    """Make the mapping of messages of a receiver to events. Raises `ConfigError` for a wrong event type or mapping."""
    where = f"receiver {settings.id}"
    event_type = resolve(settings.event, f"{where}.event") if settings.event else None
    fields = None
    if settings.mapping:
        if event_type is None:
            raise ConfigError("E1064", f"{where}.mapping", "needs an event to make", "", "Set 'event'")
        fields = FieldMapping(settings.mapping, event_type, destination, where)
    return ReceiveMapping(
        settings.id,
        event_type,
        settings.unique_message_id,
        settings.message_source_id,
        deduplicated=deduplicated,
        max_message_bytes=settings.max_message_bytes,
        fields=fields,
    )


def _without(parts: dict[str, P], name: str) -> dict[str, P]:
    return {other: part for other, part in parts.items() if other != name}
