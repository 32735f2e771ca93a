"""What a context takes in from outside, as records: from them alone it can be made to do the same again.

A context of monitors is a function of the runs that entered its queue, of the engine time it was given, of how far each
stretch of work got before a cut interrupted it, and of the few answers that it asked for. Events that came from other
contexts are recorded by value, so that each context can be repeated by itself. A *tape* collects these for one context;
it also stands between the context and the shared routes, so that what the context sees of them changes between two
stretches of work only, and is recorded when it does.

Pure. Owner: whoever holds the context's lock.
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
from correlator.errors import UsageError
from correlator.events import Message


class Entry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A run that entered a queue: messages of a batch, an event by value, or (`count` 0) a receiver to be forgotten."""

    receiver: str
    first: int = 0
    count: int = 0
    stored: bool = True
    event: tuple[str, bytes] | None = None


class Visible(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Names of what a context can send to and ask."""

    senders: list[str]
    closing: list[str]
    channels: list[str]
    resume: list[str]
    grant: list[str]


class Taken(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What one context took in since the last record about it.

    Attributes:
        context: its name.
        entries: what entered its queue, in order.
        visible: what it sees of the routes from now on; `None` for no change.
        answers: what it was told when it asked, in order.
    """

    context: str
    entries: list[Entry]
    visible: Visible | None
    answers: list[Any]


class Start(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag="start", gc=False):
    """The first record: what the life begins with. `states` records `State` follow.

    Attributes:
        settings: `EngineSettings` as JSON, without connections and store.
        product: version that wrote it.
        persistent: whether there is a store.
        began: engine time and local calendar at which each context was made.
        sources: the messageSourceId of each sender.
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
    """A part of the state that the life begins with."""

    entries: list[StateEntry]


class Changed(msgspec.Struct, frozen=True, array_like=True, tag="changed", gc=False):
    """What the start has changed of the state, which the first cut writes."""

    entries: Sequence[StateEntry]


class Batch(msgspec.Struct, frozen=True, array_like=True, tag="batch", gc=False):
    """Messages that were received; written once, before the first context that they entered."""

    receiver: str
    first: int
    messages: Sequence[Message]


class Forgotten(msgspec.Struct, frozen=True, array_like=True, tag="forgotten", gc=False):
    """A receiver was removed: its numbers may begin anew."""

    receiver: str


class Added(msgspec.Struct, frozen=True, array_like=True, tag="added", gc=False):
    """A receiver or sender was added by code."""

    endpoint: Endpoint


class Hook(msgspec.Struct, frozen=True, array_like=True, tag="hook", gc=False):
    """A life-cycle method was called on monitors."""

    name: str
    taken: list[Taken]


class Step(msgspec.Struct, frozen=True, array_like=True, tag="step", gc=False):
    """A stretch of work of one context.

    Attributes:
        taken: by it, before and during.
        engine_time: seconds.
        wall_time: seconds of the local calendar.
        fired: timers.
        handled: events.
        failed: whether the next one (or the last timer) ended it by an exception.
    """

    taken: Taken
    engine_time: float
    wall_time: float
    fired: int
    handled: int
    failed: bool


class LeftOut(msgspec.Struct, frozen=True, array_like=True, tag="left_out", gc=False):
    """A condemned event became a dead letter."""

    taken: Taken
    suspect: Suspect


class CutTaken(msgspec.Struct, frozen=True, array_like=True, tag="cut", gc=False):
    """The cut of a checkpoint.

    Attributes:
        taken: by each context.
        number: of the checkpoint.
        digest: of the lineage with it.
        engine_time: seconds.
        senders: every sender with the last number that the broker had confirmed.
    """

    taken: list[Taken]
    number: int
    digest: bytes
    engine_time: float
    senders: list[tuple[str, int]]


class End(msgspec.Struct, frozen=True, array_like=True, tag="end", gc=False):
    """The engine stopped in order; without this record it was killed."""


Record = Start | State | Changed | Batch | Forgotten | Added | Hook | Step | LeftOut | CutTaken | End


class View(Routes):
    """What a context sees of the shared routes; it changes by `refresh` only.

    Args:
        shared: the routes of the engine.
        answer: is told every answer, in order.
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
        """Look at the shared routes; returns what is seen now when that has changed."""
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
        """Have the context receive a channel."""
        self._shared.subscribe(channel, queue)
        self._look_at(channel)

    def unsubscribe(self, channel: str, queue: InputQueue) -> None:
        """No longer have it receive a channel."""
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
        """A sender that was not there at the last look: added since, or made by this send."""
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
    """Records one context.

    Args:
        context: its name.
        shared: the routes of the engine.
        append: takes each record.
    """

    def __init__(self, context: str, shared: Routes, append: Callable[[Record], None]) -> None:
        self.recovering = True
        self._context = context
        self._append = append
        self._entries: list[Entry] = []
        self._answers: list[Any] = []
        self._visible: Visible | None = None
        self.view = View(shared, self._answers_append)

    def entered(self, run: Run) -> None:
        """A run entered the queue."""
        if run.receiver:
            self._append(Batch(run.receiver, run.first, run.messages))
            self._entries.append(Entry(run.receiver, run.first, len(run.messages), run.stored))
        else:
            self._entries.append(Entry("", 0, 1, run.stored, run.recorded or encode_event(run.events[0])))

    def forgot(self, receiver: str) -> None:
        """The queue forgot a receiver that was removed."""
        self._append(Forgotten(receiver))
        self._entries.append(Entry(receiver))

    def refresh(self) -> None:
        """Look at the routes, before the context works or is called."""
        self._visible = self.view.refresh() or self._visible

    def taken(self) -> Taken:
        """All that was taken in since the last call."""
        taken = Taken(self._context, self._entries, self._visible, self._answers[:])
        self._entries, self._visible = [], None
        self._answers.clear()
        return taken

    def work(self, context: Context, most: int, engine_time: float, most_timers: int, wall_time: float) -> int:
        """Let the context work, and record it."""
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
        """Let the context leave its next event out, and record it."""
        reason = context.leave_out(suspect)
        self._append(LeftOut(self.taken(), suspect))
        return reason

    def _answers_append(self, answer: Any) -> None:
        self._answers.append(answer)
