"""What a start makes of another configuration: who is given what of the messages that were received before."""

import contextlib
import sqlite3
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from correlator import Message
from correlator.core.batch_context import Delivered, Effects
from correlator.errors import RecoveryRefused
from correlator.storage import inspect
from correlator.storage.database import location
from tests.runtime.flows import AlsoHears, Hears
from tests.runtime.test_poison import Pipeline
from tests.runtime.world import AT_LEAST_ONCE, BEST_EFFORT, PATIENCE_S, contents, monitor, numbered, receiver, sender

HOUR = 3600.0


class Copies(Pipeline):
    """A pipeline that sends on what it is given, to the sender of its own name, once its gate is open."""

    def __init__(self, name: str, *receivers: str, is_open: bool = True) -> None:
        super().__init__("none")
        self.name = name
        self.receivers = receivers
        self.gate = threading.Event()
        self.reached = threading.Event()
        if is_open:
            self.gate.set()

    def process(self, batch: Sequence[Delivered], state: Any, engine_time: float) -> Effects:
        self.reached.set()
        assert self.gate.wait(PATIENCE_S)
        return Effects(sends=[(self.name, Message(one.message.body)) for one in batch])


def the_parts(*receivers: str, to: Sequence[str] = ("a", "b", "c")) -> list[Any]:
    return [*(receiver(one, AT_LEAST_ONCE) for one in receivers), *(sender(one) for one in to)]


def start(world, parts, *processors, **options):
    return world.engine(*parts, processors=processors, stop_timeout=0.1, **options)


def leave_waiting(world, parts, *processors, count=20, to="queue:r1"):
    """A life that ends with `count` messages in the receive log, which the pipelines that are closed have not handled."""
    engine = start(world, parts, *processors)
    engine.start()
    world.publish(*numbered(count), to=to)
    for one in processors:
        if not one.gate.is_set():
            assert one.reached.wait(PATIENCE_S)
        elif to.removeprefix("queue:") in one.receivers:
            world.wait(lambda one=one: len(world.sent(f"queue:{one.name}")) >= count)
    world.wait(lambda: world.received_rows() == count)
    assert engine.checkpoint()
    world.crash(engine)
    for one in processors:
        one.gate.set()


def codes(refused) -> str:
    return str(refused.value)


# --- a receiver that is taken from a context ---


def test_a_receiver_that_a_pipeline_has_not_handled_cannot_be_taken_from_it(world):
    parts = the_parts("r1", "r2")
    leave_waiting(world, parts, Copies("a", "r1"), Copies("b", "r1", "r2", is_open=False))
    before = contents(world.store)
    with pytest.raises(RecoveryRefused) as refused:
        start(world, parts, Copies("a", "r1"), Copies("b", "r2")).start()
    assert refused.value.code == "E4316"
    assert "context 'b': has not handled 20 messages of receiver 'r1'" in str(refused.value)
    assert contents(world.store) == before
    with start(world, parts, Copies("a", "r1"), Copies("b", "r1", "r2")):
        world.wait_for(*(f"m{n}" for n in range(1, 21)), at="queue:b")


def test_what_came_in_after_the_last_checkpoint_counts_too(world):
    """A pipeline was given these messages, but no checkpoint has recorded that."""
    parts = the_parts("r1", "r2")
    closed = Copies("b", "r1", "r2", is_open=False)
    engine = start(world, parts, Copies("a", "r1"), closed, interval=HOUR)
    engine.start()
    world.publish(*numbered(5), to="queue:r1")
    world.wait(lambda: world.received_rows() == 5)
    world.crash(engine)
    closed.gate.set()
    with pytest.raises(RecoveryRefused, match="E4316 context 'b': has not handled 5 messages of receiver 'r1'"):
        start(world, parts, Copies("a", "r1"), Copies("b", "r2")).start()


def test_a_receiver_whose_messages_are_handled_can_be_taken_away_and_given_again(world):
    """It comes back without what was received meanwhile, even while a slower neighbour still keeps that."""
    parts = the_parts("r1", "r2")
    with start(world, parts, Copies("a", "r1"), Copies("b", "r1", "r2")):
        world.publish(*numbered(3), to="queue:r1")
        world.wait_for("m1", "m2", "m3", at="queue:b")
        world.wait(lambda: world.received_rows() == 0)
    leave_waiting(world, parts, Copies("a", "r1", is_open=False), Copies("b", "r2"), count=4)
    with start(world, parts, Copies("a", "r1"), Copies("b", "r1", "r2")):
        world.wait(lambda: len(world.sent("queue:a")) == 7)
        world.publish(*numbered(2, "new"), to="queue:r1")
        world.wait_for("m1", "m2", "m3", "new1", "new2", at="queue:b")


def test_the_log_keeps_what_any_recorded_queue_refers_to(world):
    """Whoever changes the registry by hand, a run that finds fewer messages than it counts refuses the start."""
    parts = the_parts("r1")
    leave_waiting(world, parts, Copies("a", "r1", is_open=False))
    with contextlib.closing(sqlite3.connect(location(world.store))) as database:
        database.execute("DELETE FROM receive_log WHERE first = (SELECT max(first) FROM receive_log)")
        database.commit()
    with pytest.raises(RecoveryRefused, match=r"E4204 context 'a': 20 messages of receiver 'r1' are not handled yet"):
        start(world, parts, Copies("a", "r1")).start()


# --- contexts that are new, renamed, removed and added again ---


@pytest.mark.parametrize("slow", [True, False])
def test_a_renamed_pipeline_begins_with_what_is_received_from_then_on(world, slow):
    parts = the_parts("r1")
    leave_waiting(world, parts, Copies("a", "r1", is_open=not slow), Copies("b", "r1"), count=4) if slow else None
    with start(world, parts, Copies("a", "r1"), Copies("c", "r1")):
        world.publish(*numbered(2, "new"), to="queue:r1")
        world.wait(lambda: "new2" in world.sent("queue:a"))
        world.wait_for("new1", "new2", at="queue:c")


def test_a_pipeline_that_is_removed_and_added_again_does_not_begin_again(world):
    parts = the_parts("r1")
    leave_waiting(world, parts, Copies("a", "r1", is_open=False), Copies("b", "r1"), count=4)
    leave_waiting_again = Copies("a", "r1", is_open=False)
    engine = start(world, parts, leave_waiting_again)
    engine.start()
    assert engine.checkpoint()
    world.crash(engine)
    leave_waiting_again.gate.set()
    with start(world, parts, Copies("a", "r1"), Copies("b", "r1")):
        world.wait(lambda: len(world.sent("queue:a")) == 4)
        world.publish("new", to="queue:r1")
        world.wait_for("m1", "m2", "m3", "m4", "new", at="queue:b")


def test_a_removed_pipeline_that_had_handled_nothing_yet_is_asked_for(world):
    parts = the_parts("r1")
    leave_waiting(world, parts, Copies("a", "r1", is_open=False), Copies("b", "r1", is_open=False), count=4)
    with pytest.raises(RecoveryRefused) as refused:
        start(world, parts, Copies("a", "r1"), Copies("c", "r1")).start()
    assert refused.value.code == "E4315"
    assert "context 'b': has not handled 4 messages of receiver 'r1', and the configuration has no such" in codes(
        refused
    )


def test_the_birth_of_a_context_is_recorded_before_it_is_given_anything(world):
    """It dies before its first checkpoint; what it was given counts all the same."""
    parts = the_parts("r1")
    leave_waiting(world, parts, Copies("a", "r1", is_open=False), count=4)
    closed = [Copies("a", "r1", is_open=False), Copies("b", "r1", is_open=False)]
    engine = start(world, parts, *closed, interval=HOUR)
    engine.start()
    world.publish(*numbered(2, "new"), to="queue:r1")
    world.wait(lambda: world.received_rows() == 6)
    world.crash(engine)
    for one in closed:
        one.gate.set()
    with start(world, parts, Copies("a", "r1"), Copies("b", "r1")):
        world.wait_for("m1", "m2", "m3", "m4", "new1", "new2", at="queue:a")
        world.wait_for("new1", "new2", at="queue:b")


def test_a_receiver_moved_from_a_pipeline_to_another_goes_on_there(world):
    parts = the_parts("r1", "r2")
    with start(world, parts, Copies("a", "r1"), Copies("b", "r2")):
        world.publish("old", to="queue:r1")
        world.wait_for("old", at="queue:a")
        world.wait(lambda: world.received_rows() == 0)
    with start(world, parts, Copies("a", "r2"), Copies("b", "r1")):
        world.publish("new", to="queue:r1")
        world.wait_for("new", at="queue:b")
        assert world.sent("queue:a") == ["old"]


def test_a_new_context_of_monitors_is_not_given_what_others_still_wait_for(world, script):
    waits, goes_on = threading.Event(), threading.Event()

    def stuck(heard, message):
        if type(heard) is Hears and message.body == b"m1":
            waits.set()
            goes_on.wait(PATIENCE_S)

    script.message = stuck
    engine = world.engine(receiver("in", AT_LEAST_ONCE), monitors=[Hears], stop_timeout=0.1)
    engine.start()
    world.publish("m1", "m2")
    assert waits.wait(PATIENCE_S)
    world.wait(lambda: world.received_rows() == 2)
    world.crash(engine)
    goes_on.set()
    monitors = [monitor(Hears), monitor(AlsoHears, context="more")]
    with world.engine(receiver("in", AT_LEAST_ONCE), monitors=monitors):
        world.publish("m3")
        world.wait(lambda: "m3" in script.of("Hears") and script.of("AlsoHears"))
    assert script.of("AlsoHears") == ["m3"]
    assert script.of("Hears")[-3:] == ["m1", "m2", "m3"]


def test_a_receiver_that_code_added_is_given_to_a_new_context_from_then_on(world, script):
    with world.engine(monitors=[Hears]) as engine:
        engine.add_receiver(receiver("in", AT_LEAST_ONCE))
        world.publish("m1")
        world.wait(lambda: "m1" in script.of("Hears"))
    monitors = [monitor(Hears), monitor(AlsoHears, context="more")]
    with world.engine(monitors=monitors) as engine:
        assert engine.registry["in"].delivers_to == {"main": 0, "more": 1}
        world.publish("m2")
        world.wait(lambda: "m2" in script.of("AlsoHears"))
    assert script.of("AlsoHears") == ["m2"]


def test_what_a_best_effort_receiver_delivers_to_is_not_recorded(world):
    with world.engine(receiver("in", BEST_EFFORT), monitors=[Hears]) as engine:
        assert engine.registry["in"].delivers_to == {}


# --- logical destinations that lead elsewhere ---

BOTH = {"orders_in": "queue:A"}
MOVED = {"orders_in": "queue:B"}


def test_a_domain_by_default_never_covers_two_queues(world, script):
    """A message of the queue that the alias has left, with the id of one that came where it leads now."""
    orders = receiver("orders", destination="orders_in")
    with world.engine(orders, monitors=[Hears], destinations=BOTH) as engine:
        assert engine.registry["orders"].domain == "memory:queue:A"
    other = receiver("more", destination="queue:A")
    with world.engine(orders, other, monitors=[Hears], destinations=MOVED) as engine:
        assert {name: one.domain for name, one in engine.registry.items()} == {
            "orders": "memory:queue:B",
            "more": "memory:queue:A",
        }
        world.publish("m1", to="queue:B")
        world.wait(lambda: len(script.of("Hears")) == 1)
        world.publish("m1", to="queue:A")
        world.wait(lambda: len(script.of("Hears")) == 2)


def test_nor_two_topics(world, script):
    orders = receiver("orders", destination="orders_in")
    with world.engine(orders, monitors=[Hears], destinations={"orders_in": "topic:A"}):
        world.publish("m1", to="topic:A")
        world.wait(lambda: script.of("Hears") == ["m1"])
    with world.engine(orders, monitors=[Hears], destinations={"orders_in": "topic:B"}):
        world.publish("m1", to="topic:B")
        world.wait(lambda: script.of("Hears") == ["m1", "m1"])


def test_the_same_of_a_receiver_that_code_added(world, script):
    with world.engine(monitors=[Hears], destinations=BOTH) as engine:
        engine.add_receiver(receiver("orders", destination="orders_in"))
        world.publish("m1", to="queue:A")
        world.wait(lambda: script.of("Hears") == ["m1"])
    with world.engine(monitors=[Hears], destinations=MOVED) as engine:
        assert engine.registry["orders"].domain == "memory:queue:B"
        engine.add_receiver(receiver("orders", destination="orders_in"))
        world.publish("m1", to="queue:B")
        world.wait(lambda: script.of("Hears") == ["m1", "m1"])


def test_ids_of_the_queue_that_an_alias_has_left_are_not_held_for_ever(world, script):
    """Its last batch may not be acknowledged; but it will not come to this receiver again."""
    orders = receiver("orders", destination="orders_in")
    engine = world.engine(orders, monitors=[Hears], destinations=BOTH)
    engine.start()
    world.publish("m1", to="queue:A")
    world.wait(lambda: script.of("Hears") == ["m1"])
    world.crash(engine)
    with world.engine(orders, monitors=[Hears], destinations=MOVED) as engine:
        assert not engine.writer.domains.detectors["memory:queue:A"]._pinned


def test_a_stored_send_goes_where_its_logical_destination_led_when_it_was_stored(world, script):
    script.message = lambda heard, message: [heard.send(b"default", to="out"), heard.send(named(), to="out")]
    out = sender("out", destination="bills")
    engine = world.engine(
        receiver("in"), out, monitors=[Hears], destinations={"bills": "queue:A", "notes": "queue:N"}, stop_timeout=0.1
    )
    engine.start()
    engine.senders["out"]._open = False
    world.publish("m1")
    world.wait(lambda: world.outbox_rows() == 2)
    world.crash(engine)
    moved = {"bills": "queue:B", "notes": "queue:M"}
    with world.engine(receiver("in"), out, monitors=[Hears], destinations=moved):
        world.wait_for("default", at="queue:A")
        world.wait_for("named", at="queue:N")
        world.publish("m2")
        world.wait_for("default", at="queue:B")
        world.wait_for("named", at="queue:M")


def named() -> Message:
    return Message(b"named", destination="notes")


def test_plan_says_who_is_given_what(world):
    """The same comparison as the start's: `tests/cli/test_plan.py` shows it as a command."""
    parts = the_parts("r1")
    leave_waiting(world, parts, Copies("a", "r1", is_open=False), count=4)
    (endpoint,) = [one for one in inspect.registry(world.store) if one.id == "r1"]
    assert endpoint.delivers_to == {"a": 0}
    assert inspect.received(world.store).unhandled("a", "r1", 0) == 4
