"""The Spark session of an engine: its settings for small batches, its start and its stop."""

import contextlib
import logging
import os
import re
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import (
    ArithmeticException,
    ArrayIndexOutOfBoundsException,
    DateTimeException,
    NumberFormatException,
    SparkRuntimeException,
)
from pyspark.sql import SparkSession

from correlator.errors import ConfigError
from correlator.pipeline import archive, jvm
from correlator.pipeline.java import java_home, java_program
from correlator.pipeline.spec import SparkSettings
from correlator.runtime import phases

DATA_ERRORS = (
    ArithmeticException,
    ArrayIndexOutOfBoundsException,
    DateTimeException,
    NumberFormatException,
    SparkRuntimeException,
)
"""The errors by which Spark refuses a value."""
_LOOPBACK = "127.0.0.1"
_SUGGESTED = re.compile(r"Did you mean one of the following\? \[(?P<names>[^\]]*)\]")
# The error of a Python worker, behind the frames of its traceback; of a chain of errors the last one counts.
_RAISED = re.compile(r"Traceback \(most recent call last\):\n(?:[ \t].*\n|\n)+(\S.*)")
_STATE = re.compile(r"\s*SQLSTATE: \w+\s*$")
_RULES = "org.apache.spark.sql.catalyst.optimizer"
# Each of these rules lets Spark decode a body twice, or in the driver instead of on all cores.
_UNWANTED_RULES = (
    "ConvertToLocalRelation",
    "InferFiltersFromGenerate",
    "PushDownPredicates",
    "PushPredicateThroughNonJoin",
)
_LOG_SETTINGS = Path(__file__).with_name("log4j2.properties")
_ENDS_SOON = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""Flags of Java for a run of seconds, which ends before the second compiler or parallel collection would pay."""


class _ProcessSession:
    """The Spark session of this process, which can have only one. The first user starts it, the last user stops it.

    A session that the program itself has started is used as it is, and not stopped.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._scratch = ""
        self._end = contextlib.ExitStack()
        """Runs when the last user has released the session."""

    def acquire(self, settings: SparkSettings, *, ends_soon: bool = False) -> SparkSession:
        with self._lock:
            if self._users:
                session = _start(settings, self._scratch, ends_soon=ends_soon)
            else:
                session = self._begin(settings, ends_soon=ends_soon)
            self._users += 1
            return session

    def _begin(self, settings: SparkSettings, *, ends_soon: bool) -> SparkSession:
        is_ours = SparkSession.getActiveSession() is None
        with contextlib.ExitStack() as end:
            self._scratch = end.enter_context(tempfile.TemporaryDirectory(prefix="correlator-spark-"))
            end.callback(_restore_java, os.environ.get("JAVA_HOME"))
            session = _start(settings, self._scratch, ends_soon=ends_soon)
            if is_ours:
                end.callback(session.stop)
            self._end = end.pop_all()
        return session

    @property
    def scratch(self) -> Path:
        return Path(self._scratch)

    def release(self) -> None:
        with self._lock:
            self._users -= 1
            if not self._users:
                phases.begin("stopping Spark")
                self._end.close()


_process = _ProcessSession()


class SharedSession:
    """The session that the pipelines of an engine share. Engines of one process share it as well.

    The first engine starts Spark with its settings, the last engine stops it. Any thread may use this object.

    Args:
        settings: settings of Spark.
        ends_soon: whether the process ends within seconds, like `correlator test`. Java then compiles with its first
            compiler only and collects garbage with one thread, which halves the processor time of a start. For an
            engine this is not worth a risk: the time of cycles with 100,000 rows was the same within the noise, and no
            measurement shows what code of the first compiler and long pauses cost in a run of days.
    """

    def __init__(self, settings: SparkSettings, *, ends_soon: bool = False) -> None:
        self._settings = settings
        self._ends_soon = ends_soon
        self._lock = threading.Lock()
        self._users = 0
        self._session: SparkSession | None = None

    @property
    def scratch(self) -> Path:
        """A directory that exists until the last engine of the process has released the session."""
        return _process.scratch

    def acquire(self) -> SparkSession:
        """Start or share the session; raises `ConfigError` E1514 (there is no Java), E1515 (Spark does not start)."""
        with self._lock:
            if self._session is None:
                self._session = _process.acquire(self._settings, ends_soon=self._ends_soon)
            self._users += 1
            return self._session

    def release(self) -> None:
        """Release the session; once for each `acquire`."""
        with self._lock:
            self._users -= 1
            if not self._users and self._session is not None:
                _process.release()
                self._session = None


def _restore_java(home: str | None) -> None:
    """Undo a change by `_start`: the Java that it set may lie in the scratch directory, which is removed."""
    os.environ.pop("JAVA_HOME", None)
    if home is not None:
        os.environ["JAVA_HOME"] = home


def _start(settings: SparkSettings, scratch: str, *, ends_soon: bool) -> SparkSession:
    surroundings = dict(os.environ)
    if home := java_home(os.environ, Path(scratch)):
        os.environ["JAVA_HOME"] = home
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", _LOOPBACK)
    # Spark reports failures by exceptions, too; this logger would print each of them with its Java stack.
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
    config = settings_of(settings, scratch)
    builder = SparkSession.builder
    for name, value in config.items():
        builder = builder.config(name, value)
    try:
        phases.begin("starting Spark's JVM")
        with _signals_kept(), _quickly(config, surroundings, _ENDS_SOON if ends_soon else ()):
            phases.begin("starting Spark")
            return builder.getOrCreate()
    except Exception as error:
        raise ConfigError("E1515", "spark", f"Spark does not start: {first_line(error)}") from error


def settings_of(settings: SparkSettings, scratch: str) -> dict[str, str]:
    """All settings with which Spark starts; `scratch` is a directory for its files."""
    named = {"spark.app.name": "correlator", "spark.master": settings.master}
    return named | _defaults(settings.master, scratch) | dict(settings.config)


@contextlib.contextmanager
def _quickly(config: Mapping[str, str], surroundings: Mapping[str, str], flags: Sequence[str]) -> Iterator[None]:
    """Start the JVM for the session that the block builds, unless PySpark has one or must start it itself.

    Args:
        config: all settings of the session.
        surroundings: the environment as it was before the start.
        flags: flags of Java; they are left out if the user has chosen flags.
    """
    if jvm.has_gateway() or not jvm.is_plain(config, os.environ):
        yield
        return
    java = java_program(os.environ)
    if jvm.has_own_options(config, os.environ):
        flags = ()
    classes = archive.archive_of(java.identity, jvm.spark_home(), os.environ)
    is_whole = classes is not None and classes.is_whole()
    if classes is not None and is_whole:
        flags = (*classes.flags(), *flags)
    with jvm.gateway(java.path, jvm.arguments(config, os.environ, flags)) as process:
        if classes is not None and is_whole and process is None:
            classes.remove()
        yield
    if classes is not None and process is not None and not is_whole:
        archive.make_later(classes, surroundings)


def _defaults(master: str, scratch: str) -> dict[str, str]:
    """Settings for many small batches in one process: no feature that costs time in each query and helps large ones."""
    cores = str(_cores(master))
    common = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "FATAL",
        "spark.sql.shuffle.partitions": cores,
        "spark.default.parallelism": cores,
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.ansi.enabled": "true",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "20000",
        "spark.sql.execution.arrow.localRelationThreshold": "0",
        "spark.python.worker.reuse": "true",
        "spark.sql.warehouse.dir": scratch,
        "spark.sql.optimizer.excludedRules": ",".join(f"{_RULES}.{rule}" for rule in _UNWANTED_RULES),
    }
    if not is_local(master):
        return common
    return common | {
        "spark.driver.host": _LOOPBACK,
        "spark.driver.bindAddress": _LOOPBACK,
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={_LOG_SETTINGS.as_uri()}",
    }


def is_local(master: str) -> bool:
    """Whether a Spark with this master runs on this host alone."""
    return master.startswith("local")


def _cores(master: str) -> int:
    match = re.fullmatch(r"local\[(\d+).*\]", master)
    return int(match[1]) if match else os.cpu_count() or 1


@contextlib.contextmanager
def _signals_kept() -> Iterator[None]:
    """If Spark starts in the main thread, it replaces the handler of SIGINT; restore the handler of the engine."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


def first_line(error: BaseException) -> str:
    """The message of a Spark error in one line, without query text or Java stack."""
    told = (_told(error.java_exception) if isinstance(error, Py4JJavaError) else str(error)).strip()
    raised = _RAISED.findall(told)
    line = raised[-1] if raised else told.partition("\n")[0]
    return _SUGGESTED.sub(_visible, re.sub(r"\s*SQLSTATE: .*$", "", line)).rstrip(".; ")


def causes(error: BaseException) -> list[str]:
    """The messages of an error and of its causes in Java, the outermost first, without the states of SQL."""
    if not isinstance(error, Py4JJavaError):
        return [first_line(error)]
    messages, cause = [], error.java_exception
    while cause is not None:
        messages.append(_STATE.sub("", _told(cause)).strip())
        cause = cause.getCause()
    return messages


def _told(java_error: Any) -> str:
    """The message of a Java error, or the name of its class."""
    return str(java_error.getMessage() or java_error.getClass().getSimpleName())


def _visible(suggestion: re.Match[str]) -> str:
    """The suggested columns without the columns of the engine, whose names begin with `_`."""
    names = [name for name in suggestion["names"].split(", ") if not name.rpartition(".")[2].startswith("`_")]
    return f"Did you mean one of the following? [{', '.join(names)}]" if names else ""
