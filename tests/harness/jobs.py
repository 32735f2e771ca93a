"""Runs a campaign in several processes, each with its own seeds."""

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.harness.processes import environment


def shared(module: str, options: Sequence[str], *, seed: int, jobs: int) -> tuple[Sequence[bytes], bool]:
    """Run the command of a module in several processes; return their reports, and whether all ended with status 0.

    Ctrl-C reaches the processes as well, and this function waits for their figures so far. A process without a report
    counts as failed.

    Args:
        module: a module whose command has the options `--seed`, `--step` and `--report`.
        options: further options for each process.
        seed: the first seed. With n processes, each process takes every n-th seed, starting with one of the first n.
        jobs: how many processes.
    """
    with tempfile.TemporaryDirectory(prefix="correlator-jobs-") as directory:
        reports = [Path(directory) / f"{job}.json" for job in range(jobs)]
        seeds = [["--seed", str(seed + job), "--step", str(jobs)] for job in range(jobs)]
        processes = [
            subprocess.Popen([sys.executable, "-m", module, *options, *own, "--report", str(path)], env=environment())
            for own, path in zip(seeds, reports, strict=True)
        ]
        try:
            statuses = [_end_of(process) for process in processes]
        finally:
            for process in processes:
                process.terminate()
        found = [path.read_bytes() for path in reports if path.exists()]
        return found, len(found) == jobs and not any(statuses)


def _end_of(process: subprocess.Popen[bytes]) -> int:
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:
            continue
