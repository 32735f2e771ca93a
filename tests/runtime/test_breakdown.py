"""What threads spend their time on (rules A9.6 to A9.9)."""

import re

import pytest

from correlator.runtime.breakdown import Batches, Breakdown, NoBreakdown, breakdown_text, receiver_items
from correlator.testing.memory import MemoryBroker
from correlator.testing.store import Disk
from tests.runtime.flows import Hears
from tests.runtime.stepped import stepped, work
from tests.runtime.world import (
    APP_CONTROLLED,
    AT_LEAST_ONCE,
    BEST_EFFORT,
    EXACTLY_ONCE,
    message,
    monitor,
    numbered,
    receiver,
    sender,
)

RELIABLE = ["RECEIVING", "MAPPING", "DB_WAIT", "DB_COMMIT", "ACK", "R_TIMEOUTS", "FLOW_CONTROL", "TOTAL"]
RECEIVER_ITEMS = {
    BEST_EFFORT: ["RECEIVING", "MAPPING", "ENQUEUING", "ACK", "R_TIMEOUTS", "FLOW_CONTROL", "TOTAL"],
    AT_LEAST_ONCE: RELIABLE,
    EXACTLY_ONCE: RELIABLE,
    APP_CONTROLLED: [
        *("RECEIVING", "MAPPING", "ENQUEUING", "APP_CONTROLLED_BLOCKING"),
        *("ACK", "R_TIMEOUTS", "FLOW_CONTROL", "TOTAL"),
    ],
}
LINE = re.compile(
    r"Performance breakdown: (?P<shares>(?:[A-Z_]+=\d+\.\d% )+)TOTAL=(?P<total>[\d.]+)s throughput=(?P<rate>\d+)/s "
    r"batches=(?P<batches>\d+) min=(?P<min>\d+) mean=(?P<mean>[\d.]+) max=(?P<max>\d+)"
)


def lines(logs, part: str) -> list[re.Match]:
    found = [one["event"] for one in logs if one.get("part") == part and one["log_level"] == "info"]
    return [LINE.fullmatch(one) for one in found]


def items(line: re.Match) -> list[str]:
    return [*(one.partition("=")[0] for one in line["shares"].split()), "TOTAL"]


@pytest.mark.parametrize("mode", RECEIVER_ITEMS)
def test_a9_7_the_items_of_a_receiver(world, script, logs, mode):
    script.suspended = lambda monitor, notice: monitor.acknowledge_and_resume("in")
    settings = receiver("in", mode, log_performance_breakdown=True, max_batch_size=4)
    with world.engine(settings, monitors=[Hears], performance_breakdown_interval=0.05):
        world.publish(*numbered(10))
        world.wait(lambda: [one for one in lines(logs, "in") if one["batches"] != "0"])
    line = next(one for one in lines(logs, "in") if one["batches"] != "0")
    assert items(line) == RECEIVER_ITEMS[mode]
    assert sum(float(share.partition("=")[2].rstrip("%")) for share in line["shares"].split()) == pytest.approx(
        100, abs=1
    )
    assert int(line["max"]) <= 4


@pytest.mark.parametrize("mode", [BEST_EFFORT, EXACTLY_ONCE])
def test_a9_8_the_items_of_a_sender(world, script, logs, mode):
    script.message = lambda monitor, message: monitor.send(message.body, to="out")
    settings = sender("out", mode, log_performance_breakdown=True)
    with world.engine(receiver(), settings, monitors=[Hears], performance_breakdown_interval=0.01) as engine:
        for number in range(1000):
            world.publish(f"m{number}")
            world.wait(lambda number=number: len(world.sent()) == number + 1)
            if lines(logs, "out"):
                break
        assert engine.failure is None
    assert items(lines(logs, "out")[0]) == ["MAPPING", "SENDING", "WAITING", "BATCHING", "TOTAL"]


def test_a9_6_it_is_off_unless_asked_for(world, script, logs):
    with world.engine(receiver(), sender(), monitors=[Hears], performance_breakdown_interval=0.001) as engine:
        world.publish("a")
        world.wait(lambda: script.of("Hears") == ["a"])
        assert type(engine.receivers["in"]._breakdown) is type(engine.senders["out"]._breakdown) is NoBreakdown
    assert not [one for one in logs if "breakdown" in one["event"]]


class Hands:
    """A clock that a test moves."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a9_6_one_line_for_each_interval():
    clock, told = Hands(), []
    measured = Breakdown(receiver_items(EXACTLY_ONCE), clock, 60.0, told.append)
    measured.restart()
    for second in range(1, 121):
        clock.now = 100.0 + second
        measured.lap("RECEIVING" if second % 2 else "ACK")
        measured.batch(second)
    assert len(told) == 2
    assert told[0] == (
        "Performance breakdown: RECEIVING=50.0% MAPPING=0.0% DB_WAIT=0.0% DB_COMMIT=0.0% ACK=50.0% R_TIMEOUTS=0.0% "
        "FLOW_CONTROL=0.0% TOTAL=60.0s throughput=30/s batches=59 min=1 mean=30.0 max=59"
    )


def test_a9_7_a_time_in_the_past_splits_what_has_passed():
    clock, told = Hands(), []
    measured = Breakdown(receiver_items(EXACTLY_ONCE), clock, 10.0, told.append)
    clock.now = 110.0
    measured.lap_until("DB_WAIT", 103.0)
    measured.lap("DB_COMMIT")
    assert "DB_WAIT=30.0% DB_COMMIT=70.0%" in told[0]


def test_a9_6_what_passed_without_a_connection_counts_for_nothing():
    clock, told = Hands(), []
    measured = Breakdown(("SENDING", "WAITING"), clock, 10.0, told.append)
    clock.now = 109.0
    measured.restart()
    clock.now = 110.0
    measured.lap("SENDING")
    assert "SENDING=100.0% WAITING=0.0% TOTAL=1.0s" in told[0]


def test_a9_6_a_line_about_nothing():
    assert breakdown_text({"SENDING": 0.0}, Batches(), 60.0) == (
        "Performance breakdown: SENDING=0.0% TOTAL=0.0s throughput=0/s batches=0 min=0 mean=0.0 max=0"
    )


def test_a9_7_where_the_application_is_slow_the_line_says_so(no_store, script, logs):
    """An APP_CONTROLLED receiver whose application takes its time to acknowledge spends its own on that."""
    asked = []
    script.suspended = lambda monitor, notice: asked.append(monitor)
    script.message = lambda monitor, message: monitor.acknowledge_and_resume("in") if message.body == b"now" else None
    settings = receiver("in", APP_CONTROLLED, log_performance_breakdown=True)
    parts = (settings, receiver("go", BEST_EFFORT))
    with no_store.engine(*parts, monitors=[Hears], performance_breakdown_interval=0.3) as engine:
        no_store.publish("a")
        no_store.wait(lambda: asked)
        began = engine.status().engine_time
        no_store.wait(lambda: engine.status().engine_time > began + 0.4)
        no_store.broker.publish("queue:go", [message("now")])
        no_store.wait(lambda: lines(logs, "in"))
    shares = dict(one.split("=") for one in lines(logs, "in")[0]["shares"].split())
    assert float(shares["APP_CONTROLLED_BLOCKING"].rstrip("%")) > 50


def test_the_hand_over_to_contexts_is_part_of_the_commit():
    """It comes after the acknowledgement, and must not count for what comes next."""
    broker, disk = MemoryBroker(), Disk()
    settings = receiver(log_performance_breakdown=True)
    engine = stepped(disk, broker, settings, monitors=(monitor(Hears),), performance_breakdown_interval=3600.0)
    one = engine.receivers["in"]
    deliver = one.targets.deliver

    def slowly(make_run):
        engine._clock.advance(5.0)
        deliver(make_run)

    one.targets.deliver = slowly
    broker.publish("queue:in", [message("a")])
    work(engine)
    spent = one._breakdown._spent
    assert (spent["DB_COMMIT"], spent["FLOW_CONTROL"], spent["RECEIVING"]) == (5.0, 0.0, 0.0)
