"""Persistence on and off, and the registry of receivers and senders (docs/rules.md, section A1)."""

from dataclasses import replace
from pathlib import Path

import pytest

from correlator import Engine, PartStatus, Reliability
from correlator.errors import ConfigError, RecoveryRefused, UsageError
from correlator.settings import ConnectionSettings, DuplicateDetectionSettings
from correlator.storage import inspect
from tests.runtime.flows import AlsoHears, Forwards, Hears, Keeps, Watches
from tests.runtime.world import (
    APP_CONTROLLED,
    AT_LEAST_ONCE,
    BEST_EFFORT,
    EXACTLY_ONCE,
    Queues,
    World,
    contents,
    message,
    monitor,
    numbered,
    receiver,
    sender,
    the_monitor,
)

HOUR = 3600.0


def sends_on(monitor, message):
    monitor.send(message.body, to="out")


def acknowledges(monitor, notice):
    monitor.acknowledge_and_resume(notice.receiver)


# --- rules A1.1 to A1.3 ---


def test_a1_1_without_persistence_messages_flow_and_nothing_is_stored(no_store, script, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    script.message = sends_on
    with no_store.engine(receiver("in", BEST_EFFORT), sender("out", BEST_EFFORT), monitors=[Hears]) as engine:
        no_store.publish("a", "b")
        no_store.wait_for("a", "b")
        assert engine.checkpoint()
        assert engine.status().store_commits == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("reliability", [AT_LEAST_ONCE, EXACTLY_ONCE])
@pytest.mark.parametrize("part", [receiver, sender])
def test_a1_2_a_static_reliable_part_needs_persistence(no_store, part, reliability):
    with pytest.raises(ConfigError) as refused:
        no_store.engine(part("orders", reliability))
    text = str(refused.value)
    assert refused.value.code == "E1205"
    assert "'orders'" in text
    assert str(reliability) in text
    assert "Set 'store', or use BEST_EFFORT" in text


@pytest.mark.parametrize("reliability", [AT_LEAST_ONCE, EXACTLY_ONCE])
def test_a1_2_a_dynamic_reliable_part_needs_persistence_and_nothing_is_half_made(no_store, reliability):
    with no_store.engine(monitors=[Hears]) as engine:
        with pytest.raises(ConfigError, match="E1205"):
            engine.add_receiver(receiver("r", reliability))
        with pytest.raises(ConfigError, match="E1205"):
            engine.add_sender(sender("s", reliability))
        assert (engine.receivers, engine.senders, engine.registry) == ({}, {}, {})


def test_z1_app_controlled_is_no_sender_mode(world):
    with pytest.raises(ConfigError, match=r"E1204 senders\[0\]\.reliability: APP_CONTROLLED is for receivers only"):
        world.engine(sender("out", APP_CONTROLLED))


def test_a1_2_a_persistent_monitor_needs_persistence(no_store):
    engine = no_store.engine(monitors=[Keeps])
    with pytest.raises(ConfigError, match="E1206"):
        engine.start()


def test_a1_3_every_mode_works_beside_the_others(any_world, script):
    script.suspended = acknowledges
    modes = {"b": BEST_EFFORT, "a": AT_LEAST_ONCE, "e": EXACTLY_ONCE, "c": APP_CONTROLLED}
    with any_world.engine(*[receiver(name, mode) for name, mode in modes.items()], monitors=[Hears]):
        for name in modes:
            any_world.publish(*numbered(20, name), to=f"queue:{name}")
        any_world.wait(lambda: len([one for one in script.of("Hears") if not one.startswith("susp")]) == 80)
        any_world.wait(lambda: all(any_world.broker.unacknowledged(f"queue:{name}") == 0 for name in modes))


# --- the registry ---


def test_a1_4_every_part_is_recorded(any_world):
    with any_world.engine(receiver("r1", EXACTLY_ONCE), sender("s1", BEST_EFFORT), monitors=[Hears]) as engine:
        engine.add_receiver(receiver("r2", BEST_EFFORT))
        engine.add_sender(sender("s2", AT_LEAST_ONCE))
        rows = [
            (one.id, one.kind, one.origin, one.reliability, one.destination, one.domain, one.connection)
            for one in inspect.registry(any_world.store)
        ]
    assert rows == [
        ("r1", "receiver", "static", "EXACTLY_ONCE", "queue:r1", "memory:queue:r1", "memory"),
        ("r2", "receiver", "dynamic", "BEST_EFFORT", "queue:r2", "memory:queue:r2", "memory"),
        ("s1", "sender", "static", "BEST_EFFORT", "queue:s1", "", "memory"),
        ("s2", "sender", "dynamic", "AT_LEAST_ONCE", "queue:s2", "", "memory"),
    ]


@pytest.mark.kill9
def test_a1_5_t64_a_dynamic_best_effort_receiver_comes_back_after_kill_9(children, tmp_path, store):
    queues = Queues(tmp_path)
    flow = {"store": store, "broker": queues.url, "receive": ""}
    assert children.run(**flow, add=["extra"], wanted=1, kill="rx.poll", hit=2)["killed"]
    queues.publish([message("a")], to="queue:extra")
    again = children.run(**flow, wanted=1)
    assert (again["exit"], queues.bodies()) == (0, ["1:a"])


def test_a1_5_dynamic_parts_come_back_with_a_restart(any_world, script):
    script.message = sends_on
    with any_world.engine(monitors=[Hears]) as engine:
        engine.add_receiver(receiver("in", EXACTLY_ONCE))
        engine.add_sender(sender("out", EXACTLY_ONCE))
        any_world.publish("a")
        any_world.wait_for("a")
    with any_world.engine(monitors=[Hears]) as engine:
        any_world.publish("a", "b")
        any_world.wait_for("a", "b")
        assert engine.add_receiver(receiver("in", EXACTLY_ONCE)) is engine.receivers["in"]


def test_a1_7_42_a_static_part_cannot_be_removed_from_the_configuration(any_world):
    with any_world.engine(receiver("r1"), sender("s1"), monitors=[Keeps]):
        any_world.publish("a", to="queue:r1")
        any_world.wait(lambda: any_world.broker.waiting("queue:r1") == 0)
    before = contents(any_world.store)
    engine = any_world.engine(sender("s1"), monitors=[Keeps])
    with pytest.raises(RecoveryRefused, match="E4301 receiver 'r1': .*remove is only possible for dynamic") as refused:
        engine.start()
    assert refused.value.exit_status != 0
    assert contents(any_world.store) == before


def test_a1_8_only_dynamic_parts_can_be_removed(world):
    with world.engine(receiver("r1"), sender("s1"), monitors=[Hears]) as engine:
        for static in ("r1", "s1"):
            with pytest.raises(UsageError, match=f"E8301 .* '{static}': is static"):
                engine.remove(static)
        with pytest.raises(UsageError, match="E8302 'nobody'"):
            engine.remove("nobody")


def test_a1_9_t29_45_new_static_parts_must_not_clash_with_dynamic_ones(world):
    with world.engine(monitors=[Hears]) as engine:
        engine.add_receiver(receiver("x", BEST_EFFORT))
    with pytest.raises(RecoveryRefused, match="E4304 receiver 'x'"):
        world.engine(receiver("x", BEST_EFFORT), monitors=[Hears]).start()
    with world.engine(receiver("y", BEST_EFFORT), monitors=[Hears]) as engine:
        assert sorted(engine.receivers) == ["x", "y"]


def test_a1_10_44_dynamic_configuration_never_changes(world, script):
    with world.engine(monitors=[Hears]) as engine:
        engine.add_receiver(receiver("in", EXACTLY_ONCE))
        with pytest.raises(UsageError, match="E8303 receiver 'in': exists already"):
            engine.add_receiver(receiver("in", EXACTLY_ONCE, destination="queue:other"))
        world.publish("a")
        world.wait(lambda: script.of("Hears") == ["a"])


def test_a1_11_the_destination_of_a_receiver_may_move_with_an_explicit_domain(any_world, script):
    explicit = {"dup_detection_domain_id": "orders"}
    with any_world.engine(receiver("r1", **explicit), monitors=[Keeps]):
        any_world.publish("a", to="queue:r1")
        any_world.wait(lambda: script.of("Keeps") == ["a"])
    with any_world.engine(receiver("r1", destination="queue:q2", **explicit), monitors=[Keeps]):
        any_world.publish("a", "b", to="queue:q2")
        any_world.wait(lambda: script.of("Keeps") == ["a", "b"])
        any_world.wait(lambda: any_world.broker.unacknowledged("queue:q2") == 0)
    assert script.of("Keeps") == ["a", "b"]


def test_a1_12_t18_with_the_default_domain_it_may_not(world):
    with world.engine(receiver("r1"), monitors=[Hears]):
        pass
    with pytest.raises(RecoveryRefused, match="E4302 .*dup_detection_domain_id: 'memory:queue:r1'"):
        world.engine(receiver("r1", destination="queue:q2"), monitors=[Hears]).start()


def test_a1_13_brokers_may_change_and_get_what_was_not_sent(any_world):
    new = World(None)
    any_world.broker.publish("queue:in", numbered(3))
    engine = any_world.engine(receiver(), sender(connection="away"), monitors=[Forwards], connections=two(any_world))
    any_world.away.down = True
    with engine:
        any_world.wait(lambda: engine.status().senders["out"][2] == 3)
        any_world.crash(engine)
    connections = {"memory": any_world.broker.connection(), "away": new.broker.connection()}
    with any_world.engine(receiver(), sender(connection="away"), monitors=[Forwards], connections=connections):
        new.wait_for("1:m1", "2:m2", "3:m3")
    assert any_world.away.received("queue:out") == []


def two(world: World):
    """Connections `memory` and `away`, a broker of its own."""
    world.away = type(world.broker)()
    return {"memory": world.broker.connection(), "away": world.away.connection("away")}


def test_a1_14_logical_destinations_are_pointed_elsewhere_without_the_registry_noticing(any_world, script):
    script.message = sends_on
    parts = (receiver("in", destination="orders"), sender("out", destination="results"))
    for where in ("test", "production"):
        physical = {"orders": f"queue:orders-{where}", "results": f"queue:results-{where}"}
        with any_world.engine(*parts, monitors=[Hears], destinations=physical):
            any_world.publish(where, to=f"queue:orders-{where}")
            any_world.wait_for(where, at=f"queue:results-{where}")


def test_a1_14_dynamic_parts_follow_logical_destinations_over_a_restart(any_world, script):
    """Given parts that code added to logical names, when another mapping leads elsewhere, then they do, without code."""
    script.message = sends_on
    for where in ("test", "production"):
        physical = {"orders": f"queue:orders-{where}", "results": f"queue:results-{where}"}
        with any_world.engine(monitors=[Hears], destinations=physical) as engine:
            if where == "test":
                engine.add_receiver(receiver("in", destination="orders"))
                engine.add_sender(sender("out", destination="results"))
            recorded = {one.id: (one.origin, one.destination) for one in inspect.registry(any_world.store)}
            assert recorded == {"in": ("dynamic", "orders"), "out": ("dynamic", "results")}
            any_world.publish(where, to=f"queue:orders-{where}")
            any_world.wait_for(where, at=f"queue:results-{where}")
    assert any_world.sent("queue:results-test") == ["test"]


def test_a1_15_a_copy_of_a_store_is_examined_without_touching_production(any_world, copied):
    world = any_world
    world.broker.publish("queue:in", numbered(3))
    with world.engine(receiver(), sender(connection="away"), monitors=[Forwards], connections=two(world)) as engine:
        world.away.down = True
        world.wait(lambda: engine.status().senders["out"][2] == 3)
        world.crash(engine)
    copy = copied(world.store)
    world.away.down = False
    before = list(world.trace)
    elsewhere = World(copy)
    connections = {name: elsewhere.broker.connection(name) for name in ("memory", "away")}
    with elsewhere.engine(receiver(), sender(connection="away"), monitors=[Forwards], connections=connections):
        elsewhere.publish("new")
        elsewhere.wait_for("1:m1", "2:m2", "3:m3", "4:new")
    assert (world.trace, world.away.received("queue:out")) == (before, [])


# --- removing and adding ---


def no_rows_of(world, part: str) -> bool:
    """Whether the store holds nothing of a receiver, and nothing in its duplicate detection domain."""
    recorded = [one.id for one in inspect.registry(world.store)]
    return part not in recorded and (world.received_rows(), world.stored_ids()) == (0, [])


@pytest.mark.parametrize("point", ["rx.submit", "rx.tx.begin", "rx.tx.commit.after", "rx.ack.before", "rx.enqueue"])
def test_a1_16_a_removed_receiver_delivers_what_it_has_says_so_and_leaves_no_rows(any_world, script, point):
    """Given a batch in flight between broker and context, when its receiver is removed, then it is handled before."""
    clean = []
    script.status = lambda monitor, told: clean.append(no_rows_of(any_world, "in")) if is_removed(told) else None
    with any_world.engine(monitors=[Keeps, Watches], interval=HOUR) as engine:
        engine.add_receiver(receiver("in", EXACTLY_ONCE, max_batch_size=5))
        any_world.wait(lambda: "in OK" in script.of("Watches"))
        (in_flight,) = any_world.hold_at(point)
        any_world.publish(*numbered(8))
        in_flight.wait_reached()
        engine.remove("in")
        wait_looked(any_world, engine)
        assert (engine.removed("in"), script.of("Keeps"), inspect.registry(any_world.store)[0].id) == (False, [], "in")
        in_flight.open()
        any_world.wait(lambda: "in REMOVED" in script.of("Watches"))
        any_world.wait(lambda: engine.removed("in"))
        assert engine.receivers == {}
    of_both = [what for what in script.heard if what[0] == "Keeps" or what[1] == "in REMOVED"]
    assert of_both == [*(("Keeps", f"m{number}") for number in range(1, 6)), ("Watches", "in REMOVED")]
    assert clean == [True]
    assert inspect.registry(any_world.store) == []
    assert any_world.broker.waiting("queue:in") == 3


def is_removed(told) -> bool:
    return told.status is PartStatus.REMOVED


def wait_looked(world, engine):
    """Wait until the remover has looked often enough to carry a removal through, if it thought that it may."""
    looks = []
    step = engine.remover.step
    engine.remover.step = lambda: looks.append(None) or step()
    world.wait(lambda: len(looks) >= 10)


def test_a1_16_a_removed_receiver_waits_until_what_it_delivered_is_handled(any_world, script):
    """Given a batch that is stored, acknowledged and in the queue of its context, then its rows stay until it is handled."""
    with any_world.engine(monitors=[Keeps, Watches]) as engine:
        engine.add_receiver(receiver("in", EXACTLY_ONCE, max_batch_size=5))
        any_world.wait(lambda: "in OK" in script.of("Watches"))
        (before_events,) = any_world.hold_at("app.event")
        any_world.publish(*numbered(5))
        any_world.wait(lambda: any_world.received_rows() == 5 and not any_world.broker.unacknowledged("queue:in"))
        engine.remove("in")
        any_world.wait(lambda: engine.receivers["in"].quiet)
        wait_looked(any_world, engine)
        assert (engine.removed("in"), script.of("Keeps"), any_world.received_rows()) == (False, [], 5)
        before_events.open()
        any_world.wait(lambda: "in REMOVED" in script.of("Watches"))
        assert script.of("Keeps") == ["m1", "m2", "m3", "m4", "m5"]
        assert no_rows_of(any_world, "in")


def test_a1_16_a_receiver_may_come_again_under_its_id(world, script):
    with world.engine(monitors=[Keeps]) as engine:
        for text in ("a", "b"):
            engine.add_receiver(receiver("in", AT_LEAST_ONCE))
            world.publish(text)
            world.wait(lambda text=text: text in script.of("Keeps"))
            engine.remove("in")
            world.wait(lambda: engine.removed("in"))
        engine.add_receiver(receiver("in", AT_LEAST_ONCE))
        world.publish("c")
        world.wait(lambda: "c" in script.of("Keeps"))
        world.crash(engine)
    with world.engine(monitors=[Keeps]) as engine:
        world.wait(lambda: the_monitor(engine, Keeps).bodies == ["a", "b", "c"])


def test_a1_16_numbers_go_on_behind_those_that_a_checkpoint_still_knows(world, script):
    """A cut that was taken while the removal was committed may still name the receiver."""
    with world.engine(monitors=[Keeps]) as engine:
        engine.contexts["main"].queue.entered["in"] = 100
        engine.add_receiver(receiver("in", AT_LEAST_ONCE))
        world.publish("a")
        world.wait(lambda: script.of("Keeps") == ["a"])
        world.wait(lambda: world.broker.unacknowledged("queue:in") == 0)
        assert engine.contexts["main"].queue.entered["in"] == 101


def test_a1_16_ids_of_a_removed_receiver_are_held_for_nobody(any_world, script):
    """Given a window of nearly nothing in a domain that two receivers share, when one is removed, its last id is gone."""
    nothing = DuplicateDetectionSettings(per_source_window_size=0, expiry_time=1e-9)
    parts = receiver("stays", dup_detection_domain_id="shared")
    goes = receiver("goes", dup_detection_domain_id="shared")
    with any_world.engine(parts, monitors=[Keeps], duplicate_detection=nothing) as engine:
        engine.add_receiver(goes)
        any_world.publish("a", to="queue:goes")
        any_world.wait(lambda: script.of("Keeps") == ["a"])
        any_world.publish("b", to="queue:stays")
        any_world.wait(lambda: script.of("Keeps") == ["a", "b"])
        assert "a" in engine.writer.domains.detectors["shared"]
        engine.remove("goes")
        any_world.wait(lambda: engine.removed("goes"))
        assert "a" not in engine.writer.domains.detectors["shared"]
        any_world.crash(engine)
    with any_world.engine(parts, monitors=[Keeps], duplicate_detection=nothing) as engine:
        assert "a" not in engine.writer.domains.detectors["shared"]
        engine.add_receiver(goes)
        any_world.publish("a", to="queue:goes")
        any_world.wait(lambda: script.of("Keeps") == ["a", "b", "a"])


@pytest.mark.parametrize("reliability", [EXACTLY_ONCE, AT_LEAST_ONCE, BEST_EFFORT])
def test_a1_17_a_removed_sender_sends_what_it_has_and_then_says_so(any_world, script, reliability):
    """Given 100 sends for a broker that is down, when their sender is removed, then it goes when they are there."""
    script.message = sends_on
    at_broker = []
    script.status = lambda monitor, told: (
        at_broker.append(len(any_world.away.received("queue:out"))) if is_removed(told) else None
    )
    parts = receiver("in", BEST_EFFORT)
    with any_world.engine(parts, monitors=[Hears, Watches], connections=two(any_world)) as engine:
        any_world.away.down = True
        engine.add_sender(sender("out", reliability, connection="away"))
        any_world.publish(*numbered(100))
        any_world.wait(lambda: len(script.of("Hears")) == 100)
        any_world.wait(lambda: engine.status().senders["out"][2] == 100)
        any_world.wait(lambda: "out ERROR" in script.of("Watches"))
        engine.remove("out")
        errors = engine.senders["out"].counters.connection_errors
        any_world.wait(lambda: engine.senders["out"].counters.connection_errors >= errors + 3)
        assert not engine.removed("out")
        assert (engine.status().senders["out"][2], any_world.away.received("queue:out")) == (100, [])
        any_world.away.down = False
        any_world.wait(lambda: "out REMOVED" in script.of("Watches"))
        any_world.wait(lambda: engine.removed("out"))
        assert at_broker == [100]
        assert (any_world.outbox_rows(), engine.senders) == (0, {})
    bodies = [one.body.decode() for one in any_world.away.received("queue:out")]
    assert bodies == [f"m{number}" for number in range(1, 101)]
    assert [what for what in script.of("Watches") if what.startswith("out")][-2:] == ["out OK", "out REMOVED"]


def test_a1_17_a2_16_sends_after_remove_raise(world, script):
    script.message = sends_on
    engine = world.engine(receiver("in", BEST_EFFORT), monitors=[Hears])
    with engine:
        engine.add_sender(sender("out", EXACTLY_ONCE))
        engine.remove("out")
        world.wait(lambda: engine.removed("out"))
        world.publish("late")
        world.wait(lambda: engine.failure is not None)
    assert engine.failure.code == "E8001"


def test_a_removed_sender_may_come_again_under_its_id(world, script):
    script.message = sends_on
    with world.engine(receiver("in", BEST_EFFORT), monitors=[Hears]) as engine:
        engine.add_sender(sender("out", EXACTLY_ONCE))
        engine.remove("out")
        world.wait(lambda: engine.removed("out"))
        engine.add_sender(sender("out", EXACTLY_ONCE))
        world.publish("a")
        world.wait_for("a")


def test_a1_18_sends_before_the_connection_is_up_are_kept(any_world, script):
    script.message = sends_on
    engine = any_world.engine(receiver("in", BEST_EFFORT), monitors=[Hears], connections=two(any_world))
    any_world.away.down = True
    with engine:
        engine.add_sender(sender("out", EXACTLY_ONCE, connection="away"))
        any_world.publish("a", "b", "c")
        any_world.wait(lambda: engine.status().senders["out"][2] == 3)
        any_world.away.down = False
        any_world.wait(lambda: len(any_world.away.received("queue:out")) == 3)


def test_a1_19_ids_of_dynamic_parts_must_not_clash_with_static_ones(world):
    with world.engine(receiver("r1"), sender("s1"), monitors=[Hears]) as engine:
        for part in (receiver("r1"), receiver("s1", BEST_EFFORT)):
            with pytest.raises(UsageError, match=r"E8303 .*exists already \(static\)"):
                engine.add_receiver(part)
        with pytest.raises(UsageError, match="E8303"):
            engine.add_sender(sender("s1"))


def test_a1_19_an_unknown_option_or_connection_raises(world):
    with world.engine(monitors=[Hears]) as engine:
        with pytest.raises(TypeError):
            receiver("r", no_such_setting=1)
        with pytest.raises(
            ConfigError, match=r"E1211 receiver 'r'\.connection: 'nowhere' is not defined. Defined: memory"
        ):
            engine.add_receiver(receiver("r", connection="nowhere"))


def test_a1_19_a_dynamic_durable_subscription_receives_from_its_making(world, script):
    with world.engine(monitors=[Hears]) as engine:
        engine.add_receiver(receiver("sub", EXACTLY_ONCE, destination="topic:news"))
        world.wait(lambda: engine.status().receivers["sub"][0] == "receiving")
        world.publish("a", to="topic:news")
        world.wait(lambda: script.of("Hears") == ["a"])
    world.publish("b", to="topic:news")
    with world.engine(monitors=[Hears]):
        world.wait(lambda: script.of("Hears") == ["a", "b"])


def sends_by_default(monitor, message):
    monitor.send(message.body, to="memory-default-sender", destination="results")


def with_defaults(engine: Engine, connection: str, reliability: Reliability) -> Engine:
    """The engine, but the senders of a connection are of this reliability by default."""
    settings = ConnectionSettings(type="memory", default_sender_reliability=reliability)
    destinations = {"results": "queue:out"}
    changed = replace(engine.settings, connections={connection: settings}, destinations=destinations)
    return Engine(changed, connections=engine.parts._connections)


@pytest.mark.parametrize("reliability", [BEST_EFFORT, AT_LEAST_ONCE, EXACTLY_ONCE])
def test_a1_20_a_connection_without_senders_has_a_default_sender(any_world, script, reliability):
    script.message = sends_by_default
    made = any_world.engine(receiver("in", AT_LEAST_ONCE), monitors=[Hears, Watches])
    with with_defaults(made, "memory", reliability) as engine:
        assert "memory-default-sender" not in engine.status().senders
        any_world.publish("a", "b")
        any_world.wait_for("a", "b")
        assert engine.status().senders["memory-default-sender"][0] == "OK"
        told = ["memory-default-sender CONNECTING", "memory-default-sender OK"]
        any_world.wait(lambda: [one for one in script.of("Watches") if "default" in one] == told)
        recorded = {one.id: one for one in inspect.registry(any_world.store)}["memory-default-sender"]
        assert (recorded.origin, recorded.reliability) == ("dynamic", reliability)


def test_a1_20_what_a_default_sender_holds_leaves_after_a_restart(any_world, script):
    script.message = lambda monitor, message: monitor.send(message.body, "away-default-sender", destination="results")
    parts = [receiver("in", AT_LEAST_ONCE)]
    connections = two(any_world)
    any_world.away.down = True
    first = any_world.engine(*parts, monitors=[Hears], connections=connections)
    with with_defaults(first, "away", EXACTLY_ONCE) as engine:
        any_world.publish("a")
        any_world.wait(lambda: script.of("Hears") == ["a"])
        assert engine.checkpoint()
        any_world.crash(engine)
    any_world.away.down = False
    parts.append(sender("late", connection="away"))  # configured from now on: the default one stays
    second = any_world.engine(*parts, monitors=[Hears], connections=connections)
    with with_defaults(second, "away", EXACTLY_ONCE) as engine:
        any_world.wait(lambda: any_world.away.received("queue:out"))
        assert set(engine.senders) == {"late", "away-default-sender"}


def test_a1_20_a_connection_with_a_sender_has_no_default_sender(world, script):
    script.message = sends_by_default
    made = world.engine(receiver("in", BEST_EFFORT), sender("out"), monitors=[Hears])
    engine = with_defaults(made, "memory", BEST_EFFORT)
    with engine:
        world.publish("a")
        world.wait(lambda: engine.failure is not None)
    assert "E8001 monitor Hears: no sender 'memory-default-sender'. Senders: out" in str(engine.failure)


def test_a1_20_a_send_without_any_destination_is_refused(world, script):
    script.message = lambda monitor, message: monitor.send(message.body, to="memory-default-sender")
    engine = world.engine(receiver("in", BEST_EFFORT), monitors=[Hears])
    with engine:
        world.publish("a")
        world.wait(lambda: engine.failure is not None)
    assert str(engine.failure).startswith("E8004 monitor Hears: sender 'memory-default-sender' has no destination.")


def test_a1_20_the_reliability_of_a_default_sender_never_changes(world, script):
    script.message = sends_by_default
    made = world.engine(receiver("in"), monitors=[Hears])
    with with_defaults(made, "memory", EXACTLY_ONCE):
        world.publish("a")
        world.wait_for("a")
    before = contents(world.store)
    with pytest.raises(RecoveryRefused, match="E4302 sender 'memory-default-sender': reliability changed"):
        with_defaults(made, "memory", BEST_EFFORT).start()
    assert contents(world.store) == before


def test_a1_20_its_id_is_taken(world):
    with world.engine(monitors=[Hears]) as engine, pytest.raises(UsageError, match="E8303 .* is the default sender"):
        engine.add_sender(sender("memory-default-sender"))


def test_a_dynamic_best_effort_sender_has_a_fresh_source_in_each_life(world, script):
    """Invariant B2, trap T45: an id is never used again for another body."""
    script.message = sends_on
    for life in ("one", "two"):
        with world.engine(receiver("in", BEST_EFFORT), monitors=[Hears]) as engine:
            if life == "one":
                engine.add_sender(sender("out", BEST_EFFORT))
            world.publish(life)
            world.wait(lambda life=life: life in world.sent())
    assert len(set(world.ids())) == 2


def test_two_contexts_come_back_with_their_own_monitors(any_world, script):
    both = [monitor(Keeps), monitor(AlsoHears, context="audit")]
    with any_world.engine(receiver(), monitors=both):
        any_world.publish("a")
        any_world.wait(lambda: script.of("Keeps") == script.of("AlsoHears") == ["a"])
    with any_world.engine(receiver(), monitors=both) as engine:
        assert the_monitor(engine, Keeps).bodies == ["a"]


def test_149_a_monitor_with_state_cannot_be_left_out(world):
    with world.engine(receiver(), monitors=[Keeps]) as engine:
        engine.checkpoint()
    with pytest.raises(RecoveryRefused, match="E4202 monitor 'Keeps'"):
        world.engine(receiver(), monitors=[Hears]).start()


def test_a_store_opens_under_its_own_name_only(world, tmp_path: Path):
    with world.engine(monitors=[Hears]):
        pass
    with pytest.raises(RecoveryRefused, match="E4310"):
        world.engine(monitors=[Hears], name="another").start()
