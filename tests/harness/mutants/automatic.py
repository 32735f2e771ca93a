"""Automatic mutants: a sample of all small changes that an operator can make in the engine's source.

    python -m tests.harness.mutants.automatic --sample 200 --seed 1 [--jobs 2] [--report FILE.json]
    python -m tests.harness.mutants.automatic --only ID

A mutant runs in a copy of the project, in new processes. First the simulation hunts it, then the tests run that call
the changed function. A process that does not end counts as a kill. The command shows each survivor with its diff:
either a check is missing, or `survivors.md` explains the survivor. Exit status 1 if a survivor is not explained.

Neither of the usual tools does this. Cosmic Ray changes the source files in place and runs one command for all mutants.
mutmut runs only pytest over all mutants, in a directory that it makes in the project. It takes no sample, and gives a
mutant no budget of seeds or CPU time, so the simulation could not hunt.
"""

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from pathlib import Path
from queue import SimpleQueue
from typing import Literal, NamedTuple

import msgspec

from correlator.testing.files import write_json
from correlator.testing.simulation.small_world import small_world
from tests.harness.mutants.copies import Copy
from tests.harness.mutants.operators import AutomaticMutant, mutants_of
from tests.harness.mutants.reach import FILE, Reach, called_so_far, make_telling, reach_of
from tests.harness.processes import ROOT
from tests.harness.simulation.campaign import run_seed

SEEDS = 60
HUNT_CPU_S = 8
"""How many seeds, and how many CPU seconds, the simulation spends on one mutant."""
TESTS_CPU_S = 40
TEST_S = 45
"""The wall-clock limit of one test in seconds: a test may wait for an event that the mutant prevents."""
ALL_TESTS_CPU_S = 600
PATIENCE = 6
"""How many wall-clock seconds a process gets for each CPU second of its budget, since others may use the machine."""
OUT_OF_TIME = "Timeout (0:"
"""The text that Python writes when it ends a test that has run out of time."""
LONGEST_LINE = 200
SHOWN = 5
"""The most checks that are named for a kill."""
ROOMS = ("correlator/core", "correlator/runtime", "correlator/storage")
"""The directories in which mutants are made."""
TESTS = ("tests/core", "tests/storage", "tests/runtime", "tests/pipeline/test_keyed.py", "tests/cli")
"""The tests that call the code of these directories."""

Fate = Literal["simulation", "tests", "timeout", "survived", "unreached"]

SURVIVED = ("survived", "unreached")


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The fate of a mutant.

    Attributes:
        mutant: the id of the mutant.
        file: the changed file, relative to the project.
        line: the line of the mistake.
        kind: the kind of mistake.
        fate: what killed the mutant; `timeout`: a process did not end; `unreached`: nothing calls the function.
        by: ids of the violated invariants, or names of the failed tests, at most `SHOWN`.
        seeds: how many runs the simulation made.
        seconds: wall-clock time of all checks.
        diff: the mistake.
    """

    mutant: str
    file: str
    line: int
    kind: str
    fate: Fate
    by: list[str]
    seeds: int
    seconds: float
    diff: str


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of a sample.

    Attributes:
        seed: the seed that determined the sample.
        mutants: how many mutants the source has.
        sample: how many of them ran.
        fates: the number of mutants by fate.
        by_kind: the number of mutants by fate, for each kind of mistake.
        by_invariant: how many mutants were killed by each invariant.
        seconds: wall-clock time.
        verdicts: the verdict on each mutant.
    """

    seed: int
    mutants: int
    sample: int
    fates: dict[str, int]
    by_kind: dict[str, dict[str, int]]
    by_invariant: dict[str, int]
    seconds: float
    verdicts: list[Verdict]


class Hunted(msgspec.Struct, frozen=True):
    """What a hunt found: how many seeds ran, and the ids of the invariants that the last run violated."""

    seeds: int
    invariants: list[str]
    called: list[str] = []


class PlacedMutant(NamedTuple):
    """A mutant and its file."""

    mutant: AutomaticMutant
    file: str


def all_mutants() -> list[PlacedMutant]:
    """Return every mutant of every directory, in the order of files."""
    return [
        PlacedMutant(mutant, file)
        for file, module in _sources()
        for mutant in mutants_of(module, (ROOT / file).read_text(encoding="utf-8"))
    ]


def _sources() -> Iterator[tuple[str, str]]:
    """Yield the source files with their modules."""
    for room in ROOMS:
        for path in sorted((ROOT / room).glob("*.py")):
            file = path.relative_to(ROOT).as_posix()
            yield file, file.removesuffix(".py").replace("/", ".")


def hunt(seeds: int, cpu_s: float) -> Hunted:
    """Run seeds from 1 until an invariant is violated, or the budget of seeds or of CPU seconds is used up."""
    with small_world():
        for seed in range(1, seeds + 1):
            outcome = run_seed(seed)
            if outcome.failed or time.process_time() > cpu_s:
                break
    return Hunted(seed, sorted({violation.id for violation in outcome.found}), called_so_far())


def judge(copy: Copy, place: PlacedMutant, reach: Reach) -> Verdict:
    """Run one mutant in a copy that no other thread uses, and return the verdict."""
    begin = time.monotonic()
    function = place.mutant.function
    hunted = Hunted(0, [])
    fate: Fate = "survived"
    by: list[str] = []
    with copy.holding(place.file, place.mutant.source):
        if function in reach.simulated:
            fate, hunted = _simulated(copy)
            by = hunted.invariants
        if fate == "survived" and (tests := reach.tests.get(function)):
            fate, by = _tested(copy, tests)
        elif function not in reach.simulated:
            fate = "unreached"
    return Verdict(
        mutant=place.mutant.id,
        file=place.file,
        line=place.mutant.edit.first.lineno,
        kind=place.mutant.edit.kind,
        fate=fate,
        by=by[:SHOWN],
        seeds=hunted.seeds,
        seconds=round(time.monotonic() - begin, 1),
        diff=place.mutant.diff,
    )


def _simulated(copy: Copy) -> tuple[Fate, Hunted]:
    arguments = ["-m", __spec__.name, "--hunt", str(SEEDS)]
    ended = copy.run(arguments, cpu_s=2 * HUNT_CPU_S, wall_s=2 * PATIENCE * HUNT_CPU_S)
    if ended.status is None:
        return "timeout", Hunted(0, [])
    if ended.status:
        return "simulation", Hunted(0, [_last_line(ended.output)])
    hunted = msgspec.json.decode(ended.output, type=Hunted)
    return ("simulation" if hunted.invariants else "survived"), hunted


def _tested(copy: Copy, tests: Sequence[str]) -> tuple[Fate, list[str]]:
    ended = copy.run(_pytest(copy, *tests), cpu_s=TESTS_CPU_S, wall_s=PATIENCE * TESTS_CPU_S)
    if ended.status is None or OUT_OF_TIME in ended.output:
        return "timeout", []
    failed = [line.split()[1] for line in ended.output.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    return ("tests", failed or [_last_line(ended.output)]) if ended.status else ("survived", [])


def _last_line(output: str) -> str:
    """Return the last line of a process without a report: most often its exception."""
    return (output.strip().splitlines() or ["ended without a word"])[-1][:LONGEST_LINE]


def _pytest(copy: Copy, *tests: str) -> list[str]:
    """Return arguments for Python that run tests in this order up to the first failure, without tests
    that need a server.
    """
    options = (
        "-q",
        "-x",
        "--tb=no",
        "-rfE",
        "-p",
        "no:randomly",
        "-p",
        "no:cacheprovider",
        "-m",
        "not postgres and not spark",
    )
    limit = ("-o", f"faulthandler_timeout={TEST_S}", "-o", "faulthandler_exit_on_timeout=true")
    return ["-m", "pytest", *options, *limit, f"--basetemp={copy.directory / 'tmp'}", *tests]


def measured_reach() -> Reach:
    """Run the simulation and all tests once in a copy of the project, to measure what they call.

    Raises:
        SystemExit: a check fails without any mutant.
    """
    with tempfile.TemporaryDirectory(prefix="correlator-mutants-") as directory:
        copy = Copy(Path(directory))
        make_telling(copy, dict(_sources()))
        fate, hunted = _simulated(copy)
        tests = ["-p", "tests.harness.mutants.reach", *TESTS]
        ended = copy.run(_pytest(copy, *tests), cpu_s=ALL_TESTS_CPU_S, wall_s=PATIENCE * ALL_TESTS_CPU_S)
        if fate != "survived" or ended.status:
            failing = "the tests fail" if fate == "survived" else "the simulation fails"
            end = " ".join(ended.output.splitlines()[-3:])
            raise SystemExit(f"without any mutant {failing}, so no kill would mean anything: {end}")
        return reach_of(hunted.called, copy.directory / FILE)


def judge_all(places: Sequence[PlacedMutant], jobs: int, told: Callable[[Verdict], None]) -> None:
    """Judge the mutants in `jobs` copies at a time, and pass each verdict to `told`. Raises as `measured_reach`."""
    reach = measured_reach()
    with ExitStack() as stack:
        free: SimpleQueue[Copy] = SimpleQueue()
        for _ in range(jobs):
            directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="correlator-mutants-"))
            free.put(Copy(Path(directory)))

        def one(place: PlacedMutant) -> Verdict:
            copy = free.get()
            try:
                return judge(copy, place, reach)
            finally:
                free.put(copy)

        with ThreadPoolExecutor(jobs) as pool:
            for future in as_completed([pool.submit(one, place) for place in places]):
                told(future.result())


def report_of(verdicts: Sequence[Verdict], seed: int, mutants: int, seconds: float) -> Report:
    """Return the figures of these verdicts."""
    by_kind: dict[str, Counter[str]] = {}
    for one in verdicts:
        by_kind.setdefault(one.kind, Counter())[one.fate] += 1
    killers = Counter(name for one in verdicts if one.fate == "simulation" for name in one.by)
    return Report(
        seed=seed,
        mutants=mutants,
        sample=len(verdicts),
        fates=dict(Counter(one.fate for one in verdicts)),
        by_kind={kind: dict(fates) for kind, fates in sorted(by_kind.items())},
        by_invariant=dict(sorted(killers.items())),
        seconds=round(seconds, 1),
        verdicts=list(verdicts),
    )


def explained() -> str:
    """Return the text that explains survivors by their ids."""
    return Path(__file__).with_name("survivors.md").read_text(encoding="utf-8")


def _chosen(arguments: argparse.Namespace, places: Sequence[PlacedMutant]) -> list[PlacedMutant]:
    if not arguments.only:
        return random.Random(arguments.seed).sample(places, min(arguments.sample, len(places)))
    found = [place for place in places if place.mutant.id in arguments.only]
    if missing := set(arguments.only) - {place.mutant.id for place in found}:
        raise SystemExit(f"no mutant is called {', '.join(sorted(missing))}; ids are module:function:kind:n")
    return found


def _lines(verdict: Verdict) -> Iterator[str]:
    yield f"{verdict.mutant:90} {verdict.fate} {', '.join(verdict.by)}".rstrip()
    if verdict.fate in SURVIVED:
        yield f"--- {verdict.file}:{verdict.line}"
        yield verdict.diff


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m tests.harness.mutants.automatic")
    parser.add_argument("--sample", type=int, default=200, help="how many mutants")
    parser.add_argument("--seed", type=int, default=1, help="the seed of the sample")
    parser.add_argument("--only", action="append", help="run the mutant with this id; may be given again")
    parser.add_argument("--jobs", type=int, default=1, help="at a time")
    parser.add_argument("--report", type=Path, help="write everything there, as JSON")
    parser.add_argument("--hunt", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.hunt:
        sys.stdout.buffer.write(msgspec.json.encode(hunt(arguments.hunt, HUNT_CPU_S)))
        return 0
    return _run(arguments)


def _run(arguments: argparse.Namespace) -> int:
    begin = time.monotonic()
    places = all_mutants()
    verdicts: list[Verdict] = []

    def told(verdict: Verdict) -> None:
        verdicts.append(verdict)
        sys.stdout.write("\n".join(_lines(verdict)) + "\n")
        sys.stdout.flush()
        if arguments.report:  # keep the report complete at any time, since a long run may be ended early
            write_json(arguments.report, report_of(verdicts, arguments.seed, len(places), time.monotonic() - begin))

    judge_all(_chosen(arguments, places), arguments.jobs, told)
    unexplained = [one for one in verdicts if one.fate in SURVIVED and f"`{one.mutant}`" not in explained()]
    counts = ", ".join(f"{count} {fate}" for fate, count in sorted(Counter(one.fate for one in verdicts).items()))
    sys.stdout.write(f"{len(verdicts)} of {len(places)} mutants: {counts}; {len(unexplained)} not explained\n")
    return 1 if unexplained else 0


if __name__ == "__main__":
    sys.exit(main())
