"""Level `power`: as `kill9`, but the disk loses power with each engine that is killed.

A life records every call by which it changes the files of the store. After its death, the directory gets one of the
contents that a loss of power at that moment can leave, and the next life continues from there. So a test fails if an
engine has taken a change for committed that was not synced.
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
"""Pages after which SQLite copies the log into the database file, so that a short life reaches this step."""


class Powered(Kill9):
    """The level `power`; see `runs.Level`. The store is a SQLite file.

    Args:
        configured: the file under test.
        prepare: import paths; see `wire.Job`.

    Raises:
        UsageError: E2433, the file configures no store, so there is nothing on the disk; E2401, there is no C compiler.
    """

    name = "power"
    by_call = 0.6  # between calls there are changes to lose; at most fault points all changes are synced

    def __init__(self, configured: Configured, prepare: Sequence[str] = ()) -> None:
        if not configured.persistent:
            what = "has no store, so a loss of power is a death like any other"
            raise UsageError("E2433", quoted(configured.file), what, "", "Use level kill9")
        library.library()
        super().__init__(configured, prepare=[f"{__name__}:{small_log.__name__}", *prepare])

    def _outages(self, directory: Path, seed: int) -> Outages:
        return Outages(directory, seed)


def small_log(life: object) -> None:
    """Let SQLite copy the log into the database file soon. Called in each child."""
    del life
    settled_as(f"wal_autocheckpoint = {WAL_PAGES}")
