"""The Spark session of an engine: its settings for small batches, its start and its stop."""

import contextlib
import logging
import os
import re
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

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
from correlator.pipeline import archive, cluster, daemon, jvm
from correlator.pipeline.java import java_home, java_program
from correlator.pipeline.packaging import Package
from correlator.pipeline.spec import SparkSettings
from correlator.pipeline.warming import warm
from correlator.runtime import phases
from correlator.runtime.logs import get_logger

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
# The error of a Python worker, after the frames of its traceback; in a chain of errors the last one counts.
_RAISED = re.compile(r"Traceback \(most recent call last\):\n(?:[ \t].*\n|\n)+(\S.*)")
_ABORTED = "Job aborted due to stage failure: "
_TASK = re.compile(r"^Lost task [^:]*: (?:[a-z]\w*\.)*(?:SparkException: )?")
"""The task that failed, and the class of its error, before the reason."""
_HINT = ". Consider setting "
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
_PARTITIONS = "spark.sql.shuffle.partitions"
_WAREHOUSE = "spark.sql.warehouse.dir"
_OF_A_CLUSTER = {
    "spark.network.timeout": "60s",
    "spark.executor.heartbeatInterval": "5s",
    "spark.task.maxFailures": "4",
}
"""Settings with which a cluster notices within a minute that an executor hangs."""
_CHANGED = ("JAVA_HOME", "PYSPARK_PYTHON", "SPARK_LOCAL_IP")
"""The variables that `_start` may change."""
_NO_EARLY_COLLECTION = "-XX:MetaspaceSize=256m"
"""By default Java collects all garbage at 21 MB of metadata of classes, which Spark has soon after its start."""
_ENDS_SOON = (_NO_EARLY_COLLECTION, "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""Flags of Java for a run of seconds, which ends before the second compiler or parallel collection would pay."""
_RUNS_LONG = (
    _NO_EARLY_COLLECTION,
    "-XX:+UseParallelGC",
    "-XX:Tier4InvocationThreshold=50000",
    "-XX:Tier4MinInvocationThreshold=6000",
    "-XX:Tier4CompileThreshold=150000",
    "-XX:Tier4BackEdgeThreshold=400000",
)
"""Flags of Java for an engine. The second compiler gets only the code that runs ten times as often as usual. Later
batches take the same time, and the first ones do not share the processors with the compilation of code that runs only
for a moment. No request waits for the collection of garbage, so less processor time counts more than short pauses."""


class _ProcessSession:
    """The Spark session of this process, which can have only one. The first user starts it, the last user stops it.

    A session that the program itself has started is used as it is, and not stopped.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._scratch = ""
        self._is_ours = True
        self._settings = SparkSettings()
        self._ends_soon = False
        self._packages: list[Package] = []
        self._paths: set[str] = set()
        """Temporary directories that PySpark has added to the import path."""
        self._session: SparkSession | None = None
        self._watch: cluster.Watch | None = None
        self._end = contextlib.ExitStack()
        """Runs when the last user has released the session."""

    def acquire(
        self, settings: SparkSettings, *, ends_soon: bool = False, package: Package | None = None
    ) -> SparkSession:
        with self._lock:
            if not self._users:
                session = self._begin(settings, ends_soon=ends_soon, package=package)
            elif self._is_ours and self._session is not None and self.is_lost(self._session):
                session = self._anew()
                self._add(session, package)
            else:
                session = _start(settings, self._scratch, ends_soon=ends_soon)
                self._add(session, package)
            self._session = session
            self._users += 1
            return session

    def _begin(self, settings: SparkSettings, *, ends_soon: bool, package: Package | None) -> SparkSession:
        self._is_ours = SparkSession.getActiveSession() is None
        self._settings, self._ends_soon, self._packages = settings, ends_soon, []
        with contextlib.ExitStack() as end:
            self._scratch = end.enter_context(tempfile.TemporaryDirectory(prefix="correlator-spark-"))
            for name in _CHANGED:
                end.callback(_restore, name, os.environ.get(name))
            end.callback(self._stop)
            session = self._session = self._started()
            self._add(session, package)
            self._look(session)
            if self._is_ours and is_local(settings.master):
                warm(session, self.scratch)
            self._end = end.pop_all()
        return session

    def _started(self) -> SparkSession:
        before = set(sys.path)
        session = _start(self._settings, self._scratch, ends_soon=self._ends_soon)
        self._paths = set(sys.path) - before
        return session

    def renew(self, lost: SparkSession) -> SparkSession:
        """The session that replaces a broken one: the session that another pipeline has started since, or a new
        session.
        """
        with self._lock:
            if self._session is lost or self._session is None:
                self._session = self._anew()
            return self._session

    def is_lost(self, session: SparkSession, *, within_s: float = 0.0) -> bool:
        """Whether a session is broken: its JVM has ended, Spark has stopped, or there is another session."""
        if session is not self._session or jvm.has_ended(within_s):
            return True
        try:
            return cluster.is_stopped(session)
        except Exception:  # noqa: BLE001  whatever Py4J raises
            return True

    @property
    def is_ours(self) -> bool:
        """Whether the engine may end Spark."""
        return self._is_ours

    @property
    def scratch(self) -> Path:
        return Path(self._scratch)

    def job_ended(self, *, refused: bool) -> None:
        watch = self._watch
        if watch is not None:
            (watch.refused if refused else watch.succeeded)()

    def release(self) -> None:
        with self._lock:
            self._users -= 1
            if not self._users:
                phases.begin("stopping Spark")
                self._end.close()

    def _add(self, session: SparkSession, package: Package | None) -> None:
        if package is not None:
            self._packages.append(package)
            _ship(session, package, self.scratch)

    def _look(self, session: SparkSession) -> None:
        jvm.silence(session.sparkContext)
        master = session.sparkContext.master
        if cluster.masters_of(master):
            self._watch = cluster.Watch(session, master, get_logger(part="spark").warning)
            self._watch.start()

    def _anew(self) -> SparkSession:
        """Give up the session, if there is one, and start another one in a new JVM."""
        if self._watch is not None:
            self._watch.end()
        self._session = self._watch = None
        jvm.discard()
        sys.path[:] = [one for one in sys.path if one not in self._paths]
        session = self._started()
        for package in self._packages:
            _ship(session, package, self.scratch)
        self._look(session)
        return session

    def _stop(self) -> None:
        """Stop a session that the engine has started. A living JVM stays for the next session of this process."""
        session, self._session = self._session, None
        if self._watch is not None:
            self._watch.end()
            self._watch = None
        if not self._is_ours or session is None:
            return
        if jvm.has_ended():
            jvm.discard()
        else:
            jvm.stop(session)


_process = _ProcessSession()


class SharedSession:
    """The session that the pipelines of an engine share. Engines of one process share it as well.

    The first engine starts Spark with its settings, the last engine stops it. Any thread may use this object.

    Args:
        settings: settings of Spark.
        ends_soon: whether the process ends within seconds, like `correlator test`. Java then compiles with its first
            compiler only and collects garbage with one thread, which halves the processor time of a start. Code of the
            first compiler needs two thirds more time for later batches, so an engine has other flags.
        package: makes the package of the modules that the workers of a cluster need; not called for a local master.
    """

    def __init__(
        self, settings: SparkSettings, *, ends_soon: bool = False, package: Callable[[], Package] | None = None
    ) -> None:
        self.is_local = is_local(settings.master)
        self.master = settings.master
        self.chooses_partitions = not self.is_local and _PARTITIONS not in settings.config
        self._settings = settings
        self._ends_soon = ends_soon
        self._package = package
        self._lock = threading.Lock()
        self._users = 0
        self._session: SparkSession | None = None

    @property
    def scratch(self) -> Path:
        """A directory that exists until the last engine of the process has released the session."""
        return _process.scratch

    def acquire(self) -> SparkSession:
        """Start or share the session.

        Raises `ConfigError` E1514 (there is no Java), E1515 (Spark does not start), E1538 (a module cannot be packed).
        """
        with self._lock:
            if self._session is None:
                package = self._package() if self._package is not None and not self.is_local else None
                self._session = _process.acquire(self._settings, ends_soon=self._ends_soon, package=package)
            self._users += 1
            return self._session

    def is_lost(self, session: SparkSession, *, within_s: float = 0.0) -> bool:
        """Whether a session that this object has returned is broken.

        Args:
            session: the session.
            within_s: seconds to wait for the end of the JVM, since its sockets close before the process ends.
        """
        return _process.is_ours and _process.is_lost(session, within_s=within_s)

    def renew(self, lost: SparkSession) -> SparkSession:
        """End a broken session, and start another one in a new JVM. Raises `ConfigError` as `acquire`."""
        session = _process.renew(lost)
        with self._lock:
            self._session = session
        return session

    def job_ended(self, *, refused: bool = False) -> None:
        """Note that a job has succeeded, or that Spark has refused a value. After a refused value no warning reports
        failed tasks.
        """
        _process.job_ended(refused=refused)

    def spread(self, session: SparkSession) -> None:
        """Let the next query use the cores that the cluster has now, unless the settings say how many."""
        if self.chooses_partitions:
            session.conf.set(_PARTITIONS, cluster.cores(session))

    def release(self) -> None:
        """Release the session; must be called once for each `acquire`."""
        with self._lock:
            self._users -= 1
            if not self._users and self._session is not None:
                _process.release()
                self._session = None


def _restore(variable: str, value: str | None) -> None:
    """Undo a change by `_start`: the Java that it set may lie in the scratch directory, which is removed."""
    os.environ.pop(variable, None)
    if value is not None:
        os.environ[variable] = value


def _ship(session: SparkSession, package: Package, scratch: Path) -> None:
    """Let the workers import the modules of a package. The modules of this process stay unchanged."""
    path = list(sys.path)
    session.sparkContext.addPyFile(str(package.write_into(scratch)))
    sys.path[:] = path


def launch_ahead(settings: SparkSettings, *, ends_soon: bool = False) -> None:
    """Begin to start the JVM for a session with these settings, and return at once: it starts while modules are
    imported.

    `SharedSession.acquire` uses this JVM if it would start the same one. Nothing happens if Spark is not local, or if
    this process has a JVM. An error is left to `acquire`, which meets it again.
    """
    if not is_local(settings.master) or jvm.has_gateway():
        return
    surroundings = dict(os.environ)

    def launch() -> jvm.Launch | None:
        with tempfile.TemporaryDirectory(prefix="correlator-java-") as scratch:
            environment = surroundings | _variables(settings, surroundings, scratch)
            if environment.get("JAVA_HOME", "").startswith(scratch):  # a script that the session makes for itself
                return None
        config = settings_of(settings, "")
        if not jvm.is_plain(config, environment):
            return None
        java = _java(config, environment, _flags(ends_soon=ends_soon))
        return jvm.Launch([str(java.path), *java.arguments], environment)

    jvm.launch_ahead(launch)


def _variables(settings: SparkSettings, environment: Mapping[str, str], scratch: str) -> dict[str, str]:
    """The variables of the environment that Spark needs; raises `ConfigError` E1514."""
    variables = {"PYSPARK_PYTHON": _python(settings, environment)}
    if home := java_home(environment, Path(scratch)):
        variables["JAVA_HOME"] = home
    if is_local(settings.master):
        variables["SPARK_LOCAL_IP"] = environment.get("SPARK_LOCAL_IP", _LOOPBACK)
    return variables


def _flags(*, ends_soon: bool) -> Sequence[str]:
    return _ENDS_SOON if ends_soon else _RUNS_LONG


def _start(settings: SparkSettings, scratch: str, *, ends_soon: bool) -> SparkSession:
    surroundings = dict(os.environ)
    os.environ.update(_variables(settings, surroundings, scratch))
    # Spark reports failures by exceptions, too; this logger would print each of them with its Java stack.
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
    logging.getLogger().addFilter(_is_not_of_py4j)
    config = settings_of(settings, scratch)
    if not is_local(settings.master) and (host := cluster.own_host(settings.master)) is not None:
        config = {"spark.driver.host": host, "spark.driver.bindAddress": host} | config
    builder = SparkSession.builder
    for name, value in config.items():
        builder = builder.config(name, value)
    try:
        phases.begin("starting Spark's JVM")
        with _signals_kept(), _quickly(config, surroundings, _flags(ends_soon=ends_soon)):
            phases.begin("starting Spark")
            return builder.getOrCreate()
    except Exception as error:
        if not is_local(settings.master):
            jvm.discard()  # Spark has stopped in this JVM; the next attempt begins anew
        at = "" if is_local(settings.master) else f" with the master {settings.master}"
        raise ConfigError("E1515", "spark", f"Spark does not start{at}: {first_line(error)}") from error


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    """Filter for the log: Py4J writes a traceback whenever the JVM dies, and the pipelines report it in one line."""
    return Path(record.pathname).parent.name != "py4j"


def _python(settings: SparkSettings, environment: Mapping[str, str]) -> str:
    """The Python of the workers."""
    if settings.python is not None:
        return settings.python
    return sys.executable if is_local(settings.master) else environment.get("PYSPARK_PYTHON", "python3")


def settings_of(settings: SparkSettings, scratch: str) -> dict[str, str]:
    """All settings with which Spark starts; `scratch` is a directory for its files."""
    named = {"spark.app.name": "correlator", "spark.master": settings.master}
    return named | _defaults(settings.master, scratch) | dict(settings.config)


@contextlib.contextmanager
def _quickly(config: Mapping[str, str], surroundings: Mapping[str, str], flags: Sequence[str]) -> Iterator[None]:
    """Start the JVM for the session that the block builds, unless PySpark has one or must start it itself.

    Args:
        config: all settings of the session.
        surroundings: the environment before the start.
        flags: flags of Java; they are left out if the user has chosen flags.
    """
    if jvm.has_gateway() or not jvm.is_plain(config, os.environ):
        yield
        return
    java = _java(config, os.environ, flags)
    with jvm.gateway(java.path, java.arguments) as process:
        if java.archive is not None and java.maps_it and process is None:
            java.archive.remove()
        yield
    if java.archive is not None and process is not None and not java.maps_it:
        archive.make_later(java.archive, surroundings)


class _Java(NamedTuple):
    """The Java of a session.

    Attributes:
        path: the program.
        arguments: its arguments.
        archive: the archive of its classes; `None` if there is no place for it.
        maps_it: whether there is this archive, so that the arguments name it.
    """

    path: Path
    arguments: Sequence[str]
    archive: archive.Archive | None
    maps_it: bool


def _java(config: Mapping[str, str], environment: Mapping[str, str], flags: Sequence[str]) -> _Java:
    """The Java with which a session of these settings starts; see `_quickly`."""
    java = java_program(environment)
    if jvm.has_own_options(config, environment):
        flags = ()
    classes = archive.archive_of(java.identity, jvm.spark_home(), environment)
    maps_it = classes is not None and classes.is_whole()
    if classes is not None and maps_it:
        flags = (*classes.flags(), *flags)
    # The directory differs from session to session, and the session sets it itself.
    told = {name: value for name, value in config.items() if name != _WAREHOUSE}
    return _Java(java.path, jvm.arguments(told, environment, flags), classes, maps_it)


def _defaults(master: str, scratch: str) -> dict[str, str]:
    """Settings for many small batches in one process: they switch off features that cost time in each query and help
    only large ones.
    """
    common = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "FATAL",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.ansi.enabled": "true",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "20000",
        "spark.sql.execution.arrow.localRelationThreshold": "0",
        "spark.python.worker.reuse": "true",
        _WAREHOUSE: scratch,
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={_LOG_SETTINGS.as_uri()}",
        "spark.sql.optimizer.excludedRules": ",".join(f"{_RULES}.{rule}" for rule in _UNWANTED_RULES),
    }
    if not is_local(master):
        return common | _OF_A_CLUSTER
    cores = str(_cores(master))
    return common | {
        "spark.driver.host": _LOOPBACK,
        "spark.driver.bindAddress": _LOOPBACK,
        "spark.python.daemon.module": daemon.__name__,
        _PARTITIONS: cores,
        "spark.default.parallelism": cores,
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


def reason(error: BaseException) -> str:
    """Why Spark has failed, in one line; for a job that was given up, the failure of its last task."""
    if not isinstance(error, Py4JJavaError):
        return first_line(error) or type(error).__name__
    found = causes(error)
    aborted = next((one for one in found if _ABORTED in one), None)
    if aborted is None:
        return found[-1].partition("\n")[0]
    raised = _RAISED.findall(aborted)
    if raised:
        return str(raised[-1])
    line = aborted.partition(_ABORTED)[2].partition("\n")[0]
    return _TASK.sub("", line.rpartition("most recent failure: ")[2]).partition(_HINT)[0]


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
