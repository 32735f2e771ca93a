"""Losses of power in the life of a real store: its directory becomes what a disk may hold after one."""

import random
from pathlib import Path

from correlator.testing import files
from correlator.testing.power.disk import Disk, Image
from correlator.testing.power.place import held, put
from correlator.testing.schedule import Fault
from correlator.testing.syscalls.trace import Trace

DISK = "disk"
"""Directory of the store, in that of the run."""
TRACE = "trace"
"""What the life that ran last did to it, in the directory of the run."""
_TOLD = {
    "whole": "nothing is lost",
    "lost": "writes are lost",
    "torn": "a write has arrived in part",
    "absent": "the names of files are as they were before",
}


class Outages:
    """The disk of one run. Used by the oracle's thread alone.

    Args:
        directory: of the run; `DISK` is made in it, private.
        seed: of what is lost.

    Attributes:
        disk: the directory that loses power.
        trace: to which a life is to record its calls.
    """

    def __init__(self, directory: Path, seed: int) -> None:
        self.disk = directory / DISK
        self.trace = directory / TRACE
        self.disk.mkdir(mode=0o700)
        self._seed = seed
        self._before: dict[str, bytes] = {}

    def begin(self) -> None:
        """A life begins: what is there is durable, its trace is empty."""
        self._before = held(self.disk)
        files.write(self.trace, ())

    def strike(self, fault: Fault) -> str:
        """The life has died by this fault, and the power is gone with it: says what that made of the disk."""
        disk = Disk(self._before)
        for one in Trace(self.trace, ends_anywhere=True):
            disk.apply(one)
        image = _drawn(disk, random.Random(f"power {self._seed} {fault.kind} {fault.n}"))
        put(self.disk, image.files)
        return _TOLD[image.kind if image.effective else "whole"]


def _drawn(disk: Disk, rng: random.Random) -> Image:
    """An image that lacks something, where one can: without that, level `kill9` does the same."""
    lacking = [kind for kind in disk.kinds if kind != "whole"]
    return disk.draw(rng.choice(lacking or disk.kinds), rng)
