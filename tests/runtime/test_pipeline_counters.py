"""What a pipeline did, in the status and in the table that a run ends with (rule A9.3)."""

from correlator.cli.run import _rows
from correlator.core.batch_context import Effects
from correlator.events import DeadLetter
from tests.runtime.flows import Idles
from tests.runtime.world import message, receiver, sender


class SendsTwice(Idles):
    """A processor that sends every message twice, but for `bad`, which becomes a dead letter."""

    name = "twice"

    def process(self, batch, state, engine_time):
        good = [one.message for one in batch if one.message.body != b"bad"]
        dead = [
            DeadLetter(kind="step", origin="twice", reason="E", message=one.message)
            for one in batch
            if one.message.body == b"bad"
        ]
        return Effects([("out", again) for again in good for _ in range(2)], (), dead)


def test_a9_3_a_pipeline_has_a_row_of_its_own(world):
    with world.engine(receiver(), sender(), processors=[SendsTwice()]) as engine:
        world.publish(message("a"), message("bad"), message("b"))
        world.wait_for("a", "a", "b", "b")
        world.wait(lambda: engine.status().totals()["sent"] == 4)
        status = engine.status()
    counters = status.pipelines["twice"]
    assert (counters.received, counters.dead_letters, counters.sent) == (3, 1, 4)
    assert status.totals()["dead letters"] == 1
    rows = {row[0]: list(row) for row in _rows(status, 2.0)}
    assert list(rows) == ["receiver in", "sender out", "pipeline twice", "total"]
    assert rows["pipeline twice"] == ["pipeline twice", 3, None, 1, 4, None, 1.5, 2.0]
