"""Poison: what a bad message, a failing handler and an impossible call do to a running engine (bad inputs 106 to 113)."""

import threading
from pathlib import Path

import msgspec
import pytest

from correlator.core import faults
from correlator.errors import HandlerFailed, MappingError, StoreError, UsageError
from correlator.events import Headers
from correlator.runtime import engine as engine_module
from correlator.storage import inspect
from correlator.testing.memory import MemoryBroker
from tests.runtime.flows import Forwards, Hears, Keeps
from tests.runtime.world import (
    AT_LEAST_ONCE,
    BEST_EFFORT,
    EXACTLY_ONCE,
    PATIENCE_S,
    message,
    monitor,
    numbered,
    receiver,
    sender,
    the_monitor,
)

ORDER = "tests.runtime.flows:Order"


def fails_on(body: str, error: BaseException):
    """A handler that changes state and sends before it fails at one message."""

    def handler(monitor, message):
        monitor.send(message.body, to="out")
        if message.body == body.encode():
            raise error

    return handler


# --- messages that cannot be mapped (rule Z8) ---


@pytest.mark.parametrize("reliability", [EXACTLY_ONCE, AT_LEAST_ONCE, BEST_EFFORT])
def test_z8_a_message_that_cannot_be_mapped_becomes_a_dead_letter(any_world, script, reliability, logs):
    with any_world.engine(receiver("in", reliability, event=ORDER), monitors=[Keeps]) as engine:
        any_world.publish('{"id": 1}', "not JSON", '{"id": "x"}', '{"id": 2}')
        any_world.wait(lambda: script.of("Keeps") == ["order 1", "order 2"])
        any_world.wait(lambda: any_world.broker.unacknowledged("queue:in") == any_world.broker.waiting("queue:in") == 0)
        any_world.wait(lambda: len(any_world.dead_letters()) == 2)
        assert engine.status().receivers["in"][1].dead_letters == 2
    letters = [row.letter for row in inspect.dead_letters(any_world.store)]
    assert [(one.kind, one.origin, one.message.body) for one in letters] == [
        ("mapping", "in", b"not JSON"),
        ("mapping", "in", b'{"id": "x"}'),
    ]
    assert [one.reason[:5] for one in letters] == ["E5101", "E5102"]
    told = [one for one in logs if one["event"] == "message cannot be mapped"]
    assert [(one["log_level"], one["unique_id"]) for one in told] == [("error", "not JSON"), ("error", '{"id": "x"}')]


def test_z8_on_mapping_error_drop_keeps_no_letter_but_says_so(world, script, logs):
    with world.engine(receiver(event=ORDER, on_mapping_error="drop"), monitors=[Keeps]) as engine:
        bad = message("not JSON", "")
        world.publish(msgspec.structs.replace(bad, headers=Headers(message_id="broker's 7")), '{"id": 1}')
        world.wait(lambda: script.of("Keeps") == ["order 1"])
        status = engine.status()
    assert (status.receivers["in"][1].unmapped, status.receivers["in"][1].dead_letters) == (1, 0)
    assert status.totals()["dead letters"] == 0
    assert world.dead_letters() == []
    (told,) = [one for one in logs if one["event"] == "message cannot be mapped"]
    assert (told["unique_id"], told["message_id"]) == (None, "broker's 7")


def test_z8_on_mapping_error_stop_acknowledges_nothing(world, script):
    engine = world.engine(receiver(event=ORDER, on_mapping_error="stop"), monitors=[Keeps])
    with engine:
        world.publish("not JSON", '{"id": 1}')
        world.wait(lambda: engine.failure is not None)
    assert isinstance(engine.failure, MappingError)
    assert engine.failure.code == "E5101"
    assert world.happened("acknowledged") == []
    with pytest.raises(MappingError):
        engine.raise_failure()


def test_71_a_message_beyond_the_limit(world, script):
    with world.engine(receiver(max_message_bytes=100), monitors=[Keeps]):
        world.publish(message("x" * 101, "big"), "small")
        world.wait(lambda: script.of("Keeps") == ["small"])
        (reason,) = world.dead_letters()
    assert reason == "E5001 receiver in: message of 101 bytes, the limit is 100."


def test_t32_a_stored_message_that_no_longer_maps_becomes_a_dead_letter_at_the_restart(any_world, script, gate):
    """The event type changed while messages waited in the store: the others are handled in order all the same."""
    script.message = lambda monitor, message: gate.wait(120)
    bodies = ['{"id": 1}', "not an order", '{"id": 3}']
    engine = any_world.engine(receiver(), monitors=[Keeps], interval=3600)
    with engine:
        any_world.publish(*bodies)
        any_world.wait(lambda: any_world.received_rows() == 3 and script.heard)
        gate.set()
        any_world.crash(engine)
    script.heard.clear()
    with any_world.engine(receiver(event=ORDER), monitors=[Keeps]) as engine:
        any_world.wait(lambda: script.of("Keeps") == ["order 1", "order 3"])
        assert engine.checkpoint()
        (row,) = inspect.dead_letters(any_world.store)
    assert row.letter.message.body == b"not an order"


# --- handlers that fail ---


def test_106_stop_stops_the_engine_and_no_checkpoint_holds_the_failed_handler(any_world, script):
    script.message = fails_on("bad", ValueError("no"))
    engine = any_world.engine(receiver(max_batch_size=1), sender(), monitors=[Keeps])
    with engine:
        any_world.publish("good", "bad", "after")
        any_world.wait(lambda: engine.failure is not None)
        with pytest.raises(HandlerFailed, match="E5500 monitor Keeps: handling Message raised ValueError: no"):
            engine.run_forever()
    script.message = lambda monitor, message: monitor.send(message.body, to="out")
    with any_world.engine(receiver(max_batch_size=1), sender(), monitors=[Keeps]) as engine:
        any_world.wait(lambda: the_monitor(engine, Keeps).bodies == ["good", "bad", "after"])
        any_world.wait_for("good", "bad", "after")


def test_106_a_checkpoint_that_is_waiting_takes_nothing_of_a_handler_that_fails(any_world, script, gate):
    """The checkpointer waits for the context's lock at the very moment when the handler raises."""

    def half_done(monitor, message):
        if message.body == b"bad":
            gate.wait(120)
            raise ValueError("after the state was changed")

    script.message = half_done
    engine = any_world.engine(receiver(), monitors=[Keeps], interval=3600)
    failing = threading.Event()
    original = engine._failed

    def late(actor, error):
        """The thread that fails is slow to tell: a cut could be taken meanwhile."""
        failing.set()
        engine.checkpointer.wait_answered(10**9, 0.3)
        original(actor, error)

    engine._failed = late
    with engine:
        any_world.publish("good", "bad")
        any_world.wait(lambda: script.of("Keeps") == ["good", "bad"])
        engine.checkpointer.ask()
        any_world.wait(lambda: engine.contexts["main"].context.cut_requested)
        gate.set()
        any_world.wait(lambda: engine.failure is not None)
    assert failing.is_set()
    assert inspect.checkpoints(any_world.store) == []
    script.message = lambda monitor, message: None
    with any_world.engine(receiver(), monitors=[Keeps]) as engine:
        any_world.wait(lambda: the_monitor(engine, Keeps).bodies == ["good", "bad"])


@pytest.mark.parametrize("on_error", ["skip", "dead_letter"])
def test_106_skip_and_dead_letter_go_on_without_a_trace(any_world, script, on_error, logs):
    script.message = fails_on("bad", ValueError("no"))
    parts = (receiver(), sender())
    with any_world.engine(*parts, monitors=[monitor(Keeps, on_error=on_error)]) as engine:
        any_world.publish("good", "bad", "after")
        any_world.wait_for("good", "after")
        assert the_monitor(engine, Keeps).bodies == ["good", "after"]
        assert engine.status().handler_failures == 1
        assert engine.status().to_dict()["handler_skips"] == (on_error == "skip")
        assert engine.status().totals()["dead letters"] == (on_error == "dead_letter")
        assert engine.checkpoint()
    letters = [row.letter for row in inspect.dead_letters(any_world.store)]
    expected = [("handler", "Keeps", b"bad")] if on_error == "dead_letter" else []
    assert [(one.kind, one.origin, one.message.body) for one in letters] == expected
    assert len([one for one in logs if one["event"].startswith("a handler failed")]) == 1


def test_106_a_dead_letter_of_a_handler_is_kept_once_over_crashes(world, script):
    """It is in the same commit as the progress: an engine that crashes before makes it again, not twice."""
    script.message = fails_on("bad", ValueError("no"))
    settings = [monitor(Keeps, on_error="dead_letter")]
    for interval in (3600.0, 3600.0, 0.02):
        engine = world.engine(receiver(), sender(), monitors=settings, interval=interval)
        with engine:
            world.publish("bad", "good") if not script.heard else None
            world.wait(lambda engine=engine: the_monitor(engine, Keeps).bodies == ["good"])
            if interval < 1:
                assert engine.checkpoint()
            world.crash(engine)
    assert len(world.dead_letters()) == 1


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()], ids=repr)
def test_107_what_is_no_exception_stops_the_engine(world, script, error):
    script.message = fails_on("bad", error)
    engine = world.engine(receiver(), sender(), monitors=[monitor(Keeps, on_error="skip")])
    with engine:
        world.publish("bad")
        world.wait(lambda: engine.failure is not None)
    assert engine.failure is error
    assert inspect.dead_letters(world.store) == []


def test_108_endless_recursion_stops_the_engine(world, script):
    def recurse(monitor, message):
        recurse(monitor, message)

    script.message = recurse
    engine = world.engine(receiver(), monitors=[Keeps])
    with engine:
        world.publish("a")
        world.wait(lambda: engine.failure is not None)
    assert "RecursionError" in str(engine.failure)


def test_111_many_sends_for_one_event_are_carried(world, script):
    """There is no limit on reliable sends of one handler but memory: they are one segment, and all of them arrive."""
    script.message = lambda monitor, message: [monitor.send(b"x", to="out") for _ in range(50_000)]
    with world.engine(receiver(), sender(), monitors=[Keeps]):
        world.publish("go")
        world.wait(lambda: len(world.sent()) == 50_000)


@pytest.mark.parametrize(
    ("asks", "code"),
    [
        (lambda monitor: monitor.send(object(), to="out"), "E5201"),
        (lambda monitor: monitor.send(b"x", to="nowhere"), "E8001"),
        (lambda monitor: monitor.send(b"x", to="channel:nowhere"), "E8001"),
    ],
    ids=["cannot become a message", "unknown sender", "unknown channel"],
)
def test_112_113_an_impossible_send_stops_the_engine_with_its_code(world, script, asks, code):
    script.message = lambda monitor, message: asks(monitor)
    engine = world.engine(receiver(), sender(), monitors=[Hears])
    with engine:
        world.publish("a")
        world.wait(lambda: engine.failure is not None)
    assert engine.failure.code == code
    assert world.sent() == []


def test_a_value_that_does_not_fit_its_annotation_stops_the_engine_at_the_cut(world, script):
    def spoil(monitor, message):
        monitor.count = "many"

    script.message = spoil
    engine = world.engine(receiver(), monitors=[Keeps])
    with engine:
        world.publish("a")
        world.wait(lambda: engine.failure is not None)
    assert engine.failure.code == "E4103"
    assert engine.failure.exit_status == 6


# --- threads that fail ---


@pytest.mark.parametrize(
    "point", ["rx.poll", "rx.tx.commit.before", "ck.snapshot", "ck.tx.commit.before", "tx.publish.before", "app.event"]
)
def test_a_failure_of_any_thread_stops_all_and_the_next_start_goes_on(world, script, point):
    """Whatever it is: nothing is acknowledged or sent any more, and recovery finds the truth."""
    script.message = lambda monitor, message: monitor.send(message.body, to="out")
    died = threading.Event()

    def passed(name):
        if name == point and not died.is_set():
            died.set()
            raise MemoryError(point)

    world.publish(*numbered(10))
    faults.install(passed)
    engine = world.engine(receiver(max_batch_size=3), sender(), monitors=[Keeps])
    with engine:
        world.wait(lambda: engine.failure is not None)
        with pytest.raises(MemoryError):
            engine.raise_failure()
    assert not [
        thread for thread in threading.enumerate() if thread.name.startswith(("receiver-", "sender-", "context-"))
    ]
    with world.engine(receiver(max_batch_size=3), sender(), monitors=[Keeps]) as engine:
        world.wait(lambda: the_monitor(engine, Keeps).count == 10)
        world.wait(lambda: len(world.sent()) == 10)
    assert sorted(world.sent()) == sorted(f"m{number}" for number in range(1, 11))


def test_a_checkpoint_that_is_waited_for_ends_when_the_engine_fails(world, script):
    script.message = fails_on("bad", ValueError("no"))
    engine = world.engine(receiver(), sender(), monitors=[Keeps], interval=3600)
    with engine:
        world.publish("bad")
        world.wait(lambda: engine.failure is not None)
        assert not engine.checkpoint(timeout=120)


def test_two_engines_cannot_have_one_store(any_world):
    with any_world.engine(monitors=[Hears]):
        second = any_world.engine(monitors=[Hears])
        with pytest.raises(StoreError) as refused:
            second.start()
        assert refused.value.exit_status == 5


def test_a_stop_does_not_wait_longer_for_a_handler_than_it_was_told(world, script, gate, logs):
    script.message = lambda *_: gate.wait()
    engine = world.engine(receiver(), monitors=[Keeps], stop_timeout=0.2)
    engine.start()
    world.publish("a")
    world.wait(lambda: script.of("Keeps") == ["a"])
    engine.stop()  # the handler still waits
    (late,) = [line["threads"] for line in logs if "threads" in line]
    assert "context-main" in late
    gate.set()
    with world.engine(receiver(), monitors=[Keeps]) as again:
        world.wait(lambda: the_monitor(again, Keeps).bodies == ["a"])


@pytest.fixture
def stop_tells_at_once(monkeypatch):
    """Steps of a stop that still wait say so without a delay."""
    monkeypatch.setattr(engine_module, "TELL_WAIT_AFTER_S", 0.0)


def test_a_stop_says_what_it_waits_for_while_a_broker_is_down(world, logs, stop_tells_at_once):
    away = MemoryBroker()
    away.down = True
    connections = {"memory": world.broker.connection(), "away": away.connection("away")}
    parts = receiver(), sender("out", connection="away"), sender("other", connection="memory")
    engine = world.engine(*parts, monitors=[Forwards], connections=connections, stop_timeout=3600.0)
    engine.start()
    world.publish("a", "b")
    world.wait(lambda: the_monitor(engine, Forwards).count == 2)
    stopping = threading.Thread(target=engine.stop)
    stopping.start()
    world.wait(lambda: any(one.startswith("sender ") for one in waits(logs)))
    away.down = False
    stopping.join(PATIENCE_S)
    assert not stopping.is_alive()
    (one,) = [one for one in waits(logs) if one.startswith("sender ")]
    assert one == "sender out (2 not confirmed, no connection)"
    assert {line["at_most_s"] for line in logs if line["event"] == "the stop waits"} == {3600.0}


def test_a_stop_says_that_it_waits_for_a_handler(world, script, gate, logs, stop_tells_at_once):
    script.message = lambda *_: gate.wait()
    engine = world.engine(receiver(), monitors=[Keeps], stop_timeout=3600.0)
    engine.start()
    world.publish("a")
    world.wait(lambda: script.of("Keeps") == ["a"])
    stopping = threading.Thread(target=engine.stop)
    stopping.start()
    world.wait(lambda: "context main" in waits(logs))
    gate.set()
    stopping.join(PATIENCE_S)
    assert not stopping.is_alive()


def waits(logs):
    """What a stop has said that it waits for."""
    return [line["waits_for"] for line in logs if line["event"] == "the stop waits"]


def test_t66_what_would_end_the_process_quietly_is_told_as_a_failure(world, script):
    def leaves(*_):
        raise SystemExit(0)

    script.message = leaves
    engine = world.engine(receiver(), monitors=[Keeps])
    engine.start()
    world.publish("a")
    with pytest.raises(HandlerFailed, match=r"E5500 engine world: a thread was ended by SystemExit: 0"):
        engine.run_forever()
    world.crash(engine)
    with pytest.raises(HandlerFailed, match=r"E5500 engine world: recovery was ended by SystemExit: 0"):
        world.engine(receiver(), monitors=[Keeps]).start()


def test_parts_are_added_and_removed_only_while_the_engine_runs(world):
    engine = world.engine(monitors=[Keeps])
    changes = [
        lambda: engine.add_receiver(receiver("r")),
        lambda: engine.add_sender(sender("s")),
        lambda: engine.remove("r"),
    ]
    for change in changes:
        with pytest.raises(UsageError, match=r"E8305 '[rs]': the engine does not run"):
            change()
    with engine:
        pass
    for change in changes:
        with pytest.raises(UsageError, match="E8305"):
            change()


def test_t67_on_a_full_disk_receiving_waits_and_what_was_sent_makes_room(world):
    """Given a store that takes no batch more, when the broker takes what waits for it, then receiving goes on."""
    away = type(world.broker)()
    away.down = True
    connections = {"memory": world.broker.connection(), "away": away.connection("away")}
    parts = (receiver(max_batch_size=10, max_batch_bytes=10_000_000), sender(connection="away"))
    large = "x" * 100_000
    with world.engine(*parts, monitors=[Forwards], connections=connections) as engine:
        world.publish(*(message(large, f"m{number}") for number in range(1, 21)))
        world.wait(lambda: world.outbox_rows() == 20 and world.received_rows() == 0)
        raw = engine.writer.store._database._raw()
        (pages,) = raw.execute("PRAGMA page_count").fetchone()
        raw.execute(f"PRAGMA max_page_count = {pages + 8:d}")
        world.publish(*(message(large, f"m{number}") for number in range(21, 41)))
        world.wait(lambda: engine.writer._failures >= 3)
        assert (engine.failure, world.outbox_rows()) == (None, 20)
        away.down = False
        world.wait(lambda: len(away.received("queue:out")) == 40)
        world.wait(lambda: world.broker.waiting("queue:in") == world.broker.unacknowledged("queue:in") == 0)
    numbers = [int(one.body.partition(b":")[0]) for one in away.received("queue:out")]
    assert numbers == list(range(1, 41))


# --- the store is taken away ---


def test_nothing_is_acknowledged_or_sent_once_the_files_of_the_store_are_removed(world, script):
    engine = world.engine(receiver(), sender(), monitors=[Forwards])
    with engine:
        world.publish(*numbered(3))
        world.wait(lambda: world.broker.waiting("queue:out") == 3)
        path = Path(world.store.removeprefix("sqlite:///"))
        for ending in ("", "-wal", "-shm"):
            path.with_name(path.name + ending).unlink()
        world.publish(*numbered(50, first=4))
        world.wait(lambda: engine.failure is not None)
    with pytest.raises(StoreError, match=r"E3112 .*removed or replaced"):
        engine.raise_failure()
    assert world.broker.waiting("queue:in") + world.broker.unacknowledged("queue:in") == 50
    assert world.broker.waiting("queue:out") == 3
