"""The meaning of expressions, one case at a time, across restarts and failures of handlers (docs/listeners.md)."""

from typing import Annotated, Any

import msgspec
import pytest

from correlator.core.commit import ContextCut
from correlator.core.context import Context
from correlator.core.expressions import Expression, at, match, wait
from correlator.core.instances import StoredAttempt, StoredMonitor, waiting_owner
from correlator.core.loaded import CONFIGURED
from correlator.core.monitor import Monitor, on
from correlator.core.routes import Routes
from correlator.core.timers import SLACK
from correlator.errors import HandlerFailed, StateError, UsageError
from correlator.events import event
from correlator.runtime.names import resolve
from tests.core.listening import A, B, C, Listening, Order, Payment

DAY = 86_400.0
NINE = 9 * 3600.0


class Heard(Monitor, persistent=True):
    """Remembers the events that its handler got."""

    heard: list[list[tuple[str, int] | None]] = []
    fail: bool = False

    def fired(self, *events: Any) -> None:
        self.heard.append([one and (type(one).__name__, getattr(one, one.__struct_fields__[0])) for one in events])
        if self.fail:
            raise ValueError("no")


EXPRESSION: list[Any] = []


class Once(Heard, persistent=True):
    number: int = 0

    def onload(self) -> None:
        self.number = self.once(EXPRESSION[-1], then=self.fired)

    @on(C, n=99)
    def give_up(self, c: C) -> None:
        self.cancel(self.number)


class OnAll(Heard, persistent=True):
    number: int = 0

    def onload(self) -> None:
        self.number = self.on_all(EXPRESSION[-1], then=self.fired)

    @on(C, n=99)
    def give_up(self, c: C) -> None:
        self.cancel(self.number)

    @on(C, n=98)
    def end(self, c: C) -> None:
        self.stop()


def once(expression: Any, **options: Any) -> Listening:
    EXPRESSION.append(expression)
    return Listening(Once(), **options)


def on_all(expression: Any, **options: Any) -> Listening:
    EXPRESSION.append(expression)
    return Listening(OnAll(), **options)


def heard(world: Listening) -> list[list[Any]]:
    return world.monitor.heard


def a(n: int) -> tuple[str, int]:
    return ("A", n)


def b(n: int) -> tuple[str, int]:
    return ("B", n)


# --- what is heard ---


def play(world: Listening, *happenings: Any) -> list[list[Any]]:
    """Events, or seconds."""
    for one in happenings:
        if isinstance(one, int | float):
            world.pass_time(one)
        else:
            world.hear(one)
    return heard(world)


A1, A2, B1, B2, C1 = A(n=1), A(n=2), B(n=1), B(n=2), C(n=1)
a1, a2, b1, b2 = ("A", 1), ("A", 2), ("B", 1), ("B", 2)


@pytest.mark.parametrize(
    ("expression", "happenings", "expected"),
    [
        (match(A).then(match(B)), [B1, A1, A2, B1, B2], [[a1, b1]]),
        (match(A).then(match(A)), [A1, A2], [[a1, a2]]),
        (match(A) & match(B), [B1, B2, A1, A2, B1], [[a1, b1]]),
        (match(A) & match(A, n=1), [A2, A1], [[a2, a1]]),
        (match(A) | match(B), [B1, A1], [[None, b1]]),
        ((match(A) | match(B)).then(match(C)), [A1, B1, C1], [[a1, None, ("C", 1)]]),
        (match(A) & ~match(B), [A1, B1], [[a1]]),
        (match(A) & ~match(B), [B1, A1], []),
        (~match(B) & match(A), [B1, A1], []),
        (match(A) & ~match(A, n=1), [A1, A2], []),
        ((match(A) & ~match(B)).then(match(C)), [A1, B1, C1], [[a1, ("C", 1)]]),
        (match(A).then(wait(5).and_not(match(B))), [A1, 4.9, 0.1], [[a1]]),
        (match(A).then(wait(5).and_not(match(B))), [A1, 4.9, B1, 10], []),
        (match(A).within(5), [4, A1], [[a1]]),
        (match(A).within(5), [5, A1], []),
        (match(A).then(match(B)).within(5), [100, A1, 4, B1], [[a1, b1]]),
        (match(A).then(match(B)).within(5), [100, A1, 5, B1], []),
        (match(A).then(match(B).then(match(C)).within(5)), [A1, 100, B1, 4, C1], [[a1, b1, ("C", 1)]]),
        (match(A).then(match(B)).within(3) | match(C), [A1, 3, B1, C1], [[a1, None, ("C", 1)]]),
        (match(A).then(wait(2)).and_not(wait(10)), [A1, 2], [[a1]]),
        (wait(5).within(5), [5], [[]]),
        (wait(5).within(3), [100], []),
        (match(A).then(wait(3)).then(match(B).within(3)), [A1, 100, B1], [[a1, b1]]),
    ],
    ids=str,
)
def test_what_once_hears(expression, happenings, expected):
    assert play(once(expression), *happenings) == expected


@pytest.mark.parametrize(
    ("expression", "happenings", "expected"),
    [
        (match(A).then(match(B)), [A1, A2, B1, B2], [[a1, b1], [a2, b1]]),
        (match(A).then(match(B)).then(match(C)), [A1, B1, A2, C1, B2, C1], [[a1, b1, ("C", 1)], [a2, b2, ("C", 1)]]),
        (match(A) & match(B), [A1, B1, B2, A2], [[a1, b1], [a2, b2]]),
        (match(A) | match(B), [A1, B1], [[a1, None], [None, b1]]),
        (match(A) & ~match(B), [A1, A2, B1, A1], [[a1], [a2]]),
        ((match(A).then(match(C))) & ~match(B), [A1, A2, B1, C1, A1, C1], []),
        (match(A).then(match(B)).within(5), [A1, 3, A2, 3, B1], [[a2, b1]]),
        (match(A).within(5), [3, A1, 4, A2, 5, A1], [[a1], [a2]]),
        (wait(5), [5, 5, 4, 1], [[], [], []]),
        (match(A).then(wait(2) & ~match(A)), [A1, 1, A2, 2, 10], [[a2]]),
    ],
    ids=str,
)
def test_what_on_all_hears(expression, happenings, expected):
    assert play(on_all(expression), *happenings) == expected


def test_what_has_matched_is_not_replaced_by_a_later_event():
    assert play(on_all((match(A) & match(B)).then(match(C))), A1, A2, B1, C1) == [[a1, b1, ("C", 1)]]


def test_values_come_from_earlier_events():
    order = match(Order)
    paid = match(Payment, order=order["id"], customer=order["customer"])
    world = on_all(order.then(paid).within(900))
    world.hear(Order(id=7), Order(id=8, customer="y"), Payment(order=8), Payment(order=8, customer="y"))
    world.restart()
    world.hear(Payment(order=7))
    assert heard(world) == [[("Order", 8), ("Payment", 8)], [("Order", 7), ("Payment", 7)]]


def test_in_a_late_stretch_of_work_clocks_run_out_in_their_order():
    """The clock that ran out first counts first, however late both are seen, and both count before the next event."""
    late = (match(A) & ~wait(3)).within(5) | (wait(4) & match(B))
    world = once(late)
    world.now = 100.0
    world.hear(A1, B1)
    assert heard(world) == [[None, b1]]


@pytest.mark.parametrize("cut", [False, True])
def test_clocks_go_on_after_a_restart_where_they_were(cut):
    world = once(match(A).then(match(B)).within(5))
    world.hear(A1)
    world.pass_time(3)
    if cut:
        world.cut()
    world.restart()
    world.pass_time(1.9)
    world.hear(B1)
    assert heard(world) == [[a1, b1]]


def test_a_second_attempt_is_not_mixed_with_the_first_after_restarts():
    world = on_all(match(A).then(match(B)))
    for one in (A1, A2):
        world.hear(one)
        world.restart()
    world.hear(B1)
    assert heard(world) == [[a1, b1], [a2, b1]]
    assert world.waiting() == [b"1", b"1.3"]


def test_cancel_ends_a_listener_with_all_its_attempts():
    world = on_all(match(A).then(match(B).within(9)))
    assert play(world, A1, A2, C(n=99), B1, A1, B1, 10) == []
    assert world.waiting() == []
    assert world.context.next_timer() is None


def test_a_monitor_that_ends_takes_its_attempts_with_it():
    world = on_all(match(A).then(match(B).within(9)))
    play(world, A1, A2)
    world.cut()
    assert play(world, C(n=98), B1, 10) == []
    assert world.waiting() == []
    assert world.context.next_timer() is None


def test_a_listener_whose_first_step_can_no_longer_be_true_is_over():
    world = on_all(match(A) & ~match(B))
    play(world, A1, B1)
    assert world.waiting() == []


def test_older_attempts_hear_an_event_first_in_every_life():
    order = match(Order)
    world = on_all(order.then(match(Payment, order=order["id"])).then(match(A)))
    world.hear(Order(id=1), Order(id=2), Payment(order=2), Payment(order=1))
    world.hear(A1)
    assert [events[0] for events in heard(world)] == [("Order", 1), ("Order", 2)]


class EndsAndListens(Heard, persistent=True):
    @on(A)
    def end(self, one: A) -> None:
        self.stop()
        self.once(match(B).then(match(C)), then=self.fired)


def test_a_monitor_that_has_ended_begins_nothing():
    world = Listening(EndsAndListens())
    assert play(world, A1, B1, C1) == []
    assert world.waiting() == []
    assert len(world.context.monitors.attempts.index.matching(B1)) == 0


class Twice(Heard, persistent=True):
    def onload(self) -> None:
        self.on_all(match(A).then(match(B)), then=self.first)
        self.number = self.on_all(match(A).then(match(B)), then=self.fired)

    def first(self, one: A, other: B) -> None:
        self.cancel(self.number)


def test_a_handler_can_cancel_what_the_same_event_would_complete():
    assert play(Listening(Twice()), A1, B1) == []


# --- declared ---


class Declared(Heard, persistent=True):
    order = match(Order)

    @on(order.then(match(Payment, order=order["id"])))
    def paid(self, order: Order, payment: Payment) -> None:
        self.fired(order, payment)

    @on(match(A) & ~match(B))
    def until_b(self, one: A) -> None:
        self.fired(one)


class Shrunk(Heard, persistent=True, name="Declared"):
    """A later version that has lost its methods."""


def test_a_class_declares_expressions_with_on():
    world = Listening(Declared())
    world.hear(Order(id=1), Order(id=2), A1)
    world.restart()
    world.hear(Payment(order=2), A2)
    assert heard(world) == [[a1], [("Order", 2), ("Payment", 2)], [a2]]


def test_a_declared_listener_that_is_over_stays_so_after_a_restart():
    world = Listening(Declared())
    world.hear(B1)
    world.restart()
    world.hear(A1)
    assert heard(world) == []


def test_what_a_class_no_longer_declares_is_forgotten_when_nothing_has_happened():
    world = Listening(Declared())
    world.cut()
    world.restart(Shrunk)
    assert world.waiting() == []


def test_a_changed_declaration_begins_anew_and_lets_the_old_attempts_end():
    class First(Heard, persistent=True, name="Versions"):
        @on(match(A).then(match(B)))
        def pair(self, one: A, other: B) -> None:
            self.fired(one, other)

    class Second(Heard, persistent=True, name="Versions"):
        @on(match(A).then(match(C)))
        def pair(self, one: A, other: Any) -> None:
            self.fired(one, other)

    world = Listening(First())
    world.hear(A1)
    world.restart(Second)
    world.hear(A2, B1, C1, B2)
    assert heard(world) == [[a1, b1], [a2, ("C", 1)]]
    world.restart(First)
    assert play(world, A1, B2)[2:] == [[a1, b2]]


def test_an_attempt_whose_clock_has_run_out_is_under_way_too():
    class First(Heard, persistent=True, name="Versions"):
        @on(wait(5).then(match(A)))
        def late(self, one: A) -> None:
            self.fired(one)

    class Second(Heard, persistent=True, name="Versions"):
        def late(self, one: A) -> None:
            self.fired(one)

    world = Listening(First())
    world.pass_time(6)
    world.restart(Second)
    world.hear(A1)
    assert heard(world) == [[a1]]


def test_a_method_that_an_attempt_under_way_calls_must_exist():
    world = Listening(Declared())
    world.hear(Order(id=1))
    with pytest.raises(StateError, match=r"E4203 monitor Declared: a stored listener calls 'paid', .* does not have"):
        world.restart(Shrunk)


def test_an_event_that_no_longer_fits_its_class_is_refused_with_a_code():
    """The class `Order` had another field in the earlier life."""
    world = Listening(Declared())
    world.hear(Order(id=1))
    world.cut()
    waiting = world.state[waiting_owner(Declared, CONFIGURED)]
    for key, data in waiting.items():
        if b"." in key and (kept := msgspec.msgpack.decode(data, type=StoredAttempt)).events:
            old = dict.fromkeys(kept.events, msgspec.msgpack.encode({"number": 1}))
            waiting[key] = msgspec.msgpack.encode(msgspec.structs.replace(kept, events=old))
    with pytest.raises(
        StateError, match=r"E4203 monitor Declared: an attempt holds an event that does not fit Order: "
    ):
        world.restart()


def test_a_class_that_goes_back_to_an_earlier_declaration_begins_it_anew():
    class First(Heard, persistent=True, name="Versions"):
        @on(match(A).then(match(B)))
        def pair(self, one: A, other: B) -> None:
            self.fired(one, other)

    class Second(Heard, persistent=True, name="Versions"):
        def pair(self, one: A, other: B) -> None:
            self.fired(one, other)

    world = Listening(First())
    world.hear(A1)
    world.restart(Second)
    world.restart(First)
    world.hear(A2, B1)
    assert heard(world) == [[a1, b1], [a2, b1]]


class Resumes(Heard, persistent=True):
    def on_begin_recovery(self) -> None:
        self.once(wait(5), then=self.fired)
        self.wait(5, self.rang)

    def rang(self) -> None:
        self.heard.append([("rang", 5)])


def test_what_a_start_begins_to_wait_for_counts_from_the_checkpoint():
    """An expression as a timer, also when engine time has caught up with ids that were received after it."""
    context = Context("main", Routes(), resolve, engine_time=90.0)
    context.load(monitor := Resumes(), "stop")
    context.restore(ContextCut("main", {}, []), [], 20.0)
    context.call_one(monitor, "on_begin_recovery")
    assert context.next_timer() == 25.0
    context.work(0, 24.9)
    assert monitor.heard == []
    context.work(0, 25.0)
    assert monitor.heard == [[], [("rang", 5)]]


# --- failures ---


def test_a_completing_event_whose_handler_failed_has_not_happened_for_the_expression():
    world = once(match(A).then(match(B)), on_error="skip")
    world.hear(A1)
    world.monitor.fail = True
    world.hear(B1)
    world.monitor.fail = False
    world.hear(B2)
    assert heard(world) == [[a1, b2]]
    assert world.failures == ["E5500"]


def test_an_event_that_failed_at_the_first_step_does_not_use_it_up():
    world = on_all(match(A) & match(B), on_error="skip")
    world.monitor.fail = True
    world.hear(A1, B1)
    world.monitor.fail = False
    world.hear(B2, A2, B1)
    assert heard(world) == [[a1, b2], [a2, b1]]


def test_time_that_has_run_out_has_run_out_even_when_the_handler_failed():
    world = once(match(A).then(wait(5)), on_error="skip")
    world.monitor.fail = True
    play(world, A1, 5, 5, 5)
    assert world.failures == ["E5500"]
    assert world.waiting() == []


def test_stop_leaves_the_attempt_for_the_next_life():
    world = once(match(A).then(match(B)))
    world.hear(A1)
    world.cut()
    world.monitor.fail = True
    with pytest.raises(HandlerFailed):
        world.hear(B1)


class Failing(Heard, persistent=True):
    @on(A)
    def listens(self, one: A) -> None:
        self.once(match(B).then(match(C)), then=self.fired)
        self.once(wait(5), then=self.fired)
        self.subscribe("news")
        raise ValueError("after all of it")


def test_what_a_failed_handler_asked_for_does_not_begin():
    world = Listening(Failing(), on_error="skip")
    play(world, A1, B1, C1, 10)
    assert heard(world) == []
    assert world.waiting() == []
    assert "news" not in world.context._binding._routes.channels


# --- what cannot be ---


def test_a_class_in_an_expression_is_answered_with_how_to_write_it():
    with pytest.raises(
        UsageError, match=r"^E4112 expression: the class A cannot be a part of it\. Write match\(A\)\.$"
    ):
        on(match(B).then(A))(lambda _self, _one, _other: None)
    with pytest.raises(
        UsageError, match=r"^E4112 expression: '5' of type int cannot be a part of it\. Parts are match"
    ):
        on(match(B).then(5))(lambda _self, _one: None)


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (lambda: ~match(A), "E4112"),
        (lambda: match(A).then(~match(B)), "E4112"),
        (lambda: match(A).or_(5), "E4112"),
        (lambda: wait(0), "E4112"),
        (lambda: wait(float("inf")), "E4112"),
        (lambda: wait(float("nan")), "E4112"),
        (lambda: wait(1e10), "E4112"),
        (lambda: match(A).within(-1), "E4112"),
        (lambda: at(hour=24), "E4112"),
        (lambda: at(minute=60), "E4112"),
        (lambda: long_chain(101), "E4112"),
        (lambda: match(A)["x"], "E4108"),
        (lambda: match(Order)["lines"], "E4108"),
        (lambda: match(A, n=match(B)["n"]), "E4113"),
        (lambda: refers(lambda one, other: one & other), "E4113"),
        (lambda: refers(lambda one, other: (one | match(C)).then(other)), "E4113"),
        (lambda: refers(lambda one, other: (match(C) & ~one).then(other)), "E4113"),
        (lambda: refers(lambda one, other: other.then(one)), "E4113"),
        (lambda: refers(lambda one, other: one.then(one).then(other)), "E4113"),
    ],
)
def test_what_cannot_be_is_refused_where_it_is_written(make, code):
    with pytest.raises(UsageError) as refused:
        once(make())
    assert refused.value.code == code


def long_chain(parts: int) -> Expression:
    chain: Expression = match(A)
    while len(str(chain).split("Pattern(")) < parts // 2 + 2:
        chain = chain.then(match(A))
    return chain


def refers(make: Any) -> Expression:
    one = match(A)
    return make(one, match(B, n=one["n"]))


def test_a_value_of_an_earlier_event_that_the_field_never_has_is_refused():
    order = match(Order)
    says = (
        "E4108 event Payment: field 'order' of type int never has the value of field 'customer' of Order, "
        "which is of type str."
    )
    with pytest.raises(UsageError) as refused:
        match(Payment, order=order["customer"])
    assert str(refused.value) == says
    for field, source in (("order", "id"), ("customer", "customer")):
        assert match(Payment, **{field: order[source]}).refers


@event
class Odd:
    number: float
    choice: str | None
    limited: Annotated[int, msgspec.Meta(ge=0)]


def test_a_value_of_an_earlier_event_is_allowed_where_both_fields_may_have_it():
    order = match(Order)
    assert match(Odd, number=order["id"], choice=order["customer"], limited=order["id"]).refers


def test_a_handler_must_take_as_many_events():
    with pytest.raises(UsageError, match=r"E4114 handler paid: is called with 1 events"):

        class Wrong(Monitor):
            @on(match(Order) & ~match(A))
            def paid(self, order: Order, payment: Payment) -> None: ...

    class Dynamic(Monitor):
        def onload(self) -> None:
            self.once(match(A).then(match(B)), then=self.one)

        def one(self, one: A) -> None: ...

    with pytest.raises(UsageError, match="E4114"):
        Listening(Dynamic())


def test_a_pattern_that_cannot_be_stored_is_the_handlers_failure():
    class Strange(Heard, persistent=True):
        @on(A)
        def listens(self, one: A) -> None:
            self.once(match(B, n=object()).then(match(C)), then=self.fired)

    world = Listening(Strange(), on_error="skip")
    world.hear(A1)
    assert world.failures == ["E4108"]


# --- the calendar ---


def at_nine(wall: float) -> Listening:
    return on_all(at(hour=9), wall=wall)


def test_at_fires_at_its_minute_every_day():
    world = at_nine(NINE - 10)
    world.pass_time(9)
    assert len(heard(world)) == 0
    world.pass_time(1)
    assert len(heard(world)) == 1
    world.pass_time(DAY - 1)
    assert len(heard(world)) == 1
    world.pass_time(1)
    assert len(heard(world)) == 2


def test_at_without_an_hour_fires_every_hour():
    world = on_all(at(minute=30), wall=NINE)
    for _ in range(4):
        world.pass_time(1800)
    assert len(heard(world)) == 2


def test_at_set_within_its_minute_waits_for_the_next_day():
    world = at_nine(NINE)
    world.pass_time(3600)
    assert heard(world) == []


def test_a_minute_that_is_shown_again_does_not_fire_again():
    world = at_nine(NINE - 1)
    world.pass_time(1)
    world.pass_time(60, wall=-1800)
    for _ in range(60):
        world.pass_time(60)
    assert len(heard(world)) == 1


class Changes(Monitor, persistent=True):
    """Its handlers change the events that they get."""

    heard: list[str] = []

    @on(match(Order).then(match(B)))
    def first(self, order: Order, b: B) -> None:
        self._change("ab", order)
        if b.n == 5:
            raise ValueError("no")

    @on(match(Order).then(match(C)))
    def second(self, order: Order, _c: C) -> None:
        self._change("ac", order)

    @on(match(A).then(match(Order)))
    def third(self, _a: A, order: Order) -> None:
        self._change("xa", order)

    @on(match(A, n=9).then(match(Order)))
    def fourth(self, _a: A, order: Order) -> None:
        self._change("ya", order)

    def _change(self, name: str, order: Order) -> None:
        order.lines.append(99)
        self.heard.append(f"{name} {order.lines}")


@pytest.mark.parametrize("again", [False, True])
def test_what_a_handler_makes_of_an_event_is_seen_by_no_other_call(again):
    """Neither when the handler failed, nor by attempts that the same event has hit; and a restart changes nothing."""
    world = Listening(Changes(), on_error="skip")
    world.hear(A(n=9), Order(id=1, lines=[1]), B(n=5))
    assert world.failures == ["E5500"]
    if again:
        world.restart()
    world.hear(B(), C())
    assert sorted(world.monitor.heard) == [f"{one} [1, 99]" for one in ("ab", "ac", "xa", "ya")]


def test_a_handler_that_time_calls_gets_the_event_as_it_came():
    class Late(Monitor, persistent=True, name="late"):
        heard: list[list[int]] = []

        @on(match(Order).then(wait(1)))
        def waited(self, order: Order) -> None:
            order.lines.append(99)

        @on(match(Order).then(match(B)))
        def came(self, order: Order, _b: B) -> None:
            self.heard.append(list(order.lines))

    world = Listening(Late(), on_error="skip")
    world.hear(Order(id=1, lines=[1]))
    world.pass_time(2)
    world.hear(B())
    assert world.monitor.heard == [[1]]


def test_a_minute_that_was_skipped_fires_when_it_is_noticed_and_once_for_all():
    world = at_nine(NINE - DAY / 2)
    world.pass_time(59, wall=3 * DAY)
    world.pass_time(1)
    assert len(heard(world)) == 1


def test_at_looks_at_the_calendar_once_a_minute():
    world = at_nine(0.0)
    assert world.context.next_timer() == 60.0
    world.pass_time(60)
    assert world.context.next_timer() == 120.0
    world.pass_time(NINE - 90)
    assert world.context.next_timer() == world.now + 30.0


def test_a_minute_that_passed_while_the_engine_was_down_fires_at_the_start():
    world = at_nine(NINE - 10)
    world.cut()
    world.wall += 3600
    world.restart()
    world.work()
    assert len(heard(world)) == 1
    world.restart()
    world.wall = NINE + 3600
    world.work()
    assert len(heard(world)) == 1


# --- the cost ---


def test_a_checkpoint_writes_the_attempts_that_changed_and_no_others():
    order = match(Order)
    world = on_all(order.then(match(Payment, order=order["id"])))
    for number in range(50):
        world.hear(Order(id=number))
    assert len(world.waiting()) == 1 + 51
    assert world.cut() == []
    world.hear(Order(id=50))
    assert {entry.owner for entry in world.cut()} == {"waiting:OnAll#0"}
    world.hear(Order(id=51))
    world.hear(Payment(order=51))
    assert [entry.key for entry in world.cut() if entry.owner.startswith("waiting:")] == [b"1.52", b"1.53"]
    world.hear(Order(id=52), Payment(order=52), Order(id=53), Payment(order=53))
    assert [entry.key for entry in world.cut() if entry.owner.startswith("waiting:")] == [b"1.53", b"1.55"]
    world.hear(Payment(order=3))
    gone = [entry for entry in world.cut() if entry.owner.startswith("waiting:")]
    assert [(entry.key, entry.value) for entry in gone] == [(b"1.4", None)]


def test_deadlines_that_are_not_needed_any_more_do_not_pile_up():
    order = match(Order)
    world = on_all(order.then(match(Payment, order=order["id"])).within(1e6))
    world.hear(Order(id=-1))  # is first, so that the others do not come to their turn
    for number in range(20 * SLACK):
        world.hear(Order(id=number), Payment(order=number))
    assert len(heard(world)) == 20 * SLACK
    assert len(world.context.monitors.timers._waiting) < 4 * SLACK
    assert len(world.context.monitors.timers.living()) == 1


def test_what_is_over_leaves_nothing_in_the_index():
    order = match(Order)
    world = on_all(order.then(match(Payment, order=order["id"]) & ~match(A)))
    for number in range(100):
        world.hear(Order(id=number), Payment(order=number))
    assert len(world.context.monitors.attempts.index.matching(A1)) == 0
    assert len(world.context.monitors.attempts.index.matching(Payment(order=5))) == 0


# --- older stores ---


def test_a_monitor_stored_by_an_earlier_version_is_read():
    old = msgspec.msgpack.encode(["x:Y", "main", 1, b"\x80", [], [], 4, "skip"])
    read = msgspec.msgpack.decode(old, type=StoredMonitor)
    assert (read.next_number, read.on_error, read.subscriptions) == (4, "skip", [])
    older = msgspec.msgpack.encode(["x:Y", "main", 1, b"\x80", [], [], 4])
    assert msgspec.msgpack.decode(older, type=StoredMonitor).on_error == "stop"
