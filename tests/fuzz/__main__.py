"""The command of the campaigns; its exit status is 1 if a case violates what must hold."""

import argparse
import logging
import sys
import time
from pathlib import Path

import structlog

from correlator.testing.files import write_json
from tests.fuzz.files import FilesCampaign
from tests.fuzz.outcome import MOST_MIB, Campaign, Outcome, peak_mib
from tests.fuzz.requests import RequestsCampaign
from tests.fuzz.stores import StoresCampaign

CAMPAIGNS: dict[str, type[Campaign]] = {
    "files": FilesCampaign,
    "stores": StoresCampaign,
    "requests": RequestsCampaign,
}
_EVERY_S = 60.0


def main() -> int:
    """Run the cases that the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("what", choices=CAMPAIGNS)
    parser.add_argument("--number", type=int, default=10_000, help="how many cases")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no case after so long")
    parser.add_argument("--only", type=int, help="run this case alone")
    parser.add_argument("--report", type=Path, help="write the figures to this file as JSON")
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    numbers = range(arguments.number) if arguments.only is None else [arguments.only]
    outcome, began = Outcome(arguments.what, arguments.seed), time.monotonic()
    said, most_mib = began, MOST_MIB
    with CAMPAIGNS[arguments.what](arguments.seed) as campaign:
        for number in numbers:
            if time.monotonic() - began > arguments.seconds:
                break
            before = len(outcome.violations)
            campaign.run(number, outcome)
            if peak_mib() > most_mib:
                most_mib = peak_mib()
                outcome.violated(number, f"the process has had {most_mib} MiB")
            for violation in outcome.violations[before:]:
                _say(violation)
            if time.monotonic() - said > _EVERY_S:
                said = time.monotonic()
                _say(outcome.line())
    _say(outcome.line())
    if arguments.report is not None:
        write_json(arguments.report, outcome.report())
    return 1 if outcome.violations else 0


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
