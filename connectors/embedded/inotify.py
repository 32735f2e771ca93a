"""The inotify interface of Linux, for single files."""

import ctypes
import errno
import os
import struct

from correlator.processes import keep, not_forking

_ATTRIB, _DELETE_SELF, _MOVE_SELF = 0x4, 0x400, 0x800
_DONT_FOLLOW = 0x02000000
_MASK = _ATTRIB | _DELETE_SELF | _MOVE_SELF | _DONT_FOLLOW
_EVENT = struct.Struct("iIII")
_READ_BYTES = 64 * 1024
OVERFLOW = -1
"""Additional result of `read` when the kernel has dropped events."""


class Inotify:
    """Watches files for changes of their attributes, and for their removal. A forked child has no copy of it.

    Raises:
        OSError: the limits of the system are reached (EMFILE), or the system has no inotify (ENOSYS).
    """

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        if not hasattr(self._libc, "inotify_init1"):
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
        with not_forking():
            self._descriptor = self._checked(self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
            keep(self)

    def fileno(self) -> int:
        """Return the descriptor, readable when there are events; -1 when it is closed."""
        return self._descriptor

    def watch(self, path: str) -> int:
        """Watch a file, and return the number of the watch: the same as before if the file is watched already.

        Raises:
            OSError: there is no such file (ENOENT), or the limits of the system are reached (ENOSPC).
        """
        return self._checked(self._libc.inotify_add_watch(self._descriptor, os.fsencode(path), _MASK))

    def unwatch(self, watch: int) -> None:
        """End a watch. Does nothing if the file is gone, which has ended the watch."""
        self._libc.inotify_rm_watch(self._descriptor, watch)

    def read(self) -> set[int]:
        """Return the watches whose files have changed since the last call, and `OVERFLOW` if events were dropped."""
        try:
            events = os.read(self._descriptor, _READ_BYTES)
        except BlockingIOError:
            return set()
        return {watch for watch, _, _, _ in _EVENT.iter_unpack(events)}

    def close(self) -> None:
        """End all watches. Further calls do nothing."""
        with not_forking():
            if self._descriptor >= 0:
                os.close(self._descriptor)
                self._descriptor = -1

    @staticmethod
    def _checked(result: int) -> int:
        if result < 0:
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error))
        return result
