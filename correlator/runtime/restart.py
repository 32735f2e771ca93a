"""Recovery: a start makes the parts of the engine from the settings and from the content of the store.

The order of recovery is that of rule A9.14. First all objects are restored, and `on_begin_recovery` is called. Then the
life-cycle methods of new monitors are called (`onload`, `on_begin_recovery`). Then the queued events are handled, and
`on_conclude_recovery` is called. Receivers open only afterwards. At that moment, events that handlers have sent to
contexts meanwhile may still wait.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from correlator.core.commit import Endpoint, Recovered, StateEntry, Suspect
from correlator.core.context import Context
from correlator.core.crowding import CROWDED
from correlator.core.dedup import surely_acknowledged
from correlator.core.delivery import Received
from correlator.core.differences import (
    StoredMonitorFacts,
    Verdict,
    compare_contexts,
    compare_monitors,
    compare_tables,
    refuse,
)
from correlator.core.faults import point
from correlator.core.instances import OnError, StoredMonitor, restore_monitor, waiting_owner
from correlator.core.intake import Numbers
from correlator.core.messages import decode_event
from correlator.core.monitor import Monitor
from correlator.core.queue import InputQueue, Run
from correlator.core.recovery import ReceiveLog, restored_runs
from correlator.core.steps import changed_state, changes_of, clock_of_step, compare_steps, owner_of, stored_steps
from correlator.core.unhandled import OWNER as UNHANDLED
from correlator.core.unmapped import OWNER as UNMAPPED
from correlator.core.unmapped import Unmapped
from correlator.errors import ConfigError
from correlator.events import DeadLetter
from correlator.ports import Processor
from correlator.runtime.contexts import MonitorThread
from correlator.runtime.dynamic_parts import dynamic_part, made_again
from correlator.runtime.logs import get_logger
from correlator.runtime.monitors import unfit
from correlator.runtime.names import resolve
from correlator.runtime.parts import HandlerFailure, Parts
from correlator.runtime.receiver import Receiver
from correlator.runtime.remarks import unheard, unstored
from correlator.runtime.suspects import Commit, Suspects
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
"""The content from which an engine without a store starts."""

OVERTAKEN = 10
"""The number of engines of earlier lives that may still hold a batch when this engine starts."""

State = dict[str, dict[bytes, bytes]]
Events = Callable[[int, Sequence[Any]], Sequence[Any]]
_decoder = msgspec.msgpack.Decoder(StoredMonitor)
MOST_TOLD = 20
"""The number of stored messages that get a line of their own in the log because they can no longer be mapped."""


class Restart:
    """One start. The thread that starts the engine uses it, before any other thread runs.

    Args:
        settings: settings of the engine.
        parts: makes and keeps the parts.
        recovered: the content of the store.
        registry: all receivers and senders by id.
        failed: called for each failure of a handler that does not stop the engine.
        note: commits a note about the messages that are handled next.
        absolve: called with each message that becomes a dead letter instead of being handled again.

    Attributes:
        recovered: the content of the store.
        changes: state that the start has changed, for the first checkpoint.
        unmapped: stored messages that could not be mapped.
    """

    def __init__(
        self,
        settings: EngineSettings,
        parts: Parts,
        recovered: Recovered,
        registry: Mapping[str, Endpoint],
        failed: HandlerFailure,
        note: Commit,
        absolve: Callable[[Suspect], None],
    ) -> None:
        self.recovered = recovered
        self._note = note
        self._absolve = absolve
        self._settings = settings
        self._parts = parts
        self._registry = registry
        self._failed = failed
        self._fresh: list[tuple[Context, Monitor]] = []
        self._receive_log = ReceiveLog(recovered.receive_log)
        self._received = received_of(recovered)
        self._batches = dict(recovered.confirmed_batches)
        self._unconfirmed_ids: dict[str, int] = {}
        self._left_batches: dict[str, int] = {}  # by receiver: its last batch in a domain that it has left
        self._recorded = {endpoint.id: endpoint for endpoint in recovered.endpoints}
        self._state: State = {}
        self.changes: Sequence[StateEntry] = ()
        self.unmapped = Unmapped({})
        self._log = get_logger(engine=settings.name)

    def make_parts(self, processors: Sequence[Processor], source_of: Callable[[Endpoint], str]) -> None:
        """Make every context, sender and receiver, and restore its content from the store.

        Args:
            processors: the pipelines.
            source_of: returns the messageSourceId of a sender.
        """
        self._restore_detectors()
        state = self._state = self._load_state()
        self._make_contexts(processors)
        self._load_monitors(state)
        self._make_senders(source_of)
        self._make_receivers()
        if self._parts.recording is not None:
            sources = {name: sender.outbox.source for name, sender in self._parts.senders.items()}
            self._parts.recording.begin(
                self.recovered, state, list(self._registry.values()), sources, persistent=self._parts.writer is not None
            )
        self._restore_queues()
        self._restore_unhandled(state.get(UNHANDLED, {}))

    def load_steps(self, processors: Sequence[Processor]) -> None:
        """Give the pipelines, which are open, their keyed state.

        Raises `RecoveryRefused` E4330, E4331 for state that does not fit the steps.
        """
        configured = [step for processor in processors for step in processor.steps]
        found = compare_steps(stored_steps(self._state), configured, self._settings.discard_state)
        refuse(found)
        for one in found:
            if one.verdict not in (Verdict.UNCHANGED, Verdict.NEW):
                changes = ", ".join(f"{change.field}: {change.before} -> {change.after}" for change in one.changes)
                self._log.warning(
                    "W4330 a step has changed since its state was stored", step=one.name, note=one.note, changes=changes
                )
            elif one.idle:
                self._log.warning(
                    "W4332 a setting about state has no effect", part=f"{one.kind} {one.name}", note=one.note
                )
        self.changes = [*self.changes, *changes_of(found, self._state)]
        if self.changes and self._parts.recording is not None:
            self._parts.recording.changed(self.changes)
        state = changed_state(self._state, self.changes)
        for thread, processor in zip(self._parts.processor_threads(), processors, strict=True):
            owners = [owner for step in processor.steps for owner in (owner_of(step.name), clock_of_step(step.name))]
            thread.context.load({owner: state.get(owner, {}) for owner in owners})

    def run_hooks(self) -> None:
        """Call the life-cycle methods of monitors, and handle the events that waited."""
        again = self.recovered.checkpoint > 0
        if again:
            point("rec.on_begin")
            self._record_hook("on_begin_recovery")
        self._record_hook("onload")
        self._work_through()
        if again:
            point("rec.on_conclude")
            self._record_hook("on_conclude_recovery")
        if self._parts.recording is not None:
            self._parts.recording.recovered()

    def call_hook(self, name: str) -> None:
        """Call a life-cycle method: `onload` of the new monitors, every other method of all monitors.

        In a recovery, the `on_begin_recovery` of a new monitor is called after its `onload`.
        """
        if name == "onload":
            hooks = ["onload", "on_begin_recovery"] if self.recovered.checkpoint > 0 else ["onload"]
            for hook in hooks:
                for context, monitor in self._fresh:
                    context.call_one(monitor, hook)
            return
        fresh = {monitor for _, monitor in self._fresh} if name == "on_begin_recovery" else ()
        for thread in self._parts.monitor_threads():
            thread.context.call_all(name, but=fresh)

    def _record_hook(self, name: str) -> None:
        if self._parts.recording is None:
            self.call_hook(name)
        else:
            self._parts.recording.hook(name, lambda: self.call_hook(name))

    def _work_through(self) -> None:
        """Handle the events that wait now, in portions; each portion is noted first. Events that handlers send may stay
        in the queues.

        If recovery also waited for these events, a monitor that keeps sending events to itself would prevent its end. A
        portion ends early if it crowds another context, so another context begins in each round.
        """
        threads = self._parts.monitor_threads()
        suspects = self._suspects([thread.context.name for thread in threads])
        last = [thread.queue.runs()[-1] for thread in threads if thread.queue.enter()]
        self._relieve(threads, suspects)
        self._work_portions(threads, suspects)
        while any(run.position < len(run) for run in last):
            threads = [*threads[1:], threads[0]]
            self._relieve(threads, suspects)
            self._work_portions(threads, suspects)
        suspects.conclude()
        for pipeline in self._parts.processor_threads():
            pipeline.begin_restored(self._suspects([pipeline.context.name], halving=True))

    def _relieve(self, threads: Sequence[MonitorThread], suspects: Suspects) -> None:
        """Let the fullest contexts handle events until none is crowded, as they would while other threads run.

        Handlers may go on sending. So the call ends at the latest when it has handled as many events as waited at its
        beginning.
        """
        if all(len(thread.queue) < CROWDED for thread in threads):
            return
        turn = sum(thread.context.handled + thread.queue.waiting for thread in threads)
        while sum(thread.context.handled for thread in threads) < turn:
            fullest = max(threads, key=lambda thread: len(thread.queue))
            if len(fullest.queue) < CROWDED:
                break
            self._work_portions([fullest], suspects)

    def _work_portions(self, threads: Sequence[MonitorThread], suspects: Suspects) -> None:
        """Handle one portion of each context; an accused message alone, so that no other message is blamed."""
        suspects.note()  # first a note without messages: a timer may end the process
        now = self._parts.engine_time.now()
        for thread in threads:
            thread.work(now, 0)
        portions = [(thread, suspects.portion(thread.context.name, thread.queue, thread.slice)) for thread in threads]
        portions = [one for one in portions if one[1].accused][:1] or portions
        if portions and portions[0][1].condemned:
            thread, portion = portions[0]
            suspects.leave_out(portion.suspects[0], thread.leave_out)
            return
        suspects.note([suspect for _, portion in portions for suspect in portion.suspects])
        with suspects.forgiving():
            for thread, portion in portions:
                if portion.size and thread.work(now, portion.size, 0) < portion.size:
                    break

    def _suspects(self, contexts: Sequence[str], *, halving: bool = False) -> Suspects:
        return Suspects(contexts, self.recovered.suspects, self._note, self._absolve, halving=halving)

    # --- contexts and monitors ---

    def _load_state(self) -> State:
        writer = self._parts.writer
        return writer.state_log.restore(self.recovered.state) if writer is not None else {}

    def _make_contexts(self, processors: Sequence[Processor]) -> None:
        for settings in self._settings.monitors:
            self._parts.context(settings.context, self._failed)
        for processor in processors:
            self._parts.add_processor(processor)
        if not self._parts.contexts:
            self._parts.context("main", self._failed)
        refuse(compare_contexts(self.recovered.contexts, self._parts.contexts))

    def _load_monitors(self, state: State) -> None:
        classes = self._monitor_classes()
        self._warn_of_effects([cls for _, cls in classes])
        contexts = [thread.context.name for thread in self._parts.monitor_threads()]
        configured = {cls.state_name: settings.context for settings, cls in classes if cls.persistent}
        refuse(compare_monitors(stored_monitors(state), configured, contexts))
        for settings, cls in classes:
            context = self._parts.context(settings.context, self._failed)
            stored = state.get(f"monitor:{cls.state_name}", {}).get(b"0")
            if cls.persistent and stored is not None:
                self._restore(context, cls, "0", _stored(stored), state, settings.on_error)
            else:
                monitor = cls(**settings.options)
                context.load(monitor, settings.on_error)
                self._fresh.append((context, monitor))
        for owner, instances in state.items():
            if owner.startswith("monitor:"):
                self._restore_spawned(instances, state)
        self._refuse_leftover_tables(state)

    def _refuse_leftover_tables(self, state: State) -> None:
        """Refuse stored tables that no monitor has: the start never assumes that a table was renamed (trap T31)."""
        monitors = [one for thread in self._parts.monitor_threads() for one in thread.context.monitors.instances]
        claimed = {table.owner for monitor in monitors for table in monitor.tables()}
        refuse(compare_tables(stored_tables(state), claimed))

    def _warn_of_effects(self, classes: Sequence[type[Monitor]]) -> None:
        pipelines = [thread.processor.receivers for thread in self._parts.processor_threads()]
        for remark in (*unheard(self._settings, classes, pipelines), *unstored(classes)):
            warning = ConfigError(remark.code, remark.part, remark.what, remark.allowed, remark.todo)
            self._log.warning(str(warning))

    def _monitor_classes(self) -> list[tuple[MonitorSettings, type[Monitor]]]:
        """The configured monitors with their classes; raises `ConfigError` for a class that cannot be used."""
        classes = [(settings, _monitor_class(settings)) for settings in self._settings.monitors]
        for _, error in unfit(classes, stored=self._parts.writer is not None):
            raise error
        return classes

    def _restore_spawned(self, instances: Mapping[bytes, bytes], state: State) -> None:
        for key, data in instances.items():
            if key != b"0":
                stored = _stored(data)
                context = self._parts.context(stored.context, self._failed)
                self._restore(context, resolve(stored.type), key.decode(), stored, state, stored.on_error)

    @staticmethod
    def _restore(
        context: Context, cls: type[Monitor], number: str, stored: StoredMonitor, state: State, on_error: OnError
    ) -> None:
        point("rec.load.state")
        monitor = restore_monitor(cls, number, stored, state)
        context.load(monitor, on_error, number, stored, state.get(waiting_owner(cls, number), {}))

    # --- senders and receivers ---

    def _make_senders(self, source_of: Callable[[Endpoint], str]) -> None:
        cuts = {cut.sender: cut for cut in self.recovered.senders}
        for settings in (*self._settings.senders, *self._dynamic("sender")):
            assert isinstance(settings, SenderSettings)
            outbound = [segment for segment in self.recovered.outbound if segment.sender == settings.id]
            endpoint = self._registry[settings.id]
            with made_again(endpoint):
                sender = self._parts.make_sender(settings, source_of(endpoint), cuts.get(settings.id), outbound)
            self._parts.add_sender(sender)

    def _restore_detectors(self) -> None:
        point("rec.load.dedup")
        writer, confirmed = self._parts.writer, self.recovered.confirmed_batches
        domains = {endpoint.id: endpoint.domain for endpoint in self._registry.values()}
        for segment in self.recovered.ids:
            receiver = segment.receiver
            self._batches[receiver] = max(self._batches.get(receiver, 0), segment.batch)
            sure = surely_acknowledged(segment, confirmed, domains)
            if domains.get(receiver) != segment.domain:
                self._left_batches[receiver] = max(self._left_batches.get(receiver, 0), segment.batch)
            assert writer is not None, "only a store has ids"
            if segment.batch > sure.get(receiver, 0):
                ids = sum(len(run.ids) for run in segment.runs)
                self._unconfirmed_ids[receiver] = self._unconfirmed_ids.get(receiver, 0) + ids
            writer.domains.detector(segment.domain).restore([segment], sure)
            for run in segment.runs:
                self._parts.engine_time.catch_up(run.time)

    def _make_receivers(self) -> None:
        for settings in (*self._settings.receivers, *self._dynamic("receiver")):
            assert isinstance(settings, ReceiverSettings)
            endpoint = self._registry[settings.id]
            with made_again(endpoint):
                receiver = self._parts.make_receiver(settings, self._numbers(settings), endpoint.domain)
            self._parts.add_receiver(receiver)

    def _dynamic(self, kind: str) -> list[ReceiverSettings | SenderSettings]:
        return [
            dynamic_part(endpoint)
            for endpoint in self._registry.values()
            if endpoint.kind == kind and endpoint.origin == "dynamic"
        ]

    def _numbers(self, settings: ReceiverSettings) -> Numbers:
        receiver = settings.id
        confirmed, received = self.recovered.confirmed_batches.get(receiver, 0), self._batches.get(receiver, 0)
        confirmed = max(confirmed, self._left_batches.get(receiver, 0))
        return Numbers(
            next_number=self._received.last_number(receiver) + 1,
            next_batch=received + 1,
            confirmed_batch=confirmed,
            in_doubt=self._in_doubt(settings, received - confirmed),
        )

    def _in_doubt(self, settings: ReceiverSettings, batches: int) -> int:
        """The largest number of messages that the broker may deliver before it has redelivered all unconfirmed batches.

        Args:
            settings: settings of the receiver.
            batches: number of its last batches whose acknowledgement is not confirmed.

        A batch may have been received with a larger `max_batch_size`, and the broker may first redeliver the batches of
        engines that this engine has overtaken.
        """
        if not batches:
            return 0
        recorded = self._recorded.get(settings.id)
        before = int(msgspec.json.decode(recorded.settings)["max_batch_size"]) if recorded else 0
        largest = max(settings.max_batch_size, before, self._unconfirmed_ids.get(settings.id, 0))
        return (batches + OVERTAKEN) * largest

    # --- queues ---

    def _restore_queues(self) -> None:
        cuts = {cut.context: cut for cut in self.recovered.contexts}
        self.unmapped = Unmapped(self._state.get(UNMAPPED, {}))
        for name, thread in self._parts.contexts.items():
            events_of = {one: self._events_of(name, receiver) for one, receiver in self._parts.receivers.items()}
            cut = cuts.get(name)
            if cut is not None:
                runs = restored_runs(
                    name, cut.queue, self._receive_log, events_of, lambda one: decode_event(resolve, one)
                )
                thread.context.restore(cut, runs, self.recovered.engine_time)
            for receiver, names in self._parts.receiver_routes.items():
                if name in names:
                    after = self._registry[receiver].delivers_to[name]
                    thread.queue.begin(receiver, self._received.entered(name, receiver, after))
                    self._deliver_beyond(name, thread.queue, receiver, events_of[receiver])
        self._tell_unmapped(self.unmapped.letters)

    def _tell_unmapped(self, letters: Sequence[DeadLetter]) -> None:
        """Log why stored messages became dead letters, also for an operator who has just replayed dead letters."""
        for letter in letters[:MOST_TOLD]:
            self._log.error(
                "a stored message cannot be mapped; it becomes a dead letter",
                receiver=letter.receiver,
                number=letter.number,
                unique_id=letter.unique_id,
                reason=letter.reason,
            )
        if len(letters) > MOST_TOLD:
            self._log.error("more stored messages cannot be mapped", count=len(letters) - MOST_TOLD)

    def _restore_unhandled(self, stored: Mapping[bytes, bytes]) -> None:
        ledgers = {receiver: one for receiver, one in self._parts.unhandled.items() if one.stored}
        for receiver, unhandled in self._parts.unhandled.items():
            endpoint, names = self._registry[receiver], self._parts.receivers[receiver].targets.names
            unhandled.restore(
                stored.get(receiver.encode()) if receiver in ledgers else None,
                through={name: self._parts.contexts[name].queue.handled_through(receiver) for name in names},
                entered={cut.context: cut.entered.get(receiver, 0) for cut in self.recovered.contexts},
                given_after=endpoint.delivers_to,
                after=endpoint.unhandled_after,
            )
            if endpoint.unhandled_after > self._recorded.get(receiver, endpoint).unhandled_after:
                self._log.info(
                    "messages that no monitor listens for become dead letters, except those received before",
                    receiver=receiver,
                    after=endpoint.unhandled_after,
                )
        gone = [key for key in stored if key.decode() not in ledgers]
        self.changes = [*self.changes, *(StateEntry(UNHANDLED, key, None) for key in gone)]

    def _deliver_beyond(self, context: str, queue: InputQueue, receiver: str, events: Events) -> None:
        """Deliver the messages that were received after the checkpoint: they had not entered the queue at the cut."""
        for first, messages in self._receive_log.beyond(context, receiver, queue.entered.get(receiver, 0)):
            queue.deliver(Run(receiver, first, messages, events(first, messages), stored=True))

    def _events_of(self, context: str, receiver: Receiver) -> Events:
        def events(first: int, messages: Sequence[Any]) -> Sequence[Any]:
            point("rec.replay")
            mapped, letters = receiver.mapper.mapping.remap(messages, first, self._parts.engine_time.now())
            return self.unmapped.leave_out(context, receiver.settings.id, first, mapped, letters)

        return events


def _monitor_class(settings: MonitorSettings) -> type[Monitor]:
    cls = resolve(settings.type, f"monitor {settings.type}")
    if not issubclass(cls, Monitor):
        raise ConfigError("E1502", f"monitor {settings.type}", "is not a subclass of Monitor")
    return cls


def received_of(recovered: Recovered) -> Received:
    """Return the numbers of the received messages that the store holds."""
    logged = {segment.receiver: segment.first + len(segment.messages) - 1 for segment in recovered.receive_log}
    return Received(recovered.contexts, recovered.consumed, logged)


def stored_monitors(state: Mapping[str, Mapping[bytes, bytes]]) -> list[StoredMonitorFacts]:
    """Return the monitors whose state a store holds."""
    return [
        StoredMonitorFacts(owner.removeprefix("monitor:"), key.decode(), stored.type, stored.context)
        for owner, instances in state.items()
        if owner.startswith("monitor:")
        for key, stored in ((key, _stored(data)) for key, data in instances.items())
    ]


def stored_monitor(state: Mapping[str, Mapping[bytes, bytes]], facts: StoredMonitorFacts) -> StoredMonitor:
    """Return the stored state of one monitor."""
    return _stored(state[f"monitor:{facts.name}"][facts.number.encode()])


def stored_tables(state: Mapping[str, Mapping[bytes, bytes]]) -> dict[str, int]:
    """Return the number of keys of each table whose state a store holds, by the owner of the table."""
    return {owner: len(kept) for owner, kept in state.items() if owner.startswith("table:")}


def _stored(data: bytes) -> StoredMonitor:
    return _decoder.decode(data)
