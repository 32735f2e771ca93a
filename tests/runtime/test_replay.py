"""What was recorded in an input log is done again, to the byte, without any connection (docs/rules.md, section A7)."""

import contextlib
import functools
import os
import socket
import sqlite3
import stat
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from correlator.core.tape import CutTaken, Start
from correlator.errors import ConfigError, RecoveryRefused, UsageError
from correlator.events import Message
from correlator.runtime import inputlog
from correlator.runtime.comparison import compare_sends, line_of
from correlator.runtime.inputlog import InputLog, read_log
from correlator.runtime.recording import replayable
from correlator.runtime.replay import Replayed, replay
from correlator.runtime.rerun import rerun
from correlator.settings import EngineSettings
from correlator.storage import inspect
from tests.runtime.flows import Hears, Keeps
from tests.runtime.replayed import Asks, Audits, Counts, Follows
from tests.runtime.test_poison import Dies, Pipeline
from tests.runtime.test_unhandled import Notes
from tests.runtime.world import (
    APP_CONTROLLED,
    AT_LEAST_ONCE,
    BEST_EFFORT,
    PATIENCE_S,
    Queues,
    World,
    monitor,
    numbered,
    receiver,
    sender,
    the_monitor,
)

COUNT = 60
COUNTS, AUDITS = f"{Counts.__module__}:{Counts.__name__}", f"{Audits.__module__}:{Audits.__name__}"


def repeated(path: Path) -> Replayed:
    """Replay a log; a rerun of the same code gives the same."""
    again, now = replay(path), rerun(path)
    assert compare_sends(map(line_of, again.outputs), map(line_of, now.outputs), [])[1] == []
    assert now.state == again.state
    assert sorted(one.reason for one in now.dead_letters) == sorted(one.reason for one in again.dead_letters)
    for name in ("events", "timers", "number", "in_order", "failure"):
        assert getattr(now, name) == getattr(again, name)
    return again


def key(one: tuple[Any, ...]) -> Any:
    return one[1]["uniqueMessageId"]


@pytest.fixture
def nothing_opens(monkeypatch: pytest.MonkeyPatch) -> Any:
    """From its call on nothing may be opened."""

    def refuse(*_: object, **__: object) -> Any:
        raise AssertionError("a connection was opened")

    def begin() -> None:
        monkeypatch.setattr(socket, "socket", refuse)
        monkeypatch.setattr(sqlite3, "connect", refuse)

    return begin


def logs_of(tmp_path: Path) -> list[Path]:
    return sorted(tmp_path.glob("input.log.*"), key=lambda path: int(path.suffix[1:]))


def both(**options: Any) -> dict[str, Any]:
    """Two contexts that talk to each other."""
    fields = {"on_error": "dead_letter"}
    return {"monitors": [monitor(Counts, **fields), monitor(Audits, context="audit", **fields)], **options}


def settled(world: World) -> bool:
    return not world.broker.waiting("queue:in") and not world.received_rows() and not world.outbox_rows()


def as_sent(one: Message) -> tuple[Any, ...]:
    return one.body, dict(one.properties), one.key


# --- the same again ---


@pytest.mark.kill9
def test_a7_1_z15_lives_that_were_killed_are_repeated_to_the_byte(children, tmp_path, nothing_opens):
    """Two contexts, timers, spawned monitors, dead letters, and a SIGKILL at various points, then a life to the end."""
    queues = Queues(tmp_path)
    queues.publish(numbered(COUNT))
    order = {
        "store": f"sqlite:///{tmp_path / 'engine.db'}",
        "broker": queues.url,
        "wanted": COUNT - 6,
        "batch": 1,
        "interval": 0.001,
        "monitor": COUNTS,
        "audit": AUDITS,
        "on_error": "dead_letter",
        "input_log": str(tmp_path / "input.log"),
    }
    for point, hit in (("ck.tx.meta", 3), ("ck.release.before", 2), ("tx.publish.after", 2), ("rec.on_conclude", 1)):
        assert children.run(**order, kill=point, hit=hit)["killed"]
    assert children.run(**order)["exit"] == 0
    sent = [as_sent(one) for one in queues.read()]
    checkpoint = inspect.checkpoints(order["store"])[0]
    letters = [row.letter.message.body for row in inspect.dead_letters(order["store"])]
    nothing_opens()
    lives = [replay(path) for path in logs_of(tmp_path)]
    assert [life.in_order for life in lives] == [False] * 4 + [True]
    assert (lives[-1].number, lives[-1].digest) == (checkpoint.number, checkpoint.digest)
    committed = [next(read_log(path)).checkpoint for path in logs_of(tmp_path)[1:]] + [checkpoint.number]
    outputs, dead = [], []
    for life, last in zip(lives, committed, strict=True):
        outputs += [as_sent(one.sent.message) for one in life.outputs if one.checkpoint <= last]
        dead += [letter.message.body for letter in life.dead_letters] if life is lives[-1] else []
    assert outputs == list({key(one): one for one in sent}.values())
    assert len(outputs) == COUNT - 6
    assert set(dead) <= set(letters)
    assert len(letters) == 6
    assert sum(life.timers for life in lives) > 0


def test_a7_1_state_sends_and_dead_letters_of_a_life(any_world, tmp_path):
    engine = any_world.engine(receiver(), sender(), input_log=str(tmp_path / "input.log"), **both())
    any_world.publish(*numbered(COUNT))
    waits = (COUNT - COUNT // 10) // 3
    with engine:
        counts = the_monitor(engine, Counts)
        any_world.wait(lambda: settled(any_world) and len(counts.late) == waits and counts.ticks)
    checkpoint = inspect.checkpoints(any_world.store)[0]
    letters = [row.letter for row in inspect.dead_letters(any_world.store)]
    (log,) = logs_of(tmp_path)
    again = repeated(log)
    assert (again.number, again.digest, again.in_order) == (checkpoint.number, checkpoint.digest, True)
    assert [as_sent(one.sent.message) for one in again.outputs] == [
        as_sent(one) for one in any_world.broker.received("queue:out")
    ]
    assert [(letter.reason, letter.message) for letter in again.dead_letters] == [
        (letter.reason, letter.message) for letter in letters
    ]
    assert again.events > 2 * COUNT
    assert again.timers > waits
    assert stat.S_IMODE(log.stat().st_mode) == 0o600


def test_a7_1_a_life_that_begins_with_state_and_waiting_messages(world, tmp_path):
    """The log begins with everything: state in tables, spawned monitors, timers, a queue, what was received later."""
    world.publish(*numbered(20))
    with world.engine(receiver(), sender(), **both()):
        world.wait(lambda: settled(world))
    crashed = world.engine(receiver(), sender(), interval=3600.0, **both())
    crashed.start()
    world.publish(*numbered(15, first=21))
    world.wait(lambda: world.received_rows() == 15)
    world.crash(crashed)
    with world.engine(receiver(), sender(), input_log=str(tmp_path / "input.log"), **both()):
        world.publish(*numbered(15, first=36))
        world.wait(lambda: len(world.sent()) >= 45 and settled(world))
    checkpoint = inspect.checkpoints(world.store)[0]
    again = repeated(logs_of(tmp_path)[0])
    assert (again.number, again.digest) == (checkpoint.number, checkpoint.digest)
    assert again.events >= 60


def test_a7_3_status_events_flushes_and_best_effort(no_store, tmp_path):
    """Notices of the engine are in the log, and the numbers that requests were given."""
    path = str(tmp_path / "input.log")
    parts = (receiver("in", BEST_EFFORT), sender("quick", BEST_EFFORT))
    with no_store.engine(*parts, monitors=[Asks, monitor(Asks, context="second")], input_log=path):
        no_store.publish(*numbered(20))
        no_store.wait(lambda: len(no_store.sent("queue:quick")) == 80)
    again = repeated(logs_of(tmp_path)[0])
    assert sorted(one.sent.message.body.decode() for one in again.outputs) == sorted(no_store.sent("queue:quick"))
    names = {
        entry.event[0]
        for record in read_log(logs_of(tmp_path)[0])
        if hasattr(record, "taken") and hasattr(record, "fired")
        for entry in record.taken.entries
        if entry.event
    }
    assert {"correlator.events:SenderFlushed", "correlator.events:ReceiverStatus"} <= names


def test_a7_3_channels_that_a_monitor_joins_and_leaves(world, tmp_path):
    """In one life, and over the restart in between."""
    parts = (receiver(), sender())
    for life, bodies in enumerate([("a", "follow", "b"), ("c", "leave", "d", "follow again", "e", "leave again")]):
        path = str(tmp_path / f"life{life}.log")
        with world.engine(*parts, monitors=[Follows], input_log=path) as engine:
            world.publish(*bodies)
            world.wait(lambda: settled(world))
            follows = the_monitor(engine, Follows)
    assert (follows.heard, follows.refused) == (["b", "c", "e"], ["E8001 a", "E8001 d"])
    checkpoint = inspect.checkpoints(world.store)[0]
    again = repeated(next(tmp_path.glob("life1.log*")))
    assert (again.number, again.digest) == (checkpoint.number, checkpoint.digest)


def test_a7_3_life_cycle_methods(world, script, tmp_path):
    """They are called when inputs are recorded, and again by the replay: here each sends."""
    script.hook = lambda keeps, name: keeps.send(name.encode(), to="out")
    parts = (receiver(), sender())
    hooks = []
    for life in range(2):
        with world.engine(*parts, monitors=[Keeps], input_log=str(tmp_path / f"life{life}.log")):
            world.wait(lambda: world.sent() and settled(world))
        hooks.append(world.sent()[sum(map(len, hooks)) :])
        checkpoint = inspect.checkpoints(world.store)[0]
        again = repeated(next(tmp_path.glob(f"life{life}.log*")))
        assert (again.number, again.digest) == (checkpoint.number, checkpoint.digest)
    assert hooks == [["onload"], ["on_begin_recovery", "on_conclude_recovery"]]


def test_a7_3_acknowledgements_by_the_application(no_store, script, tmp_path):
    refused: list[str] = []

    def acknowledge(hears: Any, notice: Any) -> None:
        hears.acknowledge_and_resume(notice.receiver)
        try:
            hears.acknowledge_and_resume(notice.receiver)
        except UsageError as error:
            refused.append(str(error))

    script.suspended = acknowledge
    path = str(tmp_path / "input.log")
    with no_store.engine(receiver("in", APP_CONTROLLED, max_batch_size=3), monitors=[Hears], input_log=path):
        no_store.publish(*numbered(7))
        no_store.wait(
            lambda: not no_store.broker.waiting("queue:in") and not no_store.broker.unacknowledged("queue:in")
        )
    live, heard = list(refused), script.of("Hears")
    refused.clear()
    script.heard.clear()
    replay(logs_of(tmp_path)[0])
    assert (refused, script.of("Hears")) == (live, heard)
    assert len(live) >= 3


def test_a_log_has_its_beginning_before_any_method_of_a_monitor_is_called(world, script, tmp_path, monkeypatch):
    """A process that such a method ends leaves a log that can be replayed, however slow the thread is that writes it."""
    start, waiting, begins = InputLog.start, [], []
    monkeypatch.setattr(InputLog, "start", lambda log: waiting.append(log))

    def called(_keeps: Any, _name: str) -> None:
        begins.append(next(read_log(logs_of(tmp_path)[-1]), None))
        while waiting:
            start(waiting.pop())

    script.hook = called
    for _ in range(2):
        with world.engine(receiver(), monitors=[Keeps], input_log=str(tmp_path / "input.log")):
            pass
    assert [type(one) for one in begins] == [Start] * 3


def test_what_nobody_handles_is_so_in_a_replay(world, script, tmp_path):
    settings = receiver(event="tests.runtime.flows:Order", unhandled="dead_letter")
    contexts = [monitor(Follows), monitor(Notes, context="second")]
    with world.engine(settings, monitors=contexts, input_log=str(tmp_path / "input.log")) as engine:
        for number in range(20):
            world.publish(f'{{"id": {number}}}')
            engine.checkpoint()
        world.wait(lambda: len(world.dead_letters()) == 20)
    letters = {row.letter.number: (row.letter.reason, row.letter.message) for row in inspect.dead_letters(world.store)}
    again = repeated(logs_of(tmp_path)[0])
    assert sorted(letters) == sorted(letter.number for letter in again.dead_letters) == list(range(1, 21))
    assert {letter.number: (letter.reason, letter.message) for letter in again.dead_letters} == letters
    assert again.in_order


def test_a7_3_dynamic_parts_replay(world, script, tmp_path):
    """Senders and receivers that code adds and removes while it runs, also from within a handler."""
    path = str(tmp_path / "input.log")
    engine = world.engine(receiver(), sender(), monitors=[Keeps], input_log=path)

    def forward(keeps: Any, one: Message) -> None:
        if one.body == b"m1":
            engine.add_sender(sender("late"))
        keeps.send(one.body, to="late")

    script.message = forward
    with engine:
        world.publish(*numbered(3))
        world.wait(lambda: len(world.sent("queue:late")) == 3)
        engine.add_receiver(receiver("other", AT_LEAST_ONCE))
        world.publish(*numbered(2, first=4), to="queue:other")
        world.wait(lambda: len(world.sent("queue:late")) == 5)
        engine.remove("other")
        world.wait(lambda: engine.removed("other"))
        engine.add_receiver(receiver("other", AT_LEAST_ONCE))
        world.publish(*numbered(2, first=6), to="queue:other")
        world.wait(lambda: len(world.sent("queue:late")) == 7 and settled(world))
    checkpoint = inspect.checkpoints(world.store)[0]
    script.message = lambda keeps, one: keeps.send(one.body, to="late")
    again = repeated(logs_of(tmp_path)[0])
    assert (again.number, again.digest) == (checkpoint.number, checkpoint.digest)
    assert [one.sent.message.body.decode() for one in again.outputs] == world.sent("queue:late")


def test_a7_1_a_handler_that_stopped_the_engine_fails_again(world, script, tmp_path):
    def fail(keeps: Any, one: Message) -> None:
        if one.body == b"m3":
            raise ValueError("here")

    script.message = fail
    engine = world.engine(receiver(), sender(), monitors=[Keeps], input_log=str(tmp_path / "input.log"))
    engine.start()
    world.publish(*numbered(5))
    world.wait(lambda: engine.failure)
    engine.stop()
    assert "raised ValueError: here" in replay(logs_of(tmp_path)[0]).failure
    script.message = lambda keeps, one: None
    with pytest.raises(RecoveryRefused, match=r"E4321 .*a handler that failed does not fail"):
        replay(logs_of(tmp_path)[0])


def test_a7_1_a_message_that_was_quarantined(world, script, tmp_path):
    def die(keeps: Any, one: Message) -> None:
        if one.body == b"m3":
            raise Dies

    script.message = die
    world.publish(*numbered(5))
    for number in range(4):
        path = str(tmp_path / f"life{number}.log")
        engine = world.engine(receiver(), sender(), monitors=[Keeps], input_log=path)
        with contextlib.suppress(Dies):
            engine.start()
            world.wait(functools.partial(lambda engine: engine.failure or settled(world), engine))
        engine.stop(drain=engine.failure is None)
    script.message = lambda keeps, one: None
    again = repeated(tmp_path / "life3.log.1")
    assert [letter.kind for letter in again.dead_letters] == ["poison"]
    assert again.digest == inspect.checkpoints(world.store)[0].digest


# --- what differs, and what is no log ---


def a_log(world: World, tmp_path: Path) -> Path:
    with world.engine(receiver(), sender(), monitors=[Keeps], input_log=str(tmp_path / "input.log")) as engine:
        world.publish(*numbered(5))
        world.wait(lambda: settled(world) and engine.checkpointer.counters.taken)
    return logs_of(tmp_path)[0]


def test_a7_1_code_that_does_something_else_is_told(world, script, tmp_path):
    path = a_log(world, tmp_path)

    def more(keeps: Any, one: Message) -> None:
        keeps.count += 1

    script.message = more
    with pytest.raises(RecoveryRefused, match=r"E4321 .*the replay differs after checkpoint \d+: checkpoint"):
        replay(path)


@pytest.mark.parametrize(
    ("recorded", "replayed", "told"),
    [
        (1, 0, "no handler asked for 1 of the recorded answers"),
        (1, 2, "a handler asked for something for which it did not ask in the recording"),
    ],
)
def test_a7_1_code_that_asks_for_less_or_more_is_told(no_store, script, tmp_path, recorded, replayed, told):
    def asks(times: int) -> Any:
        return lambda hears, one: [hears.request_flush("quick") for _ in range(times)]

    script.message = asks(recorded)
    parts = (receiver("in", BEST_EFFORT), sender("quick", BEST_EFFORT))
    with no_store.engine(*parts, monitors=[Hears], input_log=str(tmp_path / "input.log")):
        no_store.publish("m1")
        no_store.wait(lambda: script.of("Hears"))
    script.message = asks(replayed)
    with pytest.raises(RecoveryRefused, match=f"E4321 .*{told}"):
        replay(logs_of(tmp_path)[0])


def test_a7_1_other_settings_are_refused(world, tmp_path):
    path = a_log(world, tmp_path)
    same = world.engine(receiver(), sender(), monitors=[Keeps], interval=9.0).settings
    assert replay(path, same).in_order
    other = world.engine(receiver(), sender(), monitors=[Hears]).settings
    with pytest.raises(RecoveryRefused, match="E4322"):
        replay(path, other)


def test_a7_1_a_log_of_before_may_have_secrets(world, tmp_path):
    secret = {"password": "of-the-life"}
    settings = world.engine(receiver(options=secret), sender(options=secret), monitors=[Keeps]).settings
    before = EngineSettings(
        name=settings.name, receivers=settings.receivers, senders=settings.senders, monitors=settings.monitors
    )
    start = next(read_log(a_log(world, tmp_path)))
    log = InputLog(tmp_path / "older.log")
    log.append(msgspec.structs.replace(start, settings=msgspec.json.encode(before)))
    log.finish()
    assert replay(log.path, settings).failure == ""
    assert b"of-the-life" in log.path.read_bytes()
    assert b"of-the-life" not in replayable(settings)


def test_a7_1_each_start_has_a_log_of_its_own(world, tmp_path):
    for _ in range(3):
        with world.engine(receiver(), sender(), monitors=[Keeps], input_log=str(tmp_path / "input.log")):
            pass
    assert [path.name for path in logs_of(tmp_path)] == ["input.log.1", "input.log.2", "input.log.3"]
    assert all(replay(path).in_order for path in logs_of(tmp_path))


def test_a7_1_a_log_that_was_cut_anywhere_is_read_to_there(world, tmp_path):
    whole = a_log(world, tmp_path).read_bytes()
    everything = len(list(read_log(logs_of(tmp_path)[0])))
    cut = tmp_path / "cut.log"
    counts = []
    for size in range(len(inputlog.MAGIC), len(whole), 7):
        cut.write_bytes(whole[:size])
        counts.append(len(list(read_log(cut))))
    assert counts == sorted(counts)
    assert (counts[0], counts[-1]) == (0, everything - 1)
    assert not replay(cut).in_order


def test_a7_1_damage_is_refused(world, tmp_path):
    path = a_log(world, tmp_path)
    content = bytearray(path.read_bytes())
    content[len(inputlog.MAGIC) + 20] ^= 1
    path.write_bytes(content)
    with pytest.raises(RecoveryRefused, match=r"E4320 .* is damaged before byte \d+"):
        replay(path)


def test_a_log_of_an_older_format_says_who_reads_it(world, tmp_path):
    with world.engine(receiver(), sender(), monitors=[Keeps], input_log=str(tmp_path / "input.log")):
        pass
    (log,) = logs_of(tmp_path)
    log.write_bytes(b"correlator input log 1\n" + log.read_bytes()[len(inputlog.MAGIC) :])
    what = (
        r"E4320 .*input\.log\.1: is of format 1. This version reads format 2. Replay it with the version that wrote it"
    )
    with pytest.raises(RecoveryRefused, match=what):
        replay(log)


@pytest.mark.parametrize("content", [b"", b"something else that is no log at all", inputlog.MAGIC])
def test_a7_1_what_is_no_log_is_refused(tmp_path, content):
    path = tmp_path / "some.file"
    path.write_bytes(content)
    with pytest.raises(RecoveryRefused, match="E4323" if content == inputlog.MAGIC else "E4320"):
        replay(path)


def test_a7_1_a_log_that_is_not_there(tmp_path):
    with pytest.raises(UsageError, match=r"E2041 .*No such file"):
        replay(tmp_path / "none")


# --- the engine goes on ---


def test_a7_1_a_place_that_cannot_be_written_refuses_the_start(world, tmp_path):
    engine = world.engine(receiver(), sender(), monitors=[Keeps], input_log=str(tmp_path / "no" / "input.log"))
    with pytest.raises(UsageError, match="E2041"):
        engine.start()


def test_a7_1_a_full_disk_ends_the_log_and_not_the_engine(world, tmp_path, logs):
    path = str(tmp_path / "input.log")
    engine = world.engine(receiver(), sender(), monitors=[Keeps], input_log=path)
    with engine:
        with Path("/dev/full").open("wb") as full:
            os.dup2(full.fileno(), engine.parts.recording._log._file.fileno())
        world.publish(*numbered(5))
        world.wait(lambda: settled(world))
    assert [line["log_level"] for line in logs if line["event"].startswith("E2043")] == ["error"]


def test_a7_1_a_write_that_the_system_cuts_short_is_finished(tmp_path, monkeypatch):
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, content: write(descriptor, content[:7]))
    log = InputLog(tmp_path / "input.log")
    names = [f"receiver {number}" for number in range(10)]
    for name in names:
        log.append(inputlog.Forgotten(name))
    log.finish()
    assert [record.receiver for record in read_log(log.path)] == names


def test_a7_1_contexts_wait_while_the_log_is_behind(tmp_path):
    log = InputLog(tmp_path / "input.log")
    for number in range(inputlog.MOST_WAITING):
        assert not log.full
        log.append(inputlog.Forgotten(str(number)))
    assert log.full
    log.step()
    assert not log.full
    log.finish()
    assert len(list(read_log(log.path))) == inputlog.MOST_WAITING


def test_a7_1_a_context_is_held_while_the_log_is_full(world, tmp_path, script, monkeypatch):
    engine = world.engine(receiver(), sender(), monitors=[Keeps], input_log=str(tmp_path / "input.log"))
    with engine:
        with monkeypatch.context() as patch:
            patch.setattr(InputLog, "full", property(lambda _: True))
            world.publish(*numbered(5))
            world.wait(lambda: world.received_rows() == 5)
            assert engine.contexts["main"].step() == 0.05
            assert script.of("Keeps") == []
        world.wait(lambda: script.of("Keeps") == [f"m{number}" for number in range(1, 6)])


def test_a7_1_a_checkpoint_is_committed_only_when_the_log_has_its_cut(world, tmp_path, monkeypatch):
    engine = world.engine(receiver(), sender(), monitors=[Keeps], input_log=str(tmp_path / "input.log"))
    held, reached, write = threading.Event(), threading.Event(), InputLog._write

    def write_later(log, record):
        if isinstance(record, CutTaken):
            reached.set()
            assert held.wait(PATIENCE_S)
        write(log, record)

    with engine:
        assert engine.checkpoint()
        before = inspect.checkpoints(world.store)[0].number
        monkeypatch.setattr(InputLog, "_write", write_later)
        world.publish(*numbered(5))
        assert reached.wait(PATIENCE_S)
        assert inspect.checkpoints(world.store)[0].number == before
        assert not engine.checkpoint(0.2)
        held.set()
        assert engine.checkpoint()
    assert inspect.checkpoints(world.store)[0].number > before


def test_a_flush_ends_when_the_log_is_stopped(tmp_path):
    log = InputLog(tmp_path / "input.log")
    log.stop()
    log.flush()
    log.finish()


def test_a7_1_pipelines_are_refused(world, tmp_path):
    with pytest.raises(ConfigError, match=r"E2040 input_log: the engine has pipelines"):
        world.engine(receiver(), sender(), processors=[Pipeline("none")], input_log=str(tmp_path / "input.log"))


def test_a7_1_without_the_setting_nothing_is_recorded(world, tmp_path):
    with world.engine(receiver(), sender(), monitors=[Keeps]):
        world.publish(*numbered(3))
        world.wait(lambda: settled(world))
    assert logs_of(tmp_path) == []
