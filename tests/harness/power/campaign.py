"""Checks many images of many runs: each is put on a disk in memory, read, and compared with the facts before it."""

import itertools
import os
import random
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from correlator.errors import CorrelatorError
from correlator.testing.power.disk import KINDS, Disk, Image
from correlator.testing.power.place import put
from correlator.testing.simulation.small_world import small_world
from correlator.testing.syscalls.trace import CallKind, CallRecord, Trace
from tests.harness.power.facts import PowerFacts
from tests.harness.power.judge import ImageViolation, violations
from tests.harness.power.reading import ImageContent, opened, read
from tests.harness.power.record import record
from tests.harness.power.restart import restart

IMAGES_OF_A_RUN = 20_000
"""How many images of a run are checked before the next seed is recorded."""
RESTART_EVERY = 100
FIRST_START_EVERY = 5
"""One in this number of passes takes moments before there is a store: a start of an engine costs 20 times a reading."""
MOST_TOLD = 10
_MEMORY = Path("/dev/shm")  # a disk in memory; directories in it are private


@dataclass(slots=True)
class ImageCount:
    """The number of images, and how many of them violate an invariant."""

    images: int = 0
    bad: int = 0


@dataclass(slots=True, kw_only=True)
class PowerFigures:
    """The figures of a campaign.

    Attributes:
        images: images that were checked.
        bad: images with a violation.
        no_effect: images that hold everything that the process saw, so that the power cut had no effect.
        restarts: images from which an engine continued until everything was quiet.
        runs: recorded workloads.
        seconds: wall-clock time.
        cpu_s: CPU time of this process; another process does the recording.
        kinds: images by kind.
        invariants: images that violate an invariant, by invariant.
        told: some of the violations, with the seed and the position in its trace.
    """

    images: int = 0
    bad: int = 0
    no_effect: int = 0
    restarts: int = 0
    runs: int = 0
    seconds: float = 0.0
    cpu_s: float = 0.0
    kinds: dict[str, ImageCount] = field(default_factory=lambda: {kind: ImageCount() for kind in KINDS})
    invariants: dict[str, int] = field(default_factory=dict)
    told: list[str] = field(default_factory=list)

    def add(self, image: Image, found: list[ImageViolation], where: str) -> None:
        """Count one image."""
        self.images += 1
        self.no_effect += not image.effective
        self.kinds[image.kind].images += 1
        if not found:
            return
        self.bad += 1
        self.kinds[image.kind].bad += 1
        for name in sorted({one.id for one in found}):
            self.invariants[name] = self.invariants.get(name, 0) + 1
        if len(self.told) < MOST_TOLD:
            self.told.append(f"{where}, {image.kind}: " + "; ".join(map(str, found)))

    def line(self) -> str:
        """The figures as one line."""
        kinds = ", ".join(f"{kind} {count.images:,}" for kind, count in self.kinds.items())
        violated = ", ".join(f"{name} {count:,}" for name, count in sorted(self.invariants.items()))
        return (
            f"{self.images:,} images ({kinds}) of {self.runs} runs, {self.bad:,} bad{violated and f' ({violated})'}, "
            f"{self.no_effect:,} without effect, {self.restarts:,} restarts, {self.seconds:.0f} s, "
            f"{self.cpu_s:.0f} s of CPU, {self.images / max(self.cpu_s, 0.001):.0f} images/s"
        )


class PowerCampaign:
    """Checks images of one workload after another.

    Args:
        directory: an empty directory for runs and images.
        seed: determines all random choices.
        synchronous: `FULL`, or the setting of a control; see `record`.
    """

    def __init__(self, directory: Path, *, seed: int, synchronous: str = "FULL") -> None:
        self.figures = PowerFigures()
        self._directory = directory
        self._seed = seed
        self._synchronous = synchronous
        self._read, self._opened = directory / "read", directory / "opened"
        for place in (self._read, self._opened):
            place.mkdir(mode=0o700)

    def run(self, images: int) -> PowerFigures:
        """Check this number of images. Raises as `record`."""
        begin, cpu_begin = time.monotonic(), time.process_time()
        with small_world():
            while self.figures.images < images:
                self._run(min(images - self.figures.images, IMAGES_OF_A_RUN))
        self.figures.seconds = time.monotonic() - begin
        self.figures.cpu_s = time.process_time() - cpu_begin
        return self.figures

    def _run(self, images: int) -> None:
        """Record the next seed, then pass over its trace as often as needed."""
        seed = self._seed + self.figures.runs
        directory, trace = self._directory / f"run{seed}", self._directory / f"run{seed}.trace"
        directory.mkdir(mode=0o700)
        record(directory, trace, seed=seed, synchronous=self._synchronous)
        records = list(Trace(trace))
        self.figures.runs += 1
        passes = (one for number in itertools.count() for one in moments(records, seed, number))
        for where, image, facts, rng in itertools.islice(passes, images):
            self.figures.add(image, self._check(image, facts, rng), where)
        shutil.rmtree(directory)
        trace.unlink()

    def _check(self, image: Image, facts: PowerFacts, rng: random.Random) -> list[ImageViolation]:
        found = self._look(image, facts)
        if isinstance(found, ImageViolation):
            return [found]
        wrong = list(violations(facts, found))
        if not wrong and self.figures.images % RESTART_EVERY == 0:
            self.figures.restarts += 1
            wrong = list(restart(put(self._opened, image.files), facts, found, rng))
        return wrong

    def _look(self, image: Image, facts: PowerFacts) -> ImageContent | ImageViolation:
        """Read the image. If that fails, or the image need not hold a store yet, the start of an engine reads it."""
        if facts.opened:
            try:
                return read(put(self._read, image.files))
            except (sqlite3.Error, CorrelatorError):
                pass
        try:
            return opened(put(self._opened, image.files))
        except Exception as error:  # noqa: BLE001  # every exception is a finding
            return ImageViolation("G8", f"the store does not open: {type(error).__name__} {error}")


def moments(
    records: list[CallRecord], seed: int, number: int
) -> Iterator[tuple[str, Image, PowerFacts, random.Random]]:
    """Pass once over a trace: yield an image of each moment, with the facts known then and a random generator.

    A pass uses the moments at which something can be missing. The pass with number 1 uses every moment, with all calls
    applied.
    """
    disk, facts = Disk(), PowerFacts()
    for at, one in enumerate(records, 1):
        if one.kind is CallKind.MARK:
            facts.add(one.content)
        else:
            disk.apply(one)
        if not facts.opened and number % FIRST_START_EVERY > 1:
            continue
        rng = random.Random(f"{seed} {number} {at}")
        kinds = [kind for kind in disk.kinds if (kind == "whole") is (number == 1)]
        if kinds:
            yield f"seed {seed} pass {number} after record {at}", disk.draw(rng.choice(kinds), rng), facts, rng


def campaign(images: int, *, seed: int, synchronous: str = "FULL") -> PowerFigures:
    """Check this number of images, on a disk in memory if there is one, and remove all files afterwards."""
    parent = _MEMORY if os.access(_MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="correlator-power-", dir=parent) as directory:
        return PowerCampaign(Path(directory), seed=seed, synchronous=synchronous).run(images)
