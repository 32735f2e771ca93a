"""Worlds of level `sim` for all that a configuration file can hold: what is right holds, what is wrong is found."""

import subprocess
import sys
from collections import Counter

import pytest

from correlator.errors import UsageError
from correlator.events import Message
from correlator.testing import Messages
from correlator.testing.crashtest.campaign import shrink
from correlator.testing.crashtest.runs import RunPlan
from tests.crash.projects import ENGINE, FORGETFUL, TOTALS, assert_holds, project, simulated, tried

IDS = list(range(10))
BRIDGE = """
name: bridge
connections:
  local: {type: embedded}
receivers:
  - {id: orders, connection: local, destination: "queue:orders", reliability: APP_CONTROLLED, event: "app:Order",
     max_batch_size: 3}
senders:
  - {id: bills, connection: local, destination: "queue:bills", reliability: BEST_EFFORT}
monitors:
  - {type: "app:Bridge"}
"""


def publish(world, destination="queue:orders", count=10):
    world.publish(destination, [{"id": number} for number in range(count)])
    world.run_until_quiet()
    world.check()


# --- what must hold ---


def test_several_rounds(tmp_path):
    def body(world):
        for rounds in range(1, 4):
            publish(world)
            assert world.state("Totals") == [{"total": 10 * rounds}]
        assert world.sent("bills").ids() == sorted(IDS * 3) == world.published("queue:orders").ids()

    assert_holds(tmp_path, body)


def test_topics_two_connections_and_what_comes_round(tmp_path):
    engine = """
name: orders
store: sqlite:///orders.db
connections:
  first: {type: embedded}
  second: {type: embedded, store: "sqlite:///second.db"}
receivers:
  - {id: topic, connection: first, destination: "topic:orders", reliability: EXACTLY_ONCE, event: "app:Order"}
  - {id: again, connection: first, destination: "topic:orders", reliability: AT_LEAST_ONCE, event: "app:Order"}
  - {id: queue, connection: second, destination: "queue:orders", reliability: EXACTLY_ONCE, event: "app:Order"}
  - {id: bills, connection: second, destination: "queue:bills", reliability: EXACTLY_ONCE, event: "app:Bill"}
senders:
  - {id: billing, connection: second, destination: "queue:bills", reliability: EXACTLY_ONCE}
  - {id: paid, connection: first, destination: "topic:paid", reliability: EXACTLY_ONCE}
monitors:
  - {type: "app:Billing"}
  - {type: "app:Ledger", context: ledger}
"""
    code = """
class Billing(Monitor, persistent=True):
    orders: int = 0

    @on(Order)
    def order(self, order):
        self.orders += 1
        self.send(Bill(id=order.id), to="billing")


class Ledger(Monitor, persistent=True):
    bills: int = 0

    @on(Bill)
    def bill(self, bill):
        self.bills += 1
        self.send(bill, to="paid")
"""

    def body(world):
        world.publish("first:topic:orders", [{"id": number} for number in IDS])
        publish(world, "second:queue:orders")
        assert set(world.sent("billing").values("id")) == set(IDS)
        assert world.sent("paid").ids() == world.sent("billing").ids()
        assert world.state("Ledger") == [{"bills": len(world.sent("billing"))}]

    assert_holds(tmp_path, body, code, engine)


def test_app_controlled_with_flush(tmp_path):
    code = """
class Bridge(Monitor):
    @on(Order)
    def order(self, order):
        self.send(order, to="bills")

    @on(ReceivingSuspended)
    def suspended(self, notice):
        self.request_flush("bills")

    @on(SenderFlushed)
    def flushed(self, notice):
        self.acknowledge_and_resume("orders")
"""

    def body(world):
        publish(world)
        assert set(world.sent("bills").values("id")) == set(IDS)

    assert_holds(tmp_path, body, code, BRIDGE)


def test_two_app_controlled_receivers_of_one_queue(tmp_path):
    engine = BRIDGE.replace(
        "senders:",
        """  - {id: others, connection: local, destination: "queue:orders", reliability: APP_CONTROLLED, event: "app:Order"}
senders:""",
    )
    code = """
class Bridge(Monitor):
    @on(ReceivingSuspended)
    def suspended(self, notice):
        self.acknowledge_and_resume(notice.receiver)
"""
    assert_holds(tmp_path, publish, code, engine)


def test_best_effort_may_lose_and_repeat(tmp_path):
    code = """
class Bridge(Monitor):
    @on(Order)
    def order(self, order):
        self.send(order, to="bills")
"""
    engine = BRIDGE.replace("APP_CONTROLLED", "BEST_EFFORT")

    def body(world):
        publish(world)
        assert set(world.sent("bills").values("id")) <= set(IDS)

    assert_holds(tmp_path, body, code, engine)

    def too_strict(world):
        publish(world)
        assert world.sent("bills").ids() == IDS

    assert tried(tmp_path, too_strict, code, engine).found.violated.id == "test"


def test_dead_letters_of_handlers_and_of_mapping(tmp_path):
    code = """
class Totals(Monitor, persistent=True):
    total: int = 0

    @on(Order)
    def order(self, order):
        self.total += 1
        if order.kind:
            raise ValueError(order.kind)
        self.send(Bill(id=order.id, total=self.total), to="bills")
"""
    engine = ENGINE.replace('Totals"', 'Totals", on_error: dead_letter')

    def body(world):
        world.publish("queue:orders", [{"id": 1}, b"no order", {"id": 2, "kind": "no such thing"}, {"id": 3}])
        world.run_until_quiet()
        world.check()
        assert world.sent("bills").values("total") == [1, 2]
        kinds = Counter(letter.kind for letter in world.dead_letters())
        assert kinds["handler"] == 1
        assert kinds["mapping"] >= 1  # what cannot be mapped has no id: it is kept once more when it comes again

    assert_holds(tmp_path, body, code, engine)


def test_what_cannot_be_mapped_may_be_dropped(tmp_path):
    def body(world):
        world.publish("queue:orders", [{"id": 1}, b"no order", {"id": 2}])
        world.run_until_quiet()
        world.check()
        assert (world.sent("bills").ids(), world.dead_letters()) == ([1, 2], [])

    assert_holds(tmp_path, body, engine=ENGINE.replace('"app:Order"', '"app:Order", on_mapping_error: drop'))


def test_timers_and_spawned_monitors(tmp_path):
    code = """
class Totals(Monitor, persistent=True):
    spawned: int = 0
    ticks: int = 0

    @on(Order)
    def order(self, order):
        self.spawned += 1
        self.spawn(One, order=order.id)

    @every(0.1)
    def tick(self):
        self.ticks += 1


class One(Monitor, persistent=True):
    order: int
    loaded: int = 0
    due: int = 0
    parts: StateTable[tuple[str, int], list[Bill]]

    def onload(self):
        self.loaded += 1
        self.parts["order", self.order] = [Bill(id=self.order)]
        self.wait(0.5, then=self.bill)

    def bill(self):
        self.due += 1
        self.send(Bill(id=self.order), to="bills")
"""
    fired = set()

    def body(world):
        publish(world)
        ones = sorted(world.state("One"), key=lambda one: one["order"])  # what comes again comes later
        assert [(one["order"], one["loaded"]) for one in ones] == [(number, 1) for number in IDS]
        assert ones[3]["parts"] == {("order", 3): [{"id": 3, "total": 0}]}
        assert sum(one["due"] for one in ones) == len(world.sent("bills"))
        assert world.state("Totals")[0].keys() == {"spawned", "ticks"}
        fired.update(one["due"] for one in ones)

    assert_holds(tmp_path, body, code)
    assert fired == {0, 1}  # a waiting timer does not keep the world from being quiet


def test_modes_windows_contexts_tables_and_equal_bodies_all_at_once(tmp_path):
    engine = """
name: orders
store: sqlite:///orders.db
duplicate_detection: {per_source_window_size: 3, expiry_time: 10ms}
connections:
  local: {type: embedded}
receivers:
  - {id: a, connection: local, destination: "queue:orders", reliability: EXACTLY_ONCE, event: "app:Order",
     unique_message_id: "${body.id}", dup_detection_domain_id: d}
  - {id: b, connection: local, destination: "queue:orders", reliability: EXACTLY_ONCE, event: "app:Order",
     unique_message_id: "${body.id}", dup_detection_domain_id: d, flow_control: true}
  - {id: c, connection: local, destination: "topic:orders", reliability: AT_LEAST_ONCE, event: "app:Order",
     max_batch_size: 2}
  - {id: d, connection: local, destination: "topic:orders", reliability: BEST_EFFORT, event: "app:Order"}
  - {id: back, connection: local, destination: "queue:pings", reliability: EXACTLY_ONCE, no_local: true}
senders:
  - {id: steady, connection: local, destination: "queue:pings", reliability: AT_LEAST_ONCE, max_tries: 1}
  - {id: quick, connection: local, destination: "queue:pings", reliability: BEST_EFFORT}
  - {id: exact, connection: local, destination: "queue:pings", reliability: EXACTLY_ONCE,
     unique_message_id_property: number, message_source_id_property: source}
monitors:
  - {type: "app:Ledger", on_error: skip}
  - {type: "app:Audit", on_error: dead_letter, context: audit}
"""
    code = """
class Ledger(Monitor, persistent=True):
    names: set[str] = set()
    by_id: dict[int, str] = {}
    orders: StateTable[str, list[int]]

    @on(Order)
    def order(self, order):
        self.names.add(f"{order.id} of {order.kind}")
        self.by_id[order.id] = order.kind
        self.orders[order.kind] = [*self.orders.get(order.kind, []), order.id]
        if order.id == 3:
            raise ValueError
        for sender in ("steady", "quick", "exact"):
            self.send(b"ping", to=sender)
        self.send(order, to="channel:audit")

    @on(FlowControlMarker)
    def marker(self, marker):
        self.update_flow_control_window(marker, 4)


class Audit(Monitor):
    @on(Order)
    def order(self, order):
        if order.id == 4:
            raise ValueError
        self.send(b"pong", to="steady")
"""

    def body(world):
        for place in ("queue:orders", "topic:orders"):
            world.publish(place, [{"id": number, "kind": "pqz"[number % 3]} for number in IDS])
        world.run_until_quiet()
        world.check()

    assert_holds(tmp_path, body, code, engine)


def test_a_message_with_an_id_of_its_own_can_come_twice(tmp_path):
    def body(world):
        one = Message(b'{"id": 1}', {"uniqueMessageId": "1:shop", "messageSourceId": "shop"})
        world.publish("queue:orders", [one, one, b'{"id": 2}', '{"id": 3}'])
        world.run_until_quiet()
        world.check()
        assert world.sent("bills").ids() == [1, 2, 3]
        assert world.published("queue:orders").ids() == [1, 1, 2, 3]

    assert_holds(tmp_path, body)


def test_two_thousand_messages(tmp_path):
    def body(world):
        publish(world, count=2000)
        assert world.sent("bills").ids() == list(range(2000))

    with simulated(tmp_path) as level:
        outcomes = [level.run(body, plan) for plan in (RunPlan(1, ()), RunPlan(1))]
    assert [one.violated for one in outcomes] == [None, None]
    assert outcomes[1].crashes


# --- what must be found ---


@pytest.mark.parametrize(
    ("code", "id_", "text"),
    [
        (FORGETFUL, "test", "what the test asserts"),
        (TOTALS.replace("self.total += 1", "raise ValueError('no such order')"), "G7", "ValueError: no such order"),
        (TOTALS.replace("self.total += 1", "raise SystemExit(3)"), "test", "SystemExit was raised"),
        (TOTALS + "    def onload(self):\n        raise ValueError('not loaded')\n", "G7", "ValueError: not loaded"),
        (TOTALS + "    def on_begin_recovery(self):\n        raise ValueError('no way back')\n", "G8", "no way back"),
        (TOTALS.replace('"bills"', '"nowhere"'), "G7", "E8001 monitor Totals: no sender 'nowhere'"),
        (TOTALS.replace("+= 1", "+= 1 + self.zero") + "    def onload(self):\n        self.zero = 0\n", "G7", "'zero'"),
    ],
)
def test_what_is_wrong_with_a_monitor_is_said(tmp_path, code, id_, text):
    def body(world):
        publish(world)
        assert world.sent("bills").values("total") == list(range(1, 11))

    violated = tried(tmp_path, body, code).found.violated
    assert violated.id == id_
    assert text in str(violated)


def test_a_monitor_may_keep_what_its_onload_makes_anew(tmp_path):
    def body(world):
        publish(world)
        assert world.sent("bills").values("total") == list(range(1, 11))

    assert_holds(tmp_path, body, TOTALS + "    def onload(self):\n        self.scratch = self.total\n")


def test_an_application_that_never_acknowledges_is_not_quiet(tmp_path):
    code = "class Bridge(Monitor):\n    pass\n"
    found = tried(tmp_path, publish, code, BRIDGE).found
    assert found.violated.id == "G7"
    assert "left at brokers: {'queue:orders': 10}" in found.violated.what


@pytest.mark.parametrize("first", [None, publish])
def test_check_needs_a_run(tmp_path, first):
    def body(world):
        if first is not None:
            first(world)
        world.publish("queue:orders", [{"id": 99}])
        world.check()

    found = tried(tmp_path, body).found
    assert (found.violated.id, "before 'run_until_quiet'" in found.violated.what) == ("G7", True)


@pytest.mark.parametrize(
    ("call", "code", "text"),
    [
        (lambda world: world.publish("queue:nowhere", []), "E2420", "Receivers read: queue:orders"),
        (lambda world: world.published("queue:nowhere"), "E2420", "no receiver reads it"),
        (lambda world: world.sent("nowhere"), "E2420", "Senders: bills"),
        (lambda world: world.state(Fleeting), "E2420", "is not persistent"),
        (lambda world: world.publish("queue:orders", [object()]), "E2421", "Message, bytes, text"),
        (lambda world: world.publish("queue:orders", {"id": 1}), "E2421", "Write [message]"),
        (lambda world: world.publish("queue:orders", "text"), "E2421", "Write [message]"),
        (lambda world: world.publish("queue:orders", Message(b"{}")), "E2421", "Write [message]"),
    ],
)
def test_what_is_not_there_is_refused(tmp_path, call, code, text):
    with simulated(tmp_path) as level, pytest.raises(UsageError) as refused:
        level.run(call, RunPlan(1, ()))
    assert refused.value.code == code
    assert text in str(refused.value)


# --- small failures, and the same ones again ---


def drawn_failures(level, body, count):
    """The first failing runs with drawn faults."""
    seed, found = 0, []
    while len(found) < count:
        seed += 1
        outcome = level.run(body, RunPlan(seed))
        if outcome.violated is not None:
            found.append(outcome)
    return found


def test_drawn_failures_are_shrunk_to_three_faults_or_less(tmp_path):
    def body(world):
        publish(world)
        assert world.sent("bills").values("total") == list(range(1, 11))

    with simulated(tmp_path, FORGETFUL) as level:
        sizes = [len(shrink(level, body, one).faults) for one in drawn_failures(level, body, 10)]
    assert sum(size <= 3 for size in sizes) >= 0.9 * len(sizes), sizes


HISTORY = """
from pathlib import Path
from correlator.testing.crashtest.levels import opened
from correlator.testing.crashtest.runs import RunPlan

def body(world):
    world.publish("queue:orders", [{"id": n, "kind": f"kind {n}"} for n in range(10)])
    world.run_until_quiet()

with opened("sim", Path("engine.yaml")) as level:
    for seed in range(5):
        print(level.run(body, RunPlan(seed)).history.digest())
"""


def test_g9_the_same_seed_makes_the_same_history_in_every_process(tmp_path):
    code = """
class Totals(Monitor, persistent=True):
    kinds: set[str] = set()
    by_id: dict[str, set[str]] = {}

    @on(Order)
    def order(self, order):
        self.kinds.add(order.kind)
        self.by_id[str(order.id)] = set(self.kinds)
        self.send(Bill(id=order.id, total=len(self.kinds)), to="bills")
"""
    project(tmp_path, code)
    printed = {
        subprocess.run(
            [sys.executable, "-c", HISTORY],
            cwd=tmp_path,
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(printed) == 1
    assert len(set(printed.pop().split())) == 5


def test_messages_compare_by_their_bodies():
    one, other = Messages([Message(b'{"id": 2}'), Message(b'{"id": 1}')]), Messages([Message(b'{"id": 2}', {"a": 1})])
    assert one[:1] == other
    assert one != other
    assert (one.ids(), one.values("id"), len(one)) == ([1, 2], [2, 1], 2)
    with pytest.raises(KeyError):
        one.values("name")


class Fleeting:
    """Stands for a monitor without lasting state."""

    persistent = False
