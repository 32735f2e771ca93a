"""A preloaded library that interposes the system calls by which a process changes files.

A process has the library only if it was *started* with it: with `environment(...)`, which also arms the library at
once, or inside `preloading()`, which does not arm it. The children that such a process forks have the library, too. A
forked child begins unarmed and calls `arm` to arm it. An unarmed library passes every call on. It needs Linux with
glibc, and a C compiler.

The library sees `open` with `O_CREAT` or `O_TRUNC`, `write`, `pwrite`, `ftruncate`, `fsync`, `fdatasync`, `rename` and
`unlink`: the *writing calls*. SQLite and Python change files by no other calls. (SQLite writes its `-shm` file through
memory, but recovery makes this file anew.) The library puts all calls of all threads on files below the watched
directory into one order.

    with library.preloading():                                 # the server of the forks starts with the library
        multiprocessing.forkserver.ensure_running()
    …
    def child() -> None:                                       # runs in the forked process
        library.arm(directory, fault=CallFault(action=Action.KILL, at=17))
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

from correlator.durable import is_private
from correlator.errors import UsageError
from correlator.testing.syscalls.trace import WRITING, CallKind

SOURCE = Path(__file__).with_name("syscalls.c")
_COMPILE = ("-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-U_FORTIFY_SOURCE")
_PRELOAD = "LD_PRELOAD"
_ORDER = "CORRELATOR_SYSCALLS"  # directory, trace and fault, one on each line; the library unsets it


class Action(enum.StrEnum):
    """What a fault does to a call."""

    KILL = "kill"
    """The process dies by SIGKILL before the call."""
    EIO = "eio"
    """The call fails as on a broken disk; nothing is written."""
    ENOSPC = "enospc"
    """The call fails as on a full disk; nothing is written."""
    SHORT = "short"
    """A write of two bytes or more writes its first half and returns that count; other calls are left alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallFault:
    """Which writing calls below the watched directory a fault strikes, and how.

    Attributes:
        action: what the fault does to them.
        at: the first call that is struck, counted from 1 since `arm`. Only calls that match `kinds` and `suffix` count.
        times: how many calls in a row are struck from there on; 0 means all.
        at_byte: replaces `at`. Writes pass until this many bytes are written in all. The write that would exceed the
            number is cut so that it ends there; the fault strikes the writes after it.
        kinds: the kinds of calls that count.
        suffix: only calls on files whose name ends with this text count, such as "-wal" or ".db".
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
    """The path of the compiled library.

    The first call compiles it and keeps it in a private directory of the user's cache.

    Raises:
        UsageError: E2401, there is no compiler or no place to keep the library, or the system is not Linux.
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
    """The environment variables for a new process whose library is armed before `main` begins.

    Args:
        directory: calls on files below it are watched; it must exist.
        trace: a file outside `directory` to which every writing call is recorded.
        fault: which calls are struck.
        base: the other variables; by default those of this process.

    Raises:
        UsageError: E2401, the library cannot be made.
    """
    values = dict(os.environ if base is None else base)
    values[_PRELOAD] = _preloaded_with(values.get(_PRELOAD, ""))
    values[_ORDER] = _order(directory, trace, fault)
    return values


@contextlib.contextmanager
def preloading() -> Iterator[None]:
    """Within the block, start processes with the library, unarmed. Meant for a server that forks children.

    A process has one fork server of `multiprocessing`. If it was started before the block, it lacks the library.

    Raises:
        UsageError: E2401, the library cannot be made.
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
    """Whether this process was started with the library."""
    return hasattr(_here(), "correlator_syscalls_arm")


def arm(directory: Path, *, trace: Path | None = None, fault: CallFault | None = None) -> None:
    """Watch the files below `directory` in this process from now on; the counts begin at 0.

    The arguments are those of `environment`.

    Raises:
        UsageError: E2402, this process was started without the library.
        OSError: the trace cannot be opened.
    """
    failed = _function("arm")(_order(directory, trace, fault).encode(errors="surrogateescape"))
    if failed:
        raise OSError(failed, os.strerror(failed), str(trace or directory))


def disarm() -> None:
    """Watch no files any more; the counts stay. Raises `UsageError` E2402 as `arm`."""
    _function("disarm")()


def mark(content: bytes) -> None:
    """Put a fact into the trace, after all calls that have returned and before all calls that begin later.

    Raises:
        UsageError: E2402, this process was started without the library, or the library is not armed with a trace.
    """
    if _function("mark")(content, ctypes.c_size_t(len(content))):
        raise UsageError("E2402", "library of system calls", "is not armed with a trace", "", "Call arm(…, trace=…)")


def calls() -> int:
    """How many calls have counted since `arm`. Raises `UsageError` E2402 as `arm`."""
    return int(_function("calls")())


def struck() -> int:
    """How many calls the fault has struck since `arm`. Raises `UsageError` E2402 as `arm`."""
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
    """Return a directory that only this user can write to, since processes load code from it."""
    try:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        directory = base / "correlator"
        directory.mkdir(mode=stat.S_IRWXU, parents=True, exist_ok=True)
        private = is_private(directory)
    except (OSError, RuntimeError) as error:
        raise _impossible(f"there is no place for the compiled library ({error})", "Set XDG_CACHE_HOME") from error
    if not private:
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
