"""Reads the condition of a Spark cluster, and logs its failures. Only this module asks Spark's scheduler."""

# ruff: noqa: SLF001  PySpark has no public way to executors; tests/pipeline/test_spark_version.py allows this one

import re
import socket
import threading
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from pyspark.sql import SparkSession

from correlator.errors import ConfigError

REACHED_WITHIN_S = 10.0
LOOKS_EVERY_S = 2.0
_LOOKS_LATE = 2
"""The number of checks within which Spark lists a failed task."""
_STANDALONE = "spark://"
_ADDRESS = re.compile(r"(?:\[(?P<v6>[^\]]+)\]|(?P<host>[^:,]+)):(?P<port>\d+)")


class Address(NamedTuple):
    """Host and port of a master."""

    host: str
    port: int


def masters_of(master: str) -> list[Address]:
    """The addresses of the masters of a standalone cluster; none for another kind of cluster."""
    if not master.startswith(_STANDALONE):
        return []
    found = _ADDRESS.finditer(master.removeprefix(_STANDALONE))
    return [Address(one["v6"] or one["host"], int(one["port"])) for one in found]


def own_host(master: str) -> str | None:
    """The address of this host in the network of a standalone cluster; `None` for another kind of cluster.

    Raises:
        ConfigError: E1515, none of the masters answers; the message has their address.
    """
    failure: OSError | None = None
    for address in masters_of(master):
        try:
            with socket.create_connection(address, REACHED_WITHIN_S) as link:
                return str(link.getsockname()[0])
        except OSError as error:
            failure = error
    if failure is None:
        return None
    what = f"no master answers at {master}: {failure.strerror or failure}"
    raise ConfigError("E1515", "spark", what, "", "Start the master, or correct 'spark.master'") from failure


def cores(session: SparkSession) -> int:
    """How many cores the executors have together, at least 2."""
    return int(session.sparkContext.defaultParallelism)


def executors(session: SparkSession) -> int:
    """How many executors the application has now."""
    return int(session.sparkContext._jsc.sc().getExecutorMemoryStatus().size()) - 1  # the driver counts as one


def is_stopped(session: SparkSession) -> bool:
    """Whether Spark has stopped by itself, for example because a master has removed the application."""
    context = session.sparkContext._jsc
    return context is None or bool(context.sc().isStopped())


class Executor(NamedTuple):
    """An executor in Spark's list."""

    place: str
    is_active: bool
    failed: int
    why: str


class Watch:
    """Logs one line for each failure in a cluster from which Spark recovers: of executors, tasks and the master.

    Args:
        session: the session that Spark runs.
        master: the address of the master.
        tell: logs a warning.
    """

    def __init__(self, session: SparkSession, master: str, tell: Callable[[str], None]) -> None:
        self._session = session
        self._master = master
        self._tell = tell
        self._ended = threading.Event()
        self._known: dict[str, Executor] = {}
        self._answers = True
        self._explained = 0
        self._failed: list[str] = []
        """The failures of tasks that checks have found. They are logged when a job succeeds."""
        self._thread = threading.Thread(target=self._run, name="spark-watch", daemon=True)

    def start(self) -> None:
        """Begin to check every two seconds, in a thread of its own."""
        self._thread.start()

    def end(self) -> None:
        """End the checks. Does not wait."""
        self._ended.set()

    def succeeded(self) -> None:
        """Log the tasks that failed before a job succeeded: Spark has repeated them. Any thread may call it."""
        failed, self._failed = self._failed, []
        for line in failed:
            self._tell(line)

    def refused(self) -> None:
        """Forget the tasks that have failed so far, because Spark has refused a value. Any thread may call it."""
        self._failed, self._explained = [], _LOOKS_LATE

    def _run(self) -> None:
        while not self._ended.wait(LOOKS_EVERY_S):
            try:
                found = _listed(self._session, self._known)
            except Exception:  # noqa: BLE001  Spark has ended: the pipelines tell it
                return
            if self._ended.is_set():
                return
            for line in lost(self._known, found):
                self._tell(line)
            if not self._explained:
                self._failed += failed(self._known, found)
            self._known, self._explained = found, max(0, self._explained - 1)
            self._look_at_master()

    def _look_at_master(self) -> None:
        try:
            own_host(self._master)
            answers = True
        except ConfigError:
            answers = False
        if self._answers and not answers:
            what = f"W5514 spark: the master {self._master} does not answer"
            self._tell(f"{what}. The executors go on. The cluster replaces no lost executor until the master answers.")
        self._answers = answers


def lost(before: Mapping[str, Executor], after: Mapping[str, Executor]) -> list[str]:
    """A line for each executor that was lost between two checks."""
    left = sum(one.is_active for one in after.values())
    lines = []
    for name, one in after.items():
        if not one.is_active and (name not in before or before[name].is_active):
            why = f" ({one.why})" if one.why else ""
            what = f"W5514 spark: executor {name} at {one.place} was lost{why}, {left} left"
            lines.append(f"{what}. Spark repeats its tasks.")
    return lines


def failed(before: Mapping[str, Executor], after: Mapping[str, Executor]) -> list[str]:
    """A line for each living executor in which tasks have failed between two checks."""
    lines = []
    for name, one in after.items():
        count = one.failed - (before[name].failed if name in before else 0)
        if one.is_active and count > 0:
            what = "a task has" if count == 1 else f"{count} tasks have"
            again = "it" if count == 1 else "them"
            lines.append(f"W5514 spark: {what} failed in executor {name} at {one.place}. Spark has repeated {again}.")
    return lines


def _listed(session: SparkSession, known: Mapping[str, Executor]) -> dict[str, Executor]:
    listed: Any = session.sparkContext._jsc.sc().statusStore().executorList(False)
    found: dict[str, Executor] = {}
    for at in range(listed.size()):
        one = listed.apply(at)
        name = str(one.id())
        if name in known and not known[name].is_active:
            found[name] = known[name]
        elif name != "driver":
            why = one.removeReason()
            first = str(why.get()).partition("\n")[0].rstrip(".") if why.isDefined() else ""
            found[name] = Executor(str(one.hostPort()), bool(one.isActive()), int(one.failedTasks()), first)
    return found
