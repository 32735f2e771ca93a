"""Duplicate detection in the running engine (docs/rules.md, section A8); its windows are tested in tests/core."""

import contextlib
import json
import sqlite3
from pathlib import Path

import psycopg
import pytest

from correlator.events import Headers, Message
from correlator.runtime.clock import SystemClock
from correlator.settings import DuplicateDetectionSettings
from correlator.storage import inspect
from correlator.storage.tables import metadata
from correlator.testing.memory import MemoryBroker
from tests.runtime.flows import Hears, Keeps
from tests.runtime.world import AT_LEAST_ONCE, EXACTLY_ONCE, message, numbered, receiver, the_monitor


class Moved:
    """A clock that tests move by hand, beside the real one that lets threads wait."""

    def __init__(self) -> None:
        self.ahead = 0.0
        self._real = SystemClock()

    def monotonic(self) -> float:
        return self._real.monotonic() + self.ahead

    def wall(self) -> float:
        return self._real.wall()


def windows(per_source: int = 2000, expiry: float = 120.0) -> dict:
    return {"duplicate_detection": DuplicateDetectionSettings(per_source_window_size=per_source, expiry_time=expiry)}


def heard(world, script, count: int) -> list[str]:
    """What the monitor was called for, when the broker has nothing left."""
    world.wait(lambda: world.broker.waiting("queue:in") == world.broker.unacknowledged("queue:in") == 0)
    world.wait(lambda: len(script.of("Keeps")) >= count)
    return script.of("Keeps")


def test_u4_a8_1_duplicates_never_reach_monitors_and_are_counted_and_acknowledged(any_world, script):
    with any_world.engine(receiver(), monitors=[Keeps]) as engine:
        any_world.publish("a", "b", "a")
        any_world.publish("b", "c")
        assert heard(any_world, script, 3) == ["a", "b", "c"]
        counters = engine.status().receivers["in"][1]
    assert (counters.received, counters.duplicates, counters.delivered) == (5, 2, 3)


@pytest.mark.parametrize(
    ("fields", "with_id"),
    [
        ({}, lambda n: message("x", f"id{n}")),
        ({"unique_message_id": "${header.message_id}"}, lambda n: Message(b"x", headers=Headers(message_id=f"id{n}"))),
        ({"unique_message_id": "${body.id}"}, lambda n: message(f'{{"id": {n}}}', "")),
        ({"unique_message_id": "${property.a}-${property.b}"}, lambda n: message("x", "", a="A", b=n)),
    ],
    ids=["property", "header", "body", "template"],
)
def test_a8_2_the_id_comes_from_property_header_or_body(world, script, fields, with_id):
    sent = [with_id(n) for n in (1, 2, 1)]
    with world.engine(receiver(**fields), monitors=[Keeps]) as engine:
        world.publish(*sent)
        assert len(heard(world, script, 2)) == 2
        assert engine.status().receivers["in"][1].duplicates == 1


@pytest.mark.parametrize(
    ("fields", "made"),
    [
        ({}, lambda text, source: message(text, source=source)),
        (
            {"message_source_id": "${header.reply_to}"},
            lambda text, source: Message(text.encode(), {"uniqueMessageId": text}, headers=Headers(reply_to=source)),
        ),
        (
            {"message_source_id": "${body.source}"},
            lambda text, source: message(json.dumps({"text": text, "source": source}), text),
        ),
        ({"message_source_id": "${property.a}/${property.b}"}, lambda text, source: message(text, a=source, b="x")),
    ],
    ids=["property", "header", "body", "template"],
)
def test_a8_2_a8_6_the_source_comes_from_property_header_or_body(any_world, script, fields, made):
    """Given windows of 2 a source and no time, when one is busy, then what the other one repeats is still known."""
    sent = [made("quiet", "b"), *(made(text, "a") for text in ("1", "2", "3")), made("quiet", "b"), made("1", "a")]
    with any_world.engine(receiver(max_batch_size=1, **fields), monitors=[Keeps], **windows(2, 0.0)) as engine:
        any_world.publish(*sent)
        assert len(heard(any_world, script, 5)) == 5
        assert engine.status().receivers["in"][1].duplicates == 1
        kept = {
            (one.id, one.source.partition("/")[0]) for one in inspect.accepted_ids(any_world.store, "memory:queue:in")
        }
    assert {("quiet", "b"), ("3", "a"), ("1", "a")} <= kept
    assert {source for _, source in kept} == {"a", "b"}


def test_a8_3_a8_4_the_windows_come_from_the_settings(any_world, script):
    with any_world.engine(receiver(max_batch_size=1), monitors=[Keeps], **windows(2, 0.0)):
        any_world.publish("a", "b", "c", "a", "c")
        assert heard(any_world, script, 4) == ["a", "b", "c", "a"]


def test_a8_4_expiry_0_bounds_the_rows(any_world, script):
    with any_world.engine(receiver(max_batch_size=5), monitors=[Keeps], **windows(10, 0.0)):
        any_world.publish(*numbered(200))
        heard(any_world, script, 200)
        assert len(any_world.stored_ids()) <= 10 + 2 * 5


def test_a8_5_messages_without_source_share_a_window(world, script):
    with world.engine(receiver(max_batch_size=1), monitors=[Keeps], **windows(2, 0.0)):
        world.publish("a", "b", "c", "a")
        assert heard(world, script, 4) == ["a", "b", "c", "a"]


def test_a8_6_a_busy_source_expires_nothing_of_a_silent_one(any_world, script):
    clock = Moved()
    quiet = message("quiet", source="b")
    busy = [message(f"busy{number}", source="a") for number in range(3000)]
    with any_world.engine(receiver(), monitors=[Keeps], clock=clock, **windows(100, 60.0)):
        any_world.publish(quiet)
        heard(any_world, script, 1)
        any_world.publish(*busy)
        heard(any_world, script, 3001)
        clock.ahead += 5 * 3600
        any_world.publish(quiet, message("last", source="a"))
        assert heard(any_world, script, 3002).count("quiet") == 1


def test_a8_7_a8_8_the_default_domains(world):
    settings = [receiver("r1", destination="queue:orders"), receiver("r2", destination="topic:news")]
    with world.engine(*settings, monitors=[Hears]):
        pass
    assert {one.id: one.domain for one in inspect.registry(world.store)} == {
        "r1": "memory:queue:orders",
        "r2": "memory:r2",
    }


def test_a8_7_a8_8_e4_a_topic_and_a_queue_of_one_name_do_not_affect_one_another(any_world, script):
    """Given a receiver of a topic whose id is the name of a queue, when both bring an id, then neither is dropped."""
    parts = [receiver("same", destination="topic:news"), receiver("other", destination="queue:same")]
    with any_world.engine(*parts, monitors=[Keeps]) as engine:
        any_world.wait(lambda: engine.status().receivers["same"][0] == "receiving")
        any_world.publish("a", to="topic:news")
        any_world.publish("a", to="queue:same")
        any_world.wait(lambda: script.of("Keeps") == ["a", "a"])
        assert sum(counters.duplicates for _, counters in engine.status().receivers.values()) == 0
    assert {one.id: one.domain for one in inspect.registry(any_world.store)} == {
        "same": "memory:same",
        "other": "memory:queue:same",
    }


def test_a8_9_a_shared_domain_drops_duplicates_of_several_connections(any_world, script):
    connections = {"memory": any_world.broker.connection(), "second": any_world.broker.connection("second")}
    settings = [
        receiver("r1", dup_detection_domain_id="orders"),
        receiver("r2", connection="second", dup_detection_domain_id="orders"),
    ]
    with any_world.engine(*settings, monitors=[Keeps], connections=connections) as engine:
        any_world.publish("a", to="queue:r1")
        any_world.wait(lambda: script.of("Keeps") == ["a"])
        any_world.publish("a", "b", to="queue:r2")
        any_world.wait(lambda: script.of("Keeps") == ["a", "b"])
        assert engine.status().receivers["r2"][1].duplicates == 1


def test_a8_10_by_default_queues_and_connections_do_not_share_ids(world, script):
    connections = {"memory": world.broker.connection(), "second": world.broker.connection("second")}
    settings = [
        receiver("r1", destination="queue:q"),
        receiver("r2"),
        receiver("r3", destination="queue:q2", connection="second"),
    ]
    with world.engine(*settings, monitors=[Keeps], connections=connections):
        for queue in ("q", "r2", "q2"):
            world.publish("a", to=f"queue:{queue}")
        world.wait(lambda: script.of("Keeps") == ["a", "a", "a"])


def test_a8_10_by_default_connections_do_not_share_the_ids_of_queues_of_one_name(any_world, script):
    """Given two brokers with a queue `q` each, when both bring an id, then neither is dropped; a repeat of each is."""
    other = MemoryBroker()
    connections = {"memory": any_world.broker.connection(), "second": other.connection("second")}
    parts = [receiver("r1", destination="queue:q"), receiver("r2", destination="queue:q", connection="second")]
    with any_world.engine(*parts, monitors=[Keeps], connections=connections) as engine:
        for broker in (any_world.broker, other) * 2:
            broker.publish("queue:q", [message("a")])
        counters = [engine.receivers[name].counters for name in ("r1", "r2")]
        any_world.wait(lambda: [one.received for one in counters] == [2, 2])
        any_world.wait(lambda: [one.duplicates for one in counters] == [1, 1])
        any_world.wait(lambda: script.of("Keeps") == ["a", "a"])
    assert [one.domain for one in inspect.registry(any_world.store)] == ["memory:queue:q", "second:queue:q"]


def test_a8_12_at_least_once_receivers_drop_nothing(world, script):
    with world.engine(receiver("in", AT_LEAST_ONCE), monitors=[Keeps]):
        world.publish("a", "a")
        assert heard(world, script, 2) == ["a", "a"]


def test_t17_the_flag_of_a_broker_decides_nothing(world, script):
    """One that flags what nobody has handled, and not what comes again."""

    def flagged(body, one, *, again):
        return Message(body, {"uniqueMessageId": one}, headers=Headers(redelivered=again))

    with world.engine(receiver(), monitors=[Keeps]) as engine:
        for one in (
            flagged(b"new", "1", again=True),
            flagged(b"repeat", "1", again=False),
            flagged(b"end", "2", again=True),
        ):
            world.broker.publish("queue:in", [one])
        assert heard(world, script, 2) == ["new", "end"]
        assert engine.status().receivers["in"][1].duplicates == 1


def test_a8_13_z10_another_source_with_the_same_id_is_a_duplicate(world, script):
    with world.engine(receiver(), monitors=[Keeps]):
        world.publish(message("first", "a", "one"), message("second", "a", "two"), message("last", "z"))
        assert heard(world, script, 2) == ["first", "last"]


def test_a8_15_a8_16_windows_are_the_same_after_a_restart(any_world, script):
    """A repeat arms its window anew; what expired is gone from the store; both survive."""
    clock = Moved()
    options = {"monitors": [Keeps], "clock": clock, **windows(2, 10.0)}
    with any_world.engine(receiver(max_batch_size=1), **options):
        any_world.publish("a", "b", "a", "c")
        heard(any_world, script, 3)
        clock.ahead += 100
        any_world.publish("d", "e", "f", "g")
        heard(any_world, script, 7)
        before = any_world.stored_ids()
    assert "b" not in before
    with any_world.engine(receiver(max_batch_size=1), **options):
        any_world.publish("g", "f", "b")
        assert heard(any_world, script, 8)[7:] == ["b"]


def test_a8_17_the_time_of_an_id_is_that_of_its_receipt(any_world, script):
    """Whatever the producer's clock says."""
    clock = Moved()
    skewed = [
        Message(b"x", {"uniqueMessageId": str(n)}, headers=Headers(timestamp=stamp))
        for n, stamp in enumerate((0, 4_102_444_800_000, -5))
    ]
    with any_world.engine(receiver(max_batch_size=1), monitors=[Keeps], clock=clock):
        any_world.publish(*skewed)
        heard(any_world, script, 3)
        times = [one.time for one in inspect.accepted_ids(any_world.store, "memory:queue:in")]
    assert len(times) == 3
    assert times == sorted(times)
    assert 0 <= times[0] <= times[-1] < 60


def test_a8_18_the_store_reaches_a_plateau(any_world, script):
    """Space is used again.

    PostgreSQL vacuums by itself, now and then, and SQLite copies its log into the file when it is long; here both are
    told to after each round.
    """
    sizes = []
    with any_world.engine(receiver(max_batch_size=200), monitors=[Hears], **windows(100, 0.0)) as engine:
        for round_ in range(8):
            any_world.publish(*numbered(1000, f"round{round_}-"))
            any_world.wait(lambda count=1000 * (round_ + 1): len(script.of("Hears")) >= count)
            assert engine.checkpoint()
            assert len(any_world.stored_ids()) <= 4 * 100 + 2 * 200
            assert any_world.received_rows() == 0
            sizes.append(size_of(any_world.store))
    assert sizes[-1] <= 1.1 * max(sizes[:4])


def size_of(store: str) -> int:
    """Bytes that a store takes up: of the file, or of the tables that it has on the server."""
    if store.startswith("sqlite"):
        path = Path(store.removeprefix("sqlite:///"))
        with contextlib.closing(sqlite3.connect(path)) as connection:
            assert connection.execute("PRAGMA wal_checkpoint").fetchone()[0] == 0
        return path.stat().st_size
    with contextlib.closing(psycopg.connect(store, autocommit=True)) as connection:
        connection.execute("VACUUM")
        sizes = [connection.execute("SELECT pg_total_relation_size(%s)", [name]) for name in metadata.tables]
        return sum(one.fetchone()[0] for one in sizes)


def test_a8_20_two_receivers_race_for_one_id(any_world, script):
    """Exactly one delivers, and no transaction fails."""
    pair = [receiver(name, dup_detection_domain_id="d", max_batch_size=1) for name in ("r1", "r2")]
    with any_world.engine(*pair, monitors=[Keeps]) as engine:
        for number in range(60):
            for name in ("r1", "r2"):
                any_world.publish(f"m{number}", to=f"queue:{name}")
        any_world.wait(lambda: all(any_world.broker.waiting(f"queue:{name}") == 0 for name in ("r1", "r2")))
        any_world.wait(lambda: the_monitor(engine, Keeps).count >= 60)
        any_world.wait(lambda: sum(one.duplicates for _, one in engine.status().receivers.values()) == 60)
        assert engine.failure is None
    assert sorted(script.of("Keeps")) == sorted(f"m{number}" for number in range(60))


def test_t19_94_a_repeated_id_with_another_body_is_dropped_with_a_warning(world, script, logs):
    with world.engine(receiver(), monitors=[Keeps]) as engine:
        world.publish(message("one", "id"), message("two", "id"))
        world.wait(lambda: engine.status().receivers["in"][1].conflicts == 1)
    assert script.of("Keeps") == ["one"]
    (line,) = [one for one in logs if "W5402" in one["event"]]
    assert (line["log_level"], line["unique_id"]) == ("warning", "id")


def test_94_repeated_ids_with_other_bodies_are_told_again_whenever_their_count_has_doubled(world, script, logs):
    with world.engine(receiver(), monitors=[Keeps]) as engine:
        world.publish(message("one", "id"))
        for count in range(1, 6):
            world.publish(message(f"other {count}", "id"))
            world.wait(lambda count=count: engine.status().receivers["in"][1].conflicts == count)
    assert [one["count"] for one in logs if "W5402" in one["event"]] == [1, 2, 4]


def test_a_start_warns_of_ids_that_are_made_by_another_template_than_the_stored_ones(world, script, logs):
    def warnings():
        return [one for one in logs if one["event"].startswith("W4302")]

    templates = ("${property.uniqueMessageId}", "${header.message_id}", "${header.message_id}")
    for number, template in enumerate(templates):
        with world.engine(receiver(unique_message_id=template), monitors=[Keeps]) as engine:
            world.publish(message(f"m{number}", "id"))
            world.wait(lambda: engine.status().receivers["in"][1].received == 1)
        assert len(warnings()) == min(number, 1)
    (line,) = warnings()
    assert (line["log_level"], line["receiver"]) == ("warning", "in")
    assert (line["before"], line["after"]) == templates[:2]


def test_z5_an_idle_engine_forgets_nothing_over_a_restart(any_world, script):
    clock = Moved()
    options = {"monitors": [Keeps], "clock": clock, **windows(0, 1.0)}
    with any_world.engine(receiver(), **options):
        any_world.publish("a")
        heard(any_world, script, 1)
    clock.ahead += 10 * 86400
    with any_world.engine(receiver(), **options) as engine:
        any_world.publish("a")
        any_world.wait(lambda: engine.status().receivers["in"][1].duplicates == 1)


def test_t22_engine_time_stands_while_the_engine_is_down(world):
    clock = Moved()
    with world.engine(monitors=[Keeps], clock=clock) as engine:
        assert engine.checkpoint()
        stopped_at = engine.status().engine_time
    clock.ahead += 10 * 86400
    with world.engine(monitors=[Keeps], clock=clock) as engine:
        assert stopped_at - 60 < engine.status().engine_time < stopped_at + 60


def test_exactly_once_is_exactly_once_over_restarts_and_lost_connections(any_world, script):
    for life in range(5):
        any_world.publish(*numbered(20, first=20 * life + 1))
        engine = any_world.engine(receiver("in", EXACTLY_ONCE, max_batch_size=7), monitors=[Keeps])
        with engine:
            any_world.wait(lambda engine=engine: the_monitor(engine, Keeps).count)
            any_world.broker.drop_connections()
            any_world.crash(engine)
    with any_world.engine(receiver("in", EXACTLY_ONCE, max_batch_size=7), monitors=[Keeps]) as engine:
        any_world.wait(lambda: the_monitor(engine, Keeps).count == 100)
        assert sorted(the_monitor(engine, Keeps).bodies) == sorted(f"m{number}" for number in range(1, 101))


def test_a8_8_receivers_of_a_topic_behind_a_logical_name_have_a_domain_each(world, script):
    parts = [receiver(name, destination="prices") for name in ("one", "two")]
    with world.engine(*parts, monitors=[Hears], destinations={"prices": "topic:prices"}) as engine:
        world.wait(lambda: all(state == "receiving" for state, _ in engine.status().receivers.values()))
        world.publish("a", to="topic:prices")
        world.wait(lambda: script.of("Hears") == ["a", "a"])
        assert {part.intake.domain for part in engine.receivers.values()} == {
            "memory:one:topic:prices",
            "memory:two:topic:prices",
        }


def test_a8_9_a_domain_by_default_is_of_the_queue_that_a_logical_name_leads_to(any_world, script):
    for place in ("here", "there"):
        with any_world.engine(
            receiver(destination="orders"), monitors=[Hears], destinations={"orders": f"queue:{place}"}
        ):
            any_world.publish("a", place, to=f"queue:{place}")
            any_world.wait(lambda place=place: place in script.of("Hears"))
    assert script.of("Hears") == ["a", "here", "a", "there"]
    assert any_world.stored_ids("memory:queue:here")
    assert any_world.stored_ids("memory:queue:there")


def test_a1_16_a_receiver_joins_a_domain_while_its_only_other_one_leaves(any_world, script, gate):
    """Given a receiver on its way out, when another one of its domain is added, then that one deduplicates."""
    shared = {"destination": "queue:in", "dup_detection_domain_id": "shared"}
    script.message = lambda *_: gate.wait()
    with any_world.engine(monitors=[Hears]) as engine:
        engine.add_receiver(receiver("leaves", **shared))
        any_world.publish("a")
        any_world.wait(lambda: script.of("Hears") == ["a"])
        engine.remove("leaves")
        engine.add_receiver(receiver("joins", **shared))
        gate.set()
        any_world.wait(lambda: engine.removed("leaves"))
        any_world.publish("b", "b")
        any_world.wait(lambda: engine.status().receivers["joins"][1].duplicates == 1)
        assert engine.failure is None


@pytest.mark.parametrize("size", [100, 10])
def test_a_batch_in_doubt_stays_known_when_batches_become_smaller(any_world, script, size):
    """Given a batch of 100 without acknowledgement and a window of 10, when it comes again, then in any batches."""
    small = windows(10, 0.0)
    any_world.publish(*numbered(100))
    any_world.fail_at("rx.ack.before", RuntimeError("dies"))
    with any_world.engine(receiver(max_batch_size=100), monitors=[Keeps], **small) as engine:
        any_world.wait(lambda: engine.failure is not None)
        any_world.crash(engine)
    with any_world.engine(receiver(max_batch_size=size), monitors=[Keeps], **small) as engine:
        any_world.wait(lambda: any_world.broker.waiting("queue:in") == any_world.broker.unacknowledged("queue:in") == 0)
        any_world.wait(lambda: len(engine.contexts["main"].queue) == 0)
        assert the_monitor(engine, Keeps).bodies == [f"m{number}" for number in range(1, 101)]
