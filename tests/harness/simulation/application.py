"""The application of the campaigns: monitors that keep each handled id in their state, so that invariants can count.

Invariants judge persistent monitors by their committed state alone. Other monitors report to `PROBE`, which a run
replaces. `PROBE` is a global variable because the engine makes monitors from import paths.
"""

from collections.abc import Callable

from correlator.core.expressions import match, wait
from correlator.core.monitor import Monitor, every, on
from correlator.core.state import StateTable
from correlator.errors import CorrelatorError, UsageError
from correlator.events import FlowControlMarker, ReceivingSuspended, SenderFlushed, event

PRIME_DELAY_S = 0.3
TICK_S = 0.4
"""The period of each repeating timer."""
NAP_S = 25.0
"""The delay of the timer and of the expression of the monitor `Sleeper`."""
WINDOW = 3
UNSTORED = ("hints", "tasks")
"""Receivers whose flow control windows the monitor `Relay` extends; `Ledger` extends those of all others."""
UNANSWERED_S = 0.3


@event
class Order:
    """Received in mode EXACTLY_ONCE."""

    id: str
    n: int = 0
    group: int = 0
    fail: str = ""
    marks: list[str] = []


@event
class Reading:
    """Received in mode AT_LEAST_ONCE."""

    id: str
    n: int = 0
    group: int = 0
    marks: list[str] = []


@event
class Hint:
    """Received in mode BEST_EFFORT."""

    id: str
    n: int = 0


@event
class Task:
    """Received in mode APP_CONTROLLED."""

    id: str
    n: int = 0


@event
class Extra:
    """Received by a receiver that is added and removed while the engine runs."""

    id: str
    n: int = 0


@event
class Passed:
    """The event class of a receiver of pipelines, in the lives whose configuration names one."""

    id: str


@event
class Counted:
    """The event class of the same receiver in other lives: only some of its messages have `n`."""

    id: str
    n: int


@event
class Note:
    """From `Ledger` to `Audit`, by a channel."""

    text: str


@event
class Summary:
    """From `Audit` to `Ledger`, by a channel."""

    text: str


@event
class Ended:
    """From a spawned monitor to `Ledger`, by a channel."""

    born: str
    seen: int


class Probe:
    """Receives the reports of monitors. This class ignores them."""

    def sent(self, sender: str, context: str, body: bytes) -> None:
        """A BEST_EFFORT message was sent."""

    def derived(self, receiver: str, message_id: str, body: bytes) -> None:
        """An APP_CONTROLLED input caused this output."""

    def handled(self, monitor: str, message_id: str) -> None:
        """A message was handled."""

    def suspended(self, receiver: str) -> None:
        """The application was notified that the receiver is suspended."""

    def resumed(self, receiver: str) -> None:
        """The application acknowledges the batch of this receiver."""

    def granted(self, receiver: str, through: int) -> None:
        """The application allows the receiver to deliver up to this number."""

    def flush(self, sender: str, context: str, request_id: int) -> None:
        """A flush was requested."""

    def flushed(self, sender: str, context: str, request_id: int, failed: int) -> None:
        """The application was notified of a flush."""

    def attempt(self, call: str, code: str) -> None:
        """A call that must be refused was made; `code` is the error, "" if it was not refused."""

    def heard(self, message_id: str) -> None:
        """A monitor that exists only in some lives was called."""

    def hook(self, name: str) -> None:
        """A life-cycle method was called."""

    def ticked(self, monitor: str, period: float, engine_time: float) -> None:
        """A timer of a monitor without lasting state fired."""

    def fails_now(self, message_id: str) -> bool:
        """Whether the handler of this message fails this time."""
        return not message_id

    def ends_the_process(self, message_id: str) -> None:
        """The handler of this message must end the process."""

    def unique(self) -> int:
        """A number that no life has given before."""
        return 0


PROBE = Probe()


def watch(probe: Probe) -> None:
    """Let monitors report to `probe` from now on."""
    global PROBE  # noqa: PLW0603  # the engine makes the monitors, and knows no probe
    PROBE = probe


class Ledger(Monitor, persistent=True):
    """The main monitor: keeps every id, sends in every mode, spawns, waits, listens, and talks to `Audit`."""

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
        """Try the calls that a persistent monitor must not make."""
        self.born = self.engine_time
        _attempt("request_flush in a persistent monitor", lambda: self.request_flush("quick"))
        _attempt("acknowledge in a persistent monitor", lambda: self.acknowledge_and_resume("tasks"))
        _attempt("spawn a class that no start could import", lambda: self.spawn(_hidden()))

    def on_begin_recovery(self) -> None:
        """Report the call."""
        PROBE.hook("on_begin_recovery")

    def on_conclude_recovery(self) -> None:
        """Report the call."""
        PROBE.hook("on_conclude_recovery")

    @on(Order)
    def order(self, order: Order) -> None:
        """Use every feature of a monitor."""
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
        """Called before the listeners that `order` adds: all that matched the last reading must have been called."""
        if self.unanswered:
            self.wrong.append(f"{self.unanswered} listeners were not called for {self.readings[-1]}")
        self.unanswered = self.waiting_once.get(reading.group, 0)
        self.readings.append(reading.id)
        self.steady.append(f"{len(self.steady) + 1}:{reading.id}")
        self.send(self.steady[-1].encode(), to="steady")

    def first_reading(self, reading: Reading) -> None:
        """The handler of a listener that fires once."""
        if not self.unanswered:
            self.wrong.append(f"a listener too many was called for {reading.id}")
        self.unanswered -= 1
        self.waiting_once[reading.group] = self.waiting_once.get(reading.group, 0) - 1

    def due(self) -> None:
        """The handler of timers. All of them wait equally long, so they fire in the order in which they were set."""
        if len(self.fired) < len(self.armed):
            self.fired.append(self.armed[len(self.fired)])
            self._send_exact(f"due-{self.fired[-1]}")
        else:
            self.wrong.append("a timer fired that was not set")

    @on(Summary)
    def summary(self, summary: Summary) -> None:
        """An answer of `Audit` has arrived."""
        self.summaries.append(summary.text)

    @on(Ended)
    def follower_ended(self, ended: Ended) -> None:
        """A spawned monitor has ended."""
        self.ended.append(ended.born)

    @every(TICK_S)
    def tick(self) -> None:
        """Count the periods of engine time."""
        self.ticks += 1
        self.last_tick = self.engine_time

    @on(FlowControlMarker)
    def marker(self, marker: FlowControlMarker) -> None:
        """Extend the window of a receiver whose messages are stored."""
        if marker.receiver not in UNSTORED:
            _grant(self, marker)

    @on(Extra)
    def extra(self, extra: Extra) -> None:
        """Pass the event on by the sender `aside`, if that exists at present."""
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


def _hidden() -> type[Monitor]:
    """A class without a name in a module: if a store held its state, every later start would be refused."""

    class Hidden(Monitor, persistent=True):
        pass

    return Hidden


class Follower(Monitor, persistent=True):
    """Spawned for an order; counts two readings of its group, then ends."""

    group: int
    born: str
    seen: int = 0
    log: StateTable[int, str]

    def onload(self) -> None:
        """Listen for the readings of the group."""
        self.on_all(match(Reading, group=self.group), then=self.reading)

    def reading(self, reading: Reading) -> None:
        """Count the reading; end after the second."""
        self.seen += 1
        self.log[self.seen] = reading.id
        if self.seen == 2:
            self.send(Ended(born=self.born, seen=self.seen), to="channel:main")
            self.stop()


class Audit(Monitor, persistent=True):
    """Runs in its own context: handles each order a second time, and is the other end of the channels."""

    orders: list[str] = []
    noted: list[str] = []
    replies: list[str] = []

    def onload(self) -> None:
        """Subscribe to the channel; the subscription must survive crashes."""
        self.subscribe("notes")

    @on(Order)
    def order(self, order: Order) -> None:
        """Handle the same order as `Ledger`, in another context."""
        self.orders.append(order.id)

    @on(Note)
    def note(self, note: Note) -> None:
        """Answer every third note."""
        self.noted.append(note.text)
        if len(self.noted) % 3 == 0:
            self.replies.append(note.text)
            self.send(Summary(text=note.text), to="channel:main")


class Matcher(Monitor, persistent=True):
    """Combines orders and readings by expressions, and records the combinations that the expressions must find.

    Its plain listeners are called for an event before its expressions see it. The handlers of expressions change the
    events that they are given, and no other handler may see these changes.
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
        """Add the listener that is not declared by a decorator."""
        self.on_all(match(Order, group=0) & match(Reading, group=0), then=self.couple)

    @on(Order)
    def order(self, order: Order) -> None:
        """Record the combinations that the order makes due."""
        self.orders.append(order.id)
        self.unpaired.setdefault(order.group, []).append(order.id)
        self.unanswered.setdefault(order.group, []).append(order.id)
        if order.group == 0:
            self._single(0, order.id)

    @on(Reading)
    def reading(self, reading: Reading) -> None:
        """Record the combinations that the reading makes due."""
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
        """Called for each order with the next reading of its group."""
        self._mark("pair", order, reading)
        self.pairs.append(f"{order.id}:{reading.id}")

    @on(_order.then(wait(UNANSWERED_S) & ~match(Reading, group=_order["group"])))
    def unheard(self, order: Order) -> None:
        """Called if no reading comes in time."""
        self._mark("unheard", order)
        waiting = self.unanswered.get(order.group, [])
        if order.id in waiting:
            waiting.remove(order.id)
        else:
            self.wrong.append(f"{order.id} was answered, or missed before")
        self.missing.append(order.id)

    def couple(self, order: Order, reading: Reading) -> None:
        """Called for one order and one reading, each of which is used once."""
        self._mark("couple", order, reading)
        self.couples.append(f"{order.id}:{reading.id}")

    def _mark(self, name: str, *events: Order | Reading) -> None:
        for one in events:
            self.wrong.extend(f"{name} was given {one.id} as {mark} had changed it" for mark in one.marks)
            one.marks.append(name)


class Passerby(Monitor):
    """Exists only in some lives."""

    @on(Order)
    def order(self, order: Order) -> None:
        """Report the order."""
        PROBE.heard(order.id)


class Counter(Monitor, persistent=True):
    """Appears in some life, in its own context, and cannot be removed again."""

    orders: list[str] = []

    @on(Order)
    def order(self, order: Order) -> None:
        """Count the order."""
        self.orders.append(order.id)


class Sleeper(Monitor, persistent=True):
    """Waits again and again; meanwhile its engine is idle."""

    rung: list[float] = []
    over: list[float] = []

    def onload(self) -> None:
        """Wait by a timer and by an expression."""
        self.wait(NAP_S, then=self.ring)
        self.once(wait(NAP_S), then=self.end)

    def ring(self) -> None:
        """Called when engine time has reached the end of the wait."""
        self.rung.append(self.engine_time)
        self.wait(NAP_S, then=self.ring)

    def end(self) -> None:
        """Called when the expression is true."""
        self.over.append(self.engine_time)


class Relay(Monitor):
    """Has no lasting state. Passes APP_CONTROLLED input on, and acknowledges it when the broker has the output."""

    def __init__(self) -> None:
        super().__init__()
        self._awaited: int | None = None
        self._hints = 0

    @on(Task)
    def task(self, task: Task) -> None:
        """Send one output for each input."""
        body = _send_quick(self, "relay", f"task:{task.id}")
        PROBE.derived("tasks", task.id, body)

    @on(ReceivingSuspended)
    def suspended(self, notice: ReceivingSuspended) -> None:
        """The batch is complete: request a notice of when the broker has its outputs."""
        PROBE.suspended(notice.receiver)
        self._awaited = self._flush()

    @on(SenderFlushed)
    def flushed(self, notice: SenderFlushed) -> None:
        """Acknowledge the batch. A second acknowledgement must be refused."""
        PROBE.flushed(notice.sender, "relay", notice.request_id, notice.failed)
        if notice.request_id == self._awaited:
            self._awaited = None
            PROBE.resumed("tasks")
            self.acknowledge_and_resume("tasks")
            _attempt("acknowledge twice", lambda: self.acknowledge_and_resume("tasks"))

    @on(Hint)
    def hint(self, hint: Hint) -> None:
        """Pass the hint on. Sometimes request a flush, also if nothing is outstanding."""
        PROBE.handled("Relay", hint.id)
        if hint.n % 2:
            _send_quick(self, "relay", f"hint:{hint.id}")
        if hint.n % 3 == 0:
            self._flush()

    @on(FlowControlMarker)
    def marker(self, marker: FlowControlMarker) -> None:
        """Extend the windows of the receivers without stored messages."""
        if marker.receiver in UNSTORED:
            _grant(self, marker)

    @every(TICK_S)
    def tick(self) -> None:
        """Report the call."""
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
