"""What a pipeline did, in the status and in the table that a run ends with (rule A9.3)."""

from correlator.cli.running import _rows
from correlator.cli.watching import Counts
from correlator.connector import Backlog
from correlator.core.batch_context import Effects
from correlator.events import DeadLetter
from correlator.runtime.status import CheckpointCounters, PipelineCounters, ReceiverCounters, pipeline_lines
from correlator.testing.clock import ManualClock
from correlator.testing.memory import MemoryBroker
from correlator.testing.store import Disk
from tests.runtime.flows import Idles
from tests.runtime.stepped import stepped, work
from tests.runtime.test_status import a_status
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


class TakesTime(SendsTwice):
    """Plans for two seconds, then computes for three, by the clock of the test."""

    def __init__(self, clock) -> None:
        self.clock = clock
        self.planned_s = 1.0

    def process(self, batch, state, engine_time):
        self.clock.advance(2.0)
        self.planned_s += 2.0
        self.clock.advance(3.0)
        return super().process(batch, state, engine_time)


def test_the_time_of_a_batch_is_measured_where_it_is_spent():
    clock, broker = ManualClock(), MemoryBroker()
    engine = stepped(Disk(), broker, receiver(), sender(), processors=[TakesTime(clock)], clock=clock)
    idle = engine.status()
    broker.publish("queue:in", [message("a"), message("b")])
    work(engine)
    did = engine.status()
    counters = did.pipelines["twice"]
    assert (counters.batches, counters.take_s, counters.plan_s, counters.compute_s, counters.apply_s) == (1, 0, 2, 3, 0)
    assert idle.pipelines["twice"].batches == 0, "a status does not change later"
    (line,) = pipeline_lines(idle, did)
    assert line == (
        "Pipeline Status: pipeline=twice in=2 out=4 dead=0 batches=1 inRate=0 waiting=0 "
        "take=0% plan=40% compute=60% apply=0%"
    )
    engine.stop(drain=False)


def test_the_progress_line_shows_the_backlog_and_where_the_time_goes():
    receivers = {"in": ("receiving", ReceiverCounters(received=1234, backlog=Backlog(5, 7_340_000)))}
    checkpoints = CheckpointCounters(taken=3, total_duration_s=0.25)
    did = PipelineCounters(batches=12, take_s=0.1, plan_s=1.5, compute_s=20.04)
    now = a_status(
        1.0,
        receivers=receivers,
        contexts={"p": 0, "q": 9, "r": 0},
        checkpoints=checkpoints,
        pipelines={"p": did, "q": PipelineCounters(), "r": PipelineCounters()},
    )
    assert Counts(now).text(320.4) == (
        "received 1,234  processed 0  sent 0  320/s  backlog 5  backlog 7.3 MB  "
        "p: batch 12, take 0.1s plan 1.5s compute 20.0s apply 0.0s commit 0.2s  q: first batch  r: no batch yet"
    )
