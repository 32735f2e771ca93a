"""Expressions, `at` and channels in a running engine: what waits survives its end, ten contexts keep their order."""

import pytest

from correlator.testing.clock import ManualClock
from tests.runtime.listeners import CONTEXTS, LANES, Payments, Reminds, Spreads
from tests.runtime.world import message, monitor, receiver, sender, the_monitor


def bodies(*texts: str) -> list:
    return [message(text) for text in texts]


@pytest.mark.parametrize("crash", [False, True])
def test_an_attempt_survives_stop_and_crash(any_world, crash):
    parts = receiver(), sender()
    engine = any_world.engine(*parts, monitors=[Payments])
    engine.start()
    any_world.publish(*bodies("order 1", "order 2", "payment 2"))
    any_world.wait_for("paid 2")
    if crash:
        any_world.crash(engine)
    else:
        engine.stop()
    with any_world.engine(*parts, monitors=[Payments]):
        any_world.publish(*bodies("payment 2 ", "payment 1"))
        any_world.wait(lambda: "paid 1" in any_world.sent())
    assert list(dict.fromkeys(any_world.ids())) == [any_world.ids()[0], any_world.ids()[-1]]  # repeats keep their id
    assert set(any_world.sent()) == {"paid 2", "paid 1"}


def test_time_without_an_event_goes_on_where_it_stopped(world):
    clock = ManualClock()
    parts = receiver(), sender()
    with world.engine(*parts, monitors=[Reminds], clock=clock) as engine:
        world.publish("m1")
        world.wait(
            lambda: len(engine.contexts["main"].context.monitors.timers.living()) == 2
        )  # the wait, and the calendar
        clock.advance(50)
    assert world.sent() == []
    with world.engine(*parts, monitors=[Reminds], clock=clock) as engine:
        clock.advance(9.9)
        engine.contexts["main"].wake()
        assert engine.checkpoint()
        assert world.sent() == []
        clock.advance(0.2)
        engine.contexts["main"].wake()
        world.wait(lambda: engine.checkpoint() and world.sent() == ["remind m1"])


class Calendar(ManualClock):
    """A clock whose calendar can be set."""

    wall_offset = 0.0

    def wall(self) -> float:
        return self.now + self.wall_offset


def test_at_follows_the_calendar_of_the_machine_and_not_engine_time(world, monkeypatch):
    monkeypatch.setattr("correlator.runtime.clock.time.localtime", lambda _: type("Zone", (), {"tm_gmtoff": -3600}))
    clock = Calendar()
    with world.engine(sender(), monitors=[Reminds], clock=clock) as engine:
        clock.wall_offset = 3600 + 1799.0  # 00:29:59 an hour west of Greenwich
        engine.contexts["main"].wake()
        assert engine.checkpoint()
        assert world.sent() == []
    clock.wall_offset += 7200  # it was down at 00:30
    with world.engine(sender(), monitors=[Reminds], clock=clock) as engine:
        world.wait(lambda: engine.checkpoint() and world.sent() == ["daily"])
        engine.contexts["main"].wake()
        assert engine.checkpoint()
    assert world.sent() == ["daily"]


def lanes() -> list:
    return [monitor(Spreads), *(monitor(one, context=f"context-{number}") for number, one in enumerate(LANES))]


def test_ten_contexts_in_parallel_each_keep_their_order(any_world):
    """Each subscribes to a channel of its own and to a common one; a crash in the middle changes nothing."""
    count = 400
    first = any_world.engine(receiver(max_batch_size=20), monitors=lanes())
    first.start()
    any_world.publish(*(str(n) for n in range(count // 2)))
    any_world.wait(lambda: first.contexts["context-3"].context.handled > count // 8)
    any_world.crash(first)
    any_world.publish(*(str(n) for n in range(count // 2, count)))
    with any_world.engine(receiver(max_batch_size=20), monitors=lanes()) as engine:
        kept = [the_monitor(engine, one, f"context-{number}") for number, one in enumerate(LANES)]
        any_world.wait(lambda: all(len(one.news) == count for one in kept))
    for number, one in enumerate(kept):
        assert one.news == list(range(count))
        assert one.own == list(range(number, count, CONTEXTS))
