"""Sending (docs/rules.md, section A2): what leaves, when, with which id, and what becomes of what cannot leave."""

import re
from dataclasses import replace

import msgspec
import pytest
from sqlalchemy import func, select

from correlator import Monitor
from correlator.core.instances import StoredMonitor
from correlator.core.monitor import every
from correlator.core.outbox import Outbox
from correlator.errors import ConnectionLost
from correlator.runtime import checkpointer
from correlator.storage import deadletters, inspect, loading, tables
from correlator.storage.database import reading
from correlator.storage.inspect import Selection
from correlator.testing.clock import ManualClock
from correlator.testing.memory import MEMORY_FEATURES, Faults
from tests.runtime.flows import Forwards, Hears, Keeps
from tests.runtime.world import (
    AT_LEAST_ONCE,
    BEST_EFFORT,
    EXACTLY_ONCE,
    Happened,
    numbered,
    receiver,
    sender,
    the_monitor,
)

HOUR = 3600.0
RELIABLE = [AT_LEAST_ONCE, EXACTLY_ONCE]


def sends_on(monitor, message):
    monitor.send(message.body, to="out")


def forwarded(first: int, last: int) -> list[str]:
    return [f"{number}:m{number}" for number in range(first, last + 1)]


# --- persist, then release ---


@pytest.mark.parametrize("reliability", RELIABLE)
def test_a2_1_nothing_leaves_before_the_commit_of_what_caused_it(any_world, reliability):
    with any_world.engine(receiver(), sender("out", reliability), monitors=[Forwards], interval=HOUR) as engine:
        any_world.publish(*numbered(5))
        any_world.wait(lambda: the_monitor(engine, Forwards).count == 5)
        assert any_world.sent() == []
        assert engine.checkpoint()
        any_world.wait_for(*forwarded(1, 5))


def test_a2_1_after_a_crash_before_the_commit_the_input_is_handled_again(any_world):
    parts = (receiver(), sender())
    engine = any_world.engine(*parts, monitors=[Forwards], interval=HOUR)
    with engine:
        any_world.publish(*numbered(5))
        any_world.wait(lambda: the_monitor(engine, Forwards).count == 5)
        any_world.crash(engine)
    assert any_world.sent() == []
    with any_world.engine(*parts, monitors=[Forwards]):
        any_world.wait_for(*forwarded(1, 5))


def test_u2_a2_1_the_commit_comes_before_the_release_and_the_release_before_the_broker(world):
    world.watch_points()
    with world.engine(receiver(), sender(), monitors=[Forwards]):
        world.publish("m1")
        world.wait_for("1:m1")
    order = world.happened("ck.tx.commit.before", "ck.tx.commit.after", "ck.release.after", "accepted")
    accepted = order.index("accepted")
    assert order[accepted - 3 : accepted] == ["ck.tx.commit.before", "ck.tx.commit.after", "ck.release.after"]


def test_u1_a2_2_t13_state_and_sends_are_in_one_commit(any_world):
    """The store never holds a count without the sends up to it, whenever it is looked at."""
    engine = any_world.engine(receiver(), sender(connection="away"), monitors=[Forwards], connections=away(any_world))
    with engine:
        for number in range(1, 60):
            any_world.publish(f"m{number}")
            state, sends = count_and_sends(any_world.store)
            assert state == sends
        any_world.wait(lambda: count_and_sends(any_world.store) == (59, 59))
        any_world.crash(engine)


def count_and_sends(url: str) -> tuple[int, int]:
    """The count in the state of `Forwards`, and the last number in its outbox, as one transaction sees them."""
    with reading(url) as connection:
        logged = connection.execute(select(tables.state_log).order_by(tables.state_log.c.number)).all()
        last = connection.execute(select(func.max(tables.outbox.c.last))).scalar() or 0
    entries = [entry for row in logged for entry in loading.state_of(row).entries if entry.value is not None]
    if not entries:
        return 0, last
    stored = msgspec.msgpack.decode(entries[-1].value, type=StoredMonitor)
    return msgspec.msgpack.decode(stored.attributes)["count"], last


def away(world):
    """Connections: `memory`, and `away`, that is down."""
    world.away = type(world.broker)()
    world.away.down = True
    return {"memory": world.broker.connection(), "away": world.away.connection("away")}


def test_a2_4_sends_stay_in_the_store_over_restarts_until_the_broker_is_up(any_world):
    parts = (receiver(), sender(connection="away"))
    connections = away(any_world)
    any_world.publish(*numbered(7))
    for _ in range(10):
        engine = any_world.engine(*parts, monitors=[Forwards], connections=connections)
        with engine:
            any_world.wait(lambda engine=engine: engine.status().senders["out"][2] == 7)
            any_world.wait(lambda: any_world.outbox_rows() == 7)
            any_world.crash(engine)
    any_world.away.down = False
    with any_world.engine(*parts, monitors=[Forwards], connections=connections):
        any_world.wait(lambda: len(any_world.away.received("queue:out")) == 7)
        any_world.wait(lambda: any_world.outbox_rows() == 0)
    assert [one.body.decode() for one in any_world.away.received("queue:out")] == forwarded(1, 7)


# --- ids ---


class LosesTheConfirm(Faults):
    """The broker takes the first batch, and the line is cut before it can say so."""

    lost = False

    def accepted_before_loss(self, sender, batch):
        if self.lost:
            return None
        self.lost = True
        return len(batch)


@pytest.mark.parametrize("reliability", [EXACTLY_ONCE, BEST_EFFORT])
def test_a2_5_a_repeat_carries_the_same_id_and_body(world, reliability):
    world.broker.faults = LosesTheConfirm()
    with world.engine(receiver(), sender("out", reliability), monitors=[Forwards]):
        world.publish("m1")
        world.wait(lambda: len(world.sent()) == 2)
    first, second = world.broker.received("queue:out")
    assert first == second
    assert first.properties["uniqueMessageId"].startswith("1:")


def test_a2_5_a_repeat_after_a_crash_carries_the_same_id(any_world):
    """The broker accepted, then the process died before the store could forget the send."""

    class DiesAfterAccept(LosesTheConfirm):
        def before_accept(self, sender, batch):
            if self.lost:
                raise ConnectionLost("E7001", "test", "the process that sends is dead")

    any_world.broker.faults = DiesAfterAccept()
    parts = (receiver(), sender())
    engine = any_world.engine(*parts, monitors=[Forwards])
    with engine:
        any_world.publish("m1")
        any_world.wait(lambda: len(any_world.sent()) == 1)
        any_world.crash(engine)
    any_world.broker.faults = Faults()
    with any_world.engine(*parts, monitors=[Forwards]):
        any_world.wait(lambda: len(any_world.sent()) == 2)
    first, second = any_world.broker.received("queue:out")
    assert first == second


def test_a2_6_ids_are_contiguous_per_sender_over_restarts(any_world, script):
    def to_both(monitor, message):
        monitor.send(message.body, to="out")
        monitor.send(message.body, to="other")

    script.message = to_both
    for life in range(3):
        with any_world.engine(receiver(), sender("out"), sender("other"), monitors=[Keeps]):
            any_world.publish(*numbered(3, f"life{life}-"))
            any_world.wait(lambda life=life: len(any_world.sent("queue:other")) == 3 * (life + 1))
    sources = {}
    for queue in ("queue:out", "queue:other"):
        pairs = [unique_id.split(":", 1) for unique_id in any_world.ids(queue)]
        assert [int(number) for number, _ in pairs] == list(range(1, 10))
        (sources[queue],) = {source for _, source in pairs}
    assert sources["queue:out"] != sources["queue:other"]
    assert all(re.fullmatch(r"[^:]+:\d+:\d+:S\d\d", source) for source in sources.values())
    assert {sources["queue:out"][-3:], sources["queue:other"][-3:]} == {"S01", "S02"}


def test_a2_6_the_source_is_in_the_message_and_in_the_registry(world):
    with world.engine(receiver(), sender(), monitors=[Forwards]):
        world.publish("m1")
        world.wait_for("1:m1")
    (endpoint,) = [one for one in inspect.registry(world.store) if one.id == "out"]
    (one,) = world.broker.received("queue:out")
    assert one.properties["messageSourceId"] == endpoint.source
    assert one.properties["uniqueMessageId"] == f"1:{endpoint.source}"


def test_a2_7_the_property_that_carries_the_id_has_a_name_of_choice(world):
    named = sender(unique_message_id_property="id", message_source_id_property="source")
    with world.engine(receiver(), named, monitors=[Forwards]):
        world.publish("m1")
        world.wait_for("1:m1")
    assert set(world.broker.received("queue:out")[0].properties) == {"id", "source"}


def test_z9_at_least_once_stamps_no_id(world):
    with world.engine(receiver(), sender("out", AT_LEAST_ONCE), monitors=[Forwards]):
        world.publish("m1")
        world.wait_for("1:m1")
    assert world.broker.received("queue:out")[0].properties == {}


def test_a2_8_sent_messages_leave_the_store_in_batches_later(any_world):
    any_world.publish(*numbered(3000))
    any_world.watch_points()
    with any_world.engine(receiver(), sender(), monitors=[Forwards]):
        any_world.wait(lambda: len(any_world.sent()) == 3000)
        any_world.wait(lambda: any_world.outbox_rows() == 0)
    assert len(any_world.happened("ck.tx.prune_outbox")) < 300


# --- checkpoints ---


def test_a2_9_status_tells_how_checkpoints_went(world):
    with world.engine(receiver(), sender(), monitors=[Forwards]) as engine:
        for number in range(5):
            world.publish(f"m{number}")
            assert engine.checkpoint()
        world.wait(lambda: len(world.sent()) == 5)
        counters = engine.status().checkpoints
    assert counters.taken >= 1
    assert counters.interval_s == 0.02
    assert 0 < counters.last_duration_s <= counters.total_duration_s


def test_a2_9_a_slow_handler_lengthens_a_checkpoint_and_skips_none(any_world, script, gate):
    """Given a handler of 7 s that a checkpoint of every 0.02 s falls into, then this one takes 7 s, and the next one comes."""
    script.message = lambda monitor, message: gate.wait(120) if message.body == b"slow" else None
    clock = ManualClock()
    with any_world.engine(receiver(), monitors=[Keeps], clock=clock) as engine:
        quick_checkpoint(engine, clock)
        any_world.publish("slow")
        any_world.wait(lambda: script.of("Keeps") == ["slow"])
        make_due(engine, clock)
        any_world.wait(lambda: engine.contexts["main"].context.cut_requested)
        clock.advance(7.0)
        assert engine.status().checkpoints.taken == 1
        gate.set()
        any_world.publish("after")
        any_world.wait(lambda: script.of("Keeps") == ["slow", "after"])
        assert_slow_then_quick(any_world, engine, clock)


def test_a2_9_a_slow_commit_lengthens_a_checkpoint_and_skips_none(any_world, script):
    """Given a store that takes 7 s, then so does the checkpoint; what is handled meanwhile is in the next one."""
    clock = ManualClock()
    with any_world.engine(receiver("in", BEST_EFFORT), monitors=[Keeps], clock=clock) as engine:
        quick_checkpoint(engine, clock)
        (commit,) = any_world.hold_at("ck.tx.commit.before")
        any_world.publish("slow")
        any_world.wait(lambda: script.of("Keeps") == ["slow"])
        make_due(engine, clock)
        commit.wait_reached()
        clock.advance(7.0)
        any_world.publish("after")
        any_world.wait(lambda: script.of("Keeps") == ["slow", "after"])
        assert engine.status().checkpoints.taken == 1
        commit.open()
        assert_slow_then_quick(any_world, engine, clock)


def make_due(engine, clock):
    """Let the interval between two checkpoints pass."""
    clock.advance(engine.settings.checkpoint.interval)
    engine.checkpointer.wake()


def quick_checkpoint(engine, clock):
    """The first checkpoint, in no time."""
    assert engine.checkpoint()
    counters = engine.status().checkpoints
    assert (counters.taken, counters.last_duration_s, counters.total_duration_s) == (1, 0.0, 0.0)


def assert_slow_then_quick(world, engine, clock):
    """The second checkpoint took its 7 s; the third comes after one more interval, and takes no time."""
    world.wait(lambda: engine.status().checkpoints.taken == 2)
    counters = engine.status().checkpoints
    assert (counters.last_duration_s, counters.total_duration_s) == (pytest.approx(7.0), pytest.approx(7.0))
    assert stored_bodies(world) == (2, [b"slow"])
    make_due(engine, clock)
    world.wait(lambda: engine.status().checkpoints.taken == 3)
    counters = engine.status().checkpoints
    assert (counters.last_duration_s, counters.total_duration_s) == (0.0, pytest.approx(7.0))
    assert counters.interval_s == 0.02
    assert stored_bodies(world) == (3, [b"after", b"slow"])


def stored_bodies(world) -> tuple[int, list[bytes]]:
    """The number of the last checkpoint, and the bodies that `Keeps` has in its table there."""
    keys = [one.key for one in inspect.state_keys(world.store, "table:Keeps#0.by_body")]
    return inspect.checkpoints(world.store)[0].number, sorted(msgspec.msgpack.decode(key).encode() for key in keys)


def test_a2_10_a_cut_is_tried_again_until_no_handler_is_half_done(any_world, script, gate, monkeypatch):
    monkeypatch.setattr(checkpointer, "CUT_PATIENCE_S", 0.01)

    def two_sends(monitor, message):
        monitor.send(b"first", to="out")
        gate.wait(120)
        monitor.send(b"second", to="out")

    script.message = two_sends
    with any_world.engine(receiver(), sender(), monitors=[Keeps]) as engine:
        any_world.publish("a")
        any_world.wait(lambda: engine.status().checkpoints.cut_retries >= 5)
        assert any_world.outbox_rows() == 0
        gate.set()
        any_world.wait_for("first", "second")


# --- failures ---


class Refuses(Faults):
    """The broker refuses some bodies, a few times or for ever."""

    def __init__(self, body: bytes, times: int) -> None:
        self.body = body
        self.times = times
        self.tries = 0

    def refused(self, sender, batch):
        positions = {at: "no such exchange" for at, one in enumerate(batch) if one.message.body == self.body}
        if not positions or self.tries >= self.times:
            return {}
        self.tries += 1
        return positions


@pytest.mark.parametrize("reliability", [EXACTLY_ONCE, AT_LEAST_ONCE, BEST_EFFORT])
def test_a2_11_z7_a_refused_message_becomes_a_dead_letter_after_a_few_tries(any_world, reliability, logs):
    any_world.broker.faults = refuses = Refuses(b"2:m2", times=1000)
    with any_world.engine(receiver(), sender("out", reliability, max_tries=3), monitors=[Forwards]) as engine:
        any_world.publish("m1", "m2", "m3")
        any_world.wait_for("1:m1", "3:m3")
        any_world.wait(lambda: any_world.dead_letters())
        counters = engine.status().senders["out"][1]
    assert (refuses.tries, counters.retries, counters.dead_letters, counters.sent) == (3, 2, 1, 2)
    (row,) = inspect.dead_letters(any_world.store)
    assert (row.letter.kind, row.letter.origin, row.letter.message.body) == ("send", "out", b"2:m2")
    assert row.letter.unique_id.startswith("2:")
    assert "E8102" in row.letter.reason
    (line,) = [one for one in logs if one["event"] == "message refused; kept as a dead letter"]
    assert (line["log_level"], line["destination"], line["sequence"]) == ("error", "queue:out", 2)


def test_a_refused_message_of_an_engine_without_a_store_is_dropped_and_told(no_store, script, logs):
    script.message = sends_on
    no_store.broker.faults = Refuses(b"m1", times=1)
    with no_store.engine(receiver("in", BEST_EFFORT), sender("out", BEST_EFFORT, max_tries=1), monitors=[Hears]):
        no_store.publish("m1", "m2")
        no_store.wait_for("m2")
    (told,) = [one["event"] for one in logs if one["event"].startswith("message refused")]
    assert told == "message refused; dropped, since there is no store"


def test_a2_11_a_message_that_is_accepted_at_last_is_no_dead_letter(world):
    world.broker.faults = Refuses(b"1:m1", times=2)
    with world.engine(receiver(), sender(), monitors=[Forwards]):
        world.publish("m1")
        world.wait_for("1:m1")
    assert world.dead_letters() == []


@pytest.mark.parametrize("reliability", [EXACTLY_ONCE, BEST_EFFORT])
def test_the_tries_of_a_refused_message_back_off_and_others_go_on(world, reliability):
    clock = ManualClock()
    world.broker.faults = refuses = Refuses(b"1:m1", times=1000)
    out = sender("out", reliability, max_tries=4, retry_interval=1.0, max_retry_interval=3.0)
    parts = {"monitors": [Forwards], "clock": clock, "jitter": lambda: 0.0, "stop_timeout": 0.0}
    with world.engine(receiver(), out, **parts) as engine:
        one = engine.senders["out"]
        for tries, delay in enumerate((1.0, 2.0, 3.0), 1):
            world.publish(f"m{tries}")
            world.wait(lambda tries=tries: the_monitor(engine, Forwards).count == tries)
            engine.checkpoint()
            world.wait(lambda tries=tries: (refuses.tries, len(world.sent())) == (tries, tries - 1))
            clock.advance(delay - 0.1)
            assert one.step() == pytest.approx(0.1)
            assert refuses.tries == tries
            clock.advance(0.1)
            one.wake()
            world.wait(lambda tries=tries: refuses.tries == tries + 1)
        engine.checkpoint()
        world.wait(lambda: one.idle)
        engine.checkpoint()
    assert world.sent() == ["2:m2", "3:m3"]
    assert len(world.dead_letters()) == 1
    assert world.outbox_rows() == 0


def test_a_send_behind_a_refused_one_stays_in_the_store_until_that_is_settled(world):
    """A crash between two tries loses neither: both leave again."""
    world.broker.faults = Refuses(b"1:m1", times=1)
    out = sender(retry_interval=3600.0)
    with world.engine(receiver(), out, monitors=[Forwards]) as engine:
        world.publish("m1", "m2")
        world.wait(lambda: world.sent() == ["2:m2"])
        engine.checkpoint()
        assert world.outbox_rows() == 2
        world.crash(engine)
    with world.engine(receiver(), out, monitors=[Forwards]) as engine:
        world.wait(lambda: world.sent() == ["2:m2", "1:m1", "2:m2"])
        world.wait(lambda: engine.checkpoint() and world.outbox_rows() == 0)
    assert world.ids()[0] == world.ids()[2]


def test_a_flush_waits_for_the_tries_of_a_refused_message(world, script):
    def forward(one, message):
        one.send(message.body, to="out")
        if message.body == b"last":
            one.request_flush("out")

    script.message = forward
    world.broker.faults = Refuses(b"first", times=2)
    out = sender("out", BEST_EFFORT, retry_interval=0.05)
    with world.engine(receiver(), out, monitors=[Hears]):
        world.publish("first", "last")
        world.wait(lambda: [one for one in script.of("Hears") if one.startswith("flushed")])
        assert world.sent() == ["last", "first"]


def test_a_broker_that_drops_repeats_by_number_is_asked_once(world):
    """A later try would carry a number below those that it has stored: it would be dropped as a repeat."""
    world.broker.features = replace(MEMORY_FEATURES, deduplicates_sends=True)
    world.broker.faults = Refuses(b"2:m2", times=1)
    connections = {"memory": world.broker.connection()}
    with world.engine(receiver(), sender(max_tries=3), monitors=[Forwards], connections=connections) as engine:
        world.publish(*numbered(3))
        world.wait(lambda: world.dead_letters())
        assert engine.status().senders["out"][1].retries == 0
    assert world.sent() == ["1:m1", "3:m3"]
    assert deadletters.replay(world.store, Selection()) == 1
    with world.engine(receiver(), sender(max_tries=3), monitors=[Forwards], connections=connections):
        world.wait(lambda: world.sent() == ["1:m1", "3:m3", "2:m2"])


def test_a2_11_a_dead_letter_is_kept_once_though_the_engine_crashes(world):
    world.broker.faults = Refuses(b"1:m1", times=1000)
    for _ in range(3):
        engine = world.engine(receiver(), sender(), monitors=[Forwards])
        with engine:
            world.publish("m1")
            world.wait(lambda: world.dead_letters())
            engine.checkpoint()
            world.crash(engine)
    assert len(world.dead_letters()) == 1


class Cut(Faults):
    """The line is cut at each of the first sends."""

    def __init__(self, times: int) -> None:
        self.left = times

    def before_accept(self, sender, batch):
        if self.left:
            self.left -= 1
            raise ConnectionLost("E7001", sender, "the line was cut")


@pytest.mark.parametrize("reliability", [EXACTLY_ONCE, AT_LEAST_ONCE, BEST_EFFORT])
def test_a2_12_a_lost_connection_is_no_try_and_drops_nothing(world, reliability):
    world.broker.faults = Cut(20)
    with world.engine(receiver(), sender("out", reliability, max_tries=2), monitors=[Forwards]) as engine:
        world.publish(*numbered(3))
        world.wait(lambda: len(world.sent()) == 3)
        counters = engine.status().senders["out"][1]
    assert world.sent() == forwarded(1, 3)
    assert (counters.retries, counters.dead_letters, counters.connection_errors) == (0, 0, 20)


def test_a2_12_a_connection_lost_between_the_tries_of_a_refused_message(world):
    class RefusedThenCut(Refuses):
        def before_accept(self, sender, batch):
            if self.tries == 1 and not getattr(self, "cut", False):
                self.cut = True
                raise ConnectionLost("E7001", sender, "the line was cut")

    world.broker.faults = RefusedThenCut(b"2:m2", times=2)
    with world.engine(receiver(), sender(), monitors=[Forwards]):
        world.publish(*numbered(3))
        world.wait(lambda: set(world.sent()) == set(forwarded(1, 3)))
    assert world.dead_letters() == []


# --- BEST_EFFORT, batches, bounds ---


def test_a2_13_best_effort_sends_leave_at_once(any_world):
    with any_world.engine(receiver(), sender("out", BEST_EFFORT), monitors=[Forwards], interval=HOUR):
        any_world.publish("m1")
        any_world.wait_for("1:m1")


@pytest.mark.parametrize("reliability", [EXACTLY_ONCE, BEST_EFFORT])
def test_a2_15_a_batch_of_sends_is_bounded(world, script, reliability):
    script.message = lambda monitor, message: [monitor.send(b"%d" % number, to="out") for number in range(1200)]
    with world.engine(receiver(), sender("out", reliability), monitors=[Hears], interval=HOUR) as engine:
        world.publish("go")
        world.wait(lambda: script.of("Hears") == ["go"])
        engine.checkpoint()
        world.wait(lambda: len(world.sent()) == 1200)
    sizes = [one.count for one in world.trace if one.kind == "accepted"]
    assert sizes == [500, 500, 200]


@pytest.mark.parametrize("reliability", [EXACTLY_ONCE, AT_LEAST_ONCE, BEST_EFFORT])
def test_a2_15_a_batch_waits_its_interval_for_more(world, script, reliability):
    """Given 0.5 s, when three sends come within 0.2 s, then they wait until 0.5 s after the first, and leave together."""
    script.message = sends_on
    clock = ManualClock()
    waiting = sender("out", reliability, max_batch_interval_ms=500)
    with world.engine(receiver(), waiting, monitors=[Hears], clock=clock, interval=HOUR) as engine:
        out = engine.senders["out"]
        for number in (1, 2, 3):
            world.publish(f"m{number}")
            world.wait(lambda number=number: len(script.of("Hears")) == number)
            assert engine.checkpoint()
            world.wait(lambda number=number: len(out.outbox.take(9)) == number and out.dispatcher.filling)
            clock.advance(0.1)
        clock.advance(0.19)
        assert out.step() == pytest.approx(0.01)
        assert (world.sent(), engine.status().senders["out"][2]) == ([], 3)
        clock.advance(0.02)
        out.wake()
        world.wait_for("m1", "m2", "m3")
    assert [one for one in world.trace if one.kind == "accepted"] == [Happened("accepted", "out", 3)]


def test_a2_15_a_batch_of_one_is_possible(world):
    with world.engine(receiver(), sender(max_batch_size=1), monitors=[Forwards]):
        world.publish(*numbered(4))
        world.wait_for(*forwarded(1, 4))
    assert {one.count for one in world.trace if one.kind == "accepted"} == {1}


@pytest.mark.parametrize("reliability", [EXACTLY_ONCE, BEST_EFFORT])
def test_a2_17_outstanding_counts_the_sends_that_wait(world, reliability):
    connections = away(world)
    settings = sender("out", reliability, connection="away")
    with world.engine(receiver(), settings, monitors=[Forwards], connections=connections) as engine:
        world.publish(*numbered(42))
        world.wait(lambda: engine.status().senders["out"][2] == 42)
        world.away.down = False
        world.wait(lambda: engine.status().senders["out"][2] == 0)


def test_t24_a_full_outbox_pauses_receiving(world):
    connections = away(world)
    settings = sender(connection="away", max_outstanding=20)
    with world.engine(receiver(max_batch_size=5), settings, monitors=[Forwards], connections=connections) as engine:
        world.publish(*numbered(200))
        world.wait(lambda: engine.status().senders["out"][2] >= 20)
        assert world.broker.waiting("queue:in") > 0
        world.away.down = False
        world.wait(lambda: len(world.away.received("queue:out")) == 200)


class Beats(Monitor, persistent=True):
    """Sends by a timer."""

    beats: int = 0

    @every(0.001)
    def beat(self) -> None:
        self.beats += 1
        self.send(str(self.beats).encode(), to="out")


def test_t24_t25_a_full_outbox_pauses_contexts(world):
    """Given a timer that sends, when the broker is away, then no more waits than allowed; checkpoints go on."""
    settings = sender(connection="away", max_outstanding=20)
    with world.engine(settings, monitors=[Beats], connections=away(world)) as engine:
        world.wait(lambda: engine.status().senders["out"][2] >= 20)
        beats = the_monitor(engine, Beats).beats
        assert engine.checkpoint()
        assert engine.checkpoint()
        assert (the_monitor(engine, Beats).beats, engine.status().senders["out"][2]) == (beats, 20)
        world.away.down = False
        world.wait(lambda: len(world.away.received("queue:out")) > 100)
    bodies = [int(one.body) for one in world.away.received("queue:out")]
    assert bodies == list(range(1, len(bodies) + 1))


def test_t24_what_waits_for_a_checkpoint_counts_too(world, script):
    """Given as many sends as may wait, when no checkpoint has taken them, then one is asked for, and nothing is handled."""
    settings = sender(max_outstanding=20)
    script.message = lambda monitor, message: [monitor.send(b"x", to="out") for _ in range(20)]
    (asked_for,) = world.hold_at("ck.trigger")
    with world.engine(receiver(), settings, monitors=[Keeps], interval=3600.0) as engine:
        world.publish("a")
        asked_for.wait_reached()
        world.publish("b")
        assert engine.status().senders["out"][2] == 20
        assert script.of("Keeps") == ["a"]
        asked_for.open()
        world.wait(lambda: len(world.sent()) == 40)


def test_sends_of_all_contexts_share_the_numbers_of_a_sender(world, script):
    script.message = lambda monitor, message: monitor.send(type(monitor).__name__.encode(), to="out")
    monitors = [Keeps, Hears]
    with world.engine(receiver(), sender(), monitors=monitors):
        world.publish(*numbered(10))
        world.wait(lambda: len(world.sent()) == 20)
    assert [int(one.split(":")[0]) for one in world.ids()] == list(range(1, 21))


def test_a_message_may_name_another_destination(world, script):
    def answer(monitor, message):
        monitor.send(type(message)(b"there", destination="queue:there"), to="out")
        monitor.send(b"here", to="out")

    script.message = answer
    with world.engine(receiver(), sender(), monitors=[Keeps]):
        world.publish("a")
        world.wait_for("here")
        world.wait_for("there", at="queue:there")


def test_the_outbox_is_the_only_one_that_numbers():
    """A number is given at the cut, never when a handler sends: a discarded send leaves no gap."""
    outbox = Outbox("out", EXACTLY_ONCE, "s", "queue:out", "id", "source")
    assert outbox.cut([])[0].next_sequence == 1
