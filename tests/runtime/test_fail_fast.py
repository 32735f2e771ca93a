"""A broker that cannot be reached at start: waited for, unless the engine was told to fail fast."""

import pytest

from correlator.errors import ConnectionLost
from correlator.reliability import Reliability
from tests.runtime.world import World, receiver, sender


@pytest.mark.parametrize("part", [receiver, sender])
def test_fail_fast_ends_a_start_without_broker_with_exit_status_4(part):
    world = World(None)
    world.broker.down = True
    engine = world.engine(part(reliability=Reliability.BEST_EFFORT), fail_fast=True)
    with pytest.raises(ConnectionLost) as raised, engine:
        engine.run_forever()
    assert raised.value.exit_status == 4


def test_fail_fast_is_over_once_the_broker_was_reached():
    world = World(None)
    with world.engine(receiver(reliability=Reliability.BEST_EFFORT), fail_fast=True) as engine:
        listening = engine.receivers["in"]
        world.wait(lambda: listening.state == "receiving")
        world.broker.down = True
        world.wait(lambda: listening.counters.connection_errors)
        world.broker.down = False
        world.wait(lambda: listening.state == "receiving")
        engine.raise_failure()
