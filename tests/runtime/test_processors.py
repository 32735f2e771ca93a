"""Processors of pipelines without Spark: opened once, closed once."""

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
