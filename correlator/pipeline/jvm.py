"""Starts the JVM of a Spark session in the way of PySpark, but without its shell scripts, which first start another
JVM.

`arguments` makes the command that Spark's launcher would make. It covers only a part of the launcher: if a setting, a
variable of the environment or a file could change the command in another way, PySpark starts the JVM itself. PySpark
also starts it if the JVM of this module ends before it listens.
"""

# ruff: noqa: SLF001  PySpark has no public way to its JVM; tests/pipeline/test_spark_version.py allows this one

import atexit
import contextlib
import logging
import os
import re
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from socketserver import BaseServer
from typing import NamedTuple

from pyspark import SparkContext
from pyspark.find_spark_home import _find_spark_home
from pyspark.serializers import UTF8Deserializer, read_int
from pyspark.sql import SparkSession

from correlator.processes import keep, not_forking

_log = logging.getLogger(__name__)

SCALA = "2.13"
"""The version of Scala of this Spark."""
_LISTENS_WITHIN_S = 300.0
_PAUSE_S = 0.01
_GATEWAY_FILE = "_PYSPARK_DRIVER_CONN_INFO_PATH"
_GATEWAY_PORT, _GATEWAY_SECRET = "PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET"
_OPTIONS = "spark.driver.extraJavaOptions"
_SUBMIT_OPTIONS = "SPARK_SUBMIT_OPTS"
_WITH_OPTIONS = (_SUBMIT_OPTIONS, "JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS")
_MEMORY, _USUAL_MEMORY = "spark.driver.memory", "1g"
_FOR_THE_LAUNCHER = {
    "spark.api.mode",
    "spark.driver.defaultExtraClassPath",
    "spark.driver.defaultJavaOptions",
    "spark.driver.extraClassPath",
    "spark.driver.extraLibraryPath",
    "spark.remote",
    "spark.submit.deployMode",
}
"""Settings from which the launcher makes parts of the command, beside those that `arguments` uses."""
_NOT_FOR_THE_LAUNCHER = {
    "PYSPARK_DRIVER_PYTHON",
    "PYSPARK_PIN_THREAD",
    "PYSPARK_PYTHON",
    "SPARK_AUTH_SOCKET_TIMEOUT",
    "SPARK_BUFFER_SIZE",
    "SPARK_LAUNCHER_OPTS",
    "SPARK_LOCAL_DIRS",
    "SPARK_LOCAL_HOSTNAME",
    "SPARK_LOCAL_IP",
    "SPARK_SUBMIT_OPTS",
    "SPARK_USER",
}
_MASTER = re.compile(r"local(\[[^\]]*\])?|spark://[^\s\"'\\]+")
"""Masters for which the launcher makes the same command: this host alone, and a standalone cluster."""
_QUOTED = re.compile(r"[\"'\\]")
_REFUSED = re.compile(r"-Xmx|-Dspark")
"""Options of Java that the launcher refuses with a message of its own."""
_OPENED = (
    "java.base/java.lang",
    "java.base/java.lang.invoke",
    "java.base/java.lang.reflect",
    "java.base/java.io",
    "java.base/java.net",
    "java.base/java.nio",
    "java.base/java.util",
    "java.base/java.util.concurrent",
    "java.base/java.util.concurrent.atomic",
    "java.base/jdk.internal.ref",
    "java.base/sun.nio.ch",
    "java.base/sun.nio.cs",
    "java.base/sun.security.action",
    "java.base/sun.util.calendar",
    "java.security.jgss/sun.security.krb5",
)
_ALWAYS = (
    "-XX:+IgnoreUnrecognizedVMOptions",
    *(f"--add-opens={package}=ALL-UNNAMED" for package in _OPENED),
    "-Dio.netty.tryReflectionSetAccessible=true",
    "-Dio.netty.allocator.type=pooled",
    "-Dio.netty.handler.ssl.defaultEndpointVerificationAlgorithm=NONE",
    "--sun-misc-unsafe-memory-access=allow",
    "--enable-native-access=ALL-UNNAMED",
    "-Dderby.connection.requireAuthentication=false",
)
"""Options of the launcher, without the module for machine learning, about which Java warns on stderr (see `java`)."""
_DEAF = ("/bin/sh", "-c", 'trap "" INT TERM; exec "$0" "$@"')
"""Runs a program that ignores SIGINT and SIGTERM: a terminal, and some supervisors, send them to all processes of a
group. They stop the engine, which still needs Spark while it stops, and then ends it."""


def spark_home() -> Path:
    """The directory of the Spark that PySpark would start."""
    return Path(_find_spark_home())


def is_plain(config: Mapping[str, str], environment: Mapping[str, str]) -> bool:
    """Whether Spark's launcher would make the command that `arguments` makes."""
    options = f"{config.get(_OPTIONS, '')} {environment.get(_SUBMIT_OPTIONS, '')}"
    return (
        os.name == "posix"
        and _MASTER.fullmatch(config.get("spark.master", "")) is not None
        and not _FOR_THE_LAUNCHER & set(config)
        and not _QUOTED.search(options)
        and not _REFUSED.search(options)
        and not any(_is_for_the_launcher(name) for name in environment)
        and not (spark_home() / "conf").exists()
    )


def has_own_options(config: Mapping[str, str], environment: Mapping[str, str]) -> bool:
    """Whether the user chose options of Java that are more than definitions (`-Dname=value`)."""
    chosen = [config.get(_OPTIONS, ""), *(environment.get(name, "") for name in _WITH_OPTIONS)]
    return any(not option.startswith("-D") for options in chosen for option in options.split())


def class_path(home: Path) -> str:
    """The class path of Spark in the form of its launcher."""
    first = sorted((home / "jars").glob("slf4j-api-*.jar"))
    return os.pathsep.join(map(str, (home / "conf", *first, home / "jars" / "*")))


def arguments(config: Mapping[str, str], environment: Mapping[str, str], flags: Iterable[str] = ()) -> list[str]:
    """The arguments of Java for a Spark with these settings; `flags` come before the options of the user."""
    settings = [argument for name, value in config.items() for argument in ("--conf", f"{name}={value}")]
    return [
        *("-cp", class_path(spark_home())),
        *flags,
        *environment.get(_SUBMIT_OPTIONS, "").split(),
        f"-Xmx{config.get(_MEMORY, _USUAL_MEMORY)}",
        *config.get(_OPTIONS, "").split(),
        *_ALWAYS,
        "org.apache.spark.deploy.SparkSubmit",
        *settings,
        "pyspark-shell",
    ]


class Launch:
    """A JVM that was started, and that listens soon. Any thread may use it, but only one at a time.

    It ends with this process, whose end closes its standard input. Raises `OSError` if it cannot be started.

    Args:
        command: its program with the arguments.
        environment: its environment, to which some variables of Spark's scripts are added.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._command = list(command)
        self._environment = dict(environment)
        self._directory = Path(tempfile.mkdtemp(prefix="correlator-jvm-"))
        self._file = self._directory / "gateway"
        try:
            self._process = _started(command, environment, self._file)
        except BaseException:
            shutil.rmtree(self._directory, ignore_errors=True)
            raise

    def is_for(self, command: Sequence[str], environment: Mapping[str, str]) -> bool:
        """Whether it was started with this command in this environment."""
        return (self._command, self._environment) == (list(command), dict(environment))

    def wait(self) -> "_Listening | None":
        """Wait until it listens. `None`: it has ended before. Called once."""
        deadline = time.monotonic() + _LISTENS_WITHIN_S
        try:
            while self._process.poll() is None and time.monotonic() < deadline:
                if self._file.is_file():
                    with self._file.open("rb") as told:
                        return _Listening(self._process, read_int(told), UTF8Deserializer().loads(told))
                time.sleep(_PAUSE_S)
        except BaseException:
            self.end()
            raise
        finally:
            shutil.rmtree(self._directory, ignore_errors=True)
        self.end()
        _log.debug("a JVM that was started directly ended with %s before it listened", self._process.returncode)
        return None

    def end(self) -> None:
        """End it at once."""
        _end(self._process)
        shutil.rmtree(self._directory, ignore_errors=True)


class _Ahead:
    """A launch that a thread makes before somebody needs it."""

    def __init__(self, launch: Callable[[], Launch | None]) -> None:
        self._launch = launch
        self._made: Launch | None = None
        self._thread = threading.Thread(target=self._run, name="jvm launch")
        self._thread.start()

    def _run(self) -> None:
        try:
            self._made = self._launch()
        except Exception as error:  # noqa: BLE001  whoever needs the JVM makes the same attempt, and reports the error
            _log.debug("a JVM was not started ahead: %s", error)

    def take(self) -> Launch | None:
        """Wait for the launch; returns it once."""
        self._thread.join()
        made, self._made = self._made, None
        return made


_ahead: list[_Ahead] = []
"""The launch that nobody has taken, if there is one."""


def launch_ahead(launch: Callable[[], Launch | None]) -> None:
    """Let a thread launch a JVM for the next `gateway`. If nobody takes it, it ends with this process at the latest.

    Args:
        launch: makes the launch; `None`, or an error, if it must not be made ahead.
    """
    _end_ahead()
    _ahead.append(_Ahead(launch))
    atexit.register(_end_ahead)


def _end_ahead() -> None:
    launch = _take_ahead()
    if launch is not None:
        launch.end()


def _take_ahead() -> Launch | None:
    return _ahead.pop().take() if _ahead else None


def _launch(command: Sequence[str]) -> Launch | None:
    """The launch that was made ahead, if it is the one that is needed now, or a new one; `None` if it cannot start."""
    ahead = _take_ahead()
    if ahead is not None:
        if ahead.is_for(command, os.environ):
            return ahead
        ahead.end()
    try:
        return Launch(command, os.environ)
    except OSError as error:
        _log.debug("a JVM cannot be started directly: %s", error)
        return None


@contextlib.contextmanager
def gateway(java: Path, arguments: Sequence[str]) -> Iterator[subprocess.Popen[bytes] | None]:
    """Start a JVM, which PySpark uses within the block. `None`: it has ended before it listened.

    The JVM ends with this process, or when `SparkContext._gateway.proc.stdin` is closed.
    """
    launch = _launch([str(java), *arguments])
    listening = None if launch is None else launch.wait()
    if listening is None:
        yield None
        return
    os.environ[_GATEWAY_PORT], os.environ[_GATEWAY_SECRET] = str(listening.port), listening.secret
    try:
        yield listening.process
    finally:
        del os.environ[_GATEWAY_PORT], os.environ[_GATEWAY_SECRET]
        if has_gateway():
            SparkContext._gateway.proc = listening.process
        else:
            _end(listening.process)


def has_gateway() -> bool:
    """Whether this process has a JVM of Spark already; it outlives the session."""
    return SparkContext._gateway is not None


def has_ended(within_s: float = 0.0) -> bool:
    """Whether the JVM of this process has ended, or ends within some seconds. `False` if there is none."""
    process = SparkContext._gateway.proc if has_gateway() else None
    if process is None:
        return False
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(within_s)
    return process.poll() is not None


def kill() -> None:
    """End the JVM of this process at once, if this process has started it."""
    process = SparkContext._gateway.proc if has_gateway() else None
    if process is not None:
        process.kill()


def discard() -> None:
    """End the JVM of this process, and let PySpark forget it: the next session gets a new JVM.

    PySpark never forgets a JVM by itself, so after the death of a JVM each call fails. All objects of the old JVM are
    dead.
    """
    gateway, context = SparkContext._gateway, SparkContext._active_spark_context
    if gateway is not None:
        process = gateway.proc
        if process is not None:
            _end(process)
        with contextlib.suppress(Exception):
            gateway.shutdown()
    if context is not None:
        _end_later(context._accumulatorServer)
    SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
    SparkSession._instantiatedSession = SparkSession._activeSession = None


def stop(session: SparkSession) -> None:
    """Stop Spark; the JVM stays for the next session of this process."""
    context = session.sparkContext
    accumulators, context._accumulatorServer = context._accumulatorServer, None  # `stop` would wait for its end
    try:
        session.stop()
    finally:
        _end_later(accumulators)


def _end_later(accumulators: BaseServer | None) -> None:
    """End the server that takes accumulators, in a thread: it may notice only after a second that it must end."""
    if accumulators is not None:
        threading.Thread(target=accumulators.shutdown, name="accumulators end", daemon=True).start()


def silence(context: SparkContext) -> None:
    """Let the thread that takes the accumulators of a JVM print no traceback when this JVM dies."""
    context._accumulatorServer.handle_error = lambda *_: None


def _is_for_the_launcher(variable: str) -> bool:
    known = variable.startswith(("SPARK_", "_SPARK_", "PYSPARK_")) or variable in ("HADOOP_CONF_DIR", "YARN_CONF_DIR")
    return known and variable not in _NOT_FOR_THE_LAUNCHER


class _Listening(NamedTuple):
    """A JVM whose gateway listens."""

    process: subprocess.Popen[bytes]
    port: int
    secret: str


def _started(command: Sequence[str], environment: Mapping[str, str], file: Path) -> subprocess.Popen[bytes]:
    """Start a JVM, which writes the address of its gateway to a file."""
    home = spark_home()
    variables = {
        **environment,
        "PYTHONHASHSEED": "0",
        "SPARK_CONF_DIR": str(home / "conf"),
        "SPARK_CONNECT_MODE": "0",
        "SPARK_ENV_LOADED": "1",
        "SPARK_HOME": str(home),
        "SPARK_SCALA_VERSION": SCALA,
        _GATEWAY_FILE: str(file),
    }
    with not_forking():
        process = subprocess.Popen([*_DEAF, *command], stdin=subprocess.PIPE, env=variables)  # noqa: S603
        assert process.stdin is not None
        keep(process.stdin)  # the JVM ends with this process, even if a forked child lives on
    return process


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    with contextlib.suppress(OSError):
        process.communicate()
