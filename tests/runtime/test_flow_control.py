"""Flow control of a receiver by the application (rule A9.1)."""

import pytest

from correlator import FlowControlMarker, Message, Monitor, on
from correlator.errors import ConfigError
from tests.runtime.flows import SCRIPT, Hears, Idles
from tests.runtime.world import APP_CONTROLLED, AT_LEAST_ONCE, BEST_EFFORT, EXACTLY_ONCE, numbered, receiver

MODES = [BEST_EFFORT, AT_LEAST_ONCE, EXACTLY_ONCE]


class Windowed(Monitor):
    """Counts, keeps markers, and answers as the script says."""

    count: int = 0

    @on(Message)
    def message(self, message: Message) -> None:
        self.count += 1
        SCRIPT.message(self, message)

    @on(FlowControlMarker)
    def marker(self, marker: FlowControlMarker) -> None:
        SCRIPT.hear(self, f"{marker.receiver} {marker.number} at {self.count}")
        SCRIPT.order(self, marker)


class Keeping(Windowed, persistent=True):
    """The same with lasting state."""


def once(window: int):
    """Answers the first marker alone."""
    answered = []

    def answer(monitor, marker):
        if not answered:
            answered.append(marker)
            monitor.update_flow_control_window(marker, window)

    return answer


def always(window: int):
    """Answers every marker."""
    return lambda monitor, marker: monitor.update_flow_control_window(marker, window)


def delivered(engine, name: str = "in") -> int:
    return engine.status().receivers[name][1].delivered


@pytest.mark.parametrize("mode", MODES)
def test_a9_1_a_window_that_is_never_renewed_stops_the_receiver(world, script, mode):
    """Given a window of 5000, when it is not renewed, then 5000 arrive; when a kept marker renews it, more do."""
    world.watch_points()
    script.order = once(5000)
    with world.engine(receiver("in", mode, flow_control=True), monitors=[Windowed], max_queued=20_000) as engine:
        world.broker.publish("queue:in", numbered(12_000))
        world.wait(lambda: delivered(engine) == 5000)
        blocked = len(world.happened("rx.flow.window"))
        engine.receivers["in"].wake()
        world.wait(lambda: len(world.happened("rx.flow.window")) > blocked)
        assert (delivered(engine), engine.status().windows) == (5000, {"in": 0})
        assert world.broker.waiting("queue:in") == 7000
        engine.receivers["in"].grant(5000 + 5000)
        world.wait(lambda: delivered(engine) == 10_000)
        assert world.broker.waiting("queue:in") == 2000


def test_a9_1_a_kept_marker_renews_the_window(world, script):
    kept = []
    script.order = lambda monitor, marker: (
        kept.append(marker) or (monitor.update_flow_control_window(marker, 5000) if len(kept) == 1 else None)
    )
    go = receiver("go", BEST_EFFORT)

    def renew(monitor, message):
        if message.body == b"go":
            monitor.update_flow_control_window(kept[-1], 5000)

    script.message = renew
    with world.engine(receiver("in", AT_LEAST_ONCE, flow_control=True), go, monitors=[Windowed]) as engine:
        world.broker.publish("queue:in", numbered(7000))
        world.wait(lambda: delivered(engine) == 5000 and kept[-1].number == 5000)
        world.publish("go", to="queue:go")
        world.wait(lambda: delivered(engine) == 7000)
        assert engine.status().windows == {"in": 3000}


def test_a9_1_without_an_answer_nothing_is_received(no_store, script):
    no_store.publish(*numbered(3))
    with no_store.engine(receiver("in", BEST_EFFORT, flow_control=True), monitors=[Windowed]) as engine:
        no_store.wait(lambda: script.of("Windowed") == ["in 0 at 0"])
        no_store.wait(lambda: engine.status().conditions["in"].status == "OK")
        assert (delivered(engine), no_store.broker.waiting("queue:in")) == (0, 3)


def test_a9_1_a_marker_comes_behind_every_batch(no_store, script):
    script.order = always(1000)
    no_store.publish(*numbered(25))
    settings = receiver("in", BEST_EFFORT, flow_control=True, max_batch_size=10)
    with no_store.engine(settings, monitors=[Windowed]):
        no_store.wait(lambda: len(script.of("Windowed")) == 4)
    assert script.of("Windowed") == ["in 0 at 0", "in 10 at 10", "in 20 at 20", "in 25 at 25"]


def test_a9_1_a_batch_ends_where_the_window_does(no_store, script):
    """The rest of a window is delivered at once: no batch waits for messages that may not come."""
    script.order = once(7)
    no_store.publish(*numbered(30))
    settings = receiver("in", BEST_EFFORT, flow_control=True, max_batch_size=5, max_batch_interval_ms=100_000)
    with no_store.engine(settings, monitors=[Windowed]) as engine:
        no_store.wait(lambda: len(script.of("Windowed")) == 3)
        assert delivered(engine) == 7
    assert script.of("Windowed") == ["in 0 at 0", "in 5 at 5", "in 7 at 7"]


def test_a9_1_duplicates_use_no_window(world, script):
    script.order = once(3)
    with world.engine(receiver("in", EXACTLY_ONCE, flow_control=True, max_batch_size=1), monitors=[Windowed]) as engine:
        world.publish("a", "a", "a", "b", "c", "d")
        world.wait(lambda: delivered(engine) == 3)
        assert engine.status().receivers["in"][1].received == 5


def test_a9_1_a_window_can_be_closed_again(no_store, script):
    def answer(monitor, marker):
        monitor.update_flow_control_window(marker, 100 if marker.number == 0 else 0)

    script.order = answer
    no_store.watch_points()
    with no_store.engine(receiver("in", BEST_EFFORT, flow_control=True), monitors=[Windowed]) as engine:
        no_store.wait(lambda: engine.status().windows == {"in": 100})
        no_store.publish("a")
        no_store.wait(lambda: delivered(engine) == 1)
        blocked = len(no_store.happened("rx.flow.window"))
        engine.receivers["in"].wake()  # it may have come to the closed window before the line above
        no_store.wait(lambda: len(no_store.happened("rx.flow.window")) > blocked)
        no_store.publish("b")
        blocked = len(no_store.happened("rx.flow.window"))
        engine.receivers["in"].wake()
        no_store.wait(lambda: len(no_store.happened("rx.flow.window")) > blocked)
        assert delivered(engine) == 1


def test_a9_1_a_new_marker_comes_after_a_restart(any_world, script):
    """The window is not state: a persistent monitor may set it, and sets it again in the next life."""
    script.order = once(10)
    settings = receiver("in", EXACTLY_ONCE, flow_control=True, max_batch_size=4)
    any_world.publish(*numbered(25))
    with any_world.engine(settings, monitors=[Keeping]) as engine:
        any_world.wait(lambda: delivered(engine) == 10)
        any_world.wait(lambda: engine.checkpoint() and any_world.received_rows() == 0)
        any_world.crash(engine)
    script.order = once(15)
    with any_world.engine(settings, monitors=[Keeping]) as engine:
        any_world.wait(lambda: delivered(engine) == 15)
    assert script.of("Keeping") == [
        *("in 0 at 0", "in 4 at 4", "in 8 at 8", "in 10 at 10"),
        *("in 10 at 10", "in 14 at 14", "in 18 at 18", "in 22 at 22", "in 25 at 25"),
    ]


def test_a9_1_after_a_crash_the_marker_comes_behind_what_was_received(any_world, script, gate):
    """What the receive log holds is handled first; the marker counts it."""
    script.order = once(10)
    script.message = lambda monitor, message: gate.wait()
    settings = receiver("in", EXACTLY_ONCE, flow_control=True)
    with any_world.engine(settings, monitors=[Keeping]) as engine:
        any_world.publish(*numbered(10))
        any_world.wait(lambda: any_world.received_rows() == 10)
        gate.set()
        engine.checkpointer.stop()
        any_world.crash(engine)
    del script.heard[:]
    with any_world.engine(settings, monitors=[Keeping]):
        any_world.wait(lambda: script.of("Keeping"))
    assert script.of("Keeping")[0] == "in 10 at 10"


def test_a9_1_a_receiver_that_is_added_gives_a_marker(world, script):
    script.order = always(100)
    with world.engine(monitors=[Windowed]) as engine:
        engine.add_receiver(receiver("later", BEST_EFFORT, flow_control=True))
        world.publish("a", to="queue:later")
        world.wait(lambda: script.of("Windowed") == ["later 0 at 0", "later 1 at 1"])
        engine.remove("later")
        world.wait(lambda: engine.removed("later"))
        engine.add_receiver(receiver("later", BEST_EFFORT, flow_control=True))
        world.wait(lambda: len(script.of("Windowed")) == 3)


def test_a9_1_an_app_controlled_receiver_has_both(no_store, script):
    script.suspended = lambda monitor, notice: monitor.acknowledge_and_resume("in")
    script.order = once(5)
    no_store.publish(*numbered(8))
    settings = receiver("in", APP_CONTROLLED, flow_control=True, max_batch_size=3)
    with no_store.engine(settings, monitors=[Windowed, Hears]) as engine:
        no_store.wait(lambda: delivered(engine) == 5 and no_store.broker.unacknowledged("queue:in") == 0)
    assert no_store.broker.waiting("queue:in") == 3


def test_a9_1_a_blocked_receiver_stops_in_order(world, script):
    script.order = once(2)
    world.publish(*numbered(5))
    with world.engine(receiver("in", EXACTLY_ONCE, flow_control=True), monitors=[Keeping]) as engine:
        world.wait(lambda: delivered(engine) == 2)
    assert engine.failure is None
    assert world.broker.unacknowledged("queue:in") == 0


@pytest.mark.parametrize(
    ("name", "window", "code"), [("other", 5, "E7104"), ("nobody", 5, "E7104"), ("in", -1, "E7105")]
)
def test_a9_1_a_call_that_cannot_be_meant_raises(no_store, script, name, window, code):
    def wrong(monitor, marker):
        monitor.update_flow_control_window(FlowControlMarker(receiver=name, number=0), window)

    script.order = wrong
    parts = (receiver("in", BEST_EFFORT, flow_control=True), receiver("other", BEST_EFFORT))
    with no_store.engine(*parts, monitors=[Windowed]) as engine:
        no_store.wait(lambda: engine.failure is not None)
    assert engine.failure.code == code


def test_a9_1_a_failed_handler_opens_no_window(no_store, script):
    def fails(monitor, marker):
        monitor.update_flow_control_window(marker, 5)
        raise ValueError("no")

    script.order = fails
    no_store.publish("a")
    with no_store.engine(receiver("in", BEST_EFFORT, flow_control=True), monitors=[Windowed]) as engine:
        no_store.wait(lambda: engine.failure is not None)
        assert engine.status().windows == {"in": 0}


def test_a9_1_a_pipeline_cannot_be_asked(no_store):
    settings = receiver("in", BEST_EFFORT, flow_control=True)
    engine = no_store.engine(settings, monitors=[Windowed], processors=[Idles()])
    with pytest.raises(ConfigError, match="E1068 receiver 'in'.flow_control: needs a monitor"):
        engine.start()
