"""Receivers that take a selection of what comes, and subscriptions with names (rules A1.19, S1.5, S4.3)."""

from dataclasses import replace

import pytest

from correlator.errors import ConfigError, RecoveryRefused, UsageError
from correlator.runtime.replay import replay
from correlator.storage import inspect
from correlator.testing.memory import MEMORY_FEATURES, MemoryBroker
from tests.runtime.flows import Forwards, Hears, Keeps
from tests.runtime.world import (
    APP_CONTROLLED,
    AT_LEAST_ONCE,
    BEST_EFFORT,
    EXACTLY_ONCE,
    contents,
    message,
    receiver,
    sender,
)

ALL_RECEIVING = [BEST_EFFORT, AT_LEAST_ONCE, EXACTLY_ONCE, APP_CONTROLLED]
EUROPE = "region = 'EU' AND amount > 10"


def regional(first=0):
    """Six messages, of which the second and the last match `EUROPE`."""
    given = [("US", 20), ("EU", 20), ("EU", 10), ("US", 5), (None, 20), ("EU", 11)]
    return [message(f"m{at}", region=region, amount=amount) for at, (region, amount) in enumerate(given, first)]


def over_topic(mode=EXACTLY_ONCE, **fields):
    return receiver("in", mode, destination="topic:in", **fields)


@pytest.mark.parametrize("mode", ALL_RECEIVING)
def test_s4_3_what_a_topic_gives_and_is_not_selected_is_acknowledged_and_counted(world, script, mode):
    script.suspended = lambda monitor, notice: monitor.acknowledge_and_resume("in")
    with world.engine(over_topic(mode, selector=EUROPE), monitors=[Hears]) as engine:
        world.wait(lambda: engine.receivers["in"].state == "receiving")
        world.publish(*regional(), to="topic:in")
        world.wait(lambda: engine.status().receivers["in"][1].received == 6)
        world.wait(lambda: world.broker.waiting("topic:in") == world.broker.unacknowledged("topic:in") == 0)
        world.wait(lambda: "m5" in script.of("Hears"))
        counters = engine.status().receivers["in"][1]
    assert [one for one in script.of("Hears") if not one.startswith("suspended")] == ["m1", "m5"]
    assert (counters.unselected, counters.delivered) == (4, 2)


def test_s4_3_a_queue_keeps_what_is_not_selected_for_others(any_world, script):
    with any_world.engine(receiver("europe", destination="queue:in", selector=EUROPE), monitors=[Keeps]) as engine:
        any_world.publish(*regional())
        any_world.wait(lambda: script.of("Keeps") == ["m1", "m5"])
        any_world.wait(lambda: any_world.broker.unacknowledged("queue:in") == 0)
        assert engine.status().receivers["europe"][1].received == 2
        assert any_world.broker.waiting("queue:in") == 4
        engine.add_receiver(receiver("others", destination="queue:in"))
        any_world.wait(lambda: sorted(script.of("Keeps")) == [f"m{at}" for at in range(6)])


@pytest.mark.parametrize("mode", ALL_RECEIVING)
def test_38_a_queue_that_cannot_keep_the_rest_is_refused(world, mode):
    """A static receiver stops the start, a dynamic one the call; nothing is recorded."""
    world.broker = MemoryBroker(features=replace(MEMORY_FEATURES, selects=False))
    selective = receiver("in", mode, selector=EUROPE)
    with pytest.raises(ConfigError) as refused:
        world.engine(selective, monitors=[Hears]).start()
    assert str(refused.value) == (
        "E1220 receiver 'in'.selector: this broker cannot leave unselected messages in a queue for other consumers. "
        "Only topics allow selectors. Or select in a monitor."
    )
    with world.engine(monitors=[Hears]) as engine:
        with pytest.raises(ConfigError, match="E1220"):
            engine.add_receiver(selective)
        assert engine.registry == {}
        engine.add_receiver(over_topic(mode, selector=EUROPE))


def test_37_a_selector_that_cannot_be_read_is_refused_before_anything_is_recorded(world):
    with world.engine(monitors=[Hears]) as engine:
        with pytest.raises(ConfigError, match=r"E6003 receiver 'in'.selector: column 8: ") as refused:
            engine.add_receiver(receiver(selector="price >"))
        assert "traceback" not in str(refused.value).lower()
        assert engine.registry == {}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"selector": EUROPE}, {"selector": "region = 'US'"}),
        ({"selector": EUROPE}, {}),
        ({}, {"selector": EUROPE}),
        ({"no_local": True}, {"no_local": False}),
        ({"durable_topic_subscription_name": "a"}, {"durable_topic_subscription_name": "b"}),
    ],
)
def test_s1_5_a1_11_another_selection_needs_another_subscription(any_world, before, after):
    with any_world.engine(over_topic(**before), monitors=[Keeps]):
        pass
    kept = contents(any_world.store)
    with pytest.raises(RecoveryRefused) as refused:
        any_world.engine(over_topic(**after), monitors=[Keeps]).start()
    (field,) = {*before, *after}
    assert refused.value.code == "E4302"
    assert f"{field} changed from " in str(refused.value)
    assert "Put it back, and add a receiver with another id" in str(refused.value)
    assert contents(any_world.store) == kept
    with any_world.engine(over_topic(**before), monitors=[Keeps]):
        pass


@pytest.mark.parametrize(
    ("before", "after"), [({"selector": EUROPE}, {"selector": "region = 'US'"}), ({"no_local": True}, {})]
)
def test_s1_5_what_is_taken_from_a_queue_may_change(world, before, after):
    """It has no subscription: what was not taken is there for others."""
    for fields in (before, after):
        with world.engine(receiver(**fields), monitors=[Keeps]):
            pass


def test_s1_5_the_same_subscription_under_its_own_name_is_no_change(world):
    for fields in ({}, {"durable_topic_subscription_name": "in"}):
        with world.engine(over_topic(**fields), monitors=[Keeps]):
            pass


def test_a1_19_a_dynamic_receiver_with_a_named_subscription_and_a_selector_comes_back_as_it_was(any_world, script):
    wanted = over_topic(selector=EUROPE, durable_topic_subscription_name="orders of Europe")
    with any_world.engine(monitors=[Keeps]) as engine:
        engine.add_receiver(wanted)
        any_world.wait(lambda: engine.receivers["in"].state == "receiving")
    any_world.publish(*regional(), to="topic:in")
    with any_world.engine(monitors=[Keeps]) as engine:
        any_world.wait(lambda: script.of("Keeps") == ["m1", "m5"])
        assert engine.add_receiver(wanted) is engine.receivers["in"]
        with pytest.raises(UsageError, match="E8303"):
            engine.add_receiver(replace(wanted, selector=None))
    assert any_world.broker.waiting("topic:in") == 0
    assert list(any_world.broker.destination("topic:in").subscriptions) == ["orders of Europe"]


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"selector": "region = 'US'"}, "takes other messages"),
        ({"no_local": True}, "takes other messages"),
        ({}, "does not know which ids"),
    ],
)
def test_who_shares_a_subscription_must_take_the_same(world, more, says):
    """What one acknowledges and drops would be lost to the other; what comes again to the other would be handled twice."""
    shared = {"durable_topic_subscription_name": "orders", "destination": "topic:in"}
    one = receiver("one", selector=None if not more else EUROPE, **shared)
    other = replace(one, id="other", **({"selector": EUROPE} | more if more else {}))
    with pytest.raises(ConfigError, match=f"E1224 receiver 'other': shares the subscription 'orders' .*{says}"):
        world.engine(one, other, monitors=[Keeps]).start()
    with world.engine(one, monitors=[Keeps]) as engine:
        with pytest.raises(ConfigError, match="E1224"):
            engine.add_receiver(other)
        engine.add_receiver(replace(other, connection="memory", destination="topic:another"))


def test_who_shares_a_subscription_may_share_a_domain(world):
    shared = {"durable_topic_subscription_name": "orders", "destination": "topic:in", "dup_detection_domain_id": "all"}
    with world.engine(receiver("one", **shared), receiver("other", **shared), monitors=[Keeps]):
        pass


def test_a1_19_a_queue_has_no_subscription_to_name(world):
    with world.engine(monitors=[Hears]) as engine, pytest.raises(ConfigError) as refused:
        engine.add_receiver(receiver(durable_topic_subscription_name="orders"))
    assert str(refused.value) == (
        "E1222 receiver 'in'.durable_topic_subscription_name: only topics have subscriptions. Leave it out."
    )


def test_a7_3_a_log_of_an_engine_that_selects_is_replayed(world, script, tmp_path):
    path = str(tmp_path / "input.log")
    with world.engine(receiver(selector=EUROPE), sender(), monitors=[Forwards], input_log=path):
        world.publish(*regional())
        world.wait(lambda: len(world.sent()) == 2)
    checkpoint = inspect.checkpoints(world.store)[0]
    again = replay(next(tmp_path.glob("input.log*")))
    assert (again.number, again.digest) == (checkpoint.number, checkpoint.digest)


def test_a8_11_selectors_that_part_a_stream_leave_duplicates_to_be_found(world, script):
    """Two receivers of one queue, each with its part of it, share a domain: an id is known whoever had it."""
    parts = [
        receiver("europe", destination="queue:in", selector="region = 'EU'"),
        receiver("others", destination="queue:in", selector="region <> 'EU' OR region IS NULL"),
    ]
    with world.engine(*parts, monitors=[Keeps]) as engine:
        world.publish(*regional(), *regional())
        world.wait(lambda: sum(counters.received for _, counters in engine.status().receivers.values()) == 12)
        world.wait(lambda: len(script.of("Keeps")) == 6)
    assert sorted(script.of("Keeps")) == [f"m{at}" for at in range(6)]
