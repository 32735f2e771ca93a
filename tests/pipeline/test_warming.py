"""What a local Spark does before its first batch."""

import logging
import threading

import pytest

from correlator.pipeline import spark, warming
from correlator.pipeline.spark import SharedSession
from correlator.pipeline.spec import SparkSettings


def jobs_without_a_name(session) -> set[int]:
    return set(session.sparkContext.statusTracker().getJobIdsForGroup(None))


def test_a_plan_is_executed_on_every_core(session, tmp_path):
    spark_session = session._session
    for thread in threading.enumerate():
        if thread.name == "warming":
            thread.join()
    before = jobs_without_a_name(spark_session)
    warming.warm(spark_session, tmp_path).join()
    tracker = spark_session.sparkContext.statusTracker()
    (job,) = jobs_without_a_name(spark_session) - before
    (stage,) = tracker.getJobInfo(job).stageIds
    assert tracker.getStageInfo(stage).numCompletedTasks == spark_session.sparkContext.defaultParallelism == 2


def test_a_failure_has_no_effect(session, tmp_path, caplog):
    no_directory = tmp_path / "file"
    no_directory.touch()
    with caplog.at_level(logging.DEBUG, logger=warming.__name__):
        warming.warm(session._session, no_directory).join()
    assert [record.levelname for record in caplog.records if record.name == warming.__name__] == ["DEBUG"]
    assert session._session.range(3).count() == 3


@pytest.mark.parametrize(
    ("master", "is_ours", "times"), [("local[2]", True, 1), ("local[2]", False, 0), ("spark://127.0.0.1:7077", True, 0)]
)
def test_only_a_local_spark_of_the_engine_is_warmed(monkeypatch, master, is_ours, times):
    warmed = []
    monkeypatch.setattr(spark, "warm", lambda *given: warmed.append(given))
    monkeypatch.setattr(spark.SparkSession, "getActiveSession", lambda: None if is_ours else object())
    monkeypatch.setattr(spark, "_process", process := spark._ProcessSession())
    for name in ("_started", "_look", "_stop"):
        monkeypatch.setattr(process, name, lambda *_: object())
    shared = SharedSession(SparkSettings(master=master))
    shared.acquire()
    shared.release()
    assert len(warmed) == times
