"""What a monitor asks for takes effect when its handler returns. A call that no handler makes is refused, not lost."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from correlator import Monitor, match, on
from correlator.errors import CorrelatorError, UsageError
from correlator.events import FlowControlMarker, Message
from tests.runtime.flows import Note
from tests.runtime.world import BEST_EFFORT, PATIENCE_S, World, receiver, sender

MADE: list["Asks"] = []


class Asks(Monitor):
    """Its handler calls what the test says."""

    def onload(self) -> None:
        MADE.append(self)
        self.handler: Callable[[], object] = lambda: None
        self.done = threading.Event()

    @on(Message)
    def heard(self, _message: Message) -> None:
        self.handler()
        self.done.set()

    def later(self, *_events: Any) -> None: ...


class Begins(Monitor):
    """Sends at each moment of its life."""

    def onload(self) -> None:
        self.send(b"onload", to="out")
        self.wait(0, self.wakes)

    def wakes(self) -> None:
        self.send(b"timer", to="out")
        self.once(match(Message), self.heard)

    def heard(self, _message: Message) -> None:
        self.send(b"listener", to="out")
        self.stop()

    def on_unload(self) -> None:
        self.send(b"on_unload", to="out")


CALLS: dict[str, Callable[[Asks], Any]] = {
    "send": lambda one: one.send(b"1", to="out"),
    "send to a channel": lambda one: one.send(Note(text="1"), to="channel:main"),
    "send to a default sender": lambda one: one.send(b"1", to="memory-default-sender", destination="queue:out"),
    "once": lambda one: one.once(match(Note), one.later),
    "on_all": lambda one: one.on_all(match(Note), one.later),
    "cancel": lambda one: one.cancel(1),
    "wait": lambda one: one.wait(1, one.later),
    "spawn": lambda one: one.spawn(Asks),
    "stop": lambda one: one.stop(),
    "subscribe": lambda one: one.subscribe("other"),
    "unsubscribe": lambda one: one.unsubscribe("other"),
    "outstanding": lambda one: one.outstanding("out"),
    "request_flush": lambda one: one.request_flush("out"),
    "acknowledge_and_resume": lambda one: one.acknowledge_and_resume("in"),
    "update_flow_control_window": lambda one: one.update_flow_control_window(
        FlowControlMarker(receiver="in", number=0), 1
    ),
}
EACH_CALL = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())


def met_by(call: Callable[[Asks], Any], one: Asks) -> str:
    try:
        call(one)
    except CorrelatorError as error:
        return error.code
    return "nothing"


def in_a_thread(call: Callable[[Asks], Any], one: Asks) -> str:
    met: list[str] = []
    thread = threading.Thread(target=lambda: met.append(met_by(call, one)))
    thread.start()
    thread.join()
    return met[0]


@pytest.fixture
def asks(no_store: World) -> Asks:
    """A monitor of a running engine, between two handlers."""
    MADE.clear()
    no_store.engine(receiver("in", BEST_EFFORT), sender("out", BEST_EFFORT), monitors=[Asks]).start()
    return MADE[0]


@EACH_CALL
def test_a_call_when_no_handler_runs_is_refused(asks: Asks, call: Callable[[Asks], Any]) -> None:
    assert met_by(call, asks) == "E8005"


@EACH_CALL
def test_t9_a_call_in_a_thread_that_the_handler_waits_for_is_refused(
    asks: Asks, call: Callable[[Asks], Any], no_store: World
) -> None:
    met: list[str] = []
    asks.handler = lambda: met.append(in_a_thread(call, asks))
    no_store.publish("1")
    assert asks.done.wait(PATIENCE_S)
    assert met == ["E8005"]


@EACH_CALL
def test_a_call_after_the_engine_has_ended_is_refused(asks: Asks, call: Callable[[Asks], Any], no_store: World) -> None:
    no_store.close()
    assert met_by(call, asks) == "E8005"


def test_a_handler_that_fails_leaves_no_permission_behind(asks: Asks, no_store: World) -> None:
    def fail() -> None:
        asks.done.set()
        raise ValueError

    asks.handler = fail
    no_store.publish("1")
    assert asks.done.wait(PATIENCE_S)
    no_store.close()
    assert met_by(CALLS["send"], asks) == "E8005"


def test_a_refusal_says_where_the_call_belongs(asks: Asks) -> None:
    with pytest.raises(UsageError, match=r"E8005 monitor Asks: .* within its handlers .* a receiver takes from\.$"):
        asks.send(b"1", to="out")


def test_engine_time_can_be_read_from_anywhere(asks: Asks) -> None:
    assert asks.engine_time >= 0.0


def test_each_moment_of_a_monitors_life_may_ask(no_store: World) -> None:
    with no_store.engine(receiver("in", BEST_EFFORT), sender("out", BEST_EFFORT), monitors=[Begins]):
        no_store.wait_for("onload", "timer")
        no_store.publish("1")
        no_store.wait_for("onload", "timer", "listener", "on_unload")


class Ends(Asks):
    """It ends at the first message, and lets its last handler call what the test says."""

    last: Callable[[Asks], Any] = CALLS["send"]
    met = ""

    @on(Message)
    def heard(self, _message: Message) -> None:
        self.stop()

    def on_unload(self) -> None:
        type(self).met = met_by(type(self).last, self)
        self.done.set()


@pytest.fixture
def ends(no_store: World, monkeypatch: pytest.MonkeyPatch) -> Ends:
    """Of two monitors in one context the one that ends."""
    monkeypatch.setattr(Ends, "met", "")
    MADE.clear()
    no_store.engine(receiver("in", BEST_EFFORT), sender("out", BEST_EFFORT), monitors=[Ends, Asks]).start()
    one = MADE[0]
    assert isinstance(one, Ends)
    return one


WAITS = ("once", "on_all", "wait", "subscribe")


@pytest.mark.parametrize("name", [*WAITS, "send", "spawn", "cancel", "unsubscribe", "stop"])
def test_what_a_monitor_waits_for_when_it_ends_is_refused(
    ends: Ends, name: str, no_store: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing would come of it."""
    monkeypatch.setattr(Ends, "last", staticmethod(CALLS[name]))
    no_store.publish("1")
    assert ends.done.wait(PATIENCE_S)
    assert Ends.met == ("E8011" if name in WAITS else "nothing")


@pytest.mark.parametrize("name", [*WAITS, "spawn", "cancel", "unsubscribe"])
def test_a_call_of_a_monitor_that_has_ended_is_refused_in_another_ones_handler(
    ends: Ends, name: str, no_store: World
) -> None:
    other, met = MADE[1], []
    no_store.publish("1")
    assert ends.done.wait(PATIENCE_S)
    assert other.done.wait(PATIENCE_S)
    other.done.clear()
    other.handler = lambda: met.append(met_by(CALLS[name], ends))
    no_store.publish("2")
    assert other.done.wait(PATIENCE_S)
    assert met == ["E8011"]
