"""Losses of power in the runs of level `power`: the directory of a store gets a content that such a loss can leave."""

import random
from pathlib import Path

from correlator.testing import files
from correlator.testing.power.disk import Disk, Image
from correlator.testing.power.place import held, put
from correlator.testing.schedule import Fault
from correlator.testing.syscalls.trace import Trace

DISK = "disk"
"""The directory of the store, within the directory of the run."""
TRACE = "trace"
"""The trace of the last life, within the directory of the run."""
_TOLD = {
    "whole": "nothing is lost",
    "lost": "writes are lost",
    "torn": "a write has arrived in part",
    "absent": "the names of files are as they were before",
}


class Outages:
    """The disk of one run. Only the oracle's thread may use it.

    Args:
        directory: the directory of the run; `DISK` is made in it, with mode 0700.
        seed: determines what is lost.

    Attributes:
        disk: the directory that loses power.
        trace: the file to which a life records its calls.
    """

    def __init__(self, directory: Path, seed: int) -> None:
        self.disk = directory / DISK
        self.trace = directory / TRACE
        self.disk.mkdir(mode=0o700)
        self._seed = seed
        self._before: dict[str, bytes] = {}

    def begin(self) -> None:
        """Begin a life: the present content is durable, and the trace is empty."""
        self._before = held(self.disk)
        files.write(self.trace, ())

    def strike(self, fault: Fault) -> str:
        """Replace the content of the disk by an image, since this fault has ended the life; return a description."""
        disk = Disk(self._before)
        for one in Trace(self.trace, ends_anywhere=True):
            disk.apply(one)
        image = _drawn(disk, random.Random(f"power {self._seed} {fault.kind} {fault.n}"))
        put(self.disk, image.files)
        return _TOLD[image.kind if image.effective else "whole"]


def _drawn(disk: Disk, rng: random.Random) -> Image:
    """Choose an image that lacks content if there is one: a whole image would repeat what level `kill9` does."""
    lacking = [kind for kind in disk.kinds if kind != "whole"]
    return disk.draw(rng.choice(lacking or disk.kinds), rng)
