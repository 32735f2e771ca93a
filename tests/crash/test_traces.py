"""The trace context of a message is on what it causes, once, wherever the engine dies (docs/opentelemetry.md)."""

from correlator import Message
from tests.crash.projects import assert_holds

FORWARDS = """
class Totals(Monitor, persistent=True):
    total: int = 0

    @on(Order)
    def order(self, order):
        self.total += 1
        self.send(Bill(id=order.id, total=self.total), to="channel:audit")


class Audit(Monitor, persistent=True):
    @on(Bill)
    def bill(self, bill):
        self.send(bill, to="bills")
"""
ENGINE = """
name: orders
store: sqlite:///orders.db
connections:
  local: {type: embedded}
receivers:
  - {id: orders, connection: local, destination: "queue:orders", reliability: EXACTLY_ONCE, event: "app:Order"}
senders:
  - {id: bills, connection: local, destination: "queue:bills", reliability: EXACTLY_ONCE}
monitors:
  - {type: "app:Totals"}
  - {type: "app:Audit", context: audit}
"""


def parent(number):
    return f"00-{number:032x}-{number:016x}-01"


def trace_goes_on(world):
    orders = [
        Message(b'{"id": %d}' % number, {"traceparent": parent(number), "tracestate": f"n={number}"})
        for number in range(1, 6)
    ]
    world.publish("queue:orders", orders)
    world.run_until_quiet()
    world.check()
    carried = [(one.properties["traceparent"], one.properties["tracestate"]) for one in world.sent("bills")]
    assert carried == [(parent(number), f"n={number}") for number in range(1, 6)]


def test_o13_a_trace_goes_on_wherever_the_engine_dies(tmp_path):
    assert_holds(tmp_path, trace_goes_on, FORWARDS, ENGINE)
