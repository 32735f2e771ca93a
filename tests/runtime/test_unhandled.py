"""Messages that no monitor listens for: counted, warned of, and kept where that is asked for."""

import importlib
import sys

import pytest

from correlator import Monitor, on
from correlator.errors import ConfigError
from correlator.events import Message
from correlator.runtime.monitor_code import application_of
from correlator.storage import deadletters, inspect
from correlator.storage.inspect import Selection
from correlator.testing.memory import MemoryBroker
from correlator.testing.store import Disk
from tests.runtime.flows import Hears, Idles, Keeps, Note, Watches
from tests.runtime.stepped import stepped, work
from tests.runtime.test_failures import ORDER
from tests.runtime.world import APP_CONTROLLED, AT_LEAST_ONCE, BEST_EFFORT, EXACTLY_ONCE, monitor, receiver

WARNING = "W5410 messages arrive that no monitor listens for"


class Notes(Monitor):
    """Listens for what no receiver delivers."""

    @on(Note)
    def note(self, note: Note) -> None: ...


def warnings(logs):
    return [(one["receiver"], one["count"], one["last"]) for one in logs if one["event"] == WARNING]


def handled_all(world, engine, count):
    """Every message is acknowledged, and none waits."""
    world.wait(lambda: engine.status().received == count)
    world.wait(lambda: world.broker.unacknowledged("queue:in") == world.broker.waiting("queue:in") == 0)
    world.wait(lambda: all(thread.idle for thread in engine.contexts.values()))


@pytest.mark.parametrize("reliability", [EXACTLY_ONCE, AT_LEAST_ONCE, BEST_EFFORT])
def test_by_default_they_are_counted_and_warned_of(world, reliability, logs):
    with world.engine(receiver("in", reliability), monitors=[Watches]) as engine:
        for number in range(5):
            world.publish(f"m{number}")
            handled_all(world, engine, number + 1)
        world.wait(lambda: engine.status().unhandled == {"in": 5})
    assert warnings(logs) == [("in", 1, "Message"), ("in", 2, "Message"), ("in", 4, "Message")]
    assert world.dead_letters() == []


def test_an_engine_without_a_store_counts_them_too(no_store, logs):
    with no_store.engine(receiver("in", BEST_EFFORT, unhandled="dead_letter"), monitors=[Watches]) as engine:
        no_store.publish("m1")
        no_store.wait(lambda: engine.status().unhandled == {"in": 1})
    assert warnings(logs) == [("in", 1, "Message")]


def test_what_is_to_be_ignored_is_not_counted(world, logs):
    with world.engine(receiver(unhandled="ignore"), monitors=[Watches]) as engine:
        world.publish("m1")
        handled_all(world, engine, 1)
        assert engine.status().unhandled == {}
    assert warnings(logs) == []


def test_what_is_handled_is_not_counted(world, script, logs):
    with world.engine(receiver(event=ORDER), monitors=[Keeps, monitor(Watches, context="other")]) as engine:
        world.publish('{"id": 1}', "not JSON")
        world.wait(lambda: script.of("Keeps") == ["order 1"])
        handled_all(world, engine, 2)
        assert engine.status().unhandled == {"in": 0}
    assert warnings(logs) == []


def unhandled_letters(world):
    return [row.letter for row in inspect.dead_letters(world.store) if row.letter.kind == "unhandled"]


@pytest.mark.parametrize("contexts", [["main"], ["main", "other", "third"]])
def test_as_dead_letters_they_are_kept_once_and_come_back(any_world, script, contexts):
    monitors = [monitor(Watches, context=name) for name in contexts]
    settings = receiver(unhandled="dead_letter")
    with any_world.engine(settings, monitors=monitors) as engine:
        any_world.publish("m1", "m2", "m3")
        any_world.wait(lambda: len(any_world.dead_letters()) == 3)
        assert engine.status().totals()["dead letters"] == 3
    letters = unhandled_letters(any_world)
    assert [(one.origin, one.receiver, one.number, one.message.body) for one in letters] == [
        ("in", "in", number, f"m{number}".encode()) for number in (1, 2, 3)
    ]
    assert letters[0].reason.startswith("E5503 receiver in: no monitor listens for this Message.")

    assert deadletters.replay(any_world.store, Selection()) == 3
    with any_world.engine(settings, monitors=[*monitors, Hears]):
        any_world.wait(lambda: script.of("Hears") == ["m1", "m2", "m3"])
    assert any_world.dead_letters() == []


def test_a_pipeline_leaves_none(no_store):
    settings = receiver("in", BEST_EFFORT, unhandled="dead_letter")
    engine = no_store.engine(settings, processors=[Idles()])
    with pytest.raises(ConfigError, match="E1069 receiver 'in'.unhandled: dead_letter needs a monitor"):
        engine.start()


def test_an_engine_that_code_made_says_at_its_start_what_nobody_listens_for(world, logs):
    """The same as `lint` says of a file."""
    parts = receiver("in", event=ORDER), receiver("also", APP_CONTROLLED), receiver("third", unhandled="ignore")
    with world.engine(*parts, monitors=[Notes]):
        pass
    told = [one["event"] for one in logs if one["event"].startswith("W153")]
    heard = "Monitors listen for: Note."
    assert [one.partition(heard)[0] for one in told] == [
        "W1530 receiver 'in': delivers Order, and no monitor listens for it. ",
        "W1530 receiver 'also': delivers Message, since it has no 'event', and no monitor listens for Message. ",
        (
            "W1531 receiver 'also': APP_CONTROLLED stops after its first batch: no monitor calls "
            "acknowledge_and_resume() for it. Listen for ReceivingSuspended, and call it."
        ),
    ]


@pytest.mark.parametrize("source", ["x = '\0'", f"x = {'-' * 100_000}1", "x = '\udcff'", "x = (", ""])
def test_code_that_cannot_be_read_any_more_may_do_everything(source, tmp_path, monkeypatch):
    """Its file has changed since it was imported. That is no reason not to start."""
    file = tmp_path / "changing.py"
    file.write_text("from correlator import Monitor\n\n\nclass Changing(Monitor):\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "changing", raising=False)
    cls = importlib.import_module("changing").Changing
    file.write_bytes(source.encode(errors="surrogateescape") * 3)
    assert not application_of((cls,)).told_all


def checkpoint(engine):
    engine.checkpointer.ask()
    for actor in (engine.checkpointer, engine.writer):
        actor.step()


def test_what_one_context_left_before_a_crash_is_decided_by_the_other_afterwards(script):
    """One context is far ahead at the checkpoint; the others pass the messages in the next life."""
    disk, broker = Disk(), MemoryBroker()
    settings = receiver(unhandled="dead_letter", event=ORDER)
    contexts = {"ahead": Watches, "behind": Hears, "third": Watches}
    monitors = tuple(monitor(cls, context=name) for name, cls in contexts.items())
    broker.publish("queue:in", [Message(b'{"id": 1}'), Message(b'{"id": 2}')])
    first = stepped(disk, broker, settings, monitors=monitors)
    for _ in range(20):
        for actor in first.actors():
            if actor.name not in ("context-behind", "context-third"):
                actor.step()
    assert first.contexts["ahead"].idle
    assert first.contexts["behind"].queue.backlog("in") == 2
    checkpoint(first)
    assert disk.recovered().checkpoint == 1
    assert disk.dead_letters == []

    second = stepped(disk, broker, settings, monitors=tuple(monitor(Watches, context=name) for name in contexts))
    work(second)
    checkpoint(second)
    assert second.status().unhandled == {"in": 2}
    assert [letter.number for letter in disk.dead_letters] == [1, 2]


def test_what_a_context_handled_that_is_gone_becomes_no_letter(script):
    """It was far ahead of the others; and these take more than one life to come so far."""
    disk, broker = Disk(), MemoryBroker()
    settings = receiver(unhandled="dead_letter")
    behind = monitor(Watches, context="behind")
    broker.publish("queue:in", [Message(b"m1"), Message(b"m2")])
    first = stepped(disk, broker, settings, monitors=(behind, monitor(Hears, context="ahead")))
    for _ in range(20):
        for actor in first.actors():
            if actor.name != "context-behind":
                actor.step()
    checkpoint(first)
    assert (script.of("Hears"), first.contexts["behind"].queue.backlog("in")) == (["m1", "m2"], 2)

    stepped(disk, broker, settings, monitors=(behind,))  # is killed before its first checkpoint
    for _ in range(2):
        engine = stepped(disk, broker, settings, monitors=(behind, monitor(Watches, context="renamed")))
        checkpoint(engine)
        work(engine)
    broker.publish("queue:in", [Message(b"m3")])
    work(engine)
    checkpoint(engine)
    assert [letter.number for letter in disk.dead_letters] == [3]


@pytest.mark.parametrize("before", ["warn", "ignore"])
def test_letters_begin_with_what_is_received_after_they_were_asked_for(before, logs):
    """Nobody noted before which context has handled what; a context may be gone as well."""
    disk, broker = Disk(), MemoryBroker()
    monitors = tuple(monitor(Watches, context=name) for name in ("a", "b"))
    broker.publish("queue:in", [Message(b"m1"), Message(b"m2")])
    first = stepped(disk, broker, receiver(unhandled=before), monitors=monitors)
    for _ in range(20):
        for actor in first.actors():
            if not actor.name.startswith("context-"):
                actor.step()
    assert [first.contexts[name].queue.backlog("in") for name in "ab"] == [2, 2]
    said = "messages that no monitor listens for become dead letters, except those received before"
    for expected in ([], [3], [3, 4]):
        engine = stepped(disk, broker, receiver(unhandled="dead_letter"), monitors=monitors)
        work(engine)
        checkpoint(engine)
        assert [letter.number for letter in disk.dead_letters] == expected
        broker.publish("queue:in", [Message(b"more")])
        work(engine)
    assert [(one["receiver"], one["after"]) for one in logs if one["event"] == said] == [("in", 2)]


def test_what_was_undecided_is_forgotten_while_letters_are_not_asked_for(script):
    """A context that has handled all may be gone when they are asked for again."""
    disk, broker = Disk(), MemoryBroker()
    keeps = receiver(unhandled="dead_letter")
    monitors = tuple(monitor(Watches, context=name) for name in ("a", "b"))
    broker.publish("queue:in", [Message(b"m1")])
    first = stepped(disk, broker, keeps, monitors=monitors)
    for _ in range(20):
        for actor in first.actors():
            if actor.name != "context-b":
                actor.step()
    checkpoint(first)
    assert first.contexts["b"].queue.backlog("in") == 1
    assert b"unhandled" in b"".join(disk.state.values())
    second = stepped(disk, broker, receiver(unhandled="warn"), monitors=monitors)
    checkpoint(second)
    third = stepped(disk, broker, keeps, monitors=monitors)
    assert third.parts.unhandled["in"].take_changes() == []
