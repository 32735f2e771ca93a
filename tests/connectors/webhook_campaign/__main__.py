"""The command of the campaign; its exit status is 1 on a violation, and if nothing is proved."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from tests.connectors.campaign.command import carry_out
from tests.connectors.webhook_campaign.rounds import KAFKA, POSTGRES, Result, campaign
from tests.kafka_server import KafkaServer
from tests.servers import PostgresServer, running


def main() -> int:
    """Run the campaign that the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m tests.connectors.webhook_campaign")
    parser.add_argument("--kills", type=int, default=100, help="of the engine")
    parser.add_argument("--postgres-kills", type=int, default=100)
    parser.add_argument("--kafka-kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--report", type=Path)
    parsed = parser.parse_args()
    server_kills = {POSTGRES: parsed.postgres_kills, KAFKA: parsed.kafka_kills}

    def run(directory: Path, say: Callable[[str], None]) -> Result:
        with running(PostgresServer()) as postgres, running(KafkaServer()) as kafka:
            return campaign(
                directory, postgres, kafka, kills=parsed.kills, server_kills=server_kills, seed=parsed.seed, say=say
            )

    return carry_out("webhook", parsed.report, run)


if __name__ == "__main__":
    sys.exit(main())
