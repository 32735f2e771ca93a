"""The broker of the template: a directory of queues. This module stands where the client library of a broker stands.

A queue is a directory. A file in it whose name is a number is a message, the lowest number the oldest one. A file
appears whole, by a rename. Producers take turns, so that numbers grow in the order in which files appear. Every failure
is an `OSError`.
"""

import errno
import heapq
import itertools
import os
import re
import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import closing
from pathlib import Path

from correlator import durable
from correlator.processes import LockFile

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
"""Names of queues: none leads out of the directory, and none is hidden."""
PRODUCER_WAITS_S = 10.0
LOOK_AGAIN_S = 0.05
_NUMBER = re.compile(r"[1-9][0-9]*")


class Queue:
    """A queue of a directory that is there.

    Args:
        spool: the directory.
        name: of the queue, one that `NAME` matches.
    """

    def __init__(self, spool: Path, name: str) -> None:
        self._path = spool / name

    def lock(self, role: str, wait_s: float = 0.0) -> LockFile:
        """Be its only `consumer`, or `producer`, until the lock is closed. Makes a queue that is missing.

        Raises `BlockingIOError` when somebody else still has the role after `wait_s` seconds.
        """
        self._path.mkdir(durable.PRIVATE_DIRECTORY, exist_ok=True)
        durable.sync_directory(self._path.parent)
        if self._path.is_symlink():
            raise NotADirectoryError(errno.ENOTDIR, "a link, which may lead anywhere", str(self._path))
        lock = LockFile(self._path / f".{role}", os.O_CREAT | os.O_NOFOLLOW)
        if lock.try_lock(wait_s):
            return lock
        lock.close()
        raise BlockingIOError(errno.EAGAIN, f"in use by another {role}", str(self._path))

    def put(self, contents: Iterable[bytes]) -> None:
        """Add messages, in order; they are on disk when it returns."""
        with closing(self.lock("producer", PRODUCER_WAITS_S)):
            newest = max((int(one.name) for one in self._numbered()), default=0)
            for number, content in enumerate(contents, newest + 1):
                durable.put(self._path / str(number), content)
            durable.sync_directory(self._path)

    def oldest(self, most: int, most_bytes: int, besides: Collection[int], wait_s: float) -> list[int]:
        """The numbers of the oldest messages, in order, as soon as there are any; none after `wait_s` seconds.

        At most `most` messages, together of `most_bytes` or one of any size, and none of `besides`.
        """
        deadline = time.monotonic() + wait_s
        while not (found := self._oldest(most, besides)) and (left_s := deadline - time.monotonic()) > 0:
            time.sleep(min(left_s, LOOK_AGAIN_S))
        sizes = itertools.accumulate((self._path / str(number)).stat().st_size for number in found)
        fitting = sum(size <= most_bytes for size in sizes)
        return found[: max(1, fitting)]

    def get(self, number: int, most_bytes: int) -> tuple[bytes, int]:
        """A message, or the beginning of one that is larger; and the size of the whole."""
        with (self._path / str(number)).open("rb") as file:
            return file.read(most_bytes), os.fstat(file.fileno()).st_size

    def delete(self, numbers: Iterable[int]) -> None:
        """Remove messages; they are gone for ever when it returns."""
        for number in numbers:
            (self._path / str(number)).unlink(missing_ok=True)
        durable.sync_directory(self._path)

    def _oldest(self, most: int, besides: Collection[int]) -> list[int]:
        """Looks twice: a listing beside a producer may show a message and lack an older one; the next one has that."""
        newest = max(self._messages(), default=0)
        return heapq.nsmallest(most, (one for one in self._messages() if one <= newest and one not in besides))

    def _messages(self) -> Iterator[int]:
        """In any order. A link, a directory or a pipe is no message, whatever its name is."""
        return (int(one.name) for one in self._numbered() if one.is_file(follow_symlinks=False))

    def _numbered(self) -> Iterator[os.DirEntry[str]]:
        with os.scandir(self._path) as entries:
            yield from (one for one in entries if _NUMBER.fullmatch(one.name))
