"""A running engine brings dead letters back, once, and discards them (rules Z7, Z8; docs/dead-letters.md)."""

import re
import subprocess
import sys
import threading

import pytest

from correlator.cli import asking, deadletter, main
from correlator.cli.asking import ask
from correlator.errors import NotDone, UsageError
from correlator.runtime.control.address import sockets_of
from correlator.runtime.control.protocol import Discard, Replay
from correlator.runtime.returning import Returning
from correlator.storage import inspect
from tests.runtime.flows import AlsoHears, Forwards, Hears, Keeps
from tests.runtime.test_dead_letters import Records, fails_on_all, fails_on_bad, with_mapping_letter
from tests.runtime.test_failures import ORDER
from tests.runtime.test_sending import Refuses
from tests.runtime.world import BEST_EFFORT, EXACTLY_ONCE, message, monitor, receiver, sender
from tests.waiting import wait_until

PATIENCE_S = 60.0
KILLED = """
import os, signal, sys
from correlator.core import faults
from tests.runtime.flows import Keeps
from tests.runtime.world import World, receiver
engine = World(sys.argv[1]).engine(receiver(), monitors=[Keeps])
engine.start()
faults.install(lambda name: name == sys.argv[2] and os.kill(os.getpid(), signal.SIGKILL))
engine.replay_dead_letters([1])
"""


def numbers(world):
    return [row.number for row in inspect.dead_letters(world.store)]


def nothing(monitor, message):
    """A handler that does not fail."""


def failing(world, script, *bodies, monitors=(Keeps,), **fields):
    """An engine whose monitors fail on these messages, which became dead letters."""
    script.message = fails_on_all
    engine = world.engine(receiver(**fields), monitors=[monitor(one, on_error="dead_letter") for one in monitors])
    engine.start()
    world.publish(*bodies)
    world.wait(lambda: len(numbers(world)) == len(bodies) * len(monitors))
    script.message = nothing
    script.heard.clear()
    return engine


def test_a_received_message_is_handled_again_and_its_letter_is_gone(any_world, script):
    engine = failing(any_world, script, "a", "b", "c")
    assert engine.replay_dead_letters([3, 1]) == [1, 3]
    any_world.wait(lambda: script.of("Keeps") == ["a", "c"])
    any_world.publish("a", "d")  # the first is a repeat still
    any_world.wait(lambda: script.of("Keeps")[2:] == ["d"])
    assert engine.checkpoint()
    assert (numbers(any_world), any_world.received_rows()) == ([2], 0)
    told = [entry.values for entry in engine.timeline.read(None, 1000).entries if entry.name == "replayed"]
    assert told == [{"count": 2}]
    any_world.crash(engine)
    script.heard.clear()
    with any_world.engine(receiver(), monitors=[monitor(Keeps, on_error="dead_letter")]):
        any_world.publish("e")
        any_world.wait(lambda: script.of("Keeps") == ["e"])


def test_letters_about_one_message_bring_it_back_once(world, script):
    engine = failing(world, script, "a", monitors=(Keeps, Hears))
    assert engine.replay_dead_letters([1, 2]) == [1, 2]
    world.publish("z")
    world.wait(lambda: len(script.heard) == 4)
    assert script.of("Keeps") == script.of("Hears") == ["a", "z"]
    assert numbers(world) == []


def test_what_still_cannot_be_mapped_stays(world, script):
    with_mapping_letter(world)
    with world.engine(receiver("in", event=ORDER), monitors=[Keeps]) as engine:
        assert engine.replay_dead_letters([1]) == []
        assert numbers(world) == [1]
    with world.engine(receiver("in"), monitors=[Keeps]) as engine:
        assert engine.replay_dead_letters([1]) == [1]
        world.wait(lambda: script.of("Keeps")[-1] == "not JSON")
    assert (numbers(world), world.received_rows()) == ([], 0)


def test_a_pipeline_gets_it_like_any_other(world):
    with world.engine(receiver(max_message_bytes=10), processors=[Records()]):
        world.publish(message("x" * 11, "long"))
        world.wait(lambda: numbers(world) == [1])
    with world.engine(receiver(), processors=[records := Records()]) as engine:
        assert engine.replay_dead_letters([1]) == [1]
        world.wait(lambda: records.given == ["x" * 11])
        assert engine.checkpoint()
    assert (numbers(world), world.received_rows()) == ([], 0)


@pytest.mark.parametrize(("point", "letters"), [("dl.tx.discard", [1]), ("rx.enqueue", [])])
def test_if_the_engine_fails_on_the_way_it_has_happened_or_not(world, script, point, letters):
    engine = failing(world, script, "a")
    assert engine.checkpoint()
    world.fail_at(point, RuntimeError("a bug"))
    assert engine.replay_dead_letters([1]) == []
    world.wait(lambda: engine.failure is not None)
    engine.stop()
    assert numbers(world) == letters
    with world.engine(receiver(), monitors=[Keeps]) as engine:
        if letters:
            engine.replay_dead_letters([1])
        world.publish("z")
        world.wait(lambda: script.of("Keeps")[-1:] == ["z"])
    assert script.of("Keeps") == ["a", "z"]


@pytest.mark.kill9
@pytest.mark.parametrize(("point", "letters"), [("dl.tx.discard", [1]), ("rx.tx.commit.after", [])])
def test_a_process_that_is_killed_on_the_way_has_brought_it_back_or_not(world, script, point, letters):
    engine = failing(world, script, "a")
    engine.stop()
    killed = subprocess.run([sys.executable, "-c", KILLED, world.store, point], check=False, capture_output=True)
    assert killed.returncode == -9
    assert numbers(world) == letters
    with world.engine(receiver(), monitors=[Keeps]) as engine:
        if letters:
            assert engine.replay_dead_letters([1]) == [1]
        world.publish("z")
        world.wait(lambda: script.of("Keeps")[-1:] == ["z"])
    assert script.of("Keeps") == ["a", "z"]


def test_a_send_leaves_under_the_next_number(any_world):
    any_world.broker.faults = Refuses(b"2:m2", times=3)
    with any_world.engine(receiver(), sender(), monitors=[Forwards]) as engine:
        any_world.publish("m1", "m2", "m3")
        any_world.wait_for("1:m1", "3:m3")
        any_world.wait(lambda: numbers(any_world) == [1])
        assert engine.replay_dead_letters([1]) == [1]
        assert numbers(any_world) == []
        any_world.wait_for("1:m1", "3:m3", "2:m2")
    assert [one.partition(":")[0] for one in any_world.ids()] == ["1", "3", "4"]
    assert any_world.outbox_rows() == 0


def test_if_the_checkpoint_fails_the_send_stays_a_letter(world):
    world.broker.faults = Refuses(b"1:m1", times=3)
    with world.engine(receiver(), sender(), monitors=[Forwards], interval=3600.0) as engine:
        world.publish("m1")
        world.wait(lambda: engine.checkpoint() and numbers(world) == [1])
        world.fail_at("dl.tx.discard", RuntimeError("a bug"))
        with pytest.raises(NotDone, match="E8310 dead letters: are not back: the next checkpoint"):
            engine.replay_dead_letters([1], PATIENCE_S)
    assert numbers(world) == [1]
    with world.engine(receiver(), sender(), monitors=[Forwards]) as engine:
        assert engine.replay_dead_letters([1]) == [1]
        world.wait_for("1:m1")


def test_a_send_whose_checkpoint_comes_late_goes_back_once_and_is_no_letter_then(world):
    world.broker.faults = Refuses(b"1:m1", times=3)
    with world.engine(receiver(), sender(), monitors=[Forwards]) as engine:
        world.publish("m1")
        world.wait(lambda: numbers(world) == [1])
        (held,) = world.hold_at("dl.tx.discard")
        with pytest.raises(NotDone, match="E8310 .* Their sends leave with it, unless the engine stops before"):
            engine.replay_dead_letters([1], 0.05)
        held.wait_reached()
        with pytest.raises(NotDone, match="E8311 dead letter 1"):
            engine.replay_dead_letters([1])
        held.open()
        world.wait_for("1:m1")
        assert engine.checkpoint()
        with pytest.raises(UsageError, match="E2021 dead letter 1"):
            engine.replay_dead_letters([1])
        engine.discard_dead_letters([1])
    assert len(world.ids()) == 1


def test_a_paused_receiver_takes_nothing_back_neither_later(world, script):
    engine = failing(world, script, "a")
    engine.pause("in")
    with pytest.raises(NotDone, match=r"E8310 dead letters: are not back: receiver in \(paused\)"):
        engine.replay_dead_letters([1], 0.05)
    engine.resume("in")
    world.publish("z")
    world.wait(lambda: script.of("Keeps") == ["z"])
    assert numbers(world) == [1]


def test_a_receiver_that_ends_answers_what_waits_and_nothing_that_was_withdrawn(world, script):
    engine = failing(world, script, "a")
    engine.pause("in")
    part, answers = engine.receivers["in"], []
    one, other = (
        Returning([([1], message("a"))], lambda back, name=name: answers.append((name, back))) for name in "ab"
    )
    part.bring_back(one)
    part.bring_back(other)
    assert (part.withdraw(one), part.withdraw(one)) == (True, False)
    engine.stop()
    assert (answers, part.withdraw(other)) == ([("b", ())], False)


def test_a_broker_that_is_away_keeps_nothing_from_coming_back(world, script):
    engine = failing(world, script, "a")
    world.broker.down = True
    world.wait(lambda: engine.status().not_ready())
    assert engine.replay_dead_letters([1]) == [1]
    world.wait(lambda: script.of("Keeps") == ["a"])


def test_two_who_want_the_same_letter_bring_it_back_once(world, script):
    engine = failing(world, script, "a")
    (held,) = world.hold_at("dl.tx.discard")
    back = []
    first = threading.Thread(target=lambda: back.extend(engine.replay_dead_letters([1])))
    first.start()
    held.wait_reached()
    for act in (engine.replay_dead_letters, engine.discard_dead_letters):
        with pytest.raises(NotDone, match="E8311 dead letter 1: is just being brought back, discarded or sent"):
            act([1])
    held.open()
    first.join(PATIENCE_S)
    with pytest.raises(UsageError, match="E2021 dead letter 1"):
        engine.replay_dead_letters([1])
    world.publish("z")
    world.wait(lambda: script.of("Keeps")[-1:] == ["z"])
    assert (back, script.of("Keeps")) == ([1], ["a", "z"])


def test_one_that_cannot_go_back_keeps_the_others(world, script):
    script.message = fails_on_bad
    parts = [receiver(), receiver("other", BEST_EFFORT)], [monitor(Keeps, on_error="dead_letter")]
    with world.engine(*parts[0], monitors=parts[1]) as engine:
        world.publish("bad")
        world.wait(lambda: numbers(world) == [1])
        world.publish("bad", to="queue:other")
        world.wait(lambda: numbers(world) == [1, 2])
        for wanted, code in (([1, 2], "E2023 dead letter 2"), ([1, 7], "E2021 dead letter 7")):
            with pytest.raises(UsageError, match=code):
                engine.replay_dead_letters(wanted)
        assert numbers(world) == [1, 2]
        engine.discard_dead_letters([2, 7])
        assert numbers(world) == [1]


def test_letters_of_a_removed_part_cannot_go_back(world, script):
    script.message = fails_on_all
    with world.engine(monitors=[monitor(Keeps, on_error="dead_letter")]) as engine:
        engine.add_receiver(receiver("in", EXACTLY_ONCE))
        world.publish("a")
        world.wait(lambda: numbers(world) == [1])
        engine.remove("in")
        wait_until(lambda: engine.removed("in"))
        with pytest.raises(UsageError, match="E2023 dead letter 1: .* receiver 'in' does not exist any more"):
            engine.replay_dead_letters([1])


def test_without_a_store_there_are_none(no_store):
    with no_store.engine(receiver("in", BEST_EFFORT), monitors=[Hears]) as engine:
        for act in (engine.replay_dead_letters, engine.discard_dead_letters):
            with pytest.raises(UsageError, match="E2011 engine world: has no store"):
                act([1])


def test_by_the_control_socket(world, script):
    engine = failing(world, script, "a", "b")
    at = sockets_of(engine.settings)
    assert ask(at, Replay([1], PATIENCE_S)) == {"numbers": [1]}
    assert ask(at, Discard([2])) == {"numbers": [2]}
    assert numbers(world) == []
    world.wait(lambda: script.of("Keeps") == ["a"])


@pytest.fixture
def command(world, tmp_path, monkeypatch, capsys, logs):
    """Run `correlator deadletter` on the engine; one request names at most two dead letters.

    `logs` keeps the lines of the engine's log out of the output.
    """
    monkeypatch.setattr(deadletter, "MOST_NUMBERS", 2)
    file = tmp_path / "world.yaml"
    file.write_text(f'name: world\nstore: "{world.store}"\nmonitors: [{{type: "tests.runtime.flows:Keeps"}}]\n')

    def execute(act, *arguments):
        status = main.execute(["deadletter", act, str(file), *arguments])
        return status, "".join(capsys.readouterr())

    return execute


def test_many_letters_of_few_messages_bring_each_message_back_once(world, script, command):
    engine = failing(world, script, "a", "b", monitors=(Keeps, Hears))
    assert [row.letter.number for row in inspect.dead_letters(world.store)] == [1, 1, 2, 2]
    assert engine.replay_dead_letters([1]) == [1]
    assert command("replay", "--all") == (0, "3 replayed\n")
    world.publish("z")
    world.wait(lambda: script.of("Hears")[-1:] == script.of("Keeps")[-1:] == ["z"])
    assert (script.of("Keeps"), script.of("Hears")) == (["a", "a", "b", "z"],) * 2
    assert numbers(world) == []


def test_a_message_with_more_letters_than_a_request_names_comes_back_once(world, script, command):
    failing(world, script, "a", "b", monitors=(Keeps, Hears, AlsoHears))
    assert command("replay", "--all") == (0, "6 replayed\n")
    world.publish("z")
    world.wait(lambda: [script.of(name)[-1:] for name in ("Keeps", "Hears", "AlsoHears")] == [["z"]] * 3)
    assert script.of("Keeps") == script.of("Hears") == script.of("AlsoHears") == ["a", "b", "z"]
    assert numbers(world) == []


def test_if_one_of_many_letters_cannot_go_back_none_does(world, script, command):
    script.message = fails_on_all
    parts = receiver(), receiver("other", BEST_EFFORT)
    with world.engine(*parts, monitors=[monitor(Keeps, on_error="dead_letter")]):
        world.publish("a", "b", "c")
        world.wait(lambda: numbers(world) == [1, 2, 3])
        world.publish("d", to="queue:other")
        world.wait(lambda: numbers(world) == [1, 2, 3, 4])
        status, told = command("replay", "--all")
        assert (status, told.split(" (")[0]) == (2, "E2023 dead letter 4:")
        assert numbers(world) == [1, 2, 3, 4]
        assert command("discard", "--all", "--yes") == (0, "4 discarded\n")
        assert numbers(world) == []


@pytest.mark.parametrize(
    ("failure", "status", "told"),
    [
        (TimeoutError("timed out"), 4, "E7050 .*: timed out. .*repeat the command"),
        (PermissionError(13, "denied"), 4, "E7050 .*belongs to another user"),
        (ConnectionRefusedError(111, "refused"), 5, "E3201 .*is owned by"),
    ],
)
def test_an_engine_that_does_not_answer_is_told_apart_from_another_owner(
    world, script, command, monkeypatch, failure, status, told
):
    def ask(place, *_):
        raise asking._no_answer(str(place[0]), failure) from failure

    monkeypatch.setattr(deadletter, "ask", ask)
    failing(world, script, "a")
    ended, text = command("replay", "1")
    assert (ended, bool(re.match(told, text))) == (status, True), text
