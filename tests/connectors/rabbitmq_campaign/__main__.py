"""The command of the campaign; its exit status is 1 on a violation, and if nothing is proved."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from tests.connectors.campaign.command import carry_out
from tests.connectors.rabbitmq_campaign.figures import Result
from tests.connectors.rabbitmq_campaign.rounds import campaign
from tests.rabbit_server import RabbitServer
from tests.servers import running


def main() -> int:
    """Run the campaign that the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m tests.connectors.rabbitmq_campaign")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--cuts", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--report", type=Path)
    parsed = parser.parse_args()

    def run(directory: Path, say: Callable[[str], None]) -> Result:
        with running(RabbitServer()) as rabbit:
            return campaign(rabbit, directory, kills=parsed.kills, cuts=parsed.cuts, seed=parsed.seed, say=say)

    return carry_out("rabbitmq", parsed.report, run)


if __name__ == "__main__":
    sys.exit(main())
