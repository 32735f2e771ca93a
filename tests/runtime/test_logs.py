"""Logging goes where standard error is now, and never stops an engine."""

import datetime as dt
import io
import sys
import time

import pytest

from correlator.errors import HandlerFailed
from correlator.reliability import Reliability
from correlator.runtime import logs
from tests.runtime.flows import Hears
from tests.runtime.world import World, message, receiver


@pytest.fixture
def configured():
    """Logging as the command line sets it up."""
    logs.configure()


def test_a_log_goes_to_standard_error_as_it_is_now(configured, monkeypatch):
    now = io.StringIO()
    monkeypatch.setattr(sys, "stderr", now)
    logs.get_logger(part="x").info("heard\x1b[31m")
    assert "heard\\x1b[31m" in now.getvalue()


@pytest.fixture
def far_east():
    """The process is 14 hours ahead of UTC."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", "Pacific/Kiritimati")
        time.tzset()
        yield
    time.tzset()


def test_times_are_utc_wherever_the_machine_stands(configured, far_east, monkeypatch):
    now = io.StringIO()
    monkeypatch.setattr(sys, "stderr", now)
    logs.get_logger().info("heard")
    told = dt.datetime.fromisoformat(now.getvalue().split()[0])
    assert told.utcoffset() == dt.timedelta(0)
    assert abs(dt.datetime.now(dt.UTC) - told) < dt.timedelta(minutes=1)


def test_an_engine_stops_in_order_when_nobody_can_read_its_log(configured, script, monkeypatch):
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stderr", closed)

    def fails(monitor, event):
        raise ValueError("no")

    script.message = fails
    world = World(None)
    with world.engine(receiver(reliability=Reliability.BEST_EFFORT), monitors=[Hears]) as engine:
        world.publish(message("a"))
        with pytest.raises(HandlerFailed, match="E5500"):
            engine.run_forever()
