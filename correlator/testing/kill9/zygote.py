"""The server that forks the children: a process with all imports done, and with one thread.

    python -m correlator.testing.kill9.zygote DESCRIPTOR MODULE…

One process uses it over a socket: it sends a job together with the child's end of another socket; the server answers
with the process id of the child, and with its status when it is dead. The server waits for a dead child only when the
next job arrives: until then no other process gets the id, so that the oracle may safely send it a signal.
"""

import contextlib
import gc
import importlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from correlator.errors import UsageError
from correlator.runtime import logs
from correlator.runtime.engine import Engine
from correlator.settings import EngineSettings
from correlator.storage import postgres, sqlite
from correlator.storage import store as stores
from correlator.storage.statements import Statements
from correlator.testing.kill9 import wire
from correlator.testing.kill9.child import ChildLife
from correlator.testing.kill9.remote import OracleConnection
from correlator.testing.syscalls import library

LOG = "log"
"""File in the directory of a run for warnings of the engines, and tracebacks."""
BROKEN = 70
"""Exit status of a child that ended with an error that no engine may raise."""
_job = msgspec.msgpack.Decoder(wire.Job)
_number = msgspec.msgpack.Decoder(int)


class Zygote:
    """The server of the children, as the oracle uses it. Used by one thread.

    Args:
        modules: modules to import before the first fork: those of the application.

    Attributes:
        counts_calls: whether children can be killed before the n-th call that changes a file; this needs a C compiler.

    Every method raises `UsageError` E2431 when the server has ended by itself, for example because an import failed.
    """

    def __init__(self, modules: Sequence[str]) -> None:
        self.counts_calls = _can_count_calls()
        self._line, its = socket.socketpair()
        command = [sys.executable, "-m", __name__, str(its.fileno()), *modules]
        with its, library.preloading() if self.counts_calls else contextlib.nullcontext():
            environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
            self._process = subprocess.Popen(  # noqa: S603  # this interpreter with this module
                command, pass_fds=[its.fileno()], env=environment, stdin=subprocess.DEVNULL, start_new_session=True
            )
        self._reader = wire.Reader(self._line)

    def fork(self, job: wire.Job) -> tuple[int, socket.socket]:
        """Fork a child; return its process id, and the oracle's end of the socket to it. The child before must be
        dead.
        """
        mine, its = socket.socketpair()
        try:
            with its, contextlib.suppress(ConnectionError):  # reading the answer reports it
                socket.send_fds(self._line, [b"\0"], [its.fileno()])
                self._line.sendall(wire.frame(job))
            return self._told(), mine
        except UsageError:
            mine.close()
            raise

    def status(self) -> int:
        """Wait until the child is dead; return its exit status, or the negative number of the signal that ended it."""
        return self._told()

    def close(self) -> None:
        """End the server and wait for its process; a child that still runs ends first. Call this once."""
        self._line.close()
        self._process.wait()

    def _told(self) -> int:
        try:
            return _number.decode(self._reader.one())
        except EOFError as error:
            status = self._process.wait()
            what = f"the server of the children ended with status {status}"
            raise UsageError(
                "E2431", "processes of a crash test", what, "", "Its traceback is on standard error"
            ) from error


def _can_count_calls() -> bool:
    with contextlib.suppress(UsageError):
        library.library()
        return True
    return False


def serve(line: socket.socket) -> None:
    """Fork one child after another until the other side is gone."""
    gc.collect()
    gc.freeze()  # the children's collector leaves these pages alone, so that they stay shared
    reader = wire.Reader(line)
    dead = 0
    while True:
        told, descriptors, _, _ = socket.recv_fds(line, 1, 1)
        if not told:
            return
        job = _job.decode(reader.one())
        if dead:
            os.waitpid(dead, 0)
        dead = os.fork()
        if not dead:
            _be(job, socket.socket(fileno=descriptors[0]), line)
        os.close(descriptors[0])
        line.sendall(wire.frame(dead))
        line.sendall(wire.frame(_status_of(dead)))


def _status_of(child: int) -> int:
    """Wait for the end of a child and kill what it started, but leave the child to `waitpid`; return its status."""
    result = os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    assert result is not None
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    return result.si_status if result.si_code == os.CLD_EXITED else -result.si_status


def _be(job: wire.Job, line: socket.socket, of_the_server: socket.socket) -> NoReturn:
    """Run the child, from the fork to the end of the process."""
    try:
        os.setsid()
        of_the_server.close()
        _write_to(Path(job.directory) / LOG)
        logs.configure(level="WARNING")
        ChildLife(job, OracleConnection(line)).run()
        os._exit(0)
    except BaseException:  # noqa: BLE001  # the oracle finds the status and the log of any error
        traceback.print_exc()
        os._exit(BROKEN)


def _write_to(log: Path) -> None:
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for standard in (1, 2):
        os.dup2(descriptor, standard)
    os.close(descriptor)


def main(arguments: Sequence[str]) -> None:
    """Import and prepare what children need, then serve."""
    descriptor, *modules = arguments
    for module in modules:
        importlib.import_module(module)
    _warm_up()
    with contextlib.suppress(BrokenPipeError):  # the oracle no longer waits for the status
        serve(socket.socket(fileno=int(descriptor)))


def _warm_up() -> None:
    """Run an engine once and keep what it compiled: compiling statements was the largest part of a child's start."""
    made: dict[str, Statements] = {}
    dialects: dict[str, Any] = {}
    compiled: dict[Any, Any] = {}
    make = vars(sqlite)["create_engine"]

    def statements(dialect: Any) -> Statements:
        if dialect.name not in made:
            made[dialect.name] = Statements(dialect)
        return made[dialect.name]

    def create_engine(*arguments: Any, **options: Any) -> Any:
        engine: Any = make(*arguments, **options)
        engine.dialect = dialects.setdefault(engine.dialect.name, engine.dialect)  # statements are compiled for one
        engine.update_execution_options(compiled_cache=compiled)
        return engine

    vars(stores)["Statements"] = statements
    for module in (sqlite, postgres):
        vars(module)["create_engine"] = create_engine
    with tempfile.TemporaryDirectory() as directory:
        settings = EngineSettings(name="warm up", store=f"sqlite:///{directory}/store.db")
        for _ in range(2):  # the second run reads what the first one has stored
            with Engine(settings):
                pass


if __name__ == "__main__":
    main(sys.argv[1:])
