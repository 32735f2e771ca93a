"""Lineage of messages: which input caused a send, and what came of an input, by a replay of an input log.

Each message, event, timer or life-cycle method that a context handled is an *input*. A replay does one input after the
other, and knows which handlers each input called. What a handler has done belongs to the handler that is running: a
monitor that begins or ends as an effect of another handler has a call of its own.

An event that a monitor sends to a channel leads to the input that sent it. The log records a stretch of work when it
ends, so the record of the work on an event may precede the record of the work that sent it. But a checkpoint comes
after both. So the result waits for the next checkpoint, which also gives the sends their numbers.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from correlator.core.calls import Watcher
from correlator.core.checkpoint import Cut
from correlator.core.commit import StateEntry
from correlator.core.context import Context
from correlator.core.instances import Instance, type_name
from correlator.core.outbox import Outbox
from correlator.core.queue import Run
from correlator.core.tape import Batch, CutTaken, Entry, LeftOut, Record, Start, State
from correlator.events import DeadLetter
from correlator.runtime.replay import Cause, Output, ReplayRun, begun, cause_of
from correlator.settings import EngineSettings
from correlator.storage.states import key_text

MOST_WAITING = 10_000
"""Without checkpoints: how many results may wait for the inputs that sent their events, and how many events are kept to
find these inputs."""

Event = tuple[str, bytes]
"""Type name and bytes of an event from inside the engine."""


class Input(Cause, frozen=True, omit_defaults=True):
    """What a context handled: a cause of sends; for a message also what identifies it.

    Attributes:
        id: unique id of the message, or else the id that its broker gave it.
        key: key of the message.
    """

    id: str = ""
    key: str | None = None


class Send(msgspec.Struct, frozen=True):
    """A message that a handler gave to a sender, with the number under which the sender sends it.

    The log does not tell what the broker answered: it may have refused the message.
    """

    sender: str
    number: int
    destination: str
    key: str | None


class RoutedEvent(msgspec.Struct, frozen=True):
    """An event, named by its class, that a handler sent to a channel."""

    channel: str
    event: str


class ChangedKey(msgspec.Struct, frozen=True):
    """A key of a state table that a handler changed; a key with a mutable value counts as changed when it is read."""

    table: str
    key: str


class Letter(msgspec.Struct, frozen=True):
    """A dead letter."""

    kind: str
    origin: str
    reason: str


class Call(msgspec.Struct, omit_defaults=True):
    """A call of a handler, and what it did.

    Attributes:
        handler: the method, as `module:Class.method`.
        sends: its sends; of reliable sends only those that a checkpoint released.
        events: its sends to channels.
        state: the keys of state tables that it changed.
        dead_letters: the dead letters that it became.
        failure: the error that it raised; it has no other effects then.
    """

    handler: str
    sends: list[Send] = []
    events: list[RoutedEvent] = []
    state: list[ChangedKey] = []
    dead_letters: list[Letter] = []
    failure: str = ""


class Handling(msgspec.Struct, omit_defaults=True):
    """An input, what it called, and where it comes from.

    Attributes:
        line: number of this input in the log, from 1 on.
        checkpoint: number of the checkpoint that contains it; 0 if none does.
        input: what the context handled.
        sent_by: `line` of the input that sent this event; 0 for anything else, and for events of an earlier life.
        origin: the input with which it began: `input` itself, or for an event the origin of the input that sent it.
        calls: the calls of handlers, in order.
        dead_letters: dead letters that no handler made: the message was not handled, or an earlier life had stored it
            and this one could not map it.
    """

    line: int
    checkpoint: int
    input: Input
    sent_by: int
    origin: Input
    calls: list[Call] = []
    dead_letters: list[Letter] = []


def lineage(path: str | Path, settings: EngineSettings | None = None) -> Iterator[Handling]:
    """Replay a log, and yield each input with all that came of it, in the order of the log.

    It reads the log while it yields, and keeps in memory what one checkpoint contains. Arguments and errors as
    `replay`.
    """
    again, records = begun(_LineageRun, path, settings)
    for record in records:
        again.carry_out(record)
        yield from again.complete()
    yield from again.rest()


@dataclass(eq=False, slots=True)
class _Arrival:
    """An event that has entered the queue of a context; `sender` is the input that sent it, if it is known."""

    context: str
    event: Event
    sender: "_Work | None" = None


@dataclass(eq=False, slots=True)
class _Sending:
    """An event that was sent, and the contexts that it has reached so far."""

    sender: "_Work"
    reached: set[str] = field(default_factory=set)


@dataclass(eq=False, slots=True)
class _Work:
    """An input whose result waits for the next checkpoint; `arrival` if it is an event of another input."""

    handling: Handling
    arrival: _Arrival | None


class _Events:
    """Finds the input that sent an event: the first equal event that has not reached the same context yet."""

    def __init__(self) -> None:
        self._arrivals: dict[Run, _Arrival] = {}
        self._early: dict[Event, list[_Arrival]] = {}
        self._sendings: dict[Event, deque[_Sending]] = {}
        self._sent: deque[Event] = deque()
        """The event of each sending, in order."""

    def note_arrived(self, run: Run, context: str, event: Event) -> None:
        """Note that an event has entered the queue of a context, as this run."""
        arrival = self._arrivals[run] = _Arrival(context, event)
        for sending in self._sendings.get(event, ()):
            if context not in sending.reached:
                sending.reached.add(context)
                arrival.sender = sending.sender
                return
        self._early.setdefault(event, []).append(arrival)

    def note_sent(self, event: Event, sender: _Work) -> None:
        """Note that an input has sent an event, which may have arrived already."""
        sending, waiting = _Sending(sender), []
        for arrival in self._early.pop(event, ()):
            if arrival.context in sending.reached or _began_with(sender, arrival):
                waiting.append(arrival)
            else:
                arrival.sender = sender
                sending.reached.add(arrival.context)
        if waiting:
            self._early[event] = waiting
        self._sendings.setdefault(event, deque()).append(sending)
        self._sent.append(event)

    def arrival_of(self, run: Run) -> _Arrival | None:
        """Remove and return the arrival of the event of a run; `None` for any other run."""
        return self._arrivals.pop(run, None)

    def explained(self, arrival: _Arrival) -> None:
        """Forget an event that has arrived: its result waits no longer for the input that sent it."""
        waiting = self._early.get(arrival.event, [])
        if arrival in waiting:
            waiting.remove(arrival)
            if not waiting:
                del self._early[arrival.event]

    def forget(self) -> None:
        """Forget the events that were sent: each has entered the queues that it reaches."""
        self._early.clear()
        self._sendings.clear()
        self._sent.clear()

    def forget_oldest(self, kept: int) -> None:
        """Forget the events that were sent first, except for the last `kept` ones."""
        while len(self._sent) > kept:
            event = self._sent.popleft()
            sendings = self._sendings[event]
            sendings.popleft()
            if not sendings:
                del self._sendings[event]


def _began_with(work: _Work | None, arrival: _Arrival) -> bool:
    """Whether an input is the arrival, or follows from it: then it cannot have sent it."""
    while work is not None and work.arrival is not None:
        if work.arrival is arrival:
            return True
        work = work.arrival.sender
    return False


class _Watcher:
    """Tells the replay which handler of a context runs."""

    def __init__(self, run: "_LineageRun", context: str) -> None:
        self._run = run
        self._context = context

    def begins(self, instance: Instance, handler: str) -> None:
        """A call begins."""
        self._run.call_begins(self._context, instance, handler)

    def ends(self, failure: str) -> None:
        """A call ends."""
        self._run.call_ends(self._context, failure)


class _LineageRun(ReplayRun):
    """A replay that notes which input each result belongs to."""

    def __init__(self, where: str, start: Start, states: Sequence[State], settings: EngineSettings) -> None:
        self._line = 0
        self._work: _Work | None = None
        self._calls: list[tuple[Instance, Call]] = []
        self._waiting: deque[_Work] = deque()
        self._complete = 0
        self._callers: dict[tuple[str, str], list[Call]] = {}
        self._letters: dict[str, int] = {}
        self._unmapped: dict[tuple[str, int], Letter] = {}
        self._events = _Events()
        super().__init__(where, start, states, settings)
        for letter in self._restart.unmapped.letters:
            self._unmapped[letter.receiver, letter.number] = _letter(letter)

    # --- the results ---

    def complete(self) -> Iterator[Handling]:
        """Yield the results that need no further record."""
        while self._waiting and (self._complete or self._explains_itself()):
            self._complete = max(0, self._complete - 1)
            yield self._explained(self._waiting.popleft())

    def rest(self) -> Iterator[Handling]:
        """Yield the results that no checkpoint contains."""
        while self._waiting:
            yield self._explained(self._waiting.popleft())

    def _explains_itself(self) -> bool:
        """Whether the first result needs no checkpoint: there are none, and its origin is known."""
        arrival = self._waiting[0].arrival
        known = arrival is None or arrival.sender is not None or len(self._waiting) > MOST_WAITING
        return known and not self._persistent

    def _explained(self, work: _Work) -> Handling:
        """Return a result with its origin."""
        handling, first = work.handling, work
        if work.arrival is not None and work.arrival.sender is not None:
            handling.sent_by = work.arrival.sender.handling.line
        while first.arrival is not None and first.arrival.sender is not None:
            first = first.arrival.sender
        handling.origin = first.handling.origin
        if work.arrival is not None:
            self._events.explained(work.arrival)
            work.arrival = None  # so that a chain of events does not grow in memory
        return handling

    # --- the records ---

    def carry_out(self, record: Record) -> None:
        """Do what the record says, and forget the results of the replay, which are in the lines."""
        super().carry_out(record)
        self.replayed.dead_letters.clear()
        if not self._persistent:
            self._letters.clear()
            self._events.forget_oldest(MOST_WAITING)

    def _keep(self, batch: Batch) -> None:
        before = len(self.replayed.dead_letters)
        super()._keep(batch)
        for letter in self.replayed.dead_letters[before:]:
            self._unmapped[letter.receiver, letter.number] = _letter(letter)

    def _keep_state(self, entry: StateEntry) -> None:
        """Keep nothing: the replay does not read the state of checkpoints."""

    def _work_one(self, context: Context, engine_time: float, wall_time: float) -> None:
        self._begin(context)
        try:
            super()._work_one(context, engine_time, wall_time)
        finally:
            self._work = None

    def _leave_out(self, record: LeftOut) -> None:
        self._take(record.taken)
        context = self._context(record.taken.context)
        self._begin(context)
        context.leave_out(record.suspect)
        self._note(context, cause_of(context))
        self._work = None

    def _cut(self, record: CutTaken) -> None:
        super()._cut(record)
        self._complete = len(self._waiting)
        for work in self._waiting:
            work.handling.checkpoint = record.number
        self._events.forget()

    def _take_cut(self, record: CutTaken, outboxes: Sequence[Outbox]) -> Cut:
        callers = {
            outbox.sender: iter(
                [one for name in self._withheld for one in self._callers.get((name, outbox.sender), ())]
            )
            for outbox in outboxes
        }
        self._callers.clear()
        self._letters.clear()
        cut = super()._take_cut(record, outboxes)
        for output in self.replayed.outputs:
            next(callers[output.sender]).sends.append(_send(output))
        self.replayed.outputs.clear()
        return cut

    # --- inputs and calls ---

    def _begin(self, context: Context) -> None:
        """Begin the next input of a context."""
        run, cause = context.queue.head(), cause_of(context)
        taken = Input(cause.context, cause.receiver, cause.number, cause.event)
        if run is not None and run.receiver:
            message = run.messages[run.position]
            mapping = self._parts.receivers[run.receiver].mapper.mapping
            taken = msgspec.structs.replace(taken, id=mapping.name_of(message), key=message.key)
        arrival = None if run is None else self._events.arrival_of(run)
        self._new_work(taken, arrival)
        if (letter := self._unmapped.pop((taken.receiver, taken.number), None)) is not None:
            self._handling.dead_letters.append(letter)

    def _new_work(self, taken: Input, arrival: _Arrival | None) -> None:
        self._line += 1
        self._work = _Work(Handling(self._line, 0, taken, 0, taken), arrival)
        self._waiting.append(self._work)

    @property
    def _handling(self) -> Handling:
        """The input that is being handled."""
        assert self._work is not None
        return self._work.handling

    def _watcher_of(self, context: str) -> Watcher:
        return _Watcher(self, context)

    def call_begins(self, name: str, instance: Instance, handler: str) -> None:
        """Note that a handler of a context is about to be called; without an input, a timer or life-cycle method."""
        if self._work is None:
            self._new_work(Input(name), None)
        context = self._context(name)
        self._note(context, self._handling.input)
        call = Call(f"{type_name(type(instance.monitor))}.{handler}")
        self._handling.calls.append(call)
        self._calls.append((instance, call))
        for table in instance.tables:
            table.begin_undo()

    def call_ends(self, name: str, failure: str) -> None:
        """Note that the last call has ended."""
        self._calls[-1][1].failure = failure
        self._note(self._context(name), self._handling.input)
        self._calls.pop()
        if not self._calls and self._handling.input == Input(name):
            self._work = None

    def _note(self, context: Context, cause: Cause) -> None:
        """Note that what a context has done since the last call of this method belongs to the call that runs."""
        super()._note(context, cause)
        call = self._calls[-1][1] if self._calls else None
        for output in self.replayed.outputs:
            assert call is not None
            call.sends.append(_send(output))
        self.replayed.outputs.clear()
        for sender, staged in context.staging.sends.items():
            callers = self._callers.setdefault((context.name, sender), [])
            if len(callers) < len(staged):
                assert call is not None
                callers.extend([call] * (len(staged) - len(callers)))
        letters = context.staging.dead_letters
        for letter in letters[self._letters.get(context.name, 0) :]:
            of = self._handling.dead_letters if call is None else call.dead_letters
            of.append(_letter(letter))
        self._letters[context.name] = len(letters)
        if self._calls:
            self._note_state(*self._calls[-1])

    @staticmethod
    def _note_state(instance: Instance, call: Call) -> None:
        seen = set(call.state)
        for table in instance.tables:
            for key in () if call.failure else table.touched():
                changed = ChangedKey(table.owner, key_text(table.owner, key))
                if changed not in seen:
                    call.state.append(changed)
            table.begin_undo()

    # --- events between contexts ---

    def _sent_to_channel(self, channel: str, run: Run) -> None:
        assert self._work is not None
        assert run.recorded is not None
        self._calls[-1][1].events.append(RoutedEvent(channel, run.recorded[0]))
        self._events.note_sent(run.recorded, self._work)

    def _run(self, context: str, entry: Entry) -> Run:
        run = super()._run(context, entry)
        if entry.event is not None and entry.stored:
            self._events.note_arrived(run, context, entry.event)
        return run


def _send(output: Output) -> Send:
    sent = output.sent
    return Send(output.sender, sent.sequence, sent.destination, sent.message.key)


def _letter(letter: DeadLetter) -> Letter:
    return Letter(letter.kind, letter.origin, letter.reason)
