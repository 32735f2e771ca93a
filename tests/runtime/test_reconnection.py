"""When a lost connection is tried again, and what the log says of it."""

import itertools

import pytest

from correlator.core.backoff import Backoff
from correlator.errors import ConnectionLost
from correlator.runtime.intervals import LONGEST_SILENCE_S
from correlator.runtime.logs import get_logger
from correlator.runtime.reconnection import Reconnection, ReconnectionPolicy
from correlator.testing.clock import ManualClock

LOST = ConnectionLost("E7001", "in", "the line was cut")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def one(clock, logs) -> Reconnection:
    return Reconnection(ReconnectionPolicy(Backoff(1.0, 8.0), lambda: 0.0), clock, get_logger(receiver="in"))


def lines(logs) -> list[tuple[str, int, float]]:
    return [(line["event"], line["attempts"], line["away_s"]) for line in logs]


def fail(one: Reconnection, clock: ManualClock, times: int) -> None:
    for _ in range(times):
        clock.advance(one.lost(LOST))
        assert one.wait() <= 0


def test_failing_fast_raises_until_there_was_a_connection(clock):
    one = Reconnection(ReconnectionPolicy(Backoff(1.0, 8.0), lambda: 0.0, fail_fast=True), clock, get_logger())
    for _ in range(2):
        with pytest.raises(ConnectionLost):
            one.lost(LOST)
    one.back()
    assert one.lost(LOST) == 1.0


def test_the_log_tells_of_an_outage_at_doubling_intervals_and_of_its_end(one, clock, logs):
    fail(one, clock, 12)  # after 0, 1, 3, 7, 15, 23, 31, … seconds
    one.back()
    assert lines(logs) == [
        ("no connection; trying again", 1, 0.0),
        ("no connection; trying again", 2, 1.0),
        ("no connection; trying again", 3, 3.0),
        ("no connection; trying again", 4, 7.0),
        ("no connection; trying again", 5, 15.0),
        ("no connection; trying again", 7, 31.0),
        ("no connection; trying again", 11, 63.0),
        ("connected again", 12, 79.0),
    ]
    assert {line["log_level"] for line in logs} == {"warning"}
    assert (logs[0]["error"], logs[0]["retry_s"]) == (LOST, 1.0)


def test_an_outage_of_a_week_is_told_once_an_hour(one, clock, logs):
    for _ in range(7 * 24 * 450):
        clock.advance(one.lost(LOST))
    gaps = [later["away_s"] - earlier["away_s"] for earlier, later in itertools.pairwise(logs)]
    assert max(gaps) <= LONGEST_SILENCE_S + 8.0
    assert len(logs) < 7 * 24 + 20


def test_nothing_is_told_of_a_connection_that_was_made_at_once(one, logs):
    one.back()
    assert logs == []


def test_a_connection_that_held_longer_than_the_delay_before_it_begins_anew(one, clock):
    fail(one, clock, 3)
    one.back()
    clock.advance(4.0)
    assert one.lost(LOST) == 8.0
    one.back()
    clock.advance(8.1)
    assert one.lost(LOST) == 1.0


def test_a_connection_that_comes_and_goes_is_told_at_doubling_intervals_too(one, clock, logs):
    for _ in range(100):
        one.back()
        clock.advance(1.5)
        clock.advance(one.lost(LOST))
    told = [line for line in logs if line["event"].startswith("no connection")]
    assert len(told) < 10
    assert len(logs) - len(told) in (len(told), len(told) - 1)


def test_a_loss_after_a_minute_is_told_at_once(one, clock, logs):
    fail(one, clock, 10)
    one.back()
    logs.clear()
    clock.advance(60.0)
    one.lost(LOST)
    assert lines(logs) == [("no connection; trying again", 1, 0.0)]


def test_a_loss_soon_after_a_long_outage_is_told_at_once(one, clock, logs):
    fail(one, clock, 4 * 450)
    one.back()
    logs.clear()
    clock.advance(50.0)
    fail(one, clock, 3)
    assert lines(logs) == [("no connection; trying again", 1, 0.0)]
    one.back()
    assert lines(logs)[1:] == [("connected again", 3, 3.0 + 4.0)]


def test_the_log_does_not_say_connected_for_longer_than_a_minute_while_it_is_not(one, clock, logs):
    """Even when short losses before have made the intervals long."""
    for _ in range(2000):
        one.back()
        clock.advance(1.5)
        clock.advance(one.lost(LOST))
    one.back()
    while logs[-1]["event"] != "connected again":
        clock.advance(one.lost(LOST))
        one.back()
    logs.clear()
    fail(one, clock, 60)
    assert [away for _, _, away in lines(logs)] == [pytest.approx(60.0, abs=8.0)]
