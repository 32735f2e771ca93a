"""The command of the campaign of a Spark cluster; exit status 1 if anything was lost, doubled or out of order."""

import argparse
import sys
from pathlib import Path

from correlator.testing.files import write_json
from tests.harness.cluster.brokers import EMBEDDED, PULSAR, RABBITMQ
from tests.harness.cluster.campaign import BROKER, FORGETFUL, KINDS, NOTHING, campaign, kinds_of


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m tests.harness.cluster", description=__doc__)
    parser.add_argument("--kills", type=int, required=True, help="how many processes to kill")
    parser.add_argument(
        "--broker", choices=(EMBEDDED, RABBITMQ, PULSAR), default=EMBEDDED, help="where messages come from and go to"
    )
    parser.add_argument("--kinds", nargs="*", choices=(*KINDS, BROKER, FORGETFUL, NOTHING), help="what to kill")
    parser.add_argument("--calm", action="store_true", help="wait after each kill until messages come out again")
    parser.add_argument("--seed", type=int, default=1, help="decides what is killed, and when")
    parser.add_argument("--report", type=Path, help="write the figures to this file as JSON")
    arguments = parser.parse_args()
    known = kinds_of(arguments.broker)
    kinds = tuple(arguments.kinds or known)
    if BROKER in kinds and BROKER not in known:
        parser.error("the embedded broker has no server of its own: kill 'postgres'")
    figures = campaign(arguments.kills, arguments.seed, kinds, _say, broker=arguments.broker, calm=arguments.calm)
    for line in figures.lines():
        _say(line)
    if arguments.report:
        write_json(arguments.report, figures)
    return 1 if figures.wrong else 0


def _say(line: str) -> None:
    print(line, flush=True)  # noqa: T201  the output of a command


if __name__ == "__main__":
    sys.exit(main())
