"""Engines of one process share Spark, which can run only once in it."""

import os

import pytest

from correlator.pipeline import spark
from correlator.pipeline.spark import SharedSession
from correlator.pipeline.spec import SparkSettings


def test_an_engine_that_goes_leaves_the_others_their_session(session: SharedSession) -> None:
    other = SharedSession(SparkSettings(master="local[2]"))
    assert other.acquire().range(2).count() == 2
    other.release()
    assert session.acquire().range(3).count() == 3
    session.release()


def test_a_session_that_the_program_has_started_is_left_alone(
    session: SharedSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For another count of users the session of these tests is one that was there before; so is the home of Java."""
    process = spark._ProcessSession()
    java = os.environ.get("JAVA_HOME")
    monkeypatch.setattr(spark, "java_home", lambda environ, scratch: f"{scratch}/java")
    assert process.acquire(SparkSettings(master="local[2]")).range(2).count() == 2
    assert os.environ["JAVA_HOME"] != java
    process.release()
    assert os.environ.get("JAVA_HOME") == java
    assert session.acquire().range(3).count() == 3
    session.release()
