"""A real Spark standalone cluster for tests: a master and workers of the pip package, ordinary processes on loopback.

Each worker has one core. The Python of the workers has PyArrow and msgspec and nothing of the project, and a worker
begins in a directory of its own.
"""

import contextlib
import functools
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from importlib import import_module
from pathlib import Path

import pyspark

from tests import waiting
from tests.servers import HOST, free_port

START_TIMEOUT_S = 300
NOTICED_WITHIN_S = 12
"""Seconds after which a master gives up a worker that it hears nothing of; 60 by default."""
HERE = Path(__file__).parent
_SCRIPTS = Path(pyspark.__file__).parent / "bin"
SMALL = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_NEEDED = ("pyarrow", "msgspec")
_PYTHON = """#!/bin/sh
PYTHONPATH="$PYTHONPATH:{packages}" exec {python} -S "$@"
"""
_ALIVE = "I have been elected leader"
_REGISTERED = "Successfully registered with master"


class SparkCluster:
    """A master that keeps what it knows in files, and workers; each can be killed and started again.

    Args:
        workers: how many workers `start` starts.
    """

    def __init__(self, workers: int = 2) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="correlator-cluster-"))
        self.port = free_port()
        self.url = f"spark://{HOST}:{self.port}"
        self.python = python_without_project(self.directory)
        self._count = workers
        self._master: _Daemon | None = None
        self._workers: list[_Daemon] = []
        self._log = self.directory / "cluster.log"

    @property
    def environment(self) -> dict[str, str]:
        """The variables of an engine that uses the cluster."""
        return {"PYSPARK_PYTHON": str(self.python)}

    def start(self) -> None:
        """Start all, and wait until the workers are registered."""
        self.start_master(wait=False)
        workers = [self._started_worker() for _ in range(self._count)]
        self._alive_master.wait_for(_ALIVE)
        for worker in workers:
            worker.wait_for(_REGISTERED)

    def start_master(self, *, wait: bool = True) -> None:
        """Start the master, also again after `kill_master`: it then knows workers and applications."""
        recovery = self.directory / "recovery"
        recovery.mkdir(exist_ok=True)
        self._master = self._daemon("master", {"/var/lib/spark/recovery": str(recovery)})
        if wait:
            self._alive_master.wait_for(_ALIVE)

    def start_worker(self) -> None:
        """Start another worker, and wait until it is registered."""
        self._started_worker().wait_for(_REGISTERED)

    def kill_master(self) -> None:
        """Kill the master, and wait until it is gone."""
        self._alive_master.kill()

    def forget(self) -> None:
        """Let the next master know nothing."""
        shutil.rmtree(self.directory / "recovery", ignore_errors=True)

    def kill_worker(self, at: int = 0) -> None:
        """Kill a worker, and wait until it is gone; its executors end themselves."""
        self._workers.pop(at).kill()

    def executors(self) -> list[int]:
        """The process ids of the executors."""
        return [pid for one in self._workers for pid in children(one.pid) if b"CoarseGrained" in command_of(pid)]

    def pythons(self) -> list[int]:
        """The process ids of the Python workers, without the daemons from which they are forked."""
        daemons = [pid for one in self.executors() for pid in children(one)]
        return [pid for one in daemons for pid in children(one)]

    def close(self) -> None:
        """Kill all, and remove what they have left."""
        for one in (*self._workers, *([self._master] if self._master else [])):
            one.kill()
        for pid in self._left():
            kill(pid)
        shutil.rmtree(self.directory, ignore_errors=True)

    @property
    def _alive_master(self) -> "_Daemon":
        assert self._master is not None
        return self._master

    def _left(self) -> list[int]:
        """The processes in the directories of workers: executors may outlive a worker that is killed early."""
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if (process / "cwd").readlink().is_relative_to(self.directory):
                    found.append(int(process.name))
        return found

    def _started_worker(self) -> "_Daemon":
        work = tempfile.mkdtemp(prefix="work-", dir=self.directory)
        worker = self._daemon("worker", {"/var/lib/spark/work": work, "--cores 4": "--cores 1", "8g": "1g"})
        self._workers.append(worker)
        return worker

    def _daemon(self, name: str, values: dict[str, str]) -> "_Daemon":
        command = documented(name)
        ports = {":7077": f":{self.port}", "--port 7077": f"--port {self.port}", "8080": "0", "8081": "0"}
        for documented_value, value in {**ports, "cluster1": HOST, "worker1": HOST, **values}.items():
            command = command.replace(documented_value, value)
        own = {
            name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "SPARK_", "PYSPARK"))
        }
        environment = {
            **own,
            "PATH": f"{_SCRIPTS}{os.pathsep}{os.environ['PATH']}",
            "SPARK_DAEMON_MEMORY": "192m",
            "SPARK_DAEMON_JAVA_OPTS": f"{SMALL} -Dspark.worker.timeout={NOTICED_WITHIN_S}",
            "SPARK_LAUNCHER_OPTS": SMALL,
        }
        return _Daemon(["bash", "-c", command], environment, self.directory, self._log)


def documented(name: str) -> str:
    """The command of docs/cluster.md that starts a part of a cluster; its process becomes that of the part."""
    text = (HERE.parent / "docs" / "cluster.md").read_text()
    (command,) = re.findall(
        rf"^<!-- cluster: {name} -->\n```\n(.*?)^```\n<!-- end -->$", text, re.MULTILINE | re.DOTALL
    )
    return f"\n{command}".replace("\nspark-class", "\nexec spark-class")


class _Daemon:
    """A process whose log is followed."""

    def __init__(self, command: list[str], environment: dict[str, str], directory: Path, log: Path) -> None:
        self._said = threading.Condition()
        self._lines: list[str] = []
        self._ended = False
        self._log = log
        self._process = subprocess.Popen(
            command, env=environment, cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self._reader = threading.Thread(target=self._follow)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_for(self, text: str) -> None:
        """Wait until a line of the log has a text."""
        with self._said:
            self._said.wait_for(lambda: self._ended or any(text in line for line in self._lines), START_TIMEOUT_S)
            if not any(text in line for line in self._lines):
                raise RuntimeError(f"a part of the cluster did not start: {''.join(self._lines)[-4000:]}")

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(START_TIMEOUT_S)
        self._reader.join(START_TIMEOUT_S)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _follow(self) -> None:
        assert self._process.stdout is not None
        with self._log.open("a") as log:
            for line in self._process.stdout:
                log.write(line)
                log.flush()
                with self._said:
                    self._lines.append(line)
                    self._said.notify_all()
        with self._said:
            self._ended = True
            self._said.notify_all()


def children(pid: int) -> list[int]:
    """The processes that a process has started, by any of its threads."""
    found: list[int] = []
    with contextlib.suppress(OSError):  # it has ended
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                found += map(int, (thread / "children").read_text().split())
    return found


def command_of(pid: int) -> bytes:
    """The command line of a process; empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def jvm_of(pid: int) -> int | None:
    """The JVM of an engine."""
    return next((one for one in children(pid) if b"org.apache.spark.deploy.SparkSubmit" in command_of(one)), None)


def kill(pid: int) -> bool:
    """Kill a process; returns whether it was there."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def python_without_project(directory: Path) -> Path:
    """A Python that has the packages which workers need, and no other packages."""
    packages = directory / "packages"
    packages.mkdir()
    for name in _NEEDED:
        source = Path(str(import_module(name).__file__)).parent
        for found in (source, *source.parent.glob(f"{name}*.libs")):
            (packages / found.name).symlink_to(found)
    program = directory / "python"
    program.write_text(_PYTHON.format(packages=packages, python=_base_python()))
    program.chmod(0o755)
    return program


def _base_python() -> Path:
    """The Python from which the environment of the tests was made: it has no packages of it."""
    return Path(sys.base_prefix, "bin", f"python{sys.version_info[0]}.{sys.version_info[1]}")


wait_until = functools.partial(waiting.wait_until, within_s=START_TIMEOUT_S, every_s=0.1)
