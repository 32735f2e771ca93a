"""Keeps locks, sessions and engines in the process that made them, even when this process forks.

A lock on a file (`flock`) and a session with a server end when the last copy of their descriptor is closed, and a
forked child has a copy of each. A child that outlives an engine, such as a worker of `multiprocessing`, would keep the
locks of the dead engine, and no other engine could start. So in the child each of these descriptors is replaced by
one of /dev/null: only the parent has the lock or the session, and the child cannot disturb them.

A program that the process starts (`subprocess`) never gets these descriptors: all are closed on exec.
"""

import ctypes
import fcntl
import os
import secrets
import socket
import threading
import time
import weakref
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from correlator.durable import PRIVATE_FILE
from correlator.errors import UsageError

_PAUSE_S = 0.0005
"""Seconds between two attempts to lock a file that another process has locked.

The time never grows: if it did, processes that have waited for long would try less often than processes that have just
begun.
"""


def new_identity() -> str:
    """Return a text that no other process and no other call returns: host, process id and a random number."""
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.randbelow(10**9)}"


class HasDescriptor(Protocol):
    """An object with a file descriptor: a file, a socket, a connection."""

    def fileno(self) -> int:
        """Return the descriptor; -1 or `ValueError` when it is closed."""
        ...


class _Thread(threading.local):
    """Has a `mark` of its own in each thread."""

    def __init__(self) -> None:
        self.mark = object()


_this_thread = _Thread()
_kept: "weakref.WeakSet[HasDescriptor]" = weakref.WeakSet()
_never_finalized: "weakref.WeakSet[object]" = weakref.WeakSet()
_turn = threading.RLock()  # held by a fork, and while a descriptor is opened or closed and the sets above are changed


def not_forking() -> AbstractContextManager[bool]:
    """Let no thread of this process fork within the block. Keep the block short."""
    return _turn


def keep(opened: HasDescriptor) -> None:
    """Let a forked child have no copy of this descriptor. Any thread may call it; closing needs no other call."""
    with _turn:
        _kept.add(opened)


def never_finalize(opened: object) -> None:
    """Let a forked child never run the finalizer of this object, which would disturb what the parent has open."""
    with _turn:
        _never_finalized.add(opened)


class Maker:
    """Knows in which process an object was made."""

    def __init__(self) -> None:
        self.pid = os.getpid()

    @property
    def is_another_process(self) -> bool:
        """Whether the current process is a forked child of the one that made the object."""
        return self.pid != os.getpid()

    @staticmethod
    def thread() -> object:
        """Identify the calling thread: each call returns the same object, and a forked child gets another object. Makes
        no system call.
        """
        return _this_thread.mark

    def check(self, where: str) -> None:
        """Raise `UsageError` E2050 in a forked child; `where` names the object in the message."""
        if self.is_another_process:
            raise UsageError(
                "E2050",
                where,
                f"made by pid {self.pid}, used in pid {os.getpid()}",
                "Engines, connections and sessions do not survive a fork",
                "Start workers by 'spawn', or make it in the child",
            )


class LockFile:
    """A file that one opener at a time can lock (`flock`). The lock ends with the process at the latest.

    It does not use `lockf`, whose lock is lost as soon as any code of this process opens and closes the file.

    Args:
        path: the file. It is created with mode 0600 if it is missing.
        flags: flags of `os.open` beside O_RDWR and O_CLOEXEC; 0 opens only an existing file.

    Raises `OSError`.
    """

    def __init__(self, path: Path, flags: int = os.O_CREAT) -> None:
        self.path = path
        with _turn:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | flags, PRIVATE_FILE)
            _kept.add(self)

    def fileno(self) -> int:
        """Return the descriptor; -1 when the file is closed."""
        return self._descriptor

    def try_lock(self, wait_s: float = 0.0) -> bool:
        """Lock the file, and wait up to `wait_s` seconds for another lock to end. Return whether the file is locked."""
        deadline = time.monotonic() + wait_s
        while not self._try():
            if time.monotonic() >= deadline:
                return False
            time.sleep(_PAUSE_S)
        return True

    def share(self) -> None:
        """Hold the file together with others that share it, instead of alone. Wait while another opener has locked it.

        Not atomic: another opener may lock the file in between.
        """
        fcntl.flock(self._descriptor, fcntl.LOCK_SH)

    def is_locked(self) -> bool:
        """Whether another opener has locked the file for itself. Does not disturb others that make the same check."""
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        self.unlock()
        return False

    def unlock(self) -> None:
        """Release the lock, whether it is held alone or shared. The file stays open. Without a lock do nothing."""
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def close(self) -> None:
        """Release the lock and close the file, even if a copy of the descriptor is open. Further calls do nothing."""
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
    """Run in a forked child: replace the kept descriptors, and keep finalizers from running."""
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
    except Exception:  # noqa: BLE001  a connection of a driver that is lost has an error of its own, and no descriptor
        return -1


os.register_at_fork(before=_turn.acquire, after_in_parent=_turn.release, after_in_child=_leave_to_parent)
