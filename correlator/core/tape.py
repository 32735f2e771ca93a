"""Records of all inputs of a context, from which a replay repeats what the context did.

The work of a context of monitors depends on these inputs alone: the runs that entered its queue, the engine time, how
much work the context did before each cut interrupted it, and the answers to its few questions
(`ContextInputs.answers`). Events from other contexts are recorded by value, so a replay repeats each context by itself.
A `Tape` collects the inputs of one context. It also stands between the context and the shared routes: what the context
sees of these routes changes only between two steps of its work, and each change is recorded.

Owner: the thread that holds the context's lock.
"""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from correlator.core.commit import ContextCut, Endpoint, ReceiveSegment, SenderCut, StateEntry, Suspect
from correlator.core.context import Context
from correlator.core.messages import encode_event
from correlator.core.outbox import Outbox
from correlator.core.queue import InputQueue, Run
from correlator.core.routes import Acknowledge, Routes
from correlator.core.tracecontext import TraceContext
from correlator.errors import UsageError
from correlator.events import Message


class Entry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A run that entered a queue: messages of a batch, or an event by value. If `count` is 0, the entry says that a
    receiver was forgotten.
    """

    receiver: str
    first: int = 0
    count: int = 0
    stored: bool = True
    event: tuple[str, bytes] | None = None
    trace: TraceContext | None = None


class Visible(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The routes that a context sees, by name."""

    senders: list[str]
    closing: list[str]
    channels: list[str]
    resume: list[str]
    grant: list[str]


class ContextInputs(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The inputs of one context since the last record about it.

    Attributes:
        context: name of the context.
        entries: the runs that entered its queue, in order.
        visible: the routes that it sees from now on; `None` for no change.
        answers: the answers to its questions, in order: numbers of flush requests, counts of outstanding messages,
            whether a sender or channel exists, and refusals of acknowledgements.
    """

    context: str
    entries: list[Entry]
    visible: Visible | None
    answers: list[Any]


class Start(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag="start", gc=False):
    """The first record: the configuration, and the checkpoint with which the life begins.

    Attributes:
        settings: `EngineSettings` as JSON, without connections, store, and secrets of receivers and senders.
        product: version of the product that wrote the log.
        persistent: whether there is a store.
        endpoints: all receivers and senders, without secrets.
        began: for each context, the engine time and the time of the local calendar at which it was made.
        sources: for each sender, its messageSourceId.
        states: how many records of class `State` follow.
    """

    settings: bytes
    product: str
    persistent: bool
    checkpoint: int
    digest: bytes
    engine_time: float
    contexts: list[ContextCut]
    senders: list[SenderCut]
    receive_log: list[ReceiveSegment]
    endpoints: list[Endpoint]
    began: dict[str, tuple[float, float]]
    sources: dict[str, str]
    states: int


class State(msgspec.Struct, frozen=True, array_like=True, tag="state", gc=False):
    """A part of the stored state with which the life begins."""

    entries: list[StateEntry]


class Changed(msgspec.Struct, frozen=True, array_like=True, tag="changed", gc=False):
    """Changes that the start makes to the state; the first cut writes them."""

    entries: Sequence[StateEntry]


class Batch(msgspec.Struct, frozen=True, array_like=True, tag="batch", gc=False):
    """Received messages. The record is written once, before the messages enter the first context."""

    receiver: str
    first: int
    messages: Sequence[Message]


class Forgotten(msgspec.Struct, frozen=True, array_like=True, tag="forgotten", gc=False):
    """A receiver was removed: its numbers may begin anew."""

    receiver: str


class Added(msgspec.Struct, frozen=True, array_like=True, tag="added", gc=False):
    """A receiver or sender was added by code; the entry is without secrets."""

    endpoint: Endpoint


class Hook(msgspec.Struct, frozen=True, array_like=True, tag="hook", gc=False):
    """A life-cycle method was called on monitors."""

    name: str
    taken: list[ContextInputs]


class Step(msgspec.Struct, frozen=True, array_like=True, tag="step", gc=False):
    """One call of `Context.work`.

    Attributes:
        taken: the inputs of the context before and during the work.
        engine_time: engine time of the call in seconds.
        wall_time: time of the call in seconds of the local calendar.
        fired: how many timers fired.
        handled: how many events were handled.
        failed: whether the next event, or the last timer, ended the work by an exception.
    """

    taken: ContextInputs
    engine_time: float
    wall_time: float
    fired: int
    handled: int
    failed: bool


class LeftOut(msgspec.Struct, frozen=True, array_like=True, tag="left_out", gc=False):
    """A condemned event became a dead letter."""

    taken: ContextInputs
    suspect: Suspect


class CutTaken(msgspec.Struct, frozen=True, array_like=True, tag="cut", gc=False):
    """The cut of a checkpoint.

    Attributes:
        taken: the inputs of each context.
        number: number of the checkpoint.
        digest: chained digest of all checkpoints up to this one.
        engine_time: engine time of the cut in seconds.
        senders: for each sender, the last number up to which its sends were settled.
    """

    taken: list[ContextInputs]
    number: int
    digest: bytes
    engine_time: float
    senders: list[tuple[str, int]]


class End(msgspec.Struct, frozen=True, array_like=True, tag="end", gc=False):
    """The engine stopped in order; if this record is missing, the engine was killed."""


Record = Start | State | Changed | Batch | Forgotten | Added | Hook | Step | LeftOut | CutTaken | End


class ContextRoutes(Routes):
    """The routes as one context sees them; they change when `refresh` is called.

    Args:
        shared: the routes of the engine.
        answer: called with each answer to a question of the context, in order.
    """

    def __init__(self, shared: Routes, answer: Callable[[Any], None]) -> None:
        super().__init__(
            default_outbox=self._late_outbox,
            woken=shared.woken,
            next_flush=self._next_flush,
            outstanding=self._outstanding,
        )
        self._shared = shared
        self._answer = answer
        self._seen: tuple[object, ...] = ()

    def refresh(self) -> Visible | None:
        """Take over the shared routes; returns what the context sees now, `None` without a change."""
        shared = self._shared
        seen = (shared.outboxes, shared.closing, shared.channels, shared.resume, shared.grant)
        if self._seen and all(now is before for now, before in zip(seen, self._seen, strict=True)):
            return None
        self._seen = seen
        self.outboxes, self.closing, self.channels, _, self.grant = seen
        self.resume = {name: self._asking(resume) for name, resume in shared.resume.items()}
        return Visible(
            list(self.outboxes), sorted(self.closing), list(self.channels), list(self.resume), list(self.grant)
        )

    def subscribe(self, channel: str, queue: InputQueue) -> None:
        """Let the context receive a channel, and show this to the context at once."""
        self._shared.subscribe(channel, queue)
        self._look_at(channel)

    def unsubscribe(self, channel: str, queue: InputQueue) -> None:
        """End the delivery of a channel to the context, and show this to the context at once."""
        self._shared.unsubscribe(channel, queue)
        self._look_at(channel)

    def _look_at(self, channel: str) -> None:
        queues = self._shared.channels.get(channel)
        channels = {name: others for name, others in self.channels.items() if name != channel}
        self.channels = {**channels, channel: queues} if queues else channels
        self._answer(bool(queues))

    def _next_flush(self) -> int:
        number = self._shared.next_flush()
        self._answer(number)
        return number

    def _outstanding(self, sender: str) -> int | None:
        number = self._shared.outstanding(sender)
        self._answer(number)
        return number

    def _late_outbox(self, name: str) -> Outbox | None:
        """The outbox of a sender that has been added since the last refresh, or that this send makes."""
        outbox = self._shared.outboxes.get(name) or self._shared.default_outbox(name)
        if outbox is not None:
            self.outboxes = {**self.outboxes, name: outbox}
        self._answer(outbox is not None)
        return outbox

    def _asking(self, resume: Callable[[str], Acknowledge]) -> Callable[[str], Acknowledge]:
        def ask(context: str) -> Acknowledge:
            try:
                acknowledge = resume(context)
            except UsageError as error:
                self._answer([error.code, error.where, error.what, error.allowed, error.todo])
                raise
            self._answer(None)
            return acknowledge

        return ask


class Tape:
    """Records the inputs of one context.

    Args:
        context: name of the context.
        shared: the routes of the engine.
        append: gives a record to the input log.

    Attributes:
        recovering: whether the start has not ended yet; meanwhile a call of `work` is recorded even if nothing has
            happened.
        view: the routes for the context.
    """

    def __init__(self, context: str, shared: Routes, append: Callable[[Record], None]) -> None:
        self.recovering = True
        self._context = context
        self._append = append
        self._entries: list[Entry] = []
        self._answers: list[Any] = []
        self._visible: Visible | None = None
        self.view = ContextRoutes(shared, self._answers_append)

    def entered(self, run: Run) -> None:
        """Note that a run entered the queue."""
        if run.receiver:
            self._append(Batch(run.receiver, run.first, run.messages))
            self._entries.append(Entry(run.receiver, run.first, len(run.messages), run.stored))
        else:
            event = run.recorded or encode_event(run.events[0])
            self._entries.append(Entry("", 0, 1, run.stored, event, run.trace))

    def forgot(self, receiver: str) -> None:
        """Note that the queue forgot a removed receiver."""
        self._append(Forgotten(receiver))
        self._entries.append(Entry(receiver))

    def refresh(self) -> None:
        """Take over the shared routes, before the context works or a life-cycle method is called."""
        self._visible = self.view.refresh() or self._visible

    def taken(self) -> ContextInputs:
        """Return the inputs since the last call."""
        taken = ContextInputs(self._context, self._entries, self._visible, self._answers[:])
        self._entries, self._visible = [], None
        self._answers.clear()
        return taken

    def work(self, context: Context, most: int, engine_time: float, most_timers: int, wall_time: float) -> int:
        """Call `Context.work`, and record it."""
        self.refresh()
        handled, fired, failed = context.handled, context.fired, True
        try:
            done = context.work(most, engine_time, most_timers, wall_time)
            failed = False
        finally:
            handled, fired = context.handled - handled, context.fired - fired
            if handled or fired or failed or self.recovering or self._entries or self._visible:
                self._append(Step(self.taken(), engine_time, wall_time, fired, handled, failed))
        return done

    def leave_out(self, context: Context, suspect: Suspect) -> str:
        """Call `Context.leave_out`, and record it."""
        reason = context.leave_out(suspect)
        self._append(LeftOut(self.taken(), suspect))
        return reason

    def _answers_append(self, answer: Any) -> None:
        self._answers.append(answer)
