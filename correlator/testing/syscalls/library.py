"""The library that stands between a process and the calls by which it changes files.

A process has it when it was *started* with it: with `environment(...)`, which also arms it at once, or inside
`preloading()`, which arms nothing. Children that such a process forks have it too, and are armed by `arm` there; a
fork always begins unarmed. While it is not armed it passes every call on. Linux with glibc, and a C compiler.

What it sees: `open` with `O_CREAT` or `O_TRUNC`, `write`, `pwrite`, `ftruncate`, `fsync`, `fdatasync`, `rename`,
`unlink`. SQLite and Python change files by nothing else (SQLite's `-shm` is written through memory, and is made anew
by recovery). All calls of all threads on files below the watched directory are put into one order.

    with library.preloading():                                 # the server of the forks starts with the library
        multiprocessing.forkserver.ensure_running()
    …
    def child() -> None:                                       # runs in the forked process
        library.arm(directory, fault=Fault(action=Action.KILL, at=17))
        work()                                                 # dies right before its 17th writing call
"""

import contextlib
import ctypes
import enum
import hashlib
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from correlator.errors import UsageError
from correlator.testing.syscalls.trace import WRITING, CallKind

SOURCE = Path(__file__).with_name("syscalls.c")
_COMPILE = ("-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-U_FORTIFY_SOURCE")
_PRELOAD = "LD_PRELOAD"
_ORDER = "CORRELATOR_SYSCALLS"  # directory, trace and fault, one to a line; the library forgets it when it has read it


class Action(enum.StrEnum):
    """What happens to a call that a fault strikes."""

    KILL = "kill"
    """The process dies by SIGKILL before the call."""
    EIO = "eio"
    """The call fails: the disk is broken. Nothing was written."""
    ENOSPC = "enospc"
    """The call fails: the disk is full. Nothing was written."""
    SHORT = "short"
    """A write writes the first half and says so; other calls are left alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallFault:
    """Which writing calls below the watched directory are struck, and how.

    Attributes:
        action: what happens.
        at: the first struck call, counted from 1 from the moment of arming; only calls of `kinds` and `suffix` count.
        times: how many calls in a row are struck from there on; 0 for ever.
        at_byte: takes the place of `at`: writes pass until so many bytes are written, the one that crosses this is cut
            to end there, and the next ones are struck.
        kinds: the kinds of calls that count.
        suffix: only calls on files whose name ends so count: "-wal", ".db".
    """

    action: Action
    at: int = 1
    times: int = 1
    at_byte: int = 0
    kinds: frozenset[CallKind] = WRITING
    suffix: str = ""

    def __str__(self) -> str:
        mask = sum(1 << kind for kind in self.kinds)
        return f"{self.action} {self.at} {self.times} {self.at_byte} {mask} {self.suffix}"


def library() -> Path:
    """The compiled library; compiled at the first call and kept in a private directory of the user's cache.

    Raises:
        UsageError: E2401, no compiler, another system than Linux, or no place to keep it.
    """
    if sys.platform != "linux":
        raise _impossible(f"system calls cannot be interposed on {sys.platform}", "This needs Linux with glibc")
    directory = _cache()
    digest = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:20]
    target = directory / f"syscalls-{os.uname().machine}-{digest}.so"
    if not target.exists():
        _compile(target)
    return target


def environment(
    directory: Path, *, trace: Path | None = None, fault: CallFault | None = None, base: dict[str, str] | None = None
) -> dict[str, str]:
    """The environment of a new process that is armed before its `main` begins.

    Args:
        directory: files below it are watched; it must exist.
        trace: a file outside of it to which every writing call is recorded.
        fault: what is struck.
        base: the rest of the environment; this process's by default.

    Raises:
        UsageError: E2401.
    """
    values = dict(os.environ if base is None else base)
    values[_PRELOAD] = _preloaded_with(values.get(_PRELOAD, ""))
    values[_ORDER] = _order(directory, trace, fault)
    return values


@contextlib.contextmanager
def preloading() -> Iterator[None]:
    """Processes that are started inside have the library, unarmed: for a server that forks children.

    A process has one server of `multiprocessing`: one that was started before has the library not.

    Raises:
        UsageError: E2401.
    """
    before = os.environ.get(_PRELOAD)
    os.environ[_PRELOAD] = _preloaded_with(before or "")
    try:
        yield
    finally:
        if before is None:
            del os.environ[_PRELOAD]
        else:
            os.environ[_PRELOAD] = before


def preloaded() -> bool:
    """Whether this process has the library."""
    return hasattr(_here(), "correlator_syscalls_arm")


def arm(directory: Path, *, trace: Path | None = None, fault: CallFault | None = None) -> None:
    """Watch the files below `directory` in this process, from now on; counters begin anew. As `environment`.

    Raises:
        UsageError: E2402, this process was started without the library.
        OSError: the trace cannot be written.
    """
    failed = _function("arm")(_order(directory, trace, fault).encode(errors="surrogateescape"))
    if failed:
        raise OSError(failed, os.strerror(failed), str(trace or directory))


def disarm() -> None:
    """Watch nothing any more; the counters stay. Raises `UsageError` E2402."""
    _function("disarm")()


def mark(content: bytes) -> None:
    """Put a fact into the trace: it comes after every call that has returned, and before every one that begins later.

    Raises:
        UsageError: E2402, this process was started without the library, or is not armed with a trace.
    """
    if _function("mark")(content, ctypes.c_size_t(len(content))):
        raise UsageError("E2402", "library of system calls", "is not armed with a trace", "", "Call arm(…, trace=…)")


def calls() -> int:
    """How many calls have counted since the process was armed. Raises `UsageError` E2402."""
    return int(_function("calls")())


def struck() -> int:
    """How many calls a fault has struck since the process was armed. Raises `UsageError` E2402."""
    return int(_function("struck")())


def _here() -> ctypes.CDLL:
    return ctypes.CDLL(None)


def _function(name: str) -> Any:
    if not preloaded():
        raise UsageError(
            "E2402",
            "library of system calls",
            "this process was started without it",
            "It cannot be loaded later",
            "Start the process with environment(…) or inside preloading()",
        )
    function = getattr(_here(), f"correlator_syscalls_{name}")
    function.restype = ctypes.c_long
    return function


def _order(directory: Path, trace: Path | None, fault: CallFault | None) -> str:
    lines = (str(directory.resolve(strict=True)), str(trace.absolute()) if trace else "", str(fault or ""))
    if any("\n" in line for line in lines):
        raise UsageError("E2404", "library of system calls", "a path must not hold a line break")
    return "\n".join(lines)


def _preloaded_with(others: str) -> str:
    return f"{library()}:{others}" if others else str(library())


def _cache() -> Path:
    """A directory that only this user can write: what lies there is loaded into processes."""
    try:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        directory = base / "correlator"
        directory.mkdir(mode=stat.S_IRWXU, parents=True, exist_ok=True)
        found = directory.lstat()
    except (OSError, RuntimeError) as error:
        raise _impossible(f"there is no place for the compiled library ({error})", "Set XDG_CACHE_HOME") from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise _impossible(f"{directory} is not a directory of this user alone", f"chmod 700 {directory}")
    return directory


def _compile(target: Path) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        raise _impossible("there is no C compiler 'cc'", "Install one (on Debian: apt-get install gcc libc6-dev)")
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        made = Path(scratch) / target.name
        command = [compiler, *_COMPILE, "-o", str(made), str(SOURCE), "-ldl", "-lpthread"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603  # the user's compiler
        if done.returncode:
            raise _impossible(f"'cc' failed: {done.stderr.strip()[:400]}", "Install a C compiler with its headers")
        made.replace(target)


def _impossible(what: str, todo: str) -> UsageError:
    return UsageError("E2401", "library of system calls", what, "", todo)
