"""Records the workload: several engines one after another in processes of their own, one of them killed on its way.

A process that was started with the library forks one child for each life, so that the order of all calls and marks is
one trace, and imports cost once. The broker is in the child; what it still has to deliver when a child ends is told by
the marks, and given to the next one.
"""

import os
import random
import signal
import subprocess
import sys
import traceback
from pathlib import Path

from correlator.core import statelog
from correlator.storage import sqlite, witness
from correlator.testing.power.pragmas import settled_as
from correlator.testing.simulation.small_world import small_world
from correlator.testing.syscalls import library
from correlator.testing.syscalls.library import Action, CallFault
from correlator.testing.syscalls.trace import CallKind, Trace
from tests.harness.power import facts, workload
from tests.harness.power.facts import PowerFacts
from tests.harness.processes import environment

LIVES = 3
KILLED = 2
"""The life that is killed, so that the next one finds a log that nobody has closed."""
KILLED_BEFORE = (250, 500)
"""Between these writing calls."""
MESSAGES = 80
WAL_PAGES = 40
IDLE_WAL_BYTES = 300_000
SEGMENT_ENTRIES = 16


def record(directory: Path, trace: Path, *, seed: int, synchronous: str = "FULL") -> None:
    """Record the run of a seed.

    Args:
        directory: empty; the store is made in it.
        trace: file to be written, outside of it.
        seed: of messages and order.
        synchronous: what SQLite is set to after the product has set and checked it: FULL is the product's own,
            NORMAL and OFF are the controls that must be found bad.

    Raises:
        UsageError: E2401, the library cannot be made.
        SystemExit: the run failed.
    """
    command = [sys.executable, "-m", __name__, str(directory), str(trace), str(seed), synchronous]
    with library.preloading():
        done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"the run of seed {seed} failed: {done.stderr.strip()[-2000:]}")


def main() -> int:
    """In the process that was started with the library."""
    directory, trace = Path(sys.argv[1]), Path(sys.argv[2])
    seed, synchronous = int(sys.argv[3]), sys.argv[4]
    with small_world():
        _small_files(synchronous)
        for life in range(1, LIVES + 1):
            status = _life(directory, trace, seed, life)
            expected = -signal.SIGKILL if life == KILLED else 0
            if status != expected:
                sys.stderr.write(f"life {life} ended with status {status}, not {expected}\n")
                return 1
    return 0


def _life(directory: Path, trace: Path, seed: int, life: int) -> int:
    """One engine in a child; returns what the child ended with."""
    rng = random.Random(f"power {seed} {life}")
    messages = workload.messages_of(rng, MESSAGES, life)
    waiting = _facts(trace).waiting
    fault = CallFault(action=Action.KILL, at=rng.randint(*KILLED_BEFORE)) if life == KILLED else None
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    status = 1
    try:
        library.arm(directory, trace=trace, fault=fault)
        one = workload.RecordedLife(directory, f"L{life}", rng, lambda mark: library.mark(facts.encode(mark)))
        status = 0 if one.run({queue: waiting[queue] + messages[queue] for queue in messages}) else 2
    except BaseException:  # noqa: BLE001  # the process ends here, whatever it is
        traceback.print_exc()
    sys.stderr.flush()
    os._exit(status)


def _facts(trace: Path) -> PowerFacts:
    known = PowerFacts()
    if trace.exists():
        for one in Trace(trace):
            if one.kind is CallKind.MARK:
                known.add(one.content)
    return known


def _small_files(synchronous: str) -> None:
    """A log that is soon copied into the file, a witness at every checkpoint; and for a control, fewer syncs.

    Called inside `small_world`, whose segments are smaller than reading thousands of images a minute bears.
    """
    settled_as(f"wal_autocheckpoint = {WAL_PAGES}", f"synchronous = {synchronous}")
    sqlite.LARGEST_IDLE_WAL = IDLE_WAL_BYTES
    statelog.SEGMENT_ENTRIES = SEGMENT_ENTRIES
    witness.INTERVAL_S = 0.0


if __name__ == "__main__":
    sys.exit(main())
