"""What the engine itself writes into headers and reads from them: persistence and redelivery."""

import pytest

from correlator import Message, Monitor, on
from correlator.events import Headers
from correlator.reliability import Reliability
from correlator.settings import MonitorSettings
from tests.runtime.world import World, receiver, sender


class Passing(Monitor):
    """Sends on what comes in."""

    @on(Message)
    def passing(self, message: Message) -> None:
        self.send(message.body, to="out")


PASSING = MonitorSettings(type=f"{__name__}:Passing")


@pytest.mark.parametrize(
    ("reliability", "persistent"),
    [(Reliability.EXACTLY_ONCE, True), (Reliability.AT_LEAST_ONCE, True), (Reliability.BEST_EFFORT, False)],
)
def test_a2_3_reliable_sends_are_persistent_and_best_effort_ones_are_not(tmp_path, reliability, persistent):
    """Rule A2.3: given a sender of each mode, when it sends, then the delivery mode is that of its mode."""
    world = World(f"sqlite:///{tmp_path}/store.db")
    with world.engine(receiver(), sender(reliability=reliability), monitors=[PASSING]):
        world.publish("a")
        world.wait_for("a")
    (sent,) = world.broker.received("queue:out")
    assert sent.headers is not None
    assert sent.headers.persistent is persistent


def test_a8_19_the_longest_time_to_redelivery_is_measured(tmp_path):
    """Rule A8.19: given a redelivered message, when it comes, then status tells how long it was under way."""
    world = World(f"sqlite:///{tmp_path}/store.db")
    headers = Headers(redelivered=True, timestamp=1_000)
    with world.engine(receiver(), sender(), monitors=[PASSING]) as engine:
        world.broker.publish("queue:in", [Message(b"old", {"uniqueMessageId": "1"}, headers=headers)])
        world.wait(lambda: engine.status().receivers["in"][1].max_delivery_s > 0)
        (_, counters) = engine.status().receivers["in"]
    assert counters.max_delivery_s > 1_700_000_000
