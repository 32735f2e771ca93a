"""The command of the campaign; its exit status is 1 on a violation, and if nothing is proved."""

import argparse
import sys
from pathlib import Path

from tests.connectors.campaign.command import carry_out
from tests.connectors.http_campaign.rounds import campaign


def main() -> int:
    """Run the campaign that the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m tests.connectors.http_campaign")
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--service-kills", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--report", type=Path)
    parsed = parser.parse_args()
    return carry_out(
        "http",
        parsed.report,
        lambda directory, say: campaign(
            directory, kills=parsed.kills, service_kills=parsed.service_kills, seed=parsed.seed, say=say
        ),
    )


if __name__ == "__main__":
    sys.exit(main())
