"""The command of the campaign of kills; exit status 1 if an invariant is violated."""

import argparse
import contextlib
import resource
import sys
import time
from pathlib import Path

import msgspec

from correlator.reliability import Reliability
from correlator.testing.files import write_json
from correlator.testing.kill9.zygote import Zygote
from tests.harness.jobs import shared
from tests.harness.kill9 import reference
from tests.harness.kill9.campaign import KillCampaign, KillFigures, drawn, pairs

DEFAULT_KILLS = 1000


def main() -> int:
    """Run the command. Ctrl-C ends the campaign and prints the figures so far."""
    parser = argparse.ArgumentParser(prog="python -m tests.harness.kill9")
    parser.add_argument("--kills", type=int, help="run until so many processes were killed (1000, or all pairs)")
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument("--step", type=int, default=1, help="from one seed to the next")
    parser.add_argument("--jobs", type=int, default=1, help="processes that share the seeds, not with --pairs")
    parser.add_argument("--pairs", type=Reliability, help="every pair of kills with a small workload of this mode")
    parser.add_argument("--report", type=Path, help="write the figures to this file as JSON")
    arguments = parser.parse_args()
    if arguments.jobs > 1 and arguments.pairs is not None:
        parser.error("--pairs is one process")
    if arguments.jobs > 1:
        return _shared(arguments.kills or DEFAULT_KILLS, arguments.seed, arguments.jobs, arguments.report)
    zygote = Zygote(reference.APPLICATION)
    campaign = KillCampaign(zygote)
    began = time.monotonic()
    with contextlib.suppress(KeyboardInterrupt), contextlib.closing(zygote):
        if arguments.pairs is not None:
            pairs(campaign, arguments.pairs, kills=arguments.kills, seed=arguments.seed)
        else:
            drawn(campaign, kills=arguments.kills or DEFAULT_KILLS, seed=arguments.seed, step=arguments.step)
    figures = campaign.figures
    figures.seconds = round(time.monotonic() - began, 2)
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    figures.cpu_seconds = round(sum(one.ru_utime + one.ru_stime for one in used), 2)
    for found in figures.found:
        faults = ", ".join(f"{fault.kind}#{fault.n}" for fault in found.faults)
        sys.stdout.write(f"seed {found.seed}: {found.violated}\n  kept: {found.kept}\n  faults: {faults}\n")
    sys.stdout.write(figures.line() + "\n")
    if arguments.report is not None:
        write_json(arguments.report, figures)
    return 1 if figures.violations else 0


def _shared(kills: int, seed: int, jobs: int, report: Path | None) -> int:
    """Run random kills in several processes; each process prints the failures that it finds."""
    options = ["--kills", str(-(-kills // jobs))]
    reports, is_sound = shared("tests.harness.kill9", options, seed=seed, jobs=jobs)
    whole = KillFigures()
    for one in reports:
        whole.merge(msgspec.json.decode(one, type=KillFigures, dec_hook=lambda wanted, found: wanted(found)))
    sys.stdout.write(f"together: {whole.line()}\n")
    if report is not None:
        write_json(report, whole)
    return 0 if is_sound else 1


if __name__ == "__main__":
    sys.exit(main())
