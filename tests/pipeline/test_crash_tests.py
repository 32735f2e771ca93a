"""Crash tests of pipelines at level `sim`, where Spark sees each message once: what is right holds, what is wrong is
found, and a run sends what a run with real processes sends.
"""

import pytest

from correlator.testing.crashtest.levels import opened
from correlator.testing.crashtest.runs import RunPlan
from tests.crash.projects import assert_holds_at, project, simulated, tried

pytestmark = pytest.mark.usefixtures("session")

ENGINE = """
name: totals
store: sqlite:///totals.db
connections:
  local: {type: embedded}
receivers:
  - {id: orders, connection: local, destination: "queue:orders", reliability: EXACTLY_ONCE}
senders:
  - {id: large, connection: local, destination: "queue:large", reliability: EXACTLY_ONCE}
  - {id: totals, connection: local, destination: "queue:totals", reliability: EXACTLY_ONCE}
pipelines:
  - name: p
    from: [orders]
    steps:
      - decode: {format: json, schema: "id INT, customer STRING, amount INT"}
      - route: {to: large, where: amount > 5, body: "concat(id, '')"}
      - monitor: {class: "totals:Totals", key: customer}
      - route: {to: totals, where: 100 / (total - 36) < 1000}
"""
TOTALS = """
import msgspec

from correlator import KeyedMonitor


class Order(msgspec.Struct):
    id: int
    amount: int


class Total(msgspec.Struct):
    id: int
    total: int


class Totals(KeyedMonitor[Order, Total]):
    total: int = 0

    def on_event(self, row):
        self.total += row.amount
        return [Total(id=row.id, total=self.total)]
"""
FORGETFUL = TOTALS.replace("    total: int = 0\n", "    totals = {}\n").replace(
    "        self.total += row.amount\n        return [Total(id=row.id, total=self.total)]",
    "        self.totals[self.key] = self.totals.get(self.key, 0) + row.amount\n"
    "        return [Total(id=row.id, total=self.totals[self.key])]",
)
ORDERS = [{"id": n, "customer": "abc"[n % 3], "amount": n} for n in range(1, 13)]


def expected():
    """The total of each order, in order; a division by zero makes a dead letter of the order with the total 36."""
    totals = dict.fromkeys("abc", 0)
    for order in ORDERS:
        totals[order["customer"]] += order["amount"]
        if totals[order["customer"]] != 36:
            yield {"id": order["id"], "total": totals[order["customer"]]}


def body(world):
    world.publish("queue:orders", [*ORDERS[:6], "no order", *ORDERS[6:]])
    world.run_until_quiet()
    world.check()
    assert [int(one) for one in world.sent("large").bodies()] == [one["id"] for one in ORDERS if one["amount"] > 5]
    got = zip(world.sent("totals").values("id"), world.sent("totals").values("total"), strict=True)
    assert [{"id": one, "total": total} for one, total in got] == list(expected())
    assert len(world.dead_letters()) == 1 + len(ORDERS) - len(list(expected()))


def test_a_pipeline_holds_its_promises_wherever_the_engine_dies(tmp_path):
    with simulated(tmp_path, "", ENGINE, totals=TOTALS) as level:
        assert_holds_at(level, body)


def test_a_keyed_monitor_that_keeps_its_state_in_its_class_is_found(tmp_path):
    found = tried(tmp_path, body, "", ENGINE, totals=FORGETFUL)
    assert found.found is not None


def test_a_run_sends_what_real_processes_send(tmp_path):
    sent = {}

    def recording(world):
        body(world)
        sent.setdefault(world.level, [list(world.sent(one)) for one in ("large", "totals")])

    file = project(tmp_path, "", ENGINE, totals=TOTALS) / "engine.yaml"
    for name in ("sim", "kill9"):
        with opened(name, file) as level:
            outcome = level.run(recording, RunPlan(1, (), 1))
            assert outcome.violated is None, outcome.violated
    assert sent["sim"] == sent["kill9"]
