"""Engines of one process share Spark, which can run only once in it."""

from correlator.pipeline.spark import SharedSession
from correlator.pipeline.spec import SparkSettings


def test_an_engine_that_goes_leaves_the_others_their_session(session: SharedSession) -> None:
    other = SharedSession(SparkSettings(master="local[2]"))
    assert other.acquire().range(2).count() == 2
    other.release()
    assert session.acquire().range(3).count() == 3
    session.release()
