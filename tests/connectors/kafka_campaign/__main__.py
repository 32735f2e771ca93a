"""The command of the campaign; its exit status is 1 on a violation, and if nothing is proved."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from tests.connectors.campaign.command import carry_out
from tests.connectors.kafka_campaign.rounds import Result, campaign
from tests.kafka_server import KafkaServer
from tests.servers import running


def main() -> int:
    """Run the campaign that the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m tests.connectors.kafka_campaign")
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--broker-kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--report", type=Path)
    parsed = parser.parse_args()

    def run(directory: Path, say: Callable[[str], None]) -> Result:
        with running(KafkaServer()) as kafka:
            return campaign(
                kafka, directory, kills=parsed.kills, broker_kills=parsed.broker_kills, seed=parsed.seed, say=say
            )

    return carry_out("kafka", parsed.report, run)


if __name__ == "__main__":
    sys.exit(main())
