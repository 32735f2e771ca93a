"""The command; exit status 1 on a violation, and when nothing is proved."""

import argparse
import logging
import sys
import tempfile
from pathlib import Path

import structlog

from correlator.testing.simulation.figures import write
from tests.connectors.rabbitmq_campaign.rounds import campaign
from tests.rabbit_server import RabbitServer
from tests.servers import running


def main() -> int:
    """Run what was asked for."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    logging.disable(logging.CRITICAL)  # pika tells of each lost connection
    parser = argparse.ArgumentParser(prog="python -m tests.connectors.rabbitmq_campaign")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--cuts", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--report", type=Path)
    parsed = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="correlator-rabbitmq-campaign-"))
    try:
        with running(RabbitServer()) as rabbit:
            result = campaign(rabbit, directory, kills=parsed.kills, cuts=parsed.cuts, seed=parsed.seed, say=_say)
    finally:
        if not any(directory.iterdir()):
            directory.rmdir()
    for line in result.lines():
        _say(line)
    if directory.exists():
        _say(f"stores of both engines and the log of the server: {directory}")
    if parsed.report is not None:
        write(parsed.report, result.report())
    return 1 if result.violations or result.blind else 0


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
