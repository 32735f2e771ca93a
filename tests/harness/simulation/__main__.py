"""The command of the simulation's campaign; exit status 1 if an invariant is violated."""

import argparse
import sys
from contextlib import ExitStack
from pathlib import Path

import msgspec

from correlator.testing.files import write_json
from correlator.testing.simulation.small_world import small_world
from tests.harness import mutants
from tests.harness.jobs import shared
from tests.harness.simulation import figures, reproduction
from tests.harness.simulation.campaign import campaign, report, run_seed, shrink


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m tests.harness.simulation")
    parser.add_argument("--crashes", type=int, default=10_000, help="run until so many engines have died")
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument("--step", type=int, default=1, help="from one seed to the next")
    parser.add_argument("--jobs", type=int, default=1, help="processes that share the seeds")
    parser.add_argument("--report", type=Path, help="write figures as JSON")
    parser.add_argument("--only", type=int, help="run this seed alone and show what it violates")
    parser.add_argument("--digest", type=int, help="print the hash of the history of this seed")
    parser.add_argument("--mutant", help="run with this deliberate bug")
    parser.add_argument("--reproduce", type=int, metavar="N", help="repeat N failures of mutants in another process")
    arguments = parser.parse_args()
    if arguments.reproduce:
        return reproduction.command(arguments.reproduce, arguments.seed, arguments.report)
    if arguments.jobs > 1:
        return _shared(arguments)
    with ExitStack() as stack:
        if arguments.mutant:
            stack.enter_context(mutants.applied(arguments.mutant))
        if arguments.digest is not None:
            stack.enter_context(small_world())
            sys.stdout.write(run_seed(arguments.digest).history.digest() + "\n")
            return 0
        if arguments.only is not None:
            return _only(arguments.only)
        return _campaign(arguments)


def _campaign(arguments: argparse.Namespace) -> int:
    totals = campaign(arguments.seed, crashes=arguments.crashes, step=arguments.step)
    for failure in totals.failures:
        sys.stdout.write(report(failure, shrink(failure)) + "\n\n")
    sys.stdout.write(totals.line() + "\n")
    if arguments.report:
        write_json(arguments.report, figures.campaign_report(arguments.seed, arguments.step, totals))
    return 1 if totals.failures else 0


def _shared(arguments: argparse.Namespace) -> int:
    """Run the campaign in several processes, each with its own seeds."""
    crashes = -(-arguments.crashes // arguments.jobs)
    reports, is_sound = shared(
        "tests.harness.simulation", ["--crashes", str(crashes)], seed=arguments.seed, jobs=arguments.jobs
    )
    whole = figures.merged([msgspec.json.decode(one, type=figures.CampaignReport) for one in reports])
    if arguments.report:
        write_json(arguments.report, whole)
    sys.stdout.write(f"together: {whole.runs:,} runs, {whole.crashes:,} crashes, {whole.violations} violations\n")
    return 0 if is_sound else 1


def _only(seed: int) -> int:
    with small_world():
        outcome = run_seed(seed)
    if not outcome.failed:
        sys.stdout.write(f"seed {seed}: {outcome.crashes} crashes, no violation\n")
        return 0
    for violation in outcome.found:
        sys.stdout.write(f"{violation}\n")
    sys.stdout.write(report(outcome, shrink(outcome)) + "\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
