"""Dead letters go back where they came from, once, and whatever dies on the way (rules Z7, Z8)."""

import subprocess
import sys
from typing import Any

import msgspec
import pytest

from correlator.core.batch_context import Effects
from correlator.core.commit import SenderCut
from correlator.core.deadletters import DeadLetterReplay
from correlator.core.registry import endpoint_of
from correlator.core.statelog import StateLog
from correlator.errors import Fenced, UsageError
from correlator.events import DeadLetter, Message
from correlator.storage import deadletters, inspect
from correlator.storage.inspect import Selection
from correlator.testing.memory import MemoryBroker
from correlator.testing.store import Disk
from tests.runtime.flows import Forwards, Hears, Idles, Keeps
from tests.runtime.stepped import stepped
from tests.runtime.test_failures import ORDER
from tests.runtime.test_sending import Refuses
from tests.runtime.world import AT_LEAST_ONCE, BEST_EFFORT, EXACTLY_ONCE, Queues, message, monitor, receiver, sender

ALL = Selection()
KILLED = """
import os, signal, sys
from correlator.core import faults
from correlator.storage import deadletters
from correlator.storage.inspect import Selection
faults.install(lambda name: name == sys.argv[2] and os.kill(os.getpid(), signal.SIGKILL))
deadletters.replay(sys.argv[1], Selection())
"""


def letters(world):
    return inspect.dead_letters(world.store)


def with_mapping_letter(world, reliability=EXACTLY_ONCE):
    """A store in which one message could not be mapped; every run has the same parts."""
    with world.engine(receiver("in", reliability, event=ORDER), monitors=[Keeps]):
        world.publish('{"id": 1}', "not JSON", '{"id": 2}')
        world.wait(lambda: len(world.dead_letters()) == 1)


def fails_on_all(monitor, message):
    raise ValueError("no")


def fails_on_bad(monitor, message):
    if message.body == b"bad":
        raise ValueError("no")


def with_send_letter(world, reliability=EXACTLY_ONCE, **options):
    world.broker.faults = Refuses(b"2:m2", times=3)
    with world.engine(receiver(), sender("out", reliability, **options), monitors=[Forwards]):
        world.publish("m1", "m2", "m3")
        world.wait_for("1:m1", "3:m3")
        world.wait(lambda: world.dead_letters())


# --- received messages ---


@pytest.mark.parametrize("reliability", [EXACTLY_ONCE, AT_LEAST_ONCE])
def test_z8_a_mapping_letter_is_handled_by_the_next_start(any_world, script, reliability):
    with_mapping_letter(any_world, reliability)
    assert deadletters.replay(any_world.store, ALL) == 1
    assert letters(any_world) == []
    with any_world.engine(receiver("in", reliability), monitors=[Keeps]) as engine:
        any_world.wait(lambda: "not JSON" in script.of("Keeps"))
        any_world.publish("after")
        any_world.wait(lambda: script.of("Keeps")[-1] == "after")
        assert engine.checkpoint()
    assert script.of("Keeps") == ["order 1", "order 2", "not JSON", "after"]
    assert any_world.received_rows() == 0


def test_z8_a_replayed_message_that_fails_again_is_a_dead_letter_again(any_world, script):
    with_mapping_letter(any_world)
    for _ in range(2):
        deadletters.replay(any_world.store, ALL)
        with any_world.engine(receiver(event=ORDER), monitors=[Keeps]) as engine:
            assert engine.checkpoint()
        (row,) = letters(any_world)
        assert (row.letter.kind, row.letter.receiver, row.letter.message.body) == ("mapping", "in", b"not JSON")
        assert any_world.received_rows() == 0
    assert script.of("Keeps") == ["order 1", "order 2"]


def test_the_log_says_which_replayed_letter_fails_again_and_why(world, script, logs):
    with_mapping_letter(world)
    deadletters.replay(world.store, ALL)
    with world.engine(receiver(event=ORDER), monitors=[Keeps]):
        pass
    (line,) = [line for line in logs if line["event"].startswith("a stored message cannot be mapped")]
    assert (line["receiver"], line["number"], line["unique_id"]) == ("in", 3, "not JSON")
    assert line["reason"].startswith("E5101 receiver in: body is not JSON")
    script.order = fails_on_all
    with world.engine(receiver(event=ORDER), monitors=[monitor(Keeps, on_error="dead_letter")]):
        world.publish('{"id": 3}')
        world.wait(lambda: len(letters(world)) == 2)
    (line,) = [line for line in logs if line["event"].startswith("a handler failed")]
    assert line["event_of"] == "message 4 of receiver 'in'"


def test_z8_a_message_that_fails_again_in_two_contexts_is_one_letter(world):
    parts = [receiver(event=ORDER)], [monitor(Keeps), monitor(Hears, context="second")]
    with world.engine(*parts[0], monitors=parts[1]):
        world.publish("not JSON")
        world.wait(lambda: world.dead_letters())
    deadletters.replay(world.store, ALL)
    with world.engine(*parts[0], monitors=parts[1]) as engine:
        assert engine.checkpoint()
    assert len(letters(world)) == 1


def test_z8_a_replayed_message_is_no_duplicate_and_its_repeat_is_one(any_world, script):
    script.message = fails_on_bad
    parts = [receiver()], [monitor(Keeps, on_error="dead_letter")]
    with any_world.engine(*parts[0], monitors=parts[1]):
        any_world.publish("good", "bad")
        any_world.wait(lambda: any_world.dead_letters())
    script.message = lambda monitor, message: None
    deadletters.replay(any_world.store, ALL)
    with any_world.engine(*parts[0], monitors=parts[1]) as engine:
        any_world.publish("bad", "last")
        any_world.wait(lambda: script.of("Keeps")[-1] == "last")
        assert engine.status().receivers["in"][1].duplicates == 1
    assert script.of("Keeps") == ["good", "bad", "bad", "last"]


@pytest.mark.kill9
def test_a_killed_process_and_a_redelivery_leave_one_mapping_letter(children, tmp_path, store):
    """Killed between commit and acknowledgement; brought back, it is handled once, and a later repeat is a repeat."""
    queues = Queues(tmp_path)
    flow = {"store": store, "broker": queues.url, "batch": 1}
    queues.publish([message("not JSON")])
    for point in ("rx.ack.before", "rx.ack.after"):
        assert children.run(**flow, wanted=1, event=ORDER, kill=point)["killed"]
        (row,) = inspect.dead_letters(store)
        assert (row.letter.unique_id, row.letter.message.body) == ("not JSON", b"not JSON")
    assert deadletters.replay(store, ALL) == 1
    queues.publish([message("not JSON"), message("last")])
    assert children.run(**flow, wanted=2)["exit"] == 0
    assert queues.bodies() == ["1:not JSON", "2:last"]
    assert inspect.dead_letters(store) == []


def test_a_repeat_of_what_could_not_be_mapped_is_a_repeat(any_world, script, logs):
    with any_world.engine(receiver(event=ORDER), monitors=[Keeps]) as engine:
        any_world.publish('{"id": 1}', "bad", "bad", '{"id": 2}', "bad")
        any_world.wait(lambda: script.of("Keeps") == ["order 1", "order 2"])
        any_world.wait(lambda: engine.status().receivers["in"][1].duplicates == 2)
        assert engine.status().receivers["in"][1].dead_letters == 1
    assert len(letters(any_world)) == 1
    assert set(any_world.stored_ids()) == {'{"id": 1}', "bad", '{"id": 2}'}


def test_what_is_dropped_because_it_cannot_be_mapped_leaves_no_id(world, script):
    with world.engine(receiver(event=ORDER, on_mapping_error="drop"), monitors=[Keeps]) as engine:
        world.publish("bad", '{"id": 1}', "bad")
        world.wait(lambda: engine.status().receivers["in"][1].unmapped == 2)
        world.wait(lambda: script.of("Keeps") == ["order 1"])
    assert world.stored_ids() == ['{"id": 1}']
    assert letters(world) == []


def test_z8_a_handler_letter_holds_the_message_as_it_came(any_world, script):
    script.order = fails_on_all
    with any_world.engine(receiver(event=ORDER), monitors=[monitor(Keeps, on_error="dead_letter")]):
        any_world.publish(message('{"id": 1}', "unique", colour="red"))
        any_world.wait(lambda: any_world.dead_letters())
    (row,) = letters(any_world)
    assert (row.letter.kind, row.letter.origin, row.letter.receiver, row.letter.number) == ("handler", "Keeps", "in", 1)
    assert row.letter.message.body == b'{"id": 1}'
    assert row.letter.message.properties == {"uniqueMessageId": "unique", "colour": "red"}


def test_z8_letters_of_two_handlers_about_one_message_bring_it_back_once(any_world, script):
    script.message = fails_on_bad
    monitors = [monitor(Keeps, on_error="dead_letter"), monitor(Hears, on_error="dead_letter")]
    with any_world.engine(receiver(), monitors=monitors):
        any_world.publish("bad")
        any_world.wait(lambda: len(any_world.dead_letters()) == 2)
    script.message = lambda monitor, message: None
    script.heard.clear()
    assert deadletters.replay(any_world.store, ALL) == 2
    assert any_world.received_rows() == 1
    with any_world.engine(receiver(), monitors=monitors) as engine:
        any_world.wait(lambda: len(script.heard) == 2)
        assert engine.checkpoint()
    assert sorted(script.heard) == [("Hears", "bad"), ("Keeps", "bad")]


# --- sends ---


@pytest.mark.parametrize("reliability", [EXACTLY_ONCE, AT_LEAST_ONCE])
def test_z7_a_send_letter_leaves_under_the_next_number(any_world, reliability):
    with_send_letter(any_world, reliability)
    assert deadletters.replay(any_world.store, ALL) == 1
    with any_world.engine(receiver(), sender("out", reliability), monitors=[Forwards]):
        any_world.wait_for("1:m1", "3:m3", "2:m2")
        any_world.publish("m4")
        any_world.wait_for("1:m1", "3:m3", "2:m2", "4:m4")
    assert letters(any_world) == []
    if reliability is EXACTLY_ONCE:
        assert [one.partition(":")[0] for one in any_world.ids()] == ["1", "3", "4", "5"]
        assert len({one.partition(":")[2] for one in any_world.ids()}) == 1


def test_z7_a_send_letter_that_is_refused_again_is_a_dead_letter_again(any_world):
    with_send_letter(any_world)
    deadletters.replay(any_world.store, ALL)
    any_world.broker.faults = Refuses(b"2:m2", times=3)
    with any_world.engine(receiver(), sender(), monitors=[Forwards]) as engine:
        any_world.wait(lambda: engine.status().senders["out"][1].dead_letters == 1)
    (row,) = letters(any_world)
    assert row.letter.unique_id.startswith("4:")


def test_z7_a_letter_keeps_a_destination_that_is_not_the_senders(any_world, script):
    script.message = lambda monitor, message: monitor.send(message.body, to="out", destination="queue:other")
    parts = [receiver(), sender(destination=None)], [Keeps]
    any_world.broker.faults = Refuses(b"m1", times=3)
    with any_world.engine(*parts[0], monitors=parts[1]):
        any_world.publish("m1")
        any_world.wait(lambda: any_world.dead_letters())
    deadletters.replay(any_world.store, ALL)
    with any_world.engine(*parts[0], monitors=parts[1]):
        any_world.wait_for("m1", at="queue:other")


def test_z7_a_letter_whose_logical_destination_has_moved(any_world, script):
    """It names the place that it was stored for, unless that was the sender's own: then the sender's place counts."""
    script.message = lambda one, told: [
        one.send(told.body, to="out"),
        one.send(Message(told.body, destination="notes"), to="out"),
    ]
    parts = [receiver(), sender(destination="bills")], [Keeps]
    any_world.broker.faults = Refuses(b"m1", times=3)
    with any_world.engine(*parts[0], monitors=parts[1], destinations={"bills": "queue:A", "notes": "queue:N"}):
        any_world.publish("m1")
        any_world.wait(lambda: len(any_world.dead_letters()) == 2)
    assert deadletters.replay(any_world.store, ALL) == 2
    moved = {"bills": "queue:B", "notes": "queue:M"}
    with any_world.engine(*parts[0], monitors=parts[1], destinations=moved):
        any_world.wait_for("m1", at="queue:B")
        any_world.wait_for("m1", at="queue:N")
    assert any_world.sent("queue:A") == any_world.sent("queue:M") == []


# --- what dies on the way ---


@pytest.mark.parametrize(("place", "left"), [("dl.tx.commit.before", 1), ("dl.tx.commit.after", 0)])
def test_z8_killed_around_the_commit_it_has_happened_or_not(world, script, place, left):
    with_mapping_letter(world)
    killed = subprocess.run([sys.executable, "-c", KILLED, world.store, place], check=False)
    assert killed.returncode == -9
    assert (len(letters(world)), world.received_rows()) == (left, 1 - left)
    if left:
        deadletters.replay(world.store, ALL)
    with world.engine(receiver(), monitors=[Keeps]) as engine:
        assert engine.checkpoint()
    assert script.of("Keeps") == ["order 1", "order 2", "not JSON"]


@pytest.mark.parametrize(("place", "left"), [("dl.tx.commit.before", 1), ("dl.tx.commit.after", 0)])
def test_z7_killed_around_the_commit_a_send_leaves_once(world, place, left):
    with_send_letter(world)
    killed = subprocess.run([sys.executable, "-c", KILLED, world.store, place], check=False)
    assert killed.returncode == -9
    assert len(letters(world)) == left
    if left:
        deadletters.replay(world.store, ALL)
    with world.engine(receiver(), sender(), monitors=[Forwards]):
        world.wait_for("1:m1", "3:m3", "2:m2")
    assert [one.partition(":")[0] for one in world.ids()] == ["1", "3", "4"]


def test_z8_a_running_engine_keeps_its_letters_to_itself(any_world):
    with_mapping_letter(any_world)
    with any_world.engine(receiver(event=ORDER), monitors=[Keeps]):
        for act in (deadletters.replay, deadletters.discard):
            with pytest.raises(Fenced, match="E3201"):
                act(any_world.store, ALL)
    assert len(letters(any_world)) == 1


def test_z8_a_letter_of_a_best_effort_receiver_cannot_go_back(any_world):
    with_mapping_letter(any_world, BEST_EFFORT)
    with pytest.raises(UsageError, match="E2023 dead letter 1: .* receiver 'in' is BEST_EFFORT"):
        deadletters.replay(any_world.store, ALL)
    assert len(letters(any_world)) == 1
    assert any_world.received_rows() == 0


def test_z8_one_that_cannot_go_back_keeps_the_others(any_world, script):
    """All or nothing: what a page before it has inserted is taken back too."""
    script.message = fails_on_bad
    parts = [receiver(), receiver("other", BEST_EFFORT)], [monitor(Keeps, on_error="dead_letter")]
    with any_world.engine(*parts[0], monitors=parts[1]):
        any_world.publish("bad")
        any_world.wait(lambda: len(any_world.dead_letters()) == 1)
        any_world.publish("bad", to="queue:other")
        any_world.wait(lambda: len(any_world.dead_letters()) == 2)
    with pytest.raises(UsageError, match="E2023 dead letter 2"):
        deadletters.replay(any_world.store, ALL)
    assert (len(letters(any_world)), any_world.received_rows()) == (2, 0)
    assert deadletters.replay(any_world.store, Selection(numbers=[1])) == 1
    assert [row.number for row in letters(any_world)] == [2]


def test_letters_of_two_receivers_with_the_same_number_both_go_back(any_world, script):
    """Numbers are counted by each receiver: the first message of both has number 1."""
    script.message = fails_on_all
    parts = [receiver("in"), receiver("other")], [monitor(Keeps, on_error="dead_letter")]
    with any_world.engine(*parts[0], monitors=parts[1]):
        any_world.publish("one")
        any_world.publish("two", to="queue:other")
        any_world.wait(lambda: len(any_world.dead_letters()) == 2)
    assert [(row.letter.number) for row in letters(any_world)] == [1, 1]
    assert deadletters.replay(any_world.store, ALL) == 2
    script.message = lambda monitor, message: None
    script.heard.clear()
    with any_world.engine(*parts[0], monitors=parts[1]) as engine:
        any_world.wait(lambda: sorted(script.of("Keeps")) == ["one", "two"])
        assert engine.checkpoint()
    assert (letters(any_world), any_world.received_rows()) == ([], 0)


def test_z8_many_letters_go_back_in_order(world, script, monkeypatch):
    monkeypatch.setattr(deadletters, "PAGE", 3)
    bodies = [f"m{number}" for number in range(10)]
    with world.engine(receiver(event=ORDER), monitors=[Keeps]):
        world.publish(*bodies)
        world.wait(lambda: len(world.dead_letters()) == 10)
    assert deadletters.replay(world.store, ALL) == 10
    with world.engine(receiver(), monitors=[Keeps]) as engine:
        assert engine.checkpoint()
    assert script.of("Keeps") == bodies


def test_z8_discarded_letters_are_gone(any_world):
    with_mapping_letter(any_world)
    with pytest.raises(UsageError, match="E2021 dead letter 7"):
        deadletters.discard(any_world.store, Selection(numbers=[1, 7]))
    assert deadletters.discard(any_world.store, Selection(kind="send")) == 0
    assert deadletters.discard(any_world.store, Selection(kind="mapping", origin="in")) == 1
    assert letters(any_world) == []
    assert any_world.received_rows() == 0


# --- the decision ---


def letter(kind, origin, **fields):
    return DeadLetter(kind=kind, origin=origin, reason="E", message=Message(b"m"), **fields)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (letter("handler", "Keeps"), "its cause is no received message"),
        (letter("step", "p"), "its cause is no received message"),
        (letter("handler", "Keeps", receiver="gone"), "receiver 'gone' does not exist any more"),
        (letter("mapping", "gone"), "receiver 'gone' does not exist any more"),
        (letter("mapping", "out"), "receiver 'out' does not exist any more"),
        (letter("send", "gone"), "sender 'gone' does not exist any more"),
        (letter("send", "out"), "the last checkpoint does not contain sender 'out'"),
        (letter("step", "p", receiver="fast"), "receiver 'fast' is BEST_EFFORT and keeps nothing"),
        (letter("poison", "main"), "its cause is no received message"),
    ],
)
def test_z8_what_cannot_go_back(given, why):
    registry = [endpoint_of(one, dynamic=False) for one in (receiver(), receiver("fast", BEST_EFFORT), sender())]
    again = DeadLetterReplay(registry, {}, [])
    assert again.take([(1, given)]) == ([], [])
    (refusal,) = again.refusals
    assert why in str(refusal)


@pytest.mark.parametrize("kind", ["mapping", "handler", "step", "poison"])
def test_z8_a_received_message_goes_back_to_its_receiver_whatever_failed(kind):
    again = DeadLetterReplay([endpoint_of(receiver(), dynamic=False)], {"in": 7}, [])
    (segment,) = again.take([(1, letter(kind, "in", receiver="in", number=3))]).received
    assert (segment.receiver, segment.first, len(segment.messages)) == ("in", 8, 1)
    assert again.refusals == []


def test_z8_a_letter_of_an_older_version_can_be_read():
    """Fields came later, at the end: what is stored without them keeps its meaning."""
    old = msgspec.msgpack.encode({"kind": "mapping", "origin": "in", "reason": "E", "message": [b"m"]})
    read = msgspec.msgpack.decode(old, type=DeadLetter)
    assert (read.receiver, read.number) == ("", 0)
    (segment,) = DeadLetterReplay([endpoint_of(receiver(), dynamic=False)], {"in": 4}, []).take([(1, read)]).received
    assert (segment.receiver, segment.first) == ("in", 5)


class Records(Idles):
    """A processor that remembers what it was given."""

    def __init__(self) -> None:
        self.given: list[str] = []

    def process(self, batch, state, engine_time):
        self.given += [one.message.body.decode() for one in batch]
        return Effects()


def test_z8_what_no_longer_maps_is_not_processed_too(any_world):
    """A letter that goes back and is still too large is a letter again, and nothing else."""
    with any_world.engine(receiver(max_message_bytes=10), processors=[Records()]):
        any_world.publish(message("x" * 11, "long"))
        any_world.wait(lambda: any_world.dead_letters())
    deadletters.replay(any_world.store, ALL)
    records = Records()
    with any_world.engine(receiver(max_message_bytes=10), processors=[records]) as engine:
        any_world.publish("after")
        any_world.wait(lambda: records.given)
        any_world.wait(
            lambda: len(any_world.dead_letters()) == 1 and engine.checkpoint() and not any_world.received_rows()
        )
    assert records.given == ["after"]


def test_t69_letters_that_go_back_fill_no_row_beyond_what_a_database_takes(monkeypatch):
    """Given letters of many bytes, when they go back, then in several rows whose numbers follow one another."""
    monkeypatch.setattr("correlator.core.pieces.MOST_BYTES", 10)
    bodies = [b"12345", b"67890", b"1", b"a message that is larger alone", b"2"]
    registry = [endpoint_of(one, dynamic=False) for one in (receiver(), sender())]
    again = DeadLetterReplay(registry, {"in": 7}, [SenderCut("out", "source", 4, 3)])
    received = [DeadLetter(kind="mapping", origin="in", reason="E", message=Message(body)) for body in bodies]
    sent = [DeadLetter(kind="send", origin="out", reason="E", message=Message(body)) for body in bodies]
    segments = again.take(enumerate([*received, *sent], 1))
    for rows, first in ((segments.received, 8), (segments.outbound, 4)):
        assert [len(row.messages) for row in rows] == [2, 1, 1, 1]
        assert [row.first for row in rows] == [first, first + 2, first + 3, first + 4]
        assert [one.body for row in rows for one in row.messages] == bodies
    assert again.senders == [SenderCut("out", "source", 9, 3)]


# --- stored messages that no longer map, and contexts that are slow ---


class Slow:
    """A pipeline that sends on what it is given, one message after the other, to the sender of its own name."""

    receivers = ("in",)
    steps = ()
    max_rows = 1
    max_bytes = 1 << 20
    planned_s = 0.0

    def __init__(self, name: str) -> None:
        self.name = name
        self.senders = (name,)

    def open(self) -> None: ...

    def process(self, batch: Any, state: Any, engine_time: float) -> Effects:
        return Effects(sends=[(self.name, Message(one.message.body)) for one in batch])

    def conclude(self, state: Any, engine_time: float) -> Effects:
        return Effects()

    def close(self) -> None: ...


BODIES = [b'{"id": 1}', b"no order", b"none either", b'{"id": 4}']


class Lives:
    """Lives of an engine with pipelines that work only when they are told to; each ends by a kill."""

    def __init__(self, *pipelines: str) -> None:
        self.disk, self.broker, self.pipelines = Disk(), MemoryBroker(), pipelines
        self.broker.publish("queue:in", [message(one.decode()) for one in BODIES])
        self.live(None)

    def live(self, event: str | None, *working: str) -> None:
        """Contexts at work, a checkpoint, and what that releases."""
        parts = receiver(event=event), *(sender(one) for one in self.pipelines)
        engine = stepped(self.disk, self.broker, *parts, processors=[Slow(one) for one in self.pipelines])
        idle = [f"pipeline-{one}" for one in self.pipelines if one not in working]
        for _ in range(60):
            for actor in engine.actors():
                if actor.name not in idle:
                    actor.step()
            engine.checkpointer.ask()

    @property
    def letters(self) -> list[int]:
        return [letter.number for letter in self.disk.dead_letters]

    def sent(self, name: str) -> list[bytes]:
        return [one.body for one in self.broker.received(f"queue:{name}")]


def test_a_stored_message_that_no_longer_maps_is_one_letter_however_many_starts_it_takes():
    lives = Lives("a")
    for _ in range(3):
        lives.live(ORDER)
        assert lives.letters == []
    lives.live(ORDER, "a")
    lives.live(ORDER, "a")
    assert (lives.letters, lives.sent("a")) == ([2, 3], [BODIES[0], BODIES[3]])
    assert lives.disk.receive_log == {}


@pytest.mark.parametrize("event", [ORDER, None])
def test_a_message_with_a_letter_is_handed_to_nobody_any_more_even_if_it_maps_again(event):
    """Who brings the letter back brings the message to all contexts; the slower one would handle it twice."""
    lives = Lives("a", "b")
    lives.live(ORDER, "a")
    assert lives.letters == [2, 3]
    assert StateLog().restore(lives.disk.recovered().state)["unmapped"]
    for working in ((), ("b",), ()):
        lives.live(event, *working)
        assert lives.letters == [2, 3]
    assert lives.sent("a") == lives.sent("b") == [BODIES[0], BODIES[3]]
    assert not StateLog().restore(lives.disk.recovered().state)["unmapped"]


def test_a_message_that_maps_again_before_any_context_has_passed_it_has_no_letter():
    lives = Lives("a", "b")
    lives.live(ORDER)
    lives.live(None, "a", "b")
    assert (lives.letters, lives.sent("a"), lives.sent("b")) == ([], BODIES, BODIES)


def test_what_one_context_has_handled_before_is_a_letter_of_the_one_that_has_not():
    lives = Lives("a", "b")
    lives.live(None, "a")
    lives.live(ORDER, "b")
    assert (lives.letters, lives.sent("a"), lives.sent("b")) == ([2, 3], BODIES, [BODIES[0], BODIES[3]])
