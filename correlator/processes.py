"""What belongs to one process: a child that it forks lets go of it, and is refused its use.

A lock on a file (`flock`) and a session with a server end when the last copy of their descriptor is closed, and a
forked child has a copy of each. A child that outlives an engine, such as a worker of `multiprocessing`, would keep the
locks of the dead engine, and no other one could start. So in the child each of these descriptors is made one of
/dev/null: lock and session are the parent's alone, and nothing that the child does can reach them.

A program that is started (`subprocess`) never gets them: all descriptors are closed on exec.
"""

import ctypes
import fcntl
import os
import threading
import time
import weakref
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from correlator.durable import PRIVATE_FILE
from correlator.errors import UsageError

_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S = 0.0002, 0.01
"""Between two tries to lock a file that somebody else has locked."""


class HasDescriptor(Protocol):
    """A file, socket or connection."""

    def fileno(self) -> int:
        """The descriptor; -1 or `ValueError` when there is none any more."""
        ...


class _Thread(threading.local):
    """Gives each thread a mark of its own."""

    def __init__(self) -> None:
        self.mark = object()


_this_thread = _Thread()
_kept: "weakref.WeakSet[HasDescriptor]" = weakref.WeakSet()
_never_finalized: "weakref.WeakSet[object]" = weakref.WeakSet()
_turn = threading.RLock()  # nothing is opened and not yet noted, or noted and closed, at the moment of a fork


def not_forking() -> AbstractContextManager[bool]:
    """No thread of this process forks within the block, which is to be short."""
    return _turn


def keep(opened: HasDescriptor) -> None:
    """From now on a forked child has no copy of this descriptor. For any thread; to close it needs no call here."""
    with _turn:
        _kept.add(opened)


def never_finalize(opened: object) -> None:
    """A forked child never runs the finalizer of this object, which would disturb what its parent has open."""
    with _turn:
        _never_finalized.add(opened)


class Maker:
    """The process that made an object."""

    def __init__(self) -> None:
        self.pid = os.getpid()

    @property
    def is_another_process(self) -> bool:
        """Whether the present process is not the one that made it, but a child of it."""
        return self.pid != os.getpid()

    @staticmethod
    def thread() -> object:
        """The calling thread: the same at each of its calls, another one in a forked child. Needs no system call."""
        return _this_thread.mark

    def check(self, where: str) -> None:
        """Raises `UsageError` E2050 in a child."""
        if self.is_another_process:
            raise UsageError(
                "E2050",
                where,
                f"made by pid {self.pid}, used in pid {os.getpid()}",
                "Engines, connections and sessions do not survive a fork",
                "Start workers by 'spawn', or make it in the child",
            )


class LockFile:
    """A file that can be locked as a whole: among all who opened it, and until the process ends at the latest.

    Not `lockf`: that lock is lost as soon as any code of this process opens and closes the file.

    Args:
        path: the file, made private when it is missing.
        flags: more than to read, to write and to make it; 0 to open only one that is there.

    Raises `OSError`.
    """

    def __init__(self, path: Path, flags: int = os.O_CREAT) -> None:
        self.path = path
        with _turn:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | flags, PRIVATE_FILE)
            _kept.add(self)

    def fileno(self) -> int:
        """The descriptor, -1 when it is closed."""
        return self._descriptor

    def try_lock(self, wait_s: float = 0.0) -> bool:
        """Lock it, unless somebody else still has it locked after so many seconds; says whether it is locked now."""
        deadline, pause_s = time.monotonic() + wait_s, _SHORTEST_PAUSE_S
        while not self._try():
            if time.monotonic() >= deadline:
                return False
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)
        return True

    def unlock(self) -> None:
        """Let others lock it."""
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def close(self) -> None:
        """Unlock and close it, also where a copy of the descriptor is left; may be repeated."""
        with _turn:
            if self._descriptor >= 0:
                self.unlock()
                os.close(self._descriptor)
                self._descriptor = -1

    def _try(self) -> bool:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def _leave_to_parent() -> None:
    """In a forked child."""
    _this_thread.mark = object()
    try:
        for opened in list(_never_finalized):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(opened))
        descriptors = [descriptor for opened in list(_kept) if (descriptor := _descriptor_of(opened)) >= 0]
        if descriptors:
            nowhere = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
            for descriptor in descriptors:
                os.dup2(nowhere, descriptor, inheritable=False)
            os.close(nowhere)
        _kept.clear()
        _never_finalized.clear()
    finally:
        _turn.release()


def _descriptor_of(opened: HasDescriptor) -> int:
    try:
        return opened.fileno()
    except (OSError, ValueError):
        return -1


os.register_at_fork(before=_turn.acquire, after_in_parent=_turn.release, after_in_child=_leave_to_parent)
