"""Processors of pipelines without Spark: opened once, closed once."""

from correlator.errors import TryAgain
from tests.runtime.test_poison import Pipeline
from tests.runtime.world import receiver, sender


class Watched(Pipeline):
    """Counts."""

    def __init__(self) -> None:
        super().__init__("none")
        self.told: list[str] = []

    def open(self) -> None:
        self.told.append("opened")

    def close(self) -> None:
        self.told.append("closed")


def test_a_processor_is_opened_by_the_start_and_closed_by_the_stop(world):
    processor = Watched()
    with world.engine(receiver(), sender(), processors=[processor]):
        world.publish("a")
        world.wait_for("a")
        assert processor.told == ["opened"]
    assert processor.told == ["opened", "closed"]


class Unable(Pipeline):
    """Fails at first, so many times in each method."""

    def __init__(self, failures: int) -> None:
        super().__init__("none")
        self.failures = {"process": failures, "conclude": failures}
        self.batches: list[int] = []

    def process(self, batch, state, engine_time):
        self.batches.append(len(batch))
        self._fail("process")
        return super().process(batch, state, engine_time)

    def conclude(self, state, engine_time):
        self._fail("conclude")
        return super().conclude(state, engine_time)

    def _fail(self, method):
        self.failures[method] -= 1
        if self.failures[method] >= 0:
            raise TryAgain("W5512", "pipeline p", "Spark failed", "The batch is computed again", 0.01)


def test_a_batch_that_cannot_be_computed_at_present_is_computed_again(world, logs):
    """It stays in the queue, nothing of it has an effect before, and one line tells of each failure."""
    processor = Unable(3)
    with world.engine(receiver(), sender(), processors=[processor]):
        world.publish("a", "b")
        world.wait_for("a", "b")
    assert len(processor.batches) >= 4
    assert world.sent() == ["a", "b"]
    told = [one["event"] for one in logs if one["log_level"] == "warning"]
    assert told == ["W5512 pipeline p: Spark failed. The batch is computed again."] * 3


def test_the_end_of_all_input_is_concluded_again(world):
    """A pipeline whose receivers have ended fires its timers once it can."""
    processor = Unable(2)
    processor.failures["process"] = 0
    world.publish("a")
    with world.engine(receiver(), sender(), processors=[processor]) as engine:
        world.wait_for("a")
        engine.contexts["copies"].conclude()
        world.wait(lambda: processor.failures["conclude"] < 0)


def test_an_engine_stops_while_its_pipeline_can_compute_nothing(world):
    """The messages stay in the store for the next start."""
    unable = Unable(10**9)
    with world.engine(receiver(), sender(), processors=[unable], stop_timeout=0.2):
        world.publish("a")
        world.wait(lambda: unable.batches)
    with world.engine(receiver(), sender(), processors=[Unable(0)]):
        world.wait_for("a")
    assert world.sent() == ["a"]
