"""What a start does with what the store holds: state, detectors, outboxes and queues become living parts again.

The order is that of recovery (FEATURES A9.14): objects are restored, then `on_begin_recovery`, then the queued events
are handled, then `on_conclude_recovery`; only afterwards receivers open.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from correlator.core.commit import Endpoint, Recovered
from correlator.core.context import Context, decode_event
from correlator.core.faults import point
from correlator.core.instances import OnError, StoredMonitor, restore_monitor
from correlator.core.monitor import Monitor
from correlator.core.queue import Run
from correlator.core.recovery import ReceiveLog, restored_runs
from correlator.errors import ConfigError, RecoveryRefused
from correlator.events import DeadLetter
from correlator.ports import Processor
from correlator.runtime.contexts import MonitorThread
from correlator.runtime.logs import get_logger
from correlator.runtime.names import resolve
from correlator.runtime.parts import HandlerFailure, Numbers, Parts
from correlator.runtime.receiver import Receiver
from correlator.settings import EngineSettings, MonitorSettings, ReceiverSettings, SenderSettings

NOTHING = Recovered(
    epoch=0,
    commit=0,
    checkpoint=0,
    engine_time=0.0,
    digest=b"",
    contexts=(),
    senders=(),
    state=(),
    ids=(),
    confirmed_batches={},
    consumed={},
    receive_log=(),
    outbound=(),
    endpoints=(),
)
"""What an engine without persistence starts from."""

State = dict[str, dict[bytes, bytes]]
Events = Callable[[Sequence[Any]], Sequence[Any]]


class Restart:
    """One start. Used by the engine's thread before any other thread runs.

    Args:
        settings: of the engine.
        parts: where parts are made.
        recovered: what the store holds.
        registry: all endpoints.
        failed: told of handler failures that do not stop the engine.
    """

    def __init__(
        self,
        settings: EngineSettings,
        parts: Parts,
        recovered: Recovered,
        registry: Mapping[str, Endpoint],
        failed: HandlerFailure,
    ) -> None:
        self.recovered = recovered
        self._settings = settings
        self._parts = parts
        self._registry = registry
        self._failed = failed
        self._fresh: list[tuple[Context, Monitor]] = []
        self._receive_log = ReceiveLog(recovered.receive_log)
        self._batches = dict(recovered.confirmed_batches)
        self._unmapped: list[DeadLetter] = []
        self._log = get_logger(engine=settings.name)

    def make_parts(self, processors: Sequence[Processor], source_of: Callable[[Endpoint], str]) -> None:
        """Make every context, sender and receiver, and put what was stored into it.

        Args:
            processors: pipelines.
            source_of: the messageSourceId of a sender.
        """
        self._restore_detectors()
        state = self._load_state()
        self._make_contexts(processors, state)
        self._load_monitors(state)
        self._make_senders(source_of)
        self._make_receivers()
        self._restore_queues()

    def run_hooks(self) -> None:
        """Call the life-cycle methods of monitors, and handle what waited."""
        again = self.recovered.checkpoint > 0
        threads = self._parts.monitor_threads()
        if again:
            self._call_restored("rec.on_begin", "on_begin_recovery")
        for context, monitor in self._fresh:
            context.call_one(monitor, "onload")
        if again:
            while sum(thread.context.work(thread.slice, self._parts.engine_time.now()) for thread in threads):
                pass  # in turn, so that no context floods another one's queue
            self._call_restored("rec.on_conclude", "on_conclude_recovery")

    def _call_restored(self, name: str, hook: str) -> None:
        point(name)
        fresh = {monitor for _, monitor in self._fresh}
        for thread in self._parts.monitor_threads():
            thread.context.call_restored(hook, fresh)

    # --- contexts and monitors ---

    def _load_state(self) -> State:
        writer = self._parts.writer
        return writer.state_log.restore(self.recovered.state) if writer is not None else {}

    def _make_contexts(self, processors: Sequence[Processor], state: State) -> None:
        for settings in self._settings.monitors:
            self._parts.context(settings.context, self._failed)
        for processor in processors:
            self._parts.add_processor(processor, state)
        if not self._parts.contexts:
            self._parts.context("main", self._failed)
        if self._settings.receivers and not self._settings.monitors and not processors:
            self._log.warning("there is neither a monitor nor a pipeline: what is received is handled by nobody")
        for cut in self.recovered.contexts:
            if cut.context not in self._parts.contexts and cut.queue:
                raise _not_configured("E4315", f"context '{cut.context}'", f"{len(cut.queue)} runs of events waiting")

    def _load_monitors(self, state: State) -> None:
        restored: set[str] = set()
        seen: set[str] = set()
        for settings in self._settings.monitors:
            cls = self._monitor_class(settings)
            if cls.persistent and cls.state_name in seen:
                raise ConfigError(
                    "E1506",
                    f"monitor {settings.type}",
                    f"its state name '{cls.state_name}' is used twice",
                    "Persistent monitors share no state",
                    "Make one of them spawn the others, or give the class a name=",
                )
            seen.add(cls.state_name)
            context = self._parts.context(settings.context, self._failed)
            stored = state.get(f"monitor:{cls.state_name}", {}).get(b"0")
            if cls.persistent and stored is not None:
                restored.add(cls.state_name)
                lived = _stored(stored).context
                if lived != settings.context:
                    raise RecoveryRefused(
                        "E4313",
                        f"monitor '{cls.state_name}'",
                        f"lived in context '{lived}', is configured for '{settings.context}'",
                        "What a context has handled is recorded by its name",
                        "Put it back",
                    )
                self._restore(context, cls, "0", _stored(stored), state, settings.on_error)
            else:
                monitor = cls(**settings.options)
                context.load(monitor, settings.on_error)
                self._fresh.append((context, monitor))
        for owner, instances in state.items():
            if owner.startswith("monitor:"):
                self._restore_spawned(owner.removeprefix("monitor:"), instances, restored, state)
        self._refuse_leftover_tables(state)

    def _refuse_leftover_tables(self, state: State) -> None:
        """A table that no monitor has claimed was renamed or removed: never guess (RELIABILITY T31)."""
        monitors = [monitor for thread in self._parts.monitor_threads() for monitor in thread.context.monitors()]
        claimed = {table.owner for monitor in monitors for table in monitor.tables()}
        for owner, kept in state.items():
            if owner.startswith("table:") and kept and owner not in claimed:
                raise RecoveryRefused(
                    "E4203",
                    owner,
                    f"{len(kept)} keys are in the store, but no monitor has this table",
                    "State is never guessed",
                    "Put the attribute back under its old name",
                )

    def _monitor_class(self, settings: MonitorSettings) -> type[Monitor]:
        cls = resolve(settings.type, f"monitor {settings.type}")
        if not issubclass(cls, Monitor):
            raise ConfigError("E1502", f"monitor {settings.type}", "is not a subclass of Monitor")
        if cls.persistent and self._parts.writer is None:
            raise ConfigError(
                "E1206", f"monitor {settings.type}", "a persistent monitor needs a persistent engine", "", "Set 'store'"
            )
        return cls

    def _restore_spawned(
        self, name: str, instances: Mapping[bytes, bytes], restored: Iterable[str], state: State
    ) -> None:
        for key, data in instances.items():
            stored = _stored(data)
            if key == b"0":
                if name not in restored:
                    raise _not_configured("E4202", f"monitor '{name}'", f"state of {stored.type}")
                continue
            thread = self._parts.contexts.get(stored.context)
            if not isinstance(thread, MonitorThread):
                raise _not_configured("E4315", f"context '{stored.context}'", f"a monitor {stored.type}")
            self._restore(thread.context, resolve(stored.type), key.decode(), stored, state, stored.on_error)

    @staticmethod
    def _restore(
        context: Context, cls: type[Monitor], number: str, stored: StoredMonitor, state: State, on_error: OnError
    ) -> None:
        point("rec.load.state")
        context.load(restore_monitor(cls, number, stored, state), on_error, number, stored)

    # --- senders and receivers ---

    def _make_senders(self, source_of: Callable[[Endpoint], str]) -> None:
        cuts = {cut.sender: cut for cut in self.recovered.senders}
        for settings in (*self._settings.senders, *self._dynamic("sender", SenderSettings)):
            outbound = [segment for segment in self.recovered.outbound if segment.sender == settings.id]
            source = source_of(self._registry[settings.id])
            self._parts.add_sender(self._parts.make_sender(settings, source, cuts.get(settings.id), outbound))

    def _restore_detectors(self) -> None:
        point("rec.load.dedup")
        confirmed = self.recovered.confirmed_batches
        for segment in self.recovered.ids:
            receiver = segment.receiver
            self._batches[receiver] = max(self._batches.get(receiver, 0), segment.batch)
            sure = confirmed if receiver in self._registry else {receiver: segment.batch}  # a removed one gets nothing
            self._parts.detector(segment.domain).restore([segment], sure)
            for run in segment.runs:
                self._parts.engine_time.catch_up(run.time)

    def _make_receivers(self) -> None:
        for settings in (*self._settings.receivers, *self._dynamic("receiver", ReceiverSettings)):
            self._parts.add_receiver(self._parts.make_receiver(settings, self._numbers(settings.id)))

    def _dynamic(self, kind: str, settings: type[Any]) -> list[Any]:
        return [
            msgspec.json.decode(endpoint.settings, type=settings)
            for endpoint in self._registry.values()
            if endpoint.kind == kind and endpoint.origin == "dynamic"
        ]

    def _numbers(self, receiver: str) -> Numbers:
        entered = max((cut.entered.get(receiver, 0) for cut in self.recovered.contexts), default=0)
        last = max(entered, self.recovered.consumed.get(receiver, 0), self._receive_log.last_number(receiver))
        return Numbers(
            next_number=last + 1,
            next_batch=self._batches.get(receiver, 0) + 1,
            confirmed_batch=self.recovered.confirmed_batches.get(receiver, 0),
        )

    # --- queues ---

    def _restore_queues(self) -> None:
        cuts = {cut.context: cut for cut in self.recovered.contexts}
        events_of = {name: self._events_of(receiver) for name, receiver in self._parts.receivers.items()}
        for name, thread in self._parts.contexts.items():
            cut = cuts.get(name)
            if cut is not None:
                runs = restored_runs(cut.queue, self._receive_log, events_of, lambda one: decode_event(resolve, one))
                thread.context.restore(cut, runs, self.recovered.engine_time)
            for receiver, names in self._parts.receiver_routes.items():
                if name in names:
                    self._deliver_beyond(thread.queue, receiver, events_of[receiver])
        if self._unmapped:
            self._log.error("stored messages no longer map", count=len(self._unmapped))
            next(iter(self._parts.contexts.values())).context.keep_dead_letters(self._unmapped)

    def _deliver_beyond(self, queue: Any, receiver: str, events: Events) -> None:
        """What was received after the checkpoint: it had not entered the queue at the cut."""
        for first, messages in self._receive_log.beyond(receiver, queue.entered.get(receiver, 0)):
            queue.deliver(Run(receiver, first, messages, events(messages), stored=True))

    def _events_of(self, receiver: Receiver) -> Events:
        def events(messages: Sequence[Any]) -> Sequence[Any]:
            point("rec.replay")
            mapped, failures = receiver.mapping.remap(messages, self._parts.engine_time.now())
            self._unmapped.extend(failures)
            return mapped

        return events


def _stored(data: bytes) -> StoredMonitor:
    return msgspec.msgpack.decode(data, type=StoredMonitor)


def _not_configured(code: str, where: str, what: str) -> RecoveryRefused:
    return RecoveryRefused(code, where, f"is in the store ({what}) but not in the configuration", "", "Put it back")
