"""Repeats a life of an engine from its input log alone: same monitors, same inputs, no connection.

The replay makes the parts of an engine but does not start them: no thread runs, and no store, source or sink is opened.
It carries out the records in order, and each checkpoint must have the digest that it had in the life.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TypeVar, cast

import msgspec

from correlator.connector import Connection, Features, Sink, Source
from correlator.core.calls import Watcher
from correlator.core.checkpoint import Checkpoint, Cut
from correlator.core.commit import Endpoint, OutboundSegment, Recovered, SenderCut, StateEntry, StateSegment
from correlator.core.context import Context
from correlator.core.instances import type_name
from correlator.core.intake import Numbers
from correlator.core.messages import decode_event
from correlator.core.outbox import FlushRequest, Outbox
from correlator.core.queue import InputQueue, Run
from correlator.core.registry import RECEIVER, SENDER
from correlator.core.routes import Acknowledge, Routes, nothing_left
from correlator.core.tape import (
    Added,
    Batch,
    Changed,
    ContextInputs,
    CutTaken,
    End,
    Entry,
    Forgotten,
    Hook,
    LeftOut,
    Record,
    Start,
    State,
    Step,
    Visible,
)
from correlator.errors import CorrelatorError, RecoveryRefused, UsageError
from correlator.events import DeadLetter, Message, Outgoing
from correlator.ports import Store
from correlator.runtime.clock import EngineTime
from correlator.runtime.html import table
from correlator.runtime.inputlog import read_log
from correlator.runtime.names import resolve
from correlator.runtime.parts import Callbacks, Parts
from correlator.runtime.recording import replayable
from correlator.runtime.restart import Restart
from correlator.runtime.writer import Writer
from correlator.settings import EngineSettings, ReceiverSettings, SenderSettings

R = TypeVar("R", bound="ReplayRun")


class Cause(msgspec.Struct, frozen=True, omit_defaults=True):
    """The message, event or timer that a context handled when it made a send.

    Attributes:
        context: name of the context.
        receiver: id of the receiver of the handled message; "" if it handled none.
        number: number of this message in the receive log of its receiver.
        event: class of the handled event from inside the engine, as `module:Class`; "" for a message, and for timers
            and life-cycle methods.
    """

    context: str
    receiver: str = ""
    number: int = 0
    event: str = ""


class Output(NamedTuple):
    """A send in the form in which the engine would have sent it.

    `checkpoint` is the number of the checkpoint that released the send; for a BEST_EFFORT send, of the last checkpoint
    before it.
    """

    checkpoint: int
    sender: str
    sent: Outgoing
    cause: Cause


@dataclass(slots=True)
class Replayed:
    """The result of a replay.

    Attributes:
        outputs: the sends; sends of reliable senders in the order in which checkpoints released them.
        dead_letters: the dead letters of failed handlers, and of messages that were not handled again.
        state: the encoded state at the last checkpoint, by owner and key.
        events: number of events that contexts handled.
        timers: number of timers that fired.
        checkpoints: number of checkpoints.
        number: number of the last checkpoint.
        digest: digest of the last checkpoint; it covers state, queues and sends of all checkpoints up to it.
        in_order: whether the engine stopped in order; if not, the log ends where the engine was killed.
        failure: the error of the handler that stopped the engine; "" for none.
    """

    outputs: list[Output] = field(default_factory=list)
    dead_letters: list[DeadLetter] = field(default_factory=list)
    state: dict[str, dict[bytes, bytes]] = field(default_factory=dict)
    events: int = 0
    timers: int = 0
    checkpoints: int = 0
    number: int = 0
    digest: bytes = b""
    in_order: bool = False
    failure: str = ""

    def _repr_html_(self) -> str:
        """The result in the form that a notebook shows."""
        caption = f"{self.events} events, {self.timers} timers, {self.checkpoints} checkpoints"
        letters = f", {len(self.dead_letters)} dead letters" if self.dead_letters else ""
        failure = f"; {self.failure}" if self.failure else ""
        rows = [
            (one.checkpoint, one.sender, one.sent.destination, one.sent.message.key or "", one.sent.message.body)
            for one in self.outputs
        ]
        return table(caption + letters + failure, ("checkpoint", "sender", "destination", "key", "body"), rows)


def replay(path: str | Path, settings: EngineSettings | None = None) -> Replayed:
    """Repeat the life that an input log holds, in the calling thread, without opening a store or a connection.

    The replay imports the present monitor classes and calls their handlers. If a handler does something outside of the
    engine, such as writing a file, it does so again.

    Args:
        path: the input log of one life.
        settings: the settings of the engine, which must agree with the settings in the log; by default the replay uses
            the settings in the log.

    Raises:
        UsageError: E2041 if the file cannot be read.
        RecoveryRefused: E4320 if the file is no input log, E4321 if the monitors behave differently than in the life
            (their code has changed, or depends on more than its inputs), E4322 if the settings differ, E4323 if the log
            lacks its beginning.
    """
    again, records = begun(ReplayRun, path, settings)
    for record in records:
        again.carry_out(record)
    return again.replayed


def begun(kind: type[R], path: str | Path, settings: EngineSettings | None) -> tuple[R, Iterator[Record]]:
    """Begin a replay: return it, and the records that it is to carry out. Arguments and errors as `replay`."""
    start, states, records = opened(path)
    recorded = settings_in(start)
    if settings is not None and replayable(settings) != replayable(recorded):  # an older log has secrets
        raise RecoveryRefused(
            "E4322",
            str(path),
            "was recorded with other receivers, senders, monitors or destinations",
            "A replay needs the settings of the recording",
            "Name the configuration of that time, or none",
        )
    return kind(str(path), start, states, recorded), records


def opened(path: str | Path) -> tuple[Start, list[State], Iterator[Record]]:
    """Open an input log: return the state with which the life began, and the records after it. Raises as `replay`,
    E2041 to E4323.
    """
    start, records = started(path)
    return start, [_state(path, next(records, None)) for _ in range(start.states)], records


def started(path: str | Path) -> tuple[Start, Iterator[Record]]:
    """Open an input log: return how the life began, and all records after it. Raises as `opened`."""
    records = read_log(Path(path))
    start = next(records, None)
    if not isinstance(start, Start):
        raise RecoveryRefused("E4323", str(path), "does not begin with the state with which the engine began")
    return start, records


def settings_in(start: Start) -> EngineSettings:
    """The settings that the log holds: without connections, store and intervals."""
    return msgspec.json.decode(start.settings, type=EngineSettings)


class ReplayRun:
    """One replay: the parts of an engine, and the code that carries out each record.

    Attributes:
        replayed: the result so far.
    """

    def __init__(self, where: str, start: Start, states: Sequence[State], settings: EngineSettings) -> None:
        self.replayed = Replayed(number=start.checkpoint, digest=start.digest)
        for entry in (entry for state in states for entry in state.entries):
            self._keep_state(entry)
        self._where = where
        self._settings = settings
        self._persistent = start.persistent
        self._causes: dict[tuple[str, str], list[Cause]] = {}
        self._batches: dict[tuple[str, int], tuple[Sequence[Message], Sequence[Any]]] = {}
        self._left: dict[tuple[str, int], int] = {}
        self._time = _ReplayedTime()
        self._parts = self._make_parts(start.endpoints)
        self._views: dict[str, ReplayedView] = {}
        for name, (engine_time, wall_time) in start.began.items():
            self._time.set(engine_time, wall_time)
            routes, watcher = self._routes_of(name), self._watcher_of(name)
            self._parts.context(name, lambda _policy, _error, _about: None, routes, watcher)
        self._restart = self._make_restart(start, states)
        self._checkpoint = self._checkpoint_after(())
        self._withheld = {name: self._withhold(name) for name in start.began}

    def carry_out(self, record: Record) -> None:
        """Do what the record says that the engine did. Called with all records of a life, in the order of the log.

        Raises `RecoveryRefused` E4321 if handlers do something else than in that life.
        """
        if isinstance(record, Changed):
            self._checkpoint = self._checkpoint_after(record.entries)
        elif isinstance(record, Batch):
            self._keep(record)
        elif isinstance(record, Step):
            self._step(record)
        elif isinstance(record, CutTaken):
            self._cut(record)
        elif isinstance(record, Hook):
            self._hook(record)
        elif isinstance(record, LeftOut):
            self._leave_out(record)
        elif isinstance(record, Added):
            self._add(record.endpoint)
        elif isinstance(record, Forgotten):
            self._forget(record.receiver)
        elif isinstance(record, End):
            self.replayed.in_order = True
        self._collect_dead_letters()

    def _collect_dead_letters(self) -> None:
        """Collect the dead letters of a life without a store: no checkpoint takes them."""
        for name in self._withheld if not self._persistent else ():
            self.replayed.dead_letters += self._context(name).staging.take_dead_letters()

    # --- the parts ---

    def _routes_of(self, context: str) -> Routes:
        """The routes that a context saw in the life."""
        view = self._views[context] = ReplayedView(self._outbox, self._differs, self._sent_to_channel)
        return view

    def _watcher_of(self, context: str) -> Watcher | None:
        """Who learns of the calls of handlers in this context."""
        del context
        return None

    def _sent_to_channel(self, channel: str, run: Run) -> None:
        """Drop an event that a monitor sends to a channel: the log has what each context took from it."""

    def _make_parts(self, endpoints: Sequence[Endpoint], callbacks: Callbacks | None = None) -> Parts:
        connections: dict[str, Connection] = {endpoint.connection: UnopenedConnection() for endpoint in endpoints}
        writer = (
            Writer(cast(Store, None), 0, self._time.now, self._settings.duplicate_detection)
            if self._persistent
            else None
        )
        return Parts(
            self._settings,
            connections,
            clock=_StoppedClock(),
            engine_time=self._time,
            writer=writer,
            blocking=False,
            jitter=lambda: 0.0,
            callbacks=callbacks,
        )

    def _registry(self, recovered: Recovered) -> Mapping[str, Endpoint]:
        """The registry of the life, by id."""
        return {endpoint.id: endpoint for endpoint in recovered.endpoints}

    def _make_restart(self, start: Start, states: Sequence[State]) -> Restart:
        recovered = recovered_by(start, states)
        restart = Restart(
            self._settings,
            self._parts,
            recovered,
            self._registry(recovered),
            lambda _policy, _error, _about: None,
            lambda _commit: None,
            lambda _suspect: None,
        )
        restart.make_parts((), lambda endpoint: start.sources.get(endpoint.id, ""))
        return restart

    def _withhold(self, context: str) -> dict[tuple[str, int], Run]:
        """Take back the runs that the start has put into a queue: records of the log say when each run enters the
        queue.
        """
        return {(run.receiver, run.first): run for run in self._context(context).queue.withhold() if run.receiver}

    def _add(self, endpoint: Endpoint) -> None:
        self._parts.use(endpoint.connection, UnopenedConnection())
        if endpoint.kind == "sender":
            sender = SENDER.decode(endpoint.settings)
            self._parts.add_sender(self._parts.make_sender(sender, endpoint.source))
        else:
            receiver = RECEIVER.decode(endpoint.settings)
            self._parts.add_receiver(self._parts.make_receiver(receiver, Numbers(), endpoint.domain))

    def _checkpoint_after(self, changes: Sequence[StateEntry]) -> Checkpoint:
        return Checkpoint(self.replayed.number, self.replayed.digest, changes, unmapped=self._restart.unmapped)

    def _context(self, name: str) -> Context:
        thread = self._parts.contexts[name]
        return cast(Context, thread.context)

    def _outbox(self, sender: str) -> Outbox:
        return self._parts.senders[sender].outbox

    # --- the records ---

    def _keep(self, batch: Batch) -> None:
        key = batch.receiver, batch.first
        receiver = self._parts.receivers[batch.receiver]
        events, letters = receiver.mapper.mapping.remap(batch.messages, batch.first, 0.0)
        self.replayed.dead_letters += letters
        self._batches[key] = batch.messages, events
        self._left[key] = len(receiver.targets.names)

    def _forget(self, receiver: str) -> None:
        for key in [key for key in self._batches if key[0] == receiver]:
            del self._batches[key]

    def _take(self, taken: ContextInputs) -> None:
        view, queue = self._views[taken.context], self._context(taken.context).queue
        view.take(taken)
        for entry in taken.entries:
            if not entry.count:
                queue.forget(entry.receiver)
            else:
                queue.deliver(self._run(taken.context, entry))
                queue.enter()

    def _run(self, context: str, entry: Entry) -> Run:
        if entry.event is not None:
            event = decode_event(resolve, entry.event)
            return Run("", 0, (), (event,), stored=entry.stored, trace=entry.trace)
        key = entry.receiver, entry.first
        withheld = self._withheld[context].pop(key, None)
        if withheld is not None:
            return withheld
        messages, events = self._batches[key]
        self._left[key] -= 1
        if not self._left[key]:
            del self._batches[key], self._left[key]
        return Run(entry.receiver, entry.first, messages, events, stored=entry.stored)

    def _step(self, step: Step) -> None:
        context = self._context(step.taken.context)
        self._take(step.taken)
        self._time.set(step.engine_time, step.wall_time)
        handled, fired = context.handled, context.fired
        try:
            self._fire(context, step.engine_time, step.fired, step.wall_time)
            for _ in range(step.handled + step.failed):
                self._work_one(context, step.engine_time, step.wall_time)
        except (Exception, SystemExit) as error:
            if not step.failed:
                raise self._difference(step.taken, f"raised {error}") from error
            self.replayed.failure = str(error)
        else:
            if step.failed:
                self._differs(f"context {step.taken.context}: a handler that failed does not fail")
        handled, fired = context.handled - handled, context.fired - fired
        if (handled, fired) != (step.handled, step.fired):
            self._differs(f"context {step.taken.context}: {handled} events and {fired} timers instead of {step}")
        self._views[step.taken.context].refuse_unasked()
        self.replayed.events += handled
        self.replayed.timers += fired

    def _fire(self, context: Context, engine_time: float, most: int, wall_time: float) -> None:
        """Fire the timers of a context that are due."""
        try:
            context.work(0, engine_time, most, wall_time)
        finally:
            self._note(context, Cause(context.name))

    def _work_one(self, context: Context, engine_time: float, wall_time: float) -> None:
        """Let a context handle its next event."""
        cause = cause_of(context)
        try:
            context.work(1, engine_time, 0, wall_time)
        finally:
            self._note(context, cause)

    def _note(self, context: Context, cause: Cause) -> None:
        """Note that a context has made its last sends because of `cause`, and collect the sends to BEST_EFFORT
        senders.
        """
        for name, staged in context.staging.sends.items():
            causes = self._causes.setdefault((context.name, name), [])
            causes.extend([cause] * (len(staged) - len(causes)))
        for name, sender in self._parts.senders.items():
            while not sender.outbox.stored and sender.outbox.outstanding:
                if batch := sender.outbox.take(sender.settings.max_batch_size):
                    self.replayed.outputs += [Output(self._checkpoint.number, name, sent, cause) for sent in batch]
                    sender.outbox.settle(batch, ())
                elif (request := sender.outbox.take_flush()) is not None:
                    self._flushed(name, request)

    def _flushed(self, sender: str, request: FlushRequest) -> None:
        """Do nothing: the log has the answer to each request for a flush."""

    def _leave_out(self, record: LeftOut) -> None:
        self._take(record.taken)
        self._context(record.taken.context).leave_out(record.suspect)

    def _hook(self, hook: Hook) -> None:
        for taken in hook.taken:
            self._take(taken)
        try:
            self._restart.call_hook(hook.name)
        except CorrelatorError as error:
            self.replayed.failure = str(error)
        for thread in self._parts.monitor_threads():
            self._note(thread.context, Cause(thread.context.name))

    def _cut(self, record: CutTaken) -> None:
        for taken in record.taken:
            self._take(taken)
        outboxes = [self._outbox(name) for name, _ in record.senders]
        for outbox, (_, confirmed) in zip(outboxes, record.senders, strict=True):
            if outbox.stored and confirmed:
                outbox.settle([Outgoing(confirmed, "", "", Message(b""))], ())
        cut = self._take_cut(record, outboxes)
        if (cut.commit.number, cut.commit.digest) != (record.number, record.digest):
            self._differs(f"checkpoint {record.number} has another content")

    def _take_cut(self, record: CutTaken, outboxes: Sequence[Outbox]) -> Cut:
        """Take the cut of a checkpoint, and add it to the result."""
        contexts = [thread.context for thread in self._parts.contexts.values()]
        cut = self._checkpoint.cut(contexts, outboxes, {}, record.engine_time, forced=True)
        assert cut is not None
        causes = {
            outbox.sender: iter([one for name in self._withheld for one in self._causes.get((name, outbox.sender), ())])
            for outbox in outboxes
        }
        self._causes.clear()
        for segment in cut.commit.outbound:
            self.replayed.outputs += self._outputs(segment, causes[segment.sender])
        cut.release()
        for entry in cut.changes:
            self._keep_state(entry)
        self.replayed.dead_letters += cut.commit.dead_letters
        self.replayed.checkpoints += 1
        self.replayed.number, self.replayed.digest = record.number, record.digest
        return cut

    def _keep_state(self, entry: StateEntry) -> None:
        kept = self.replayed.state.setdefault(entry.owner, {})
        if entry.value is None:
            kept.pop(entry.key, None)
        else:
            kept[entry.key] = entry.value

    def _outputs(self, segment: OutboundSegment, causes: Iterator[Cause]) -> list[Output]:
        """Return the sends of a segment with their ids, in the form in which the sender would take them from its
        outbox.
        """
        part = self._parts.senders[segment.sender]
        count = len(segment.messages)
        before = SenderCut(segment.sender, part.outbox.source, segment.first + count, segment.first - 1)
        outbox = self._parts.make_sender(part.settings, part.outbox.source, before, [segment]).outbox
        return [
            Output(self._checkpoint.number, segment.sender, sent, cause)
            for sent, cause in zip(outbox.take(count), causes, strict=False)
        ]

    def _difference(self, taken: ContextInputs, what: str) -> RecoveryRefused:
        return self._refusal(f"context {taken.context}: {what}")

    def _refusal(self, what: str) -> RecoveryRefused:
        return RecoveryRefused(
            "E4321",
            self._where,
            f"the replay differs after checkpoint {self.replayed.number}: {what}",
            "A handler may depend on events, state and engine time only",
            "Replay with the code of the recording; look for clocks, random numbers and files in handlers",
        )

    def _differs(self, what: str) -> NoReturn:
        raise self._refusal(what)


class ReplayedView(Routes):
    """Gives a context the routes that it saw in the life, and the answers that its requests got.

    Args:
        outbox: returns the outbox of a sender.
        differs: raises the error of the replay; called if a handler requests something that it did not request in the
            life.
        sent: called with each event that a monitor sends to a channel.
    """

    def __init__(self, outbox: Any, differs: Any, sent: Callable[[str, Run], None]) -> None:
        super().__init__(
            default_outbox=self._late_outbox, next_flush=self._answer, outstanding=lambda _: self._answer()
        )
        self._outbox = outbox
        self._differs = differs
        self._answers: deque[Any] = deque()
        self._sent = sent
        self._looked = False

    def take(self, taken: ContextInputs) -> None:
        """Set the routes and the answers for the next stretch of work."""
        self._answers.extend(taken.answers)
        if taken.visible is not None:
            self._show(taken.visible)

    def refuse_unasked(self) -> None:
        """Raise the error of the replay if no handler has made a request that was answered in the life."""
        if self._answers:
            self._differs(f"no handler asked for {len(self._answers)} of the recorded answers")

    def subscribe(self, channel: str, queue: InputQueue) -> None:
        """Change the channels as the recorded answer says.

        Before the first `take` there is no answer: at that time the start restores subscriptions, and the record shows
        the result.
        """
        del queue
        if not self._looked:
            return
        channels = {name: queues for name, queues in self.channels.items() if name != channel}
        self.channels = {**channels, channel: [self._sink(channel)]} if self._answer() else channels

    def unsubscribe(self, channel: str, queue: InputQueue) -> None:
        """Change the channels as the recorded answer says."""
        self.subscribe(channel, queue)

    def _show(self, visible: Visible) -> None:
        self._looked = True
        self.outboxes = {name: self._outbox(name) for name in visible.senders}
        self.closing = frozenset(visible.closing)
        self.channels = {name: [self._sink(name)] for name in visible.channels}
        self.resume = dict.fromkeys(visible.resume, self._resume)
        self.grant = dict.fromkeys(visible.grant, _granted)

    def _sink(self, channel: str) -> InputQueue:
        return _Sink(lambda run: self._sent(channel, run))

    def _answer(self) -> Any:
        if not self._answers:
            self._differs("a handler asked for something for which it did not ask in the recording")
        return self._answers.popleft()

    def _late_outbox(self, name: str) -> Outbox | None:
        if not self._answer():
            return None
        self.outboxes = {**self.outboxes, name: self._outbox(name)}
        return self.outboxes[name]

    def _resume(self, context: str) -> Acknowledge:
        del context
        if (refusal := self._answer()) is not None:
            raise UsageError(*refusal)
        return nothing_left


class _Sink(InputQueue):
    """Takes the place of the queues of a channel: the log has what each context took from it.

    Args:
        sent: called with each run.
    """

    def __init__(self, sent: Callable[[Run], None]) -> None:
        super().__init__()
        self._sent = sent

    def deliver(self, run: Run) -> None:
        """Report the run, and keep nothing of it."""
        self._sent(run)


class _ReplayedTime(EngineTime):
    """Engine time and time of day from the log."""

    def __init__(self) -> None:
        super().__init__(_StoppedClock())
        self.set(0.0, 0.0)

    def set(self, engine_time: float, wall_time: float) -> None:
        """Set engine time and time of day, both in seconds, as a record has them."""
        self._seconds, self._wall = engine_time, wall_time

    def now(self) -> float:
        """Engine time in seconds, as the last record has it."""
        return self._seconds

    def calendar(self) -> float:
        """Seconds of the local calendar."""
        return self._wall


class _StoppedClock:
    """A clock that does not move."""

    def monotonic(self) -> float:
        """Return 0 seconds: a replay takes all times from the log."""
        return 0.0

    def wall(self) -> float:
        """Return 0 seconds: a replay takes all times from the log."""
        return 0.0


class UnopenedConnection:
    """Takes the place of every connection. No settings are refused, and nothing is opened."""

    features = Features(selects=True)

    def source(self, receiver: ReceiverSettings) -> Source:
        """No source: receivers of a replay are never opened."""
        del receiver
        return cast(Source, None)

    def sink(self, sender: SenderSettings) -> Sink:
        """No sink: senders of a replay are never opened."""
        del sender
        return cast(Sink, None)

    def close(self) -> None:
        """Do nothing: nothing is open."""


def recovered_by(start: Start, states: Sequence[State]) -> Recovered:
    """What the store held when the life began."""
    return Recovered(
        epoch=0,
        commit=0,
        checkpoint=start.checkpoint,
        engine_time=start.engine_time,
        digest=start.digest,
        contexts=start.contexts,
        senders=start.senders,
        state=[StateSegment(number, state.entries) for number, state in enumerate(states, 1)],
        ids=(),
        confirmed_batches={},
        consumed={},
        receive_log=start.receive_log,
        outbound=(),
        endpoints=start.endpoints,
    )


def cause_of(context: Context) -> Cause:
    """The cause of what a context sends when it handles its next event."""
    run = context.queue.head()
    if run is None:
        return Cause(context.name)
    if run.receiver:
        return Cause(context.name, run.receiver, run.first + run.position)
    return Cause(context.name, event=type_name(type(run.events[0])))


def _granted(window: int) -> None:
    """Ignore a flow control window: receivers of a replay deliver nothing."""
    del window


def _state(path: str | Path, record: Record | None) -> State:
    if not isinstance(record, State):
        raise RecoveryRefused("E4323", str(path), "ends before the state with which the engine began")
    return record
