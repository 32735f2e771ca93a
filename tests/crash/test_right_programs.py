"""A right program passes, and a wrong one fails by what is wrong with it: brokers keep their order, lives share nothing."""

import re
import sys

import msgspec
import pytest

from correlator.connector import Order
from correlator.errors import UsageError
from correlator.events import Message
from correlator.testing.crashtest import modules, report
from correlator.testing.crashtest.campaign import repeated
from correlator.testing.crashtest.disorder import EXPLAINED
from correlator.testing.crashtest.levels import opened
from correlator.testing.crashtest.runs import RunPlan
from tests.crash.projects import TOTALS, assert_holds, assert_holds_at, project, searched, simulated, tried

COUNT = 12
NUMBERS = list(range(1, COUNT + 1))
ENGINE = """
name: orders
store: sqlite:///orders.db
connections:
  theirs: {CONNECTION}
  local: {type: embedded}
receivers:
  - {id: orders, connection: theirs, destination: "PLACE", reliability: EXACTLY_ONCE, event: "app:Order"OPTIONS}
senders:
  - {id: bills, connection: local, destination: "queue:bills", reliability: EXACTLY_ONCE}
monitors:
  - {type: "app:Totals"}
"""
FILE = "type: file, path: ."
PULSAR = "type: pulsar, service_url: 'pulsar://127.0.0.1:6650'"
RABBIT = "type: rabbitmq, password: guest"
STREAM = "type: rabbitmq_stream, password: guest"
EMBEDDED = "type: embedded, store: 'sqlite:///other.db'"
SHARED, FAILOVER = (f"options: {{subscription_type: {name}}}" for name in ("shared", "failover"))


def engine(connection, place="queue:orders", options=""):
    text = ENGINE.replace("CONNECTION", connection).replace("PLACE", place)
    return text.replace("OPTIONS", f", {options}" if options else "")


def in_order(place="queue:orders"):
    def body(world):
        world.publish(place, [{"id": number} for number in NUMBERS])
        world.run_until_quiet()
        world.check()
        assert world.sent("bills").values("id") == NUMBERS

    return body


# --- the order of brokers ---

BROKERS = [
    (FILE, "queue:orders.jsonl", "", Order.POSITION),
    (STREAM, "queue:orders", "", Order.POSITION),
    (PULSAR, "topic:orders", "", Order.POSITION),
    (PULSAR, "topic:orders", FAILOVER, Order.POSITION),
    (PULSAR, "topic:orders", SHARED, Order.ANY),
    (PULSAR, "topic:regex:order.*", "", Order.ANY),
    (PULSAR, "queue:orders", "", Order.ANY),
    (RABBIT, "queue:orders", "", Order.ANY),
    (EMBEDDED, "queue:orders", "", Order.PLACE),
]


@pytest.mark.parametrize(("connection", "place", "options", "order"), BROKERS)
def test_a_program_that_needs_the_order_which_its_broker_keeps_is_right(tmp_path, connection, place, options, order):
    text = engine(connection, place, options)
    with opened("sim", project(tmp_path, TOTALS, text) / "engine.yaml") as level:
        assert level._configured.setup().receivers["orders"].order is order
    if order is Order.ANY:
        result = tried(tmp_path, in_order(place), TOTALS, text, singles=False)
        assert result.shrunk is not None
        assert result.shrunk.violated.id == "test"
        told = [line for line in report.failure(result, "").splitlines() if line.startswith("  order: ")]
        assert re.fullmatch(rf"  order: orders took \S+@\d+ after \S+@\d+, which .*{EXPLAINED}", *told)
    else:
        assert_holds(tmp_path, in_order(place), engine=text)


@pytest.mark.parametrize(
    ("mode", "singles", "told"),
    [
        ("AT_LEAST_ONCE", True, r"orders took \S+@\d+ again, after \S+@\d+: its mode allows repeats"),
        ("EXACTLY_ONCE, max_batch_size: 1", False, r"orders took \S+@\d+ after \S+@\d+, which was published later: .*"),
    ],
)
def test_a_failure_says_that_the_order_was_another_one(tmp_path, mode, singles, told):
    text = engine(RABBIT).replace("EXACTLY_ONCE, event", f"{mode}, event")
    result = tried(tmp_path, in_order(), TOTALS, text, singles=singles)
    assert re.search(rf"^  order: {told}\. {EXPLAINED}$", report.failure(result, ""), re.MULTILINE)


def test_a_failure_that_has_nothing_to_do_with_order_says_nothing_of_it(tmp_path):
    def body(world):
        in_order()(world)
        assert world.sent("bills").values("total") == []

    result = tried(tmp_path, body, TOTALS, engine(EMBEDDED))
    assert "order: " not in report.failure(result, "")


def test_each_reader_of_a_stream_gets_everything(tmp_path):
    other = '  - {id: again, connection: theirs, destination: "queue:orders", reliability: EXACTLY_ONCE, event: '
    text = engine(STREAM).replace("senders:", f'{other}"app:Order", dup_detection_domain_id: again}}\nsenders:')

    def body(world):
        world.publish("queue:orders", [{"id": number} for number in NUMBERS])
        world.run_until_quiet()
        world.check()
        assert world.sent("bills").ids() == sorted(NUMBERS * 2)

    assert_holds(tmp_path, body, engine=text)


# --- what the process holds ---

GLOBAL = """
TOTALS = {}


class Totals(Monitor, persistent=True):
    @on(Order)
    def order(self, order):
        TOTALS["all"] = TOTALS.get("all", 0) + 1
        self.send(Bill(id=order.id, total=TOTALS["all"]), to="bills")
"""
LOCAL = engine(EMBEDDED)


def totals(world):
    world.publish("queue:orders", [{"id": number} for number in NUMBERS])
    world.run_until_quiet()
    world.check()
    assert sorted(world.sent("bills").values("total")) == NUMBERS


def test_state_in_a_module_is_lost_with_the_process_and_found_by_one_death(tmp_path):
    with simulated(tmp_path, GLOBAL, LOCAL) as level:
        result = searched(level, totals)
        assert result.reference.violated is None
        assert [fault.kind for fault in result.shrunk.faults] == ["kill"]
        again = repeated(level, totals, result.shrunk.plan)
        assert again.found.violated == result.shrunk.violated


HELPED = GLOBAL.replace("TOTALS = {}", "from helper import TOTALS")
ON_THE_CLASS = GLOBAL.replace("TOTALS = {}", "").replace(
    "    @on(Order)", "    TOTALS: ClassVar[dict[str, int]] = {}\n\n    @on(Order)"
)
HELD = {
    "module": (GLOBAL, {}),
    "imported": (HELPED, {"helper": "TOTALS = {}"}),
    "class": (
        "from typing import ClassVar\n\n"
        + ON_THE_CLASS.replace('TOTALS["', 'self.TOTALS["').replace("TOTALS.get", "self.TOTALS.get"),
        {},
    ),
}


@pytest.mark.parametrize("held", HELD)
def test_runs_share_nothing(tmp_path, held):
    code, files = HELD[held]
    with opened("sim", project(tmp_path, code, LOCAL, **files) / "engine.yaml") as level:
        assert [level.run(totals, RunPlan(1, ())).violated for _ in range(2)] == [None, None]


VALUES = """
import enum
from dataclasses import dataclass, field


class Kind(enum.Enum):
    LARGE = "large"
    SMALL = "small"


@dataclass
class Basket:
    kinds: dict[str, int] = field(default_factory=dict)


class Totals(Monitor, persistent=True):
    basket: Basket = Basket()
    kinds: StateTable[int, Kind]

    @on(Order)
    def order(self, order):
        kind = Kind.LARGE if order.id % 2 else Kind.SMALL
        assert all(isinstance(one, Kind) for one in self.kinds.values())
        self.kinds[order.id] = kind
        self.basket.kinds[kind.value] = self.basket.kinds.get(kind.value, 0) + 1
        self.send(Bill(id=order.id, total=len(self.kinds)), to="bills")
"""


def test_a_test_may_hold_the_classes_of_its_program(tmp_path):
    with opened("sim", project(tmp_path, VALUES, LOCAL) / "engine.yaml") as level:
        app = sys.modules["app"]

        def body(world):
            world.publish("queue:orders", [app.Order(id=number) for number in NUMBERS])
            world.run_until_quiet()
            world.check()
            (state,) = world.state(app.Totals)
            assert state["basket"] == {"kinds": {"large": COUNT // 2, "small": COUNT // 2}}
            assert sorted(world.sent("bills").values("total")) == NUMBERS

        assert_holds_at(level, body)
        assert sys.modules["app"] is app


def test_a_module_that_can_be_imported_only_once_is_told_so(tmp_path):
    code = "import os\n\nassert os.environ.setdefault('IMPORTED', str(id(Order))) == str(id(Order)), 'again'\n" + TOTALS
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("IMPORTED", "")
        patch.delenv("IMPORTED")
        with simulated(tmp_path, code, LOCAL) as level, pytest.raises(UsageError) as raised:
            level.run(totals, RunPlan(1, ()))
    assert raised.value.code == "E2445"
    assert "AssertionError: again" in str(raised.value)


def test_packages_that_are_installed_below_the_directory_are_kept(tmp_path, monkeypatch):
    code = "import helper\n" + TOTALS
    monkeypatch.setattr(modules, "_INSTALLED", (f"{tmp_path}/helper",))
    with opened("sim", project(tmp_path, code, LOCAL, helper="") / "engine.yaml") as level:
        helper, app = sys.modules["helper"], sys.modules["app"]
        own = level._configured.modules
        with own.present():
            own.renew()
            assert (sys.modules["helper"] is helper, sys.modules["app"] is app) == (True, False)
        assert (sys.modules["helper"] is helper, sys.modules["app"] is app) == (True, True)


# --- bridges ---

BRIDGES = """
name: orders
store: sqlite:///orders.db
connections:
  local: {type: embedded}
receivers:
  - {id: orders, connection: local, destination: "queue:orders", reliability: EXACTLY_ONCE}
senders:
  - {id: bills, connection: local, destination: "queue:bills", reliability: EXACTLY_ONCE}
  - {id: checks, connection: local, destination: "queue:checks", reliability: EXACTLY_ONCE}
bridges:
  - {name: billing, from: [orders], to: [bills], mapping: {body.order: "${body.id}"}}
  - {name: checking, from: [orders], to: [bills, checks], selector: "large"}
"""


def bridged(world):
    orders = [Message(b'{"id": %d}' % number, {"large": number > 6}) for number in NUMBERS]
    world.publish("queue:orders", [*orders, b"no JSON"])
    world.run_until_quiet()
    world.check()
    bills = [msgspec.json.decode(one.body) for one in world.sent("bills")]
    assert [one["order"] for one in bills if "order" in one] == NUMBERS
    assert [one["id"] for one in bills if "id" in one] == world.sent("checks").values("id") == NUMBERS[6:]


@pytest.mark.parametrize("level", ["sim", "kill9"])
def test_bridges_send_each_message_once_and_in_order(tmp_path, level):
    with opened(level, project(tmp_path, engine=BRIDGES) / "engine.yaml") as opened_level:
        assert_holds_at(opened_level, bridged, *((5, 3) if level == "kill9" else ()))
