"""A lock on a file, which ends with the process at the latest."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from correlator import processes
from correlator.processes import LockFile
from correlator.testing.contract import PATIENCE_S


def test_a_lock_that_somebody_has_is_waited_for_and_not_for_longer_than_asked(tmp_path: Path) -> None:
    one, other = LockFile(tmp_path / "lock"), LockFile(tmp_path / "lock")
    assert one.try_lock()
    assert not other.try_lock()
    assert not other.try_lock(0.01)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(other.try_lock, PATIENCE_S)
        one.unlock()
        assert waiting.result()
    assert not one.try_lock()
    other.close()
    assert one.try_lock(PATIENCE_S)
    one.close()


def test_whoever_has_waited_for_long_asks_as_often_as_a_newcomer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else those who come again soon would go before it: none of the others would get its share."""
    one, other = LockFile(tmp_path / "lock"), LockFile(tmp_path / "lock")
    assert one.try_lock()
    now, pauses = [0.0], []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        now[0] += seconds

    monkeypatch.setattr(processes, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    assert not other.try_lock(1.0)
    assert len(set(pauses)) == 1
    assert 0.0002 <= pauses[0] <= 0.001  # the lock is free for about as long between two writes of one process
    for each in (one, other):
        each.close()


class _Lost:
    """A connection whose server has died: its driver raises an error of its own."""

    def fileno(self) -> int:
        raise RuntimeError("the connection is lost")


def test_a_lost_connection_does_not_leave_the_locks_to_a_forked_child(tmp_path: Path) -> None:
    lost, lock = _Lost(), LockFile(tmp_path / "lock")
    processes.keep(lost)
    child = os.fork()
    if not child:
        os._exit(0 if Path(f"/proc/self/fd/{lock.fileno()}").readlink() == Path(os.devnull) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    lock.close()
