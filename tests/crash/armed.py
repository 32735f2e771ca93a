"""A process with the library of system calls and all imports done: it forks an engine for each line of its input.

The engine's store lies in a directory of its own, whose writing calls a fault strikes; its broker lies elsewhere.
"""

import multiprocessing
import os
import signal
import subprocess
import sys
import traceback
from pathlib import Path

import msgspec

from correlator.core import faults
from correlator.errors import CorrelatorError
from correlator.testing.syscalls import library
from correlator.testing.syscalls.library import Action, CallFault
from correlator.testing.syscalls.trace import CallKind
from tests.crash.child import Job, run


class Order(msgspec.Struct, kw_only=True):
    """What a child is to do.

    Attributes:
        job: of the engine.
        directory: of its store.
        fault: what strikes.
        trace: where calls, and the fault points that were passed as marks, are recorded; "" for nowhere.
        most_struck: a child that was struck so often kills itself, as an operator would; 0 for never.
    """

    job: Job
    directory: str
    fault: CallFault | None = None
    trace: str = ""
    most_struck: int = 0


class End(msgspec.Struct, kw_only=True):
    """How a child ended: status as of `Process.exitcode`, code of the error, counters of the library."""

    status: int = 0
    code: str = ""
    calls: int = 0
    struck: int = 0


_order, _end = msgspec.json.Decoder(Order), msgspec.json.Decoder(End)


class Armed:
    """The process, as a test sees it."""

    def __init__(self) -> None:
        with library.preloading():
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.crash.armed"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                cwd=Path(__file__).parents[2],
            )

    def live(self, order: Order) -> End:
        """One engine from its start to its end."""
        self._process.stdin.write(msgspec.json.encode(order) + b"\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "the process that starts engines is gone"
        return _end.decode(line)

    def close(self) -> None:
        """End it."""
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


def main() -> None:
    """Fork, wait, answer. What engines log is of no interest."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb", buffering=0)
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    for line in sys.stdin.buffer:
        order = _order.decode(line)
        reader, writer = os.pipe()
        child = os.fork()
        if not child:
            os.close(reader)
            _live(order, writer)
        os.close(writer)
        with os.fdopen(reader, "rb") as pipe:
            told = pipe.read()
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        end = msgspec.structs.replace(_end.decode(told) if told else End(), status=status)
        answers.write(msgspec.json.encode(end) + b"\n")


def _live(order: Order, pipe: int) -> None:
    """The whole life of a child."""
    end = End(status=1)

    def tell() -> None:
        end.calls, end.struck = library.calls(), library.struck()
        os.write(pipe, msgspec.json.encode(end))

    def passed(name: str) -> None:
        if order.trace:
            library.mark(name.encode())
        if order.most_struck and library.struck() >= order.most_struck:
            tell()
            os.kill(os.getpid(), signal.SIGKILL)

    faults.install(passed)
    library.arm(Path(order.directory), trace=Path(order.trace) if order.trace else None, fault=order.fault)
    reader, writer = multiprocessing.Pipe(duplex=False)  # `run` tells its parent more than is needed here
    try:
        run(order.job, writer)
        end.status = 0
    except SystemExit as refused:
        end.status = int(str(refused.code))
        end.code = getattr(refused.__cause__, "code", "")
    except CorrelatorError as error:
        end.status, end.code = error.exit_status, error.code
    except BaseException:  # noqa: BLE001  # the child ends here, whatever it is
        traceback.print_exc()
    reader.close()
    tell()
    os._exit(end.status)


def full(at: int, *, times: int = 1, in_bytes: bool = False) -> CallFault:
    """A disk that is full from the n-th write (or byte) on, for so many writes."""
    kinds = frozenset({CallKind.WRITE})
    return CallFault(action=Action.ENOSPC, at=at, at_byte=at if in_bytes else 0, times=times, kinds=kinds)


if __name__ == "__main__":
    main()
