"""Corner cases: spawned keys, removals, signals, drains and refusals that were wrong once."""

import enum
import signal
import subprocess
import sys
import threading
from decimal import Decimal
from pathlib import Path

import pytest

from connectors.embedded import EmbeddedConnection
from correlator import Message, Monitor, StateTable, event, match, on
from correlator.core.state import StateTable as Table
from correlator.errors import ConfigError, RecoveryRefused, StateError, UsageError
from correlator.runtime.requests import RegistryRequest
from correlator.settings import ConnectionSettings
from correlator.storage import inspect
from correlator.testing.clock import ManualClock
from correlator.testing.memory import MemoryBroker
from tests.runtime.flows import SCRIPT, AlsoHears, Hears, Idles, Keeps, Note, Order
from tests.runtime.world import (
    AT_LEAST_ONCE,
    BEST_EFFORT,
    EXACTLY_ONCE,
    Queues,
    contents,
    message,
    monitor,
    numbered,
    receiver,
    sender,
    the_monitor,
)


class Child(Monitor, persistent=True):
    """What two contexts spawn."""

    label: str = ""
    bodies: list[str] = []
    by_body: StateTable[str, str]

    @on(Message)
    def message(self, message: Message) -> None:
        body = message.body.decode()
        self.bodies.append(body)
        self.by_body[body] = self.label
        SCRIPT.hear(self, f"{self.label} {body}")


class Parent(Monitor, persistent=True):
    """Spawns one child."""

    label: str = ""

    def onload(self) -> None:
        self.spawn(Child, label=self.label)


class OtherParent(Parent, persistent=True):
    """Another one, for a second context."""


class Ends(Monitor, persistent=True):
    """A spawned monitor that stops itself and asks for more in the same handler."""

    asks: str = ""
    number: int = 0
    kept: StateTable[str, int]

    def onload(self) -> None:
        self.kept["a"] = 1
        self.number = self.wait(3600, self.fired)

    @on(Message)
    def message(self, message: Message) -> None:
        if message.body == b"end":
            self.stop()
            if self.asks == "wait":
                self.wait(0, self.fired)
            else:
                self.cancel(self.number)
        SCRIPT.hear(self, message.body.decode())

    def fired(self) -> None:
        SCRIPT.hear(self, "fired")


class Begins(Monitor, persistent=True):
    """Spawns the one that ends."""

    asks: str = ""

    def onload(self) -> None:
        self.spawn(Ends, asks=self.asks)


class TableBefore(Monitor, persistent=True, name="Renames"):
    """A class before its table was renamed."""

    old: StateTable[str, int]

    @on(Message)
    def message(self, message: Message) -> None:
        self.old[message.body.decode()] = 1
        SCRIPT.hear(self, message.body.decode())


class TableAfter(Monitor, persistent=True, name="Renames"):
    """The same class afterwards."""

    new: StateTable[str, int]


class Chains(Monitor, persistent=True):
    """Waits for no time at all, again and again."""

    links: int = 0

    @on(Message)
    def message(self, message: Message) -> None:
        SCRIPT.hear(self, message.body.decode())
        if message.body == b"begin":
            self.wait(0, self.link)

    def link(self) -> None:
        self.links += 1
        self.wait(0, self.link)


class Outer:
    """Where an event class may stand."""

    @event
    class Inner:
        """An event of a nested class."""

        text: str


class HearsInner(Monitor):
    """Hears it."""

    @on(Outer.Inner)
    def inner(self, inner: Outer.Inner) -> None:
        SCRIPT.hear(self, inner.text)


class Blocks(Monitor):
    """A handler that never comes to its end."""

    @on(Message)
    def message(self, message: Message) -> None:
        threading.Event().wait()


class Color(enum.Enum):
    """Values that may be keys."""

    RED = "red"


def sends_on(monitor, message):
    monitor.send(message.body, to="out")


def with_away(world):
    """Connections `memory` and `away`, a broker of its own."""
    world.away = MemoryBroker()
    return {"memory": world.broker.connection(), "away": world.away.connection("away")}


def embedded(queues: Queues) -> EmbeddedConnection:
    """A connection to queues in a file."""
    return EmbeddedConnection("local", ConnectionSettings(type="embedded", options={"store": queues.url}))


# --- state and where it lives ---


def test_a_class_spawned_in_two_contexts_has_a_state_for_each(any_world, script):
    """Given children of one class in two contexts, when the engine crashes, then each comes back with its own."""
    parents = [
        monitor(Parent, options={"label": "first"}),
        monitor(OtherParent, context="audit", options={"label": "second"}),
    ]
    engine = any_world.engine(receiver(), monitors=parents)
    with engine:
        any_world.publish("a", "b")
        any_world.wait(lambda: len(script.of("Child")) == 4)
        assert engine.checkpoint()
        any_world.crash(engine)
    with any_world.engine(receiver(), monitors=parents) as engine:
        any_world.publish("c")
        any_world.wait(lambda: len(script.of("Child")) == 6)
        for context, label in (("main", "first"), ("audit", "second")):
            child = the_monitor(engine, Child, context)
            assert (child.label, child.bodies) == (label, ["a", "b", "c"])
            assert dict(child.by_body) == dict.fromkeys("abc", label)
    assert sorted(script.of("Child")[4:]) == ["first c", "second c"]


def test_a_persistent_class_is_configured_once(world):
    """Given a persistent class named for two contexts, when the engine starts, then it is refused."""
    with pytest.raises(ConfigError, match=r"E1506 monitor .*:Keeps: its state name 'Keeps' is used twice"):
        world.engine(receiver(), monitors=[Keeps, monitor(Keeps, context="audit")]).start()


def test_a_class_without_persistence_may_be_configured_twice(world, script):
    """Given a class without state named for two contexts, when a message comes, then both hear it."""
    with world.engine(receiver(), monitors=[Hears, monitor(Hears, context="audit")]):
        world.publish("a")
        world.wait(lambda: script.of("Hears") == ["a", "a"])


def test_a_persistent_monitor_stays_in_its_context(any_world, script):
    """Given the state of a monitor, when it is configured for another context, then the start is refused and nothing changed."""
    with any_world.engine(receiver(), monitors=[Keeps]):
        any_world.publish("a")
        any_world.wait(lambda: script.of("Keeps") == ["a"])
    before = contents(any_world.store)
    with pytest.raises(RecoveryRefused, match=r"E4313 monitor 'Keeps': lived in context 'main', .* for 'other'"):
        any_world.engine(receiver(), monitors=[monitor(Keeps, context="other")]).start()
    assert contents(any_world.store) == before
    with any_world.engine(receiver(), monitors=[Keeps]) as engine:
        assert the_monitor(engine, Keeps).bodies == ["a"]


def test_a_context_with_waiting_events_stays(any_world, script):
    """Given an event that waits in a context, when that context is left out, then the start is refused."""
    script.message = lambda monitor, message: monitor.send(Note(text="waits"), to="channel:audit")
    engine = any_world.engine(receiver(), monitors=[Keeps, monitor(AlsoHears, context="audit")])
    with engine:
        leave_waiting(any_world, engine, "audit")
    before = contents(any_world.store)
    with pytest.raises(RecoveryRefused, match=r"E4315 context 'audit'"):
        any_world.engine(receiver(), monitors=[Keeps]).start()
    assert contents(any_world.store) == before


def leave_waiting(world, engine, context: str) -> None:
    """Publish a message, have a checkpoint hold what then waits in a context that does not work, and crash."""
    thread = engine.contexts[context]
    thread._hold = lambda: True
    world.publish("a")
    world.wait(lambda: world.broker.waiting("queue:in") == world.broker.unacknowledged("queue:in") == 0)
    queue = thread.queue
    world.wait(lambda: len(engine.contexts["main"].queue) == 0)
    world.wait(lambda: sum(run.stored for run in [*queue.runs(), *queue._inbox]) == 2)
    assert engine.checkpoint()
    world.crash(engine)


def test_a9_14_a_monitor_that_keeps_sending_itself_events_does_not_hold_up_recovery(any_world, script):
    """Given an event that always causes the next, when the engine is killed, then recovery handles only what waited."""
    during_recovery: list[str] = []

    def goes_round(monitor, note):
        during_recovery.append(note.text)
        assert concluded.is_set() or len(during_recovery) < 5, "recovery does not end"
        monitor.send(note, to="channel:main")

    concluded = threading.Event()
    concluded.set()
    script.message = lambda monitor, message: monitor.send(Note(text="round"), to="channel:main")
    script.note = goes_round
    engine = any_world.engine(receiver(), monitors=[Hears, Keeps])
    with engine:
        any_world.publish("a")
        any_world.wait(lambda: len(script.of("Hears")) > 3)
        assert engine.checkpoint()
        any_world.crash(engine)
    concluded.clear()
    during_recovery.clear()
    script.hook = lambda monitor, hook: concluded.set() if hook == "on_conclude_recovery" else None
    with any_world.engine(receiver(), monitors=[Hears, Keeps]):
        assert during_recovery
        heard = len(script.of("Hears"))
        any_world.wait(lambda: len(script.of("Hears")) > heard + 3)


@pytest.mark.parametrize(
    ("messages", "fan_out", "stages"), [(500, 10, 1), (150, 200, 1), (12, 2900, 1), (10, 40, 2)], ids=str
)
def test_111_recovery_lets_a_crowded_context_catch_up(world, script, monkeypatch, messages, fan_out, stages):
    """Given messages that each cause many events, when the engine is killed with all waiting, then no context overflows.

    With two stages each of these events causes as many in a third context.
    """
    monkeypatch.setattr("correlator.core.binding.MAX_WAITING_FROM_INSIDE", 3000)
    for module in ("core.crowding", "runtime.restart"):
        monkeypatch.setattr(f"correlator.{module}.CROWDED", 300)
    monkeypatch.setattr("correlator.runtime.contexts.SLICE", 100)

    def notes(monitor, channel):
        for _ in range(fan_out):
            monitor.send(Note(text="n"), to=channel)

    script.message = lambda monitor, _: notes(monitor, "channel:audit") if type(monitor) is Hears else None
    script.note = lambda monitor, _: notes(monitor, "channel:last") if stages == 2 else None
    monitors = [Hears, monitor(AlsoHears, context="audit"), monitor(Keeps, context="last")]
    engine = world.engine(receiver(), monitors=monitors)
    with engine:
        for thread in engine.contexts.values():
            thread._hold = lambda: True
        world.publish(*numbered(messages))
        world.wait(lambda: world.received_rows() == messages)
        world.crash(engine)
    assert script.heard == []
    with world.engine(receiver(), monitors=monitors) as engine:
        world.wait(lambda: script.of("AlsoHears").count("note n") == messages * fan_out)
        world.wait(lambda: script.of("Keeps").count("note n") == (messages * fan_out**2 if stages == 2 else 0))
        assert engine.failure is None


def test_111_a_context_waits_for_one_that_it_crowds(world, script, monkeypatch, gate):
    """Given a slow context, when another sends it more and more, then that one waits and nothing fails."""
    monkeypatch.setattr("correlator.core.binding.MAX_WAITING_FROM_INSIDE", 300)
    monkeypatch.setattr("correlator.core.crowding.CROWDED", 100)

    def fans_out(monitor, message):
        for _ in range(50):
            monitor.send(Note(text="n"), to="channel:audit")

    script.message = lambda monitor, message: fans_out(monitor, message) if type(monitor) is Hears else None
    script.note = lambda monitor, note: gate.wait(120)
    monitors = [Hears, monitor(AlsoHears, context="audit")]
    world.publish(*numbered(100))
    with world.engine(receiver(max_batch_size=10), monitors=monitors) as engine:
        main, audit = (engine.contexts[name] for name in ("main", "audit"))
        world.wait(lambda: main.context.crowds())
        assert 100 <= len(audit.queue) < 300
        assert len(main.queue)
        gate.set()
        world.wait(lambda: script.of("AlsoHears").count("note n") == 5000)
        assert engine.failure is None


# --- tables ---


def test_a_value_of_another_type_stays_in_its_table():
    """Given values stored under another type, when one is used, then that is refused each time and nothing is lost."""
    written = Table(str, str, "table:T#0.t")
    written["a"] = "text"
    stored = {entry.key: entry.value for entry in written.take_changes()}
    table = Table(str, int, "table:T#0.t")
    table.load(stored)
    for _ in range(2):
        with pytest.raises(StateError, match=r"E4203 table:T#0\.t"):
            _ = table["a"]
    with pytest.raises(StateError, match="E4203"):
        table.get("a")
    with pytest.raises(StateError, match="E4203"):
        table.pop("a")
    assert ("a" in table, list(table), len(table)) == (True, ["a"], 1)
    assert table.take_changes() == []


def test_a_renamed_table_refuses_the_start(any_world, script):
    """Given a table with keys, when its attribute has another name, then the start is refused and names the table."""
    with any_world.engine(receiver(), monitors=[TableBefore]):
        any_world.publish("a")
        any_world.wait(lambda: script.of("TableBefore") == ["a"])
    before = contents(any_world.store)
    with pytest.raises(RecoveryRefused, match=r"E4203 table:Renames#0\.old: 1 keys are in the store"):
        any_world.engine(receiver(), monitors=[TableAfter]).start()
    assert contents(any_world.store) == before
    with any_world.engine(receiver(), monitors=[TableBefore]) as engine:
        assert dict(the_monitor(engine, TableBefore).old) == {"a": 1}


@pytest.mark.parametrize("key", [Decimal, float, tuple[str, float], frozenset[str], str | None], ids=str)
def test_a_key_whose_equal_values_have_different_bytes_is_refused(key):
    """Given a table with such keys, when the class is made, then it is refused and the field is named."""
    with pytest.raises(StateError, match=r"E4101 monitor Bad: field 'table\.key' has type .* cannot be a key"):

        class Bad(Monitor, persistent=True):
            table: StateTable[key, int]


@pytest.mark.parametrize("key", [str, int, bytes, Color, tuple[str, int]], ids=str)
def test_a_key_with_one_form_is_allowed(key):
    """Given a table with plain keys, when the class is made, then it has the table."""

    class Good(Monitor, persistent=True):
        table: StateTable[key, int]

    assert len(Good().table) == 0


# --- messages ---


def test_a_message_sent_on_as_it_is_goes_to_the_destination_of_the_sender(world, script, tmp_path: Path):
    """Given a message from an embedded queue, when it is sent on untouched, then it does not go back."""
    queues = Queues(tmp_path)
    script.message = lambda monitor, message: monitor.send(message, to="out")
    parts = (receiver(connection="local"), sender(connection="local"))
    with world.engine(*parts, monitors=[Hears], connections={"local": embedded(queues)}) as engine:
        queues.publish([message("a")])
        world.wait(lambda: engine.senders["out"].counters.sent == 1)
    assert (queues.bodies(), queues.bodies("queue:in"), script.of("Hears")) == (["a"], [], ["a"])


def test_a_nested_event_survives_a_crash_in_a_queue(any_world, script):
    """Given an event of a nested class in a queue, when the engine crashes, then it is handled after the restart."""
    script.message = lambda monitor, message: monitor.send(Outer.Inner(text="inner"), to="channel:audit")
    monitors = [Keeps, monitor(HearsInner, context="audit")]
    engine = any_world.engine(receiver(), monitors=monitors)
    with engine:
        leave_waiting(any_world, engine, "audit")
    assert script.of("HearsInner") == []
    with any_world.engine(receiver(), monitors=monitors):
        any_world.wait(lambda: script.of("HearsInner") == ["inner"])


# --- handlers ---


@pytest.mark.parametrize("asks", ["wait", "cancel"])
def test_what_a_monitor_asks_for_after_its_stop_is_void(any_world, script, asks):
    """Given a handler that stops its monitor and goes on, when time passes and the engine restarts, then it is gone."""
    monitors = [monitor(Begins, options={"asks": asks}), monitor(Hears, context="audit")]
    engine = any_world.engine(receiver(), monitors=monitors)
    with engine:
        any_world.publish("a", "end", "b")
        any_world.wait(lambda: script.of("Hears") == ["a", "end", "b"])
        any_world.wait(lambda: script.of("Ends") == ["a", "end"] and engine.contexts["main"].idle)
        assert engine.checkpoint()
        assert engine.contexts["main"].context.next_timer() is None
        assert not [one for one in inspect.state_keys(any_world.store) if "Ends" in repr(one)]
        any_world.crash(engine)
    assert engine.failure is None
    with any_world.engine(receiver(), monitors=monitors) as engine:
        any_world.publish("c")
        any_world.wait(lambda: script.of("Hears")[-1] == "c")
        any_world.wait(lambda: engine.contexts["main"].idle)
        assert [type(one) for one in engine.contexts["main"].context.monitors.instances] == [Begins]
    assert (engine.failure, script.of("Ends")) == (None, ["a", "end"])


def test_a_chain_of_timers_does_not_keep_events_waiting(world, script):
    """Given a timer that always sets itself anew, when messages come, then they are handled, and after a restart."""
    with world.engine(receiver(), monitors=[Chains]) as engine:
        world.publish("begin", "a")
        world.wait(lambda: script.of("Chains") == ["begin", "a"])
        world.wait(lambda: the_monitor(engine, Chains).links > 3)
        world.publish("b")
        world.wait(lambda: script.of("Chains")[-1] == "b")
    with world.engine(receiver(), monitors=[Chains]) as engine:
        links = the_monitor(engine, Chains).links
        world.publish("c")
        world.wait(lambda: script.of("Chains")[-1] == "c" and the_monitor(engine, Chains).links > links > 3)
    assert engine.failure is None


def of_the_wrong_type(monitor):
    monitor.count = "many"


def of_the_wrong_type_in_a_table(monitor):
    monitor.by_body["x"] = "many"


def with_a_property_that_is_too_large(monitor):
    monitor.send(b"x", to="out", properties={"large": 1 << 70})


def with_such_a_property_in_a_message(monitor):
    monitor.send(Message(b"x", {"large": -(1 << 70)}), to="out")


def with_a_property_of_another_type(monitor):
    monitor.send(b"x", to="out", properties={"list": [1]})


@pytest.mark.parametrize(
    "fails",
    [
        of_the_wrong_type,
        of_the_wrong_type_in_a_table,
        with_a_property_that_is_too_large,
        with_such_a_property_in_a_message,
        with_a_property_of_another_type,
    ],
)
def test_what_cannot_be_stored_is_the_failure_of_its_handler(world, script, fails):
    """Given a handler that is skipped when it fails, when it leaves what no store takes, then nothing of it is left."""

    def handler(monitor, message):
        monitor.send(message.body, to="out")
        if message.body == b"bad":
            fails(monitor)

    script.message = handler
    with world.engine(receiver(), sender(), monitors=[monitor(Keeps, on_error="skip")]) as engine:
        world.publish("good", "bad", "after")
        world.wait_for("good", "after")
        assert engine.checkpoint()
        kept = the_monitor(engine, Keeps)
        assert (kept.count, kept.bodies, dict(kept.by_body)) == (2, ["good", "after"], {"good": 1, "after": 1})
        assert (engine.status().handler_failures, engine.failure) == (1, None)
    assert world.sent() == ["good", "after"]


@pytest.mark.parametrize("value", [[1], {"a": 1}, ([1],)], ids=repr)
def test_a_pattern_takes_no_value_that_changes(value):
    """Given a value that cannot be looked up, when a pattern is made of it, then it is refused."""
    with pytest.raises(UsageError, match="E4108 event Order: field 'id' cannot be matched"):
        match(Order, id=value)


# --- time ---


def test_engine_time_does_not_go_back_over_an_idle_life(any_world):
    """Given a life in which only time passed, when it ends in order, then the next one goes on from there."""
    for life in range(1, 4):
        clock = ManualClock()
        with any_world.engine(receiver(), monitors=[Keeps], clock=clock) as engine:
            assert engine.status().engine_time >= 1000.0 * (life - 1)
            clock.advance(1000.0)


# --- refusals ---


def test_a_receiver_that_delivers_to_nobody_is_refused(world):
    """Given a pipeline alone, when there is a receiver that it does not name, then the start is refused."""
    engine = world.engine(receiver("in"), receiver("other"), processors=[Idles()])
    with pytest.raises(ConfigError, match="E1208 receiver 'other': delivers to nobody"):
        engine.start()


def test_a_dynamic_receiver_that_delivers_to_nobody_is_refused(world):
    """Given a running pipeline alone, when a receiver is added that it does not name, then nothing is half made."""
    with world.engine(receiver("in"), processors=[Idles()]) as engine:
        with pytest.raises(ConfigError, match="E1208 receiver 'other'"):
            engine.add_receiver(receiver("other"))
        assert (sorted(engine.receivers), sorted(engine.registry)) == (["in"], ["in"])
    with world.engine(receiver("in"), processors=[Idles()]):
        pass


def test_a_part_that_cannot_be_made_leaves_nothing(world, script, tmp_path: Path):
    """Given parts that are refused when they are made, when they are added, then no trace of them is left."""
    connections = {"memory": world.broker.connection(), "local": embedded(Queues(tmp_path))}
    options = {"monitors": [Hears], "connections": connections}
    wrong = [
        receiver("r", unique_message_id="${nonsense"),
        receiver("r", event="tests.runtime.flows:Nothing"),
        sender("s", connection="local", options={"nonsense": 1}),
    ]
    with world.engine(receiver(), **options) as engine:
        before = inspect.registry(world.store), dict(engine.registry)
        for settings in wrong:
            add = engine.add_sender if settings.id == "s" else engine.add_receiver
            with pytest.raises(ConfigError):
                add(settings)
            assert (inspect.registry(world.store), engine.registry) == before
        assert (list(engine.receivers), list(engine.senders)) == (["in"], [])
    with world.engine(receiver(), **options) as engine:
        engine.add_receiver(receiver("r"))
        engine.add_sender(sender("s"))
        world.publish("a", to="queue:r")
        world.wait(lambda: script.of("Hears") == ["a"])


# --- adding and removing ---


def test_an_id_comes_again_only_when_its_removal_is_done(any_world, script):
    """Given a removal that waits for a broker, when the id is added again, then it is refused until it is gone."""
    script.message = sends_on
    again = sender("out", connection="away")
    parts = {"monitors": [Hears], "connections": with_away(any_world)}
    any_world.away.down = True
    with any_world.engine(receiver("in", BEST_EFFORT), **parts) as engine:
        engine.add_sender(again)
        any_world.publish("a")
        any_world.wait(lambda: engine.status().senders["out"][2] == 1)
        engine.remove("out")
        with pytest.raises(UsageError, match="E8304 'out': is being removed"):
            engine.add_sender(again)
        engine.remove("out")
        assert not engine.removed("out")
        any_world.away.down = False
        any_world.wait(lambda: engine.removed("out"))
        engine.add_sender(again)
        any_world.publish("b")
        any_world.wait(lambda: [one.body for one in any_world.away.received("queue:out")] == [b"a", b"b"])


def test_a_second_remove_of_a_sender_that_is_let_go_closes_nobody(world, script):
    """Given a removal in its last stage, when it is asked for again, then the id can be used again afterwards."""
    script.message = sends_on
    with world.engine(receiver("in", BEST_EFFORT), monitors=[Hears]) as engine:
        engine.add_sender(sender("out"))
        submit, letting_go = engine.writer.submit, threading.Event()
        held = []

        def hold(request, done):
            if isinstance(request, RegistryRequest) and request.registry.removed:
                held.append((request, done))
                letting_go.set()
            else:
                submit(request, done)

        engine.writer.submit = hold
        engine.remove("out")
        assert letting_go.wait(120)
        engine.remove("out")
        engine.writer.submit = submit
        submit(*held[0])
        world.wait(lambda: engine.removed("out"))
        engine.add_sender(sender("out"))
        world.publish("a")
        world.wait_for("a")
    assert engine.failure is None


def test_an_id_is_not_free_before_its_removal_has_ended_everywhere(world, gate):
    """Given a removal at its last moment, when the id is added again, then it is refused and not half found."""
    with world.engine(monitors=[Hears]) as engine:
        engine.add_sender(sender("out"))
        tell, telling = engine.remover._removed, threading.Event()

        def late(part_id: str) -> None:
            telling.set()
            gate.wait(120)
            tell(part_id)

        engine.remover._removed = late
        engine.remove("out")
        assert telling.wait(120)
        with pytest.raises(UsageError, match="E8304"):
            engine.add_sender(sender("out"))
        assert not engine.removed("out")
        gate.set()
        world.wait(lambda: engine.removed("out"))
        engine.add_sender(sender("out"))
        assert list(engine.senders) == ["out"]


@pytest.mark.parametrize("reliability", [EXACTLY_ONCE, AT_LEAST_ONCE])
def test_a_message_that_comes_during_a_removal_is_not_lost(world, script, reliability):
    """Given messages on their way, when their receiver is removed meanwhile, then the next one gets the others."""
    rounds, each = 20, 5
    with world.engine(monitors=[Hears], interval=0.005) as engine:
        for number in range(rounds):
            engine.add_receiver(receiver("in", reliability, max_batch_size=2))
            bodies = [f"{number}-{at}" for at in range(each)]

            def publish(bodies=bodies):
                for body in bodies:
                    world.publish(body)

            publishing = threading.Thread(target=publish)
            publishing.start()
            engine.remove("in")
            publishing.join()
            world.wait(lambda: engine.removed("in"))
        engine.add_receiver(receiver("in", reliability))
        world.wait(lambda: len(script.of("Hears")) >= rounds * each)
        world.wait(lambda: world.broker.waiting("queue:in") == world.broker.unacknowledged("queue:in") == 0)
    assert sorted(script.of("Hears")) == sorted(f"{number}-{at}" for number in range(rounds) for at in range(each))


def test_threads_add_and_remove_at_once(world, script):
    """Given eight threads, when all add and remove parts, then all come to their end and every place agrees."""
    errors = []
    engine = world.engine(receiver("static"), monitors=[Hears], interval=0.005)

    def come_and_go(name: str) -> None:
        try:
            for _ in range(3):
                engine.add_receiver(receiver(f"r{name}"))
                engine.add_sender(sender(f"s{name}"))
                for part in (f"r{name}", f"s{name}"):
                    engine.remove(part)
                world.wait(lambda: engine.removed(f"r{name}") and engine.removed(f"s{name}"))
            engine.add_receiver(receiver(f"r{name}"))
        except BaseException as error:  # noqa: BLE001  # told by the test
            errors.append(error)

    with engine:
        threads = [threading.Thread(target=come_and_go, args=(str(number),)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert (errors, [thread for thread in threads if thread.is_alive()]) == ([], [])
        expected = sorted(["static", *(f"r{number}" for number in range(8))])
        assert sorted(engine.registry) == expected
        assert sorted(engine.receivers) == expected
        assert (engine.senders, engine.parts.routes.closing) == ({}, frozenset())
        assert sorted(one.id for one in inspect.registry(world.store)) == expected
        world.publish("a", to="queue:r7")
        world.wait(lambda: script.of("Hears") == ["a"])
    assert engine.failure is None
    with world.engine(receiver("static"), monitors=[Hears]) as engine:
        assert sorted(engine.receivers) == expected


# --- signals ---

RUNS = """
import threading
from correlator.core import faults
from tests.runtime.test_corner_cases import Blocks
from tests.runtime.world import BEST_EFFORT, World, receiver

class Asked(threading.Event):
    def wait(self, timeout=None):
        print("looks for signals", flush=True)
        return super().wait(timeout)

faults.install(lambda name: name == "stop.drain" and print(name, flush=True))
world = World(None)
world.publish("a")
with world.engine(receiver("in", BEST_EFFORT), monitors=[Blocks], stop_timeout=600.0) as engine:
    engine._supervisor.stop_asked = Asked()
    engine.run_forever()
"""


def test_a_second_signal_ends_a_drain_at_once():
    """Given a handler that never ends, when a second signal comes during the drain, then the process ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", RUNS], stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]
    )
    try:
        assert process.stdout.readline() == "looks for signals\n"
        process.send_signal(signal.SIGTERM)
        while (line := process.stdout.readline()) != "stop.drain\n":
            assert line == "looks for signals\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) in (-signal.SIGTERM, 128 + signal.SIGTERM)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_a_part_that_is_added_while_the_engine_stops_stops_with_it(world, script, monkeypatch):
    """Given a receiver that is recorded and not yet there, when the engine stops, then its thread ends, too."""
    recorded, go = threading.Event(), threading.Event()
    engine = world.engine(monitors=[Hears])
    engine.start()
    add = engine.parts.add_receiver

    def slowly(one):
        recorded.set()
        assert go.wait(60)
        add(one)

    monkeypatch.setattr(engine.parts, "add_receiver", slowly)
    added = []
    adding = threading.Thread(target=lambda: added.append(engine.add_receiver(receiver("late"))))
    adding.start()
    assert recorded.wait(60)
    stopping = threading.Thread(target=engine.stop)
    stopping.start()
    world.wait(lambda: engine.writer.stopping)
    go.set()
    stopping.join(60)
    adding.join(60)
    ended = added[0].join(0)
    added[0].stop()  # where it has not, the test ends all the same
    assert (stopping.is_alive(), ended) == (False, True)
    with pytest.raises(UsageError, match="E8305"):
        engine.add_receiver(receiver("later"))
