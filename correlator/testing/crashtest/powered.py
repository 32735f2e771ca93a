"""Level `power`: as `kill9`, but with each engine that is killed the power goes, and the disk loses what it may.

A life records every call by which it changes the store's files. When it is dead, the directory becomes one of the
images that a loss of power at that moment can leave, and the next life goes on from there. So what an engine took for
committed is held against a store that may lack whatever was not synced.
"""

from collections.abc import Sequence
from pathlib import Path

from correlator.errors import UsageError, quoted
from correlator.testing.crashtest.configured import Configured
from correlator.testing.crashtest.killed import Kill9
from correlator.testing.power.outages import Outages
from correlator.testing.power.pragmas import settled_as
from correlator.testing.syscalls import library

WAL_PAGES = 40
"""After so many the log is copied into the file: a short life comes to it too, and to what can be lost there."""


class Powered(Kill9):
    """The level; see `runs.Level`. The store is a SQLite file.

    Args:
        configured: the file under test.
        prepare: import paths; see `wire.Job`.

    Raises `UsageError` E2433 for a file without a store, which has nothing on the disk; E2401 without a C compiler.
    """

    name = "power"
    by_call = 0.6  # between calls there is something to lose; at most fault points all is synced

    def __init__(self, configured: Configured, prepare: Sequence[str] = ()) -> None:
        if not configured.persistent:
            what = "has no store, so a loss of power is a death like any other"
            raise UsageError("E2433", quoted(configured.file), what, "", "Use level kill9")
        library.library()
        super().__init__(configured, prepare=[f"{__name__}:{small_log.__name__}", *prepare])

    def _outages(self, directory: Path, seed: int) -> Outages:
        return Outages(directory, seed)


def small_log(life: object) -> None:
    """Have the log copied soon; called in each child."""
    del life
    settled_as(f"wal_autocheckpoint = {WAL_PAGES}")
