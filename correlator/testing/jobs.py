"""A campaign in several processes, each with its own seeds."""

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path


def shared(module: str, options: Sequence[str], *, seed: int, jobs: int) -> tuple[Sequence[bytes], bool]:
    """Run a module's command in so many processes; returns their reports, and whether none has found a violation.

    Args:
        module: its command knows `--seed`, `--step` and `--report`.
        options: of each process, besides these.
        seed: the first one; each process takes every so manieth from there.
        jobs: how many processes.
    """
    with tempfile.TemporaryDirectory(prefix="correlator-jobs-") as directory:
        reports = [Path(directory) / f"{job}.json" for job in range(jobs)]
        seeds = [["--seed", str(seed + job), "--step", str(jobs)] for job in range(jobs)]
        processes = [
            subprocess.Popen([sys.executable, "-m", module, *options, *own, "--report", str(path)])  # noqa: S603
            for own, path in zip(seeds, reports, strict=True)
        ]
        statuses = [process.wait() for process in processes]
        return [path.read_bytes() for path in reports], not any(statuses)
