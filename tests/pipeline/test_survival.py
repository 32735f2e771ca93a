"""What a pipeline does when Spark fails: what is told, what is computed again, and when the engine stops."""

import os
import shutil
import signal
import stat
import threading

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import ArithmeticException

from correlator.core.batch_context import Delivered
from correlator.errors import ConfigError, HandlerFailed, TryAgain
from correlator.events import Message
from correlator.pipeline import cluster, deadline, processor, spark
from correlator.pipeline.cluster import Address, Executor, failed, lost, masters_of, own_host
from correlator.pipeline.deadline import BatchDeadline
from correlator.pipeline.spark import reason
from correlator.pipeline.spec import DecodeStep, LookupStep, PythonStep, RouteStep, SparkSettings
from correlator.runtime.clock import Clock
from tests.pipeline.conftest import TinyState
from tests.servers import HOST, free_port

ABORTED = (
    "Job aborted due to stage failure: Task 0 in stage 3.0 failed 4 times, most recent failure: Lost task 0.3 in stage 3.0 "
    "(TID 9) (127.0.0.1 executor 1):"
)
LOST = "ExecutorLostFailure (executor 1 exited caused by one of the running tasks) Reason: Command exited with code 137"
CRASHED = "Python worker exited unexpectedly (crashed)"
MASTER = "spark://127.0.0.1:7077"


# --- the JVM dies ---


def test_a_new_jvm_takes_the_place_of_one_that_was_killed(engine, session):
    """One line tells it, and the same batch gives the same effects; also those that need the state of before."""
    text = DecodeStep(format="json", schema="a INT")
    e, other = engine(text, RouteStep(to="out")), engine(text, RouteStep(to="out"), name="other")
    batch = [Delivered("in", 1, Message(b'{"a": 1}'))]
    before = e.processor.process(batch, TinyState(), 0.0)
    planned = e.processor.planned_s
    first = session.acquire()
    process = first.sparkContext._gateway.proc
    os.kill(process.pid, signal.SIGKILL)
    for one in (e, other):
        with pytest.raises(TryAgain) as caught:
            one.processor.process(batch, TinyState(), 0.0)
        assert str(caught.value) == (
            f"W5511 pipeline {one.processor.name}: Spark was lost: its JVM has ended. "
            "Spark starts again, and the batch is computed again."
        )
    assert e.processor.process(batch, TinyState(), 0.0) == before
    assert e.processor.planned_s > planned
    second = session.acquire()
    assert second is not first
    assert other.processor.process(batch, TinyState(), 0.0).sends == before.sends, "it shares the new session"
    assert session.acquire() is second
    for _ in range(3):
        session.release()


# --- what is told ---


class JavaError:
    """As Py4J shows an error of Java."""

    def __init__(self, message, cause=None):
        self._message, self._cause = message, cause

    def getMessage(self):  # noqa: N802  the name in Java
        return self._message

    def getCause(self):  # noqa: N802  the name in Java
        return self._cause


def of_java(*messages):
    made = None
    for message in reversed(messages):
        made = JavaError(message, made)
    error = Py4JJavaError.__new__(Py4JJavaError)
    error.java_exception = made
    return error


@pytest.mark.parametrize(
    ("messages", "told"),
    [
        (
            (
                "Exception thrown in awaitResult: ",
                f"{ABORTED} org.apache.spark.SparkException: {CRASHED}. Consider setting 'x'\n\tat x\nDriver stacktrace:",
            ),
            CRASHED,
        ),
        (
            (f"{ABORTED} {LOST}\nDriver stacktrace:",),
            LOST,
        ),
        (
            ("An error occurred", "Job 4 cancelled part of cancelled job group pipeline p"),
            "Job 4 cancelled part of cancelled job group pipeline p",
        ),
        (("Exception thrown in awaitResult: ", "deeper\nmore"), "deeper"),
    ],
)
def test_the_reason_of_a_failed_job_is_one_line(messages, told):
    """SP7: not the call of Py4J, which is the first line."""
    assert reason(of_java(*messages)) == told


# --- again, or the end ---


@pytest.fixture
def alone(engine):
    """A processor whose Spark is not asked."""
    return engine(DecodeStep(format="json", schema="a INT"), RouteStep(to="out")).processor


BATCH = [Delivered("in", 1, Message(b'{"a": 1}'))]


def test_a_job_that_fails_is_computed_again_and_stops_the_engine_at_last(alone, monkeypatch):
    calls = []

    def fail(table, state):
        calls.append(table)
        raise of_java("Job aborted due to stage failure: x, most recent failure: Lost task 0.0 in y: gone")

    monkeypatch.setattr(alone._opened, "run", fail)
    for _ in range(processor.MOST_ATTEMPTS - 1):
        with pytest.raises(TryAgain, match=r"^W5512 pipeline p: Spark failed: gone. The batch is computed again.$"):
            alone.process(BATCH, TinyState(), 0.0)
    with pytest.raises(HandlerFailed, match=r"^E5510 pipeline p: Spark failed: gone."):
        alone.process(BATCH, TinyState(), 0.0)
    assert len(calls) == processor.MOST_ATTEMPTS


def test_success_forgets_failures(alone, monkeypatch):
    run = alone._opened.run
    for _ in range(2):
        monkeypatch.setattr(alone._opened, "run", lambda *_: (_ for _ in ()).throw(of_java("gone")))
        for _ in range(processor.MOST_ATTEMPTS - 1):
            with pytest.raises(TryAgain):
                alone.process(BATCH, TinyState(), 0.0)
        monkeypatch.setattr(alone._opened, "run", run)
        assert alone.process(BATCH, TinyState(), 0.0).sends


def test_a_batch_waits_until_its_rows_can_be_written(alone):
    """The disk with the files for Spark is full, or a program has removed what was not used for long."""
    before = alone.process(BATCH, TinyState(), 0.0)
    directory = alone._opened.small._directory
    for file in directory.glob("*.arrow"):
        file.with_suffix(".new").symlink_to("/dev/full")
    told = rf"^W5512 {directory}/.*arrow: the rows for Spark cannot be written: .*space"
    for _ in range(processor.MOST_ATTEMPTS + 1):
        with pytest.raises(TryAgain, match=told):
            alone.process(BATCH, TinyState(), 0.0)
    shutil.rmtree(directory)
    assert alone.process(BATCH, TinyState(), 0.0) == before
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700


@pytest.mark.parametrize("error", [EOFError("x"), ConnectionRefusedError(111, "x"), ValueError("x")])
def test_an_error_is_no_death_while_the_jvm_lives(alone, monkeypatch, error):
    monkeypatch.setattr(alone._opened, "run", lambda *_: (_ for _ in ()).throw(error))
    with pytest.raises(type(error)):
        alone.process(BATCH, TinyState(), 0.0)


@pytest.mark.parametrize("error", [ArithmeticException(message="x"), UnicodeDecodeError("utf-8", b"", 0, 1, "x")])
def test_a_spark_that_is_lost_refuses_no_value(alone, monkeypatch, error):
    """The message would become a dead letter although nothing is wrong with it."""
    monkeypatch.setattr(alone._opened, "run", lambda *_: (_ for _ in ()).throw(error))
    assert alone.process(BATCH, TinyState(), 0.0).dead_letters
    monkeypatch.setattr(alone._shared, "is_lost", lambda *_, **__: True)
    with pytest.raises(TryAgain, match="^W5511 pipeline p: Spark was lost"):
        alone.process(BATCH, TinyState(), 0.0)


@pytest.mark.parametrize(
    ("executors", "served", "told", "renews"),
    [
        (0, True, r"^W5513 pipeline p: no executors at spark://one:1 for 0 s. Start workers", True),
        (0, False, r"^W5513 pipeline p: no executors at spark://one:1 for 0 s. Start workers", False),
        (1, True, r"^W5513 pipeline p: the batch took longer than 0 s, and its jobs were cancelled.", False),
    ],
)
def test_a_batch_whose_time_has_passed(alone, monkeypatch, executors, served, told, renews):
    """SP6: a session that has had executors and has none is unknown to its master; one that waits keeps its place."""
    cancelled = threading.Event()

    def wait(table, state):
        assert cancelled.wait(60)
        raise of_java("Job 1 cancelled")

    monkeypatch.setattr(deadline, "LEAST_S", 0.01)
    monkeypatch.setattr(alone._shared, "is_local", False)
    monkeypatch.setattr(alone._shared, "master", "spark://one:1")
    monkeypatch.setattr(cluster, "executors", lambda session: executors)
    monkeypatch.setattr(alone._opened.session.sparkContext, "cancelJobGroup", lambda group: cancelled.set())
    monkeypatch.setattr(alone._opened, "run", wait)
    alone._has_served = served
    with pytest.raises(TryAgain, match=told):
        alone.process(BATCH, TinyState(), 0.0)
    assert alone._is_lost == renews


# --- the deadline ---


class Watch(Clock):
    """A clock that a test sets."""

    now = 0.0

    def monotonic(self):
        return self.now


def test_a_deadline_is_three_times_the_slowest_of_the_last_twenty():
    clock = Watch()
    one = BatchDeadline(clock)

    def take(seconds):
        with one.over(lambda: None, lambda: None):
            clock.now += seconds

    assert one.seconds == 60
    take(10)
    assert one.seconds == 60
    take(50)
    assert one.seconds == 150
    for _ in range(19):
        take(1)
    assert one.seconds == 150
    take(1)
    assert one.seconds == 60
    take(30)
    one.forget_last()
    assert one.seconds == 60


def test_a_batch_that_does_not_end_when_it_is_cancelled_is_killed(monkeypatch):
    monkeypatch.setattr(deadline, "LEAST_S", 0.01)
    monkeypatch.setattr(deadline, "ENDS_WITHIN_S", 0.01)
    one, killed = BatchDeadline(), threading.Event()
    with pytest.raises(RuntimeError), one.over(lambda: None, killed.set):
        assert killed.wait(60)
        raise RuntimeError
    assert one.passed
    with one.over(lambda: None, lambda: None):
        pass
    assert not one.passed


# --- clusters ---


@pytest.mark.parametrize(
    ("master", "addresses"),
    [
        ("spark://one:7077", [Address("one", 7077)]),
        ("spark://one:7077,two:7078", [Address("one", 7077), Address("two", 7078)]),
        ("spark://[::1]:7077", [Address("::1", 7077)]),
        ("local[2]", []),
        ("k8s://https://one:443", []),
    ],
)
def test_the_addresses_of_masters(master, addresses):
    assert masters_of(master) == addresses


def test_a_master_that_does_not_answer_is_told_by_its_address():
    master = f"spark://{HOST}:{free_port()}"
    with pytest.raises(ConfigError, match=f"^E1515 spark: no master answers at {master}: Connection refused."):
        own_host(master)
    assert own_host("yarn") is None


def test_what_a_look_tells():
    here = Executor("h:1", is_active=True, failed=0, why="")
    gone = Executor("h:1", is_active=False, failed=2, why="Command exited with code 137")
    assert lost({"0": here, "1": here}, {"0": gone, "1": here}) == [
        "W5514 spark: executor 0 at h:1 was lost (Command exited with code 137), 1 left. Spark repeats its tasks."
    ]
    assert lost({"0": gone}, {"0": gone}) == []
    assert lost({}, {"0": here}) == failed({}, {"0": here}) == []
    assert failed({"0": here}, {"0": here._replace(failed=2), "1": here._replace(failed=1)}) == [
        "W5514 spark: 2 tasks have failed in executor 0 at h:1. Spark has repeated them.",
        "W5514 spark: a task has failed in executor 1 at h:1. Spark has repeated it.",
    ]
    assert failed({"0": here}, {"0": gone}) == []


def test_settings_of_a_cluster():
    """Partitions follow the cores of the cluster, not those of this host; each setting of the user counts."""
    made = spark.settings_of(SparkSettings(master=MASTER), "/x")
    assert "spark.sql.shuffle.partitions" not in made
    assert "spark.default.parallelism" not in made
    assert made["spark.network.timeout"] == "60s"
    assert made["spark.executor.heartbeatInterval"] == "5s"
    assert made["spark.task.maxFailures"] == "4"
    own = {"spark.network.timeout": "5s", "spark.sql.shuffle.partitions": "7"}
    assert spark.settings_of(SparkSettings(master=MASTER, config=own), "/x").items() >= own.items()
    assert not spark.SharedSession(SparkSettings(master=MASTER, config=own)).chooses_partitions
    assert spark.SharedSession(SparkSettings(master=MASTER)).chooses_partitions
    assert not spark.SharedSession(SparkSettings(master="local[2]")).chooses_partitions
    assert "spark.network.timeout" not in spark.settings_of(SparkSettings(master="local[2]"), "/x")


@pytest.mark.parametrize(
    ("settings", "environment", "python"),
    [
        (SparkSettings(master=MASTER), {}, "python3"),
        (SparkSettings(master=MASTER), {"PYSPARK_PYTHON": "/opt/python"}, "/opt/python"),
        (SparkSettings(master=MASTER, python="/own"), {"PYSPARK_PYTHON": "/opt/python"}, "/own"),
        (SparkSettings(master="local"), {"PYSPARK_PYTHON": "/opt/python"}, spark.sys.executable),
        (SparkSettings(master="local", python="/own"), {}, "/own"),
    ],
)
def test_the_python_of_the_workers(settings, environment, python):
    assert spark._python(settings, environment) == python


def test_the_step_that_fails_is_found_by_running_up_to_each(engine, monkeypatch):
    """SP7: of several steps with Python code."""
    one = engine(
        DecodeStep(format="json", schema="a INT"),
        PythonStep(function="machines:same"),
        PythonStep(function="machines:double"),
        RouteStep(to="out"),
    )
    table = processor.input_table(BATCH)
    compiled = one.processor._opened
    fine = compiled._run

    def run(rows, first, state, last=None):
        if last == 1:
            raise of_java("gone")
        return fine(rows, first, state, last)

    monkeypatch.setattr(compiled, "_run", run)
    assert compiled.failing(table, TinyState()) == "pipeline p step 3 (python)"


def test_a_file_of_a_lookup_goes_to_the_workers_of_a_cluster(engine, monkeypatch, tmp_path):
    """They read the same records, and a mistake in the file is told in the same words."""
    file = tmp_path / "products.csv"
    steps = DecodeStep(format="json", schema="sku STRING"), LookupStep(file=str(file), on=("sku",)), RouteStep(to="out")
    file.write_bytes(b"sku,n\r\ntea,1\n\ncup,2")
    bodies = []
    for is_here in (True, False):
        monkeypatch.setattr("correlator.pipeline.lookup.is_local", lambda _, here=is_here: here)
        e = engine(*steps, name=f"p{is_here}")
        e.run('{"sku": "tea"}', '{"sku": "cup"}', '{"sku": "pot"}')
        bodies.append(e.bodies())
    assert bodies[0] == bodies[1] == ['{"sku":"tea","n":"1"}', '{"sku":"cup","n":"2"}', '{"sku":"pot","n":null}']
    for content in (b"sku,n\ncaf\xe9,1\n", b"sku,n\ntea,1,2\n", b"", b"sku,\ntea,1\n"):
        file = tmp_path / f"{len(content)}.csv"
        file.write_bytes(content)
        steps = DecodeStep(format="json", schema="sku STRING"), LookupStep(file=str(file), on=("sku",))
        told = []
        for is_here in (True, False):
            monkeypatch.setattr("correlator.pipeline.lookup.is_local", lambda _, here=is_here: here)
            with pytest.raises(ConfigError) as caught:
                engine(*steps)
            told.append(str(caught.value))
        assert told[0] == told[1]
