"""Worlds of files whose receivers take a selection: what one leaves is there for others, whoever dies (rule S4.3)."""

import json

import pytest

from correlator.events import Message
from correlator.testing.crashtest.levels import opened
from tests.crash.projects import assert_holds_at, project, searched
from tests.harness import mutants

ENGINE = """
name: regions
store: sqlite:///orders.db
connections:
  local: {type: embedded}
receivers:
  - {id: europe, connection: local, destination: "queue:orders", reliability: EXACTLY_ONCE, event: "app:Order",
     selector: "region = 'EU'", max_batch_size: 3}
  - {id: america, connection: local, destination: "queue:orders", reliability: AT_LEAST_ONCE, event: "app:Order",
     selector: "region LIKE 'A%' AND id > 5"}
  - {id: topic, connection: local, destination: "topic:orders", reliability: EXACTLY_ONCE, event: "app:Order",
     selector: "region IS NOT NULL AND NOT (id BETWEEN 3 AND 6)", durable_topic_subscription_name: "kept orders"}
senders:
  - {id: bills, connection: local, destination: "queue:bills", reliability: EXACTLY_ONCE}
monitors:
  - {type: "app:Totals"}
"""
REGIONS = ("EU", "AM", "AF", None)


def orders(count):
    for number in range(count):
        region = REGIONS[number % 4]
        kind = {"EU": "EU", None: "none"}.get(region, "A")
        yield Message(json.dumps({"id": number, "kind": kind}).encode(), {"region": region, "id": number})


def selected(world):
    world.publish("queue:orders", orders(16))
    world.publish("topic:orders", orders(12))
    world.run_until_quiet()
    world.check()
    from_queue = [n for n in range(16) if n % 4 == 0 or (n % 4 in (1, 2) and n > 5)]
    from_topic = [n for n in range(12) if n % 4 != 3 and not 3 <= n <= 6]
    once, more = sorted([*from_queue, *from_topic]), world.sent("bills").values("id")
    assert set(more) == set(once)
    assert len(more) >= len(once)
    exactly = [n for n in more if n % 4 == 0]
    assert sorted(exactly) == [n for n in once if n % 4 == 0]


@pytest.mark.parametrize(("level", "runs"), [("sim", 25), pytest.param("kill9", 8, marks=pytest.mark.kill9)])
def test_s4_3_a_selection_holds_under_crashes(tmp_path, level, runs):
    with opened(level, project(tmp_path, engine=ENGINE) / "engine.yaml") as opened_level:
        assert_holds_at(opened_level, selected, singles=runs, drawn=runs)


EACH_ITS_OWN = ENGINE.replace(
    "senders:",
    """\
  - {id: all, connection: local, destination: "topic:orders", reliability: EXACTLY_ONCE, event: "app:Order"}
senders:""",
)


@pytest.mark.parametrize("engine", [ENGINE, EACH_ITS_OWN], ids=["alone", "beside one without a selector"])
def test_what_a_receiver_of_a_topic_selects_is_its_own(tmp_path, engine):
    def of_the_topic(world):
        world.publish("topic:orders", orders(12))
        world.run_until_quiet()
        world.check()

    with opened("sim", project(tmp_path, engine=engine) / "engine.yaml") as level:
        assert_holds_at(level, of_the_topic)
        for mutant, violated in (("selector_ignored", {"A7"}), ("selector_takes_the_rest", {"A1", "A2", "G6"})):
            with mutants.applied(mutant):
                result = searched(level, of_the_topic)
            assert result.found.violated.id in violated
