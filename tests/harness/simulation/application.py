"""The application of the campaigns: monitors that keep each handled id in their state, so that invariants can count.

Persistent monitors are judged by their committed state alone. Other monitors report to `PROBE`, which a run replaces.
It is a global because the engine makes monitors from import paths.
"""

from collections.abc import Callable

from correlator.core.expressions import match, wait
from correlator.core.monitor import Monitor, every, on
from correlator.core.state import StateTable
from correlator.errors import CorrelatorError, UsageError
from correlator.events import FlowControlMarker, ReceivingSuspended, SenderFlushed, event
from correlator.testing.invariants.reference import NAP_S, TICK_S

PRIME_DELAY_S = 0.3
WINDOW = 3
UNSTORED = ("hints", "tasks")
"""Receivers whose windows the relay opens; those of all others are the ledger's."""
UNANSWERED_S = 0.3


@event
class Order:
    """Comes in EXACTLY_ONCE."""

    id: str
    n: int = 0
    group: int = 0
    fail: str = ""
    marks: list[str] = []


@event
class Reading:
    """Comes in AT_LEAST_ONCE."""

    id: str
    n: int = 0
    group: int = 0
    marks: list[str] = []


@event
class Hint:
    """Comes in BEST_EFFORT."""

    id: str
    n: int = 0


@event
class Task:
    """Comes in APP_CONTROLLED."""

    id: str
    n: int = 0


@event
class Extra:
    """Comes in by a receiver that comes and goes."""

    id: str
    n: int = 0


@event
class Passed:
    """What the messages of a receiver of pipelines become in some lives."""

    id: str


@event
class Note:
    """From the ledger to the audit, by a channel."""

    text: str


@event
class Summary:
    """From the audit to the ledger, by a channel."""

    text: str


@event
class Ended:
    """From a spawned monitor to the ledger, by a channel."""

    born: str
    seen: int


class Probe:
    """Receives what monitors report; this one ignores it."""

    def sent(self, sender: str, context: str, body: bytes) -> None:
        """A BEST_EFFORT send."""

    def derived(self, receiver: str, message_id: str, body: bytes) -> None:
        """An output that an APP_CONTROLLED input caused."""

    def handled(self, monitor: str, message_id: str) -> None:
        """A message was handled."""

    def suspended(self, receiver: str) -> None:
        """The application was told."""

    def resumed(self, receiver: str) -> None:
        """The application acknowledges."""

    def granted(self, receiver: str, through: int) -> None:
        """A receiver may deliver so far."""

    def flush(self, sender: str, context: str, request_id: int) -> None:
        """A flush was requested."""

    def flushed(self, sender: str, context: str, request_id: int, failed: int) -> None:
        """A flush was notified."""

    def attempt(self, call: str, code: str) -> None:
        """A call that must be refused was made."""

    def heard(self, message_id: str) -> None:
        """A monitor that is not always there was called."""

    def hook(self, name: str) -> None:
        """A life-cycle method was called."""

    def ticked(self, monitor: str, period: float, engine_time: float) -> None:
        """A timer without lasting state fired."""

    def fails_now(self, message_id: str) -> bool:
        """Whether the handler of this message fails this time."""
        return not message_id

    def ends_the_process(self, message_id: str) -> None:
        """The handler of this message takes the process with it."""

    def unique(self) -> int:
        """A number never given before, in any life."""
        return 0


PROBE = Probe()


def watch(probe: Probe) -> None:
    """Let monitors tell `probe` from now on."""
    global PROBE  # noqa: PLW0603  # monitors are made by the engine, which knows nothing of a probe
    PROBE = probe


class Ledger(Monitor, persistent=True):
    """The heart: keeps every id, sends in every mode, spawns, waits, listens once, talks to the audit."""

    handled: list[str] = []
    readings: list[str] = []
    sent: list[str] = []
    steady: list[str] = []
    notes: list[str] = []
    summaries: list[str] = []
    armed: list[str] = []
    fired: list[str] = []
    spawned: list[str] = []
    ended: list[str] = []
    extras: list[str] = []
    aside: list[str] = []
    wrong: list[str] = []
    waiting_once: dict[int, int] = {}
    unanswered: int = 0
    ticks: int = 0
    born: float = 0.0
    last_tick: float = 0.0
    counts: StateTable[int, int]
    baskets: StateTable[int, list[str]]

    def onload(self) -> None:
        """Try what a persistent monitor must not do."""
        self.born = self.engine_time
        _attempt("request_flush in a persistent monitor", lambda: self.request_flush("quick"))
        _attempt("acknowledge in a persistent monitor", lambda: self.acknowledge_and_resume("tasks"))

    def on_begin_recovery(self) -> None:
        """Tell the world."""
        PROBE.hook("on_begin_recovery")

    def on_conclude_recovery(self) -> None:
        """Tell the world."""
        PROBE.hook("on_conclude_recovery")

    @on(Order)
    def order(self, order: Order) -> None:
        """Use every means that a monitor has."""
        self.handled.append(order.id)
        self.counts[order.group] = self.counts.get(order.group, 0) + 1
        self.baskets.setdefault(order.group, []).append(order.id)
        self._send_exact(order.id)
        if order.n % 2:
            self.notes.append(order.id)
            self.send(Note(text=order.id), to="channel:notes")
        if order.n % 3 == 0:
            self.armed.append(order.id)
            self.wait(PRIME_DELAY_S, then=self.due)
        if order.n % 4 == 1:
            self.spawned.append(order.id)
            self.spawn(Follower, group=order.group, born=order.id)
        if order.n % 5 == 2:
            self.waiting_once[order.group] = self.waiting_once.get(order.group, 0) + 1
            self.once(match(Reading, group=order.group), then=self.first_reading)
        if order.n % 6 == 4:
            _send_quick(self, "main", f"order:{order.id}")
        if order.fail == "kills":
            PROBE.ends_the_process(order.id)
        if order.fail == "always" or (order.fail == "once" and PROBE.fails_now(order.id)):
            raise ValueError(f"order {order.id} is poison")

    @on(Reading)
    def reading(self, reading: Reading) -> None:
        """Runs before listeners that ask for fields: those of the reading before must all have been called."""
        if self.unanswered:
            self.wrong.append(f"{self.unanswered} listeners were not called for {self.readings[-1]}")
        self.unanswered = self.waiting_once.get(reading.group, 0)
        self.readings.append(reading.id)
        self.steady.append(f"{len(self.steady) + 1}:{reading.id}")
        self.send(self.steady[-1].encode(), to="steady")

    def first_reading(self, reading: Reading) -> None:
        """A listener that fires once."""
        if not self.unanswered:
            self.wrong.append(f"a listener too many was called for {reading.id}")
        self.unanswered -= 1
        self.waiting_once[reading.group] = self.waiting_once.get(reading.group, 0) - 1

    def due(self) -> None:
        """Timers fire in the order in which they were set: all wait equally long."""
        if len(self.fired) < len(self.armed):
            self.fired.append(self.armed[len(self.fired)])
            self._send_exact(f"due-{self.fired[-1]}")
        else:
            self.wrong.append("a timer fired that was not set")

    @on(Summary)
    def summary(self, summary: Summary) -> None:
        """What the audit answers."""
        self.summaries.append(summary.text)

    @on(Ended)
    def follower_ended(self, ended: Ended) -> None:
        """A spawned monitor has come to its end."""
        self.ended.append(ended.born)

    @every(TICK_S)
    def tick(self) -> None:
        """Count the beats of engine time."""
        self.ticks += 1
        self.last_tick = self.engine_time

    @on(FlowControlMarker)
    def marker(self, marker: FlowControlMarker) -> None:
        """Let a receiver whose messages are stored go on."""
        if marker.receiver not in UNSTORED:
            _grant(self, marker)

    @on(Extra)
    def extra(self, extra: Extra) -> None:
        """Hand it on to a sender that comes and goes, if it is there."""
        self.extras.append(extra.id)
        text = f"aside {len(self.aside) + 1} {extra.id}"
        try:
            self.send(text.encode(), to="aside")
        except UsageError:
            return
        self.aside.append(text)

    def _send_exact(self, cause: str) -> None:
        self.sent.append(f"{len(self.sent) + 1}:{cause}")
        self.send(self.sent[-1].encode(), to="exact")


class Follower(Monitor, persistent=True):
    """Spawned for an order; sees two readings of its group, then ends."""

    group: int
    born: str
    seen: int = 0
    log: StateTable[int, str]

    def onload(self) -> None:
        """Listen for the group."""
        self.on_all(match(Reading, group=self.group), then=self.reading)

    def reading(self, reading: Reading) -> None:
        """Count."""
        self.seen += 1
        self.log[self.seen] = reading.id
        if self.seen == 2:
            self.send(Ended(born=self.born, seen=self.seen), to="channel:main")
            self.stop()


class Audit(Monitor, persistent=True):
    """Lives in a context of its own: one more effect of each order, and the other end of the channels."""

    orders: list[str] = []
    noted: list[str] = []
    replies: list[str] = []

    def onload(self) -> None:
        """Its subscription must last."""
        self.subscribe("notes")

    @on(Order)
    def order(self, order: Order) -> None:
        """The same order, in another context."""
        self.orders.append(order.id)

    @on(Note)
    def note(self, note: Note) -> None:
        """Answer every third."""
        self.noted.append(note.text)
        if len(self.noted) % 3 == 0:
            self.replies.append(note.text)
            self.send(Summary(text=note.text), to="channel:main")


class Matcher(Monitor, persistent=True):
    """Puts orders and readings together by expressions, and keeps account of what these must find.

    Its plain listeners hear an event before its expressions do. Each expression changes the events that it is given,
    which nobody else may see.
    """

    _order = match(Order)

    orders: list[str] = []
    pairs: list[str] = []
    pairs_due: list[str] = []
    unpaired: dict[int, list[str]] = {}
    answered: list[str] = []
    missing: list[str] = []
    unanswered: dict[int, list[str]] = {}
    couples: list[str] = []
    couples_due: list[str] = []
    single: list[str] = ["", ""]
    wrong: list[str] = []

    def onload(self) -> None:
        """One listener is not declared."""
        self.on_all(match(Order, group=0) & match(Reading, group=0), then=self.couple)

    @on(Order)
    def order(self, order: Order) -> None:
        """What is due from now on."""
        self.orders.append(order.id)
        self.unpaired.setdefault(order.group, []).append(order.id)
        self.unanswered.setdefault(order.group, []).append(order.id)
        if order.group == 0:
            self._single(0, order.id)

    @on(Reading)
    def reading(self, reading: Reading) -> None:
        """What is due now."""
        self.pairs_due.extend(f"{one}:{reading.id}" for one in self.unpaired.pop(reading.group, ()))
        self.answered.extend(self.unanswered.pop(reading.group, ()))
        if reading.group == 0:
            self._single(1, reading.id)

    def _single(self, place: int, name: str) -> None:
        self.single[place] = self.single[place] or name
        if all(self.single):
            self.couples_due.append(":".join(self.single))
            self.single = ["", ""]

    @on(_order.then(match(Reading, group=_order["group"])))
    def pair(self, order: Order, reading: Reading) -> None:
        """Each order with the next reading of its group."""
        self._mark("pair", order, reading)
        self.pairs.append(f"{order.id}:{reading.id}")

    @on(_order.then(wait(UNANSWERED_S) & ~match(Reading, group=_order["group"])))
    def unheard(self, order: Order) -> None:
        """No reading in time."""
        self._mark("unheard", order)
        waiting = self.unanswered.get(order.group, [])
        if order.id in waiting:
            waiting.remove(order.id)
        else:
            self.wrong.append(f"{order.id} was answered, or missed before")
        self.missing.append(order.id)

    def couple(self, order: Order, reading: Reading) -> None:
        """One order and one reading, each used once."""
        self._mark("couple", order, reading)
        self.couples.append(f"{order.id}:{reading.id}")

    def _mark(self, name: str, *events: Order | Reading) -> None:
        for one in events:
            self.wrong.extend(f"{name} was given {one.id} as {mark} had changed it" for mark in one.marks)
            one.marks.append(name)


class Passerby(Monitor):
    """Is there in some lives."""

    @on(Order)
    def order(self, order: Order) -> None:
        """Tell the world."""
        PROBE.heard(order.id)


class Counter(Monitor, persistent=True):
    """Comes in some life, in a context of its own, and cannot be taken away again."""

    orders: list[str] = []

    @on(Order)
    def order(self, order: Order) -> None:
        """Count."""
        self.orders.append(order.id)


class Sleeper(Monitor, persistent=True):
    """Waits, again and again; for the rest of the time its engine is idle."""

    rung: list[float] = []
    over: list[float] = []

    def onload(self) -> None:
        """Wait in both ways."""
        self.wait(NAP_S, then=self.ring)
        self.once(wait(NAP_S), then=self.end)

    def ring(self) -> None:
        """Engine time has come so far."""
        self.rung.append(self.engine_time)
        self.wait(NAP_S, then=self.ring)

    def end(self) -> None:
        """The expression is true."""
        self.over.append(self.engine_time)


class Relay(Monitor):
    """State that does not last: hands APP_CONTROLLED input on and acknowledges when the broker has the output."""

    def __init__(self) -> None:
        super().__init__()
        self._awaited: int | None = None
        self._hints = 0

    @on(Task)
    def task(self, task: Task) -> None:
        """One output for each input."""
        body = _send_quick(self, "relay", f"task:{task.id}")
        PROBE.derived("tasks", task.id, body)

    @on(ReceivingSuspended)
    def suspended(self, notice: ReceivingSuspended) -> None:
        """The batch is complete: ask when its outputs are at the broker."""
        PROBE.suspended(notice.receiver)
        self._awaited = self._flush()

    @on(SenderFlushed)
    def flushed(self, notice: SenderFlushed) -> None:
        """Acknowledge; a second time must be refused."""
        PROBE.flushed(notice.sender, "relay", notice.request_id, notice.failed)
        if notice.request_id == self._awaited:
            self._awaited = None
            PROBE.resumed("tasks")
            self.acknowledge_and_resume("tasks")
            _attempt("acknowledge twice", lambda: self.acknowledge_and_resume("tasks"))

    @on(Hint)
    def hint(self, hint: Hint) -> None:
        """Hand on, and ask for a notice now and then, also when nothing is outstanding."""
        PROBE.handled("Relay", hint.id)
        if hint.n % 2:
            _send_quick(self, "relay", f"hint:{hint.id}")
        if hint.n % 3 == 0:
            self._flush()

    @on(FlowControlMarker)
    def marker(self, marker: FlowControlMarker) -> None:
        """Let the others go on."""
        if marker.receiver in UNSTORED:
            _grant(self, marker)

    @every(TICK_S)
    def tick(self) -> None:
        """Tell the world."""
        PROBE.ticked("Relay", TICK_S, self.engine_time)

    def _flush(self) -> int:
        request_id = self.request_flush("quick")
        PROBE.flush("quick", "relay", request_id)
        return request_id


def _send_quick(monitor: Monitor, context: str, text: str) -> bytes:
    body = f"{text}#{PROBE.unique()}".encode()
    monitor.send(body, to="quick")
    PROBE.sent("quick", context, body)
    return body


def _grant(monitor: Monitor, marker: FlowControlMarker) -> None:
    PROBE.granted(marker.receiver, marker.number + WINDOW)
    monitor.update_flow_control_window(marker, WINDOW)


def _attempt(call: str, what: Callable[[], object]) -> None:
    try:
        what()
    except CorrelatorError as error:
        PROBE.attempt(call, error.code)
    else:
        PROBE.attempt(call, "")
