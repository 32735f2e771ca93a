"""Proves that a failure can be repeated with the same seed, in another process whose sets have another order.

Mutants of the catalogue make seeds fail. Each failing pair of mutant and seed runs again in a process with another
`PYTHONHASHSEED`, and must give the same history and the same first violated invariant.

As a command, this module is one of the two processes: it runs pairs and writes the result of each as one line.
"""

import argparse
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from correlator.testing.files import write_json
from correlator.testing.simulation.small_world import small_world
from tests.harness import mutants
from tests.harness.processes import environment
from tests.harness.simulation.campaign import run_seed

HASH_SEEDS = ("1", "2")
"""The values of `PYTHONHASHSEED`: of the process that finds failures, and of the process that repeats them."""
SEEDS = 10_000
"""The largest seed that is tried."""
NOT_REPEATABLE = frozenset({"G9"})
"""A mutant that violates this invariant makes different histories from the same seed, so it is not repeated."""


class Failure(msgspec.Struct, frozen=True, order=True):
    """A failed run: mutant, seed, the hash of the history, and the first violated invariant."""

    mutant: str
    seed: int
    digest: str = ""
    invariant: str = ""


class ReproductionReport(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of a reproduction.

    Attributes:
        failures: pairs of mutant and seed that were repeated.
        equal: pairs with the same history and the same first invariant in both processes.
        mutants: how many different mutants were repeated.
        seconds: wall-clock time.
        by_invariant: failures by their first invariant.
        different: (first run, repeated run) of each pair that was not equal.
    """

    failures: int
    equal: int
    mutants: int
    seconds: float
    by_invariant: dict[str, int]
    different: list[tuple[Failure, Failure]]


def command(count: int, seed: int, report: Path | None) -> int:
    """Reproduce, print a line, write the report; return 1 if any pair differs, else 0. Raises as `reproduce`."""
    done = reproduce(count, seed)
    for one, other in done.different:
        sys.stdout.write(f"{one.mutant} seed {one.seed}: {one} and {other}\n")
    counts = f"{done.failures} failures of {done.mutants} mutants repeated, {done.equal} equal"
    sys.stdout.write(f"{counts}, {done.seconds:.0f} s\n")
    if report is not None:
        write_json(report, done)
    return 1 if done.different else 0


def reproduce(count: int, seed: int = 1) -> ReproductionReport:
    """Find `count` failures in one process, and repeat them in another.

    Raises:
        SystemExit: a process failed.
    """
    begin = time.monotonic()
    found = in_a_process(HASH_SEEDS[0], ["--find", str(count), "--seed", str(seed)], [])
    again = in_a_process(HASH_SEEDS[1], ["--repeat"], found)
    different = [(one, other) for one, other in zip(found, again, strict=True) if one != other]
    invariants = Counter(one.invariant for one in found)
    return ReproductionReport(
        failures=len(found),
        equal=len(found) - len(different),
        mutants=len({one.mutant for one in found}),
        seconds=round(time.monotonic() - begin, 1),
        by_invariant=dict(sorted(invariants.items())),
        different=different,
    )


def find(count: int, seed: int) -> Iterator[Failure]:
    """Choose pairs of mutant and seed at random, each once, until `count` of them have failed."""
    rng = random.Random(f"reproduction {seed}")
    names = [name for name, mutant in mutants.CATALOGUE.items() if not mutant.expected & NOT_REPEATABLE]
    tried: set[tuple[str, int]] = set()
    while count:
        pair = (rng.choice(names), rng.randint(1, SEEDS))
        if pair not in tried:
            tried.add(pair)
            failure = run(*pair)
            if failure.invariant:
                yield failure
                count -= 1


def run(mutant: str, seed: int) -> Failure:
    """Run a seed with a mutant; `invariant` is empty if the run does not fail."""
    with small_world(), mutants.applied(mutant):
        outcome = run_seed(seed)
    return Failure(mutant, seed, outcome.history.digest(), outcome.found[0].id if outcome.found else "")


def in_a_process(hash_seed: str, arguments: Sequence[str], pairs: Sequence[Failure]) -> list[Failure]:
    """Return the results of a process with this `PYTHONHASHSEED`, these arguments and pairs. Raises as `reproduce`."""
    done = subprocess.run(  # the interpreter of this process
        [sys.executable, "-m", __spec__.name, *arguments],
        input=b"\n".join(map(msgspec.json.encode, pairs)),
        env=environment(PYTHONHASHSEED=hash_seed),
        capture_output=True,
        check=False,
    )
    if done.returncode:
        end = done.stderr.decode(errors="replace")[-1000:]
        raise SystemExit(f"the process with PYTHONHASHSEED={hash_seed} ended with status {done.returncode}: {end}")
    return [msgspec.json.decode(line, type=Failure) for line in done.stdout.splitlines()]


def main() -> int:
    """Run one of the two processes."""
    parser = argparse.ArgumentParser(prog="python -m tests.harness.simulation.reproduction")
    parser.add_argument("--find", type=int, help="write so many failures")
    parser.add_argument("--seed", type=int, default=1, help="pairs are drawn with")
    parser.add_argument("--repeat", action="store_true", help="run the pairs of standard input")
    arguments = parser.parse_args()
    failures = find(arguments.find, arguments.seed) if arguments.find else _repeated()
    for failure in failures:
        sys.stdout.buffer.write(msgspec.json.encode(failure) + b"\n")
    return 0


def _repeated() -> Iterator[Failure]:
    for line in sys.stdin.buffer:
        pair = msgspec.json.decode(line, type=Failure)
        yield run(pair.mutant, pair.seed)


if __name__ == "__main__":
    sys.exit(main())
