"""The command of the campaign; its exit status is 1 on a violation, and if nothing is proved."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from tests.connectors.campaign.command import carry_out
from tests.connectors.pulsar_campaign.figures import Result
from tests.connectors.pulsar_campaign.rounds import campaign
from tests.pulsar_server import PulsarServer
from tests.servers import running


def main() -> int:
    """Run the campaign that the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m tests.connectors.pulsar_campaign")
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--process-kills", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--report", type=Path)
    parsed = parser.parse_args()

    def run(directory: Path, say: Callable[[str], None]) -> Result:
        with running(PulsarServer()) as pulsar:
            return campaign(
                pulsar,
                directory,
                kills=parsed.kills,
                process_kills=parsed.process_kills,
                seed=parsed.seed,
                say=say,
            )

    return carry_out("pulsar", parsed.report, run)


if __name__ == "__main__":
    sys.exit(main())
