"""Monitors in a context: dispatch, timers, what a failing handler leaves, what a cut holds."""

import re
import threading
from typing import Any

import msgspec
import pytest

from correlator.core.context import Context
from correlator.core.expressions import match
from correlator.core.instances import Instance, Listener, StoredMonitor, restore_monitor
from correlator.core.listeners import ListenerIndex
from correlator.core.messages import decode_event
from correlator.core.monitor import Monitor, every, on
from correlator.core.outbox import Outbox
from correlator.core.queue import InputQueue, Run
from correlator.core.routes import Routes
from correlator.core.state import StateTable
from correlator.errors import CorrelatorError, HandlerFailed, MappingError, StateError, UsageError
from correlator.events import LONGEST_LIFE_MS, FlowControlMarker, Headers, Message, event
from correlator.reliability import Reliability
from correlator.runtime.names import resolve


@event
class Tick:
    number: int
    kind: str = "plain"


@event
class Other:
    number: int = 0


class Log(Monitor):
    """Remembers what it was called for."""

    def heard(self, what: Any) -> None:
        self.__dict__.setdefault("calls", []).append(what)

    def calls_so_far(self) -> list[Any]:
        return self.__dict__.setdefault("calls", [])


class Listens(Log):
    @on(Tick)
    def any_tick(self, tick: Tick) -> None:
        self.heard(("any", tick.number))

    @on(Tick, kind="red")
    def red(self, tick: Tick) -> None:
        self.heard(("red", tick.number))

    @on(Tick, kind="red", number=2)
    def second_red(self, tick: Tick) -> None:
        self.heard(("second red", tick.number))


class Counter(Monitor, persistent=True):
    count: int = 0
    seen: list[int] = []
    by_kind: StateTable[str, int]

    @on(Tick)
    def tick(self, tick: Tick) -> None:
        self.count += 1
        self.seen.append(tick.number)
        self.by_kind[tick.kind] = self.by_kind.get(tick.kind, 0) + 1
        self.send(tick, to="out")
        if tick.number < 0:
            raise ValueError("negative")


def a_context(*monitors: Monitor, on_error: str = "stop") -> Context:
    """A context with a reliable sender `out` and a BEST_EFFORT sender `quick`, and these monitors."""
    routes = Routes()
    routes.outboxes = {
        name: Outbox(name, mode, "src:S01", f"queue:{name}", "id", "source")
        for name, mode in (("out", Reliability.EXACTLY_ONCE), ("quick", Reliability.BEST_EFFORT))
    }
    context = Context("main", routes, resolve)
    routes.channels = {"main": [context.queue]}
    for monitor in monitors:
        context.load(monitor, on_error)
    return context


def inside(one: Any) -> Run:
    return Run("", 0, (), (one,), stored=True)


def deliver(context: Context, *events: Any, at: float = 0.0) -> None:
    for one in events:
        context.queue.deliver(inside(one))
    context.work(1000, at)


def restarted(context: Context, *classes: type[Monitor], at: float = 0.0) -> tuple[Context, list[Monitor]]:
    """A new context with what a cut of the old one holds."""
    state: dict[str, dict[bytes, bytes]] = {}
    for entry in context.take_state():
        state.setdefault(entry.owner, {}).pop(entry.key, None)
        if entry.value is not None:
            state[entry.owner][entry.key] = entry.value
    again = a_context()
    monitors = []
    for cls in classes:
        for key, data in state.get(f"monitor:{cls.state_name}", {}).items():
            stored = decode(data)
            monitor = restore_monitor(cls, key.decode(), stored, state)
            again.load(monitor, stored.on_error, key.decode(), stored)
            monitors.append(monitor)
    again.restore(context.cut(), [], at)
    return again, monitors


def decode(data: bytes) -> StoredMonitor:
    return msgspec.msgpack.decode(data, type=StoredMonitor)


def staged(context: Context) -> list[bytes]:
    return [message.body for messages in context.staging.take_sends().values() for message in messages]


# --- dispatch ---


def test_every_matching_listener_is_called_once_per_event():
    monitor = Listens()
    deliver(a_context(monitor), Tick(number=1), Tick(number=2, kind="red"), Other())
    assert sorted(monitor.calls_so_far()) == [("any", 1), ("any", 2), ("red", 2), ("second red", 2)]


def test_events_are_handled_in_the_order_of_the_queue():
    monitor = Listens()
    deliver(a_context(monitor), *[Tick(number=number) for number in range(100)])
    assert monitor.calls_so_far() == [("any", number) for number in range(100)]


def test_a_field_that_the_event_does_not_have_is_refused():
    with pytest.raises(UsageError, match=r"E4108 event Tick: has no field 'colour'\. Fields: number, kind"):
        on(Tick, colour="red")(Listens.red)


@event
class Listed:
    values: list[int]
    number: int = 0


class AsksBesideList(Log):
    @on(Listed, number=1)
    def one(self, listed: Listed) -> None:
        self.heard("number")


def test_a_field_whose_value_changes_cannot_be_asked_for():
    """The store would give back another value, and the listener would never be called."""
    monitor = AsksBesideList()
    deliver(a_context(monitor), Listed(values=[1], number=1))
    assert monitor.calls_so_far() == ["number"]
    for value in ((1,), frozenset({1})):
        with pytest.raises(UsageError, match=r"E4108 event Listed: field 'values' never has the value .* make '\[1\]'"):
            match(Listed, values=value)


@pytest.mark.parametrize("value", ["one", None, 1.5, threading.Lock()])
def test_a_value_that_the_field_does_not_have_is_refused(value):
    with pytest.raises(UsageError, match=r"E4108 event Tick: field 'number' never has the value"):
        match(Tick, number=value)


class Dynamic(Log):
    def onload(self) -> None:
        self.once(match(Tick, kind="red"), self.first_red)
        self.number = self.on_all(match(Tick), self.all_ticks)

    def first_red(self, tick: Tick) -> None:
        self.heard(("first red", tick.number))

    def all_ticks(self, tick: Tick) -> None:
        self.heard(tick.number)
        if tick.number == 3:
            self.cancel(self.number)


def test_once_listens_once_and_cancel_ends_a_listener():
    monitor = Dynamic()
    context = a_context(monitor)
    context.call_one(monitor, "onload")
    deliver(context, Tick(number=1, kind="red"), Tick(number=2, kind="red"), Tick(number=3), Tick(number=4))
    assert monitor.calls_so_far() == [1, ("first red", 1), 2, 3] or monitor.calls_so_far() == [
        ("first red", 1),
        1,
        2,
        3,
    ]


class Renewing(Log):
    @on(Tick)
    def tick(self, tick: Tick) -> None:
        self.heard(tick.number)
        self.once(match(Tick), self.again)

    def again(self, tick: Tick) -> None:
        self.heard(("again", tick.number))


def test_a_listener_that_is_made_while_an_event_is_handled_begins_with_the_next():
    monitor = Renewing()
    deliver(a_context(monitor), Tick(number=1), Tick(number=2))
    assert monitor.calls_so_far()[0] == 1
    assert monitor.calls_so_far().count(("again", 2)) == 1
    assert ("again", 1) not in monitor.calls_so_far()


class Stops(Log):
    @on(Tick)
    def first(self, tick: Tick) -> None:
        self.heard(tick.number)
        self.stop()

    @on(Tick)
    def second(self, tick: Tick) -> None:
        self.heard(tick.number)

    def on_unload(self) -> None:
        self.heard("unloaded")
        self.send(b"farewell", to="out")
        self.stop()


def test_a_stopped_monitor_hears_nothing_more_and_what_on_unload_sends_is_staged():
    monitor = Stops()
    context = a_context(monitor)
    deliver(context, Tick(number=1), Tick(number=2))
    assert monitor.calls_so_far() == [1, "unloaded"]
    assert staged(context) == [b"farewell"]


class Order(Monitor, persistent=True):
    order: int
    lines: StateTable[str, int]

    def onload(self) -> None:
        self.lines["opened"] = self.order
        self.on_all(match(Tick, number=self.order), self.mine)

    def mine(self, tick: Tick) -> None:
        self.lines[tick.kind] = self.lines.get(tick.kind, 0) + 1
        if tick.kind == "close":
            self.stop()


class Orders(Monitor, persistent=True):
    @on(Other)
    def opened(self, other: Other) -> None:
        self.spawn(Order, order=other.number)


def test_spawned_monitors_have_state_of_their_own_and_survive():
    context = a_context(Orders())
    deliver(context, Other(number=7), Other(number=8), Tick(number=8, kind="a"))
    again, monitors = restarted(context, Orders, Order)
    deliver(again, Tick(number=8, kind="a"), Tick(number=7, kind="b"), Tick(number=9, kind="c"))
    assert [dict(one.lines) for one in monitors if isinstance(one, Order)] == [
        {"opened": 7, "b": 1},
        {"opened": 8, "a": 2},
    ]


def test_the_numbers_of_spawned_monitors_are_not_used_again_after_a_restart():
    context = a_context(Orders())
    deliver(context, Other(number=7), Tick(number=7, kind="close"))
    context.take_state()
    deliver(context, Other(number=8))
    cut = context.cut()
    assert cut.spawned == {"Order": 3}


def test_the_state_of_a_stopped_monitor_is_deleted():
    context = a_context(Orders())
    deliver(context, Other(number=7))
    kept = {(entry.owner, entry.key) for entry in context.take_state() if entry.owner != "monitor:Orders"}
    deliver(context, Tick(number=7, kind="close"))
    gone = {(entry.owner, entry.key) for entry in context.take_state() if entry.value is None}
    assert kept <= gone


# --- timers ---


class Timed(Log, persistent=True):
    fired: list[float] = []

    @every(10)
    def regularly(self) -> None:
        self.fired.append(self.engine_time)

    @on(Tick)
    def tick(self, tick: Tick) -> None:
        self.number = self.wait(tick.number, self.later)

    @on(Other)
    def other(self, other: Other) -> None:
        self.cancel(self.number)

    def later(self) -> None:
        self.fired.append(-self.engine_time)


def test_timers_fire_when_engine_time_reaches_them():
    monitor = Timed()
    context = a_context(monitor)
    deliver(context, Tick(number=5), at=1.0)
    assert context.next_timer() == 6.0
    for now in (5.9, 6.0, 9.9, 10.0, 35.0, 35.0):
        context.work(10, now)
    assert monitor.fired == [-6.0, 10.0, 35.0, 35.0]
    assert context.next_timer() == 40.0


def test_a_cancelled_timer_does_not_fire():
    monitor = Timed()
    context = a_context(monitor)
    deliver(context, Tick(number=5), Other(), at=1.0)
    context.work(10, 9.0)
    assert monitor.fired == []
    assert context.next_timer() == 10.0


def test_timers_of_persistent_monitors_survive_with_their_due_time():
    context = a_context(Timed())
    deliver(context, Tick(number=5), at=1.0)
    again, (monitor,) = restarted(context, Timed, at=1.0)
    again.work(10, 6.0)
    again.work(10, 10.0)
    assert monitor.fired == [-6.0, 10.0]


@pytest.mark.parametrize("period", [0, -1, float("nan"), float("inf"), 1e10])
def test_a_period_that_never_ends_is_refused(period):
    with pytest.raises(UsageError, match="E4109"):
        every(period)


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf"), 1e10])
def test_a_wait_that_is_no_time_is_the_handlers_failure(seconds):
    error = error_of(lambda monitor: monitor.wait(seconds, monitor.tick))
    assert (type(error), error.code) == (UsageError, "E4109")


class TimedBefore(Monitor, persistent=True, name="Timed2"):
    """Before a handler was renamed."""

    @on(Tick)
    def tick(self, tick: Tick) -> None:
        self.wait(tick.number, self.later)

    def later(self) -> None: ...


class TimedAfter(Monitor, persistent=True, name="Timed2"):
    """The same class afterwards."""

    @on(Tick)
    def tick(self, tick: Tick) -> None: ...


def test_a_method_that_a_stored_timer_calls_must_exist():
    context = a_context(TimedBefore())
    deliver(context, Tick(number=5))
    (entry,) = context.take_state()
    stored = decode(entry.value)
    monitor = restore_monitor(TimedAfter, "0", stored, {})
    with pytest.raises(StateError, match=r"E4203 monitor Timed2: a stored timer calls 'later', .* does not have"):
        a_context().load(monitor, "stop", "0", stored)


class FailingTimer(Monitor, persistent=True):
    @on(Tick)
    def tick(self, tick: Tick) -> None:
        self.wait(1, self.later)

    def later(self) -> None:
        raise ValueError("no")


def test_a_timer_whose_handler_failed_does_not_come_back_with_a_restart():
    context = a_context(FailingTimer(), on_error="skip")
    deliver(context, Tick(number=1))
    context.take_state()
    context.work(10, 5.0)
    again, _ = restarted(context, FailingTimer)
    assert again.next_timer() is None


# --- failures ---


def test_106_stop_raises_and_stages_nothing_of_the_failed_handler():
    monitor = Counter()
    context = a_context(monitor)
    with pytest.raises(HandlerFailed) as failed:
        deliver(context, Tick(number=1), Tick(number=-1), Tick(number=2))
    assert "E5500 monitor Counter: handling Tick raised ValueError: negative" in str(failed.value)
    assert len(staged(context)) == 1


@pytest.mark.parametrize(("on_error", "letters"), [("skip", 0), ("dead_letter", 1)])
def test_t27_106_skip_and_dead_letter_leave_no_trace_of_the_failed_handler(on_error, letters):
    monitor = Counter()
    context = a_context(monitor, on_error=on_error)
    failures: list[CorrelatorError] = []
    context._calls._failed = lambda policy, error, about: failures.append(error)
    deliver(context, Tick(number=1), Tick(number=-5), Tick(number=2))
    assert (monitor.count, monitor.seen, dict(monitor.by_kind)) == (2, [1, 2], {"plain": 2})
    assert staged(context) == [b'{"number":1,"kind":"plain"}', b'{"number":2,"kind":"plain"}']
    dead = context.staging.take_dead_letters()
    assert [(letter.kind, letter.origin, letter.message.body) for letter in dead] == [
        ("handler", "Counter", b'{"number":-5,"kind":"plain"}')
    ] * letters
    assert [error.code for error in failures] == ["E5500"]


class Replaces(Counter, persistent=True):
    """Puts a dictionary in the place of its table."""

    @on(Other)
    def other(self, other: Other) -> None:
        self.by_kind = {"plain": other.number}


def test_another_value_in_the_place_of_a_table_is_the_failure_of_its_handler():
    monitor = Replaces()
    context = a_context(monitor, on_error="skip")
    failures: list[CorrelatorError] = []
    context._calls._failed = lambda policy, error, about: failures.append(error)
    deliver(context, Tick(number=1), Other(number=9), Tick(number=2))
    assert [error.code for error in failures] == ["E4119"]
    _, (again,) = restarted(context, Replaces)
    assert dict(monitor.by_kind) == dict(again.by_kind) == {"plain": 2}


def test_another_value_in_the_place_of_a_table_stops_the_engine_at_the_cut():
    context = a_context(Replaces())
    deliver(context, Tick(number=1), Other(number=9))
    with pytest.raises(StateError, match="E4119 monitor Replaces: another value took the place of its StateTable"):
        context.take_state()


@event
class Grid:
    """Has a value that JSON cannot hold."""

    cells: dict[tuple[int, int], int]


@pytest.mark.parametrize(
    ("failing", "body"),
    [
        (Grid(cells={(1, 2): 3}), msgspec.msgpack.encode(Grid(cells={(1, 2): 3}))),
        (Tick(number=1), b'{"number":1,"kind":"plain"}'),
    ],
    ids=["grid", "tick"],
)
def test_106_a_dead_letter_can_be_made_of_every_event_and_every_error(failing, body):
    """Given an error whose text is no text, when it becomes a letter, then escaped; and an event as JSON if it can."""

    class Fails(Monitor):
        @on(type(failing))
        def fails(self, event: Any) -> None:
            raise ValueError(b"bad \xff".decode(errors="surrogateescape"))

    context = a_context(Fails(), on_error="dead_letter")
    deliver(context, failing)
    (letter,) = context.staging.take_dead_letters()
    assert letter.message == Message(body, {"event": f"tests.core.test_context:{type(failing).__name__}"})
    assert r"ValueError: bad \udcff" in letter.reason
    assert letter.reason.encode()


class Effects(Monitor, persistent=True):
    @on(Tick)
    def tick(self, tick: Tick) -> None:
        self.wait(1, self.nothing)
        self.on_all(match(Other), self.nothing_with)
        self.spawn(Order, order=1)
        self.send(b"x", to="quick")
        self.send(Other(), to="channel:main")
        self.subscribe("news")
        self.update_flow_control_window(FlowControlMarker(receiver="in", number=1), 5)
        self.stop()
        raise ValueError("after all of it")

    def nothing(self) -> None: ...

    def nothing_with(self, other: Other) -> None: ...


def test_nothing_that_a_failed_handler_asked_for_happens():
    monitor = Effects()
    context = a_context(monitor, on_error="skip")
    granted: list[int] = []
    context._binding._routes.grant = {"in": granted.append}
    deliver(context, Tick(number=1))
    assert context.next_timer() is None
    assert len(context.queue) == 0
    assert granted == []
    assert "news" not in context._binding._routes.channels
    assert list(context.monitors.instances) == [monitor]
    assert context._binding._routes.outboxes["quick"].take(5) == []
    assert context.cut().spawned == {}


class Requests(Monitor):
    """Makes the requests that persistent monitors may not make."""

    @on(Tick)
    def tick(self, tick: Tick) -> None:
        self.request_flush("quick")
        self.acknowledge_and_resume("in")
        if tick.number < 0:
            raise ValueError("after all of it")


@pytest.mark.parametrize(("number", "acknowledged"), [(1, ["main"]), (-1, [])])
def test_requests_of_a_handler_are_done_when_it_has_returned_and_not_when_it_fails(number, acknowledged):
    context = a_context(Requests(), on_error="skip")
    done: list[str] = []
    context._binding._routes.resume = {"in": lambda name: lambda: done.append(name)}
    deliver(context, Tick(number=number))
    assert done == acknowledged
    assert (context._binding._routes.outboxes["quick"].take_flush() is not None) == bool(acknowledged)


def test_a_once_listener_whose_handler_failed_still_listens():
    class Once(Log):
        def onload(self) -> None:
            self.once(match(Tick), self.first)

        def first(self, tick: Tick) -> None:
            self.heard(tick.number)
            if tick.number < 0:
                raise ValueError

    monitor = Once()
    context = a_context(monitor, on_error="skip")
    context.call_one(monitor, "onload")
    deliver(context, Tick(number=-1), Tick(number=2), Tick(number=3))
    assert monitor.calls_so_far() == [-1, 2]


def test_107_system_exit_is_not_a_handler_failure():
    class Exits(Monitor):
        @on(Tick)
        def tick(self, tick: Tick) -> None:
            raise SystemExit(3)

    with pytest.raises(SystemExit):
        deliver(a_context(Exits(), on_error="skip"), Tick(number=1))


def test_108_endless_recursion_is_a_handler_failure():
    class Recurses(Monitor):
        @on(Tick)
        def tick(self, tick: Tick) -> None:
            self.tick(tick)

    with pytest.raises(HandlerFailed, match=r"E5500 monitor Recurses: .* RecursionError"):
        deliver(a_context(Recurses()), Tick(number=1))


# --- sends ---


def handler_that(body: Any) -> Monitor:
    class Asks(Monitor):
        @on(Tick)
        def tick(self, tick: Tick) -> None:
            body(self)

    return Asks()


def error_of(body: Any) -> CorrelatorError:
    with pytest.raises(CorrelatorError) as raised:
        deliver(a_context(handler_that(body)), Tick(number=1))
    return raised.value


def test_113_a_send_to_an_unknown_sender_names_the_known_ones():
    error = error_of(lambda monitor: monitor.send(b"x", to="nowhere"))
    assert error.code == "E8001"
    assert "no sender 'nowhere'. Senders: out, quick." in str(error)


def test_113_a_send_to_an_unknown_channel():
    assert error_of(lambda monitor: monitor.send(b"x", to="channel:nowhere")).code == "E8001"


def test_113_a_monitor_outside_an_engine_cannot_send():
    with pytest.raises(UsageError, match="E8003 monitor Counter: is not part of a running engine"):
        Counter().send(b"x", to="out")


def test_a2_16_a_send_to_a_sender_that_is_being_removed_raises():
    context = a_context(handler_that(lambda monitor: monitor.send(b"x", to="out")))
    context._binding._routes.closing = frozenset({"out"})
    with pytest.raises(UsageError, match="E8002"):
        deliver(context, Tick(number=1))


@pytest.mark.parametrize("value", [threading.Lock(), object(), {1: threading.Lock()}])
def test_112_a_value_that_cannot_become_a_message(value):
    error = error_of(lambda monitor: monitor.send(value, to="out"))
    assert isinstance(error, MappingError)
    assert error.code == "E5201"


@pytest.mark.parametrize("to", ["out", "quick", "channel:main"])
def test_112_a_class_is_not_sent_in_place_of_an_event(to):
    error = error_of(lambda monitor: monitor.send(Tick, to=to))
    assert str(error).endswith(": the class Tick was given to send. An event is an instance of it. Write Tick(...).")
    assert (type(error), error.code) == (MappingError, "E5201")


def test_111_a_flood_into_a_channel_is_bounded(monkeypatch):
    monkeypatch.setattr("correlator.core.binding.MAX_WAITING_FROM_INSIDE", 3)
    context = a_context(handler_that(lambda monitor: monitor.send(Other(), to="channel:main")))
    for _ in range(3):
        context.queue.deliver(inside(Other()))
    context.queue.deliver(inside(Tick(number=1)))
    with pytest.raises(UsageError, match="E8010"):
        while context.queue.head() is not None:
            context.queue.deliver(inside(Other()))
            context.queue.deliver(inside(Tick(number=1)))
            context.work(1, 0.0)


def test_111_a_context_lets_one_that_it_crowds_catch_up(monkeypatch):
    """It does not wait for a shorter queue than its own, and for a queue that stays crowded only once."""
    monkeypatch.setattr("correlator.core.crowding.CROWDED", 3)
    other = InputQueue()
    context = a_context(handler_that(lambda monitor: monitor.send(Other(), to="channel:other")))
    context._binding._routes.channels["other"] = [other]
    for number in range(9):
        context.queue.deliver(inside(Tick(number=number)))
    assert context.work(1000, 0.0) == 6
    assert (len(context.queue), len(other), context.crowds()) == (3, 6, True)
    for _ in range(6):
        other.deliver(inside(Other()))
        other.advance(other.head(), 1)
    assert (len(other), context.crowds()) == (6, False)
    assert context.work(1000, 0.0) == 1
    assert context.crowds()


def test_events_leave_as_json_and_bytes_and_messages_as_they_are():
    def body(monitor: Monitor) -> None:
        monitor.send(Tick(number=1), to="out", key="k", properties={"a": 1})
        monitor.send(b"raw", to="out", properties={"b": 2})
        monitor.send(Message(b"whole", {"c": 3}, "key"), to="out")

    context = a_context(handler_that(body))
    deliver(context, Tick(number=0))
    assert context.staging.take_sends() == {
        "out": [
            Message(b'{"number":1,"kind":"plain"}', {"a": 1}, "k"),
            Message(b"raw", {"b": 2}),
            Message(b"whole", {"c": 3}, "key"),
        ]
    }


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (lambda monitor: monitor.request_flush("nowhere"), "E8001"),
        (lambda monitor: monitor.request_flush("out"), "E8202"),
        (lambda monitor: monitor.acknowledge_and_resume("nobody"), "E7103"),
        (lambda monitor: monitor.cancel("1"), "E4120"),
        (lambda monitor: monitor.cancel(None), "E4120"),
        (lambda monitor: monitor.wait(1, len), "E4106"),
        (lambda monitor: monitor.once(match(Tick), Counter().tick), "E4106"),
        (lambda monitor: monitor.spawn(Order), "E4105"),
        (lambda monitor: monitor.spawn(Order, nothing=1), "E4104"),
    ],
)
def test_calls_that_cannot_work(body, code):
    assert error_of(body).code == code


@pytest.mark.parametrize("call", ["request_flush", "acknowledge_and_resume"])
def test_a5_7_a4_9_persistent_monitors_may_not_flush_or_acknowledge(call):
    monitor = Counter()
    a_context(monitor)
    with pytest.raises(UsageError, match=rf"E4110 monitor Counter: {call}\(\) is not allowed in a persistent monitor"):
        getattr(monitor, call)("quick")


# --- the cut ---


def test_a2_10_a_requested_cut_falls_between_two_events():
    class Asked(Log):
        @on(Tick)
        def tick(self, tick: Tick) -> None:
            self.heard(tick.number)
            if tick.number == 2:
                context.cut_requested = True

    monitor = Asked()
    context = a_context(monitor)
    deliver(context, *[Tick(number=number) for number in range(5)])
    assert monitor.calls_so_far() == [0, 1, 2]
    _, waiting = context.queue.cut(lambda one: ("", str(one.number).encode()))
    assert [run.events[0][1] for run in waiting] == [b"3", b"4"]


def test_only_monitors_that_handled_an_event_are_written():
    context = a_context(Counter(), Timed())
    context.take_state()
    assert context.take_state() == []
    deliver(context, Tick(number=1))
    assert {entry.owner for entry in context.take_state()} == {
        "monitor:Counter",
        "table:Counter#0.by_kind",
        "monitor:Timed",
    }


def test_state_comes_back_as_it_was():
    context = a_context(Counter())
    deliver(context, Tick(number=1), Tick(number=2, kind="red"))
    _, (monitor,) = restarted(context, Counter)
    assert (monitor.count, monitor.seen, dict(monitor.by_kind)) == (2, [1, 2], {"plain": 1, "red": 1})


def test_timers_follow_the_code_that_comes_back():
    """A timer that the class still declares goes on, a removed one is gone, and a new one begins now."""

    class Earlier(Monitor, persistent=True):
        beats: list[str] = []

        @every(2.0)
        def kept(self) -> None:
            self.beats.append("kept")

        @every(0.5)
        def dropped(self) -> None:
            self.beats.append("dropped")

    class Later(Earlier, persistent=True):
        dropped = None

        @every(3.0)
        def added(self) -> None:
            self.beats.append("added")

    context = a_context(Earlier())
    (entry,) = [one for one in context.take_state() if one.owner.startswith("monitor:")]
    stored = decode(entry.value)
    again = Context("main", Routes(), resolve, engine_time=10.0)
    monitor = restore_monitor(Later, "0", stored, {})
    again.load(monitor, "stop", "0", stored)
    again.work(10, 12.9)
    assert set(monitor.beats) == {"kept"}
    again.work(10, 13.0)
    assert set(monitor.beats) == {"kept", "added"}


def test_dynamic_listeners_of_persistent_monitors_survive():
    class Persistent(Monitor, persistent=True):
        heard: list[int] = []

        def onload(self) -> None:
            self.once(match(Tick, kind="red"), self.red)

        def red(self, tick: Tick) -> None:
            self.heard.append(tick.number)

    monitor = Persistent()
    context = a_context(monitor)
    context.call_one(monitor, "onload")
    again, (restored,) = restarted(context, Persistent)
    deliver(again, Tick(number=1), Tick(number=2, kind="red"), Tick(number=3, kind="red"))
    assert restored.heard == [2]


def test_events_from_inside_are_recorded_by_value():
    context = a_context()
    context.queue.deliver(inside(Tick(number=4)))
    (run,) = context.cut().queue
    assert decode_event(resolve, run.events[0]) == Tick(number=4)


# --- classes ---


def test_40_state_that_cannot_be_stored_is_refused_when_the_class_is_made():
    with pytest.raises(StateError, match=r"E4101 monitor Holds: field 'lock' has type _thread\.lock|E4101"):

        class Holds(Monitor, persistent=True):
            lock: threading.Thread


def test_a_table_needs_a_persistent_monitor():
    with pytest.raises(StateError, match="E4107 monitor Fleeting"):

        class Fleeting(Monitor):
            table: StateTable[str, int]


def test_each_instance_begins_with_a_copy_of_the_initial_values():
    first, second = Counter(), Counter()
    first.seen.append(1)
    assert (second.seen, Counter.seen) == ([], [])


def stored_as(cls: type[Monitor], **attributes: Any) -> StoredMonitor:
    return StoredMonitor("x:Y", "main", cls.state_version, msgspec.msgpack.encode(attributes), [], [], 1)


class Renamed(Monitor, persistent=True):
    new_name: int = 0


def test_t31_a_renamed_field_is_an_error_that_names_the_hook():
    with pytest.raises(StateError, match=r"E4203 .*migrate_state"):
        restore_monitor(Renamed, 0, stored_as(Renamed, old_name=5), {})


def test_migrate_state_is_asked_when_the_version_differs():
    class Migrated(Monitor, persistent=True):
        state_version = 2
        new_name: int = 0

        @classmethod
        def migrate_state(cls, version: int, data: dict[str, Any]) -> dict[str, Any] | None:
            return {"new_name": data["old_name"] * 10} if version == 1 else None

    assert restore_monitor(Migrated, 0, stored_as(Renamed, old_name=5), {}).new_name == 50
    other = StoredMonitor("x:Y", "main", 7, stored_as(Renamed, old_name=5).attributes, [], [], 1)
    with pytest.raises(StateError, match="stored state has version 7, the class 2"):
        restore_monitor(Migrated, 0, other, {})


class Flooding(Monitor):
    @on(Tick)
    def tick(self, tick: Tick) -> None:
        for _ in range(tick.number):
            self.send(tick, to="out")


def test_111_a_flood_of_sends_for_one_event_is_refused(monkeypatch):
    """More sends for one event than the limit are an error, and none of them leaves."""
    monkeypatch.setattr("correlator.core.calls.MAX_EFFECTS", 100)
    context = a_context(Flooding(), on_error="skip")
    deliver(context, Tick(kind="red", number=101), Tick(kind="red", number=100))
    context.work(10, 0.0)
    assert len(context.staging.take_sends()["out"]) == 100


@pytest.mark.parametrize(
    ("properties", "key"),
    [({"p": "\ud800"}, None), ({1 << 70: 1}, None), ({"p": 1 << 70}, None), ({"p": [1]}, None), ({}, 1 << 70), ({}, 5)],
    ids=["surrogate", "name", "integer", "list", "long key", "number as key"],
)
def test_112_properties_and_keys_that_cannot_travel_are_the_handlers_failure(properties, key):
    error = error_of(lambda monitor: monitor.send(b"x", to="out", properties=properties, key=key))
    assert isinstance(error, MappingError)
    assert error.code == "E5202"


def sent_by(asks):
    """The messages for `out` that a handler sends."""

    class Sends(Monitor):
        @on(Tick)
        def tick(self, tick: Tick) -> None:
            asks(self)

    context = a_context(Sends())
    deliver(context, Tick(number=1))
    return context.staging.take_sends()["out"]


def test_a_key_and_properties_of_the_call_replace_those_of_a_message():
    message = Message(b"x", {"a": 1, "b": 2}, "k")
    arguments = ({}, {"key": "l"}, {"properties": {"b": 3, "c": 4}}, {"key": "l", "properties": {"a": None}})
    sent = sent_by(lambda monitor: [monitor.send(message, to="out", **one) for one in arguments])
    assert [(one.key, one.properties) for one in sent] == [
        ("k", {"a": 1, "b": 2}),
        ("l", {"a": 1, "b": 2}),
        ("k", {"a": 1, "b": 3, "c": 4}),
        ("l", {"a": None, "b": 2}),
    ]
    assert message == Message(b"x", {"a": 1, "b": 2}, "k")


@pytest.mark.parametrize("given", [{"key": "k"}, {"properties": {"p": 1}}, {"destination": "queue:q"}])
def test_an_event_to_a_channel_takes_nothing_that_only_a_message_has(given):
    error = error_of(lambda monitor: monitor.send(Other(), to="channel:main", **given))
    assert (type(error), error.code) == (MappingError, "E5202")


@pytest.mark.parametrize(
    "asks",
    [
        lambda monitor: monitor.send(Other(), to="channel:main"),
        lambda monitor: monitor.send(b"x", to="quick"),
        lambda monitor: monitor.once(match(Other), monitor.other),
        lambda monitor: monitor.once(match(Other).then(match(Other)), monitor.others),
        lambda monitor: monitor.wait(1, monitor.fired),
        lambda monitor: monitor.cancel(1),
        lambda monitor: monitor.spawn(Log),
        lambda monitor: monitor.subscribe("far"),
        lambda monitor: monitor.unsubscribe("far"),
        lambda monitor: monitor.stop(),
        lambda monitor: monitor.request_flush("quick"),
    ],
)
def test_111_a_flood_of_anything_for_one_event_is_refused(monkeypatch, asks):
    """Whatever a handler asks for, there is a limit to it."""
    monkeypatch.setattr("correlator.core.calls.MAX_EFFECTS", 100)

    class Asks(Monitor):
        @on(Tick)
        def tick(self, tick: Tick) -> None:
            for _ in range(tick.number):
                asks(self)

        def other(self, other: Other) -> None: ...

        def others(self, one: Other, other: Other) -> None: ...

        def fired(self) -> None: ...

    deliver(a_context(Asks()), Tick(number=100))
    with pytest.raises(UsageError, match="E8010 monitor Asks: asks for more than 100 effects of one event"):
        deliver(a_context(Asks()), Tick(number=101))


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (Message("text"), "E5201"),
        (Message(None), "E5201"),
        (Message(b"x", {}, None, 5), "E5202"),
        (Message(b"x", {}, None, "\ud800"), "E5202"),
        (Message(b"x", {}, None, None, Headers(priority="high")), "E5202"),
        (Message(b"x", {}, None, None, Headers(correlation_id="\ud800")), "E5202"),
        (Message(b"x", {}, None, None, {"priority": 4}), "E5202"),
        (Message(b"x", {}, None, None, Headers(time_to_live_ms=-1)), "E5202"),
        (Message(b"x", {}, None, None, Headers(time_to_live_ms=LONGEST_LIFE_MS + 1)), "E5202"),
        (Message(b"x", {}, None, None, Headers(time_to_live_ms=2**64 - 1)), "E5202"),
        (Message(b"x", {}, None, None, Headers(time_to_live_ms=2**64)), "E5202"),
    ],
    ids=[
        "text",
        "no body",
        "destination",
        "surrogate",
        "priority",
        "correlation id",
        "no headers",
        "negative life",
        "long life",
        "life of 64 bits",
        "life of 65 bits",
    ],
)
def test_112_a_message_that_could_not_be_read_again_is_the_handlers_failure(sent, code):
    error = error_of(lambda monitor: monitor.send(sent, to="out"))
    assert isinstance(error, MappingError)
    assert error.code == code


@pytest.mark.parametrize("destination", [5, b"queue:x", "\ud800"])
def test_112_a_destination_that_is_no_text_is_the_handlers_failure(destination):
    assert error_of(lambda monitor: monitor.send(b"x", to="out", destination=destination)).code == "E5202"


@pytest.mark.parametrize("on_error", ["stop", "skip"])
def test_112_an_event_for_a_channel_whose_fields_do_not_fit_is_the_handlers_failure(on_error):
    """Given a value of another type than declared, when it is sent to a channel, then at once: no start could read it."""
    failures: list[str] = []
    context = a_context(
        handler_that(lambda monitor: monitor.send(Other(number="three"), to="channel:main")), on_error=on_error
    )
    context._calls._failed = lambda _, error, about: failures.append(str(error))
    context.queue.deliver(inside(Tick(number=1)))
    if on_error == "stop":
        with pytest.raises(StateError) as raised:
            context.work(1, 0.0)
        failures.append(str(raised.value))
    else:
        context.work(1, 0.0)
    (failure,) = failures
    assert re.match(r"E4103 event Other: value does not fit .* `\$\.number`", failure)
    assert failure.endswith(" Raised in tick of monitor Asks, handling Tick.")
    assert [run for run in context.queue.runs() if isinstance(run.events[0], Other)] == []


def test_values_that_fit_their_fields_travel_over_channels():
    context = a_context(handler_that(lambda monitor: monitor.send(b"bytes", to="channel:main")))
    deliver(context, Tick(number=1))
    assert context.queue.waiting == 0


# --- life-cycle methods under a wrong name ---


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("on_load", "onload"),
        ("onLoad", "onload"),
        ("onloaded", "onload"),
        ("onUnload", "on_unload"),
        ("onunload", "on_unload"),
        ("on_begin_recover", "on_begin_recovery"),
        ("onBeginRecovery", "on_begin_recovery"),
        ("on_conclude_recovry", "on_conclude_recovery"),
    ],
)
def test_a_method_that_looks_like_a_life_cycle_method_is_refused(name, nearest):
    with pytest.raises(UsageError, match=rf"E4111 monitor Wrong: '{name}' looks .* Did you mean '{nearest}'\?"):
        type("Wrong", (Monitor,), {name: lambda self: None})


class TakesNothing(Monitor, persistent=True):
    count: int = 0

    def __init__(self):
        super().__init__()


class KeepsNothing(Monitor, persistent=True):
    count: int = 0

    def __init__(self, **attributes):
        super().__init__()


class TakesMore(Monitor, persistent=True):
    count: int = 0

    def __init__(self, client="none", **attributes):
        super().__init__(**attributes)
        self.client = client


@pytest.mark.parametrize(("cls", "says"), [(TakesNothing, "does not take"), (KeepsNothing, "does not keep")])
def test_a_persistent_monitor_that_cannot_be_made_again_is_refused(cls, says):
    """Otherwise it would begin anew without a notice."""
    with pytest.raises(StateError, match=rf"E4116 monitor {cls.__name__}: '__init__' {says} .*super\(\)"):
        cls.made_again({"count": 12})
    assert TakesMore.made_again({"count": 12}).count == 12


@pytest.mark.parametrize("name", ["onload", "on_unload", "load", "order", "on_order", "begin"])
def test_a_method_with_a_name_of_its_own_is_allowed(name):
    type("Right", (Monitor,), {name: lambda self: None})


def test_a_handler_may_be_called_like_its_event():
    class Loans(Monitor):
        @on(Tick)
        def on_loan(self, tick: Tick) -> None: ...

    assert [spec.handler for spec in Loans.listeners] == ["on_loan"]


def test_a_type_with_many_listeners_that_ask_for_nothing_costs_each_of_them_once():
    """Adding a listener must not cost as many steps as there are listeners."""
    index = ListenerIndex()
    made = [Listener(Instance(Listens(), "0", "stop"), number, match(Tick), "red", once=False) for number in range(5)]
    for one in made:
        index.add(one)
    assert index.types[Tick].sequence is None
    assert list(index.matching(Tick(number=1))) == made
    index.remove(made[2])
    assert list(index.matching(Tick(number=1))) == [*made[:2], *made[3:]]
