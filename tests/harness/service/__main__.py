"""The command of the campaigns of the message service; exit status 1 on a violation, or if a mutant survives."""

import argparse
import contextlib
import os
import subprocess
import sys
from pathlib import Path

import msgspec

from correlator.testing.files import write_json
from correlator.testing.syscalls import library
from tests.harness.jobs import shared
from tests.harness.processes import environment
from tests.harness.service import mutants
from tests.harness.service.campaign import FileStores, ServerStores, ServiceFigures, Stores, campaign
from tests.harness.service.life import shorten_waits, warm_up
from tests.harness.service.power import PowerFigures, power
from tests.servers import PostgresServer, running

SERVER = "CORRELATOR_SERVICE_SERVER"
"""Variable with the address of the PostgreSQL server of a campaign."""


def main() -> int:
    """Run the command. Ctrl-C ends a campaign and prints the figures so far."""
    parser = argparse.ArgumentParser(prog="python -m tests.harness.service", description=__doc__)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--kills", type=int, help="run until this number of processes was killed")
    what.add_argument("--power", type=int, help="judge this number of images of a disk after a loss of power")
    what.add_argument("--mutants", nargs="*", metavar="NAME", help="hunt these deliberate bugs, or all")
    parser.add_argument("--store", choices=("sqlite", "postgres"), default="sqlite", help="where the broker is")
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument("--step", type=int, default=1, help="from one seed to the next")
    parser.add_argument("--jobs", type=int, default=1, help="processes that share the seeds")
    parser.add_argument("--report", type=Path, help="write the figures to this file as JSON")
    arguments = parser.parse_args()
    if arguments.jobs > 1 and arguments.kills is None:
        parser.error("--jobs is for --kills")
    if arguments.jobs > 1:
        return _shared(arguments)
    if not library.preloaded():
        return _again_with_library(arguments.store)
    if arguments.mutants is not None:
        return mutants.command(arguments.report, arguments.mutants)
    shorten_waits()
    warm_up()
    if arguments.power is not None:
        return _report_power(power(arguments.power, seed=arguments.seed), arguments.report)
    stores: Stores = ServerStores(os.environ[SERVER]) if arguments.store == "postgres" else FileStores()
    return _report(campaign(arguments.kills, seed=arguments.seed, step=arguments.step, stores=stores), arguments.report)


def _again_with_library(store: str) -> int:
    """Run the command in a process that can be killed at its calls, and that has no threads."""
    command = [sys.executable, "-m", "tests.harness.service", *sys.argv[1:]]
    with contextlib.ExitStack() as stack:
        variables = {}
        if store == "postgres":
            variables[SERVER] = stack.enter_context(running(PostgresServer())).url()
        stack.enter_context(library.preloading())
        return subprocess.run(command, env=environment(**variables), check=False).returncode


def _report(figures: ServiceFigures, report: Path | None) -> int:
    for found in figures.found:
        sys.stdout.write(f"seed {found.seed}: {'; '.join(found.violated)}\n  kept: {found.kept}\n")
    sys.stdout.write(figures.line() + "\n")
    if report is not None:
        write_json(report, figures)
    return 1 if figures.violations else 0


def _report_power(figures: PowerFigures, report: Path | None) -> int:
    for told in figures.told:
        sys.stdout.write(f"{told}\n")
    sys.stdout.write(figures.line() + "\n")
    if report is not None:
        write_json(report, figures)
    return 1 if figures.bad else 0


def _shared(arguments: argparse.Namespace) -> int:
    """Share the seeds among several processes; each prints the failures that it finds."""
    options = ["--kills", str(-(-arguments.kills // arguments.jobs)), "--store", arguments.store]
    reports, is_sound = shared("tests.harness.service", options, seed=arguments.seed, jobs=arguments.jobs)
    whole = ServiceFigures()
    for one in reports:
        whole.merge(msgspec.json.decode(one, type=ServiceFigures, dec_hook=lambda wanted, found: wanted(found)))
    sys.stdout.write(f"together: {whole.line()}\n")
    if arguments.report is not None:
        write_json(arguments.report, whole)
    return 0 if is_sound else 1


if __name__ == "__main__":
    sys.exit(main())
