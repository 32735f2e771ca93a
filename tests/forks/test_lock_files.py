"""A lock on a file, which ends with the process at the latest."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

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
