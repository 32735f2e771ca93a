"""Records the workload: several engines, one after another, each in its own process; one of them is killed.

A process that was started with the library forks a child for each life. So all calls and marks are in one trace, and
modules are imported once. The broker is in the child: the marks tell which messages it has not yet delivered when the
child ends, and the next child gets these.
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
"""The number of the life that is killed, so that the next life finds a log which was not closed."""
KILLED_BEFORE = (250, 500)
"""The kill takes place before a writing call between these two."""
MESSAGES = 80
WAL_PAGES = 40
IDLE_WAL_BYTES = 300_000
SEGMENT_ENTRIES = 16


def record(directory: Path, trace: Path, *, seed: int, synchronous: str = "FULL") -> None:
    """Record the run of a seed.

    Args:
        directory: an empty directory, in which the store is made.
        trace: the file of the trace, outside of `directory`.
        seed: determines messages and order.
        synchronous: the setting that SQLite gets after the product has set and checked its own. The product sets FULL;
            NORMAL and OFF are controls, in which the campaign must find violations.

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
    """Run the workload; this is the command of the process that was started with the library."""
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
    """Run one engine in a child; return the exit status of the child."""
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
    except BaseException:  # noqa: BLE001  # the process ends here in any case
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
    """Let SQLite copy its log soon, and the engine write a witness at every checkpoint; for a control, sync less.

    Called inside `small_world`. Its segments are so small that reading thousands of images a minute would be too slow,
    so this function makes them larger.
    """
    settled_as(f"wal_autocheckpoint = {WAL_PAGES}", f"synchronous = {synchronous}")
    sqlite.LARGEST_IDLE_WAL = IDLE_WAL_BYTES
    statelog.SEGMENT_ENTRIES = SEGMENT_ENTRIES
    witness.INTERVAL_S = 0.0


if __name__ == "__main__":
    sys.exit(main())
