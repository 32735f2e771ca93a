"""Gives the inputs of a recorded life to code that has changed since, to find out what it would have sent and
remembered.

A rerun works like a replay, but it expects no equal checkpoints. The received messages enter the contexts as they did
in the life, each stretch of work handles as many of them at the same engine time, and a checkpoint is taken where the
life took one. Everything else is made anew by the present code: events that monitors send to one another reach their
contexts, timers fire when they are due, and each send counts as confirmed by the next checkpoint.

An event from inside the engine takes the place that an equal event had in the life, so that unchanged code does the
same in the same order. For this, a context waits until another context has sent the event. The log records a stretch of
work when it ends, so a context may have got an event before the record of the work that sent it. If no context sends
the event any more, the waiting context goes on without it. An event that the life did not have enters the queue at the
next checkpoint.
"""

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from correlator.configuration import Provided
from correlator.core.commit import Endpoint, Recovered
from correlator.core.context import MAX_TIMERS, Context
from correlator.core.delivery import layout_of
from correlator.core.instances import type_name
from correlator.core.outbox import FlushRequest, Outbox
from correlator.core.queue import Run
from correlator.core.routes import Acknowledge, Routes, nothing_left
from correlator.core.tape import (
    Added,
    Batch,
    ContextInputs,
    CutTaken,
    End,
    Entry,
    Hook,
    LeftOut,
    Record,
    Start,
    State,
    Step,
)
from correlator.errors import RecoveryRefused
from correlator.events import Message, Outgoing, SenderFlushed
from correlator.runtime.parts import Callbacks, Parts
from correlator.runtime.registry import Registry
from correlator.runtime.replay import Replayed, ReplayRun, UnopenedConnection, opened, settings_in
from correlator.settings import EngineSettings, SenderSettings

MOST_ROUNDS = 100
"""How many times contexts may answer, within one checkpoint, to events that the life did not have."""
MOST_WAITING = 10_000
"""How many stretches of work may wait for events of other contexts before the first one goes on without them."""
_FLUSHED = type_name(SenderFlushed)


def rerun(path: str | Path, settings: EngineSettings | None = None, *, through: int | None = None) -> Replayed:
    """Give the inputs of a recorded life to the present code, in the calling thread, without a store or a connection.

    If a handler does something outside of the engine, such as writing a file, it does so again.

    Args:
        path: the input log of one life.
        settings: the present settings of the engine; by default the settings in the log.
        through: number of the checkpoint with which the rerun ends; by default it ends with the log.

    Raises:
        UsageError: E2041 if the file cannot be read.
        RecoveryRefused: E4320 if the file is no input log, E4322 if the settings have other receivers or contexts,
            E4323 if the log lacks its beginning, E5602 if it lacks the checkpoint `through`; E42xx and E43xx if the
            present code could not start with the state at the beginning of the log.
    """
    start, states, records = opened(path)
    chosen = settings_in(start) if settings is None else _fitting(path, settings, start)
    again = _Rerun(str(path), start, states, chosen)
    for record in records:
        again.carry_out(record)
        if again.ended or (isinstance(record, CutTaken) and record.number == through):
            return again.replayed
    again.finish()
    if through is not None:
        raise RecoveryRefused(
            "E5602",
            str(path),
            f"holds the checkpoints {start.checkpoint + 1} to {again.replayed.number}; checkpoint {through} is missing",
            "An input log holds one life",
            "Name the log of the life that took this checkpoint",
        )
    return again.replayed


def _fitting(path: str | Path, settings: EngineSettings, start: Start) -> EngineSettings:
    """Return the settings of a rerun; raises `RecoveryRefused` E4322 if the log has no inputs for them."""
    recorded = settings_in(start)
    differences = [
        (what, before, after)
        for what, before, after in (
            ("name", recorded.name, settings.name),
            ("receivers", _receivers(recorded), _receivers(settings)),
            ("contexts", _contexts(recorded), _contexts(settings)),
        )
        if before != after
    ]
    if differences:
        what, before, after = differences[0]
        raise RecoveryRefused(
            "E4322",
            str(path),
            f"was recorded with other {what}: {before}, now {after}",
            "A rerun needs the same name, receivers with their reliability, and contexts; anything else may change",
            "Name a configuration that has them",
        )
    return EngineSettings(
        name=settings.name,
        connections=settings.connections,
        destinations=settings.destinations,
        receivers=settings.receivers,
        senders=settings.senders,
        monitors=settings.monitors,
    )


def _receivers(settings: EngineSettings) -> str:
    return ", ".join(sorted(f"{one.id} {one.reliability.value}" for one in settings.receivers))


def _contexts(settings: EngineSettings) -> str:
    return ", ".join(sorted([*layout_of(settings.monitors, {}).monitors, *(one.name for one in settings.bridges)]))


@dataclass(slots=True)
class _Lane:
    """The work that one context still has to do.

    Attributes:
        context: the context.
        stretches: its recorded stretches of work that have not begun, with the numbers of the records.
        under_way: the work on the first stretch; it yields while it waits for an event of another context.
        number: number of the record that is under way.
        without: whether it must go on without the event for which it waits.
        entries: recorded runs that have not entered its queue.
        recorded: the queue of the life: for each run, whether a receiver delivered it, and how many events are left.
        sent: events that monitors have sent to it and that have not entered its queue.
        worked: engine time of its last stretch of work.
    """

    context: Context
    stretches: deque[tuple[int, Step | LeftOut]] = field(default_factory=deque)
    under_way: Iterator[None] | None = None
    number: int = 0
    without: bool = False
    entries: deque[Entry] = field(default_factory=deque)
    recorded: deque[tuple[bool, int]] = field(default_factory=deque)
    sent: deque[Run] = field(default_factory=deque)
    worked: float = -math.inf

    def take(self, taken: ContextInputs) -> None:
        """Note which runs entered the queue in the life."""
        self.entries.extend(taken.entries)
        self.recorded.extend((bool(entry.receiver), entry.count) for entry in taken.entries if entry.count)

    def pass_over(self, most: int) -> tuple[int, int]:
        """Take the next events of the recorded queue; returns the number of received messages and the number of other
        events among them.
        """
        found = {True: 0, False: 0}
        while self.recorded and most:
            received, count = self.recorded.popleft()
            now = min(count, most)
            found[received] += now
            most -= now
            if now < count:
                self.recorded.appendleft((received, count - now))
        return found[True], found[False]

    def take_sent(self, event: tuple[str, bytes], *, alike: bool) -> Run | None:
        """Remove and return the first event that equals a recorded one; with `alike`, the first of its class."""
        for position, run in enumerate(self.sent):
            if (type_name(type(run.events[0])) == event[0]) if alike else run.recorded == event:
                del self.sent[position]
                return run
        return None


class _Rerun(ReplayRun):
    """One rerun.

    Attributes:
        ended: whether a handler has stopped the engine, so that the other records have no meaning.
    """

    def __init__(self, where: str, start: Start, states: Sequence[State], settings: EngineSettings) -> None:
        self.ended = False
        self._defaults: Mapping[str, SenderSettings] = {}
        self._lanes: dict[str, _Lane] = {}
        self._number = 0
        self._done = 0
        self._unrecorded: set[Run] = set()
        super().__init__(where, start, states, settings)
        self._lanes = {name: _Lane(self._context(name)) for name in start.began}
        for cut in start.contexts:
            self._lanes[cut.context].recorded.extend((bool(run.receiver), run.count) for run in cut.queue)

    def carry_out(self, record: Record) -> None:
        """Carry out one record, unless a handler has stopped the engine."""
        self._number += 1
        if self.ended:
            return
        if isinstance(record, Step | LeftOut):
            lane = self._lanes[record.taken.context]
            lane.stretches.append((self._number, record))
            self._advance()
            if sum(len(one.stretches) for one in self._lanes.values()) > MOST_WAITING:
                self._go_on_without()
            return
        if not isinstance(record, Batch | Added):
            self.finish()
        if isinstance(record, End):
            self._handle_all_unrecorded()
        super().carry_out(record)

    def finish(self) -> None:
        """Do all work that the records so far demand."""
        self._advance()
        while self._go_on_without():
            pass

    # --- the parts: the contexts share the routes of an engine ---

    def _routes_of(self, context: str) -> Routes:
        del context
        return self._parts.routes

    def _make_parts(self, endpoints: Sequence[Endpoint], callbacks: Callbacks | None = None) -> Parts:
        del callbacks
        parts = super()._make_parts(endpoints, Callbacks(default_outbox=self._default_outbox))
        for name in self._settings.connections:
            parts.use(name, UnopenedConnection())
        return parts

    def _registry(self, recovered: Recovered) -> Mapping[str, Endpoint]:
        """The registry after a start with the present settings; raises as the start would."""
        names = {*self._settings.connections, *(endpoint.connection for endpoint in recovered.endpoints)}
        provided = Provided(connections={name: UnopenedConnection() for name in names}, store=True)
        registry = Registry(self._settings, provided, "rerun", lambda _commit: None)
        registry.compare(recovered, layout_of(self._settings.monitors, {}))
        self._defaults = registry.default_senders
        return registry.endpoints

    def _default_outbox(self, name: str) -> Outbox | None:
        if name not in self._defaults:
            return None
        sender = self._parts.make_sender(self._defaults[name], f"rerun:{name}")
        self._parts.add_sender(sender)
        return sender.outbox

    def _add(self, endpoint: Endpoint) -> None:
        if endpoint.id not in self._parts.senders:  # a default sender may be there already
            super()._add(endpoint)

    # --- who works next ---

    def _advance(self) -> None:
        """Let all contexts work as far as they can without events that no context has sent yet."""
        before = -1
        while before != self._done and not self.ended:
            before = self._done
            for lane in self._lanes.values():
                self._work_on(lane)

    def _work_on(self, lane: _Lane) -> None:
        while not self.ended:
            if lane.under_way is None:
                if not lane.stretches:
                    return
                lane.number, record = lane.stretches.popleft()
                lane.take(record.taken)
                lane.under_way = self._stretch(lane, record)
            for _ in lane.under_way:
                return
            lane.under_way = None
            self._done += 1

    def _go_on_without(self) -> bool:
        """Let the first context that waits go on without the event; returns whether one has waited."""
        waiting = [lane for lane in self._lanes.values() if lane.under_way is not None]
        if not waiting or self.ended:
            return False
        min(waiting, key=lambda lane: lane.number).without = True
        self._advance()
        return True

    # --- what enters the queues ---

    def _take(self, taken: ContextInputs) -> None:
        self._lanes[taken.context].take(taken)
        self._allow_acknowledgements()

    def _allow_acknowledgements(self) -> None:
        """Let monitors acknowledge batches whenever they ask, since no receiver runs."""
        routes = self._parts.routes
        routes.resume = dict.fromkeys(routes.resume, _resume)

    def _enter_next(self, lane: _Lane) -> Iterator[None]:
        """Let the next recorded run enter the queue; yield while another context may still send its event.

        If no context sends an event any more, nothing enters in its place.
        """
        entry, queue, run = lane.entries[0], lane.context.queue, None
        if not entry.count:
            queue.forget(entry.receiver)
        elif entry.event is not None and (entry.stored or entry.event[0] == _FLUSHED):
            while (run := lane.take_sent(entry.event, alike=not entry.stored)) is None and not lane.without:
                yield
            if run is None:
                run = lane.take_sent(entry.event, alike=True)
                lane.without = False
        else:
            run = self._run(lane.context.name, entry)
        lane.entries.popleft()
        self._done += 1
        if run is not None:
            queue.deliver(run)
            queue.enter()

    def _withhold_sent(self) -> None:
        """Take back the events that monitors have just sent to contexts, until the log says when they enter."""
        for lane in self._lanes.values():
            lane.sent.extend(lane.context.queue.withhold())

    def _flushed(self, sender: str, request: FlushRequest) -> None:
        event = SenderFlushed(sender=sender, request_id=request.request_id, failed=0)
        self._lanes[request.context].sent.append(Run("", 0, (), (event,), stored=False))

    # --- the records ---

    def _stretch(self, lane: _Lane, record: Step | LeftOut) -> Iterator[None]:
        self._allow_acknowledgements()
        if isinstance(record, Step):
            context = lane.context
            handled, fired = context.handled, context.fired
            self._fire_until(lane, record)
            yield from self._handle(lane, record)
            self.replayed.events += context.handled - handled
            self.replayed.timers += context.fired - fired
        else:
            yield from self._leave_out_of(lane, record)

    def _handle(self, lane: _Lane, step: Step) -> Iterator[None]:
        """Handle as many received messages as the life did in a stretch of work, and the events between them."""
        messages, others = lane.pass_over(step.handled + step.failed)
        while not self.ended and (messages or others):
            run = lane.context.queue.head()
            if run is None:
                if not lane.entries or (lane.entries[0].receiver and not messages):
                    return
                waits = not lane.entries[0].receiver
                yield from self._enter_next(lane)
                if waits and lane.context.queue.head() is None:
                    others = max(0, others - 1)
                continue
            if run.receiver and not messages:
                return
            messages, others = (messages - 1, others) if run.receiver else (messages, max(0, others - 1))
            self._time.set(step.engine_time, step.wall_time)
            self._guarded(self._work_one, lane.context, step.engine_time, step.wall_time)

    def _fire_until(self, lane: _Lane, step: Step) -> None:
        """Fire timers. Timers that the life did not have fire when they are due; the others fire together, as in the
        life.
        """
        context, last, lane.worked = lane.context, lane.worked, step.engine_time
        while not self.ended and (due := context.next_timer()) is not None and due <= last:
            wall_time = step.wall_time - (step.engine_time - due)
            self._time.set(due, wall_time)
            self._guarded(self._fire, context, due, MAX_TIMERS, wall_time)
        self._time.set(step.engine_time, step.wall_time)
        if step.fired and not self.ended:
            self._guarded(self._fire, context, step.engine_time, MAX_TIMERS, step.wall_time)

    def _guarded(self, work: Callable[..., None], context: Context, *arguments: Any) -> None:
        """Let a context work; a handler that fails with `on_error: stop` ends the rerun."""
        self._done += 1
        try:
            work(context, *arguments)
        except (Exception, SystemExit) as error:  # noqa: BLE001  # application code may raise anything
            self.replayed.failure = str(error)
            self.ended = True
        self._withhold_sent()

    def _hook(self, hook: Hook) -> None:
        super()._hook(hook)
        self.ended = bool(self.replayed.failure)
        self._withhold_sent()

    def _leave_out_of(self, lane: _Lane, record: LeftOut) -> Iterator[None]:
        """Make a dead letter of the condemned event; events before it that the life did not have are handled."""
        lane.pass_over(1)
        suspect, queue = record.suspect, lane.context.queue
        while not self.ended:
            run = queue.head()
            if run is None:
                if not lane.entries:
                    return
                yield from self._enter_next(lane)
            elif run.receiver == suspect.receiver and (not run.receiver or run.first + run.position == suspect.first):
                lane.context.leave_out(suspect)
                return
            elif run.receiver:
                return
            else:
                self._guarded(self._work_one, lane.context, self._time.now(), self._time.calendar())

    def _cut(self, record: CutTaken) -> None:
        for taken in record.taken:
            self._take(taken)
        for lane in self._lanes.values():
            while lane.entries:
                lane.without = True  # all work is done: nobody sends anything now
                for _ in self._enter_next(lane):
                    pass
            lane.without = False
        self._time.set(record.engine_time, self._time.calendar())
        self._handle_all_unrecorded()
        outboxes = [sender.outbox for sender in self._parts.senders.values()]
        for outbox in outboxes:
            settled, last = outbox.numbers
            if outbox.stored and last > settled:
                outbox.settle([Outgoing(last, "", "", Message(b""))], ())
        self._take_cut(record, outboxes)

    def _handle_all_unrecorded(self) -> None:
        for _ in range(MOST_ROUNDS):
            if not self._handle_unrecorded():
                break

    def _handle_unrecorded(self) -> bool:
        """Let the events enter that the life did not have, and handle the events that no message precedes. Returns
        whether there were any.
        """
        found = False
        for lane in self._lanes.values():
            queue = lane.context.queue
            new = [run for run in lane.sent if run.stored]
            self._unrecorded.update(new)
            lane.sent = deque(run for run in lane.sent if not run.stored)
            for run in new:
                queue.deliver(run)
            queue.enter()
            while not self.ended and (head := queue.head()) in self._unrecorded:
                self._unrecorded.discard(head)
                found = True
                self._guarded(self._work_one, lane.context, self._time.now(), self._time.calendar())
        return found and not self.ended


def _resume(context: str) -> Acknowledge:
    del context
    return nothing_left
