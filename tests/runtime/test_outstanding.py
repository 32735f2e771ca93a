"""How much waits for a broker, as a handler is told (rules A2.17, A7.3): to send less while it is much."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from correlator import Message, Monitor, Reliability, every, on
from correlator.errors import RecoveryRefused
from correlator.runtime.replay import replay
from correlator.runtime.status import status_line
from correlator.storage import inspect
from correlator.testing.memory import MemoryBroker
from tests.runtime.flows import AlsoHears, Hears, Keeps
from tests.runtime.world import (
    AT_LEAST_ONCE,
    BEST_EFFORT,
    EXACTLY_ONCE,
    World,
    message,
    monitor,
    numbered,
    receiver,
    sender,
    the_monitor,
)

HOUR = 3600.0
EVERY_MODE = pytest.mark.parametrize("reliability", [EXACTLY_ONCE, AT_LEAST_ONCE, BEST_EFFORT])


@pytest.fixture
def away() -> MemoryBroker:
    """The broker of the sender, which is down."""
    made = MemoryBroker()
    made.down = True
    return made


@pytest.fixture
def told(script: Any) -> list[int]:
    """Messages are sent on, but for those that begin with `?`: what their handlers are told."""
    answers: list[int] = []

    def handle(one: Monitor, message: Message) -> None:
        if message.body.startswith(b"?"):
            answers.append(one.outstanding("out"))
        else:
            one.send(message.body, to="out")

    script.message = handle
    return answers


def parts(reliability: Reliability = EXACTLY_ONCE) -> tuple[Any, ...]:
    return receiver(), sender("out", reliability, connection="away")


def over(world: World, away: MemoryBroker) -> dict[str, Any]:
    return {"memory": world.broker.connection(), "away": away.connection("away")}


def asked(world: World, told: list[int], question: str) -> int:
    """What the handler of one more message is told."""
    before = len(told)
    world.publish(question)
    world.wait(lambda: len(told) > before)
    return told[-1]


# --- what counts ---


@EVERY_MODE
def test_a2_17_a_handler_is_told_how_many_sends_wait(any_world, script, told, away, reliability):
    """Given a broker that is down and 42 sends, then a later handler is told 42, before a checkpoint and after it."""
    options = {"monitors": [Keeps], "connections": over(any_world, away), "interval": HOUR}
    with any_world.engine(*parts(reliability), **options) as engine:
        assert asked(any_world, told, "?none") == 0
        any_world.publish(*numbered(42))
        assert asked(any_world, told, "?staged") == 42
        assert engine.checkpoint()
        assert asked(any_world, told, "?released") == 42
        away.down = False
        any_world.wait(lambda: len(away.received("queue:out")) == 42)
        any_world.wait(lambda: engine.senders["out"].idle)
        assert asked(any_world, told, "?confirmed") == 0


@pytest.mark.parametrize("reliability", [EXACTLY_ONCE, AT_LEAST_ONCE])
def test_a2_17_what_an_earlier_life_could_not_send_counts(any_world, script, told, away, reliability):
    options = {"monitors": [Keeps], "connections": over(any_world, away)}
    with any_world.engine(*parts(reliability), **options) as engine:
        any_world.publish(*numbered(42))
        any_world.wait(lambda: len(script.of("Keeps")) == 42)
        assert engine.checkpoint()
        any_world.crash(engine)
    with any_world.engine(*parts(reliability), **options, stop_timeout=0.2):
        assert asked(any_world, told, "?again") == 42


@EVERY_MODE
def test_a2_17_what_a_handler_sends_counts_from_its_end_on(any_world, script, away, reliability):
    answers = []

    def handle(one: Monitor, message: Message) -> None:
        answers.append(one.outstanding("out"))
        one.send(message.body, to="out")
        one.send(message.body, to="out")
        answers.append(one.outstanding("out"))

    script.message = handle
    options = {"monitors": [Keeps], "connections": over(any_world, away), "interval": HOUR, "stop_timeout": 0.2}
    with any_world.engine(*parts(reliability), **options):
        any_world.publish(*numbered(3))
        any_world.wait(lambda: len(answers) == 6)
    assert answers == [0, 0, 2, 2, 4, 4]


@EVERY_MODE
def test_a2_17_the_sends_of_another_context_count(any_world, script, away, reliability):
    """Given two contexts, when one has handled what it sends and the other asks, then it is told of both."""
    sent = {"Hears": threading.Event(), "AlsoHears": threading.Event()}
    answers = []

    def handle(one: Monitor, message: Message) -> None:
        name = type(one).__name__
        if message.body == b"send":
            for _ in range(3 if name == "Hears" else 4):
                one.send(name.encode(), to="out")
        elif message.body == b"sent":
            sent[name].set()
        elif name == "Hears" and all(event.wait(120) for event in sent.values()):
            answers.append(one.outstanding("out"))

    script.message = handle
    contexts = [monitor(Hears), monitor(AlsoHears, context="other")]
    options = {"monitors": contexts, "connections": over(any_world, away), "interval": HOUR, "stop_timeout": 0.2}
    with any_world.engine(*parts(reliability), **options):
        any_world.publish("send", "sent", "ask")
        any_world.wait(lambda: answers)
    assert answers == [7]


def test_a2_17_other_senders_do_not_count(world, told, away):
    both = (*parts(), sender("other", connection="away"))
    with world.engine(*both, monitors=[Keeps, Diverts], connections=over(world, away), stop_timeout=0.2) as engine:
        world.publish(*numbered(5))
        assert asked(world, told, "?") == 5
        world.wait(lambda: engine.status().senders["other"][2] == 6)


class Diverts(Monitor):
    """Sends everything to another sender."""

    @on(Message)
    def message(self, message: Message) -> None:
        self.send(message.body, to="other")


# --- who may be asked about ---


@pytest.mark.parametrize("recorded", [True, False])
def test_a2_17_an_unknown_sender_is_refused(world, script, tmp_path, recorded):
    script.message = lambda one, message: one.outstanding("nobody")
    log = str(tmp_path / "input.log") if recorded else None
    engine = world.engine(receiver(), sender(), monitors=[Keeps], input_log=log)
    with engine:
        world.publish("a")
        world.wait(lambda: engine.failure is not None)
    assert str(engine.failure).startswith("E8001 monitor Keeps: no sender 'nobody'. Senders: out")


def test_a2_17_a_sender_that_is_being_removed_is_refused(world, script, told, away):
    options = {"monitors": [Hears], "connections": over(world, away), "stop_timeout": 0.2}
    engine = world.engine(receiver(), **options)
    with engine:
        engine.add_sender(sender("out", connection="away"))
        world.publish(*numbered(2))
        assert asked(world, told, "?") == 2
        engine.remove("out")
        world.publish("?too late")
        world.wait(lambda: engine.failure is not None)
    assert engine.failure.code == "E8002"


# --- in the input log ---


class Throttles(Monitor, persistent=True):
    """Sends on as long as fewer than five wait, and says how many there were; keeps the rest."""

    told: list[int] = []
    kept: list[str] = []

    @on(Message)
    def message(self, message: Message) -> None:
        waiting = self.outstanding("out")
        self.told.append(waiting)
        if waiting < 5:
            self.send(b"%d before %s" % (waiting, message.body), to="out")
        else:
            self.kept.append(message.body.decode())


def log_of(tmp_path: Path) -> Path:
    (log,) = tmp_path.glob("input.log.*")
    return log


@EVERY_MODE
def test_a7_3_what_a_handler_was_told_is_replayed(world, tmp_path, away, reliability):
    """Given a monitor whose sends depend on what waits, when its log is replayed, then it is told the same."""
    options = {"monitors": [Throttles], "connections": over(world, away), "input_log": str(tmp_path / "input.log")}
    with world.engine(*parts(reliability), **options) as engine:
        world.publish(*numbered(8))
        world.wait(lambda: len(the_monitor(engine, Throttles).told) == 8)
        away.down = False
        world.wait(lambda: len(away.received("queue:out")) == 5 and engine.senders["out"].idle)
        world.publish(*numbered(2, first=9))
        world.wait(lambda: len(the_monitor(engine, Throttles).told) == 10)
    live = the_monitor(engine, Throttles)
    assert live.told[:9] == [0, 1, 2, 3, 4, 5, 5, 5, 0]
    assert live.kept == ["m6", "m7", "m8"]
    checkpoint = inspect.checkpoints(world.store)[0]
    again = replay(log_of(tmp_path))
    assert (again.number, again.digest, again.in_order) == (checkpoint.number, checkpoint.digest, True)
    bodies = [one.body for one in away.received("queue:out")]
    assert [one.sent.message.body for one in again.outputs] == bodies
    assert bodies[:6] == [
        b"0 before m1",
        b"1 before m2",
        b"2 before m3",
        b"3 before m4",
        b"4 before m5",
        b"0 before m9",
    ]


def test_a7_3_two_contexts_that_ask_about_one_sender_are_replayed(world, tmp_path, away):
    """What one is told depends on when the other one has sent: the log knows."""
    options = {"connections": over(world, away), "input_log": str(tmp_path / "input.log")}
    contexts = [monitor(Throttles), monitor(AlsoThrottles, context="other")]
    with world.engine(*parts(), monitors=contexts, **options) as engine:
        away.down = False
        for round_ in range(5):
            world.publish(*numbered(20, first=20 * round_ + 1))
            world.wait(lambda count=20 * (round_ + 1): len(the_monitor(engine, Throttles).told) == count)
        world.wait(lambda: len(the_monitor(engine, AlsoThrottles, "other").told) == 100)
    checkpoint = inspect.checkpoints(world.store)[0]
    again = replay(log_of(tmp_path))
    assert (again.number, again.digest, again.in_order) == (checkpoint.number, checkpoint.digest, True)
    assert [one.sent.message.body for one in again.outputs] == [one.body for one in away.received("queue:out")]


class AlsoThrottles(Throttles, persistent=True):
    """Another one, for a second context."""


class AsksAlways(Monitor, persistent=True):
    """Asks, and sends, in its life-cycle methods and by a timer."""

    told: list[int] = []

    def onload(self) -> None:
        self.ask()

    def on_begin_recovery(self) -> None:
        self.ask()

    def on_conclude_recovery(self) -> None:
        self.ask()

    @every(0.01)
    def ask(self) -> None:
        self.told.append(self.outstanding("out"))
        self.send(b"x", to="out")


def test_a7_3_life_cycle_methods_and_timers_are_told_the_same(world, tmp_path, away):
    for life in range(2):
        path = str(tmp_path / f"life{life}.log")
        options = {"monitors": [AsksAlways], "connections": over(world, away), "input_log": path, "stop_timeout": 0.2}
        with world.engine(*parts(), **options) as engine:
            asks = the_monitor(engine, AsksAlways)
            began = len(asks.told)
            world.wait(lambda asks=asks, began=began: len(asks.told) > began + 3)
        checkpoint = inspect.checkpoints(world.store)[0]
        again = replay(next(tmp_path.glob(f"life{life}.log*")))
        assert (again.number, again.digest, again.in_order) == (checkpoint.number, checkpoint.digest, True)
    assert asks.told == list(range(len(asks.told)))


@pytest.mark.parametrize(
    ("recorded", "replayed", "differs"),
    [
        (1, 0, "no handler asked for 1 of the recorded answers"),
        (1, 2, "a handler asked for something for which it did not ask in the recording"),
    ],
)
def test_a7_3_code_that_asks_less_or_more_often_is_told(
    world, script, tmp_path, recorded: int, replayed: int, differs: str
):
    def asks(times: int) -> Callable[[Monitor, Message], None]:
        return lambda one, _: [one.outstanding("out") for _ in range(times)] and None

    script.message = asks(recorded)
    with world.engine(receiver(), sender(), monitors=[Keeps], input_log=str(tmp_path / "input.log")):
        world.publish(message("a"))
        world.wait(lambda: script.of("Keeps"))
    script.message = asks(replayed)
    with pytest.raises(RecoveryRefused, match=f"E4321 .*{differs}"):
        replay(log_of(tmp_path))


# --- a full outbox ---


def sends_on(one: Monitor, message: Message) -> None:
    one.send(message.body, to="out")


@pytest.mark.parametrize("most", [1, 50])
def test_a_full_outbox_asks_for_a_checkpoint(any_world, script, most):
    """Nothing else would: the next one is an hour away."""
    script.message = sends_on
    parts = receiver(max_batch_size=20), sender("out", max_outstanding=most)
    with any_world.engine(*parts, monitors=[Keeps], interval=HOUR) as engine:
        any_world.publish(*numbered(400))
        any_world.wait(lambda: len(any_world.sent()) > 400 - most)
        assert any_world.sent() == [f"m{number}" for number in range(1, len(any_world.sent()) + 1)]
        assert engine.checkpointer.counters.taken <= 2 * 400 // most + 1


def test_a_handler_that_fills_the_outbox_alone_has_it_emptied(world, script):
    """No receiver looks at the outbox, and no other event comes."""
    script.message = lambda one, message: [one.send(message.body, to="out") for _ in range(60)]
    with world.engine(receiver(), sender("out", max_outstanding=50), monitors=[Keeps], interval=HOUR):
        world.publish("m")
        world.wait(lambda: len(world.sent()) == 60)


def test_no_checkpoint_is_asked_for_while_the_broker_has_the_larger_half(world, script, away):
    """A broker that is down makes no room, and checkpoints do not either."""
    script.message = sends_on
    sends = sender("out", connection="away", max_outstanding=50)
    with world.engine(
        receiver(max_batch_size=10), sends, monitors=[Keeps], connections=over(world, away), interval=HOUR
    ) as engine:
        world.publish(*numbered(200))
        world.wait(lambda: engine.status().waits)
        world.wait(lambda: engine.checkpointer.counters.taken >= 1)
        world.wait(lambda: engine.status().waits)
        taken = [engine.checkpointer.counters.taken]
        for _ in range(3):  # one that was asked for before the broker had the larger half may still be under way
            assert not engine.checkpointer.wait_answered(10**9, 0.3)
            taken.append(engine.checkpointer.counters.taken)
        assert taken[-1] == taken[-2]
        away.down = False
        world.wait(lambda: len(away.received("queue:out")) > 150)  # fewer than 50 may wait for the next checkpoint
        world.wait(lambda: engine.checkpoint() and len(away.received("queue:out")) == 200)


def test_the_status_counts_what_waits_for_a_checkpoint_and_says_why_receiving_waits(world, script, away):
    script.message = sends_on
    sends = sender("out", connection="away", max_outstanding=5)
    connections = over(world, away)
    with world.engine(receiver(), sends, monitors=[Keeps], connections=connections, interval=HOUR) as engine:
        assert engine.status().waits == {}
        world.publish("a", "b")
        world.wait(lambda: engine.status().senders["out"][2] == 2)
        assert engine.checkpointer.counters.taken == 0
        assert "sOutst=2" in status_line(engine.status(), engine.status())
        world.publish("c", "d", "e", "f")
        world.wait(lambda: engine.status().waits == {"in": "outbox:out"})
        assert "rWait=in(outbox:out)" in status_line(engine.status(), engine.status())
        away.down = False
        world.wait(lambda: engine.status().waits == {} and len(away.received("queue:out")) >= 5)


def test_the_status_names_a_full_queue_and_a_window(world, script, gate):
    script.message = lambda *_: gate.wait()
    parts = receiver("in", max_batch_size=5), receiver("narrow", BEST_EFFORT, flow_control=True)
    with world.engine(*parts, monitors=[Keeps], max_queued=10) as engine:
        world.publish(*numbered(40))
        world.wait(lambda: engine.status().waits == {"in": "queue:main", "narrow": "window"})
        line = status_line(engine.status(), engine.status())
        assert "rWait=in(queue:main),narrow(window)" in line
        gate.set()
        world.wait(lambda: engine.status().waits == {"narrow": "window"})
